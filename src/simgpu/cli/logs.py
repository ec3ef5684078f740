"""Logging: one line per record, whatever text it quotes."""

from __future__ import annotations

import logging
from types import TracebackType

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class OneLine(logging.Formatter):
    """Escapes unprintable characters: messages quote input of pods and clients, which must not forge log lines.

    Lines of a traceback are indented, because exceptions quote such input too.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Format a record without its traceback."""
        return _printable(super().formatMessage(record))

    def formatException(  # noqa: N802 - the library's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Format the traceback."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {_printable(line)}" for line in lines)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def start(level: str) -> None:
    """Log to stderr, from this level up."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
