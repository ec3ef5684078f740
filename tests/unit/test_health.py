"""The health of devices: errors and failures, and how they end."""

from __future__ import annotations

import json

import msgspec

from simgpu.dra import taints
from simgpu.machines import health, quantities, saved
from simgpu.machines.box import Box
from simgpu.machines.health import DeviceFailure, DeviceFaults
from simgpu.machines.users import PodRef
from simgpu.sim import activity
from simgpu.topology import pools
from tests.fixtures.equipment import IDS, spec


def box(**more: object) -> Box:
    return Box(pools.build(spec(2), "node-a"), seed=1, hostname="h", **more)  # type: ignore[arg-type]


def xids(made: Box) -> list[float]:
    made.machine.invalidate()
    return [float(value) for value in quantities.of_devices(made.machine, "xid")]


def test_a_memory_error_stays_until_it_is_healed() -> None:
    made = box()
    made.fail({0: DeviceFailure.MEMORY})
    assert made.faults() == {IDS[0]: DeviceFaults((48,))}
    assert xids(made) == [48, 0]
    made.fail({0: DeviceFailure.MEMORY})
    assert float(made.machine.column("uncorrected")[0]) == 1
    made.fail({})
    assert made.faults() == {}
    made.fail({0: DeviceFailure.MEMORY})
    assert made.faults()[IDS[0]].unhealthy


def test_a_lost_card_is_lost_on_every_surface() -> None:
    made = box()
    made.fail({1: DeviceFailure.LOST})
    faults = made.faults()[IDS[1]]
    assert (faults.lost, faults.problem) == (True, "GPU is lost, XID 79")
    assert [item.key for item in taints.of(faults)] == ["gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost"]
    assert xids(made) == [0, 79]
    assert float(made.machine.column("xids")[1]) == 1
    made.change(pools.build(spec(2), "node-a"))
    assert made.machine.lost.tolist() == [False, True]
    made.fail({})
    assert not made.machine.lost.any()


def test_the_last_xid_stays_when_a_card_is_healed() -> None:
    made = box()
    made.fail({0: DeviceFailure.MEMORY, 1: DeviceFailure.LOST})
    made.fail({})
    assert made.faults() == {}
    assert xids(made) == [48, 79]
    made.step(1.0, clock=1.0)
    made.fail({0: DeviceFailure.LOST, 1: DeviceFailure.MEMORY})
    made.fail({})
    assert xids(made) == [79, 48]
    assert xids(box(now=1.0, saved=made.device_states())) == [79, 48]


def test_errors_of_programs_are_shown_and_leave_the_card_healthy() -> None:
    made = box()
    hanging = activity.Profile("hangs", (activity.Activity({"hangs": activity.constant(1.0)}, seconds=1.0),))
    made.admit(hanging, [0], pod=PodRef("p"))
    made.step(1.5, clock=1.5)
    faults = made.faults()[IDS[0]]
    assert (faults.xids, faults.unhealthy, faults.problem) == ((health.HANG_XID,), False, "")
    [taint] = taints.of(faults)
    assert (taint.value, taint.effect) == ("43", "None")


def test_a_restart_takes_earlier_errors_as_dealt_with() -> None:
    before = box()
    before.engine.strike(before.cards[0].number, "uncorrected")
    before.step(1.0, clock=1.0)
    assert before.faults() == {IDS[0]: DeviceFaults((48,))}
    made = box(now=1.0, saved=before.device_states())
    assert made.faults() == {}
    assert xids(made) == [48, 0]


def test_a_failure_that_goes_on_over_a_restart_is_one_error() -> None:
    failing = {0: DeviceFailure.MEMORY, 1: DeviceFailure.LOST}
    before = box()
    before.fail(failing)
    before.step(1.0, clock=1.0)
    at = saved.Moment("boot", 1.0, 1.0)
    document = json.loads(msgspec.json.encode(saved.snapshot(before, at)), parse_int=float)
    after, problems = saved.parse(document, at)
    assert not problems
    made = box(now=1.0, saved=after.devices)
    assert made.faults() == before.faults() == {IDS[0]: DeviceFaults((48,)), IDS[1]: DeviceFaults((79,), lost=True)}
    made.fail(failing)
    assert made.machine.column("xids").tolist() == [1, 1]
    made.fail({})
    assert made.faults() == {}
