"""The whole screen: totals above, a list or one thing in detail, and the keys below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.text import Text

from simgpu.top import choosing, details, glyphs, tables
from simgpu.top.choosing import Choice
from simgpu.top.glyphs import BAD, LINE, SOFT, TITLE, WARN
from simgpu.top.picture import FleetPicture

_MIN_WIDTH, _MIN_HEIGHT = 40, 12


def draw(picture: FleetPicture, choice: Choice, width: int, height: int) -> list[Text]:
    """Return the lines of the screen, exactly as many as it has."""
    if width < _MIN_WIDTH or height < _MIN_HEIGHT:
        return _filled(
            [glyphs.styled(glyphs.fit(f"at least {_MIN_WIDTH} by {_MIN_HEIGHT}, please", width), WARN)], width, height
        )
    top = [_head(picture, choice, width)]
    if choice.help:
        return _filled([*top, *_help(width)], width, height)
    if choice.detail is not None:
        body = details.draw(picture, choice, width, height - 2)
        return [*_filled([*top, *body], width, height - 1), _foot(choice, width)]
    top += totals(picture, width)
    top.append(glyphs.styled("─" * width, LINE))
    if choice.still:
        return _filled([*top, *tables.LISTS[choice.view](picture, choice, width, height - len(top))], width, height)
    rows = tables.LISTS[choice.view](picture, choice, width, height - len(top) - 1)
    return [*_filled([*top, *rows], width, height - 1), _foot(choice, width)]


def _filled(lines: list[Text], width: int, height: int) -> list[Text]:
    shown = lines[:height] + [glyphs.styled("")] * (height - len(lines))
    for line in shown:
        line.truncate(width)
    return shown


# Above: what this is, and totals.


def _head(picture: FleetPicture, choice: Choice, width: int) -> Text:
    totals = picture.state.totals
    found = glyphs.styled(" simgpu ", "bold reverse")
    found.append(f" {glyphs.clean(picture.role or 'fleet')}", TITLE)
    found.append(f"  {_several(totals.nodes, 'node')}  {_several(totals.gpus, 'GPU')}", SOFT)
    if picture.problem:
        notice = glyphs.styled(f" {glyphs.clean(picture.problem)} ", "bold white on red")
    elif picture.state.away:
        notice = glyphs.styled(" nothing to show yet: it starts, or does not lead ", "black on yellow")
    elif choice.paused:
        notice = glyphs.styled(" paused ", "black on yellow")
    else:
        clock = glyphs.clock(picture.state.time) if picture.state.time else ""
        notice = glyphs.styled(f"{glyphs.clean(picture.label)}  {clock} ", SOFT)
    notice.truncate(max(0, width - found.cell_len - 1), overflow="ellipsis")
    return found.append(" " * (width - found.cell_len - notice.cell_len)).append_text(notice)


def _several(count: int, name: str) -> str:
    return f"{glyphs.number(count)} {name}{'' if count == 1 else 's'}"


def totals(picture: FleetPicture, width: int) -> list[Text]:
    """Return the totals, in two columns if there is room."""
    now, history = picture.state.totals, list(picture.state.history)
    gpus = max(1, now.gpus)
    full, memory = max(1.0, now.power_limit_w), max(1.0, now.memory_total_mib)
    busy = [item.utilization / 100 for item in history]
    tiles = [
        _Tile("Busy", now.busy / gpus, _of(now.busy, now.gpus, glyphs.number), glyphs.BUSY, busy),
        _Tile("Power", now.power_w / full, _of(now.power_w, now.power_limit_w, glyphs.watts), glyphs.POWER,
              [item.power_w / full for item in history]),
        _Tile("Allocated", now.allocated / gpus, _of(now.allocated, now.gpus, glyphs.number), glyphs.BUSY,
              [item.allocated / gpus for item in history]),
        _Tile("Memory", now.memory_used_mib / memory,
              _of(now.memory_used_mib, now.memory_total_mib, glyphs.mebibytes), glyphs.MEMORY,
              [item.memory_used_mib / memory for item in history]),
    ]  # fmt: skip
    two = width >= 110
    drawn = [_tile(tile, width // 2 if two else width) for tile in tiles]
    lines = [left.append_text(right) for left, right in zip(drawn[::2], drawn[1::2], strict=True)] if two else drawn
    return [*lines, _counts(picture, width)]


class _Tile(NamedTuple):
    """A total: its share of the most, in words, and how the share was before."""

    name: str
    share: float
    text: str
    scale: glyphs.ColourScale
    history: list[float]


def _of(value: float, most: float, form: Callable[[float], str]) -> str:
    return f"{form(value)} of {form(most)}"


def _tile(tile: _Tile, width: int) -> Text:
    colour = tile.scale.colour(tile.share * 100)
    found = glyphs.styled(f" {tile.name:<10}", TITLE)
    found.append_text(glyphs.bar(tile.share, max(10, width // 6), colour))
    found.append(f" {tile.share * 100:3.0f} %", TITLE).append(f"  {tile.text:<22}", SOFT)
    room = width - found.cell_len - 2
    if room >= 4:
        found.append_text(glyphs.spark(tile.history, room, high=1.0, colour=colour))
    found.append(" " * (width - found.cell_len))
    return found


def _counts(picture: FleetPicture, width: int) -> Text:
    """Return the other totals; a narrow screen leaves out what matters least."""
    now = picture.state.totals
    parts = [
        (f"{'Utilisation':<12}", f"{now.utilization:.0f} %", SOFT),
        ("Unhealthy ", glyphs.number(now.unhealthy), BAD if now.unhealthy else SOFT),
        ("Throttled ", glyphs.number(now.throttled), WARN if now.throttled else SOFT),
        ("Energy ", glyphs.joules(now.energy_j), SOFT),
    ]
    found = glyphs.styled(" ")
    for title, text, style in parts:
        space = " " * 3 if found.cell_len > 1 else ""
        if found.cell_len + len(space + title + text) <= width:
            found.append(space + title, TITLE).append(text, style)
    return found


# Below: keys.

_KEYS = (
    ("1 2 3", "nodes, GPUs, pods; Tab goes on to the next"), ("↑ ↓ PgUp PgDn Home End", "move"),
    ("Enter", "look at a node, a GPU, or the node of a pod"), ("Esc", "back; ends a filter"),
    ("/", "filter by a part of a name or pool"), ("s", "sort by the next column"), ("r", "turn the order around"),
    ("space", "pause, and go on"), ("?", "this help"), ("q", "quit"),
)  # fmt: skip


def _help(width: int) -> Iterator[Text]:
    yield glyphs.styled("")
    for keys, about in _KEYS:
        yield glyphs.styled(f"   {keys:<26}", TITLE).append(about)
    yield glyphs.styled("")
    blocks = glyphs.styled("   GPUs of a node: ")
    for value in (0, 25, 50, 75, 100):
        blocks.append(*glyphs.cell(value, 0)).append(f" {value} %  ", SOFT)
    yield blocks.append(*glyphs.cell(0, 2)).append(" unhealthy or lost", SOFT)
    yield glyphs.styled(
        glyphs.fit("   Power is relative to the limit, memory to all of it; temperatures are the highest.", width)
    )


def _foot(choice: Choice, width: int) -> Text:
    if choice.typing:
        return glyphs.styled(f" filter: {glyphs.clean(choice.filters[choice.view])}█", "bold").append(
            "   Enter keeps it, Esc ends it", SOFT
        )
    found = glyphs.styled(" ")
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
