"""Workloads on cards: how they start, change, share, cross limits and end; and that the same leads to the same."""

from __future__ import annotations

import json
import math
import re
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import errors
from simgpu.catalog import models, shapes
from simgpu.catalog.ceilings import Ceiling
from simgpu.sim import activity, engine
from simgpu.sim.activity import Activity, Profile, Pulse, Value, constant

CATALOG = models.load()
H200 = CATALOG.models["h200"]
MAX = CATALOG.models["max-1550"]


def using(usage: float | Value, seconds: float = 10.0, **more: Value) -> Activity:
    """An activity at some usage of the SMs."""
    value = usage if isinstance(usage, Value) else constant(usage)
    return Activity({"usage": value, "sm": constant(0.5), **more}, seconds=seconds)


def profile(*activities: Activity, repeat: int = 1, **more: object) -> Profile:
    return Profile("job", activities, repeat=repeat, **more)  # type: ignore[arg-type]


@pytest.fixture
def made() -> engine.Engine:
    made = engine.Engine(seed=7)
    made.add_cards(H200, 4, spread=0.0)
    return made


def step(made: engine.Engine, seconds: int) -> list[engine.Outcome]:
    return [outcome for _ in range(seconds) for outcome in made.step(made.now + 1)]


def usage(made: engine.Engine, card: int = 1) -> float:
    return float(made.read("usage", [card])[0])


def test_activities_follow_each_other_and_the_end_is_ok(made: engine.Engine) -> None:
    number = made.add_workload(profile(using(0.2, 5), using(0.8, 5)), [1])
    step(made, 4)
    assert usage(made) == pytest.approx(20)
    step(made, 4)
    assert usage(made) == pytest.approx(80)
    assert step(made, 2) == [engine.Outcome(number, "job", 0, "OK")]
    step(made, 2)
    assert usage(made) == 0
    assert made.workloads() == {}


def test_repeats_run_that_often_without_drift(made: engine.Engine) -> None:
    made.add_workload(profile(using(0.2, 1.7), using(0.8, 1.6), repeat=3), [1])
    ended = [made.now for _ in range(20) for _ in made.step(made.now + 0.5)]
    assert ended == [10.0]  # 3 times 3.3 seconds, at the first step after that


def test_a_repeat_of_none_runs_for_ever_and_no_seconds_are_a_day(made: engine.Engine) -> None:
    made.add_workload(profile(using(0.2, 1), repeat=0), [1])
    made.add_workload(profile(using(0.3, 0)), [2])
    assert step(made, 50) == []
    assert usage(made, 1) == pytest.approx(20)
    assert usage(made, 2) == pytest.approx(30)


def test_afterwards_a_workload_goes_on_with_what_it_has_for_that(made: engine.Engine) -> None:
    number = made.add_workload(profile(using(0.2, 5), using(0.8, 5), repeat=2, afterwards=using(0.1, 0)), [1])
    step(made, 19)
    assert usage(made) == pytest.approx(80)
    assert step(made, 200_000 // 1000) == []
    assert usage(made) == pytest.approx(10)
    assert made.workloads() == {number: "job"}


@settings(max_examples=30)
@given(
    lengths=st.lists(st.sampled_from([0.3, 1.0, 2.5, 7.0]), min_size=1, max_size=4),
    repeat=st.integers(0, 3),
    age=st.integers(0, 30),
    rests=st.booleans(),
)
def test_a_workload_that_begins_at_an_age_is_where_an_older_one_is(
    lengths: list[float], repeat: int, age: int, *, rests: bool
) -> None:
    steps = tuple(using((index + 1) / 8, seconds) for index, seconds in enumerate(lengths))
    wanted = profile(*steps, repeat=repeat, afterwards=using(0.75, 0) if rests else None)
    made = engine.Engine(seed=7)
    made.add_cards(H200, 2, spread=0.0)
    made.add_workload(wanted, [1])
    step(made, age)
    made.add_workload(wanted, [2], age=float(age))
    step(made, 1)  # in which one that is over ends
    for _ in range(10):
        step(made, 1)
        assert usage(made, 1) == pytest.approx(usage(made, 2), abs=0.01)
        assert len(made.workloads()) in (0, 2)


def test_workloads_on_one_card_add_up_to_at_most_the_card(made: engine.Engine) -> None:
    for share in (0.3, 0.4):
        made.add_workload(profile(using(share, 100)), [1])
    step(made, 2)
    assert usage(made) == pytest.approx(70)
    made.add_workload(profile(using(0.9, 100)), [1])
    step(made, 2)
    assert usage(made) == 100


def test_a_range_is_drawn_anew_in_each_period_and_stays_inside(made: engine.Engine) -> None:
    made.add_workload(profile(using(Value(0.3, 0.6, period=1.0), 1000)), [1])
    seen = []
    for _ in range(60):
        step(made, 1)
        seen.append(usage(made))
    assert 30 <= min(seen) < 36
    assert 54 < max(seen) <= 60.001
    assert len(set(seen)) == 60


def test_memory_that_leaks_grows_until_the_card_is_full_and_its_owner_is_ended(made: engine.Engine) -> None:
    steady = made.add_workload(profile(using(0.1, 1000, memory=constant(40_000, share=False))), [1])
    leak = Value(5_000, 5_000, "increase", period=1.0, share=False)
    leaking = made.add_workload(profile(using(0.1, 1000, memory=leak)), [1])
    step(made, 5)
    assert float(made.read("memory_used", [1])[0]) == pytest.approx(65_000, abs=5_001)
    outcomes = step(made, 40)
    assert outcomes == [engine.Outcome(leaking, "job", 1, "Limit memory reached, terminated")]
    assert list(made.workloads()) == [steady]
    step(made, 1)
    assert float(made.read("memory_used", [1])[0]) == 40_000


@pytest.mark.parametrize(
    ("limits", "reached", "after"),
    [({"runtime": 5.0}, "runtime", 5), ({"memory": 20_000.0}, "memory", 3), ({"usage": 0.1}, "usage", 1)],
)
def test_a_workload_past_a_limit_of_its_own_is_ended(
    made: engine.Engine, limits: dict[str, float], reached: str, after: int
) -> None:
    leak = Value(10_000, 10_000, "increase", period=1.0, share=False)
    number = made.add_workload(profile(using(0.2, 100, memory=leak), limits=limits), [1])
    other = made.add_workload(profile(using(0.1, 100)), [1])
    assert step(made, after - 1) == []
    assert step(made, 1) == [engine.Outcome(number, "job", 1, f"Limit {reached} reached, terminated")]
    assert list(made.workloads()) == [other]


def limited(**stated: dict[str, object]) -> engine.Engine:
    """An engine with a card whose model has limits by quantity."""
    ceilings = [{"quantity": name, **values} for name, values in stated.items()]
    model = msgspec.structs.replace(H200, key="limited", terminate=msgspec.convert(ceilings, tuple[Ceiling, ...]))
    made = engine.Engine(seed=7)
    made.add_cards(model, spread=0.0)
    return made


def test_the_workload_that_crosses_a_limit_of_its_card_is_ended_and_others_stay() -> None:
    made = limited(usage={"above": 0.6, "name": "power"}, bandwidth={"above": 0.4})
    numbers = [made.add_workload(profile(using(item, 100)), [1]) for item in (0.4, 0.3, 0.1)]
    assert step(made, 1) == [engine.Outcome(numbers[1], "job", 1, "Limit power reached, terminated")]
    greedy = made.add_workload(profile(using(0.1, 100), using(0.1, 100, bandwidth=constant(5.0, share=False))), [1])
    assert step(made, 3) == []
    made.end_workload(greedy)
    busy = made.add_workload(profile(using(Value(0.05, 0.4), 100)), [1])
    assert [item.workload for item in step(made, 30)] == [busy]


@pytest.mark.parametrize(
    ("quantity", "limit"),
    [("power", {"above": 400.0}), ("temperature", {"above": 42.0}), ("frequency", {"below": 1500.0}),
     ("energy", {"above": 9e3})],
)  # fmt: skip
def test_a_reading_past_a_limit_of_its_card_ends_the_newest_workload(quantity: str, limit: dict[str, object]) -> None:
    made = limited(**{quantity: limit})
    work = Activity(activity.mix(shapes.load()["training"].demand, usage=constant(0.5)), seconds=600.0)
    small = made.add_workload(profile(using(0.05, 600.0)), [1])
    if quantity == "frequency":
        made.set_highest_clock(1, 1000)
    else:
        assert step(made, 3) == []
    first, second = (made.add_workload(profile(work), [1]) for _ in range(2))
    ended = step(made, 60)
    assert ended[0] == engine.Outcome(second, "job", 1, f"Limit {quantity} reached, terminated")
    expected = [second] if quantity in ("power", "temperature") else [second, first, small]
    assert [item.workload for item in ended] == expected  # what does not return ends one after the other
    again = engine.Engine.restored(made.snapshot())
    assert again.snapshot() == made.snapshot()


def test_models_can_state_limits_of_whatever_workloads_can() -> None:
    [field] = [item for item in msgspec.structs.fields(Ceiling) if item.name == "quantity"]
    assert set(typing.get_args(field.type)) == {"usage", *activity.UNITS, "memory", *activity.READINGS}


def test_a_clock_that_has_yet_to_rise_ends_nothing() -> None:
    made = limited(frequency={"below": 500.0})
    number = made.add_workload(profile(using(0.5, 600.0)), [1])
    assert [outcome for tenth in range(1, 60) for outcome in made.step(tenth / 10)] == []
    made.set_highest_clock(1, 400)
    assert [outcome.workload for outcome in step(made, 5)] == [number]


def test_a_share_of_memory_is_of_the_card(made: engine.Engine) -> None:
    made.add_workload(profile(using(0.2, 100, memory=constant(0.5))), [1])
    step(made, 1)
    assert float(made.read("memory_used", [1])[0]) == pytest.approx((143771 - 616) / 2, abs=1)


def test_bandwidth_may_be_given_in_bytes(made: engine.Engine) -> None:
    moving = Activity({"usage": constant(1.0), "bandwidth": constant(2.4e12, share=False)}, seconds=100)
    made.add_workload(profile(moving), [1])
    step(made, 2)
    assert float(made.read("memory_usage", [1])[0]) == pytest.approx(50, abs=0.1)
    assert float(made.read("memory_bytes", [1])[0]) == pytest.approx(2 * 2.4e12, rel=0.01)


def test_a_workload_made_for_another_card_runs_longer_or_shorter(made: engine.Engine) -> None:
    twice = activity.Reference(mhz=H200.clocks_mhz.sm_max / 2, capability=H200.capability)
    made.add_workload(profile(using(0.2, 10), reference=twice), [1])
    assert len(step(made, 5)) == 1
    moving = Activity({"usage": constant(1.0), "pcie": constant(10e9, share=False)}, seconds=100)
    made.add_workload(profile(moving, reference=twice), [2])
    step(made, 1)
    assert float(made.read("pcie_bytes", [2])[0]) == pytest.approx(20e9, rel=0.01)


def test_pulses_show_as_their_share_when_steps_are_long_and_as_pulses_when_they_are_short(made: engine.Engine) -> None:
    pulsing = Activity({"usage": constant(1.0), "sm": constant(0.5)}, seconds=1000, pulse=Pulse(0.25, 0.8))
    made.add_workload(profile(pulsing), [1])
    step(made, 8)
    assert usage(made) == pytest.approx(25, abs=6)
    busy = []
    for _ in range(80):
        made.step(made.now + 0.01)
        busy.append(round(float(made.read("busy", [1])[0]), 3))
    assert set(busy) == {0.0, 1.0}
    assert sum(busy) == 20


def test_events_are_counted_and_never_taken_back(made: engine.Engine) -> None:
    failing = using(0.5, 1000, corrected=Value(2, 4, period=2.0), uncorrected=Value(0, 1, period=5.0))
    made.add_workload(profile(failing), [1])
    seen = []
    for _ in range(30):
        step(made, 1)
        seen.append(float(made.read("corrected", [1])[0]))
    assert seen == sorted(seen)
    assert 28 <= seen[-1] <= 56
    assert 0 < float(made.read("uncorrected", [1])[0]) <= 5


def test_instances_of_a_card_have_their_own_usage_and_memory(made: engine.Engine) -> None:
    small, large = made.split(1, [("1g.18gb", 16 / 132, 16384), ("3g.71gb", 60 / 132, 71424)])
    made.add_workload(profile(using(1.0, 1000, memory=constant(10_000, share=False))), [small])
    step(made, 2)
    assert made.read_part(small).usage == 100
    assert made.read_part(small).memory_mib == 10_000
    assert (made.read_part(large).usage, made.read_part(large).memory_mib) == (0.0, 0.0)
    assert made.read_part(large).memory_total_mib == 71424
    assert usage(made) == pytest.approx(100 * 16 / 132, abs=0.1)
    assert 0 < made.read_part(large).power_w < made.read_part(small).power_w * 5


def test_an_instance_runs_out_of_its_own_memory(made: engine.Engine) -> None:
    (small,) = made.split(1, [("1g.18gb", 16 / 132, 16384)])
    made.add_workload(profile(using(1.0, 1000, memory=constant(10_000, share=False))), [small])
    second = made.add_workload(profile(using(1.0, 1000, memory=constant(10_000, share=False))), [small])
    assert [outcome.workload for outcome in step(made, 1)] == [second]


def test_tiles_are_parts_too() -> None:
    made = engine.Engine(seed=1)
    (card,) = made.add_cards(MAX, spread=0.0)
    tiles = made.split(
        card, [(f"{tile}", 1 / MAX.tiles, MAX.memory_mib.total / MAX.tiles) for tile in range(MAX.tiles)]
    )
    made.add_workload(profile(using(1.0, 1000)), [tiles[1]])
    step(made, 2)
    assert [made.read_part(tile).usage for tile in tiles] == [0.0, 100.0]
    assert [part.name for part in made.parts(card).values()] == ["0", "1"]
    with pytest.raises(errors.InputError, match="more than the card"):
        made.split(card, [("2", 0.5, 1)])


def test_a_workloads_part_of_a_card_can_be_told(made: engine.Engine) -> None:
    first = made.add_workload(profile(using(0.6, 100, memory=constant(1000, share=False))), [1, 2])
    made.add_workload(profile(using(0.2, 100)), [1])
    step(made, 3)
    shares = made.shares(first)
    assert [share.card for share in shares] == [1, 2]
    assert [round(share.usage, 3) for share in shares] == [0.6, 0.6]
    assert [share.memory_mib for share in shares] == [1000, 1000]
    assert shares[0].runtime == 3
    whole = float(made.read("power", [1])[0]) - H200.power_w.idle
    assert shares[0].power_w == pytest.approx(0.75 * whole, rel=0.01)


def test_cards_come_and_go_and_their_ids_are_never_used_again(made: engine.Engine) -> None:
    number = made.add_workload(profile(using(0.5, 100)), [2])
    assert [outcome.workload for outcome in made.remove_cards([2])] == [number]
    (again,) = made.add_cards(H200, spread=0.0)
    assert again not in (1, 2, 3, 4)
    assert made.read("energy", [1, again, 4])[1] == 0
    step(made, 2)
    assert usage(made, again) == 0
    with pytest.raises(errors.InputError, match="no device 2"):
        made.add_workload(profile(using(0.5)), [2])


def test_cards_parts_and_workloads_that_come_and_go_leave_nothing_behind(made: engine.Engine) -> None:
    seen, sizes = {1, 2, 3, 4}, []
    for turn in range(60):
        model = msgspec.structs.replace(CATALOG.models["t4"], key=f"own-{turn}", tiles=2)
        ids = [*made.add_cards(model, 3), *made.add_cards(H200, 2)]
        parts = made.split(ids[0], [("0", 0.5, 1000), ("1", 0.5, 1000)])
        assert not seen & {*ids, *parts}
        seen |= {*ids, *parts}
        made.add_workload(profile(using(0.5, 0.3), repeat=0), [parts[1]])
        made.add_workload(profile(using(0.5, 0.3), repeat=0), [ids[3], 2])
        step(made, 1)
        assert [round(made.read_part(part).usage) for part in parts] == [0, 50]
        assert made.read("usage", [ids[4], ids[3]]).round().tolist() == [0, 50]
        made.remove_cards(ids)
        step(made, 1)
        sizes.append(len(made.snapshot()))
    assert list(made.groups()) == ["h200"]
    assert sizes[-1] < sizes[5] + 500


def test_cards_of_several_models_live_together() -> None:
    made = engine.Engine(seed=1)
    cards = [*made.add_cards(H200, 2, spread=0.0), *made.add_cards(CATALOG.models["t4"], 2, spread=0.0)]
    made.add_workload(profile(using(1.0, 100)), cards[:2])
    made.add_workload(profile(using(0.5, 100)), cards[2:])
    step(made, 2)
    assert [round(value) for value in made.read("usage", cards)] == [100, 100, 50, 50]
    with pytest.raises(errors.InputError, match="of one model"):
        made.add_workload(profile(using(1.0)), cards)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Profile("", (using(1),)), "name: must not be empty"),
        (Profile("x", ()), "profile: must hold at least one activity"),
        (Profile("x", (using(1.5),)), "profile[0].usage: must be from 0 to 1"),
        (Profile("x", (using(1), using(Value(0.6, 0.4)))), "profile[1].usage: the lower end, 0.6, is above"),
        (Profile("x", (using(math.nan),)), "profile[0].usage: must be a number"),
        (Profile("x", (using(1, -5),)), "profile[0].seconds: must be 0 (a day) or a number"),
        (Profile("x", (using(1, colour=constant(1)),)), "profile[0].colour: no such quantity; there are: usage"),
        (Profile("x", (using(1),), repeat=-1), "repeat: must be 0"),
        (Profile("x", (using(1),), limits={"height": 1.0}), "limits.height: no such quantity"),
        (Profile("x", (Activity({}, pulse=Pulse(2, 1)),)), "profile[0].duty: must be from 0 to 1"),
        (Profile("x", (Activity({}, pulse=Pulse(0.5, 0)),)), "profile[0].period: must be from 0.001"),
        (Profile("x", (using(Value(0, 1, period=0)),)), "profile[0].usage.period: must be from 0.01"),
        (Profile("x", (using(1),), reference=activity.Reference(0, 1)), "reference: clock and capability"),
    ],
)
def test_a_profile_that_is_not_allowed_is_refused_with_the_reason(
    made: engine.Engine, wrong: Profile, says: str
) -> None:
    with pytest.raises(errors.InputError, match=re.escape(says)):
        made.add_workload(wrong, [1])
    assert made.workloads() == {}


def _history(made: engine.Engine, start: int, stop: int) -> bytes:
    seen = []
    for turn in range(start, stop):
        if turn % 5 == 0:
            shape = list(shapes.load().values())[turn % 11]
            mix = activity.mix(shape.demand, usage=Value(0.2, 0.9, period=0.7))
            made.add_workload(Profile(f"w{turn}", (Activity(mix, seconds=3.3),), repeat=2), [1 + turn % 4])
        outcomes = made.step(made.now + (0.05 if turn % 3 else 1.3))
        seen.append([outcome.message for outcome in outcomes])
        seen.append(made.read("power_average", range(1, 5)).tolist())
        seen.append(made.read("energy", range(1, 5)).tolist())
    return json.dumps(seen).encode()


def test_the_same_seed_and_events_give_the_same_bytes() -> None:
    histories = []
    for seed in (3, 3, 4):
        made = engine.Engine(seed=seed)
        made.add_cards(H200, 4)
        histories.append((_history(made, 0, 60), made.snapshot()))
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


def test_an_engine_goes_on_from_a_snapshot_as_if_nothing_had_happened() -> None:
    made = engine.Engine(seed=3)
    made.add_cards(H200, 4)
    made.split(4, [("a", 0.5, 1000)])
    _history(made, 0, 31)
    again = engine.Engine.restored(made.snapshot())
    assert _history(again, 31, 70) == _history(made, 31, 70)
    assert again.snapshot() == engine.Engine.restored(made.snapshot()).snapshot()


def test_cards_added_later_start_where_others_are() -> None:
    made = engine.Engine(seed=3)
    made.add_cards(H200, 3, spread=0.0)
    for _ in range(30):
        made.step(made.now + 0.05)
    (late,) = made.add_cards(H200, spread=0.0)
    for _ in range(30):
        made.step(made.now + 0.05)
    assert made.read("power_average", [late])[0] == pytest.approx(made.read("power_average", [1])[0], abs=0.5)
