"""Random numbers of rows: each is a function of its row and of a key that is drawn once per step.

So they do not depend on how rows are divided, and cost a fraction of a generator's. `native/engine` computes the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

DEVIATION: Final = 147.80054127  # of the sum of four bytes

_MEAN = np.float32(510)
_UNIT = np.float32(2.0**-24)


def draw_key(rng: np.random.Generator) -> np.uint32:
    """Draw the key of a step."""
    return np.uint32(rng.integers(2**32, dtype=np.uint32))


def hashed(rows: Words, key: np.uint32) -> Words:
    """Return a random word per row. `rows` are overwritten."""
    rows *= np.uint32(0x9E3779B1)
    rows += key
    rows ^= rows >> np.uint32(16)
    rows *= np.uint32(0x85EBCA6B)
    rows ^= rows >> np.uint32(13)
    rows *= np.uint32(0xC2B2AE35)
    rows ^= rows >> np.uint32(16)
    return rows


def bell(start: int, stop: int, key: np.uint32) -> npt.NDArray[np.float32]:
    """Return nearly normal numbers of rows, with a mean of 0 and a standard deviation of `DEVIATION`."""
    words = hashed(np.arange(start, stop, dtype=np.uint32), key)
    pairs = words & np.uint32(0x00FF00FF)
    words >>= np.uint32(8)
    words &= np.uint32(0x00FF00FF)
    pairs += words
    sums = (pairs & np.uint32(0xFFFF)) + (pairs >> np.uint32(16))
    return np.asarray(sums.astype(np.float32) - _MEAN)


def uniform(rows: Words, key: np.uint32) -> npt.NDArray[np.float32]:
    """Return numbers from 0 to 1 of rows, which are overwritten."""
    words = hashed(rows, key)
    words >>= np.uint32(8)
    return np.asarray(words.astype(np.float32) * _UNIT)
