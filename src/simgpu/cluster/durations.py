"""How long builds and starts took on this machine the last time, for estimates."""

from __future__ import annotations

import contextlib
import os

import msgspec

from simgpu.cluster import paths

_MAX_BYTES = 64 * 1024
_MAX_KINDS = 100

_DECODER = msgspec.json.Decoder(dict[str, float])


def recall(kind: str) -> float | None:
    """Return how many seconds work of this kind took the last time, or None."""
    return _load().get(kind)


def remember(kind: str, seconds: float) -> None:
    """Record a duration in seconds. Write errors are ignored: it only serves an estimate."""
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
            return _DECODER.decode(file.read(_MAX_BYTES))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
