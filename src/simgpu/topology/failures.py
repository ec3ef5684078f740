"""Failures that a real node's devices mimic: what they are, and how things stand some time after they began."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from simgpu import errors, yaml_text

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
_SHORTEST_TURN = 0.5
_Index = Annotated[int, msgspec.Meta(ge=0, le=1023)]
_LISTED = msgspec.Meta(max_length=1024)


class Death(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU dies, and returns; 0 seconds is for good."""

    gpu: _Index
    after: _Seconds = 0.0
    seconds: _Seconds = msgspec.field(default=0.0, name="for")

    def covers(self, elapsed: float) -> bool:
        """Whether it is dead at that time."""
        return elapsed >= self.after and (not self.seconds or elapsed < self.after + self.seconds)

    def changes(self) -> tuple[float, ...]:
        """When it dies, and when it returns."""
        return (self.after, self.after + self.seconds) if self.seconds else (self.after,)


class Failures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`refuse` or `delay` what pods are given; `vanish` from the kubelet, or `flap`: be gone and there in turns."""

    refuse: bool = False
    delay: _Seconds = 0.0
    vanish: bool = False
    flap: _Seconds = 0.0
    unhealthy: Annotated[tuple[_Index, ...], _LISTED] = ()
    dying: Annotated[tuple[Death, ...], _LISTED] = ()

    def __post_init__(self) -> None:
        if 0 < self.flap < _SHORTEST_TURN:
            raise ValueError(f"flap is 0, or at least {_SHORTEST_TURN:g} seconds")

    def present(self, elapsed: float) -> bool:
        """Whether the kubelet finds the devices at all."""
        return not self.vanish and (not self.flap or self._turn(elapsed) % 2 == 1)

    def unhealthy_at(self, elapsed: float) -> frozenset[int]:
        """GPUs that are not well at that time, by index."""
        return frozenset((*self.unhealthy, *(item.gpu for item in self.dying if item.covers(elapsed))))

    def next_change(self, elapsed: float) -> float | None:
        """Seconds until any of this is otherwise; None if it stays."""
        times = [time for item in self.dying for time in item.changes() if time > elapsed]
        if self.flap and not self.vanish:
            times.append((self._turn(elapsed) + 1) * self.flap)
        return min(times) - elapsed if times else None

    def _turn(self, elapsed: float) -> int:
        """How often the plugin has come or gone; a turn that begins now has begun, however 8.1 / 0.1 is rounded."""
        return int(elapsed / self.flap + 1e-9)


NONE = Failures()


def read(text: str, *, field: str) -> Failures:
    """Failures from a text of their own."""
    try:
        document = yaml_text.parse(text)
    except ValueError as error:
        raise errors.InputError(field, str(error)) from None
    return parse(document or {}, field=field)


def parse(document: Any, *, field: str) -> Failures:
    """Failures from a configuration; what is wrong is said with its place."""
    try:
        return msgspec.convert(document, Failures)
    except msgspec.ValidationError as error:
        raise errors.InputError(field, errors.clipped(str(error).replace("`$.", "`"))) from None
