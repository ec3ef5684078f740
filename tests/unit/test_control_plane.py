"""How long the processes of a cluster may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from simgpu.cluster import control_plane, progress, record
from simgpu.kube import errors

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


class Server:
    """Answers a request after some failures."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)

    async def request(self) -> str:
        if self._failures:
            raise self._failures.pop(0)
        return "served"


async def test_a_server_that_is_busy_starting_is_asked_until_it_answers(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "_RETRY_SECONDS", 0.0)
    starting = errors.Starting(403, "Forbidden", "nodes is forbidden: not yet ready to handle request")
    server = Server(errors.ConnectError("refused"), starting, errors.ServerError(500, "", ""))
    assert await plane.until_served(server.request) == "served"


class Lines(progress.Silent):
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, item: str, doing: str) -> None:
        self.lines.append(f"{item}: {doing}")

    def done(self, item: str, result: str) -> None:
        self.lines.append(f"{item}: {result}")


async def test_many_requests_to_a_server_that_is_busy_are_reported_once(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(plane, "_progress", shown := Lines())
    servers = [Server(errors.ConnectError("refused")) for _ in range(40)]
    await asyncio.gather(*(plane.until_served(server.request) for server in servers))
    assert shown.lines == ["requests: not served yet: refused", "requests: served"]


class Time:
    """The time of the event loop, which moves on when something sleeps, and not otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self.now, self.pauses = self._loop.time(), list[float]()
        monkeypatch.setattr(self._loop, "time", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def test_the_time_of_requests_that_fail_is_not_that_of_the_nodes_and_no_reason_to_pause_longer(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    served, looks = time.now + 60.0, 0

    async def all_ready() -> bool:
        nonlocal looks
        if time.now < served:
            raise errors.ConnectError("refused")
        looks += 1
        return looks == 2

    await plane.until("kwok", all_ready, seconds=30.0)
    assert max(time.pauses) <= 1.0
    monkeypatch.undo()


async def test_looks_that_take_long_are_not_made_all_the_time(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, looks = Time(monkeypatch), 0

    async def slowly() -> bool:
        nonlocal looks
        looks += 1
        time.now += (1.0, 20.0, 0.0)[looks - 1]
        return looks == 3

    await plane.until("kwok", slowly, seconds=60.0)
    assert time.pauses == [pytest.approx(4.0), 30.0]
    monkeypatch.undo()


async def test_looks_that_take_long_count_for_the_time_limit(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    began = time.now

    async def in_vain() -> bool:
        time.now += 5.0
        return False

    with pytest.raises(control_plane.ComponentError, match="made no progress in 60 s"):
        await plane.until("kwok", in_vain, seconds=60.0)
    assert time.now - began < 120.0
    monkeypatch.undo()


async def test_a_request_that_can_never_succeed_is_an_error_at_once(plane: control_plane.ControlPlane) -> None:
    server = Server(errors.Forbidden(403, "Forbidden", "no"))
    with pytest.raises(errors.Forbidden):
        await plane.until_served(server.request)


async def test_a_component_that_ended_is_the_error_instead_of_requests_that_fail(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "_expected", ["kwok"])
    with pytest.raises(control_plane.ComponentError, match=r"kwok ended.*\n  what it said last"):
        await plane.until_served(Server(errors.ConnectError("refused")).request)


async def test_a_server_that_never_serves_is_the_error_with_its_last_failure_and_its_log(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "READY_SECONDS", 0.0)
    plane._folder.log("kube-apiserver").write_text("no quorum")
    reason = r"kube-apiserver did not serve a request in 0 s: no webhook.*\n  no quorum"
    with pytest.raises(control_plane.ComponentError, match=reason):
        await plane.until_served(Server(errors.ServerError(500, "InternalError", "no webhook")).request)
