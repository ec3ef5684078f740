"""Errors that a user is meant to read.

Everything that a command reports without a traceback derives from `SimgpuError`; its exit code is the one
that the command ends with.

    SimgpuError            1   something failed; the message says what, where and what to do
    ├── InputError         2   the input was bad; the message names the field and what is allowed
    └── NotRunnable  126, 127   a command of the user's could not be started, or was not found, as shells say it
"""

import errno
import reprlib
from typing import Any

_MAX_SHOWN, _MAX_CLIPPED = 120, 500  # characters
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _MAX_SHOWN


class SimgpuError(Exception):
    """Something failed in a way that the user can act on."""

    exit_code = 1


class InputError(SimgpuError):
    """A flag, file or field holds something that is not allowed there."""

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


def shown(value: Any) -> str:
    """A value of a user's as a message shows it: however large it is, in a few words."""
    return clipped(_short.repr(value), _MAX_SHOWN)


def clipped(text: str, max_length: int = _MAX_CLIPPED) -> str:
    """A text for a message; of a long one, its beginning."""
    return text if len(text) <= max_length else f"{text[:max_length]}..."


def explain(error: OSError) -> str:
    """What the operating system refused, in words."""
    name = error.filename2 or error.filename  # of two, the one that something should become
    where = f"{name}: " if name else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full; free some space and run the command again, it goes on where it stopped"
    return f"{where}{error.strerror or error}"
