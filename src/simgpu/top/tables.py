"""Lists as tables that fit the screen: nodes, GPUs and pods. Lines are made only if they show."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from simgpu.dashboard.answers import PodSummary
from simgpu.top import choosing, glyphs
from simgpu.top.choosing import Choice
from simgpu.top.fleet_state import FleetState
from simgpu.top.glyphs import BAD, SOFT, WARN
from simgpu.top.picture import FleetPicture

_CELLS = 16  # GPUs of a node that are drawn


class TableColumn(NamedTuple):
    """A column: its width, and from which width of the screen on it is shown; `wide` ones share what is left."""

    title: str
    width: int
    above: int = 0
    wide: bool = False


def header(columns: Sequence[tuple[TableColumn, int]], sorted_by: str, *, backwards: bool) -> Text:
    """Return the line of titles; the column that is sorted by is marked."""
    found = Text(" ")
    for column, width in columns:
        mine = sorted_by and column.title.lower().startswith(sorted_by[:4].lower())
        title = f"{column.title} {'▲' if backwards else '▼'}" if mine else column.title
        found.append(glyphs.fit(title.upper(), width) + " ", "bold underline" if mine else "bold " + SOFT)
    return found


def widths(columns: Sequence[TableColumn], width: int) -> list[tuple[TableColumn, int]]:
    """Return the columns that fit, with their widths: those that are wide share what is left."""
    shown = [column for column in columns if column.above <= width]
    left = width - 1 - sum(column.width + 1 for column in shown)
    wide = [column for column in shown if column.wide]
    each = min(24, left // len(wide)) if wide and left > 0 else 0
    return [(column, column.width + (each if column.wide else 0)) for column in shown]


def listed(
    columns: Sequence[tuple[TableColumn, int]],
    head: Text,
    line: Callable[[int, dict[str, int]], Text],
    choice: Choice,
    *,
    count: int,
    width: int,
    height: int,
) -> list[Text]:
    """Return the head and the lines around the cursor; `line` makes one by its number. A filter may leave none."""
    sizes = {column.title: room for column, room in columns}
    first, cursor = choice.window(count, height - 1)
    found = [head]
    for place in range(first, min(count, first + height - 1)):
        made = Text(" ").append_text(line(place, sizes))
        made.truncate(width)
        if place == cursor and not choice.still:
            made = glyphs.styled(made.plain + " " * (width - made.cell_len), "reverse")  # colours would be a patchwork
        found.append(made)
    if not count and (text := choice.filters[choice.view]):
        found.append(Text(f" nothing matches {text!r}", SOFT))
    return found


def gauge(share: float, text: str, width: int, scale: glyphs.ColourScale) -> Text:
    """Return a bar with its value, in so many cells."""
    long = max(0, width - len(text) - 1)
    return glyphs.bar(share, long, scale.colour(share * 100)).append(f" {text}")


def percent(value: float | None, width: int, scale: glyphs.ColourScale) -> Text:
    """Return a bar of a percentage; blanks while it is not known."""
    return Text(" " * width) if value is None else gauge(value / 100, f"{value:3.0f} %", width, scale)


NODES = (
    TableColumn("Node", 22), TableColumn("Pool", 10, 90), TableColumn("GPUs", _CELLS, 56),
    TableColumn("Utilisation", 13, wide=True), TableColumn("Power", 12, 78, wide=True),
    TableColumn("Memory", 12, 100, wide=True), TableColumn("Temp", 8, 64),
)  # fmt: skip


def _nodes(picture: FleetPicture, choice: Choice, width: int, height: int) -> list[Text]:
    state, order = picture.state, picture.state.order
    shown = choosing.nodes(state, choice)
    means = {name: order.means(state.columns[name]) for name in ("utilization", "power", "memory")}
    hottest = order.highest(state.columns["temperature"])

    def line(place: int, room: dict[str, int]) -> Text:
        node = int(shown[place])
        parts = [Text(glyphs.fit(order.names[node], room["Node"]))]
        if "Pool" in room:
            parts.append(Text(glyphs.fit(order.pools[node], room["Pool"]), SOFT))
        if "GPUs" in room:
            parts.append(_cells(state, node))
        for title, name, scale in (
            ("Utilisation", "utilization", glyphs.BUSY), ("Power", "power", glyphs.POWER),
            ("Memory", "memory", glyphs.MEMORY),
        ):  # fmt: skip
            if title in room:
                known = float(means[name][node]) if name in state.known else None
                parts.append(percent(known, room[title], scale))
        if "Temp" in room:
            heat = float(hottest[node])
            parts.append(Text(f"{heat:3.0f} °C", glyphs.HEAT.colour(heat)))
        return Text(" ").join(parts)

    columns = widths(NODES, width)
    head = header(columns, title_of(choice.sort["nodes"]), backwards=choice.backwards["nodes"])
    return listed(columns, head, line, choice, count=len(shown), width=width, height=height)


def _cells(state: FleetState, node: int) -> Text:
    first, count = int(state.order.firsts[node]), int(state.order.counts[node])
    found = Text()
    for place in range(first, first + min(count, _CELLS)):
        found.append(*glyphs.cell(float(state.columns["utilization"][place]), int(state.faults[place])))
    if count > _CELLS:
        found.right_crop(1)
        found.append("…", SOFT)
    return found.append(" " * (_CELLS - found.cell_len))


GPUS = (
    TableColumn("GPU", 26), TableColumn("Pool", 10, 90), TableColumn("Utilisation", 13, wide=True),
    TableColumn("Power", 12, 64, wide=True), TableColumn("Memory", 12, 84, wide=True),
    TableColumn("Temp", 8, 50), TableColumn("Health", 10, 100),
)  # fmt: skip
_LOST = 3
_HEALTH = {0: ("", SOFT), 2: ("unhealthy", BAD), _LOST: ("lost", BAD)}


def _gpus(picture: FleetPicture, choice: Choice, width: int, height: int) -> list[Text]:
    state, order = picture.state, picture.state.order
    shown = choosing.gpus(state, choice)

    def line(place: int, room: dict[str, int]) -> Text:
        gpu = int(shown[place])
        node, index = order.gpu(gpu)
        lost = int(state.faults[gpu]) == _LOST
        parts = [Text(glyphs.fit(f"{node} {index}", room["GPU"]))]
        if "Pool" in room:
            parts.append(Text(glyphs.fit(order.pools[int(order.node_of[gpu])], room["Pool"]), SOFT))
        for title, name in (("Utilisation", "utilization"), ("Power", "power"), ("Memory", "memory")):
            if title in room:
                known = float(state.columns[name][gpu]) if name in state.known and not lost else None
                parts.append(percent(known, room[title], glyphs.SCALES[name]))
        if "Temp" in room:
            heat = float(state.columns["temperature"][gpu])
            parts.append(Text(" " * room["Temp"] if lost else f"{heat:3.0f} °C  ", glyphs.HEAT.colour(heat)))
        if "Health" in room:
            text, style = _HEALTH.get(int(state.faults[gpu]), ("", SOFT))
            parts.append(Text(text, style))
        return Text(" ").join(parts)

    columns = widths(GPUS, width)
    head = header(columns, title_of(choice.sort["gpus"]), backwards=choice.backwards["gpus"])
    return listed(columns, head, line, choice, count=len(shown), width=width, height=height)


PODS = (
    TableColumn("Namespace", 14, 72), TableColumn("Name", 24), TableColumn("Node", 20, 112),
    TableColumn("Phase", 8, 56), TableColumn("GPUs", 6), TableColumn("Utilisation", 13, wide=True),
    TableColumn("Memory", 10, 92), TableColumn("Age", 8, 80),
)  # fmt: skip
_INSTANCES_WIDTH = 12  # of `12 instances`


def pod_columns(pods: Sequence[PodSummary]) -> tuple[TableColumn, ...]:
    """Return the columns of pods; the number of MIG instances takes its room from the name."""
    if not any(pod.instances for pod in pods):
        return PODS
    more = next(_INSTANCES_WIDTH - column.width for column in PODS if column.title == "GPUs")
    changed = {"GPUs": more, "Name": -more}
    return tuple(column._replace(width=column.width + changed.get(column.title, 0)) for column in PODS)


def _pods(picture: FleetPicture, choice: Choice, width: int, height: int) -> list[Text]:
    shown = choosing.pods(picture.pods, choice)
    columns = widths(pod_columns(shown), width)
    head = header(columns, title_of(choice.sort["pods"]), backwards=choice.backwards["pods"])

    def line(place: int, room: dict[str, int]) -> Text:
        return pod_line(shown[place], room, picture.now)

    found = listed(columns, head, line, choice, count=len(shown), width=width, height=height)
    if picture.pods_total > len(picture.pods):
        head.append(f" the first {glyphs.number(len(picture.pods))} of {glyphs.number(picture.pods_total)}", WARN)
    return found


def pod_line(pod: PodSummary, room: dict[str, int], now: float) -> Text:
    """Return the line of a pod."""
    waits = pod.phase == "Pending"
    texts = {
        "Namespace": Text(glyphs.fit(pod.namespace, room.get("Namespace", 0)), SOFT),
        "Name": Text(glyphs.fit(pod.name, room["Name"])),
        "Node": Text(glyphs.fit(pod.node or "-", room.get("Node", 0)), SOFT),
        "Phase": Text(glyphs.fit(pod.phase, room.get("Phase", 0)), WARN if waits else SOFT),
        "GPUs": Text(glyphs.fit(_held(pod), room["GPUs"])),
    }
    parts = [text for title, text in texts.items() if title in room]
    if waits:
        reason = pod.message or pod.reason or "not looked at yet"
        return Text(" ").join([*parts, Text(glyphs.clean(reason), WARN)])
    parts.append(gauge(pod.utilization / 100, f"{pod.utilization:3.0f} %", room["Utilisation"], glyphs.BUSY))
    if "Memory" in room:
        parts.append(Text(f"{glyphs.mebibytes(pod.memory_used_mib):>10}"))
    if "Age" in room:
        parts.append(Text(_since(pod.since, now), SOFT))
    return Text(" ").join(parts)


def _held(pod: PodSummary) -> str:
    if pod.instances:
        return f"{pod.instances:>2} instance{'s' if pod.instances > 1 else ''}"
    return f"{pod.gpus:>4}"


def _since(text: str, now: float) -> str:
    try:
        return glyphs.age(now - datetime.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return "-"


_TITLES = {
    "utilization": "Utilisation", "power": "Power", "memory": "Memory", "temperature": "Temp",
    "faults": "Health", "gpus": "GPUs", "age": "Age", "phase": "Phase",
}  # fmt: skip


def title_of(name: str) -> str:
    """Return the title of the column that a list is sorted by; empty if it has none."""
    return _TITLES.get(name, "")


LISTS = {"nodes": _nodes, "gpus": _gpus, "pods": _pods}
