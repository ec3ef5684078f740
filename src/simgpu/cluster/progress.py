"""How long work tells what it is doing. The terminal's side of it lives with the commands."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what each item of the work is doing."""

    def update(self, item: str, doing: str) -> None:
        """`item` is now `doing` something."""

    def done(self, item: str, result: str) -> None:
        """`item` is finished."""

    def note(self, line: str) -> None:
        """Something that the user should know, beside the items."""


class Silent:
    """A progress that nobody watches."""

    def update(self, item: str, doing: str) -> None:
        """Ignore."""

    def done(self, item: str, result: str) -> None:
        """Ignore."""

    def note(self, line: str) -> None:
        """Ignore."""
