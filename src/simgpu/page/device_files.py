"""Empty files in place of device files, for programs that find devices by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from simgpu import errors


@contextlib.contextmanager
def create(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Create an empty file for each name that has none, and remove these at the end."""
    created: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / name
            if not path.exists():
                path.touch()
                created.append(path)
        yield
    except OSError as error:
        raise errors.InputError("--device-files", errors.explain(error)) from None
    finally:
        for path in created:
            path.unlink(missing_ok=True)
