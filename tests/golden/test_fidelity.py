"""The simulated H200 beside the recorded one."""

from __future__ import annotations

import pytest

from fidelity import compare, recordings
from simgpu.catalog import models

CATALOG = models.load()


@pytest.mark.parametrize("seed", [1, 2])
def test_every_figure_of_every_recorded_phase_is_within_what_is_allowed(seed: int) -> None:
    recording = recordings.load("h200-a")
    found = compare.checks(recording, compare.simulate(recording, CATALOG.models[recording.model], seed=seed))
    assert len(found) > 100
    assert [check for check in found if not check.good] == []


def test_a_card_that_behaves_otherwise_is_found_out() -> None:
    recording = recordings.load("h200-a")
    found = compare.checks(recording, compare.simulate(recording, CATALOG.models["h100"]))
    assert any(not check.good for check in found)
