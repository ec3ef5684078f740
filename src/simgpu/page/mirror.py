"""Pages that another machine has sent, as files for nvidia-smi here. Nothing in them is trusted."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simgpu import boot, errors, vocabulary
from simgpu.page import layout, mapping, writer

MAX_PAGES: Final = vocabulary.MAX_PAGES * layout.INSTANCES
MAX_BYTES: Final = 1 << 16  # of a page, also of later versions

_MAX_CLOCK = 1e12  # seconds since 1970: in microseconds it fits on a page
_ID = re.compile(r"(GPU|MIG)-[0-9a-z-]{1,72}")
_PRINTABLE = bytes(byte if 0x20 <= byte < 0x7F else 0 if byte == 0 else ord("?") for byte in range(256))


class MirroredPages:
    """Pages below a folder, each valid for `stale` seconds after it was last shown. They cannot be changed."""

    def __init__(self, root: Path, *, stale: float) -> None:
        self.root = root
        self._stale = stale
        self._maps: dict[str, npt.NDArray[Any]] = {}
        self._publisher = mapping.Publisher()

    def show(self, pages: Sequence[tuple[str, bytes]], *, clock: float, monotonic_ns: int) -> None:
        """Show these pages alone, by the ids of their GPUs or MIG instances; `clock` is in seconds since 1970."""
        if not 0 < len(pages) <= MAX_PAGES:
            raise errors.SimgpuError(f"the server sent {len(pages)} pages; at most {MAX_PAGES} are possible")
        if not 0 <= clock <= _MAX_CLOCK:
            raise errors.SimgpuError(f"the server sent an invalid time: {clock:g}")
        self._remove_others({name for name, _ in pages})
        for name, content in pages:
            row = _row(name, content)
            mapped = self._maps.get(name)
            if mapped is None:
                mapped = self._maps[name] = mapping.open_page(self.root / name)
            row["sample_count"], row["samples"] = mapped["sample_count"], mapped["samples"]
            writer.sample(row, clock)
            alive = bool(row["stale_ns"][0])
            row["written_ns"], row["stale_ns"] = alive * monotonic_ns, alive * int(self._stale * 1e9)
            row["boot"], row["control"] = boot.current().encode(), b""
            self._publisher.publish(row[0], mapped)

    def _remove_others(self, names: set[str]) -> None:
        """Remove all other pages: readers find no GPU, and those that have one open see it as lost."""
        for name in self._maps.keys() - names:
            mapped = self._maps.pop(name)
            row = mapped.copy()
            row["written_ns"] = row["stale_ns"] = 0
            self._publisher.publish(row[0], mapped)
            (self.root / name / mapping.FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (self.root / name).rmdir()


def _row(name: str, content: bytes) -> npt.NDArray[Any]:
    if not _ID.fullmatch(name) or len(content) > MAX_BYTES:
        raise errors.SimgpuError(f"the server sent an invalid page: {errors.shown(name)}, {len(content)} bytes")
    known = content[: layout.DTYPE.itemsize].ljust(layout.DTYPE.itemsize, b"\0")
    row: npt.NDArray[Any] = np.frombuffer(bytearray(known), layout.DTYPE)
    if row["magic"][0] != layout.MAGIC or row["major"][0] != layout.MAJOR:
        raise errors.SimgpuError("the server's pages are of another version: use the same version of simgpu as it has")
    row["size"] = layout.DTYPE.itemsize
    _clean(row, layout.PAGE)
    return row


def _clean(values: npt.NDArray[Any], fields: Sequence[layout.Field]) -> None:
    """Replace everything in texts that a terminal would act on."""
    for field in fields:
        if field.type.startswith("S"):
            texts = values[field.name]
            texts[...] = np.array([text.translate(_PRINTABLE) for text in texts.ravel()]).reshape(texts.shape)
        elif field.type in layout.RECORDS:
            _clean(values[field.name], layout.RECORDS[field.type])
