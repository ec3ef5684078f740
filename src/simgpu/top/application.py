"""The terminal: keys, sizes and redrawing. What is drawn is made elsewhere."""

from __future__ import annotations

import copy
import time
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from simgpu.top import choosing, details, screens
from simgpu.top.choosing import VIEWS, Choice
from simgpu.top.following import Follower
from simgpu.top.picture import FleetPicture

_FRAME_SECONDS = 0.1
_FAR = 1 << 40


class TopApp(App[None]):
    """Shows the picture of a follower until the user quits."""

    CSS = "Screen { background: ansi_default; overflow: hidden; } TopBoard { width: 100%; height: 100%; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(self, follower: Follower, choice: Choice) -> None:
        super().__init__(ansi_color=True)
        self._board = TopBoard(follower, choice)

    def compose(self) -> ComposeResult:
        """Show the board alone."""
        yield self._board

    def on_mount(self) -> None:
        """Take the keys."""
        self._board.focus()


class TopBoard(Widget, can_focus=True):
    """The whole screen."""

    def __init__(self, follower: Follower, choice: Choice) -> None:
        super().__init__()
        self._follower, self._choice = follower, choice
        self._frozen: FleetPicture | None = None
        self._strips: list[Strip] = []
        self._drawn: tuple[int, int] = (-1, -1)

    def on_mount(self) -> None:
        """Draw what has changed, some times in a second."""
        self.set_interval(_FRAME_SECONDS, self._look)

    def _look(self) -> None:
        live = self._follower.picture
        now = (live.state.version, self._follower.changes)
        if now == self._drawn:
            return
        self._drawn = now
        if self._frozen is None:
            self._draw()
        elif not details.known(self._frozen, self._choice.detail) and details.known(live, self._choice.detail):
            found = copy.deepcopy((live.node, live.gpu, live.curves))  # looked at while paused: as it is now
            self._frozen.node, self._frozen.gpu, self._frozen.curves = found
            self._draw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        picture = self._frozen or self._follower.picture
        picture.now = time.time()
        console = self.app.console
        lines = screens.draw(picture, self._choice, width, height)
        self._strips = [Strip(line.render(console, end="")).adjust_cell_length(width) for line in lines]
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def on_key(self, event: events.Key) -> None:
        """Change what is looked at."""
        event.stop()
        event.prevent_default()
        if self._choice.typing:
            self._type(event)
        elif event.key == "q":
            self.app.exit()
            return
        else:
            self._act(event.key)
        self._follower.look(self._choice)
        self._draw()

    def on_mouse_scroll_down(self) -> None:
        """Move down."""
        self._choice.move(3)
        self._draw()

    def on_mouse_scroll_up(self) -> None:
        """Move up."""
        self._choice.move(-3)
        self._draw()

    def _type(self, event: events.Key) -> None:
        choice = self._choice
        text = choice.filters[choice.view]
        if event.key in ("enter", "escape"):
            choice.typing = False
            text = "" if event.key == "escape" else text
        elif event.key == "backspace":
            text = text[:-1]
        elif event.character and event.is_printable:
            text += event.character
        choice.filters[choice.view] = text

    def _act(self, key: str) -> None:
        choice, page = self._choice, max(1, self.size.height - 10)
        moves = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": page, "pageup": -page, "home": -_FAR, "end": _FAR}
        if key in moves:
            choice.move(moves[key])
        elif key in ("1", "2", "3"):
            choice.look_at(VIEWS[int(key) - 1])
        elif key == "tab":
            choice.look_at(VIEWS[(VIEWS.index(choice.view) + 1) % len(VIEWS)])
        elif key == "enter":
            self._enter()
        elif key in ("escape", "backspace"):
            choice.back()
        elif key == "space":
            choice.paused = not choice.paused
            self._frozen = copy.deepcopy(self._follower.picture) if choice.paused else None
        else:
            choice.switch(key)

    def _enter(self) -> None:
        chosen = choosing.chosen(self._frozen or self._follower.picture, self._choice)
        if chosen is not None:
            self._choice.details.append(chosen)
