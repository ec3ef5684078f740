"""Pieces of large pages that are kept compressed."""

from __future__ import annotations

from simgpu.identities.render import Piece
from simgpu.web import compressing, streaming


def piece(key: str, state: int) -> Piece:
    return Piece(lambda: b"text", key, state)


def test_a_piece_is_kept_when_two_pages_had_it_alike_and_until_it_changes() -> None:
    kept, part = streaming.Kept(), compressing.part(b"text")
    assert kept.find(piece("a", 1)) == (None, False)
    assert kept.find(piece("a", 1)) == (None, True)
    kept.add(piece("a", 1), part)
    assert kept.find(piece("a", 1)) == (part, True)
    assert kept.find(piece("a", 2)) == (None, False)
    assert kept.size == 0
    kept.add(piece("a", 1), part)
    assert kept.find(piece("a", 2)) == (None, True), "one that is ready late does not replace a newer one"


def test_kept_pieces_take_no_more_than_their_limit() -> None:
    part = compressing.part(b"text")
    kept = streaming.Kept(limit=2 * len(part.blocks) + 1)
    for key in "abc":
        kept.find(piece(key, 1))
        kept.add(piece(key, 1), part)
    assert [kept.find(piece(key, 1))[0] for key in "abc"] == [part, part, None]
    assert kept.size == 2 * len(part.blocks)
