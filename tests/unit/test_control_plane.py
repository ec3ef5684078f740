"""How long the processes of a cluster may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from simgpu.cluster import components, control_plane, processes, progress, record, repeating
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
    monkeypatch.setattr(repeating, "_RETRY_SECONDS", 0.0)
    starting = errors.Starting(403, "Forbidden", "nodes is forbidden: not yet ready to handle request")
    conflict = errors.Conflict(409, "Conflict", "the object has been modified")
    server = Server(errors.ConnectError("refused"), starting, errors.ServerError(500, "", ""), conflict)
    assert await plane.requests.until_served(server.request) == "served"
    with pytest.raises(errors.AlreadyExists):  # which no repetition changes
        await plane.requests.until_served(Server(errors.AlreadyExists(409, "AlreadyExists", "it exists")).request)


class Lines(progress.Silent):
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, item: str, doing: str) -> None:
        self.lines.append(f"{item}: {doing}")

    def done(self, item: str, result: str) -> None:
        self.lines.append(f"{item}: {result}")

    def note(self, line: str) -> None:
        self.lines.append(line)


async def test_many_requests_to_a_server_that_is_busy_are_reported_once(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(plane.requests, "_progress", shown := Lines())
    servers = [Server(errors.ConnectError("refused")) for _ in range(40)]
    await asyncio.gather(*(plane.requests.until_served(server.request) for server in servers))
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
        await plane.requests.until_served(server.request)


async def test_a_component_that_ended_is_the_error_instead_of_requests_that_fail(
    plane: control_plane.ControlPlane,
) -> None:
    plane._runs["controller"] = control_plane._Run()
    plane._folder.log("controller").write_text("no such file")
    with pytest.raises(control_plane.ComponentError, match=r"controller ended.*\n  no such file"):
        await plane.requests.until_served(Server(errors.ConnectError("refused")).request)


class Ending:
    """Programs that end as soon as they are started, with signal 9, and with a line in their logs."""

    def __init__(self, plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.started: list[str] = []
        self.line = "no quorum"
        self._plane = plane
        plane._runs |= {name: control_plane._Run() for name in names}
        monkeypatch.setattr(plane, "_parts", {name: components.Component(name, [name]) for name in names})
        monkeypatch.setattr(control_plane, "alive", lambda _: set[str]())
        monkeypatch.setattr(processes, "start", self._start)
        monkeypatch.setattr(processes, "ending", lambda _: "signal 9")

    def _start(self, name: str, *_: object, **__: object) -> int:
        self.started.append(name)
        with self._plane._folder.log(name).open("a") as file:
            file.write(f"started\n{self.line}\n")
        return 7


async def never() -> bool:
    return False


async def test_a_program_that_ends_before_it_is_ready_is_started_again_a_few_times_and_it_is_reported_how_it_ended(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, ending = Time(monkeypatch), Ending(plane, monkeypatch, "etcd")
    monkeypatch.setattr(plane, "_progress", shown := Lines())
    plane._launch("etcd", plane._runs["etcd"])
    began = time.now
    with pytest.raises(control_plane.ComponentError, match=r"etcd ended \(signal 9\).*\n  started\n  no quorum$"):
        await plane.until("etcd", never, seconds=120.0)
    assert ending.started == ["etcd"] * 4
    assert 2.0 <= time.now - began < 10.0  # not all at once, and not for long
    assert plane.started == ["etcd"]
    assert shown.lines == ["etcd ended (signal 9); it is started again. The last line of its log: no quorum"] * 3
    monkeypatch.undo()


async def test_one_that_ends_after_it_was_ready_is_an_error_for_what_it_had_may_be_lost(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    Time(monkeypatch)
    ending = Ending(plane, monkeypatch, "kwok")
    await plane.ready("kwok")
    with pytest.raises(control_plane.ComponentError, match="kwok ended"):
        plane.check()
    assert ending.started == []
    monkeypatch.undo()


async def test_one_that_is_started_again_has_as_much_time_as_at_first(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, ending = Time(monkeypatch), Ending(plane, monkeypatch, "etcd")
    began = time.now
    monkeypatch.setattr(
        control_plane, "alive", lambda _: set[str]() if began + 50 < time.now < began + 52 else {"etcd"}
    )
    with pytest.raises(control_plane.ComponentError, match="made no progress in 60 s"):
        await plane.until("etcd", never, seconds=60.0)
    assert ending.started == ["etcd"] * 2
    assert time.now - began > 110.0
    monkeypatch.undo()


async def test_one_whose_port_was_taken_is_not_started_again_but_one_before_it_does_not_matter(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    Time(monkeypatch)
    ending = Ending(plane, monkeypatch, "etcd")
    plane._folder.log("etcd").write_text("bind: address already in use\n")
    plane._launch("etcd", plane._runs["etcd"])
    with pytest.raises(control_plane.ComponentError) as ended:
        await plane.until("etcd", never, seconds=120.0)
    assert not ended.value.port_taken
    assert len(ending.started) == 4
    ending.line = "bind: address already in use"
    plane._launch("etcd", run := control_plane._Run())
    plane._runs["etcd"] = run
    with pytest.raises(control_plane.ComponentError) as ended:
        await plane.until("etcd", never, seconds=120.0)
    assert ended.value.port_taken
    assert len(ending.started) == 5
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
    plane._runs["kube-apiserver"] = control_plane._Run()
    monkeypatch.setattr(control_plane, "alive", lambda _: {"kube-apiserver"})
    await plane.ready("kube-apiserver")
    assert max(time.pauses) <= 1.0
    monkeypatch.undo()


async def test_after_a_request_that_was_cancelled_others_that_fail_are_reported(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane.requests, "_progress", shown := Lines())
    refused = errors.ConnectError("refused")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await plane.requests.until_served(Server(refused, refused).request)
    monkeypatch.setattr(repeating, "_RETRY_SECONDS", 0.0)
    await plane.requests.until_served(Server(refused).request)
    assert shown.lines == [*["requests: not served yet: refused"] * 2, "requests: served"]


async def test_a_server_that_never_serves_is_the_error_with_its_last_failure_and_its_log(
    plane: control_plane.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "SERVED_SECONDS", 0.0)
    plane._folder.log("kube-apiserver").write_text("no quorum")
    reason = r"kube-apiserver did not serve a request in 0 s: no webhook.*\n  no quorum"
    with pytest.raises(control_plane.ComponentError, match=reason):
        await plane.requests.until_served(Server(errors.ServerError(500, "InternalError", "no webhook")).request)
