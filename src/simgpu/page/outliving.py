"""Counters of cards on the pages that an earlier writer left.

A page needs no room on a disk that is full, and a kill leaves it as it is: where a state could not be saved, the pages
are newer than it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from simgpu import boot
from simgpu.machines.inventory import DeviceState
from simgpu.machines.saved import Saved
from simgpu.page import layout, mapping, writer
from simgpu.sim import cards

_FIELDS: Final = [field for field in layout.PAGE if field.state in cards.COUNTERS]
_WITH_COUNTERS: Final = 5  # the first minor version of pages that have all of them
_PART: Final = 0.25  # of the unit to which a page rounds: whatever else shows the counter rounds it to no less


def resume(saved: Saved, root: Path, *, monotonic_ns: int, uptime: float) -> Saved:
    """Return a saved state with the counters of the pages in a folder where these are higher.

    It is then the state at the last write of the pages, if that came later. The times are those of now.
    """
    pages = {path.parent.name: page for path in root.glob(f"*/{mapping.FILE}") if (page := _read(path)) is not None}
    before = {name: saved.devices.get(name, DeviceState("", {})) for name in pages}
    counters = {name: _counters(page, before[name].values) for name, page in pages.items()}
    if not any(counters.values()):
        return saved
    devices = {name: replace(state, values=state.values | counters[name]) for name, state in before.items()}
    times = (int(page["written_ns"]) for page in pages.values())
    written = max((time for time in times if time <= monotonic_ns), default=0)
    since = max(0.0, (uptime - saved.uptime) - (monotonic_ns - written) / 1e9) if written else 0.0
    moved = {"clock": saved.clock + since, "uptime": saved.uptime + since, "now": saved.now + since}
    return replace(saved, devices=saved.devices | devices, **moved)


def _counters(page: Any, saved: Mapping[str, float]) -> dict[str, float]:
    """Return the counters of a page that are higher than the saved ones and possible."""
    found = {}
    for field in _FIELDS:
        value = (int(page[field.name]) + (_PART if field.scale != 1.0 else 0.0)) / field.scale
        if saved.get(field.state, 0.0) + 1.0 / field.scale < value <= cards.MAX_COUNTED[field.state]:
            found[field.state] = value
    return found


def _read(path: Path) -> Any:
    """Return a page of this boot that has all counters, if its last write was finished."""
    found = writer.read(path)
    if found is None or found["minor"][0] < _WITH_COUNTERS or found["boot"][0] != boot.current().encode():
        return None
    return found[0]
