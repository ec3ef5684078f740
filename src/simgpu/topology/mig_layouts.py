"""How the cards of a node are divided into MIG instances: layouts, the well-known ones, and what they make of cards.

A layout is what NVIDIA's mig-parted calls a configuration: entries, each for some of a node's cards. The well-known
names (`all-disabled`, `all-1g.18gb`, `all-balanced`, …) follow from the catalog's tables, for every model with MIG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from simgpu import errors
from simgpu.catalog import models, placing
from simgpu.vocabulary import MIG_RESOURCE_PREFIX

ALL_DISABLED, ALL_ENABLED, ALL_BALANCED = "all-disabled", "all-enabled", "all-balanced"
_ALL = "all-"
_BALANCED = {7: (1, 1, 2, 3), 4: (1, 1, 2)}  # slices of compute of the instances, by those of a card


class CardLayout(msgspec.Struct, frozen=True):
    """How a card is divided: whether MIG is enabled, its instances in the order of slices, and each one's first."""

    enabled: bool = False
    instances: tuple[models.MigProfile, ...] = ()
    starts: tuple[int, ...] = ()


WHOLE = CardLayout()


class LayoutEntry(msgspec.Struct, frozen=True):
    """What a layout makes of some cards: of all, or of those with these indices or PCI ids (`0xDDDDVVVV`).

    Instances are by the name of their profile, with the first memory slice where it is chosen. The `field` is that of
    the entry, or if it is `plain`, of the instances alone.
    """

    enabled: bool
    instances: tuple[tuple[str, int | None], ...] = ()
    devices: tuple[int, ...] | None = None
    pci_ids: tuple[str, ...] = ()
    field: str = ""
    plain: bool = False

    def concerns(self, index: int, model: models.Model) -> bool:
        """Return whether it is for a card."""
        listed = self.devices is None or index in self.devices
        return listed and (not self.pci_ids or model.pci.device.lower() in self.pci_ids)


Layout = tuple[LayoutEntry, ...]


def resource_name(profile: str) -> str:
    """Return the extended resource of instances of a profile: names have no `+`."""
    return MIG_RESOURCE_PREFIX + plain_name(profile)


def plain_name(profile: str) -> str:
    """Return a profile's name as labels and resources have it: `1g.18gb.me` for `1g.18gb+me`."""
    return profile.replace("+", ".")


def well_known(model: models.Model) -> dict[str, CardLayout]:
    """Return the layouts of a card that have a well-known name, by that name."""
    found = {ALL_DISABLED: WHOLE}
    if model.mig:
        found[ALL_ENABLED] = CardLayout(enabled=True)
    for profile in model.mig:
        name = _ALL + plain_name(profile.name)
        found[name] = placed([(profile.name, None)] * profile.count, model, field=name)
    if balanced := _balanced(model):
        found[ALL_BALANCED] = placed([(item.name, None) for item in balanced], model, field=ALL_BALANCED)
    return found


def divide(layout: Layout, cards: Sequence[models.Model], *, field: str) -> tuple[CardLayout | None, ...]:
    """Return what a layout makes of each card of a node; None for cards that it leaves as they are.

    Raises `InputError` if a card cannot be divided like this, or if the layout concerns none of the cards.
    """
    found: list[CardLayout | None] = [None] * len(cards)
    for number, entry in enumerate(layout):
        where = entry.field or f"{field}[{number}]"
        for index in entry.devices or ():
            if index >= len(cards):
                raise errors.InputError(f"{where}.devices", f"no card {index}: the node has {len(cards)}")
        made: dict[str, CardLayout] = {}
        for index, model in enumerate(cards):
            if entry.concerns(index, model):
                if model.key not in made:
                    made[model.key] = _divided(entry, index, model, where)
                found[index] = made[model.key]
    if cards and all(item is None for item in found):
        raise errors.InputError(field, f"concerns none of the node's cards: {_models(cards)}")
    return tuple(found)


def divide_by_name(
    name: str, configs: Mapping[str, Layout], cards: Sequence[models.Model], *, field: str
) -> tuple[CardLayout | None, ...]:
    """Return what the layout of a name makes of each card: of the configured ones, else of the well-known ones.

    A well-known name leaves cards as they are whose model has no such layout. Raises `InputError` if no card has it.
    """
    if name in configs:
        return divide(configs[name], cards, field=f"{field}: {name}")
    known = {key: well_known(model) for key, model in {model.key: model for model in cards}.items()}
    found = tuple(known[model.key].get(name) for model in cards)
    if cards and all(item is None for item in found):
        names = dict.fromkeys([*configs, *(item for layouts in known.values() for item in layouts)])
        raise errors.InputError(
            field, f"{errors.shown(name)}: no such layout for {_models(cards)}; there are: {', '.join(names)}"
        )
    return found


def placed(wanted: Sequence[tuple[str, int | None]], model: models.Model, *, field: str) -> CardLayout:
    """Return a card with these instances, largest first, as they fit best; raises `InputError` if they do not fit.

    Instances whose first slice is chosen are placed there.
    """
    profiles = {profile.name: profile for profile in model.mig}
    for name, _ in wanted:
        if name not in profiles:
            known = ", ".join(profiles) or "none: it cannot be divided"
            raise errors.InputError(field, f"{model.product} has no profile {errors.shown(name)}; it has: {known}")
    names = [name for name, _ in wanted]
    for name in dict.fromkeys(names):
        if names.count(name) > profiles[name].count:
            raise errors.InputError(field, f"{model.product} has at most {profiles[name].count} of {name}")
    if any(start is not None for _, start in wanted):
        chosen = [(profiles[name], start) for name, start in wanted]
        return _chosen(chosen, model, field=field)
    ordered = placing.largest_first((profiles[name] for name, _ in wanted), model)
    try:
        places = placing.place(ordered, model, where=field)
    except errors.InputError as error:
        raise errors.InputError(
            field, f"{_counted(ordered)} does not fit on {model.product}: {error.problem}"
        ) from None
    return _at(ordered, [place.start for place in places])


def _chosen(wanted: Sequence[tuple[models.MigProfile, int | None]], model: models.Model, *, field: str) -> CardLayout:
    taken, starts = set[int](), list[int]()
    for profile, start in wanted:
        allowed = placing.starts(profile, model)
        if start is None or start not in allowed:
            places = ", ".join(map(str, allowed))
            raise errors.InputError(field, f"{profile.name} cannot start at slice {start}; it can at: {places}")
        slices = range(start, start + placing.memory_slices(profile, model))
        if not taken.isdisjoint(slices):
            raise errors.InputError(field, f"{profile.name} at slice {start} overlaps with another instance")
        taken.update(slices)
        starts.append(start)
    return _at([profile for profile, _ in wanted], starts)


def _at(profiles: Sequence[models.MigProfile], starts: Sequence[int]) -> CardLayout:
    """Return a layout whose instances are in the order of their slices, so that equal ones compare so."""
    ordered = sorted(zip(starts, profiles, strict=True), key=lambda pair: pair[0])
    return CardLayout(
        enabled=True, instances=tuple(profile for _, profile in ordered), starts=tuple(start for start, _ in ordered)
    )


def _divided(entry: LayoutEntry, index: int, model: models.Model, where: str) -> CardLayout:
    if not entry.enabled:
        return WHOLE
    if not model.mig:
        raise errors.InputError(where, f"card {index}: {model.product} cannot be divided")
    return placed(entry.instances, model, field=where if entry.plain else f"{where}.mig-devices")


def _balanced(model: models.Model) -> list[models.MigProfile]:
    """Return instances of three sizes: of each the profile with the least memory, without media extensions."""
    smallest: dict[int, models.MigProfile] = {}
    for profile in model.mig:
        slices = placing.compute_slices(profile)
        least = smallest.get(slices)
        plain = profile.name.endswith("gb")
        if plain and (least is None or placing.memory_slices(profile, model) < placing.memory_slices(least, model)):
            smallest[slices] = profile
    wanted = _BALANCED.get(max(smallest, default=0), ())
    return [smallest[slices] for slices in wanted] if all(slices in smallest for slices in wanted) else []


def _counted(instances: Sequence[models.MigProfile]) -> str:
    names = [item.name for item in instances]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _models(cards: Sequence[models.Model]) -> str:
    return ", ".join(dict.fromkeys(model.product for model in cards))
