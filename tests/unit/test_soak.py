"""The parts of a soak that need no cluster: plan, checks and report, and what the documentation quotes."""

from __future__ import annotations

import asyncio
import collections
import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from simgpu.cluster import components, lifecycle, processes
from simgpu.kube import errors
from soak import fleet, pages, plan, report, run, state
from soak.counters import UNSAVED_SECONDS, Counters
from soak.gate import Gate
from soak.insisting import insist
from soak.pages import Holder, Page
from soak.results import Growth, Occurrence, Result, Sample, figures
from soak.settings import Settings
from soak.world import World

PAGE = """# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Energy.
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",Hostname="w0"} 5
# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL counter
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{gpu="0",UUID="GPU-a",Hostname="w0"} 7
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="w0",pod="exporter",exported_pod="p",exported_container="c"} 1
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="w0",pod="exporter"} 0
"""


def planned(seed: int, count: int) -> list[plan.Planned]:
    lane = plan.lane(plan.PROCESS_FAULTS, random.Random(seed), pause=4.0)
    return [*itertools.islice(lane, count)]


def test_the_same_seed_gives_the_same_faults_and_another_one_others() -> None:
    assert planned(1, 50) == planned(1, 50)
    assert planned(1, 50) != planned(2, 50)


def test_every_fault_has_its_turn_before_one_comes_again() -> None:
    in_a_round = len(plan.PROCESS_FAULTS) + 1  # the controller is killed twice
    for seed in range(20):
        kinds = collections.Counter(item.kind for item in planned(seed, in_a_round))
        assert kinds == collections.Counter(plan.PROCESS_FAULTS) + collections.Counter(["kill controller"])


def test_sizes_follow_from_the_length_unless_they_are_given(tmp_path: Path) -> None:
    short = Settings(seconds=30, seed=1, out=tmp_path).complete()
    long = Settings(seconds=3600, seed=1, out=tmp_path, nodes=5).complete()
    assert short.nodes < 64
    assert (long.nodes, long.peak) == (5, 260.0)
    assert long.chance("load").random() == short.chance("load").random() != long.chance("proxy").random()


async def test_a_check_waits_for_what_is_in_progress_and_holds_up_the_rest() -> None:
    gate, trail = Gate(), []
    leave = asyncio.Event()

    async def disturb(name: str, until: asyncio.Event) -> None:
        async with gate.inside():
            trail.append(f"+{name}")
            await until.wait()
            trail.append(f"-{name}")

    async def check() -> None:
        async with gate.closed():
            trail.append("check")

    first = asyncio.create_task(disturb("first", leave))
    await asyncio.sleep(0)
    checking = asyncio.create_task(check())
    await asyncio.sleep(0)
    second = asyncio.create_task(disturb("second", leave))
    for _ in range(5):
        await asyncio.sleep(0)
    assert trail == ["+first"]
    leave.set()
    await asyncio.gather(first, checking, second)
    assert trail == ["+first", "-first", "check", "+second", "-second"]


def test_a_page_shows_counters_holders_and_gpus() -> None:
    found = pages.read(PAGE)
    assert found.counters == {("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "GPU-a"): 5.0}
    assert found.holders == {("w0", 0): Holder("p", "c")}
    assert found.gpus == {"GPU-a": ("w0", 0), "GPU-b": ("w0", 1)}
    assert (found.series, found.busy) == (4, 1)


def test_the_page_of_an_agent_has_the_gpus_of_its_node_whatever_host_it_names() -> None:
    text = PAGE.replace('pod="exporter",exported_pod="p",exported_container', 'pod="p",container').replace(
        ',pod="exporter"', ""
    )
    found = pages.read(text, node="n")
    assert found.holders == {("n", 0): Holder("p", "c")}
    assert found.gpus == {"GPU-a": ("n", 0), "GPU-b": ("n", 1)}
    both = pages.together([found, pages.read(PAGE.replace("GPU-", "GPU-other-"))])
    assert both.holders.keys() == {("n", 0), ("w0", 0)}
    assert (len(both.counters), len(both.gpus), both.series, both.busy) == (2, 4, 8, 2)


def test_faults_that_never_acted_are_a_failure_once_they_had_the_chance() -> None:
    faults = {"full disk": 3, "slow disk": 3, "stepped clock": 2, "kill etcd": 9}
    assert [*run.without_effect(faults, {"slow disk": 1})] == ["full disk: happened 3 times, and never acted"]


def view(*owners: str) -> dict[str, Any]:
    owned = [{"pod": owner, "container": "c0" if owner else ""} for owner in owners]
    return {"gpus": [{"status": {"allocatedBy": owner}} for owner in owned]}


NODES = {"w0": fleet.WHOLE, "c0": fleet.CLAIMED, **fleet.REAL_NODES}
REAL, REAL_CLAIMED = fleet.REAL_NODES
FREE = [""] * (fleet.GPUS - 1)
AT_REST = state.Seen(
    holders={("w0", 0): Holder("p", "c0"), ("c0", 2): Holder("q", "c0"), (REAL_CLAIMED, 0): Holder("r", "c0")},
    series=16,
    gpus=dict.fromkeys(NODES, fleet.GPUS),
    maps=frozenset({"topology"}),
    views={"w0": view("p", *FREE), "c0": view("", "", "q", *FREE[2:]), REAL: view(), REAL_CLAIMED: view("r", *FREE)},
    allocatable={"w0": {"nvidia.com/gpu": "8"}, "c0": {}},
    labels={},
    slices={name: {"nodeName": name, "devices": [{}] * fleet.GPUS} for name in ("c0", REAL_CLAIMED)},
    wanted=collections.Counter({("w0", Holder("p", "c0")): 1}),
    claimed={("c0", 2): Holder("q", "c0"), (REAL_CLAIMED, 0): Holder("r", "c0")},
    starting=frozenset(),
    waiting=frozenset(),
)


def test_what_agrees_is_at_rest() -> None:
    assert state.disagreements(AT_REST, NODES) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"starting": frozenset({"p"})}, "pods start: 1"),
        ({"wanted": collections.Counter()}, "pods: 1 differ"),
        ({"claimed": {("c0", 3): Holder("q", "c0"), (REAL_CLAIMED, 0): Holder("r", "c0")}}, "claims: 2 differ"),
        ({"views": AT_REST.views | {"w0": view("", *FREE)}}, "views: 1 differ"),
        ({"views": AT_REST.views | {"gone": view()}}, "views of nodes: ['gone']"),
        ({"gpus": {"w0": 8}}, "GPUs on the page: 3 differ"),
        ({"allocatable": {}}, "allocatable: 1 differ"),
        ({"slices": {}}, "devices in slices: 2 differ"),
    ],
)
def test_whatever_does_not_agree_is_named(change: dict[str, Any], problem: str) -> None:
    [found] = state.disagreements(msgspec.structs.replace(AT_REST, **change), NODES)
    assert problem in found


def test_on_a_node_that_the_scheduler_overfilled_all_gpus_are_in_use() -> None:
    pods = [Holder(f"p{number}", "c0") for number in range(fleet.GPUS + 1)]
    held = {("w0", number): pod for number, pod in enumerate(pods[: fleet.GPUS])}
    others = {place: holder for place, holder in AT_REST.holders.items() if place[0] != "w0"}
    full = msgspec.structs.replace(
        AT_REST, holders=others | held, wanted=collections.Counter({("w0", pod): 1 for pod in pods}),
        views=AT_REST.views | {"w0": view(*(pod.pod for pod in pods[: fleet.GPUS]))},
    )  # fmt: skip
    assert state.overfilled(full) == {"w0"}
    assert state.disagreements(full, NODES) == []
    free = {place: holder for place, holder in full.holders.items() if place != ("w0", 7)}
    lacking = msgspec.structs.replace(
        full, holders=free, views=full.views | {"w0": view(*(p.pod for p in pods[:7]), "")}
    )
    [problem] = state.disagreements(lacking, NODES)
    assert problem.startswith("pods of w0, which has too many")


def test_a_fresh_start_that_shows_anything_else_is_a_difference() -> None:
    assert state.differences(AT_REST, AT_REST) == []
    moved = msgspec.structs.replace(AT_REST, holders={("w0", 1): Holder("p", "c0")}, series=17)
    holders, series = state.differences(AT_REST, moved)
    assert holders.startswith("holders: 4 differ")
    assert series == "series: 16 -> 17"


def test_what_stays_after_the_last_pod_is_a_leak() -> None:
    empty = msgspec.structs.replace(AT_REST, series=15, maps=frozenset())
    assert state.leaks(AT_REST, NODES, 3, empty) == {
        "GPUs": 6, "series": 1, "ConfigMaps": 1, "ResourceSlices": 0, "claims": 3,
    }  # fmt: skip
    clean = msgspec.structs.replace(AT_REST, holders={}, views={"w0": view(*FREE, "")})
    assert not any(state.leaks(clean, NODES, 0, AT_REST).values())


XID, ENERGY = "DCGM_FI_DEV_XID", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def read(counters: Counters, value: float, *, at: float, pid: int = 1, family: str = XID, role: str = "agent") -> None:
    counters.add(role, Page({(family, "GPU-a"): value}, {}, {"GPU-a": ("w0", 3)}, 1, 0), pid=pid, at=at)


def test_a_counter_that_falls_is_remembered_whoever_serves_it_by_then() -> None:
    counters = Counters()
    for at, (value, pid) in enumerate([(5, 1), (7, 1), (7, 2), (6, 3), (6, 3)]):
        read(counters, value, pid=pid, at=at)
    assert counters.grown == {("agent", XID, "GPU-a")}
    assert counters.falls == ["3.0 s: agent DCGM_FI_DEV_XID ('w0', 3): 7 -> 6"]


def test_a_counter_that_is_no_number_is_a_failure_and_hides_no_fall() -> None:
    counters = Counters()
    for at, value in enumerate([5.0, math.nan, 4.0]):
        read(counters, value, at=at)
    assert [fall.rpartition(": ")[2] for fall in counters.falls] == ["it is no number", "5.0 -> 4.0"]


@pytest.mark.parametrize(("killed", "crashes"), [(("agent",), []), ((), ["agent"])])
async def test_a_process_that_ends_while_others_are_restarted_has_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: tuple[str, ...], crashes: list[str]
) -> None:
    made = World(Settings(seconds=1, seed=1, out=tmp_path), tmp_path)
    made._roles = (components.Role("agent", ()),)
    running = {"agent": 1}

    async def up(*_given: object) -> None:
        running["agent"] = 2

    async def stop(*_given: object, **_more: object) -> None:
        del running["agent"]

    monkeypatch.setattr(lifecycle, "up", up)
    monkeypatch.setattr(processes, "stop", stop)
    monkeypatch.setattr(made, "pids", lambda: dict(running))
    made.folder = SimpleNamespace(path=tmp_path)  # type: ignore[assignment]
    for name in killed:
        await made.stop(name)
    await made.revive()
    assert (made.crashes, made.restarts["agent"]) == (crashes, 1)


def test_an_exporters_counters_count_for_one_life_of_the_process() -> None:
    counters = Counters()
    read(counters, 5, at=0, pid=1, role="exporter")
    read(counters, 0, at=1, pid=2, role="exporter")
    assert counters.falls == []
    read(counters, -1, at=2, pid=2, role="exporter")
    assert len(counters.falls) == 1


def test_counters_of_a_controller_itself_count_for_one_life_of_the_process() -> None:
    counters = Counters()
    for pid, values in [(1, {"a_total": 5.0, "b": 5.0}), (1, {"a_total": 6.0, "b": 4.0}), (2, {"a_total": 0.0})]:
        counters.add_own(values, pid=pid, at=1.0)
    assert counters.falls == []
    counters.add_own({"a_total": -1.0, "c_sum": math.nan}, pid=2, at=2.0)
    assert counters.falls == [
        "2.0 s: a_total of the controller: 0.0 -> -1.0",
        "2.0 s: c_sum of the controller: None -> nan",
    ]


def test_counters_of_gpus_that_were_replaced_may_fall_once_and_only_until_the_next_rest() -> None:
    counters = Counters()
    read(counters, 9, at=0)
    counters.replaced("w1")  # another node
    read(counters, 8, at=1)
    assert len(counters.falls) == 1
    counters.replaced("w0")
    counters.settled("controller")  # another role
    read(counters, 7, at=2)
    assert len(counters.falls) == 1
    read(counters, 6, at=3)
    assert len(counters.falls) == 2
    counters.replaced("w0")
    counters.settled("agent")
    read(counters, 5, at=4)
    assert len(counters.falls) == 3


@pytest.mark.parametrize(
    ("failing", "family", "pid", "ended", "forgiven"),
    [
        (3, XID, 2, 10 + UNSAVED_SECONDS, True),
        (3, XID, 2, 11 + UNSAVED_SECONDS, False),  # there was time to save it
        (3, XID, 1, 10, False),  # nobody ended
        (3, ENERGY, 2, 10, False),  # no error
        (4, XID, 2, 10, False),  # another GPU failed
    ],
)
def test_an_error_may_be_forgotten_only_by_a_process_that_ended_seconds_after_it(
    failing: int, family: str, pid: int, ended: float, forgiven: bool
) -> None:
    counters = Counters()
    read(counters, 1, at=0, family=family)
    counters.failed("w0", failing)
    read(counters, 2, at=10, family=family)
    read(counters, 2, at=ended, family=family)
    read(counters, 1, at=ended + 5, family=family, pid=pid)
    assert (counters.falls == []) == forgiven


def test_remapped_rows_may_go_once_with_the_failure_that_brought_them() -> None:
    counters, rows = Counters(), "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
    read(counters, 0, at=0, family=rows)
    counters.failed("w0", 3)
    for at, value in enumerate([1, 0]):
        read(counters, value, at=at, family=rows)
    assert counters.falls == []
    for at, value in enumerate([1, 0]):
        read(counters, value, at=at, family=rows)
    assert len(counters.falls) == 1


async def test_a_request_is_repeated_while_the_server_cannot_answer_it() -> None:
    answers: list[Exception | str] = [
        errors.ConnectError("refused"),
        errors.TooManyRequests(429, "", "", 1.0),
        errors.ServerError(500, "", ""),
        errors.Starting(403, "Forbidden", 'pods "a" is forbidden: not yet ready to handle request'),
        "done",
    ]

    async def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await insist(call) == "done"
    answers.append(errors.NotFound(404, "", ""))
    assert await insist(call) is None


@pytest.mark.parametrize("kind", [errors.BadRequest, errors.Forbidden, errors.Invalid])
async def test_a_request_that_can_never_succeed_is_not_repeated(kind: type[errors.ApiError]) -> None:
    async def call() -> None:
        raise kind(400, "", "wrong")

    with pytest.raises(kind):
        await insist(call)


def sample(at: float, memory: float, files: int, pid: int = 1) -> Sample:
    return Sample(
        at, {"controller": pid}, {"controller": memory}, {"controller": files},
        event_lag=0.1, write_lag=0.2, restarts=1, faults=2,
    )  # fmt: skip


def test_a_process_that_grows_is_a_failure_and_one_that_does_not_is_none() -> None:
    samples = [sample(0, 100, 20), sample(1, 300, 30), sample(2, 120, 25)]
    steady = run.grown(samples, [samples[0], samples[2]])["controller"]
    assert steady == Growth(100, 120, 300, 20, 25, 30, 2)
    assert [*run.excess("controller", steady)] == []
    grown = Growth(100, 400, 600, 20, 90, 500, 2)
    assert len([*run.excess("controller", grown)]) == 4
    little = Growth(68, 90, 90, 20, 20, 20, 2)
    assert [*run.excess("controller", little)] == []
    assert [*run.excess("agent", little)] == ["agent grew from 68 to 90 MiB"]


def test_growth_is_that_of_the_process_that_lived_longest_not_of_one_that_has_just_started() -> None:
    rests = [sample(0, 80, 10), sample(5, 90, 11), sample(6, 70, 12, 2), sample(50, 400, 99, 2), sample(51, 80, 10, 3)]
    grown = run.grown(rests, rests)["controller"]
    assert grown == Growth(70, 400, 400, 12, 99, 99, 44)
    assert [*run.excess("controller", grown)] == [
        "controller grew from 70 to 400 MiB", "controller never had less than 12 open files, and later 99",
    ]  # fmt: skip


def test_a_process_may_warm_up_and_grows_little_once_it_is_warm() -> None:
    rests = [sample(0, 70, 10), sample(100, 115, 10), sample(400, 117, 10), sample(1200, 120, 10)]
    warm = run.grown(rests, rests)["controller"]
    assert warm == Growth(70, 120, 120, 10, 10, 10, 1200, memory_warm=117)
    assert [*run.excess("controller", warm)] == []
    rests.append(sample(1300, 140, 10))
    (problem,) = run.excess("controller", run.grown(rests, rests)["controller"])
    assert problem == "controller grew from 117 to 140 MiB once it was warm"
    (problem,) = run.excess("agent", msgspec.structs.replace(warm, memory_first=90))
    assert problem == "agent grew from 90 to 117 MiB"


def test_connections_that_come_and_go_are_no_growth_and_a_file_that_stays_open_is() -> None:
    files = [10, 48, 12, 47, 11, 44]
    samples = [sample(at, 80, count) for at, count in enumerate(files)]
    assert [*run.excess("controller", run.grown(samples, [samples[0], samples[-1]])["controller"])] == []
    samples = [sample(at, 80, count + 10 * at) for at, count in enumerate(files)]
    (problem,) = run.excess("controller", run.grown(samples, [samples[0], samples[-1]])["controller"])
    assert problem == "controller never had less than 10 open files, and later 51"


def test_a_run_in_which_no_process_lived_from_one_check_to_another_shows_nothing_about_growth() -> None:
    rests = [sample(0, 80, 10), sample(5, 80, 10, 2)]
    [problem] = run.excess("controller", run.grown(rests, rests)["controller"])
    assert "no process lived from one check to another" in problem


RESULT = Result(
    seed=7, seconds=100.0, cores=2, nodes=3, gpus=24, failures=["<it> broke"], faults={"kill etcd": 2, "full disk": 1},
    impossible={"slow disk": "no cgroup"}, edits={"other models": 4}, proxy={"requests": 10}, restarts={"etcd": 2},
    load={"pods": 500, "claims": 20, "pods deleted": 510}, peak=90, checks=2, fresh_starts=1, settle_seconds=[1.0, 2.5],
    scrapes=40, counters=12, falls=0, leaked={"GPUs": 0}, growth={}, occurrences=[Occurrence(1.0, "check", 2.0)],
    samples=[sample(0, 100, 20), sample(50, 110, 21)],
)  # fmt: skip


def test_the_report_has_the_figures_as_text_json_and_plots(tmp_path: Path) -> None:
    assert (RESULT.kills, RESULT.inputs) == (2, 1034)
    shown = dict(figures(RESULT))
    assert shown["kills"] == "2: kill etcd 2"
    assert shown["pods a second"] == "5.2, and 90 in the busiest second"
    assert shown["not possible here"] == "slow disk (no cgroup)"
    report.write(RESULT, tmp_path)
    assert msgspec.json.decode((tmp_path / "soak.json").read_bytes(), type=Result) == RESULT
    page = (tmp_path / "soak.html").read_text()
    assert "&lt;it&gt; broke" in page
    assert page.count("<svg") >= 4
    assert "src=" not in page  # it needs nothing else
    assert "FAILED <it> broke" in report.lines(RESULT)


def test_the_documentation_quotes_the_run_that_was_kept() -> None:
    kept = report.load()
    assert dict(figures(kept)).get("what did not hold", "") == "; ".join(kept.failures)
    assert kept.impossible == {}
    assert kept.faults.keys() == {kind for kinds in plan.LANES.values() for kind in kinds}
    assert not any(kept.leaked.values())
    assert kept.kills >= 50
    assert kept.peak >= 200
    assert kept.seconds >= 3600
    assert [problem for name in plan.OURS for problem in run.excess(name, kept.growth[name])] == []
    assert all(kept.growth[name].memory_warm is not None for name in plan.OURS)
    assert report.table(kept) in report.DOCUMENT.read_text()
