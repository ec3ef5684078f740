"""Instances of a card: each has its share, none slows another, and power and heat are the card's."""

from __future__ import annotations

from itertools import permutations

import pytest

from simgpu import errors
from simgpu.catalog import models
from simgpu.machines import documents, quantities
from simgpu.machines.box import Box
from simgpu.sim import engine
from simgpu.topology import devices, mig_by_hand

CATALOG = models.load()
LAYOUT = ("3g.71gb", "1g.18gb", "1g.18gb")
BUSY = documents.read({"name": "x", "phases": [{"seconds": 86400, "shape": "matmul-bf16"}], "repeat": 0}).profile


def loaded(*names: str | int, mig: tuple[str, ...] = LAYOUT) -> Box:
    built = devices.build(devices.BoxConfig((devices.GpuEntry("h200", mig=mig),)), CATALOG, node="n")
    box = Box(built, seed=1, hostname="n", spread=0.0)
    for name in names:
        box.admit(BUSY, [name])
    for second in range(1, 41):
        box.step(float(second), clock=float(second))
    return box


def readings(box: Box) -> dict[int, tuple[float, float]]:
    return {
        part.id: (box.engine.read_part(part.handle).usage, box.engine.read_part(part.handle).memory_mib)
        for part in box.machine.parts
    }


def power(box: Box) -> float:
    return float(box.machine.column("power_average")[0])


def test_load_on_one_instance_does_not_slow_another() -> None:
    alone, together = loaded("nvidia0.2"), loaded("nvidia0.2", "nvidia0.7", "nvidia0.8")

    assert readings(alone)[2] == readings(together)[2] == (100, 784)
    assert readings(alone)[7] == (0, 0)
    tensor = [quantities.of_parts(box.machine, "tensor_active")[0] for box in (alone, together)]
    assert tensor == [pytest.approx(1.0)] * 2
    clocks = [float(box.machine.column("sm_clock")[0]) for box in (alone, together)]
    assert clocks[0] == clocks[1] == CATALOG.models["h200"].clocks_mhz.sm_max


@pytest.mark.parametrize("mig", [LAYOUT, LAYOUT[::-1]])
@pytest.mark.parametrize("name", ["nvidia0", "0", 0, devices.device("n", 0, CATALOG.models["h200"]).uuid])
def test_load_on_a_divided_card_as_a_whole_is_on_the_instance_that_is_listed_first(
    name: str | int, mig: tuple[str, ...]
) -> None:
    box = loaded(name, mig=mig)

    assert readings(box) == {2: (100, 784), 7: (0, 0), 8: (0, 0)}
    assert power(box) == power(loaded("nvidia0.2", mig=mig))


def test_load_on_a_card_whose_first_instance_is_shared_is_on_the_first_compute_instance() -> None:
    box = loaded()
    device = box.devices[0]
    for change, values in (
        ("destroy_compute_instance", (2, 0)),
        ("create_compute_instance", (2, 1 + (255 << 8))),
        ("create_compute_instance", (2, 1 + (255 << 8))),
    ):
        device = mig_by_hand.change(device, change, values, busy=(), is_open=False)
    box.change([device])
    box.admit(BUSY, ["nvidia0"])

    assert box.open_parts(0) == {(2, 0)}


def test_load_on_a_card_with_tiles_is_on_all_of_it() -> None:
    built = devices.build(devices.BoxConfig((devices.GpuEntry("max-1550"),)), CATALOG, node="n")
    box = Box(built, seed=1, hostname="n", spread=0.0)
    box.admit(BUSY, ["card0"])
    for second in range(1, 11):
        box.step(float(second), clock=float(second))

    assert {usage for usage, _ in readings(box).values()} == {100}


@pytest.mark.parametrize("mig", list(permutations(("1g.18gb", "2g.35gb", "3g.71gb"))))
def test_instances_that_fit_on_a_card_may_be_listed_in_any_order(mig: tuple[str, ...]) -> None:
    assert sorted(part.profile for part in loaded(mig=mig).machine.parts) == ["1g.18gb", "2g.35gb", "3g.71gb"]


def test_the_order_of_a_list_that_fits_is_that_of_the_instances_and_one_that_does_not_fit_is_an_error() -> None:
    box = loaded(mig=("2g.35gb", "3g.71gb", "1g.18gb"))
    assert [(part.profile, part.id) for part in box.machine.parts] == [("2g.35gb", 5), ("3g.71gb", 1), ("1g.18gb", 13)]
    with pytest.raises(errors.InputError, match=r"^gpus\[0\]\.mig\[3\]: no room for 3g.71gb beside 1g.18gb, 1g.18gb"):
        loaded(mig=("1g.18gb", "1g.18gb", "3g.71gb", "3g.71gb"))


def test_power_and_heat_of_instances_add_up_on_their_card() -> None:
    rest, first, second, both = loaded(), loaded("nvidia0.2"), loaded("nvidia0.7"), loaded("nvidia0.2", "nvidia0.7")
    context = 41.0  # W that the first program on the card costs, by recordings of a real H200

    assert power(both) + power(rest) + context == pytest.approx(power(first) + power(second), rel=0.02)
    degrees = [float(box.machine.column("temperature")[0]) for box in (rest, second, first, both)]
    assert degrees == sorted(degrees)
    assert degrees[0] < degrees[1] < degrees[2] < degrees[3]


def test_units_of_an_instance_are_busy_with_its_own_work_alone() -> None:
    box = loaded("nvidia0.2")
    copying = documents.read({"name": "y", "phases": [{"seconds": 86400, "shape": "memcopy"}], "repeat": 0}).profile
    box.admit(copying, ["nvidia0.7"])
    for second in range(41, 51):
        box.step(float(second), clock=float(second))
    tensor, memory = (quantities.of_parts(box.machine, name) for name in ("tensor_active", "dram_active"))

    assert [part.id for part in box.machine.parts] == [2, 7, 8]
    assert tensor.round(2).tolist() == [1.0, 0.0, 0.0]
    assert memory.round(2).tolist() == [0.35, 1.0, 0.0]


def test_an_instance_draws_what_a_real_one_was_recorded_to_draw() -> None:
    """A burn-in load on 32 of an H200's 132 multiprocessors: 295 W."""
    simulated = engine.Engine(seed=1)
    card = simulated.add_cards(CATALOG.models["h200"], 1, spread=0.0)[0]
    part = simulated.split(card, [("2c.3g.71gb", 32 / 132, 71424)])[0]
    simulated.add_workload(BUSY, [part])
    for second in range(1, 41):
        simulated.step(float(second))

    assert simulated.read("power_average", [card])[0] == pytest.approx(295, rel=0.1)


def test_a_card_with_fewer_mebibytes_than_tiles_works() -> None:
    entry = devices.GpuEntry("max-1550", memory=1)
    box = Box(devices.build(devices.BoxConfig((entry,)), CATALOG, node="n"), seed=1, hostname="n")
    box.admit(BUSY, ["card0"])
    box.step(1.0, clock=1.0)
    assert [box.engine.read_part(part.handle).memory_total_mib for part in box.machine.parts] == [1, 1]
