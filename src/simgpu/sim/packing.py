"""Converts arrays and random generators to plain data for snapshots, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def pack(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return an array as plain data."""
    return {"shape": list(array.shape), "data": np.ascontiguousarray(array).tobytes()}


def unpack(kept: dict[str, Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return the array of packed data."""
    size = math.prod(kept["shape"]) * np.dtype(dtype).itemsize
    if len(kept["data"]) != size:
        raise ValueError(f"a snapshot's array holds {len(kept['data'])} bytes instead of {size}")
    return np.frombuffer(kept["data"], dtype=dtype).reshape(kept["shape"]).copy()


def random_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as plain data."""
    state: dict[str, Any] = dict(rng.bit_generator.state)
    return {**state, "state": {"state": [int(word) for word in state["state"]["state"]]}}


def random_state_from(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the state to set on a generator."""
    return {**kept, "state": {"state": np.array(kept["state"]["state"], dtype=np.uint64)}}
