"""Gzip, in one piece, or of parts that are compressed apart from each other and sent as one stream.

Parts may be compressed in several threads, and one that is sent again needs not be compressed again. Together they are
one member of a gzip file: not all HTTP clients read a body of several.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Any, NamedTuple

_LEVEL = 1  # isal's level 0 is no faster, and half as large again
_RAW = -15  # bits of the window; negative for blocks without a header and a checksum
_END = b"\x03\x00"  # an empty block that is the last

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, no system


def joined_checksum(first: int, second: int, size: int) -> int:
    """Return the checksum of two texts from the checksum of each and the size of the second."""
    zeros = bytes(size)  # checksums are linear: what the second text adds does not depend on the first
    return zlib.crc32(zeros, first) ^ zlib.crc32(zeros) ^ second


try:
    from isal import igzip, isal_zlib

    def compress(page: bytes) -> bytes:
        """Return a page compressed."""
        return bytes(igzip.compress(page, _LEVEL))

    def _compressor() -> Any:
        return isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _RAW)

    _crc32 = isal_zlib.crc32
    _joined = isal_zlib.crc32_combine
except ImportError:  # pragma: no cover - the extra is not installed

    def compress(page: bytes) -> bytes:
        """Return a page compressed."""
        return gzip.compress(page, _LEVEL)

    def _compressor() -> Any:
        return zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)

    _crc32 = zlib.crc32
    _joined = joined_checksum


class Deflated(NamedTuple):
    """Compressed blocks that end with a whole byte and refer to nothing before them; checksum and size of the text."""

    blocks: bytes
    checksum: int
    size: int


def part(text: bytes) -> Deflated:
    """Return a part of a stream compressed."""
    compressor = _compressor()
    blocks = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return Deflated(blocks, _crc32(text), len(text))


class Trailer:
    """Computes the end of a stream from its parts."""

    def __init__(self) -> None:
        self._checksum = self._size = 0

    def add(self, found: Deflated) -> None:
        """Add a part, in the order in which they are sent."""
        self._checksum = _joined(self._checksum, found.checksum, found.size)
        self._size += found.size

    def end(self) -> bytes:
        """Return what ends the stream."""
        return _END + struct.pack("<LL", self._checksum, self._size & 0xFFFFFFFF)
