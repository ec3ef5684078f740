"""Draws the picture of the architecture from `architecture.txt`: `python -m docs.architecture`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from html import escape
from pathlib import Path

SOURCE = Path(__file__).parent / "architecture.txt"
PICTURE = Path(__file__).parent / "images" / "architecture.svg"

MARGIN, LANE, BETWEEN = 24, 264, 46  # widths in pixels: the border, a lane, the room for arrows between lanes
BOX, GAP, TOP = 98, 12, 92  # heights of a box and of the space below it, and where lanes begin
INSET = 12  # from the edge of a frame to its boxes, and of a box to its text
LINE = 21  # from one line of a box to the next
SIZES = {"title": 22, "heading": 15, "name": 15, "detail": 12.5, "place": 11.5, "label": 12, "tag": 11}
CHARACTER, BOLD_CHARACTER = 0.6, 0.68  # width of one in a wide font, as a share of the font's size

STYLE = """
  svg { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
    --paper: #ffffff; --ink: #1b1f24; --faint: #59636e; --box: #ffffff; --line: #8c959f; --frame: #eef4fb;
    --controller: #ddf4ff; --agent: #dafbe1; --exporter: #fff1c9; --run: #fbe3ff }
  @media (prefers-color-scheme: dark) { svg {
    --paper: #0d1117; --ink: #e6edf3; --faint: #9da7b3; --box: #161b22; --line: #6e7681; --frame: #1b2636;
    --controller: #0c3a63; --agent: #13471f; --exporter: #574208; --run: #552a68 } }
  .paper { fill: var(--paper) } .box { fill: var(--box); stroke: var(--line) } .frame { fill: var(--frame) }
  .arrow { stroke: var(--line); stroke-width: 1.6; fill: none; marker-end: url(#head) } #head path { fill: var(--line) }
  text { fill: var(--ink) } .place, .label { fill: var(--faint) } .place { font-family: ui-monospace, monospace }
  .title, .heading, .name { font-weight: 600 }
  .controller { fill: var(--controller) } .agent { fill: var(--agent) }
  .exporter { fill: var(--exporter) } .run { fill: var(--run) }"""

HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z"/></marker>'
)


@dataclasses.dataclass
class Box:
    """A box and where it stands, in pixels from the top left."""

    name: str
    title: str
    detail: str
    place: str
    processes: tuple[str, ...] = ()
    x: float = 0
    y: float = 0
    width: float = LANE
    height: float = BOX


@dataclasses.dataclass
class Lane:
    """A column of boxes under a heading; a framed one can be the end of an arrow itself."""

    name: str
    heading: str
    framed: bool = False
    boxes: list[Box] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Drawing:
    """What the text says, line by line."""

    title: str = ""
    heading: str = ""
    lanes: list[Lane] = dataclasses.field(default_factory=list)
    processes: list[Box] = dataclasses.field(default_factory=list)
    arrows: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)


def parse(text: str) -> Drawing:
    """The drawing that a text describes; ValueError names a line that means nothing."""
    drawing = Drawing()
    for number, line in enumerate(text.splitlines(), start=1):
        kind, _, rest = line.strip().partition(" ")
        match [kind, *(part.strip() for part in rest.split("|"))]:
            case ["" | "#", *_]:
                pass
            case ["title" | "heading", words]:
                setattr(drawing, kind, words)
            case ["lane", name, heading]:
                drawing.lanes.append(Lane(name, heading))
            case ["frame", _]:
                drawing.lanes[-1].framed = True
            case ["box", name, title, detail, place, *processes]:
                drawing.lanes[-1].boxes.append(Box(name, title, detail, place, tuple(" ".join(processes).split())))
            case ["process", name, title, detail, place]:
                drawing.processes.append(Box(name, title, detail, place))
            case ["arrow", ends, *label]:
                start, _, end = ends.partition(" -> ")
                drawing.arrows.append((start, end.strip(), " ".join(label)))
            case _:
                raise ValueError(f"{SOURCE.name}, line {number}: {line}")
    return drawing


def width_of(words: str, kind: str) -> float:
    """Pixels that a text of this kind takes at most, in a wide font."""
    return len(words) * SIZES[kind] * (BOLD_CHARACTER if kind in {"title", "heading", "name"} else CHARACTER)


def arrange(drawing: Drawing) -> tuple[float, float]:
    """Give every box its place; returns width and height of the picture. ValueError names a text that does not fit."""
    lanes, processes = drawing.lanes, drawing.processes
    width = 2 * MARGIN + len(lanes) * LANE + (len(lanes) - 1) * BETWEEN
    height = max(len(lane.boxes) for lane in lanes) * (BOX + GAP) - GAP + 2 * INSET
    for column, lane in enumerate(lanes):
        inset = INSET if lane.framed else 0
        tall = BOX if any(box.processes for box in lane.boxes) else BOX - LINE
        space = (height - 2 * INSET - len(lane.boxes) * tall) / (len(lane.boxes) - 1)
        for row, box in enumerate(lane.boxes):
            box.x = MARGIN + column * (LANE + BETWEEN) + inset
            box.y = TOP + INSET + row * (tall + space)
            box.width, box.height = LANE - 2 * inset, tall
    bottom = TOP + height + 56
    for column, box in enumerate(processes):
        box.width = (width - 2 * MARGIN - (len(processes) - 1) * GAP) / len(processes)
        box.x, box.y, box.height = MARGIN + column * (box.width + GAP), bottom, BOX - LINE
    for box in (*processes, *(box for lane in lanes for box in lane.boxes)):
        for kind, words in (("name", box.title), ("place", box.place), ("detail", box.detail)):
            if width_of(words, kind) > box.width - 2 * INSET:
                raise ValueError(f"{SOURCE.name}: {words!r} is too long for its box")
    return width, bottom + BOX - LINE + MARGIN


def draw(drawing: Drawing) -> str:
    """The drawing as an SVG that needs nothing from elsewhere and follows a reader's light or dark mode."""
    width, height = arrange(drawing)
    below = drawing.processes[0].y - 20
    size = f'width="{width:g}" height="{height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(drawing.title)}</title>",
        f"<style>{STYLE}\n</style>",
        HEAD,
        f'<rect class="paper" {size} rx="10"/>',
        _text(drawing.title, "title", MARGIN, 44),
        *(part for lane in drawing.lanes for part in _lane(lane, height=below - TOP - 36)),
        *(_arrow(drawing, *arrow) for arrow in drawing.arrows),
        _text(drawing.heading, "heading", MARGIN, below),
        *(part for box in drawing.processes for part in _box(box, colour=box.name)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lane(lane: Lane, *, height: float) -> Iterator[str]:
    left = lane.boxes[0].x - (INSET if lane.framed else 0)
    if lane.framed:
        yield f'<rect class="frame" x="{left:g}" y="{TOP}" width="{LANE}" height="{height:g}" rx="10"/>'
    yield _text(lane.heading, "heading", left, TOP - 12)
    for box in lane.boxes:
        yield from _box(box)


def _box(box: Box, *, colour: str = "") -> Iterator[str]:
    """A box: its title, what it is, where it lives, and the processes that have it."""
    left, y = box.x + INSET, box.y + LINE + 4
    shape = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    yield f'<rect class="{f"box {colour}".strip()}" {shape} rx="7"/>'
    yield _text(box.title, "name", left, y)
    yield _text(box.detail, "detail", left, y + LINE)
    yield _text(box.place, "place", left, y + 2 * LINE)
    for process in box.processes:
        width = width_of(process, "tag") + 12
        yield f'<rect class="{process}" x="{left:g}" y="{y + 3 * LINE - 14:g}" width="{width:g}" height="18" rx="9"/>'
        yield _text(process, "tag", left + width / 2, y + 3 * LINE - 1, anchor="middle")
        left += width + 6


def _arrow(drawing: Drawing, start: str, end: str, label: str) -> str:
    """Down from a box to the one below it, or straight across between a box and a frame."""
    boxes = {box.name: box for lane in drawing.lanes for box in lane.boxes}
    if start in boxes and end in boxes:
        above, below = boxes[start], boxes[end]
        x, y = above.x + above.width / 2, above.y + above.height
        words = _text(label, "label", x + INSET, (y + below.y) / 2 + 4)
        return f'<path class="arrow" d="M{x:g} {y:g}V{below.y - 1:g}"/>{words}'
    box = boxes[start if start in boxes else end]
    y = box.y + box.height / 2
    left, right = (box.x + box.width, box.x + box.width + BETWEEN) if start in boxes else (box.x - BETWEEN, box.x)
    return f'<path class="arrow" d="M{left:g} {y:g}H{right - 1:g}"/>'


def _text(words: str, kind: str, x: float, y: float, *, anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{SIZES[kind]:g}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(parse(SOURCE.read_text())))
