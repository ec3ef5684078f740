"""Takes one member out of a tar.gz archive. Its path in the archive never becomes a path on disk."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from typing import TYPE_CHECKING

from simgpu import errors

if TYPE_CHECKING:
    from pathlib import Path

MAX_METADATA_BYTES = 16 << 20

# What the library raises over an archive that is none; besides its own errors, where it takes text for numbers.
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError, RecursionError)


class ArchiveError(errors.SimgpuError):
    """An archive does not hold what it should."""


def extract(archive: Path, member: str, target: Path, *, most_bytes: int) -> None:
    """Write the member to `target`; no more than `most_bytes` of files are unpacked on the way to it."""
    unpacked = 0
    try:
        with _Limited(archive) as limited, tarfile.open(fileobj=limited, mode="r|") as opened:
            for entry in opened:
                unpacked += max(0, entry.size)
                if unpacked > most_bytes:
                    raise ArchiveError(f"more than {most_bytes} bytes before the end of {member}")
                limited.allow(entry)
                if entry.name.removeprefix("./") == member:
                    _write(opened, entry, target)
                    return
    except _BROKEN as error:
        raise ArchiveError(f"not a whole tar.gz archive: {error}") from error
    raise ArchiveError(f"it holds no {member}")


class _Limited(gzip.GzipFile):
    """The unpacked bytes of an archive: those of files that were allowed, and few others.

    Names and headers may be of any length, and are held in memory.
    """

    def __init__(self, archive: Path) -> None:
        super().__init__(archive, "rb")
        self._left = MAX_METADATA_BYTES

    def allow(self, entry: tarfile.TarInfo) -> None:
        """The content of an entry comes next. A sparse one has less than its size says."""
        if entry.isreg() and not entry.issparse():
            self._left += max(0, entry.size)

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, or an ArchiveError."""
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError(f"more than {MAX_METADATA_BYTES} bytes of names and headers")
        return data


def _write(opened: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = opened.extractfile(entry) if entry.isreg() else None
    if content is None:
        raise ArchiveError(f"{entry.name} in it is not a regular file")
    with target.open("wb") as file:
        shutil.copyfileobj(content, file)
