"""The simulated H200 beside the recorded one."""

from __future__ import annotations

from fidelity import compare, recordings
from simgpu.catalog import models

CATALOG = models.load()


def test_every_figure_of_every_recorded_phase_is_within_what_is_allowed() -> None:
    recording = recordings.load("h200-a")
    found = compare.checks(recording, compare.simulate(recording, CATALOG.models[recording.model]))
    assert len(found) > 100
    assert [check for check in found if not check.good] == []
    assert sum(check.widened for check in found) <= 12


def test_a_card_that_behaves_otherwise_is_found_out() -> None:
    recording = recordings.load("h200-a")
    found = compare.checks(recording, compare.simulate(recording, CATALOG.models["h100"]))
    assert any(not check.good for check in found)
