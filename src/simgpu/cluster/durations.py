"""How long things took on this machine the last time, so that a user can be told what to expect."""

from __future__ import annotations

import contextlib
import os

import msgspec

from simgpu.cluster import paths

_LARGEST_FILE = 64 * 1024
_MAX_KINDS = 100

_DECODER = msgspec.json.Decoder(dict[str, float])


def recall(kind: str) -> float | None:
    """How many seconds work of this kind took the last time, if that is known."""
    return _load().get(kind)


def remember(kind: str, seconds: float) -> None:
    """Record a duration. What cannot be written is forgotten: it only serves an estimate."""
    known = {**dict(list(_load().items())[-_MAX_KINDS:]), kind: round(seconds, 1)}
    path = paths.cache() / "durations.json"
    scratch = path.with_name(f".durations-{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(msgspec.json.encode(known))
        scratch.replace(path)


def _load() -> dict[str, float]:
    try:
        with (paths.cache() / "durations.json").open("rb") as file:
            return _DECODER.decode(file.read(_LARGEST_FILE))
    except (OSError, msgspec.MsgspecError):
        return {}
