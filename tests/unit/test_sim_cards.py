"""What a simulated card shows for what is asked of it: one test for each relation."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from simgpu import errors
from simgpu.catalog import models, shapes
from simgpu.sim import activity, cards, engine, physics

CATALOG = models.load()
SHAPES = shapes.load()
H200 = CATALOG.models["h200"]


def running(shape: str, *, model: models.Model = H200, usage: float = 1.0, inlet: float | None = None) -> engine.Engine:
    """A card of the model under a shape of the catalog."""
    made = engine.Engine(seed=1)
    cards = made.add_cards(model, spread=0.0, inlet=inlet)
    made.add_workload(load(shape, usage=usage), cards)
    return made


def load(shape: str, *, usage: float = 1.0, **fields: object) -> activity.Profile:
    mix = activity.mix(SHAPES[shape].demand, usage=activity.constant(usage * SHAPES[shape].duty))
    return activity.Profile("load", (activity.Activity(mix, **fields),), repeat=0)  # type: ignore[arg-type]


def settle(made: engine.Engine, seconds: int = 120) -> None:
    for _ in range(seconds):
        made.step(made.now + 1)


def read(made: engine.Engine, name: str, card: int = 1) -> float:
    return float(made.read(name, [card])[0])


def test_before_the_first_step_a_card_is_at_its_minimum() -> None:
    made = engine.Engine(seed=1)
    (card,) = made.add_cards(H200, spread=0.0)
    assert read(made, "power_average", card) == pytest.approx(H200.power_w.idle)
    assert read(made, "sm_clock", card) == H200.clocks_mhz.sm_idle
    assert read(made, "usage", card) == 0
    assert read(made, "energy", card) == 0
    assert read(made, "reasons", card) == physics.IDLE


def test_an_open_context_alone_raises_clock_and_power() -> None:
    made = running("idle-context")
    settle(made, 30)
    assert read(made, "sm_clock") == 1980
    assert 115 < read(made, "power_average") < 123
    assert read(made, "usage") == 0
    assert read(made, "reasons") == 0


def test_full_utilisation_says_little_about_power() -> None:
    powers = {}
    for shape in ("h2d", "memcopy", "matmul-fp32"):
        made = running(shape)
        settle(made)
        assert read(made, "usage") == 100
        powers[shape] = read(made, "power_average")
    assert powers["h2d"] < 130
    assert 380 < powers["memcopy"] < 420
    assert 620 < powers["matmul-fp32"] < 680


@pytest.mark.parametrize("compiled", [True, False])
def test_a_card_at_the_lowest_inlet_temperature_draws_no_negative_power(compiled: bool) -> None:
    made = engine.Engine(seed=1, compiled=compiled)
    (card,) = made.add_cards(CATALOG.models["rtx-4090"], spread=0.0, inlet=cards.INLETS[0])
    settle(made, 30)
    before = read(made, "energy", card)
    settle(made, 1)
    assert read(made, "power_average", card) >= 0
    assert read(made, "energy", card) >= before


def test_the_power_cap_lowers_the_clock_and_says_why() -> None:
    made = running("matmul-bf16")
    settle(made)
    assert read(made, "power_average") == pytest.approx(690, rel=0.02)
    assert 1470 <= read(made, "sm_clock") <= 1560
    assert int(read(made, "reasons")) & physics.POWER_CAP
    assert read(made, "power_throttle") > 100


def test_a_lower_limit_lowers_power_clock_and_memory_traffic() -> None:
    made = running("matmul-bf16")
    settle(made, 30)
    before = {name: read(made, name) for name in ("sm_clock", "memory_usage", "temperature")}
    made.set_limit(1, 400)
    settle(made, 60)
    shown = []
    for _ in range(60):  # one reading alone is off by up to 5 %
        settle(made, 1)
        shown.append((read(made, "power_average"), read(made, "sm_clock")))
    assert np.mean(shown, axis=0) == pytest.approx((394, 976), rel=0.02)  # measured on a card with that limit
    assert all(read(made, name) < value for name, value in before.items())


def test_limits_outside_what_the_model_allows_are_refused() -> None:
    made = running("idle-context")
    with pytest.raises(errors.InputError, match="from 200 to 700 W"):
        made.set_limit(1, 100)
    with pytest.raises(errors.InputError, match="from 345 to 1980 MHz"):
        made.set_highest_clock(1, 5000)


@pytest.mark.parametrize(("mhz", "watts"), [(600, 269), (1005, 408), (1305, 618)])
def test_a_locked_clock_draws_what_it_drew_on_a_real_card(mhz: float, watts: float) -> None:
    made = running("matmul-bf16", inlet=36)
    made.set_highest_clock(1, mhz)
    settle(made, 60)
    assert read(made, "sm_clock") == mhz
    assert read(made, "power_average") == pytest.approx(watts, rel=0.05)


def test_temperature_follows_power_with_delay() -> None:
    made = running("idle-context")
    settle(made)
    cool = read(made, "temperature")
    made.add_workload(load("matmul-fp32"), [1])
    seen = []
    for _ in range(300):
        made.step(made.now + 0.02)
        seen.append(read(made, "die_temperature"))
    assert cool < seen[0] < seen[10] < seen[50] < seen[-1]
    assert seen[25] - cool > 0.6 * (seen[-1] - cool)  # most of it comes within half a second
    assert seen[-1] - seen[100] > 0.3  # and some of it later


def test_memory_copies_heat_the_memory_more_than_the_die() -> None:
    copies, products = running("memcopy"), running("matmul-fp32")
    settle(copies)
    settle(products)
    assert read(copies, "memory_temperature") > read(copies, "die_temperature") + 4
    assert read(products, "die_temperature") > read(products, "memory_temperature") + 8


def test_a_warmer_inlet_makes_a_warmer_card_that_draws_more() -> None:
    mild, warm = running("matmul-fp32", inlet=25), running("matmul-fp32", inlet=40)
    settle(mild)
    settle(warm)
    assert read(warm, "temperature") == pytest.approx(read(mild, "temperature") + 15, abs=2)
    assert read(warm, "power_average") > read(mild, "power_average") + 5


def test_heat_throttles_the_clock_and_it_comes_back_when_it_is_cool() -> None:
    made = running("matmul-fp32", inlet=62)
    settle(made, 200)
    assert int(read(made, "reasons")) & physics.SOFTWARE_THERMAL
    assert read(made, "thermal_throttle") > 60
    assert read(made, "sm_clock") < 1900
    assert read(made, "temperature") == pytest.approx(H200.temperature_c.gpu_max, abs=2)
    made.set_inlet(1, 25)
    counted = read(made, "thermal_throttle")
    settle(made, 200)
    assert read(made, "sm_clock") == 1980
    assert read(made, "thermal_throttle") < counted + 60


def test_throttling_limits_bandwidth_too() -> None:
    made = running("memcopy")
    settle(made, 20)
    free = read(made, "memory_usage")
    made.set_highest_clock(1, 705)
    settle(made, 20)
    assert free == 100
    assert read(made, "memory_usage") == pytest.approx(51, abs=2)  # 705 of the 1386 MHz that full bandwidth needs


def test_bandwidth_raises_the_memory_clock_of_cards_that_lower_it() -> None:
    model = CATALOG.models["t4"]
    made = running("memcopy", model=model)
    assert read(made, "memory_clock") == model.clocks_mhz.memory_idle < model.clocks_mhz.memory_max
    settle(made, 2)
    assert read(made, "memory_clock") == model.clocks_mhz.memory_max


def test_a_hang_pins_the_card_and_is_counted() -> None:
    made = engine.Engine(seed=1)
    cards = made.add_cards(H200, spread=0.0)
    stuck = activity.Activity({"hangs": activity.Value(1, 1, period=5.0)}, seconds=20)
    made.add_workload(activity.Profile("stuck", (stuck,), repeat=0), cards)
    settle(made, 4)
    assert read(made, "usage") == 0
    settle(made, 4)
    assert read(made, "hangs") == 1
    assert read(made, "usage") == 100
    assert read(made, "sm_clock") == 1980
    assert read(made, "power_average") < 140


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.key)
def test_every_model_stays_within_its_figures(model: models.Model) -> None:
    made = engine.Engine(seed=1)
    cards = made.add_cards(model, 2, spread=0.0)
    for card, shape in zip(cards, ("training", "inference-decode"), strict=True):
        made.add_workload(load(shape), [card])
    settle(made, 300)
    for card in cards:
        assert read(made, "power_average", card) <= model.power_w.default * 1.03
        assert read(made, "power_average", card) > model.power_w.idle
        assert read(made, "temperature", card) < model.temperature_c.slowdown
        assert model.clocks_mhz.sm_min <= read(made, "sm_clock", card) <= model.clocks_mhz.sm_max


def test_power_is_a_mean_over_a_second_and_an_instant() -> None:
    made = running("idle-context")
    settle(made, 10)
    made.add_workload(load("matmul-fp32"), [1])
    start = made.now
    while made.now < start + 0.5:
        made.step(made.now + 0.01)
    assert read(made, "power_instant") > 600
    assert 300 < read(made, "power_average") < 460


def test_cards_of_one_model_differ_a_little() -> None:
    made = engine.Engine(seed=1)
    cards = made.add_cards(H200, 200)
    for card in cards:
        made.add_workload(load("matmul-fp32"), [card])
    settle(made, 60)
    powers, heat = made.read("power_average", cards), made.read("temperature", cards)
    assert 3 < powers.std() < 20
    assert 0.2 < heat.std() < 2
    assert len(np.unique(powers)) > 150


def test_state_is_small() -> None:
    made = engine.Engine(seed=1)
    made.add_cards(H200, 10)
    made.step(0.01)
    assert made.state_bytes("h200") <= 1024


def test_relations_of_a_users_own_model_take_effect() -> None:
    cooler = msgspec.structs.replace(H200.relations.heat, cooling=0.5)
    model = msgspec.structs.replace(H200, key="cool", relations=msgspec.structs.replace(H200.relations, heat=cooler))
    warm, cool = running("matmul-fp32"), running("matmul-fp32", model=model)
    settle(warm)
    settle(cool)
    inlet = H200.relations.heat.inlet
    assert read(cool, "temperature") - inlet == pytest.approx((read(warm, "temperature") - inlet) / 2, rel=0.05)
