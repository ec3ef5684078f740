"""Gzip streams of parts that were compressed apart from each other."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from simgpu.web import compressing


@given(st.lists(st.binary(max_size=300)))
def test_parts_are_one_gzip_member_that_reads_as_their_texts(texts: list[bytes]) -> None:
    trailer, stream = compressing.Trailer(), compressing.HEADER
    for text in texts:
        part = compressing.part(text)
        trailer.add(part)
        stream += part.blocks
    reader = zlib.decompressobj(31)
    assert reader.decompress(stream + trailer.end()) == b"".join(texts)
    assert reader.eof, "its checksum was read, and is right"
    assert reader.unused_data == b""


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_checksum_is_made_from_those_of_two_texts(first: bytes, second: bytes) -> None:
    joined = compressing.joined_checksum(zlib.crc32(first), zlib.crc32(second), len(second))
    assert joined == zlib.crc32(first + second)
