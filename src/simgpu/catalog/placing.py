"""Placement of MIG instances on a card, and their numbers, as the driver assigns them.

Memory is cut into eight slices and compute into seven (four and four on an A30). An instance starts at a multiple of
its own size. Instances of one slice are placed from the beginning, all others from the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from simgpu import errors
from simgpu.catalog import models
from simgpu.catalog.facts import Facts

_NAMED_MEMORY = re.compile(r"[0-9]+g\.([0-9]+)gb")
_FIRST_NUMBER = {8: 0, 4: 1, 2: 3, 1: 7}  # of instances, by their slices of memory


class Placement(Facts, frozen=True):
    """The first slice of an instance's memory, how many it has, and its number."""

    start: int
    size: int
    number: int

    @property
    def slices(self) -> range:
        """The slices of memory that it takes."""
        return range(self.start, self.start + self.size)


def compute_slices(profile: models.MigProfile) -> int:
    """Return slices of compute: the number that the profile's name starts with."""
    return int(profile.name.partition("g")[0])


def memory_slices(profile: models.MigProfile, model: models.Model) -> int:
    """Return slices of memory, a power of two: as listed, else for its listed memory or that in the profile's name."""
    if profile.memory_slices is not None:
        return profile.memory_slices
    size = profile.memory_mib
    if size is None:
        named = _NAMED_MEMORY.match(profile.name)
        size = int(named[1]) * 1024 if named else 0
    wanted = round(size / model.memory_mib.total * _memory(model))
    return next(slices for slices in (1, 2, 4, 8) if slices >= min(wanted, _memory(model)))


def memory_mib(profile: models.MigProfile, model: models.Model) -> int:
    """Return memory of an instance in MiB: as listed, else that of its slices."""
    if profile.memory_mib is not None:
        return profile.memory_mib
    return model.memory_mib.usable * memory_slices(profile, model) // _memory(model)


def multiprocessors(profile: models.MigProfile, model: models.Model) -> int:
    """Return how many SMs an instance has: as listed, else its share of the card's."""
    return profile.sm or (model.sm_count or 0) * compute_slices(profile) // _compute(model)


def engines(profile: models.MigProfile, model: models.Model) -> models.MigEngines:
    """Return the engines of an instance: as listed, else one of each kind for each slice of compute.

    The whole card has one copy engine more, and the only optical flow engine, as do profiles with media extensions.
    """
    if profile.engines is not None:
        return profile.engines
    slices = compute_slices(profile)
    whole = slices == _compute(model)
    extra = int(whole or profile.name.endswith("+me"))
    return models.MigEngines(copy=slices + whole, decoders=slices, jpeg=slices, ofa=extra)


def card_slices(model: models.Model) -> int:
    """Return the slices of memory that a card which can be divided has."""
    return _memory(model)


def starts(profile: models.MigProfile, model: models.Model) -> list[int]:
    """Return the slices at which an instance can start on an empty card."""
    size = memory_slices(profile, model)
    return [start for start in range(0, 8, size) if start + compute_slices(profile) <= _compute(model)]


def place(instances: Sequence[models.MigProfile], model: models.Model, *, where: str) -> list[Placement]:
    """Return placements of instances that are created in this order; raises `InputError` if they do not fit."""
    taken: set[int] = set()
    found: list[Placement] = []
    for position, profile in enumerate(instances):
        start = next_start(profile, model, taken)
        if start is None:
            before = ", ".join(other.name for other in instances[:position])
            raise errors.InputError(f"{where}[{position}]", f"no room for {profile.name} beside {before}")
        found.append(placed(profile, model, start))
        taken.update(found[-1].slices)
    return found


def largest_first(instances: Iterable[models.MigProfile], model: models.Model) -> list[models.MigProfile]:
    """Return instances in the order in which most of them fit."""
    return sorted(instances, key=lambda item: (-memory_slices(item, model), -compute_slices(item)))


def next_start(profile: models.MigProfile, model: models.Model, taken: Collection[int]) -> int | None:
    """Return the slice at which the driver lets the next instance start; None if it has no room."""
    size = memory_slices(profile, model)
    options = [start for start in starts(profile, model) if not any(at in taken for at in range(start, start + size))]
    if not options:
        return None
    return options[0] if size == 1 else options[-1]


def placed(profile: models.MigProfile, model: models.Model, start: int) -> Placement:
    """Return the placement of an instance that starts at a slice."""
    size = memory_slices(profile, model)
    return Placement(start, size, _FIRST_NUMBER[size] + start // size)


def slices_of(number: int) -> range:
    """Return the slices of memory that the instance with a number takes."""
    first, size = max((first, size) for size, first in _FIRST_NUMBER.items() if first <= number)
    start = (number - first) * size
    return range(start, start + size)


def _compute(model: models.Model) -> int:
    return max(map(compute_slices, model.mig))


def _memory(model: models.Model) -> int:
    return 8 if _compute(model) > 4 else 4
