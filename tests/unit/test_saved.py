"""A state that outlives the agent: what goes on after a kill, and counters that never fall."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import boot
from simgpu.controllers.equipping import Equipment
from simgpu.machines import profiles, quantities, users
from simgpu.machines.box import MAX_GONE, Box
from simgpu.machines.saved import Known
from simgpu.node import state
from simgpu.page import layout, showing, writer
from simgpu.sim import cards
from simgpu.topology import devices, pools, reading
from tests.fixtures.equipment import CATALOG, IDS, equipment, share, shown, spec, worked


def saved_work() -> bytes:
    """What is saved of two GPUs that have worked."""
    with tempfile.TemporaryDirectory() as folder:
        made = worked(Path(folder))
        made.stepped(0.0)
        made.close()
        return (Path(folder) / "state.json").read_bytes()


WORKED = saved_work()


def restarted(made: Equipment, folder: Path, gpus: pools.NodeGpus | None = None) -> Equipment:
    """The equipment of an agent that comes after one that was killed after a step."""
    made.stepped(0.0)
    made.close()
    again = equipment(folder)
    again.equip(gpus or made.spec)
    return again


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
    again.box.step(again.state.saved.now + 60, clock=time.time() + 60)
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
    again.box.step(again.state.saved.now + 60, clock=made.box.machine.time + 60)
    assert times(again)[0] == pytest.approx(before[0], abs=0.1)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_while_no_agent_runs_is_no_time_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    made = worked(tmp_path)
    made.stepped(0.0)
    made.close()
    told = time.time
    monkeypatch.setattr(time, "time", lambda: told() + step)
    again = equipment(tmp_path)
    assert 0 <= again.state.saved.age(state.now().uptime) - made.box.engine.now < 30


def test_another_agent_knows_what_the_node_had_and_who_used_it(tmp_path: Path) -> None:
    names = [name for name, model in CATALOG.models.items() if model.vendor == "nvidia"]
    other = reading.parse("nodePools: {x: {gpuProduct: Mine, gpuMemory: 5000, gpuCount: 3}}", CATALOG).pools["x"]
    gpus = (
        *(pools.NodeGpu(CATALOG.models[name], f"{name}-{place}") for name in names for place in range(2)),
        *other.gpus,
    )
    wanted = pools.NodeGpus(gpus, {"rdma/hca": 2}, numa=pools.Numa(2), settable=True)
    made = equipment(tmp_path)
    made.equip(wanted)
    uses = {"h200-0": (share("p"), share("q", 30, 0.5))}
    made.remember(uses)
    before = product_and_links(made)
    made.close()
    again = equipment(tmp_path)
    assert (again.state.known.spec, again.state.known.users) == (wanted, uses)
    again.equip(again.state.known.spec)
    assert product_and_links(again) == before
    assert max(links for _, links in before) > 0


def product_and_links(made: Equipment) -> list[tuple[str, int]]:
    """Of each GPU, as its page shows them."""
    found = [writer.read(made.pages / device.uuid / "page") for device in made.box.devices]
    return [(page["product"][0].decode(), int(page["links"][0])) for page in found if page is not None]


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"version":1}', b'{"spec":{"gpus":[{"model":{}}]}}'])
def test_a_file_of_what_the_node_had_that_cannot_be_read_is_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "known.json").write_bytes(content)
    assert equipment(tmp_path).state.known == Known()
    assert "the previous GPUs of the node are unknown" in caplog.text


def test_while_the_machine_was_off_gpus_got_cold_and_used_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = worked(tmp_path)
    made.box.engine.set_limit(1, 500)
    before = shown(made)
    made.stepped(0.0)
    monkeypatch.setattr(boot, "current", lambda: "another")
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
    again.stepped(0.0)
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
    made.stepped(0.0)
    made.close()
    again = equipment(tmp_path)
    again.equip(spec(1))
    again.stepped(0.0)
    again.close()
    third = equipment(tmp_path)
    third.equip(spec(2))
    assert third.box.counters()[IDS[1]] == before


@pytest.mark.parametrize(
    "broken",
    [
        lambda _: b"", lambda whole: whole[: len(whole) // 2], lambda whole: whole[:-1], lambda _: b"null",
        lambda whole: whole.replace(b'"version":2', b'"version":1'),
    ],
)  # fmt: skip
def test_gpus_start_anew_where_a_file_is_broken_but_go_on_counting(
    tmp_path: Path, broken: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    made = worked(tmp_path)
    made.stepped(0.0)
    made.close()
    before = shown(made)
    whole = (tmp_path / "state.json").read_bytes()
    (tmp_path / "state.json").write_bytes(broken(whole))
    again = equipment(tmp_path)
    again.equip(spec(2))
    assert shown(again)["energy"] == pytest.approx(before["energy"], abs=1.0)
    assert shown(again)["temperature"][0] < before["temperature"][0]
    assert "GPUs start from their initial state, but for counters on their pages" in caplog.text
    again.stepped(0.0)
    assert len((tmp_path / "state.json").read_bytes()) > len(whole) // 2


ANYTHING: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.integers(), max_size=2) | st.just({}) | st.floats()
    | st.sampled_from([10**400, -(10**400), 1e300, -1.0, 3.4e38, 1e-320])
)  # fmt: skip


def paths(document: object, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where something stands in a document."""
    if not isinstance(document, dict):
        return [before]
    return [path for key, item in document.items() for path in [(*before, key), *paths(item, (*before, key))]]


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_saved_value_that_makes_no_sense_costs_no_other(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        path.write_bytes(WORKED)
        document = json.loads(WORKED)
        wrong = data.draw(st.sampled_from([item for item in paths(document) if item[0] != "version"]))
        holder = document
        for key in wrong[:-1]:
            holder = holder[key]
        holder[wrong[-1]] = data.draw(ANYTHING)
        path.write_text(json.dumps(document))
        saved = state.load(path)
        box = Box(pools.build(spec(2), "node-a"), seed=1, hostname="", now=saved.now, saved=saved.devices)
        before, after = json.loads(WORKED)["devices"], box.device_states()
        lost = {wrong[1]} if wrong[0] == "devices" and 1 < len(wrong) < 4 else set()
        for name, stood in before.items() if wrong not in (("devices",), ("boot",)) else ():
            for key, value in stood["values"].items():
                if name not in lost and wrong[1:] != (name, "values", key):
                    assert after[name].values[key] == value
        box.step(saved.now + 1, clock=1.0)
        assert all(math.isfinite(value) for kept in box.device_states().values() for value in kept.values.values())


def test_a_value_that_is_no_number_in_a_file_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    document = json.loads(WORKED)
    document["devices"][IDS[0]]["values"] |= {"temperature": None, "energy": 1e300}
    (tmp_path / "state.json").write_text(json.dumps(document))
    made = equipment(tmp_path)
    made.equip(spec(2))
    assert shown(made)["energy"] == [0, document["devices"][IDS[1]]["values"]["energy"]]
    assert f"{IDS[0]}.temperature" in caplog.text
    assert f"{IDS[0]} cannot resume from its saved state: invalid values of energy" in caplog.text


def counted(made: Equipment) -> dict[str, dict[str, float]]:
    states = made.box.device_states()
    return {name: {key: state.values[key] for key in cards.COUNTERS} for name, state in states.items()}


@pytest.mark.parametrize("left", ["an earlier state", "no state"])
def test_counters_go_on_from_the_pages_where_the_state_could_not_be_saved(tmp_path: Path, left: str) -> None:
    made = worked(tmp_path)
    made.stepped(0.0)
    document = json.loads((tmp_path / "state.json").read_text())
    made.box.step(made.box.engine.now + 60.0, clock=time.time() + 60.0)
    made.stepped(0.0)
    last, now = counted(made), made.box.engine.now
    made.close()
    for name in ("uptime", "clock"):
        document[name] -= 60.0
    (tmp_path / "state.json").write_text(json.dumps(document))  # as if the disk had been full since
    if left == "no state":
        (tmp_path / "state.json").unlink()
    again = equipment(tmp_path)
    again.equip(spec(2))
    if left == "an earlier state":
        assert again.box.engine.now == pytest.approx(now, abs=5.0)
    for name, counters in counted(again).items():
        for key, value in counters.items():
            unit = {"energy": 1e-3, "memory_bytes": 1e3}.get(key, 1.0)
            assert last[name][key] - unit <= value <= last[name][key] + unit, key


@pytest.mark.parametrize("damage", ["truncated", "torn", "of another boot", "older"])
def test_a_page_that_cannot_be_trusted_has_no_counters(tmp_path: Path, damage: str) -> None:
    made = worked(tmp_path)
    made.stepped(0.0)
    (tmp_path / "state.json").unlink()
    made.close()
    for name in IDS[:2]:
        path = tmp_path / "gpus" / name / "page"
        page = np.frombuffer(path.read_bytes()[: layout.DTYPE.itemsize], layout.DTYPE).copy()
        change = {"torn": ("sequence", 1), "of another boot": ("boot", b"x"), "older": ("minor", 4)}
        if damage in change:
            page[change[damage][0]] = change[damage][1]
        path.write_bytes(page.tobytes()[:100] if damage == "truncated" else page.tobytes())
    again = equipment(tmp_path)
    again.equip(spec(2))
    assert shown(again)["energy"] == [0, 0]


def test_a_file_that_was_not_finished_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = worked(tmp_path)
    before = shown(made)
    made.stepped(0.0)
    (tmp_path / "state.unfinished").write_bytes((tmp_path / "state.json").read_bytes()[:100])
    assert shown(restarted(made, tmp_path)) == before
    assert not caplog.text


@given(st.binary(), st.integers(0, 5000))
@settings(deadline=None, max_examples=100)
def test_no_file_makes_an_agent_fail(bits: bytes, place: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        box = Box(pools.build(spec(1), "node-a"), seed=1, hostname="")
        state.StateFiles(Path(folder), Path(folder) / "gpus").save(box)
        whole = path.read_bytes()
        path.write_bytes(whole[:place] + bits + whole[place + len(bits) :])
        saved = state.load(path)
        Box(pools.build(spec(1), "node-a"), seed=1, hostname="", now=saved.now, saved=saved.devices).step(
            saved.now + 1, clock=1.0
        )


def test_a_gpu_that_was_away_comes_back_cold(tmp_path: Path) -> None:
    made = worked(tmp_path)
    before = shown(made)
    again = restarted(made, tmp_path, spec(0))
    again.box.step(again.state.saved.now + 1, clock=time.time())
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
            box.admit(profiles.level("w", users.ALL), [0])
        box.step(float(now), clock=0.0)
        for name, values in box.counters().items():
            assert values[0] >= highest.get(name, 0.0)
            highest[name] = values[0]


def test_of_gpus_that_are_gone_the_last_are_remembered() -> None:
    box = Box((), seed=1, hostname="")
    for number in range(MAX_GONE // 1000 + 2):
        box.change([devices.device(f"n{number}", index, CATALOG.models["h200"]) for index in range(1000)])
    box.change([])
    kept = list(box.device_states())
    assert len(kept) == MAX_GONE
    assert kept[-1] == devices.device(f"n{MAX_GONE // 1000 + 1}", 999, CATALOG.models["h200"]).uuid


@pytest.mark.parametrize("content", ["", "[]", '{"later": ' + "[" * 5000, '{"spec": {"gpus": 3}}', "\udcff"])
def test_with_an_invalid_file_of_the_last_gpus_an_agent_starts_without_them(tmp_path: Path, content: str) -> None:
    (tmp_path / "known.json").write_text(content, errors="surrogateescape")
    assert state.load_known(tmp_path / "known.json") == Known()


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"sm_count":132', '"sm_count":-1'),
        ('"idle":78.04', '"idle":0.0'),
        ('"leakage":0.00097', '"leakage":99.0'),
        ('"refresh":0.107', '"refresh":1e-320'),
        ('"zones":2', '"zones":0'),
        ('"zones":2', '"zones":9223372036854775807'),
        ('"low":10', '"low":90'),
        ('"cores":2.0', '"cores":0.0'),
        ('"share":0.25', '"share":1e308'),
        ('"sm":{', '"colour":{'),
    ],
)
def test_an_agent_starts_without_gpus_that_there_cannot_be_and_users_that_do_what_nobody_can(
    tmp_path: Path, was: str, becomes: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = users.Plan(profiles.level("p", users.ALL))
    some = (
        users.User(users.PodRef("p"), users.Range(10, 20), share=0.25),
        users.User(users.PodRef("q"), cpu=users.CpuSource("q", "c", 2.0)),
        users.User(users.PodRef("r"), plan=plan),
    )
    known = Known(spec(1, numa=pools.Numa(2)), {IDS[0]: some})
    path = tmp_path / "known.json"
    path.write_bytes(msgspec.json.encode(known))
    assert state.load_known(path) == known
    content = path.read_text()
    assert was in content
    path.write_text(content.replace(was, becomes))
    assert state.load_known(path) == Known()
    assert "the previous GPUs of the node are unknown" in caplog.text
