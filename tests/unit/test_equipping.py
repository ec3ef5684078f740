"""The agent's box: devices that come and go, and who works on them."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from simgpu import errors
from simgpu.controllers import equipping
from simgpu.dra.node_devices import MigPart
from simgpu.machines.box import Box
from simgpu.machines.users import CpuSource, Plan, PodRef, Range, User
from simgpu.node import state
from simgpu.page import writer
from simgpu.sim import activity
from simgpu.topology import pools
from simgpu.topology.devices import part_id
from tests.fixtures import smi
from tests.fixtures.equipment import IDS, equipment, share, shown, spec, worked


def test_hosts_are_named_as_the_exporters_pod() -> None:
    names = [equipping.hostname(node) for node in ("node-1", "node-1-2-3", "fake-node")]
    assert names == [f"nvidia-dcgm-exporter-{end}" for end in ("b36828", "a0d194", "ce8600")]


def test_gpus_have_the_ids_that_follow_from_the_nodes_name() -> None:
    assert pools.build(spec(1), "node-a")[0].uuid == "GPU-6b7039b6-4015-594d-b849-1ac701dab12e"


@pytest.mark.parametrize(
    ("numa", "zones"),
    [
        (pools.Numa(2), [0, 0, 0, 0, 1, 1, 1]),
        (pools.Numa(3, (1, 2, 4)), [0, 1, 1, 2, 2, 2, 2]),
        (pools.Numa(1), [0] * 7),
    ],
)
def test_gpus_lie_on_numa_nodes_as_the_pool_says(numa: pools.Numa, zones: list[int]) -> None:
    assert [device.numa for device in pools.build(spec(7, numa=numa), "node-a")] == zones


def test_a_page_is_there_for_each_gpu_and_goes_with_it(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(3))
    assert sorted(path.parent.name for path in made.pages.glob("GPU-*/page")) == sorted(IDS[:3])
    made.equip(spec(1))
    assert [path.parent.name for path in made.pages.glob("GPU-*/page")] == IDS[:1]
    made.equip(pools.NodeGpus(()))
    assert not list(made.pages.glob("GPU-*/page"))
    assert not made.box.devices


@pytest.mark.parametrize("used", [False, True])
def test_a_mig_instance_that_goes_takes_plans_and_requests_of_its_users_along(tmp_path: Path, *, used: bool) -> None:
    planned = User(
        PodRef("p", "ns", "main", "uid-p"), part=7, plan=Plan(activity.Profile("w", (activity.Activity({}),)))
    )
    driven = User(PodRef("q", "ns", "main", "uid-q"), full_load=100.0, part=7)
    made = equipment(tmp_path)
    made.equip(spec(1), {IDS[0]: (MigPart("1g.18gb", 0, 7, 16384),)})
    made.use({IDS[0]: (planned, driven)})
    inventory = made.box._inventory
    before = set(inventory._plays)
    assert [item.what for item in inventory._plays.values()] == [planned, driven]
    assert [user for user, _ in made.box.request_driven()] == [driven]
    made.equip(spec(1))
    made.use({IDS[0]: (planned, driven)} if used else {})
    assert set(inventory._plays) == set(inventory.workloads.running)
    assert (before & set(inventory._plays), made.box.request_driven()) == (set(), [])


def test_mig_instances_come_and_go_beside_each_other(tmp_path: Path) -> None:
    first, second = MigPart("1g.18gb", 0, 7, 16384), MigPart("3g.71gb", 4, 2, 71424)
    ids = {part: part_id(IDS[0], part.number) for part in (first, second)}
    user = User(PodRef("p", "ns", "main", "uid-p"), Range(100, 100), 8192, 0.5, part=7)
    made = equipment(tmp_path)
    made.equip(spec(2), {IDS[0]: (first,)})
    made.use({IDS[0]: (user,)})
    made.box.step(60.0, clock=0.0)
    made.stepped(0.0)

    def listed(part: MigPart) -> str:
        return smi.say(writer.folder(made.pages, ids[part]).parent, "-L")

    assert re.findall(r"UUID: (\S+)\)", listed(first)) == [IDS[0], ids[first]]
    page = writer.read(writer.folder(made.pages, ids[first]) / "page")
    assert page is not None
    [instance] = page["instances"][0][: page["instance_count"][0]]
    assert (instance["usage"], instance["memory_used"], instance["memory_total"]) == (100, 8192 << 20, 16384 << 20)
    machine = made.box.machine
    assert not machine.pods
    assert [(part.id, machine.part_pods[part.handle].name) for part in machine.parts] == [(7, "p")]
    [own] = made.box.admit(activity.Profile("own", (activity.Activity({}),)), [ids[first]])
    assert made.box.workloads()[own].handles == (machine.parts[0].handle,)
    made.box.drop([own])
    before, running = shown(made), list(made.box.workloads())

    made.equip(spec(2), {IDS[0]: (first, second)})
    assert (shown(made), list(made.box.workloads())) == (before, running)
    assert {path.parent.name for path in (tmp_path / "gpus-mig").glob("*/page")} == set(ids.values())
    assert {path.parent.name for path in made.pages.glob("*/page")} == set(IDS[:2])

    made.equip(spec(2), {IDS[0]: (second,)})
    assert shown(made) == before
    assert not made.box.workloads()
    assert re.findall(r"UUID: (\S+)\)", listed(second)) == [IDS[0], ids[second]]
    made.use({IDS[0]: (user,)})  # before it is known that its claim is gone
    made.box.step(61.0, clock=1.0)
    assert made.box.machine.column("memory_used")[0] == 0
    made.equip(spec(2), {IDS[0]: (second, first, MigPart("7g.141gb", 0, 0, 143771), MigPart("9g.9gb", 0, 0, 1))})
    made.use({IDS[0]: (user,)})
    made.box.step(62.0, clock=2.0)
    assert {part.id: part.handle in made.box.machine.part_pods for part in made.box.machine.parts} == {
        2: False,
        7: True,
    }
    made.equip(spec(2))
    assert not made.box.machine.parts
    assert not list((tmp_path / "gpus-mig").glob("*/page"))


def in_the_way(folder: Path) -> None:
    """No page can be made for the third GPU."""
    (folder / "gpus" / IDS[2]).write_text("")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (spec(129), "at most 128 cards can have one, not 129"),
        (spec(2, "dg1"), "NVML supports NVIDIA's cards only"),
        (spec(3), f"{IDS[2]}: File exists"),
    ],
)
def test_gpus_that_cannot_be_shown_leave_those_that_were_there(
    tmp_path: Path, wanted: pools.NodeGpus, said: str
) -> None:
    made = worked(tmp_path)
    in_the_way(tmp_path)
    before, spec_before = shown(made), made.spec
    for _ in range(2):
        with pytest.raises(errors.InputError, match=said):
            made.equip(wanted)
    assert (shown(made), made.spec) == (before, spec_before)
    made.box.step(121.0, clock=0.0)
    made.stepped(0.0)
    pages = [writer.read(made.pages / name / "page") for name in IDS[:2]]
    assert [page["temperature"][0] > 0 for page in pages if page is not None] == [True, True]
    made.equip(spec(1))
    assert [path.parent.name for path in made.pages.glob("*/page")] == IDS[:1]


def test_a_full_disk_leaves_no_rubbish_where_pages_are(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    made = equipment(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(errors.InputError, match=r"pages: .*File too large"):
            made.equip(spec(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list((made.pages / IDS[0]).iterdir())
    made.equip(spec(1))
    assert writer.read(made.pages / IDS[0] / "page") is not None


def test_two_agents_do_not_write_on_the_same_pages(tmp_path: Path) -> None:
    first, second = equipment(tmp_path), equipment(tmp_path)
    first.equip(spec(1))
    with pytest.raises(errors.InputError, match="locked by another process"):
        second.equip(spec(1))
    first.close()
    second.equip(spec(1))
    assert [device.uuid for device in second.box.devices] == IDS[:1]


def test_work_stays_on_its_gpu_when_others_come_and_go(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(4))
    made.use({IDS[1]: (share("p"),), IDS[3]: (share("q"),)})
    made.box.step(5.0, clock=0.0)
    made.equip(spec(2))
    made.use({IDS[1]: (share("p"),)})
    assert {index: pod.name for index, pod in made.box.machine.pods.items()} == {1: "p"}
    assert len(made.box.workloads()) == 1
    made.equip(spec(4))
    made.use({IDS[1]: (share("p"),), IDS[3]: (share("q"),)})
    made.box.step(6.0, clock=0.0)
    assert {index: pod.name for index, pod in made.box.machine.pods.items()} == {1: "p", 3: "q"}


def test_what_is_set_on_one_gpu_writes_nothing_on_the_pages_of_others(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(2, settable=True))
    made.box.step(1.0, clock=0.0)
    made.stepped(0.0)
    before = [(made.pages / name / "page").read_bytes() for name in IDS[:2]]
    assert made.set(IDS[0], "power_limit", [500_000, 0]) == 0
    after = [(made.pages / name / "page").read_bytes() for name in IDS[:2]]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_of_those_that_share_a_gpu_the_same_is_named_whatever_they_do(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(1))

    def named(*shares: User, working: bool = False) -> str:
        made.use({IDS[0]: shares}, {("uid-p", "main")} if working else ())
        return made.box.machine.pods[0].name

    assert named(share("q")) == "q"
    assert named(share("p"), share("q")) == "p"
    assert named(share("p", 50), share("q")) == "p"
    assert named(share("p"), share("q"), working=True) == "p"
    assert named(share("p"), share("q", 20), share("r")) == "p"


def test_a_full_disk_is_told_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = state.StateFiles(tmp_path / "not there", tmp_path / "gpus")
    box = Box((), seed=1, hostname="")
    files.save(box)
    files.save(box)
    assert [record.getMessage() for record in caplog.records if "is not saved" in record.getMessage()] == [
        f"the state of GPUs is not saved: {tmp_path}/not there/state.unfinished: No such file or directory"
    ]


def test_a_container_with_workloads_of_its_own_does_nothing_beside_them(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(2))
    both = {name: (share("p"),) for name in IDS[:2]}
    made.use(both)
    made.box.step(5.0, clock=0.0)
    assert made.box.machine.column("busy").tolist() == [1, 1]
    made.use(both, {("uid-p", "main")})
    made.box.step(10.0, clock=0.0)
    assert made.box.machine.column("busy").tolist() == [0, 0]
    assert made.box.machine.column("memory_used").tolist() == [0, 0]
    assert {pod.name for pod in made.box.machine.pods.values()} == {"p"}
    made.use(both)
    made.box.step(15.0, clock=0.0)
    assert made.box.machine.column("busy").tolist() == [1, 1]


def test_gpus_are_as_busy_as_processors_are_where_that_is_wanted(tmp_path: Path) -> None:
    usage = tmp_path / "cgroups" / "cpuacct" / "kubepods" / "poduid-p" / ("3b" * 32) / "cpuacct.usage"
    usage.parent.mkdir(parents=True)
    usage.write_text("0")
    made = equipment(tmp_path)
    made.equip(spec(1))
    pod, source = PodRef("p", "ns", "main", "uid-of-the-api"), CpuSource("uid-p", "3b" * 32, 2.0)
    made.use({IDS[0]: (User(pod, Range(0, 100), 1000, cpu=source),)})
    made.follow_processors(10.0)
    made.box.step(1.0, clock=0.0)
    assert made.box.machine.column("busy")[0] == 0
    usage.write_text(str(10**9))
    made.follow_processors(12.0)
    made.box.step(2.0, clock=0.0)
    assert made.box.machine.column("busy")[0] == pytest.approx(0.25)


@pytest.mark.parametrize(("settable", "code"), [(True, 0), (False, 4)])
def test_programs_set_what_the_pool_lets_them(tmp_path: Path, settable: bool, code: int) -> None:
    made = equipment(tmp_path)
    assert made.set(IDS[0], "power_limit", [500_000, 0]) == 4
    made.equip(spec(1, settable=settable))
    assert made.set(IDS[0], "power_limit", [500_000, 0]) == code
    page = writer.read(made.pages / IDS[0] / "page")
    assert page is not None
    assert page["power_limit_mw"][0] == (500_000 if settable else 700_000)
