"""Texts, bars and curves for a terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from simgpu.top import glyphs


def test_nothing_that_a_terminal_would_act_on_is_left_of_a_name() -> None:
    assert glyphs.clean("a\x1b]0;owned\x07\r\nb\x9b2J\u202e") == "a·]0;owned···b·2J·"


@pytest.mark.parametrize("text", ["", "node", "a-very-long-name-of-a-node", "日本語のノード", "e\u0301"])
@pytest.mark.parametrize("width", [0, 1, 5, 12])
def test_a_text_takes_exactly_its_cells(text: str, width: int) -> None:
    assert cell_len(glyphs.fit(text, width)) == width


def test_a_bar_is_as_long_as_its_share_and_never_longer() -> None:
    assert [glyphs.bar(share, 4, "red").plain for share in (-1, 0, 0.13, 0.5, 1, 9)] == [
        "────", "────", "╸───", "━━──", "━━━━", "━━━━",
    ]  # fmt: skip


def test_a_curve_ends_with_the_newest_value_at_the_right() -> None:
    assert glyphs.curve([0, 0, 100, None, 100], 3, 2, low=0, high=100) == [" ⢸⠈", "⢀⣸ "]
    assert glyphs.curve([], 2, 1, low=0, high=1) == ["  "]


def test_amounts_have_the_unit_that_fits() -> None:
    assert [glyphs.watts(value) for value in (75, 700, 25_600, 3.2e6)] == ["75 W", "700 W", "25.6 kW", "3.20 MW"]
    assert [glyphs.mebibytes(value) for value in (616, 81_920, 5e6)] == ["616 MiB", "80.0 GiB", "4.8 TiB"]
    assert [glyphs.age(value) for value in (-1, 5, 65, 3700, 90_000)] == ["-", "5s", "1m5s", "1h1m", "1d1h"]


def test_what_is_no_time_is_dashes() -> None:
    assert [glyphs.clock(time) for time in (1e300, -1e300, float("inf"))] == ["--:--:--"] * 3


def test_a_number_of_any_size_has_separators() -> None:
    assert [glyphs.number(value) for value in (1234.4, 1_234_567)] == ["1,234", "1,234,567"]
    assert glyphs.number(10**400).startswith("10,000,")
