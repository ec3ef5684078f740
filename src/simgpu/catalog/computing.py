"""Compute instances within a MIG instance: their kinds, and where the next one starts.

One may fill the instance, or several smaller ones share its memory, each with slices of its compute. Kinds follow from
the profiles of the card, as do their numbers, which are NVML's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simgpu.catalog import models, placing
from simgpu.catalog.facts import Facts

_NUMBERS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}  # by slices of compute
_SMALL_AND_WIDE = 7  # one slice of compute that has the multiprocessors of more memory


class ComputeKind(Facts, frozen=True):
    """A kind of compute instance within an instance: its number, slices of compute, and multiprocessors.

    It takes `width` slices of the instance from one of its `starts`. One that is `whole` fills the instance.
    """

    number: int
    slices: int
    multiprocessors: int
    width: int
    starts: tuple[int, ...]
    whole: bool


def kinds(within: models.MigProfile, model: models.Model) -> list[ComputeKind]:
    """Return the kinds of compute instances of an instance, by size."""
    room, most = placing.memory_slices(within, model), placing.compute_slices(within)
    sm = placing.multiprocessors(within, model)
    found: list[ComputeKind] = []
    for profile in model.mig:
        slices, width = placing.compute_slices(profile), placing.memory_slices(profile, model)
        smaller = _smaller(profile, model)
        own = placing.multiprocessors(profile, model)
        if "+" in profile.name or slices > most or width > room or slices not in _NUMBERS:
            continue
        if smaller is not None and placing.multiprocessors(smaller, model) == own:
            continue  # no more than the smaller one
        if width == room and 1 < slices < most:
            continue  # would waste the rest
        number = _NUMBERS[slices] if smaller is None else _SMALL_AND_WIDE
        starts = tuple(range(0, min(most // slices, room // width) * width, width))
        found.append(ComputeKind(number, slices, own, width, starts, whole=slices == most and own == sm))
    return found


def name(kind: ComputeKind, within: models.MigProfile) -> str:
    """Return the name of a MIG device with such a compute instance, such as `3g.71gb` or `1c.3g.71gb`."""
    part = f"{kind.slices}c." if kind.slices < placing.compute_slices(within) else ""
    return part + within.name


def next_start(kind: ComputeKind, others: Sequence[ComputeKind], taken: Collection[int]) -> int | None:
    """Return where the next one of a kind starts; None if it has no room.

    It is where most room is left for `others`, the kinds of the same instance; of several such places, the first.
    """
    options = [start for start in kind.starts if _is_free(kind, start, taken)]
    return max(options, key=lambda start: (_room(others, {*taken, *_slices(kind, start)}), -start), default=None)


def _room(others: Sequence[ComputeKind], taken: Collection[int]) -> int:
    return sum(_is_free(kind, start, taken) for kind in others for start in kind.starts)


def _is_free(kind: ComputeKind, start: int, taken: Collection[int]) -> bool:
    return not any(at in taken for at in _slices(kind, start))


def _slices(kind: ComputeKind, start: int) -> range:
    return range(start, start + kind.width)


def _smaller(profile: models.MigProfile, model: models.Model) -> models.MigProfile | None:
    """Return the plain profile of as many slices of compute and less memory, if there is one."""
    size = placing.memory_slices(profile, model)
    return next((
        other for other in model.mig
        if "+" not in other.name and placing.compute_slices(other) == placing.compute_slices(profile)
        and placing.memory_slices(other, model) < size
    ), None)  # fmt: skip
