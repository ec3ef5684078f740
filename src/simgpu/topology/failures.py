"""Failures that a real node's devices simulate, and their state at a time after they began."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from simgpu import errors, yaml_text
from simgpu.topology import checking
from simgpu.vocabulary import MAX_GPUS

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
_MIN_FLAP = 0.5
_Index = Annotated[int, msgspec.Meta(ge=0, le=MAX_GPUS - 1)]
_LISTED = msgspec.Meta(max_length=MAX_GPUS)


class Death(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The GPU with index `gpu` fails `after` seconds, and recovers after `for` seconds; 0 means never."""

    gpu: _Index
    after: _Seconds = 0.0
    seconds: _Seconds = msgspec.field(default=0.0, name="for")

    def covers(self, elapsed: float) -> bool:
        """Return whether the GPU has failed, `elapsed` seconds after the start."""
        return elapsed >= self.after and (not self.seconds or elapsed < self.after + self.seconds)

    def changes(self) -> tuple[float, ...]:
        """Return the times of failure and recovery, in seconds after the start."""
        return (self.after, self.after + self.seconds) if self.seconds else (self.after,)


class Failures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node's devices fail.

    Allocations are rejected (`refuse`) or take `delay` seconds. The device plugin is absent (`vanish`), or absent and
    present for `flap` seconds in turn. GPUs are unhealthy, by index, for good (`unhealthy`) or for a time (`dying`).
    """

    refuse: bool = False
    delay: _Seconds = 0.0
    vanish: bool = False
    flap: _Seconds = 0.0
    unhealthy: Annotated[tuple[_Index, ...], _LISTED] = ()
    dying: Annotated[tuple[Death, ...], _LISTED] = ()

    def __post_init__(self) -> None:
        if 0 < self.flap < _MIN_FLAP:
            raise ValueError(f"flap must be 0, or at least {_MIN_FLAP:g} seconds")

    def present(self, elapsed: float) -> bool:
        """Return whether the device plugin is registered, `elapsed` seconds after the start."""
        return not self.vanish and (not self.flap or self._turn(elapsed) % 2 == 1)

    def lost_at(self, elapsed: float) -> frozenset[int]:
        """Return the indices of GPUs that have died, `elapsed` seconds after the start."""
        return frozenset(item.gpu for item in self.dying if item.covers(elapsed))

    def next_change(self, elapsed: float) -> float | None:
        """Return seconds until the state changes; None if it does not."""
        times = [time for item in self.dying for time in item.changes() if time > elapsed]
        if self.flap and not self.vanish:
            times.append((self._turn(elapsed) + 1) * self.flap)
        return min(times) - elapsed if times else None

    def _turn(self, elapsed: float) -> int:
        """How many turns have begun before the current one; the margin is for quotients such as 8.1 / 0.1."""
        return int(elapsed / self.flap + 1e-9)


NONE = Failures()


def read(text: str, *, field: str) -> Failures:
    """Return failures from YAML text; raises `InputError` with the field that is wrong."""
    try:
        document = yaml_text.parse(text)
    except ValueError as error:
        raise errors.InputError(field, str(error)) from None
    return parse(document or {}, field=field)


def parse(document: Any, *, field: str) -> Failures:
    """Return failures from a configuration; raises `InputError` with the field that is wrong."""
    return checking.converted(document, Failures, field=field)
