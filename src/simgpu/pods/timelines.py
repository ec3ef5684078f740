"""Timelines: how busy a pod keeps its GPUs, step by step."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from simgpu import errors
from simgpu.machines.users import NONE, Range
from simgpu.pods import requests
from simgpu.vocabulary import MAX_TIMELINE_SECONDS, MAX_TIMELINE_STEPS

MAX_REPEAT = 1_000_000_000
_EXAMPLE = '{"steps": [{"time": "1h", "utilization": 80}, {"time": "30m", "utilization": "10-30"}], "repeat": 5}'
_MIN_SECONDS = 0.1
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})(ms|h|m|s)")
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ms|h|m|s)){{1,8}}")


class TimelineStep(msgspec.Struct, frozen=True):
    """So many seconds at a utilisation."""

    seconds: float
    utilization: Range


class Timeline(msgspec.Struct, frozen=True):
    """Steps, and how often they are repeated: 0 is for ever. Afterwards GPUs are idle."""

    steps: tuple[TimelineStep, ...]
    repeat: int = 1

    @property
    def span(self) -> Range:
        """The range in which all of it is."""
        parts = [step.utilization for step in self.steps] + ([NONE] if self.repeat else [])
        return Range(min(part.low for part in parts), max(part.high for part in parts))


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    time: str | int | float
    utilization: str | int


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    steps: Annotated[list[_Step], msgspec.Meta(min_length=1, max_length=MAX_TIMELINE_STEPS)]
    repeat: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEAT)] = 1


def read(document: Any, *, field: str) -> Timeline:
    """Return the timeline in a document: an object with steps, or only the steps; `InputError` if it is invalid."""
    if not isinstance(document, list | dict):
        raise errors.InputError(field, f"{errors.shown(document)}: must be JSON such as {_EXAMPLE}")
    form = errors.convert({"steps": document} if isinstance(document, list) else document, _Form, field=field)
    steps = []
    for index, step in enumerate(form.steps):
        place = f"{field}: steps[{index}]"
        utilization = requests.parse_range(str(step.utilization), field=f"{place}.utilization")
        steps.append(TimelineStep(_seconds(step.time, field=f"{place}.time"), utilization))
    return Timeline(tuple(steps), form.repeat)


def _seconds(value: str | float, *, field: str) -> float:
    """Return a duration in seconds: a number, or text such as 30s, 1h30m or 500ms."""
    if isinstance(value, str):
        if _DURATION.fullmatch(value) is None:
            raise errors.InputError(field, f"{value[:40]!r}: must be a time such as 30s, 1h30m or 500ms")
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if not _MIN_SECONDS <= value <= MAX_TIMELINE_SECONDS:
        days = MAX_TIMELINE_SECONDS // 86400
        raise errors.InputError(field, f"{value:g} s: must be from {_MIN_SECONDS:g} s to {days} days")
    return float(value)
