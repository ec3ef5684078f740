"""Kubernetes Events, as in `kubectl describe`: repeated ones are counted, and limited per object."""

from __future__ import annotations

import asyncio
import collections
import datetime
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from simgpu.kube import errors, resources
from simgpu.kube.client import Client

_log = logging.getLogger(__name__)

_MAX_QUEUED = 1000
_MAX_RECENT = 200
_MAX_REMEMBERED = 4096
_MAX_MESSAGE_LENGTH = 1024


class Subject(msgspec.Struct, frozen=True):
    """The object that an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class EventLimits(msgspec.Struct, frozen=True):
    """The rate limit of events about one object: a burst, then one every `refill_seconds`."""

    burst: int = 25
    refill_seconds: float = 30.0


class Recorded(msgspec.Struct, frozen=True):
    """An event as it was recorded, at a time in seconds since 1970."""

    time: float
    subject: Subject
    type: str
    reason: str
    message: str


class _Occurrence(msgspec.Struct, frozen=True):
    subject: Subject
    type: str
    reason: str
    message: str


class _Known(msgspec.Struct):
    name: str
    count: int
    first: str


class Recorder:
    """Writes events in the background; `dropped` counts those that were not written, `recent` are the last ones."""

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        limits: EventLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        utc_now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.dropped = 0
        self.recent: collections.deque[Recorded] = collections.deque(maxlen=_MAX_RECENT)
        self._client = client
        self._component = component
        self._limits = limits or EventLimits()
        self._clock = clock
        self._utc_now = utc_now
        self._waiting: collections.OrderedDict[_Occurrence, int] = collections.OrderedDict()
        self._wake = asyncio.Event()
        self._known: collections.OrderedDict[_Occurrence, _Known] = collections.OrderedDict()
        self._budgets: collections.OrderedDict[Subject, tuple[float, float]] = collections.OrderedDict()

    def record(self, subject: Subject, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue an event; it is dropped if the object exceeds its rate limit or the queue is full."""
        occurrence = _Occurrence(subject, kind, reason, message[:_MAX_MESSAGE_LENGTH])
        if occurrence in self._waiting:
            self._waiting[occurrence] += 1
            return
        if len(self._waiting) >= _MAX_QUEUED or not self._allowed(subject):
            self.dropped += 1
            return
        self._waiting[occurrence] = 1
        self.recent.append(Recorded(self._utc_now().timestamp(), subject, kind, reason, occurrence.message))
        self._wake.set()

    def _allowed(self, subject: Subject) -> bool:
        now = self._clock()
        tokens, at = self._budgets.pop(subject, (float(self._limits.burst), now))
        tokens = min(float(self._limits.burst), tokens + (now - at) / self._limits.refill_seconds)
        allowed = tokens >= 1.0
        self._budgets[subject] = (tokens - 1.0 if allowed else tokens, now)
        while len(self._budgets) > _MAX_REMEMBERED:
            self._budgets.popitem(last=False)
        return allowed

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            occurrence, count = self._waiting.popitem(last=False)
            try:
                await self._write(occurrence, count)
            except errors.KubeError as error:
                self.dropped += count
                _log.info("event %s on %s was not written: %s", occurrence.reason, occurrence.subject.name, error)

    async def _write(self, occurrence: _Occurrence, count: int) -> None:
        now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = occurrence.subject.namespace or "default"
        known = self._known.pop(occurrence, None)
        if known is not None:
            known.count += count
            patch = {"count": known.count, "lastTimestamp": now}
            try:
                await self._client.merge_patch(resources.EVENTS, known.name, patch, namespace=namespace)
            except errors.NotFound:
                known = None  # the server deletes events after an hour
        if known is None:
            known = _Known(self._event_name(occurrence), count, now)
            body = self._body(occurrence, known, now)
            await self._client.create(resources.EVENTS, body, namespace=namespace)
        self._known[occurrence] = known
        while len(self._known) > _MAX_REMEMBERED:
            self._known.popitem(last=False)

    def _event_name(self, occurrence: _Occurrence) -> str:
        moment = f"{self._utc_now().timestamp()}".encode()
        digest = hashlib.sha256(moment + msgspec.json.encode(occurrence)).hexdigest()[:16]
        return f"{occurrence.subject.name[:200].rstrip('.-')}.{digest}"  # each part of a name ends in a letter or digit

    def _body(self, occurrence: _Occurrence, known: _Known, now: str) -> dict[str, Any]:
        subject = occurrence.subject
        about = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            "namespace": subject.namespace,
            "uid": subject.uid or (subject.name if subject.kind == "Node" else ""),
        }
        return {
            "metadata": {"name": known.name},
            "involvedObject": {name: value for name, value in about.items() if value},
            "type": occurrence.type,
            "reason": occurrence.reason,
            "message": occurrence.message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": known.count,
        }
