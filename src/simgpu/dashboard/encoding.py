"""Values as bytes: any as JSON, and columns of cells for the event stream, whole ones and only what changed."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.dashboard.frames import Cells

_SKIP = 255
_encoder = msgspec.json.Encoder()


def json_bytes(value: object) -> bytes:
    """Return a value as JSON. Names come from users, and may hold half a surrogate pair, which is replaced."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def packed(values: npt.NDArray[Any]) -> str:
    """Return the bytes of a column, little-endian, as base64."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()).decode()


def changes(before: Cells, after: Cells) -> tuple[str, str] | None:
    """Return the places and the values of cells that are different; None if none is."""
    places = np.flatnonzero(before != after)
    return (packed(gaps(places)), packed(after[places])) if len(places) else None


def gaps(places: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
    """Return growing places as bytes: how many cells to skip before each; 255 skips so many and is no cell yet."""
    skipped = np.diff(places, prepend=-1) - 1
    longs, rest = np.divmod(skipped, _SKIP)
    found = np.full(len(places) + int(longs.sum()), _SKIP, np.uint8)
    found[np.cumsum(longs + 1) - 1] = rest
    return found
