"""Regular expressions: none of ours can be made to take longer than the text that it is given."""

from __future__ import annotations

import pytest

from tests.fixtures import patterns

FOUND = list(patterns.every())
HARMLESS = {
    r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$": "its text is cut to 63 characters before",
    r"\bv?(\d+)\.(\d+)\.(\d+)": "its text is what a program of the user's prints as its version",
}


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"\s*(\d{1,9})\s*%?\s*(?:-\s*(\d{1,9})\s*%?\s*)?", "fullmatch"),
        (r"\s*\s*", "fullmatch"), (r"(a+)+b", "fullmatch"), (r"(a|ab|b)*c", "fullmatch"),
        (r"(?:x*y?)*z", "fullmatch"), (r"a*[a-z]*0", "fullmatch"), (r"a{0,500}a{0,500}b", "fullmatch"),
        (r"a+b", "search"), (r" +$", "search"), (r"a*a*b", "match"),
    ],
)  # fmt: skip
def test_patterns_that_backtrack_are_found(pattern: str, use: str) -> None:
    assert patterns.backtracks(pattern, use)


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"a+b", "fullmatch"), (r"\s*-\s*", "fullmatch"), (r"(?:[0-9]+(?:ms|h|m|s))+", "fullmatch"),
        (r"[^a-z]+", "search"), (r"a*b*", "fullmatch"), (r"(ab)*a", "fullmatch"), (r"/pod[a-z]+/", "search"),
        (r"a+b", "match"),
    ],
)  # fmt: skip
def test_patterns_that_do_not_are_not(pattern: str, use: str) -> None:
    assert not patterns.backtracks(pattern, use)


def test_all_patterns_are_found() -> None:
    assert len(FOUND) > 25
    assert {"simgpu.pods.requests", "simgpu.node.peers", "simgpu.topology.devices"} <= {
        item.place.partition(":")[0] for item in FOUND
    }


@pytest.mark.parametrize("item", FOUND, ids=lambda item: item.place)
def test_no_pattern_backtracks(item: patterns.Found) -> None:
    assert patterns.backtracks(item.pattern, item.use) == (item.pattern in HARMLESS)
