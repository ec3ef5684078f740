"""Compute instances that share a MIG instance of a box: names, load, processes, and what is open."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from simgpu.catalog import models
from simgpu.machines.box import Box
from simgpu.page import showing, writer
from simgpu.sim import activity
from simgpu.topology import devices, mig_by_hand
from simgpu.topology.devices import ComputeInstance
from simgpu.topology.mig_layouts import CardLayout

CARD = devices.device("n", 0, models.load().models["h200"])


@pytest.fixture
def box() -> Box:
    """An H200 with a 3g.71gb that has compute instances of one slice and of two, and a 1g.18gb that has one."""
    profiles = {profile.name: profile for profile in CARD.model.mig}
    compute = ComputeInstance(2, 0, 0, 2), ComputeInstance(2, 1, 1, 0)
    device = devices.device(
        "n", 0, CARD.model, instances=(profiles["3g.71gb"], profiles["1g.18gb"]), starts=(4, 0), bare=(2,),
        compute=compute,
    )  # fmt: skip
    return Box([device], seed=1, hostname="n")


def busy(memory_mib: float) -> activity.Profile:
    values = {
        activity.USAGE: activity.constant(1.0), activity.MEMORY: activity.constant(memory_mib, share=False),
        "sm": activity.constant(1.0),
    }  # fmt: skip
    return activity.Profile("w", (activity.Activity(values),), repeat=0)


def test_each_has_a_name_and_an_id_of_its_own(box: Box) -> None:
    assert box.places() == ["nvidia0.2.0", "nvidia0.2.1", "nvidia0.7"]
    assert box.part_ids == [devices.part_id(CARD.uuid, *numbers) for numbers in ((2, 0), (2, 1), (7, 0))]
    assert len({*box.part_ids}) == 3


def test_series_of_an_instance_have_the_id_of_its_first_mig_device(box: Box) -> None:
    [device] = box.devices
    later = msgspec.structs.replace(device, compute=device.compute[1:])
    ids = [f"MIG-{item.part_uuid(2)}" for item in (device, later)]
    assert ids == [devices.part_id(CARD.uuid, 2), devices.part_id(CARD.uuid, 2, 1)]


def test_a_workload_has_the_part_of_the_instance_that_its_compute_instance_has(box: Box) -> None:
    box.admit(busy(1000), ["nvidia0.2.0"])
    box.step(10.0, clock=10.0)
    part = next(part for part in box.machine.parts if part.id == 2)
    state = box.engine.read_part(part.handle)
    assert [state.usage, state.memory_mib] == pytest.approx([100 * 16 / 60, 1000], rel=0.03)

    box.admit(busy(2000), [devices.part_id(CARD.uuid, 2, 1)])
    box.step(20.0, clock=20.0)
    state = box.engine.read_part(part.handle)
    assert [state.usage, state.memory_mib] == pytest.approx([100 * 48 / 60, 3000], rel=0.03)
    assert box.engine.read_part(next(part.handle for part in box.machine.parts if part.id == 7)).usage == 0


def test_one_that_is_not_open_can_be_destroyed_beside_one_that_is(box: Box) -> None:
    box.admit(busy(1000), ["nvidia0.2.1"])
    box.step(10.0, clock=10.0)

    assert box.open_parts(0) == {(2, 1)}
    assert [item.number for item in showing.divided(box, 0, "destroy_compute_instance", (2, 0)).compute] == [1]
    with pytest.raises(mig_by_hand.MigRefused):
        showing.divided(box, 0, "destroy_compute_instance", (2, 1))


def test_the_page_has_each_as_a_mig_device_and_processes_on_theirs(box: Box, tmp_path: Path) -> None:
    shown = showing.open_pages(box, tmp_path / "pages", interval=1.0, control="")
    for name, memory in (("nvidia0.2.0", 1000), ("nvidia0.2.1", 3000)):
        box.admit(busy(memory), [name])
    box.step(10.0, clock=10.0)
    shown.write()

    page = writer.read(tmp_path / "pages" / CARD.uuid / "page")
    assert page is not None
    row = page[0]
    numbers = ("gpu_instance", "compute_instance", "memory_total")
    assert [tuple(int(item[name]) for name in numbers) for item in row["instances"][: row["instance_count"]]] == [
        (2, 0, 71424 << 20), (2, 1, 71424 << 20), (7, 0, 16384 << 20),
    ]  # fmt: skip
    assert row["bare_count"] == 0
    assert [tuple(map(int, item)) for item in row["portions"][:3].tolist()] == [(1, 0, 2), (1, 1, 0), (0, 0, 0)]
    apps = [(int(app["instance"]), round(int(app["memory"]) / 2**20)) for app in row["apps"][: row["app_count"]]]
    assert [place for place, _ in apps] == [0, 1]
    assert sum(memory for _, memory in apps) == pytest.approx(4000, rel=0.01)
    assert apps[1][1] == pytest.approx(3 * apps[0][1], rel=0.05)
    shown.pages.close()


def test_what_was_saved_of_another_card_is_left_out() -> None:
    card = mig_by_hand.HandCard(
        CardLayout(enabled=True), (("3g.71gb", 4), ("9g.99gb", 0)),
        tuple(ComputeInstance(*numbers) for numbers in ((2, 0, 0, 1), (2, 1, 6, 0), (2, 2, 1, 1), (7, 0, 0, 0))),
    )  # fmt: skip
    assert mig_by_hand.possible_compute(card, CARD.model, [2]) == (ComputeInstance(2, 0, 0, 1),)
