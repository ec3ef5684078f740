"""Accounting: what each process did on a card while it had it open, kept on the card's page for a while afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simgpu.page import layout


def update(rows: npt.NDArray[Any], clock: float) -> None:
    """Record the processes of pages on which accounting is enabled; `clock` is in seconds since 1970."""
    for place in np.flatnonzero(rows["accounting"]).tolist():
        _update(rows[place], int(clock * 1e6))


def clear(row: Any) -> None:
    """Forget all processes of a card."""
    row["accounts"] = np.zeros((), row["accounts"].dtype)


def _update(row: Any, now_us: int) -> None:
    using = _using(row)
    accounts = row["accounts"]
    known = {int(item["pid"]): item for item in accounts if item["running"]}
    for pid, item in known.items():
        if pid not in using:
            item["running"] = 0
            item["last_us"] = max(now_us, int(item["start_us"]))
            continue
        usage, memory_usage, memory = using.pop(pid)
        passed = max(0, now_us - int(item["last_us"]))
        item["last_us"] = max(now_us, int(item["last_us"]))
        item["busy"] += np.uint64(usage * passed)
        item["memory_busy"] += np.uint64(memory_usage * passed)
        item["memory_max"] = max(int(item["memory_max"]), memory)
    for pid, (_, _, memory) in using.items():  # after the others, as a new record may move theirs
        item = _new(accounts)
        item["pid"], item["running"], item["memory_max"] = pid, 1, memory
        item["start_us"] = item["last_us"] = now_us


def _using(row: Any) -> dict[int, tuple[int, int, int]]:
    """Return usage, memory usage and memory of each process, over the instances of the card."""
    found: dict[int, tuple[int, int, int]] = {}
    for item in row["apps"][: int(row["app_count"])]:
        before = found.get(int(item["pid"]), (0, 0, 0))
        added = (int(item["usage"]), int(item["memory_usage"]), int(item["memory"]))
        found[int(item["pid"])] = (before[0] + added[0], before[1] + added[1], before[2] + added[2])
    return found


def _new(accounts: npt.NDArray[Any]) -> Any:
    """Return a free record, if need be that of the process that ended first, or else began first."""
    free = np.flatnonzero(accounts["pid"] == 0)
    if len(free):
        return accounts[int(free[0])]
    ended = np.flatnonzero(accounts["running"] == 0)
    gone = int(ended[np.argmin(accounts["last_us"][ended])]) if len(ended) else 0
    accounts[gone : layout.ACCOUNTS - 1] = accounts[gone + 1 :].copy()
    accounts[-1] = np.zeros((), accounts.dtype)
    return accounts[-1]
