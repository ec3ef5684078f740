"""The agent's box: devices that come and go, a state that outlives it, counters that never fall."""

from __future__ import annotations

import json
import platform
import resource
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import errors
from simgpu.app import equipping, keeping, showing
from simgpu.app.equipping import Equipment
from simgpu.box import MOST_GONE, Box
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.controllers.own_node import Shared
from simgpu.identities import identity, quantities
from simgpu.node import granting
from simgpu.page import writer
from simgpu.pods import profiles, requests
from simgpu.sim import activity, cards
from simgpu.topology import devices, pools, sharing

CATALOG = models.load()
IDS = [f"GPU-{uuid.uuid5(uuid.UUID(int=0), f'node-a-{index}')}" for index in range(8)]


def spec(count: int, model: str = "h200", **more: Any) -> pools.NodeGpus:
    return pools.NodeGpus((pools.Gpu(CATALOG.models[model]),) * count, **more)


def equipment(folder: Path) -> Equipment:
    return Equipment("node-a", identity.load("dcgm"), folder, seed=1, interval=1.0, cgroups=folder / "cgroups")


def share(name: str, low: int = 100, part: float = 1.0) -> Shared:
    return Shared(publishing.Use(f"uid-{name}", "ns", name, "main", low, low, 1000), part)


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
    assert made.page is None


def in_the_way(folder: Path) -> None:
    """No page can be made for the third GPU."""
    (folder / "gpus" / IDS[2]).write_text("")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (spec(129), "at most 128 cards have them, not 129"),
        (spec(2, "dg1"), "NVML shows NVIDIA's cards only"),
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
    assert made.page is not None
    made.box.step(121.0, clock=0.0)
    made.stepped()
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
    with pytest.raises(errors.InputError, match="somebody else writes"):
        second.equip(spec(1))
    first.close()
    second.equip(spec(1))
    assert second.page is not None


def test_work_stays_on_its_gpu_when_others_come_and_go(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(4))
    made.use({IDS[1]: (share("p"),), IDS[3]: (share("q"),)})
    made.box.step(5.0, clock=0.0)
    made.equip(spec(2))
    made.use({IDS[1]: (share("p"),)})
    assert [(work.devices, work.pod.name if work.pod else "") for work in made.box.workloads().values()] == [
        ((1,), "p")
    ]
    made.equip(spec(4))
    made.use({IDS[1]: (share("p"),), IDS[3]: (share("q"),)})
    made.box.step(6.0, clock=0.0)
    assert {index: pod.name for index, pod in made.box.machine.pods.items()} == {1: "p", 3: "q"}


def test_what_is_set_on_one_gpu_writes_nothing_on_the_pages_of_others(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(2, settable=True))
    made.box.step(1.0, clock=0.0)
    made.stepped()
    before = [(made.pages / name / "page").read_bytes() for name in IDS[:2]]
    assert made.set(IDS[0], "power_limit", [500_000, 0]) == 0
    after = [(made.pages / name / "page").read_bytes() for name in IDS[:2]]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_of_those_that_share_a_gpu_the_same_is_named_whatever_they_do(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(1))

    def named(*shares: Shared, working: bool = False) -> str:
        made.use({IDS[0]: shares}, {("uid-p", "main")} if working else ())
        return made.box.machine.pods[0].name

    assert named(share("q")) == "q"
    assert named(share("p"), share("q")) == "p"
    assert named(share("p", 50), share("q")) == "p"
    assert named(share("p"), share("q"), working=True) == "p"
    assert named(share("p"), share("q", 20), share("r")) == "p"


def test_a_full_disk_is_told_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = keeping.Keeper(tmp_path / "not there" / "state.json", "where GPUs stand")
    box = Box((), seed=1, hostname="")
    keeper.save(keeping.stand(box))
    keeper.save(keeping.stand(box))
    assert [record.getMessage() for record in caplog.records if "is not saved" in record.getMessage()] == [
        f"where GPUs stand is not saved: {tmp_path}/not there/state.unfinished: No such file or directory"
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
    usage = tmp_path / "groups" / "cpuacct" / "kubepods" / "poduid-p" / ("3b" * 32) / "cpuacct.usage"
    usage.parent.mkdir(parents=True)
    usage.write_text("0")
    made = Equipment("node-a", identity.load("dcgm"), tmp_path, seed=1, interval=1.0, cgroups=tmp_path / "groups")
    made.equip(spec(1))
    use = publishing.Use("uid-of-the-api", "ns", "p", "main", 0, 100, 1000)
    made.use({IDS[0]: (Shared(use, 1.0, "3b" * 32, 2.0, pod="uid-p"),)})
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


def worked(folder: Path) -> Equipment:
    """Two GPUs after two minutes: one is hot from a pod's work and has seen an error, one has done nothing."""
    made = equipment(folder)
    made.equip(spec(2))
    made.use({IDS[0]: (share("p"),)})
    events = {"uncorrected": activity.Value(1, 1, period=50.0)}
    made.box.admit(activity.Profile("failing", (activity.Activity(events),)), [0])
    start = time.time() - 120
    for step in range(1, 241):
        made.box.step(step / 2, clock=start + step / 2)
    return made


def restarted(made: Equipment, folder: Path, gpus: pools.NodeGpus | None = None) -> Equipment:
    """The equipment of an agent that comes after one that was killed after a step."""
    made.stepped()
    made.close()
    again = equipment(folder)
    again.equip(gpus or made.spec)
    return again


def shown(made: Equipment) -> dict[str, list[float]]:
    """All that readers see of the GPUs, by name."""
    names = (*cards.READINGS, *cards.SETTINGS, *cards.OUTLIVING, "memory_used", "memory_clock", "reasons")
    return {name: made.box.engine.read(name, made.box.machine.ids).tolist() for name in names}


def test_gpus_go_on_as_they_were_after_a_kill(tmp_path: Path) -> None:
    made = worked(tmp_path)
    made.box.engine.set_limit(1, 500)
    made.box.engine.set_highest_clock(2, 1000)
    made.box.step(121.0, clock=time.time())
    before = shown(made)
    assert before["temperature"][0] > before["temperature"][1] + 15
    assert before["uncorrected"] == [2, 0]
    assert shown(restarted(made, tmp_path)) == before


def test_the_time_that_an_agent_was_away_is_its_pods_time(tmp_path: Path) -> None:
    made = worked(tmp_path)
    before = shown(made)
    again = restarted(made, tmp_path)
    again.use({IDS[0]: (share("p"),)})
    again.box.step(again.saved.now + 60, clock=time.time() + 60)
    after = shown(again)
    assert after["temperature"] == pytest.approx(before["temperature"], abs=2)
    assert after["power_average"] == pytest.approx(before["power_average"], rel=0.05)
    joules = [new - old for new, old in zip(after["energy"], before["energy"], strict=True)]
    assert joules == pytest.approx([60 * power for power in before["power_average"]], rel=0.05)


def test_the_last_error_stays_when_it_was(tmp_path: Path) -> None:
    def times(made: Equipment) -> list[float]:
        return [round(value, 1) for value in quantities.last("uncorrected")(made.box.machine).tolist()]

    made = worked(tmp_path)
    before = times(made)
    assert time.time() - 30 < before[0] < time.time() - 10
    again = restarted(made, tmp_path)
    again.box.step(again.saved.now + 60, clock=made.box.machine.time + 60)
    assert times(again)[0] == pytest.approx(before[0], abs=0.1)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_while_no_agent_runs_is_no_time_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    made = worked(tmp_path)
    made.stepped()
    made.close()
    told = time.time
    monkeypatch.setattr(time, "time", lambda: told() + step)
    again = equipment(tmp_path)
    assert 0 <= again.saved.age - made.box.engine.now < 30


def test_another_agent_knows_what_the_node_had_and_who_used_it(tmp_path: Path) -> None:
    names = [name for name, model in CATALOG.models.items() if model.vendor == "nvidia"]
    other = pools.parse("nodePools: {x: {gpuProduct: Mine, gpuMemory: 5000, gpuCount: 3}}", CATALOG).pools["x"]
    gpus = (*(pools.Gpu(CATALOG.models[name], f"{name}-{place}") for name in names for place in range(2)), *other.gpus)
    wanted = pools.NodeGpus(gpus, {"rdma/hca": 2}, numa=pools.Numa(2), settable=True)
    made = equipment(tmp_path)
    made.equip(wanted)
    uses = {"h200-0": (share("p"), share("q", 30, 0.5))}
    made.remember(uses)
    before = product_and_links(made)
    made.close()
    again = equipment(tmp_path)
    assert (again.known.spec, again.known.uses) == (wanted, uses)
    again.equip(again.known.spec)
    assert product_and_links(again) == before
    assert max(links for _, links in before) > 0


def product_and_links(made: Equipment) -> list[tuple[str, int]]:
    """Of each GPU, as its page shows them."""
    found = [writer.read(made.pages / device.uuid / "page") for device in made.box.devices]
    return [(page["product"][0].decode(), int(page["links"][0])) for page in found if page is not None]


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"version":2}', b'{"spec":{"gpus":[{"model":{}}]}}'])
def test_a_file_of_what_the_node_had_that_cannot_be_read_is_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "known.json").write_bytes(content)
    assert equipment(tmp_path).known == keeping.Known()
    assert "what the node had is not known" in caplog.text


def test_while_the_machine_was_off_gpus_got_cold_and_used_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = worked(tmp_path)
    made.box.engine.set_limit(1, 500)
    before = shown(made)
    made.stepped()
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(keeping, "_BOOT", tmp_path / "boot")
    made.close()
    again = equipment(tmp_path)
    again.equip(spec(2))
    after = shown(again)
    assert after["temperature"] == pytest.approx(before["temperature"][1:] * 2, abs=5)
    assert after["limit"] == [700, 700]
    assert {name: after[name] for name in cards.OUTLIVING} == {name: before[name] for name in cards.OUTLIVING}


def test_another_card_in_the_same_place_only_goes_on_counting(tmp_path: Path) -> None:
    made = worked(tmp_path)
    before = shown(made)
    after = shown(restarted(made, tmp_path, spec(2, "a100")))
    assert after["energy"] == before["energy"]
    assert after["temperature"][0] < before["temperature"][0] - 10
    assert after["limit"] == [CATALOG.models["a100"].power_w.default] * 2


def test_modes_and_past_readings_stay_with_a_card(tmp_path: Path) -> None:
    made = worked(tmp_path)
    assert made._shown is not None
    assert made._shown.set(IDS[1], "compute_mode", [3]) == showing.OK
    assert made._shown.set(IDS[1], "persistence", [0]) == showing.OK
    again = restarted(made, tmp_path, spec(3))
    again.stepped()
    pages = [writer.read(again.pages / name / writer.FILE) for name in IDS[:3]]
    assert [(int(page["persistence"][0]), int(page["compute_mode"][0])) for page in pages if page is not None] == [
        (1, 0), (0, 3), (1, 0),
    ]  # fmt: skip
    assert [int(page["sample_count"][0]) for page in pages if page is not None] == [4, 4, 2]


def test_a_gpu_that_comes_back_after_a_restart_goes_on_counting(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(2))
    made.box.step(60.0, clock=0.0)
    before = made.box.counters()[IDS[1]]
    made.equip(spec(1))
    made.stepped()
    made.close()
    again = equipment(tmp_path)
    again.equip(spec(1))
    again.stepped()
    again.close()
    third = equipment(tmp_path)
    third.equip(spec(2))
    assert third.box.counters()[IDS[1]] == before


@pytest.mark.parametrize(
    "broken",
    [
        lambda _: b"", lambda whole: whole[: len(whole) // 2], lambda whole: whole[:-1], lambda _: b"null",
        lambda whole: whole.replace(b'"version":2', b'"version":1'),
        lambda whole: whole.replace(b'"energy":', b'"energy":"x","e":'),
    ],
)  # fmt: skip
def test_gpus_start_anew_where_a_file_is_broken(
    tmp_path: Path, broken: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    made = worked(tmp_path)
    made.stepped()
    made.close()
    whole = (tmp_path / "state.json").read_bytes()
    (tmp_path / "state.json").write_bytes(broken(whole))
    again = equipment(tmp_path)
    again.equip(spec(2))
    assert shown(again)["energy"] == [0, 0]
    assert "GPUs start anew" in caplog.text
    again.stepped()
    assert len((tmp_path / "state.json").read_bytes()) > len(whole) // 2


def test_a_file_that_was_not_finished_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = worked(tmp_path)
    before = shown(made)
    made.stepped()
    (tmp_path / "state.unfinished").write_bytes((tmp_path / "state.json").read_bytes()[:100])
    assert shown(restarted(made, tmp_path)) == before
    assert not caplog.text


@given(st.binary(), st.integers(0, 5000))
@settings(deadline=None, max_examples=100)
def test_no_file_makes_an_agent_fail(bits: bytes, place: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        box = Box(pools.build(spec(1), "node-a"), seed=1, hostname="")
        keeping.Keeper(path, "").save(keeping.stand(box))
        whole = path.read_bytes()
        path.write_bytes(whole[:place] + bits + whole[place + len(bits) :])
        saved = keeping.load(path)
        Box(pools.build(spec(1), "node-a"), seed=1, hostname="", now=saved.now, kept=saved.devices).step(
            saved.now + 1, clock=1.0
        )


def test_a_gpu_that_was_away_comes_back_cold(tmp_path: Path) -> None:
    made = worked(tmp_path)
    before = shown(made)
    again = restarted(made, tmp_path, spec(0))
    again.box.step(again.saved.now + 1, clock=time.time())
    again.equip(spec(2))
    after = shown(again)
    assert after["temperature"][0] == pytest.approx(before["temperature"][1], abs=5)
    assert after["energy"] == before["energy"]


counts = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["h200", "a100"])), min_size=1, max_size=6)


@given(counts)
@settings(deadline=None, max_examples=30)
def test_counters_never_fall_whatever_the_topology_does(changes: list[tuple[int, str]]) -> None:
    box = Box((), seed=1, hostname="")
    highest: dict[str, float] = {}
    for now, (count, model) in enumerate(changes, 1):
        box.change([devices.device("n", index, CATALOG.models[model]) for index in range(count)])
        if count:
            box.admit(profiles.of("w", requests.ALL), [0])
        box.step(float(now), clock=0.0)
        for name, values in box.counters().items():
            assert values[0] >= highest.get(name, 0.0)
            highest[name] = values[0]


def test_a_container_gets_its_own_pages_and_nothing_more(tmp_path: Path) -> None:
    programs = granting.Programs(tmp_path / "lib", tmp_path / "smi")
    source = granting.Source(tmp_path, tmp_path / "run", programs)
    answer = granting.gpus(["GPU-a::3", "GPU-a::4", "GPU-b"], node="n", source=source)
    assert answer.envs["MOCK_NVIDIA_VISIBLE_DEVICES"] == answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert answer.envs["NODE_NAME"] == "n"
    assert all(mount.read_only for mount in answer.mounts)
    pages = [mount.container_path for mount in answer.mounts if "GPU-" in mount.container_path]
    assert pages == ["/var/lib/simgpu/gpus/GPU-a", "/var/lib/simgpu/gpus/GPU-b"]
    assert {"/bin/nvidia-smi", "/run/simgpu"} <= {mount.container_path for mount in answer.mounts}
    assert granting.others(node="n").mounts == ()


def test_programs_of_another_version_lie_beside_those_in_use(tmp_path: Path) -> None:
    built = tmp_path / "built" / platform.machine()
    built.mkdir(parents=True)
    for name in (granting.LIBRARY, granting.TOOL):
        (built / name).write_text("one")
    first = granting.install(tmp_path / "built", tmp_path / "state")
    (built / granting.TOOL).write_text("two")
    second = granting.install(tmp_path / "built", tmp_path / "state")
    assert (first.tool.read_text(), second.tool.read_text()) == ("one", "two")
    assert granting.install(tmp_path / "built", tmp_path / "state") == second


def test_programs_that_are_not_whole_are_put_there_anew(tmp_path: Path) -> None:
    built = tmp_path / "built" / platform.machine()
    built.mkdir(parents=True)
    for name in (granting.LIBRARY, granting.TOOL):
        (built / name).write_text(name)
    first = granting.install(tmp_path / "built", tmp_path / "state")
    inode = first.tool.stat().st_ino
    first.library.write_bytes(b"")
    assert granting.install(tmp_path / "built", tmp_path / "state") == first
    assert first.library.read_text() == granting.LIBRARY
    assert first.library.stat().st_mode & 0o777 == 0o755
    assert first.tool.stat().st_ino == inode


def test_of_gpus_that_are_gone_the_last_are_remembered() -> None:
    box = Box((), seed=1, hostname="")
    for number in range(MOST_GONE // 1000 + 2):
        box.change([devices.device(f"n{number}", index, CATALOG.models["h200"]) for index in range(1000)])
    box.change([])
    kept = list(box.keep())
    assert len(kept) == MOST_GONE
    assert kept[-1] == devices.device(f"n{MOST_GONE // 1000 + 1}", 999, CATALOG.models["h200"]).uuid


def labels(**slicing: Any) -> dict[str, str]:
    resource = {"name": "nvidia.com/gpu", "replicas": 4}
    made = sharing.parse({"timeSlicing": {"resources": [resource], **slicing}}, field="sharing")
    return publishing.labels(spec(2, slicing=made), "mixed")


def test_labels_say_how_gpus_are_shared() -> None:
    names = ("nvidia.com/gpu.product", "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy")
    assert [labels()[name] for name in names] == ["NVIDIA-H200-SHARED", "4", "time-slicing"]
    assert [labels(renameByDefault=True)[name] for name in names] == ["NVIDIA-H200", "4", "time-slicing"]
    assert [publishing.labels(spec(2), "mixed")[name] for name in names] == ["NVIDIA-H200", "1", "none"]


def test_the_view_names_all_that_share_a_gpu() -> None:
    uses = {IDS[0]: (share("p").use, share("q").use)}
    body = publishing.view("node-a", IDS[:1], spec(1), strategy="mixed", uses=uses, counters={}, fake=False)
    text = body["data"]["topology.yml"]
    assert "uid-p" in text
    assert "uid-q" in text
    assert json.loads(body["data"]["counters.json"]) == {}
    assert publishing.KWOK not in body["metadata"]["annotations"]


def test_the_view_has_what_all_containers_of_a_pod_use() -> None:
    both = tuple(publishing.Use("uid-p", "ns", "p", name, 50, 50, 1000) for name in ("a", "b"))
    body = publishing.view("node-a", IDS[:1], spec(1), strategy="mixed", uses={IDS[0]: both}, counters={}, fake=False)
    [gpu] = yaml.safe_load(body["data"]["topology.yml"])["gpus"]
    assert gpu["status"]["podGpuUsageStatus"]["uid-p"]["fbUsed"] == 2000
