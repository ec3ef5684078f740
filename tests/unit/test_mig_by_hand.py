"""MIG by hand follows the driver's rules, on every model that can be divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.catalog import models, placing
from simgpu.topology import devices, mig_by_hand
from simgpu.topology.devices import Device

CATALOG = models.load()
DIVISIBLE = [model for model in CATALOG.models.values() if model.mig]


def change(device: Device, setting: str, *values: int, busy: frozenset[int] = frozenset()) -> Device:
    first, second = (*values, 0, 0)[:2]
    return mig_by_hand.change(device, setting, (first, second), busy=busy, is_open=bool(busy))


def divided(*ids: int, model: str = "h200") -> Device:
    device = change(devices.device("n", 0, CATALOG.models[model]), "mig_mode", 1)
    for number in ids:
        device = change(device, "create_gpu_instance", number, mig_by_hand.ANYWHERE)
    return device


def refused(device: Device, setting: str, *values: int, busy: frozenset[int] = frozenset()) -> int:
    with pytest.raises(mig_by_hand.MigRefused) as error:
        change(device, setting, *values, busy=busy)
    return error.value.code


@given(st.data())
def test_an_instance_is_created_exactly_where_the_card_has_room(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(DIVISIBLE))
    device = change(devices.device("n", 0, model), "mig_mode", 1)
    for _ in range(data.draw(st.integers(1, 12))):
        profile = data.draw(st.sampled_from(model.mig))
        start = data.draw(st.sampled_from([mig_by_hand.ANYWHERE, *range(9)]))
        taken = [at for place in device.placements() for at in place.slices]
        size, many = placing.memory_slices(profile, model), sum(item is profile for item in device.instances)
        room = [
            at for at in placing.starts(profile, model)
            if start in (mig_by_hand.ANYWHERE, at) and not {*range(at, at + size)} & {*taken} and many < profile.count
        ]  # fmt: skip
        if room:
            device = change(device, "create_gpu_instance", profile.id, start)
            assert device.placements()[-1].start in room
        else:
            assert refused(device, "create_gpu_instance", profile.id, start) in (
                mig_by_hand.INVALID,
                mig_by_hand.NO_RESOURCES,
            )
    numbers = [place.number for place in device.placements()]
    assert len({*numbers}) == len(numbers)
    for number in data.draw(st.permutations(numbers)):
        device = change(device, "destroy_gpu_instance", number)
    assert device.mig_mode
    assert not change(device, "mig_mode", 0).mig_mode


def test_an_instance_is_a_mig_device_once_it_has_a_compute_instance() -> None:
    device = divided(9, 19)
    assert device.mig_devices() == []

    device = change(device, "create_compute_instance", 2)

    assert [(place.number, profile.name) for place, profile in device.mig_devices()] == [(2, "3g.71gb")]
    assert refused(device, "create_compute_instance", 2) == mig_by_hand.NO_RESOURCES
    assert change(device, "destroy_compute_instance", 2).mig_devices() == []


def test_what_is_in_use_stays() -> None:
    device = change(divided(9), "create_compute_instance", 2)

    assert refused(device, "destroy_gpu_instance", 2) == mig_by_hand.IN_USE
    assert refused(device, "destroy_compute_instance", 2, busy=frozenset({2})) == mig_by_hand.IN_USE
    assert refused(device, "mig_mode", 0) == mig_by_hand.IN_USE
    assert (
        refused(devices.device("n", 0, CATALOG.models["h200"]), "mig_mode", 1, busy=frozenset({0}))
        == mig_by_hand.IN_USE
    )


def test_what_is_not_there_is_refused() -> None:
    assert refused(divided(), "create_gpu_instance", 77, mig_by_hand.ANYWHERE) == mig_by_hand.INVALID
    assert refused(divided(), "destroy_gpu_instance", 3) == mig_by_hand.NOT_FOUND
    assert refused(divided(9), "destroy_compute_instance", 2) == mig_by_hand.NOT_FOUND
    assert refused(divided(), "mig_mode", 2) == mig_by_hand.INVALID
    whole = devices.device("n", 0, CATALOG.models["h200"])
    assert refused(whole, "create_gpu_instance", 9, mig_by_hand.ANYWHERE) == mig_by_hand.UNSUPPORTED
    assert refused(devices.device("n", 0, CATALOG.models["t4"]), "mig_mode", 1) == mig_by_hand.UNSUPPORTED
