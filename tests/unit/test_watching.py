"""Something shown again and again."""

from __future__ import annotations

import pytest

from simgpu.cli import watching


async def test_without_a_terminal_only_changes_are_printed_until_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    states = iter(["starting", "starting", "ready", "ready", "gone"])

    async def read() -> str:
        state = next(states)
        if state == "gone":
            raise LookupError(state)
        return state

    with watching.shown(in_place=True) as show, pytest.raises(LookupError):
        await watching.follow(read, show, seconds=0)
    assert capsys.readouterr().out == "starting\nready\n"
