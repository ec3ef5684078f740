"""The screens of one node and of one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.text import Text

from simgpu.dashboard.answers import GpuDetail, GpuInstance, GpuSummary, NodeDetail, RecordedEvent
from simgpu.top import glyphs, tables
from simgpu.top.choosing import Choice, ChosenGpu, ChosenNode, Detail
from simgpu.top.fleet_state import GpuCurves
from simgpu.top.glyphs import BAD, LINE, SOFT, TITLE, WARN
from simgpu.top.picture import FleetPicture
from simgpu.top.tables import TableColumn

_MIN_ROOM = 5  # lines for pods, below all else
_CURVES = (
    ("Utilisation", "utilization", "%", glyphs.BUSY, 100.0), ("Power", "power_w", "W", glyphs.POWER, None),
    ("Temperature", "temperature_c", "°C", glyphs.HEAT, 100.0),
    ("Memory", "memory_used_mib", "MiB", glyphs.MEMORY, None),
    ("SM clock", "sm_clock_mhz", "MHz", glyphs.BUSY, None),
    ("Memory temperature", "memory_temperature_c", "°C", glyphs.HEAT, 100.0),
)  # fmt: skip


def draw(picture: FleetPicture, choice: Choice, width: int, height: int) -> list[Text]:
    """Return the lines of what is looked at."""
    if not known(picture, choice.detail):
        detail = choice.detail
        name = f"{detail.node} {detail.index}" if isinstance(detail, ChosenGpu) else detail.name if detail else ""
        return [glyphs.styled(""), glyphs.styled(f"  {glyphs.clean(name)} …", SOFT)]
    if isinstance(choice.detail, ChosenNode) and picture.node is not None:
        return _node(picture.node, choice, width, height, picture.now)
    return [*_gpu(picture.gpu, picture.curves, width, height)] if picture.gpu is not None else []


def known(picture: FleetPicture, detail: Detail | None) -> bool:
    """Return whether what is looked at was read."""
    if isinstance(detail, ChosenGpu):
        gpu = picture.gpu
        return gpu is not None and ChosenGpu(gpu.summary.node, gpu.summary.index) == detail
    return detail is None or (picture.node is not None and picture.node.summary.name == detail.name)


_GPUS = (
    TableColumn("GPU", 3), TableColumn("Health", 10, 60), TableColumn("Utilisation", 13, wide=True),
    TableColumn("Power", 20, 74, wide=True), TableColumn("Temp", 7), TableColumn("Memory", 22, 96, wide=True),
    TableColumn("Pod", 30, 60),
)  # fmt: skip


def _node(page: NodeDetail, choice: Choice, width: int, height: int, now: float) -> list[Text]:
    node = page.summary
    found = [glyphs.styled("")]
    found.append(
        glyphs.styled(f"  {glyphs.clean(node.name)}", TITLE)
        .append(f"   pool {glyphs.clean(node.pool) or '-'}   ", SOFT)
        .append(glyphs.clean(", ".join(node.models)), SOFT)
        .append(f"   driver {glyphs.clean(page.driver)}" if page.driver else "", SOFT)
    )
    found.append(
        glyphs.styled("  ")
        .append(f"{node.busy} of {node.gpus} busy   {node.allocated} allocated   ", SOFT)
        .append(f"{glyphs.watts(node.power_w)}   ", SOFT)
        .append(f"{glyphs.mebibytes(node.memory_used_mib)} of {glyphs.mebibytes(node.memory_total_mib)}   ", SOFT)
        .append(f"{node.temperature_max_c:.0f} °C", glyphs.HEAT.colour(node.temperature_max_c))
        .append(f"   {node.unhealthy} unhealthy" if node.unhealthy else "", BAD)
    )
    found.append(glyphs.styled(""))
    columns = tables.widths(_GPUS, width)
    head = tables.header(columns, "", backwards=False)
    room = min(len(page.gpus) + 1, max(4, height - len(found) - 8))
    line = _gpu_line(page.gpus)
    found += tables.listed(columns, head, line, choice, count=len(page.gpus), width=width, height=room)
    instances = [
        _instance(item, gpu, width, name=f"GPU {gpu.index}")
        for gpu in page.gpus
        for item in page.instances.get(gpu.id, ())
    ]
    if instances:
        found += [glyphs.styled(""), glyphs.styled("  Instances", TITLE)]
        found += _first(instances, _room(found, height) - _MIN_ROOM * bool(page.pods))
    if page.pods:
        found += [glyphs.styled(""), glyphs.styled("  Pods", TITLE)]
        sizes = {column.title: size for column, size in tables.widths(tables.pod_columns(page.pods), width)}
        found += [
            glyphs.styled(" ").append_text(tables.pod_line(pod, sizes, now))
            for pod in page.pods[: _room(found, height)]
        ]
    if page.events:
        found += [glyphs.styled(""), glyphs.styled("  Events", TITLE), *map(_event, reversed(page.events))]
    return found


def _first(lines: list[Text], room: int) -> list[Text]:
    """Return as many lines as there is room for, at least one and how many more there are."""
    if len(lines) <= max(2, room):
        return lines
    shown = lines[: max(1, room - 1)]
    return [*shown, glyphs.styled(f"  and {len(lines) - len(shown)} more", SOFT)]


def _instance(item: GpuInstance, gpu: GpuSummary, width: int, *, name: str = "") -> Text:
    """Return the line of a MIG instance or a tile: number, profile, utilisation, memory and owners."""
    named = [f"{owner.namespace}/{owner.pod}" for owner in gpu.owners if owner.instance == item.number]
    bar = tables.gauge(item.utilization / 100, f"{item.utilization:3.0f} %", 20, glyphs.BUSY)
    parts = [
        glyphs.styled(f"{glyphs.clean(name)} " if name else "", SOFT),
        glyphs.styled(f"{item.number:>2} "),
        glyphs.styled(glyphs.fit(item.profile or "tile", 14)),
        bar,
        glyphs.styled(f" {glyphs.mebibytes(item.memory_used_mib):>10}  "),
        glyphs.styled(glyphs.clean(", ".join(dict.fromkeys(named)) or "-"), SOFT),
    ]
    found = glyphs.styled("  ").append_text(Text().join(parts))
    found.truncate(width)
    return found


def _room(found: list[Text], height: int) -> int:
    return max(1, height - len(found))


def _gpu_line(gpus: list[GpuSummary]) -> Callable[[int, dict[str, int]], Text]:
    def line(place: int, room: dict[str, int]) -> Text:
        gpu = gpus[place]
        lost = gpu.health == "lost"  # there are no readings
        parts = [glyphs.styled(f"{gpu.index:>3}")]
        if "Health" in room:
            sick = gpu.health in ("unhealthy", "lost")
            style = BAD if sick else WARN if gpu.health == "throttled" else SOFT
            parts.append(Text(glyphs.fit(gpu.health, room["Health"]), style))
        parts.append(tables.percent(None if lost else gpu.utilization, room["Utilisation"], glyphs.BUSY))
        if "Power" in room:
            share = gpu.power_w / max(1.0, gpu.power_limit_w)
            text = f"{gpu.power_w:4.0f}/{gpu.power_limit_w:.0f} W"
            bar = tables.gauge(share, text, room["Power"], glyphs.POWER)
            parts.append(Text(" " * room["Power"]) if lost else bar)
        heat = f"{gpu.temperature_c:3.0f} °C "
        parts.append(glyphs.styled(" " * room["Temp"] if lost else heat, glyphs.HEAT.colour(gpu.temperature_c)))
        if "Memory" in room:
            share = gpu.memory_used_mib / max(1.0, gpu.memory_total_mib)
            text = f"{gpu.memory_used_mib / 1024:5.1f}/{gpu.memory_total_mib / 1024:.0f} GiB"
            bar = tables.gauge(share, text, room["Memory"], glyphs.MEMORY)
            parts.append(Text(" " * room["Memory"]) if lost else bar)
        if "Pod" in room:
            parts.append(Text(glyphs.clean(owners(gpu)), SOFT))
        return glyphs.styled(" ").join(parts)

    return line


def owners(gpu: GpuSummary) -> str:
    """Return who has a GPU."""
    names = list(dict.fromkeys(f"{owner.namespace}/{owner.pod}" for owner in gpu.owners))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more if names else "-"


def _event(event: RecordedEvent) -> Text:
    found = glyphs.styled(f"  {glyphs.clock(event.time)} ", SOFT).append(
        f"{glyphs.clean(event.reason)} ", WARN if event.type == "Warning" else TITLE
    )
    return found.append(glyphs.clean(event.message), SOFT)


def _gpu(page: GpuDetail, curves: GpuCurves | None, width: int, height: int) -> Iterator[Text]:
    gpu, readings = page.summary, page.readings
    yield glyphs.styled("")
    yield (
        glyphs.styled(f"  {glyphs.clean(gpu.node)} GPU {gpu.index}", TITLE)
        .append(f"   {glyphs.clean(gpu.model)}", SOFT)
        .append(f"   {glyphs.clean(gpu.health)}", BAD if gpu.problem else SOFT)
        .append(f"   {glyphs.clean(gpu.problem)}" if gpu.problem else "", BAD)
        .append(f"   {', '.join(map(glyphs.clean, page.reasons))}" if page.reasons else "", WARN)
    )
    yield glyphs.styled(
        f"  {glyphs.clean(gpu.id)}   {glyphs.clean(page.pci_bus_id)}   used by {glyphs.clean(owners(gpu))}", SOFT
    )
    yield glyphs.styled("")
    across = 3 if width >= 150 else 2 if width >= 80 else 1
    down = -(-len(_CURVES) // across)
    instances = [_instance(item, gpu, width) for item in page.instances]
    tall = max(2, min(10, (height - 9 - (len(instances) + 2) * bool(instances)) // down - 2))
    wide = width // across
    blocks = [_curve(plot, page, curves, wide, tall) for plot in _CURVES if plot[1] in readings]
    for start in range(0, len(blocks), across):
        for lines in zip(*blocks[start : start + across], strict=True):
            yield Text().join(lines)
    if instances:
        yield glyphs.styled("  Instances", TITLE)
        yield from instances
        yield glyphs.styled("")
    yield from _figures("Counters", page.counters, width)
    yield from _figures("Errors", page.errors, width)


def _curve(
    plot: tuple[str, str, str, glyphs.ColourScale, float | None],
    page: GpuDetail,
    curves: GpuCurves | None,
    width: int,
    height: int,
) -> list[Text]:
    title, name, unit, scale, high = plot
    values = _values(curves, name)
    top = high or _limit(page, name) or max((value for value in values if value is not None), default=0.0) * 1.1
    top = top if top > 0 else 1.0
    now = page.readings[name]
    colour = scale.colour(now / top * 100)
    head = glyphs.styled(f"  {title} ", TITLE).append(f"{now:,.0f} {unit}", colour)
    head.append(f"   of {top:,.0f}" if high is None and _limit(page, name) else "", SOFT)
    lines = glyphs.curve(values, width - 4, height, low=0.0, high=top)
    drawn = [glyphs.styled("  ").append("│", LINE).append(line, colour) for line in lines]
    found = [head, *drawn, glyphs.styled("")]
    for line in found:
        line.append(" " * (width - line.cell_len))
        line.truncate(width)
    return found


def _values(curves: GpuCurves | None, name: str) -> list[float | None]:
    if curves is None or name not in curves.names:
        return []
    column = curves.names.index(name)
    return [row[column] for row in curves.rows if len(row) > column]


def _limit(page: GpuDetail, name: str) -> float | None:
    limits = {
        "power_w": page.summary.power_limit_w, "memory_used_mib": page.summary.memory_total_mib,
        "sm_clock_mhz": page.readings.get("sm_clock_max_mhz"),
    }  # fmt: skip
    return limits.get(name) or None


def _figures(title: str, values: dict[str, float], width: int) -> Iterator[Text]:
    if not values:
        return
    found = glyphs.styled(f"  {title}  ", TITLE)
    for name, value in values.items():
        part = f"{glyphs.clean(name)} {value:,.0f}   "
        if found.cell_len + len(part) > width:
            yield found
            found = glyphs.styled(" " * (len(title) + 4))
        found.append(part, BAD if title == "Errors" and value else SOFT)
    yield found
