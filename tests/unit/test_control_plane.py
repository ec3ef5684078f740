"""How long the processes of a cluster may take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simgpu.cluster import control_plane, progress, record

PATIENCE = 0.1


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> control_plane.ControlPlane:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = record.Folder("slow")
    folder.logs.mkdir(parents=True)
    folder.log("kwok").write_text("what it said last")
    return control_plane.ControlPlane(folder, {}, progress.Silent())


class Nodes:
    """One more of ten is ready each time that somebody looks, until they stop."""

    def __init__(self, stop: int) -> None:
        self.ready, self._stop = 0, stop

    async def all_ready(self) -> bool:
        self.ready = min(self.ready + 1, self._stop)
        return self.ready == 10


async def wait(plane: control_plane.ControlPlane, nodes: Nodes, reached: Callable[[], int] = int) -> None:
    await plane.until("kwok", nodes.all_ready, seconds=PATIENCE, reached=reached)


async def test_nodes_may_take_their_time_as_long_as_more_become_ready(plane: control_plane.ControlPlane) -> None:
    nodes = Nodes(stop=10)
    await wait(plane, nodes, lambda: nodes.ready)
    assert nodes.ready == 10


async def test_nodes_that_get_no_further_are_an_error_with_the_log(plane: control_plane.ControlPlane) -> None:
    nodes = Nodes(stop=9)
    with pytest.raises(control_plane.ComponentError, match=r"kwok made no progress in 0.1 s.*\n  what it said last"):
        await wait(plane, nodes, lambda: nodes.ready)
    assert nodes.ready == 9


async def test_what_tells_nothing_of_its_steps_has_one_time_limit(plane: control_plane.ControlPlane) -> None:
    with pytest.raises(control_plane.ComponentError, match=r"made no progress in 0.1 s"):
        await wait(plane, Nodes(stop=10))
