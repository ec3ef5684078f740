"""The screens of lists: totals above, then nodes, GPUs or pods, and the keys below. Lines are made only if they show."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.text import Text

from simgpu.top import choosing, glyphs
from simgpu.top.answers import CurvesShown, FleetShown, GpuPage, NodePage, PodShown
from simgpu.top.choosing import Choice
from simgpu.top.fleet_state import FleetState
from simgpu.top.glyphs import BAD, LINE, SOFT, TITLE, WARN

_MIN_WIDTH, _MIN_HEIGHT = 40, 12
_CELLS = 16  # GPUs of a node that are drawn

Line = Text


@dataclass
class Model:
    """All that can be shown."""

    label: str
    fleet: FleetShown = field(default_factory=FleetShown)
    state: FleetState = field(default_factory=FleetState)
    pods: list[PodShown] = field(default_factory=list)
    pods_total: int = 0
    node: NodePage | None = None
    gpu: GpuPage | None = None
    curves: CurvesShown | None = None
    problem: str = ""
    now: float = 0.0


class Column(NamedTuple):
    """A column of a list: how wide, and from which width of the screen on it is shown; `wide` ones share what is left."""

    title: str
    width: int
    above: int = 0
    wide: bool = False


def draw(model: Model, choice: Choice, width: int, height: int) -> list[Line]:
    """Return the lines of the screen, exactly as many as it has."""
    from simgpu.top import details

    if width < _MIN_WIDTH or height < _MIN_HEIGHT:
        return _filled([Text(glyphs.fit(f"at least {_MIN_WIDTH} × {_MIN_HEIGHT}, please", width), WARN)], width, height)
    top = [_head(model, choice, width)]
    if choice.help:
        return _filled([*top, *_help(width)], width, height)
    if choice.detail is not None:
        body = details.draw(model, choice, width, height - 2)
        return [*_filled([*top, *body], width, height - 1), _foot(choice, width)]
    top += totals(model, width)
    top.append(Text("─" * width, LINE))
    rows = _LISTS[choice.view](model, choice, width, height - len(top) - 1)
    return [*_filled([*top, *rows], width, height - 1), _foot(choice, width)]


def _filled(lines: list[Line], width: int, height: int) -> list[Line]:
    shown = lines[:height] + [Text("")] * (height - len(lines))
    for line in shown:
        line.truncate(width)
    return shown


# Above: what this is, and totals.


def _head(model: Model, choice: Choice, width: int) -> Line:
    totals = model.state.totals
    found = Text(" simgpu ", "bold reverse")
    found.append(f" {glyphs.clean(model.fleet.role or 'fleet')}", TITLE)
    found.append(f"  {glyphs.number(totals.nodes)} nodes  {glyphs.number(totals.gpus)} GPUs", SOFT)
    if model.problem:
        notice = Text(f" {glyphs.clean(model.problem)} ", "bold white on red")
    elif model.state.away:
        notice = Text(" nothing to show yet: it starts, or does not lead ", "black on yellow")
    elif choice.paused:
        notice = Text(" paused ", "black on yellow")
    else:
        notice = Text(f"{glyphs.clean(model.label)}  {_clock(model.state.time)} ", SOFT)
    notice.truncate(max(0, width - found.cell_len - 1), overflow="ellipsis")
    return found.append(" " * (width - found.cell_len - notice.cell_len)).append_text(notice)


def _clock(time: float) -> str:
    return datetime.datetime.fromtimestamp(time).astimezone().strftime("%H:%M:%S") if time else ""


def totals(model: Model, width: int) -> list[Line]:
    """Return the totals, in two columns if there is room."""
    now, history = model.state.totals, list(model.state.history)
    gpus = max(1, now.gpus)
    tiles = [
        ("Busy", now.busy / gpus, f"{glyphs.number(now.busy)} of {glyphs.number(now.gpus)}", glyphs.BUSY,
         [item.utilization for item in history], 100.0),
        ("Power", now.power_w / max(1.0, now.power_limit_w),
         f"{glyphs.watts(now.power_w)} of {glyphs.watts(now.power_limit_w)}", glyphs.POWER,
         [item.power_w for item in history], max(1.0, now.power_limit_w)),
        ("Allocated", now.allocated / gpus, f"{glyphs.number(now.allocated)} of {glyphs.number(now.gpus)}",
         glyphs.BUSY, [item.allocated / gpus * 100 for item in history], 100.0),
        ("Memory", now.memory_used_mib / max(1.0, now.memory_total_mib),
         f"{glyphs.mebibytes(now.memory_used_mib)} of {glyphs.mebibytes(now.memory_total_mib)}", glyphs.MEMORY,
         [item.memory_used_mib for item in history], max(1.0, now.memory_total_mib)),
    ]  # fmt: skip
    two = width >= 110
    room = width // 2 if two else width
    drawn = [_tile(*tile, width=room) for tile in tiles]
    lines = [left.append_text(right) for left, right in zip(drawn[::2], drawn[1::2], strict=True)] if two else drawn
    return [*lines, _counts(model)]


def _tile(
    name: str, share: float, text: str, scale: glyphs.Scale, history: list[float], high: float, *, width: int
) -> Line:
    long = width // 4
    found = Text(f" {name:<10}", TITLE)
    found.append_text(glyphs.bar(share, long, scale.colour(share * 100)))
    found.append(f" {share * 100:3.0f} %", TITLE).append(f"  {text:<24}", SOFT)
    room = width - found.cell_len - 2
    if room >= 6:
        found.append_text(glyphs.spark(history, room, high=high, colour=scale.colour(share * 100)))
    found.append(" " * (width - found.cell_len))
    return found


def _counts(model: Model) -> Line:
    now = model.state.totals
    found = Text(" ")
    found.append(f"{'Utilisation':<11}", TITLE).append(f"{now.utilization:.0f} %   ", SOFT)
    found.append("Energy ", TITLE).append(f"{glyphs.joules(now.energy_j)}   ", SOFT)
    found.append("Throttled ", TITLE).append(f"{glyphs.number(now.throttled)}   ", WARN if now.throttled else SOFT)
    return found.append("Unhealthy ", TITLE).append(glyphs.number(now.unhealthy), BAD if now.unhealthy else SOFT)


# Lists.


def header(columns: Sequence[tuple[Column, int]], sorted_by: str, *, backwards: bool) -> Line:
    """Return the line of titles; the column that is sorted by is marked."""
    found = Text(" ")
    for column, width in columns:
        mine = sorted_by and column.title.lower().startswith(sorted_by[:4].lower())
        title = f"{column.title} {'▲' if backwards else '▼'}" if mine else column.title
        found.append(glyphs.fit(title.upper(), width) + " ", "bold underline" if mine else "bold " + SOFT)
    return found


def widths(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Return the columns that fit, with their widths: those that are wide share what is left."""
    shown = [column for column in columns if column.above <= width]
    left = width - 1 - sum(column.width + 1 for column in shown)
    wide = [column for column in shown if column.wide]
    each = min(24, left // len(wide)) if wide and left > 0 else 0
    return [(column, column.width + (each if column.wide else 0)) for column in shown]


def listed(
    columns: Sequence[tuple[Column, int]],
    head: Line,
    count: int,
    line: Callable[[int, dict[str, int]], Line],
    choice: Choice,
    size: tuple[int, int],
) -> list[Line]:
    """Return the head and the lines around the cursor; `line` makes one by its number."""
    width, height = size
    sizes = {column.title: room for column, room in columns}
    first, cursor = choice.window(count, height - 1)
    found = [head]
    for place in range(first, min(count, first + height - 1)):
        made = Text(" ").append_text(line(place, sizes))
        made.truncate(width)
        if place == cursor:
            made.append(" " * (width - made.cell_len))
            made.stylize("reverse")
        found.append(made)
    return found


def gauge(share: float, text: str, width: int, scale: glyphs.Scale) -> Line:
    """Return a bar with its value, in so many cells."""
    long = max(0, width - len(text) - 1)
    return glyphs.bar(share, long, scale.colour(share * 100)).append(f" {text}")


NODES = (
    Column("Node", 22), Column("Pool", 10, 90), Column("GPUs", _CELLS, 60), Column("Utilisation", 12, wide=True),
    Column("Power", 12, 72, wide=True), Column("Memory", 12, 100, wide=True), Column("Temperature", 8, 52),
)  # fmt: skip


def _nodes(model: Model, choice: Choice, width: int, height: int) -> list[Line]:
    state, order = model.state, model.state.order
    shown = choosing.nodes(state, choice)
    means = {name: order.means(state.columns[name]) for name in ("utilization", "power", "memory")}
    hottest = order.highest(state.columns["temperature"])

    def line(place: int, room: dict[str, int]) -> Line:
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
                value = float(means[name][node])
                parts.append(gauge(value / 100, f"{value:3.0f} %", room[title], scale))
        if "Temperature" in room:
            heat = float(hottest[node])
            parts.append(Text(f"{heat:3.0f} °C", glyphs.HEAT.colour(heat)))
        return Text(" ").join(parts)

    columns = widths(NODES, width)
    head = header(columns, _title(choice.sort["nodes"]), backwards=choice.backwards["nodes"])
    return listed(columns, head, len(shown), line, choice, (width, height)) or _none(choice)


def _cells(state: FleetState, node: int) -> Line:
    first, count = int(state.order.firsts[node]), int(state.order.counts[node])
    found = Text()
    for place in range(first, first + min(count, _CELLS)):
        found.append(*glyphs.cell(float(state.columns["utilization"][place]), int(state.faults[place])))
    if count > _CELLS:
        found.right_crop(1)
        found.append("…", SOFT)
    return found.append(" " * (_CELLS - found.cell_len))


GPUS = (
    Column("GPU", 26), Column("Pool", 10, 90), Column("Utilisation", 12, wide=True), Column("Power", 12, 64, wide=True),
    Column("Memory", 12, 84, wide=True), Column("Temperature", 8, 50), Column("Health", 10, 100),
)  # fmt: skip
_HEALTH = {0: ("", SOFT), 2: ("unhealthy", BAD), 3: ("lost", BAD)}


def _gpus(model: Model, choice: Choice, width: int, height: int) -> list[Line]:
    state, order = model.state, model.state.order
    shown = choosing.gpus(state, choice)

    def line(place: int, room: dict[str, int]) -> Line:
        gpu = int(shown[place])
        node, index = order.gpu(gpu)
        parts = [Text(glyphs.fit(f"{node} {index}", room["GPU"]))]
        if "Pool" in room:
            parts.append(Text(glyphs.fit(order.pools[int(order.node_of[gpu])], room["Pool"]), SOFT))
        for title, name in (("Utilisation", "utilization"), ("Power", "power"), ("Memory", "memory")):
            if title in room:
                value = float(state.columns[name][gpu])
                parts.append(gauge(value / 100, f"{value:3.0f} %", room[title], glyphs.SCALES[name]))
        if "Temperature" in room:
            heat = float(state.columns["temperature"][gpu])
            parts.append(Text(f"{heat:3.0f} °C  ", glyphs.HEAT.colour(heat)))
        if "Health" in room:
            text, style = _HEALTH.get(int(state.faults[gpu]), ("", SOFT))
            parts.append(Text(text, style))
        return Text(" ").join(parts)

    columns = widths(GPUS, width)
    head = header(columns, _title(choice.sort["gpus"]), backwards=choice.backwards["gpus"])
    return listed(columns, head, len(shown), line, choice, (width, height)) or _none(choice)


PODS = (
    Column("Namespace", 14, 64), Column("Name", 26), Column("Node", 20, 110), Column("Phase", 8, 56), Column("GPUs", 4),
    Column("Utilisation", 12, wide=True), Column("Memory", 10, 90), Column("Age", 8, 72),
)  # fmt: skip


def _pods(model: Model, choice: Choice, width: int, height: int) -> list[Line]:
    shown = choosing.pods(model.pods, choice)
    columns = widths(PODS, width)
    head = header(columns, _title(choice.sort["pods"]), backwards=choice.backwards["pods"])

    def line(place: int, room: dict[str, int]) -> Line:
        return pod_line(shown[place], room, model.now)

    found = listed(columns, head, len(shown), line, choice, (width, height))
    if model.pods_total > len(model.pods):
        head.append(f" the first {glyphs.number(len(model.pods))} of {glyphs.number(model.pods_total)}", WARN)
    return found


def pod_line(pod: PodShown, room: dict[str, int], now: float) -> Line:
    """Return the line of a pod."""
    waits = pod.phase == "Pending"
    texts = {
        "Namespace": Text(glyphs.fit(pod.namespace, room.get("Namespace", 0)), SOFT),
        "Name": Text(glyphs.fit(pod.name, room["Name"])),
        "Node": Text(glyphs.fit(pod.node or "-", room.get("Node", 0)), SOFT),
        "Phase": Text(glyphs.fit(pod.phase, room.get("Phase", 0)), WARN if waits else SOFT),
        "GPUs": Text(f"{pod.gpus:>4}"),
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


def _since(text: str, now: float) -> str:
    try:
        return glyphs.age(now - datetime.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return "-"


_LISTS = {"nodes": _nodes, "gpus": _gpus, "pods": _pods}
_TITLES = {
    "utilization": "Utilisation", "power": "Power", "memory": "Memory", "temperature": "Temperature", "faults": "Health",
    "gpus": "GPUs", "age": "Age", "phase": "Phase",
}  # fmt: skip


def _title(name: str) -> str:
    return _TITLES.get(name, "")


def _none(choice: Choice) -> list[Line]:
    return [Text(f" nothing matches {choice.filters[choice.view]!r}", SOFT)]


# Below: keys.

_KEYS = (
    ("1 2 3", "nodes, GPUs, pods; Tab goes on to the next"), ("↑ ↓ PgUp PgDn Home End", "move"),
    ("Enter", "look at a node, a GPU, or the node of a pod"), ("Esc", "back; ends a filter"),
    ("/", "filter by a part of a name or pool"), ("s", "sort by the next column"), ("r", "turn the order around"),
    ("space", "pause, and go on"), ("?", "this help"), ("q", "quit"),
)  # fmt: skip


def _help(width: int) -> Iterator[Line]:
    yield Text("")
    for keys, about in _KEYS:
        yield Text(f"   {keys:<26}", TITLE).append(about)
    yield Text("")
    blocks = Text("   GPUs of a node: ")
    for value in (0, 25, 50, 75, 100):
        blocks.append(*glyphs.cell(value, 0)).append(f" {value} %  ", SOFT)
    yield blocks.append(*glyphs.cell(0, 2)).append(" unhealthy or lost", SOFT)
    yield Text(
        glyphs.fit("   Power is relative to the limit, memory to all of it; temperatures are the highest.", width)
    )


def _foot(choice: Choice, width: int) -> Line:
    if choice.typing:
        return Text(f" filter: {glyphs.clean(choice.filters[choice.view])}█", "bold").append(
            "   Enter keeps it, Esc ends it", SOFT
        )
    found = Text(" ")
    if choice.detail is None:
        for number, view in enumerate(choosing.VIEWS, 1):
            name = {"nodes": "Nodes", "gpus": "GPUs", "pods": "Pods"}[view]
            found.append(f" {number} {name} ", "bold reverse" if view == choice.view else SOFT).append(" ")
        if text := choice.filters[choice.view]:
            found.append(f" only: {glyphs.clean(text)} ", "black on yellow").append(" ")
        found.append(f" sorted by {choice.sort[choice.view]} ", SOFT)
        keys = "Enter details  / filter  s sort  r turn  space pause  ? help  q quit"
    else:
        keys = "↑ ↓ move  Enter details  Esc back  space pause  q quit"
    room = width - found.cell_len - 1
    shown = keys if len(keys) <= room else "? help  q quit"
    return found.append(shown.rjust(max(0, room)), SOFT)
