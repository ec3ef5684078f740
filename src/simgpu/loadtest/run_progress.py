"""How a run reports what it is doing."""

from __future__ import annotations

from typing import Protocol


class RunProgress(Protocol):
    """Receives the progress of each item of a run; showing it is left to the command."""

    def update(self, item: str, doing: str) -> None:
        """Report what `item` is doing now."""

    def done(self, item: str, result: str) -> None:
        """Report that `item` is finished."""

    def note(self, line: str) -> None:
        """Report a line that the user should read."""
