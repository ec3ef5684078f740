"""Programs out of archives that others packed."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simgpu.cluster import archives

KIB = 1024


def packed(*members: tuple[str, bytes], kind: int = tarfile.GNU_FORMAT, **headers: str) -> bytes:
    """A tar archive, not yet compressed."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind, pax_headers=headers) as opened:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def extracted(folder: Path, tar: bytes, *, max_bytes: int = 64 * KIB) -> bytes:
    archive, target = folder / "a.tar.gz", folder / "program"
    archive.write_bytes(gzip.compress(tar, 1))
    archives.extract(archive, "program", target, max_bytes=max_bytes)
    return target.read_bytes()


LONG = "x" * archives.MAX_METADATA_BYTES


@pytest.mark.parametrize(
    "made",
    [
        lambda: packed((LONG, b""), ("program", b"it")),
        lambda: packed(("program", b"it"), kind=tarfile.PAX_FORMAT, comment=LONG),
        lambda: packed(*[(f"{number}{'x' * 200 * KIB}", b"") for number in range(90)], ("program", b"it")),
    ],
    ids=["a name", "a header", "names"],
)
def test_names_and_headers_beyond_the_limit_are_rejected_and_not_held(
    made: Callable[[], bytes], tmp_path: Path
) -> None:
    with pytest.raises(archives.ArchiveError, match="bytes of names and headers"):
        extracted(tmp_path, made())
    assert not (tmp_path / "program").exists()


def test_a_program_larger_than_the_limit_on_headers_is_taken(tmp_path: Path) -> None:
    large = b"x" * (archives.MAX_METADATA_BYTES + 1)
    found = extracted(tmp_path, packed(("other", large), ("program", large)), max_bytes=4 * len(large))
    assert found == large


def test_names_within_names_without_end_are_an_error_of_ours(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 1
    block = entry.tobuf(tarfile.GNU_FORMAT) + b"x" * 512
    with pytest.raises(archives.ArchiveError):
        extracted(tmp_path, block * 2000 + packed(("program", b"it")))


WHOLE = packed(("first", b"x" * 600), ("program", b"it"), kind=tarfile.PAX_FORMAT, comment="some text")


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12)), max_size=4))
@example([(124, b"\xff" * 12)])
@example([(156, b"S"), (386, b"9" * 12)])
def test_whatever_an_archive_holds_is_a_program_or_an_error_of_ours(changes: list[tuple[int, bytes]]) -> None:
    tar = bytearray(WHOLE)
    for place, data in changes:
        tar[place : place + len(data)] = data
    for start in range(0, len(tar) - 512, 512):  # so that headers are read at all
        header = tar[start : start + 512]
        header[148:156] = b" " * 8
        tar[start + 148 : start + 156] = (
            b"%06o\0 " % sum(header) if any(header[:148]) else tar[start + 148 : start + 156]
        )
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(archives.ArchiveError):
        extracted(Path(folder), bytes(tar))
