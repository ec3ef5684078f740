"""MIG by hand: a card's mode and instances are changed one at a time, with the driver's rules. A device in, one out.

GPU instances, and compute instances within them, are created where the driver places them, or where the caller wants
them. A compute instance that fills its GPU instance makes it a MIG device; several smaller ones share it. What is in
use cannot be destroyed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from simgpu import errors
from simgpu.catalog import computing, models, placing
from simgpu.topology.devices import ComputeInstance, Device
from simgpu.topology.mig_choice import LayoutChoice, laid_out
from simgpu.topology.mig_layouts import CardLayout
from simgpu.topology.pools import NodeGpus

INVALID, UNSUPPORTED, NOT_FOUND, IN_USE, NO_RESOURCES = 2, 3, 6, 19, 23  # NVML's codes
NOT_READY, UNKNOWN = 27, 999

ANYWHERE: Final = 255  # in place of a first slice: where the driver places it

Busy = Collection[tuple[int, int]]  # numbers of instances, and of compute instances in them, that programs have open


class HandCard(msgspec.Struct, frozen=True):
    """How a card was divided by hand: its MIG devices, and other instances by profile and first slice.

    Those may have smaller compute instances.
    """

    layout: CardLayout
    bare: tuple[tuple[str, int], ...] = ()
    compute: tuple[ComputeInstance, ...] = ()


class HandMade(msgspec.Struct, frozen=True):
    """The cards of a node that were divided by hand, by index, and the choice of layout that this comes before."""

    choice: LayoutChoice
    cards: dict[int, HandCard] = {}

    def over(self, spec: NodeGpus) -> NodeGpus:
        """Return what a node has with these cards divided like this, if they still can be."""
        found = [
            self.cards[index].layout if index in self.cards and _possible(self.cards[index], gpu.model) else None
            for index, gpu in enumerate(spec.gpus)
        ]
        return msgspec.structs.replace(spec, gpus=laid_out(spec.gpus, found))

    def with_card(self, device: Device) -> HandMade:
        """Return the same with a card as it is divided now."""
        pairs = sorted(zip(device.placements(), device.instances, strict=True), key=lambda pair: pair[0].start)
        mine = [(place, profile) for place, profile in pairs if place.number not in device.bare]
        card = HandCard(
            CardLayout(device.mig_mode, tuple(item for _, item in mine), tuple(place.start for place, _ in mine)),
            tuple((profile.name, place.start) for place, profile in pairs if place.number in device.bare),
            device.compute,
        )
        return HandMade(self.choice, {**self.cards, device.index: card})


def _possible(card: HandCard, model: models.Model) -> bool:
    names = {profile.name for profile in model.mig}
    return {profile.name for profile in card.layout.instances} | {name for name, _ in card.bare} <= names


def possible_compute(card: HandCard, model: models.Model, numbers: Collection[int]) -> tuple[ComputeInstance, ...]:
    """Return the compute instances of a card that was divided by hand which instances with these numbers can have."""
    profiles = {profile.name: profile for profile in model.mig}
    within = {
        placing.placed(profiles[name], model, start).number: computing.kinds(profiles[name], model)
        for name, start in card.bare if name in profiles
    }  # fmt: skip
    return tuple(
        item
        for item in card.compute
        if item.within in numbers
        and any(kind.number == item.kind and item.start in kind.starts for kind in within.get(item.within, ()))
    )


class MigRefused(errors.SimgpuError):
    """The driver rejects the change; `code` is NVML's."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def change(device: Device, setting: str, values: Sequence[int], *, busy: Busy, is_open: bool) -> Device:
    """Return a card after a change of its MIG mode or instances; raises `MigRefused`.

    `setting` is one of `SETTINGS`. `is_open` is whether any program has the card or an instance of it open.
    """
    if not device.model.mig:
        raise MigRefused(UNSUPPORTED, f"{device.model.product} has no MIG")
    if setting == MODE:
        return _set_mode(device, values[0], is_open=is_open)
    if not device.mig_mode:
        raise MigRefused(UNSUPPORTED, "MIG mode is off")
    return _CHANGES[setting](device, values, busy)


def _set_mode(device: Device, mode: int, *, is_open: bool) -> Device:
    if mode not in (0, 1):
        raise MigRefused(INVALID, f"no MIG mode {mode}")
    if bool(mode) == device.mig_mode:
        return msgspec.structs.replace(device, mig_enabled=bool(mode))
    if device.instances or is_open:
        raise MigRefused(IN_USE, "the card is in use")
    return msgspec.structs.replace(device, mig_enabled=bool(mode))


def _create(device: Device, values: Sequence[int], _busy: Busy) -> Device:
    number, wanted = values
    profile = next((item for item in device.model.mig if item.id == number), None)
    if profile is None:
        raise MigRefused(INVALID, f"no profile {number}")
    there = device.placements()
    taken = {at for place in there for at in place.slices}
    start = placing.next_start(profile, device.model, taken) if wanted == ANYWHERE else wanted
    if start is not None and start not in placing.starts(profile, device.model):
        raise MigRefused(INVALID, f"{profile.name} cannot start at slice {start}")
    if start is None or not taken.isdisjoint(placing.placed(profile, device.model, start).slices):
        raise MigRefused(NO_RESOURCES, f"no room for {profile.name}")
    if sum(item.name == profile.name for item in device.instances) >= profile.count:
        raise MigRefused(NO_RESOURCES, f"at most {profile.count} of {profile.name}")
    return msgspec.structs.replace(
        device, mig_enabled=True, instances=(*device.instances, profile),
        starts=(*(place.start for place in there), start),
        bare=(*device.bare, placing.placed(profile, device.model, start).number),
    )  # fmt: skip


def _destroy(device: Device, values: Sequence[int], busy: Busy) -> Device:
    number, there = _find(device, values[0]), device.placements()
    if number not in device.bare or _within(device, number) or any(number == used for used, _ in busy):
        raise MigRefused(IN_USE, f"instance {number} has a compute instance")
    kept = [at for at, place in enumerate(there) if place.number != number]
    return msgspec.structs.replace(
        device, mig_enabled=True, instances=tuple(device.instances[at] for at in kept),
        starts=tuple(there[at].start for at in kept), bare=tuple(item for item in device.bare if item != number),
    )  # fmt: skip


def _create_compute(device: Device, values: Sequence[int], _busy: Busy) -> Device:
    """The second value is 0 for one that fills the instance, else its kind + 1, and its first slice times 256."""
    number, wanted = _find(device, values[0]), values[1]
    kinds = computing.kinds(_profile(device, number), device.model)
    kind = next((item for item in kinds if (item.number + 1 == wanted & 255 if wanted else item.whole)), None)
    if kind is None:
        raise MigRefused(UNSUPPORTED, f"instance {number} has no such compute instances")
    others, start = _within(device, number), wanted >> 8 if wanted else 0
    if start not in (ANYWHERE, *kind.starts):
        raise MigRefused(INVALID, f"such a compute instance cannot start at slice {start}")
    if number not in device.bare or (kind.whole and others):
        raise MigRefused(NO_RESOURCES, f"compute instances of instance {number} leave no room")
    if kind.whole:
        return msgspec.structs.replace(device, bare=tuple(item for item in device.bare if item != number))
    widths = {item.number: item.width for item in kinds}
    taken = {at for item in others for at in range(item.start, item.start + widths[item.kind])}
    found = computing.next_start(kind, kinds, taken) if start == ANYWHERE else start
    if found is None or not taken.isdisjoint(range(found, found + kind.width)):
        raise MigRefused(NO_RESOURCES, f"compute instances of instance {number} leave no room")
    free = next(at for at in range(len(others) + 1) if all(item.number != at for item in others))
    made = ComputeInstance(number, free, kind.number, found)
    ordered = sorted((*device.compute, made), key=lambda item: (item.within, item.number))
    return msgspec.structs.replace(device, compute=tuple(ordered))


def _destroy_compute(device: Device, values: Sequence[int], busy: Busy) -> Device:
    number = _find(device, values[0])
    if number in device.bare:
        gone = next((item for item in _within(device, number) if item.number == values[1]), None)
    else:
        gone = ComputeInstance(number, 0, 0, 0) if values[1] == 0 else None
    if gone is None:
        raise MigRefused(NOT_FOUND, f"instance {number} has no compute instance {values[1]}")
    if (number, gone.number) in busy:
        raise MigRefused(IN_USE, f"instance {number} is in use")
    if number in device.bare:
        return msgspec.structs.replace(device, compute=tuple(item for item in device.compute if item != gone))
    starts = tuple(place.start for place in device.placements())
    return msgspec.structs.replace(device, starts=starts, bare=(*device.bare, number))


def _within(device: Device, number: int) -> list[ComputeInstance]:
    return [item for item in device.compute if item.within == number]


def _profile(device: Device, number: int) -> models.MigProfile:
    pairs = zip(device.placements(), device.instances, strict=True)
    return next(profile for place, profile in pairs if place.number == number)


def _find(device: Device, number: int) -> int:
    if number not in (place.number for place in device.placements()):
        raise MigRefused(NOT_FOUND, f"no instance {number}")
    return number


MODE: Final = "mig_mode"
_CHANGES: Final[Mapping[str, Callable[[Device, Sequence[int], Busy], Device]]] = {
    "create_gpu_instance": _create,
    "destroy_gpu_instance": _destroy,
    "create_compute_instance": _create_compute,
    "destroy_compute_instance": _destroy_compute,
}
SETTINGS: Final = frozenset({MODE, *_CHANGES})
