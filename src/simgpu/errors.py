"""Errors for the user.

Errors that a command reports without a traceback derive from `SimgpuError`; `exit_code` is the command's exit code.

    SimgpuError            1   a failure; the message has what failed, where, and what to do
    ├── InputError         2   invalid input; the message has the field and what is allowed
    └── NotRunnable  126, 127   a command of the user could not be started (126) or found (127), as in shells
"""

import errno
import reprlib
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_MAX_SHOWN, _MAX_CLIPPED = 120, 500  # characters
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _MAX_SHOWN


class SimgpuError(Exception):
    """A failure that the user can act on."""

    exit_code = 1


class InputError(SimgpuError):
    """The value of an option, file or field is invalid."""

    exit_code = 2

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotRunnable(SimgpuError):
    """A command that the user gave could not be started."""

    def __init__(self, command: str, problem: str, *, found: bool) -> None:
        super().__init__(f"{command}: {problem}")
        self.exit_code = 126 if found else 127


def convert(value: Any, kind: type[T], *, field: str) -> T:
    """Return a value as a `kind`; raises `InputError` with what is wrong, and where in it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(field, clipped(str(error).replace("`$.", "`"))) from None


def shown(value: Any) -> str:
    """Return the representation of a value for a message, truncated if it is long."""
    return clipped(_short.repr(value), _MAX_SHOWN)


def clipped(text: str, max_length: int = _MAX_CLIPPED) -> str:
    """Return a text for a message, truncated to `max_length` characters."""
    return text if len(text) <= max_length else f"{text[:max_length]}..."


def printable(text: str) -> str:
    """Return a text without characters that a terminal would act on, other than line breaks and tabs."""
    if text.isprintable():
        return text
    acted_on = (ord(letter) for letter in set(text) if not letter.isprintable() and letter not in "\n\t")
    return text.translate(dict.fromkeys(acted_on, "·"))


def explain(error: OSError) -> str:
    """Return the message of an operating system error, with the path."""
    name = error.filename2 or error.filename  # of a rename, the target
    where = f"{name}: " if name else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full; free some space and try again"
    return f"{where}{error.strerror or error}"
