"""What is looked at: the view, how its lines are sorted and filtered, and where the cursor is. Keys change it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simgpu.dashboard.answers import PodSummary
from simgpu.top.fleet_state import FleetState
from simgpu.top.picture import FleetPicture

VIEWS = ("nodes", "gpus", "pods")
SORTS = {
    "nodes": ("utilization", "power", "memory", "temperature", "faults", "gpus", "name"),
    "gpus": ("utilization", "power", "memory", "temperature", "faults", "name"),
    "pods": ("phase", "utilization", "memory", "gpus", "age", "name"),
}

Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class ChosenNode:
    """A node is looked at."""

    name: str


@dataclass(frozen=True)
class ChosenGpu:
    """A GPU is looked at."""

    node: str
    index: int


Detail = ChosenNode | ChosenGpu


@dataclass
class Choice:
    """The state of the keys."""

    view: str = "nodes"
    sort: dict[str, str] = field(default_factory=lambda: {view: names[0] for view, names in SORTS.items()})
    backwards: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(VIEWS, False))
    filters: dict[str, str] = field(default_factory=lambda: dict.fromkeys(VIEWS, ""))
    cursors: dict[object, int] = field(default_factory=dict)
    tops: dict[object, int] = field(default_factory=dict)
    details: list[Detail] = field(default_factory=list)
    typing: bool = False
    help: bool = False
    paused: bool = False
    still: bool = False  # nobody presses keys: no cursor, and no help

    @property
    def detail(self) -> Detail | None:
        """What is looked at in detail, if anything is."""
        return self.details[-1] if self.details else None

    @property
    def place(self) -> object:
        """What the cursor moves in."""
        return self.detail or self.view

    def next_sort(self) -> None:
        """Sort by the next column."""
        names = SORTS[self.view]
        self.sort[self.view] = names[(names.index(self.sort[self.view]) + 1) % len(names)]
        self.backwards[self.view] = False

    def look_at(self, view: str) -> None:
        """Change the view."""
        self.view = view
        self.details.clear()

    def back(self) -> None:
        """Leave the help or what is looked at in detail; at last, end the filter."""
        if self.help:
            self.help = False
        elif self.details:
            self.details.pop()
        else:
            self.filters[self.view] = ""

    def switch(self, key: str) -> None:
        """Do what a letter stands for."""
        if key == "question_mark":
            self.help = not self.help
        elif self.detail is None and key == "slash":
            self.typing = True
        elif self.detail is None and key == "s":
            self.next_sort()
        elif self.detail is None and key == "r":
            self.backwards[self.view] = not self.backwards[self.view]

    def move(self, lines: int) -> None:
        """Move the cursor; `window` keeps it within the list."""
        self.cursors[self.place] = max(0, self.cursors.get(self.place, 0) + lines)

    def window(self, count: int, height: int) -> tuple[int, int]:
        """Return the first line that is shown and the cursor's, so that the cursor is visible."""
        cursor = max(0, min(count - 1, self.cursors.get(self.place, 0)))
        top = max(0, min(self.tops.get(self.place, 0), count - height))
        top = min(max(top, cursor - height + 1), cursor)
        self.cursors[self.place], self.tops[self.place] = cursor, top
        return top, cursor


def nodes(state: FleetState, choice: Choice) -> Places:
    """Return the numbers of the nodes that are shown, in order."""
    order = state.order
    text, by = choice.filters["nodes"].lower(), choice.sort["nodes"]
    found = np.arange(len(order.names))
    if text:
        found = found[[text in name for name in order.searched]]
    values: npt.NDArray[np.float64]
    if by == "name":
        return _turned(found, choice.backwards["nodes"])
    if by == "gpus":
        values = order.counts.astype(np.float64)
    elif by == "faults":
        values = order.highest(state.faults)
    elif by == "temperature":
        values = order.highest(state.columns[by])
    else:
        values = order.means(state.columns[by])
    return _sorted(found, values[found], backwards=choice.backwards["nodes"])


def gpus(state: FleetState, choice: Choice) -> Places:
    """Return the places of the GPUs that are shown, in order."""
    order = state.order
    text, by = choice.filters["gpus"].lower(), choice.sort["gpus"]
    found = np.arange(order.gpus)
    if text:
        found = found[np.array([text in name for name in order.searched], dtype=bool)[order.node_of]]
    if by == "name":
        return _turned(found, choice.backwards["gpus"])
    values = state.faults if by == "faults" else state.columns[by]
    return _sorted(found, values[found].astype(np.float64), backwards=choice.backwards["gpus"])


def pods(found: list[PodSummary], choice: Choice) -> list[PodSummary]:
    """Return the pods that are shown, in order."""
    by, text = choice.sort["pods"], choice.filters["pods"].lower()
    chosen = [pod for pod in found if not text or text in " ".join(_searched(pod)).lower()]
    chosen.sort(key=lambda pod: (pod.namespace, pod.name))
    keys = {
        "utilization": lambda pod: -pod.utilization, "memory": lambda pod: -pod.memory_used_mib,
        "gpus": lambda pod: -pod.gpus, "age": lambda pod: pod.since,
        "phase": lambda pod: (pod.phase, -pod.utilization),
        "name": lambda pod: (pod.namespace, pod.name),
    }  # fmt: skip
    chosen.sort(key=keys[by], reverse=choice.backwards["pods"])
    return chosen


def _searched(pod: PodSummary) -> tuple[str, ...]:
    return (f"{pod.namespace}/{pod.name}", pod.node, *pod.gpu_ids)


def chosen(picture: FleetPicture, choice: Choice) -> Detail | None:
    """Return what the cursor is on; the node of a pod."""
    cursor = choice.cursors.get(choice.place, 0)
    if isinstance(choice.detail, ChosenNode):
        gpus_shown = picture.node.gpus if picture.node is not None else []
        return ChosenGpu(choice.detail.name, gpus_shown[cursor].index) if cursor < len(gpus_shown) else None
    if choice.detail is not None:
        return None
    if choice.view == "pods":
        found = pods(picture.pods, choice)
        return ChosenNode(found[cursor].node) if cursor < len(found) and found[cursor].node else None
    order, places = picture.state.order, (nodes if choice.view == "nodes" else gpus)(picture.state, choice)
    if cursor >= len(places):
        return None
    place = int(places[cursor])
    return ChosenNode(order.names[place]) if choice.view == "nodes" else ChosenGpu(*order.gpu(place))


def _turned(found: Places, backwards: bool) -> Places:  # noqa: FBT001 - what it does
    return found[::-1] if backwards else found


def _sorted(found: Places, values: npt.NDArray[np.float64], *, backwards: bool) -> Places:
    """Sort by values, the highest first; equal ones stay in order."""
    return found[np.argsort(values if backwards else -values, kind="stable")]
