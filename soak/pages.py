"""What the soak reads from pages of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_A_RATE = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"  # in MB/s, though the real exporter calls it a counter
_COUNTER = re.compile(r"^# TYPE (\S+) counter$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="(.*?)"')
_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"


Place = tuple[str, int]  # a node, and the index of a GPU on it


class Holder(NamedTuple):
    """The container that has a GPU."""

    pod: str
    container: str


class Page(NamedTuple):
    """A page of GPUs: counters by family and GPU, holders by place, the place of each GPU, and the number of series.

    Further the number of GPUs that are in use.
    """

    counters: dict[tuple[str, str], float]
    holders: dict[Place, Holder]
    gpus: dict[str, Place]
    series: int
    busy: int


def read(text: str, *, node: str = "") -> Page:
    """Read a page of GPU metrics: that of an agent, on its node, or one that names the node of each GPU itself."""
    prefix = "" if node else "exported_"  # of the holder's labels: those without are the exporter's own
    names = set(_COUNTER.findall(text)) - {_A_RATE}
    counters: dict[tuple[str, str], float] = {}
    holders: dict[Place, Holder] = {}
    gpus: dict[str, Place] = {}
    series = busy = 0
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        series += 1
        name = line.partition("{")[0]
        if name in names:
            uuid = line.partition('UUID="')[2].partition('"')[0]
            counters[name, uuid] = float(line.rpartition(" ")[2])
        elif name == _UTILISATION:
            labels: dict[str, str] = dict(_LABEL.findall(line))
            busy += float(line.rpartition(" ")[2]) > 0
            place = gpus[labels["UUID"]] = node or labels["Hostname"], int(labels["gpu"])
            if pod := labels.get(f"{prefix}pod"):
                holders[place] = Holder(pod, labels.get(f"{prefix}container", ""))
    return Page(counters, holders, gpus, series, busy)


def together(found: Iterable[Page]) -> Page:
    """Return several pages as one."""
    counters: dict[tuple[str, str], float] = {}
    holders: dict[Place, Holder] = {}
    gpus: dict[str, Place] = {}
    series = busy = 0
    for page in found:
        counters |= page.counters
        holders |= page.holders
        gpus |= page.gpus
        series, busy = series + page.series, busy + page.busy
    return Page(counters, holders, gpus, series, busy)


def values(text: str) -> dict[str, float]:
    """Return all series by name, with their labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name}
