"""NVIDIA's own nvidia-smi on our library printed what it had printed on a real card, but for what is listed."""

from __future__ import annotations

from typing import Final

import pytest

from tests.fixtures import real_smi

RECORDED: Final = real_smi.recorded()
KEPT: Final = real_smi.kept()


@pytest.mark.parametrize("name", KEPT)
def test_it_printed_what_was_recorded(name: str) -> None:
    assert real_smi.is_as_listed(name, RECORDED[name], KEPT[name])


def test_every_view_was_run_with_it() -> None:
    assert set(KEPT) == set(RECORDED)
