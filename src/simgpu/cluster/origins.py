"""Records, beside a program in the cache, where it was downloaded from."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """The release file that a program was downloaded from."""

    url: str
    sha256: str  # of the release file
    size: int  # of the program, in bytes: if it differs, the program was replaced


def record(program: Path, url: str, sha256: str) -> None:
    """Record where a program was downloaded from."""
    origin = Origin(url, sha256, program.stat().st_size)
    _file(program).write_bytes(msgspec.json.format(msgspec.json.encode(origin)))


def origin_of(program: Path) -> Origin | None:
    """Return where a program was downloaded from; None if it was not, or was replaced since."""
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        origin = msgspec.json.decode(_file(program).read_bytes(), type=Origin)
        if program.stat().st_size == origin.size:
            return origin
    return None


def _file(program: Path) -> Path:
    return program.with_name(f".{program.name}.origin.json")
