"""The pages that a container with GPUs of a machine would have: rows without files, for a reader elsewhere.

The container's process is listed with its name, as it runs nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simgpu.machines import quantities
from simgpu.machines.machine import Machine
from simgpu.page import layout, showing
from simgpu.page.rows import CardRows

PID: Final = 1  # of a container's first process

_NAME_BYTES: Final = layout.DTYPE["app_names"].base["text"].itemsize - 1


class Holding(msgspec.Struct, frozen=True):
    """A GPU of a container, by its place in the machine, or one of its MIG instances, by number.

    `usage` in percent and `memory_mib` are what the container has of it.
    """

    place: int
    part: int | None
    usage: float
    memory_mib: float


class PagePortrait(msgspec.Struct, frozen=True):
    """A page by the id of its GPU or MIG instance."""

    id: str
    row: Any


def pages(machine: Machine, held: Sequence[Holding], *, process: str) -> list[PagePortrait]:
    """Return the pages of a container whose process has this name; instances that are gone are left out.

    `InputError` if there can be none of its GPUs, as for those of other vendors.
    """
    places = list(dict.fromkeys(item.place for item in held))
    cards = CardRows([machine.devices[place] for place in places], among=machine.devices)
    states = showing.instance_states(machine)
    instances = {at: states[place] for at, place in enumerate(places) if place in states}
    cards.fill(lambda name: quantities.of_devices(machine, name)[places], instances)
    cards.values["processes"] = layout.NAMED_PROCESSES
    cards.values["stale_ns"] = ~machine.lost[places]  # how long others are valid is the reader's business
    found = (_page(machine, cards, places.index(item.place), item, process) for item in held)
    return [page for page in found if page is not None]


def _page(machine: Machine, cards: CardRows, at: int, item: Holding, process: str) -> PagePortrait | None:
    if item.part is None:
        row = cards.values[at : at + 1].copy()[0]
        _list_process(row, item, instance=-1, process=process)
        return PagePortrait(machine.devices[item.place].uuid, row)
    numbers = {int(cards.values[at]["instances"][there[0]]["gpu_instance"]): there[0] for there in cards.places[at]}
    if item.part not in numbers:
        return None
    row = cards.alone(at, numbers[item.part])
    _list_process(row, item, instance=0, process=process)
    return PagePortrait(cards.part_name(at, numbers[item.part]), row)


def _list_process(row: Any, item: Holding, *, instance: int, process: str) -> None:
    """List the container's process, once it has the GPU open."""
    used = row if instance < 0 else row["instances"][instance]
    memory = min(int(item.memory_mib * 2**20), int(used["memory_used"]))
    if not used["open"] or memory <= 0:
        return
    whole = int(used["usage"])
    usage = min(round(item.usage), whole)
    bandwidth = round(usage / whole * int(row["memory_usage"])) if instance < 0 and whole else 0
    row["apps"][0] = (PID, instance, usage, bandwidth, memory)
    row["app_names"][0]["text"] = process.encode()[:_NAME_BYTES]
    row["app_count"] = 1
