"""Takes one member out of a tar.gz archive. Its path in the archive never becomes a path on disk."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from typing import TYPE_CHECKING

from simgpu import errors

if TYPE_CHECKING:
    from pathlib import Path


class ArchiveError(errors.SimgpuError):
    """An archive does not hold what it should."""


def extract(archive: Path, member: str, target: Path, *, most_bytes: int) -> None:
    """Write the member to `target`; no more than `most_bytes` of the archive are unpacked on the way to it."""
    try:
        with tarfile.open(archive, "r|gz") as opened:
            unpacked = 0
            for entry in opened:
                unpacked += entry.size
                if unpacked > most_bytes:
                    raise ArchiveError(f"more than {most_bytes} bytes before the end of {member}")
                if entry.name.removeprefix("./") == member:
                    _write(opened, entry, target)
                    return
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ArchiveError(f"not a whole tar.gz archive: {error}") from error
    raise ArchiveError(f"it holds no {member}")


def _write(opened: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = opened.extractfile(entry) if entry.isreg() else None
    if content is None:
        raise ArchiveError(f"{entry.name} in it is not a regular file")
    with target.open("wb") as file:
        shutil.copyfileobj(content, file)
