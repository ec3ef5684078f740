"""How long the processes of a cluster may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from simgpu.cluster import components, control_plane, processes, progress, record
from simgpu.kube import errors, wire

PATIENCE = 0.1
SERVER = components.Component("kube-apiserver", [], "http://here")


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
    assert max(time.pauses) <= 2.0
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
    monkeypatch.setattr(plane, "_expected", ["controller"])
    plane._folder.log("controller").write_text("no such file")
    with pytest.raises(control_plane.ComponentError, match=r"controller ended.*\n  no such file"):
        await plane.until_served(Server(errors.ConnectError("refused")).request)


class Ending:
    """Programs that end as soon as they are started."""

    def __init__(self, plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.started: list[str] = []
        monkeypatch.setattr(plane, "_expected", list(names))
        monkeypatch.setattr(plane, "_parts", {name: components.Component(name, [name]) for name in names})
        monkeypatch.setattr(control_plane, "alive", lambda _: set[str]())
        monkeypatch.setattr(processes, "start", lambda name, *_, **__: self.started.append(name))


async def test_a_program_that_ends_is_started_again_a_few_times(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, ending = Time(monkeypatch), Ending(plane, monkeypatch, "etcd")
    began = time.now

    with pytest.raises(control_plane.ComponentError, match="etcd ended"):
        await plane.until("etcd", never, seconds=120.0)
    assert ending.started == ["etcd"] * 3
    assert 2.0 <= time.now - began < 10.0  # not all at once, and not for long
    assert plane.started == ["etcd"]
    monkeypatch.undo()


async def test_programs_that_end_while_the_api_server_starts_are_started_again_until_it_is_ready(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, ending = Time(monkeypatch), Ending(plane, monkeypatch, "kube-scheduler")
    ready = time.now + 60.0

    async def serves(*_: object, **__: object) -> bool:
        return time.now > ready

    monkeypatch.setattr(wire, "probe", serves)
    monkeypatch.setattr(plane, "_parts", {**plane._parts, "kube-apiserver": SERVER})
    await plane.ready("kube-apiserver")
    before = len(ending.started)
    assert before > 20
    with pytest.raises(control_plane.ComponentError, match="kube-scheduler ended"):
        await plane.until("kube-scheduler", never, seconds=120.0)
    assert len(ending.started) == before + 3
    monkeypatch.undo()


async def never() -> bool:
    return False


async def test_one_whose_port_was_taken_is_not_started_again_but_one_before_it_does_not_matter(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    Time(monkeypatch)
    ending, log = Ending(plane, monkeypatch, "etcd"), plane._folder.log("etcd")
    log.write_text("bind: address already in use\n")
    plane._launch("etcd")
    with pytest.raises(control_plane.ComponentError) as ended:
        await plane.until("etcd", never, seconds=120.0)
    assert not ended.value.port_taken
    assert len(ending.started) == 4
    with log.open("a") as file:
        file.write("bind: address already in use\n")
    with pytest.raises(control_plane.ComponentError) as ended:
        await plane.until("etcd", never, seconds=120.0)
    assert ended.value.port_taken
    monkeypatch.undo()


async def test_a_component_is_looked_at_often_although_its_answers_take_long(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)

    async def slowly(*_: object, **__: object) -> bool:
        time.now += 5.0
        return len(time.pauses) == 3

    monkeypatch.setattr(wire, "probe", slowly)
    monkeypatch.setattr(plane, "_parts", {"kube-apiserver": SERVER})
    await plane.ready("kube-apiserver")
    assert max(time.pauses) <= 1.0
    monkeypatch.undo()


async def test_after_a_request_that_was_cancelled_others_that_fail_are_reported(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "_progress", shown := Lines())
    refused = errors.ConnectError("refused")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await plane.until_served(Server(refused, refused).request)
    monkeypatch.setattr(control_plane, "_RETRY_SECONDS", 0.0)
    await plane.until_served(Server(refused).request)
    assert shown.lines == [*["requests: not served yet: refused"] * 2, "requests: served"]


async def test_a_server_that_never_serves_is_the_error_with_its_last_failure_and_its_log(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "READY_SECONDS", 0.0)
    plane._folder.log("kube-apiserver").write_text("no quorum")
    reason = r"kube-apiserver did not serve a request in 0 s: no webhook.*\n  no quorum"
    with pytest.raises(control_plane.ComponentError, match=reason):
        await plane.until_served(Server(errors.ServerError(500, "InternalError", "no webhook")).request)
