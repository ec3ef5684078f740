"""Extracts one member of a tar.gz archive. Its path in the archive never becomes a path on disk."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path

from simgpu import errors

MAX_METADATA_BYTES = 16 << 20

# What the library raises for a malformed archive: its own errors, and those of parsing text as numbers.
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError, RecursionError)


class ArchiveError(errors.SimgpuError):
    """An archive is malformed, too large, or lacks the member."""


def extract(archive: Path, member: str, target: Path, *, max_bytes: int) -> None:
    """Write the member to `target`; at most `max_bytes` of files are unpacked up to its end."""
    unpacked = 0
    try:
        with _Limited(archive) as limited, tarfile.open(fileobj=limited, mode="r|") as opened:
            for entry in opened:
                unpacked += max(0, entry.size)
                if unpacked > max_bytes:
                    raise ArchiveError(f"more than {max_bytes} bytes up to the end of {member}")
                limited.allow(entry)
                if entry.name.removeprefix("./") == member:
                    _write(opened, entry, target)
                    return
    except _BROKEN as error:
        raise ArchiveError(f"not a complete tar.gz archive: {error}") from error
    raise ArchiveError(f"it does not contain {member}")


class _Limited(gzip.GzipFile):
    """The unpacked bytes of an archive: those of allowed files, and MAX_METADATA_BYTES of others.

    Names and headers may be of any length and are held in memory, so they are limited.
    """

    def __init__(self, archive: Path) -> None:
        super().__init__(archive, "rb")
        self._left = MAX_METADATA_BYTES

    def allow(self, entry: tarfile.TarInfo) -> None:
        """Allow the content of an entry to be read. A sparse file has less than its size."""
        if entry.isreg() and not entry.issparse():
            self._left += max(0, entry.size)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; ArchiveError beyond the limit."""
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError(f"more than {MAX_METADATA_BYTES} bytes of names and headers")
        return data


def _write(opened: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = opened.extractfile(entry) if entry.isreg() else None
    if content is None:
        raise ArchiveError(f"{entry.name} is not a regular file")
    with target.open("wb") as file:
        shutil.copyfileobj(content, file)
