"""Requests of inference pods: how they become utilisation, and what happens without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from simgpu.controllers import knative
from simgpu.machines.users import PodRef, User
from simgpu.promql.asking import QueryError, SeriesSample
from tests.fixtures.clocks import ManualClock

USERS = [(User(PodRef("p", "ns"), full_load=100.0), 1), (User(PodRef("q", "ns"), full_load=10.0), 2)]


class World:
    """Users that requests drive, and a Prometheus with an answer."""

    def __init__(self) -> None:
        self.answer: list[SeriesSample] | None = []
        self.queries = 0
        self.usage: dict[int, float] = {}
        self.reported: list[str] = []
        self.driven = list(USERS)
        self.clock = ManualClock()
        self.rates = knative.RequestRates(
            self._ask, lambda: self.driven, self.usage.__setitem__, self.clock, self.reported.append
        )

    async def _ask(self, _query: str, _seconds: float) -> Sequence[SeriesSample]:
        self.queries += 1
        if self.answer is None:
            raise QueryError("http://there: away")
        return self.answer

    def look(self, seconds: float = 5.0) -> dict[int, float]:
        self.clock.now += seconds
        asyncio.run(self.rates.look())
        return {number: round(value, 6) for number, value in self.usage.items()}


def sample(value: float, **labels: str) -> SeriesSample:
    return SeriesSample(labels, value)


def test_one_query_serves_all_pods_whatever_their_series_are_named_by() -> None:
    world = World()
    world.answer = [
        sample(20.0, namespace="ns", pod="p"), sample(5.5, namespace="ns", pod="p"),
        sample(30.0, namespace_name="ns", pod_name="q"), sample(9.0, namespace="other", pod="p"), sample(1.0),
    ]  # fmt: skip
    assert world.look() == {1: 0.255, 2: 1.0}
    assert world.queries == 1


def test_the_last_answer_counts_for_a_minute_then_pods_are_idle_and_it_is_reported_once() -> None:
    world = World()
    world.answer = [sample(20.0, namespace="ns", pod="p")]
    world.look()
    world.answer = None
    assert world.look(55.0)[1] == 0.2
    assert world.reported == []
    assert world.look(10.0)[1] == 0
    world.look()
    assert world.reported == ["inference pods are idle: no answer for 60 s: http://there: away"]
    world.answer = [sample(50.0, namespace="ns", pod="p")]
    assert world.look()[1] == 0.5
    assert world.rates.problem == ""


def test_every_time_that_prometheus_is_away_is_reported_also_after_a_time_without_such_pods() -> None:
    world = World()
    world.answer = None
    for _ in range(2):
        world.driven = list(USERS)
        world.look()
        world.look(60.0)
        assert world.rates.problem
        world.driven = []
        world.look()
        assert world.rates.problem == ""
    assert len(world.reported) == 2


def test_nobody_is_asked_without_such_pods() -> None:
    world = World()
    world.driven = []
    world.look()
    assert world.queries == 0


LABELS = st.dictionaries(st.sampled_from(["namespace", "pod", "namespace_name", "pod_name"]), st.text(max_size=3))


@given(st.lists(st.builds(SeriesSample, LABELS, st.floats(allow_nan=False, allow_infinity=False))))
def test_any_answer_is_a_rate_that_is_not_negative(samples: list[SeriesSample]) -> None:
    assert all(value > 0 and all(key) for key, value in knative.rates(samples).items())
