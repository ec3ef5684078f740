"""MIG instances lie where the driver puts them."""

from __future__ import annotations

import pytest

from simgpu import errors
from simgpu.catalog import models, placing

H200 = models.load().models["h200"]
PROFILES = {profile.name: profile for profile in H200.mig}


def placed(*names: str) -> list[tuple[int, int, int]]:
    found = placing.place([PROFILES[name] for name in names], H200, where="mig")
    return [(item.start, item.size, item.number) for item in found]


def test_as_a_real_card_placed_them() -> None:
    assert placed("3g.71gb", "1g.18gb", "1g.18gb") == [(4, 4, 2), (0, 1, 7), (1, 1, 8)]


def test_those_of_two_slices_start_from_the_end() -> None:
    assert placed("1g.35gb", "2g.35gb", "1g.18gb+me") == [(6, 2, 6), (4, 2, 5), (0, 1, 7)]
    assert placed("4g.71gb", "1g.35gb") == [(0, 4, 1), (6, 2, 6)]


def test_seven_small_ones_fill_a_card() -> None:
    assert [start for start, _, _ in placed(*["1g.18gb"] * 7)] == [0, 1, 2, 3, 4, 5, 6]


def test_two_halves_are_numbered_from_the_end() -> None:
    assert placed("3g.71gb", "3g.71gb") == [(4, 4, 2), (0, 4, 1)]


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("1g.18gb", [0, 1, 2, 3, 4, 5, 6]), ("1g.35gb", [0, 2, 4, 6]), ("2g.35gb", [0, 2, 4]), ("3g.71gb", [0, 4]),
        ("4g.71gb", [0]), ("7g.141gb", [0]),
    ],
)  # fmt: skip
def test_an_instance_starts_at_a_multiple_of_its_size(name: str, starts: list[int]) -> None:
    assert placing.starts(PROFILES[name], H200) == starts


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(errors.InputError, match=r"mig\[1\]: no room for 1g.18gb beside 7g.141gb"):
        placed("7g.141gb", "1g.18gb")
