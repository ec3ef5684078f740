"""Queries against servers whose answers are large."""

from __future__ import annotations

import json

import pytest

from simgpu.promql import asking
from tests.fixtures.http import NOWHERE, Scripted, stream

SERIES = 20_000


def pieces() -> list[bytes]:
    """An answer with many series, as a server sends it that has no whole answer at any time."""
    series = [{"metric": {"pod": f"p{number}"}, "value": [1.0, str(number)]} for number in range(SERIES)]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()
    return [body[start : start + 65536] for start in range(0, len(body), 65536)]


async def test_an_answer_that_comes_in_pieces_is_read_whole(scripted: Scripted) -> None:
    scripted.script = [stream(*pieces())]
    found = await asking.instant(scripted.target.server, "up")
    assert [sample.value for sample in found] == list(range(SERIES))


async def test_an_answer_that_is_too_large_is_an_error(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_BYTES", 1 << 20)
    scripted.script = [stream(*pieces())]
    with pytest.raises(asking.QueryError, match="the answer has more than 1 MiB"):
        await asking.instant(scripted.target.server, "up")


async def test_a_redirect_to_what_is_no_url_is_an_error(scripted: Scripted) -> None:
    scripted.script = [NOWHERE]
    with pytest.raises(asking.QueryError, match=scripted.target.server):
        await asking.instant(scripted.target.server, "up")
