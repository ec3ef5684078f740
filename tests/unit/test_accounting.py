"""Accounting: what is kept of processes that had a card open."""

from __future__ import annotations

from typing import Any

import numpy as np

from simgpu.page import accounting, apps, layout
from tests.fixtures import pages


def card(**fields: Any) -> Any:
    return pages.recorded(accounting=1, open=1, memory_used=4 << 30, usage=50, memory_usage=20, **fields)


def use(rows: Any, clock: float, *pids: int) -> list[tuple[int, int, int]]:
    """Let processes use the card up to a time, and return pid, whether it runs, and seconds of each record."""
    for row in rows:
        apps.fill(row, [apps.App(pid, 1, 1) for pid in pids])
    accounting.update(rows, clock)
    found = [item for item in rows[0]["accounts"] if item["pid"]]
    return [
        (int(item["pid"]), int(item["running"]), int(item["last_us"] - item["start_us"]) // 10**6) for item in found
    ]


def test_a_process_is_recorded_from_when_it_opens_the_card_until_it_ends() -> None:
    rows = card()
    assert use(rows, 10.0, 7) == [(7, 1, 0)]
    assert use(rows, 14.0, 7, 8) == [(7, 1, 4), (8, 1, 0)]
    assert use(rows, 16.0, 8) == [(7, 0, 6), (8, 1, 2)]
    assert use(rows, 99.0) == [(7, 0, 6), (8, 0, 85)]
    assert use(rows, 100.0, 7) == [(7, 0, 6), (8, 0, 85), (7, 1, 0)]


def test_its_utilisation_is_the_mean_of_its_time_and_its_memory_the_most_that_it_had() -> None:
    rows = card()
    use(rows, 10.0, 7)
    use(rows, 12.0, 7)  # alone: 50 % and all of the memory
    use(rows, 14.0, 7, 8)  # half of both
    item = rows[0]["accounts"][0]
    time = int(item["last_us"] - item["start_us"])
    assert int(item["busy"]) / time == 37.5
    assert int(item["memory_busy"]) / time == 15
    assert int(item["memory_max"]) == 4 << 30


def test_nothing_is_recorded_while_it_is_off_and_clearing_forgets_all() -> None:
    rows = card()
    rows["accounting"] = 0
    assert use(rows, 10.0, 7) == []
    rows["accounting"] = 1
    assert use(rows, 11.0, 7) == [(7, 1, 0)]
    accounting.clear(rows[0])
    assert use(rows, 12.0) == []


def test_of_too_many_those_that_ended_first_are_forgotten() -> None:
    rows = card()
    for pid in range(1, layout.ACCOUNTS + 1):
        use(rows, float(pid), pid)
    use(rows, 50.0, 999)
    assert [item["pid"] for item in rows[0]["accounts"]] == [*range(2, layout.ACCOUNTS + 1), 999]


def test_a_running_process_keeps_its_record_when_that_of_another_is_forgotten() -> None:
    rows = card()
    for pid in range(1001, 1000 + layout.ACCOUNTS):
        use(rows, float(pid), pid)
    use(rows, 2000.0, 500)
    used = {500: 4 << 30}
    for clock, memory in ((2001.0, {7: 70, 500: 5 << 30}), (2002.0, {6: 60, 7: 71, 500: 6 << 30})):
        rows[0]["app_count"] = len(memory)
        for item, (pid, size) in zip(rows[0]["apps"], memory.items(), strict=False):
            item["pid"], item["memory"] = pid, size
        accounting.update(rows, clock)
        used |= memory
        found = {int(item["pid"]): int(item["memory_max"]) for item in rows[0]["accounts"] if item["running"]}
        assert found == used


def test_a_clock_that_goes_back_makes_no_negative_times() -> None:
    rows = card()
    use(rows, 100.0, 7)
    use(rows, 50.0, 7)
    use(rows, 40.0)
    item = rows[0]["accounts"][0]
    assert int(item["last_us"]) == int(item["start_us"])
    assert np.all(item["busy"] == 0)
