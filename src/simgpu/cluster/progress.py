"""How long-running work reports progress. Showing it on a terminal is left to the commands."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of each item of the work."""

    def update(self, item: str, doing: str) -> None:
        """Report what `item` is doing now."""

    def done(self, item: str, result: str) -> None:
        """Report that `item` is finished."""

    def note(self, line: str) -> None:
        """Report a line that the user should read, independent of items."""


class Silent:
    """Discards progress."""

    def update(self, item: str, doing: str) -> None:
        """Ignore."""

    def done(self, item: str, result: str) -> None:
        """Ignore."""

    def note(self, line: str) -> None:
        """Ignore."""
