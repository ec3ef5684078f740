"""NVIDIA's own nvidia-smi on our library printed what it had printed on a real card, but for what is listed."""

from __future__ import annotations

from typing import Final

import pytest

from tests.fixtures import answers, real_smi

RECORDED: Final = real_smi.recorded()
KEPT: Final = real_smi.kept()


@pytest.mark.parametrize("name", KEPT)
def test_it_printed_what_was_recorded(name: str) -> None:
    assert real_smi.is_as_listed(name, RECORDED[name], KEPT[name])


def test_every_view_was_run_with_it() -> None:
    assert set(KEPT) == set(RECORDED)


def test_the_library_answers_as_when_it_was_run() -> None:
    kept = answers.kept()
    changed = [
        f"{view}: {call}: {before!r} is {now!r} now"
        for view, call, before, now in answers.changed(kept.answers, answers.everything())
    ]
    assert not changed, (
        "the tool may print something else than what was kept: run it again (dev/real_smi). Without one, and if it "
        f"prints the same: python -m dev.real_smi.answers 'why it does'\n{chr(10).join(changed)}"
    )


def test_what_changed_since_it_was_run_has_its_reason() -> None:
    kept = answers.kept()
    assert kept.since.keys() <= kept.answers[answers.FIRST].keys()
    assert all(kept.since.values())
