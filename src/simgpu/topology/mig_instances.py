"""Cards with MIG instances besides those of their layout: claims hold these, or they were created by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from simgpu.catalog import models, placing
from simgpu.topology.devices import Device


def with_instances(device: Device, wanted: Sequence[tuple[str, int]], bare: Sequence[tuple[str, int]] = ()) -> Device:
    """Return a GPU with MIG instances besides its own, by profile and first slice; `bare` ones are no MIG devices.

    Those that it cannot have, or that overlap with earlier ones, are left out.
    """
    profiles = {profile.name: profile for profile in device.model.mig}
    taken = {at for place in device.placements() for at in place.slices}
    chosen, without = list[tuple[models.MigProfile, int]](), list[int]()
    for name, start in (*wanted, *bare):
        profile = profiles.get(name)
        if profile is None or start not in placing.starts(profile, device.model):
            continue
        place = placing.placed(profile, device.model, start)
        if taken.isdisjoint(place.slices):
            taken.update(place.slices)
            chosen.append((profile, start))
            without += [place.number] if (name, start) in bare else []
    if not chosen:
        return device
    return msgspec.structs.replace(
        device,
        instances=(*device.instances, *(item for item, _ in chosen)),
        starts=(*(place.start for place in device.placements()), *(start for _, start in chosen)),
        bare=tuple(without),
    )
