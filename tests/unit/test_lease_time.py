"""Time that never goes back, from one leader to the next."""

from __future__ import annotations

import pytest

from simgpu.kube import errors as kube_errors
from simgpu.kube.client import decode
from simgpu.kube.lease_time import LeaseTime
from simgpu.kube.views import Lease, LeaseSpec, ObjectMeta


class Clocks:
    """A wall clock that may be set, and a steady one."""

    def __init__(self, wall: float) -> None:
        self.wall, self.steady = wall, 50.0

    def passes(self, seconds: float) -> None:
        self.wall, self.steady = self.wall + seconds, self.steady + seconds

    def time(self) -> LeaseTime:
        return LeaseTime(lambda: self.wall, lambda: self.steady)


def lease(time: LeaseTime, *, holder: str = "before", seconds: int = 15) -> Lease:
    """What a leader writes at this moment."""
    renewed = time.utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time=renewed)
    return Lease(metadata=ObjectMeta(name="l"), spec=spec)


def test_it_is_the_wall_clocks_while_nobody_sets_that_back() -> None:
    clocks = Clocks(1000.0)
    time = clocks.time()
    clocks.passes(5)
    assert time.now() == 1005
    clocks.wall += 3600
    assert time.now() == 4605


def test_it_goes_on_where_the_wall_clock_was_set_back() -> None:
    clocks = Clocks(10_000.0)
    time = clocks.time()
    clocks.wall -= 3600
    clocks.passes(5)
    assert time.now() == 10_005
    clocks.passes(5)
    assert time.now() == 10_010


def test_a_leader_goes_on_from_where_the_one_before_it_was() -> None:
    clocks = Clocks(10_000.0)
    first = clocks.time()
    clocks.wall -= 3600
    clocks.passes(20)
    second = clocks.time()
    second.follow(lease(first))
    assert second.now() == pytest.approx(10_035)  # the first may have led until its lease expired
    clocks.passes(1)
    assert second.now() == pytest.approx(10_036)


def test_a_lease_that_was_released_was_valid_no_longer() -> None:
    clocks = Clocks(10_000.0)
    first = clocks.time()
    clocks.wall -= 3600
    second = clocks.time()
    second.follow(lease(first, holder=""))
    assert second.now() == pytest.approx(10_000)


@pytest.mark.parametrize("renewed", [None, "", "soon", "9999-12-31T23:59:59.000000Z", "0001-01-01T00:00:00+23:59"])
def test_a_lease_of_no_time_or_of_an_absurd_one_changes_nothing(renewed: str | None) -> None:
    time = Clocks(10_000.0).time()
    time.follow(Lease(metadata=ObjectMeta(name="l"), spec=LeaseSpec(holder_identity="x", renew_time=renewed)))
    assert time.now() == 10_000


@pytest.mark.parametrize("field", ["leaseDurationSeconds", "leaseTransitions"])
def test_a_lease_with_a_number_of_no_32_bits_is_unreadable(field: str) -> None:
    with pytest.raises(kube_errors.UnreadableAnswer, match=field):
        decode(b'{"metadata":{"name":"l"},"spec":{"%s":%s}}' % (field.encode(), b"9" * 400), Lease)
