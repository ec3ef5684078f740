"""MIG by hand follows the driver's rules, on every model that can be divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.catalog import computing, models, placing
from simgpu.topology import devices, mig_by_hand
from simgpu.topology.devices import Device

CATALOG = models.load()
DIVISIBLE = [model for model in CATALOG.models.values() if model.mig]


def change(device: Device, setting: str, *values: int, busy: frozenset[tuple[int, int]] = frozenset()) -> Device:
    first, second = (*values, 0, 0)[:2]
    return mig_by_hand.change(device, setting, (first, second), busy=busy, is_open=bool(busy))


def divided(*ids: int, model: str = "h200") -> Device:
    device = change(devices.device("n", 0, CATALOG.models[model]), "mig_mode", 1)
    for number in ids:
        device = change(device, "create_gpu_instance", number, mig_by_hand.ANYWHERE)
    return device


def refused(device: Device, setting: str, *values: int, busy: frozenset[tuple[int, int]] = frozenset()) -> int:
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
    assert refused(device, "destroy_compute_instance", 2, busy=frozenset({(2, 0)})) == mig_by_hand.IN_USE
    assert refused(device, "mig_mode", 0) == mig_by_hand.IN_USE
    assert (
        refused(devices.device("n", 0, CATALOG.models["h200"]), "mig_mode", 1, busy=frozenset({(0, 0)}))
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


def compute(kind: int, start: int = mig_by_hand.ANYWHERE) -> int:
    """The value that asks for a compute instance of a kind."""
    return kind + 1 | start << 8


def test_compute_instances_share_a_gpu_instance_and_the_smallest_free_number_is_given() -> None:
    device = divided(9)
    for kind in (0, 1):
        device = change(device, "create_compute_instance", 2, compute(kind))

    assert [(item.number, item.kind, item.start) for item in device.compute] == [(0, 0, 2), (1, 1, 0)]
    assert device.mig_devices() == []
    assert [place.number for place, _ in device.usable_instances()] == [2]
    assert devices.compute_shares(device, 2) == {0: 16 / 60, 1: 32 / 60}
    assert refused(device, "create_compute_instance", 2) == mig_by_hand.NO_RESOURCES
    assert refused(device, "destroy_gpu_instance", 2) == mig_by_hand.IN_USE
    assert refused(device, "destroy_compute_instance", 2, 1, busy=frozenset({(2, 1)})) == mig_by_hand.IN_USE
    device = change(
        device,
        "destroy_compute_instance",
        2,
        0,
    )
    assert [item.number for item in device.compute] == [1]
    assert change(device, "create_compute_instance", 2, compute(0)).compute[0].number == 0
    device = change(device, "destroy_compute_instance", 2, 1)
    assert change(device, "create_compute_instance", 2).mig_devices()


def test_kinds_of_compute_instances_are_those_of_the_recorded_card() -> None:
    model = CATALOG.models["h200"]
    profiles = {profile.name: profile for profile in model.mig}

    def listed(name: str) -> list[tuple[str, int, int, tuple[int, ...], int]]:
        within = profiles[name]
        return [
            (computing.name(kind, within), kind.number, kind.multiprocessors, kind.starts, kind.width)
            for kind in computing.kinds(within, model)
        ]

    assert listed("4g.71gb") == [
        ("1c.4g.71gb", 0, 16, (0, 1, 2, 3), 1), ("1c.4g.71gb", 7, 26, (0, 2), 2), ("2c.4g.71gb", 1, 32, (0, 2), 2),
        ("4g.71gb", 3, 64, (0,), 4),
    ]  # fmt: skip
    assert listed("1g.35gb") == [("1g.35gb", 0, 16, (0,), 1), ("1g.35gb", 7, 26, (0,), 2)]
    assert [item[:2] for item in listed("7g.141gb")] == [
        ("1c.7g.141gb", 0), ("1c.7g.141gb", 7), ("2c.7g.141gb", 1), ("3c.7g.141gb", 2), ("4c.7g.141gb", 3),
        ("7g.141gb", 4),
    ]  # fmt: skip


@given(st.data())
def test_a_compute_instance_is_created_exactly_where_its_gpu_instance_has_room(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(DIVISIBLE))
    profile = data.draw(st.sampled_from(model.mig))
    device = divided(profile.id, model=model.key)
    number = device.placements()[0].number
    kinds = {kind.number: kind for kind in computing.kinds(profile, model)}
    assert [kind.whole for kind in kinds.values()].count(True) == 1
    for _ in range(data.draw(st.integers(1, 10))):
        wanted = data.draw(st.sampled_from([*kinds, 6]))
        start = data.draw(st.sampled_from([mig_by_hand.ANYWHERE, *range(9)]))
        kind = kinds.get(wanted)
        taken = {at for item in device.compute for at in range(item.start, item.start + kinds[item.kind].width)}
        filled = not device.bare
        room = [] if kind is None or filled else [
            at for at in kind.starts
            if start in (mig_by_hand.ANYWHERE, at) and not {*range(at, at + kind.width)} & taken
        ]  # fmt: skip
        if room:
            before = device
            device = change(device, "create_compute_instance", number, compute(wanted, start))
            made = [item for item in device.compute if item not in before.compute]
            assert [item.start for item in made if item.start in room] or not device.bare
        else:
            assert refused(device, "create_compute_instance", number, compute(wanted, start)) in (
                mig_by_hand.INVALID, mig_by_hand.NO_RESOURCES, mig_by_hand.UNSUPPORTED,
            )  # fmt: skip
    assert sum(devices.compute_shares(device, number).values()) <= 1 + 1e-9
    for item in device.compute:
        device = change(device, "destroy_compute_instance", number, item.number)
    if not device.bare:
        device = change(device, "destroy_compute_instance", number)
    assert change(device, "destroy_gpu_instance", number).instances == ()
