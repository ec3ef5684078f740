"""Utilisation of inference pods: their requests per second, from Prometheus, with one query for all of them.

The series are those of Knative's queue proxy. A pod's are summed; 100 requests a second, or as many as it states, are
100 %.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from simgpu.machines.ticking import Clock
from simgpu.machines.users import User
from simgpu.promql.asking import QueryError, SeriesSample

QUERY = "sum by (namespace, pod, namespace_name, pod_name) (rate(revision_app_request_count[1m]))"
ASK_SECONDS = 5.0  # between queries
MAX_ANSWER_SECONDS = 4.0  # for an answer
STALE_SECONDS = 60.0  # that the last values count while there is no answer

_log = logging.getLogger(__name__)

Ask = Callable[[str, float], Awaitable[Sequence[SeriesSample]]]  # a query, and the seconds until it times out
ListDriven = Callable[[], Iterable[tuple[User, int]]]  # users whose requests drive them, and their workloads
SetUsage = Callable[[int, float], None]  # of a workload, from 0 to 1


class RequestRates:
    """Sets the utilisation of users by their requests. `problem` is why there is none, once it has lasted.

    `report` is called with it, once for each time that Prometheus is away.
    """

    def __init__(
        self, ask: Ask, driven: ListDriven, set_usage: SetUsage, clock: Clock, report: Callable[[str], None]
    ) -> None:
        self.problem = ""
        self._ask = ask
        self._driven = driven
        self._set_usage = set_usage
        self._clock = clock
        self._report = report
        self._rates: Counter[tuple[str, str]] = Counter()
        self._answered: float | None = None
        self._asked_since: float | None = None

    async def run(self) -> None:
        """Ask until cancelled, as long as there are users to ask for."""
        while True:
            await self._clock.sleep(ASK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Ask once, if any user is driven by requests, and set their utilisation."""
        driven = list(self._driven())
        if not driven:
            self._answered, self._asked_since, self.problem = None, None, ""
            return
        now = self._clock.steady()
        self._asked_since = now if self._asked_since is None else self._asked_since
        try:
            self._rates = rates(await self._ask(QUERY, MAX_ANSWER_SECONDS))
            self._answered, self.problem = self._clock.steady(), ""
        except QueryError as error:
            self._miss(str(error), now)
        self.apply(self._driven())  # which may be others by now

    def _miss(self, problem: str, now: float) -> None:
        since = self._asked_since if self._answered is None else self._answered
        if since is not None and now - since >= STALE_SECONDS:
            self._rates = Counter()
            if not self.problem:
                _log.warning("inference pods are idle: %s", problem)
                self._report(f"inference pods are idle: no answer for {STALE_SECONDS:.0f} s: {problem}")
            self.problem = problem

    def apply(self, driven: Iterable[tuple[User, int]]) -> None:
        """Set the utilisation of users by the last answer."""
        for user, number in driven:
            rate = self._rates[user.pod.namespace, user.pod.name]
            self._set_usage(number, min(1.0, rate / user.full_load) if user.full_load else 0.0)


def rates(samples: Iterable[SeriesSample]) -> Counter[tuple[str, str]]:
    """Return requests per second by namespace and pod."""
    found: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        labels = sample.labels
        key = labels.get("namespace", ""), labels.get("pod", "")
        if not all(key):
            key = labels.get("namespace_name", ""), labels.get("pod_name", "")
        if all(key) and sample.value > 0:
            found[key] += sample.value  # type: ignore[assignment]
    return found
