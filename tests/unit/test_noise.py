"""Random numbers of rows: their distributions, and that no division of the rows changes them."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.sim import noise


def test_bell_shaped_numbers_have_the_moments_of_a_normal_distribution() -> None:
    keys = np.arange(1000, 1010, dtype=np.uint32)
    drawn = np.concatenate([noise.bell(0, 20_000, key) for key in keys]).astype(float) / noise.DEVIATION
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert drawn.std() == pytest.approx(1, rel=0.01)
    assert (drawn**3).mean() == pytest.approx(0, abs=0.02)
    assert (drawn**4).mean() == pytest.approx(2.7, abs=0.05)  # a normal distribution has 3


def test_numbers_of_a_row_and_of_its_neighbours_are_unrelated_from_key_to_key() -> None:
    first, second = (noise.uniform(np.arange(100_000, dtype=np.uint32), np.uint32(key)) for key in (1, 2))
    for one, other in ((first, second), (first[1:], first[:-1]), (first[1:], second[:-1])):
        assert np.corrcoef(one, other)[0, 1] == pytest.approx(0, abs=0.02)


def test_uniform_numbers_are_spread_evenly_from_0_to_1() -> None:
    drawn = noise.uniform(np.arange(100_000, dtype=np.uint32), np.uint32(7))
    counts, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert counts.sum() == 100_000
    assert counts == pytest.approx(10_000, rel=0.05)


def test_rows_have_the_same_numbers_however_they_are_divided() -> None:
    key = np.uint32(3)
    parts = [noise.bell(start, start + 100, key) for start in range(0, 1000, 100)]
    assert np.concatenate(parts).tobytes() == noise.bell(0, 1000, key).tobytes()
