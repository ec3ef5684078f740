"""Records `simgpu top` with a simulated fleet behind it, as an animated SVG: `python -m docs.recording`."""

from __future__ import annotations

import asyncio
import html
import itertools
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.fixtures import terminals
from tests.fixtures.dashboards import ServedFleet
from tests.fixtures.terminals import DOWN, ENTER, ESCAPE, Terminal

PICTURE = Path(__file__).parent / "images" / "top.svg"
SIMGPU = str(Path(sys.executable).parent / "simgpu")
COLUMNS, LINES = 116, 30
_WIDE, _HIGH, _EDGE, _BAR = 8.4, 18.0, 14, 34

# Keys, what has to be on the screen then, after how many seconds, how many pictures, and how long each is shown.
SCENES: tuple[tuple[tuple[bytes, ...], str, float, int, float], ...] = (
    ((), "UTILISATION", 8.0, 3, 1.0),
    ((b"s",), "sorted by power", 0.0, 2, 1.0),
    ((b"/", b"infer"), "filter: infer", 0.0, 1, 1.6),
    ((ESCAPE,), "training-", 0.0, 0, 0.0),
    ((DOWN, DOWN, ENTER), "GPU HEALTH", 0.0, 2, 1.1),
    ((DOWN, ENTER), "Counters", 45.0, 4, 0.8),
    ((b"3",), "NAMESPACE", 0.0, 2, 1.3),
)
_COLOURS = {
    "black": "1c2128", "red": "f47067", "green": "57ab5a", "brown": "c69026", "yellow": "c69026", "blue": "539bf5",
    "magenta": "b083f0", "cyan": "39c5cf", "white": "cdd9e5", "default": "adbac7",
}  # fmt: skip
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_SPACE = "\N{NO-BREAK SPACE}"  # others become one
_INK, _PAPER = "adbac7", "1c2128"


class Frame(NamedTuple):
    """A picture and how long it is shown."""

    body: str
    seconds: float


def record(url: str) -> list[Frame]:
    """Press the keys, and take pictures."""
    frames: list[Frame] = []
    with terminals.opened([SIMGPU, "top", url], COLUMNS, LINES) as terminal:
        for keys, shown, wait, count, seconds in SCENES:
            for key in keys:
                terminal.press(key)
                terminal.read(0.2)
            terminal.shows(shown)
            _watch(terminal, wait)  # curves need some history
            for _ in range(count):
                _watch(terminal, 0.6)
                frames.append(Frame(_body(terminal), seconds))
        terminal.press(b"q")
        terminal.ends()
    return frames


def _watch(terminal: Terminal, seconds: float) -> None:
    """Take what is printed in some seconds, so that the next picture is another."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read()


def _body(terminal: Terminal) -> str:
    return "".join(itertools.chain.from_iterable(_line(terminal, y) for y in range(LINES)))


def _line(terminal: Terminal, y: int) -> Iterator[str]:
    """Yield the texts of a line, each in one style."""
    cells = [terminal.screen.buffer[y][x] for x in range(COLUMNS)]
    x = 0
    for style, run in itertools.groupby(cells, key=_style):
        text = "".join(cell.data for cell in run)
        ink, paper, bold = style
        at, top = x * _WIDE, y * _HIGH
        if paper != _PAPER:
            yield f'<rect x="{at:.1f}" y="{top:g}" width="{len(text) * _WIDE:.1f}" height="{_HIGH:g}" fill="#{paper}"/>'
        if text.strip():
            start = len(text) - len(text.lstrip())
            words = text.strip()
            size = f'x="{at + start * _WIDE:.1f}" y="{top + 13.5:g}" textLength="{len(words) * _WIDE:.1f}"'
            yield f'<text class="c{ink}{" b" if bold else ""}" {size}>{html.escape(words).replace(" ", _SPACE)}</text>'
        x += len(text)


def _style(cell: Any) -> tuple[str, str, bool]:
    ink, paper = _COLOURS.get(cell.fg, cell.fg), _PAPER if cell.bg == "default" else _COLOURS.get(cell.bg, cell.bg)
    return (paper, ink, cell.bold) if cell.reverse else (ink, paper, cell.bold)


def drawn(frames: list[Frame]) -> str:
    """Return the frames as one SVG; where motion is not wanted, the first alone."""
    width, height = COLUMNS * _WIDE + 2 * _EDGE, LINES * _HIGH + _BAR + _EDGE
    total = sum(frame.seconds for frame in frames)
    style, groups, at = [], [], 0.0
    for number, frame in enumerate(frames):
        start, end = 100 * at / total, 100 * (at + frame.seconds) / total
        steps = f"0%{{opacity:{int(number == 0)}}}{start:.3f}%{{opacity:1}}{end:.3f}%,100%{{opacity:0}}"
        style.append(f"@keyframes f{number}{{{steps}}}#f{number}{{animation:f{number} {total:g}s step-end infinite}}")
        groups.append(f'<g id="f{number}" opacity="{int(number == 0)}">{frame.body}</g>')
        at += frame.seconds
    inks = sorted({ink for frame in frames for ink in re.findall('class="c([0-9a-f]{6})', frame.body)})
    style += [".b{font-weight:700}", *(f".c{ink}{{fill:#{ink}}}" for ink in inks)]
    still = "@media(prefers-reduced-motion:reduce){g{animation:none!important}}"
    dots = "".join(
        f'<circle cx="{20 + 18 * n}" cy="17" r="5.5" fill="{colour}"/>'
        for n, colour in enumerate(("#f47067", "#c69026", "#57ab5a"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="simgpu top: nodes, a node, a GPU with its curves, pods and GPUs of a simulated fleet">'
        f"<style>text{{font:14px {_FONTS}}}"
        f'{"".join(style)}{still}</style><rect width="{width:g}" height="{height:g}" rx="8" fill="#{_PAPER}"/>{dots}'
        f'<text x="{width / 2:g}" y="21" fill="#{_INK}" text-anchor="middle">simgpu top</text>'
        f'<g transform="translate({_EDGE} {_BAR})">{"".join(groups)}</g></svg>\n'
    )


def main() -> None:
    """Serve a fleet in a thread, and record."""
    fleet, ready, stop = ServedFleet(60), threading.Event(), threading.Event()
    for _ in range(60):
        fleet.step(1.0)
    address: list[str] = []

    async def serve() -> None:
        async with fleet.serving() as url:
            address.append(url)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.25)
                fleet.step()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        ready.wait()
        PICTURE.write_text(drawn(record(address[0])))
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
