"""The screens of one node and of one GPU."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rich.text import Text

from simgpu.top import glyphs, screens
from simgpu.top.answers import CurvesShown, EventShown, GpuPage, GpuShown, NodePage
from simgpu.top.choosing import Choice, GpuDetail, NodeDetail
from simgpu.top.glyphs import BAD, LINE, SOFT, TITLE, WARN
from simgpu.top.screens import Column, Line, Model

_CURVES = (
    ("Utilisation", "utilization", "%", glyphs.BUSY, 100.0), ("Power", "power_w", "W", glyphs.POWER, None),
    ("Temperature", "temperature_c", "°C", glyphs.HEAT, None), ("Memory", "memory_used_mib", "MiB", glyphs.MEMORY, None),
    ("SM clock", "sm_clock_mhz", "MHz", glyphs.BUSY, None),
    ("Memory temperature", "memory_temperature_c", "°C", glyphs.HEAT, None),
)  # fmt: skip


def draw(model: Model, choice: Choice, width: int, height: int) -> list[Line]:
    """Return the lines of what is looked at."""
    if isinstance(choice.detail, NodeDetail):
        if model.node is None or model.node.summary.name != choice.detail.name:
            return _waiting(choice.detail.name)
        return _node(model.node, choice, width, height, model.now)
    if isinstance(choice.detail, GpuDetail):
        gpu = model.gpu
        if gpu is None or (gpu.summary.node, gpu.summary.index) != choice.detail:
            return _waiting(f"{choice.detail.node} {choice.detail.index}")
        return [*_gpu(gpu, model.curves, width, height)]
    return []


def _waiting(name: str) -> list[Line]:
    return [Text(""), Text(f"  {glyphs.clean(name)} …", SOFT)]


_GPUS = (
    Column("GPU", 3), Column("Health", 10, 60), Column("Utilisation", 12, wide=True), Column("Power", 20, 74, wide=True),
    Column("Temperature", 7), Column("Memory", 22, 96, wide=True), Column("Pod", 30, 60),
)  # fmt: skip


def _node(page: NodePage, choice: Choice, width: int, height: int, now: float) -> list[Line]:
    node = page.summary
    found = [Text("")]
    found.append(
        Text(f"  {glyphs.clean(node.name)}", TITLE)
        .append(f"   pool {glyphs.clean(node.pool) or '-'}   ", SOFT)
        .append(glyphs.clean(", ".join(node.models)), SOFT)
        .append(f"   driver {glyphs.clean(page.driver)}" if page.driver else "", SOFT)
    )
    found.append(
        Text("  ")
        .append(f"{node.busy} of {node.gpus} busy   {node.allocated} allocated   ", SOFT)
        .append(f"{glyphs.watts(node.power_w)}   ", SOFT)
        .append(f"{glyphs.mebibytes(node.memory_used_mib)} of {glyphs.mebibytes(node.memory_total_mib)}   ", SOFT)
        .append(f"{node.temperature_max_c:.0f} °C", glyphs.HEAT.colour(node.temperature_max_c))
        .append(f"   {node.unhealthy} unhealthy" if node.unhealthy else "", BAD)
    )
    found.append(Text(""))
    columns = screens.widths(_GPUS, width)
    head = screens.header(columns, "", backwards=False)
    room = min(len(page.gpus) + 1, max(4, height - len(found) - 8))
    line = _gpu_line(page.gpus)
    found += screens.listed(columns, head, len(page.gpus), line, choice, (width, room))
    if page.pods:
        found += [Text(""), Text("  Pods", TITLE)]
        sizes = {column.title: size for column, size in screens.widths(screens.PODS, width)}
        found += [Text(" ").append_text(screens.pod_line(pod, sizes, now)) for pod in page.pods[: _room(found, height)]]
    if page.events:
        found += [Text(""), Text("  Events", TITLE), *map(_event, reversed(page.events))]
    return found


def _room(found: list[Line], height: int) -> int:
    return max(1, height - len(found))


def _gpu_line(gpus: list[GpuShown]):  # type: ignore[no-untyped-def]
    def line(place: int, room: dict[str, int]) -> Line:
        gpu = gpus[place]
        parts = [Text(f"{gpu.index:>3}")]
        if "Health" in room:
            sick = gpu.health in ("unhealthy", "lost")
            style = BAD if sick else WARN if gpu.health == "throttled" else SOFT
            parts.append(Text(glyphs.fit(gpu.health, room["Health"]), style))
        parts.append(
            screens.gauge(gpu.utilization / 100, f"{gpu.utilization:3.0f} %", room["Utilisation"], glyphs.BUSY)
        )
        if "Power" in room:
            share = gpu.power_w / max(1.0, gpu.power_limit_w)
            parts.append(
                screens.gauge(share, f"{gpu.power_w:4.0f}/{gpu.power_limit_w:.0f} W", room["Power"], glyphs.POWER)
            )
        parts.append(Text(f"{gpu.temperature_c:3.0f} °C ", glyphs.HEAT.colour(gpu.temperature_c)))
        if "Memory" in room:
            share = gpu.memory_used_mib / max(1.0, gpu.memory_total_mib)
            text = f"{gpu.memory_used_mib / 1024:5.1f}/{gpu.memory_total_mib / 1024:.0f} GiB"
            parts.append(screens.gauge(share, text, room["Memory"], glyphs.MEMORY))
        if "Pod" in room:
            parts.append(Text(glyphs.clean(owners(gpu)), SOFT))
        return Text(" ").join(parts)

    return line


def owners(gpu: GpuShown) -> str:
    """Return who has a GPU."""
    names = list(dict.fromkeys(f"{owner.namespace}/{owner.pod}" for owner in gpu.owners))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more if names else "-"


def _event(event: EventShown) -> Line:
    when = datetime.datetime.fromtimestamp(event.time).astimezone().strftime("%H:%M:%S")
    found = Text(f"  {when} ", SOFT).append(
        f"{glyphs.clean(event.reason)} ", WARN if event.type == "Warning" else TITLE
    )
    return found.append(glyphs.clean(event.message), SOFT)


def _gpu(page: GpuPage, curves: CurvesShown | None, width: int, height: int) -> Iterator[Line]:
    gpu, readings = page.summary, page.readings
    yield Text("")
    yield (
        Text(f"  {glyphs.clean(gpu.node)} GPU {gpu.index}", TITLE)
        .append(f"   {glyphs.clean(gpu.model)}", SOFT)
        .append(f"   {glyphs.clean(gpu.health)}", BAD if gpu.problem else SOFT)
        .append(f"   {glyphs.clean(gpu.problem)}" if gpu.problem else "", BAD)
        .append(f"   {', '.join(map(glyphs.clean, page.reasons))}" if page.reasons else "", WARN)
    )
    yield Text(
        f"  {glyphs.clean(gpu.id)}   {glyphs.clean(page.pci_bus_id)}   used by {glyphs.clean(owners(gpu))}", SOFT
    )
    yield Text("")
    across = 3 if width >= 150 else 2 if width >= 80 else 1
    down = -(-len(_CURVES) // across)
    tall = max(2, min(10, (height - 9) // down - 2))
    wide = width // across
    blocks = [_curve(plot, page, curves, wide, tall) for plot in _CURVES if plot[1] in readings]
    for start in range(0, len(blocks), across):
        for lines in zip(*blocks[start : start + across], strict=True):
            yield Text().join(lines)
    yield from _figures("Counters", page.counters, width)
    yield from _figures("Errors", page.errors, width)


def _curve(
    plot: tuple[str, str, str, glyphs.Scale, float | None],
    page: GpuPage,
    curves: CurvesShown | None,
    width: int,
    height: int,
) -> list[Line]:
    title, name, unit, scale, high = plot
    values = _values(curves, name)
    top = high or _limit(page, name) or max([value for value in values if value is not None] or [1.0]) * 1.1
    now = page.readings[name]
    head = Text(f"  {title} ", TITLE).append(f"{now:,.0f} {unit}", scale.colour(now / top * 100))
    head.append(f"   of {top:,.0f}" if high is None and _limit(page, name) else "", SOFT)
    lines = glyphs.curve(values, width - 4, height, low=0.0, high=top)
    drawn = [Text("  ").append("│", LINE).append(line, scale.colour(now / top * 100)) for line in lines]
    found = [head, *drawn, Text("")]
    for line in found:
        line.append(" " * (width - line.cell_len))
        line.truncate(width)
    return found


def _values(curves: CurvesShown | None, name: str) -> list[float | None]:
    if curves is None or name not in curves.names:
        return []
    column = curves.names.index(name)
    return [row[column] for row in curves.rows if len(row) > column]


def _limit(page: GpuPage, name: str) -> float | None:
    limits = {
        "power_w": page.summary.power_limit_w, "memory_used_mib": page.summary.memory_total_mib,
        "sm_clock_mhz": page.readings.get("sm_clock_max_mhz"),
    }  # fmt: skip
    return limits.get(name) or None


def _figures(title: str, values: dict[str, float], width: int) -> Iterator[Line]:
    if not values:
        return
    found = Text(f"  {title}  ", TITLE)
    for name, value in values.items():
        part = f"{glyphs.clean(name)} {value:,.0f}   "
        if found.cell_len + len(part) > width:
            yield found
            found = Text(" " * (len(title) + 4))
        found.append(part, BAD if title == "Errors" and value else SOFT)
    yield found
