"""The workload socket: both protocols, every way to end, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.identities import identity
from simgpu.machines import box, documents
from simgpu.machines.users import PodRef
from simgpu.pods.guests import HOST, Guest, PeerRejected, Working
from simgpu.topology import devices
from simgpu.workloads import accepting, bounds, client, guest, receiving
from simgpu.workloads.server import WorkloadServer

CATALOG = models.load()
FOREVER = {
    "Name": "job",
    "Repeat": 1,
    "Profile": [{"Load": 10, "Fluctuation": 1, "Seconds": 300}],
    "Devices": ["nvidia0"],
}

Serve = Callable[..., Awaitable["Running"]]


class Running:
    """A box with a socket, and a hand on its clock."""

    def __init__(self, made: box.Box, server: WorkloadServer, path: Path) -> None:
        self.box, self.server, self.path = made, server, path
        self.now = 0.0
        self.writers: list[asyncio.StreamWriter] = []

    async def pass_time(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.box.step(self.now, clock=0.0)
            await asyncio.sleep(0)

    async def send(self, message: bytes | dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        self.writers.append(writer)
        writer.write(message if isinstance(message, bytes) else json.dumps(message).encode())
        return reader, writer

    async def settled(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.box.workloads()) != count:
                await asyncio.sleep(0.005)


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    running: list[Running] = []

    async def start(count: int = 2, **more: Any) -> Running:
        wanted = devices.BoxConfig((devices.GpuEntry("h200", count),))
        made = box.Box(devices.build(wanted, CATALOG, node="n"), seed=1, hostname="n")
        path = tmp_path / f"{len(running)}.sock"
        names = identity.limit_names(identity.load("dcgm"))
        server = WorkloadServer(made, path, read=functools.partial(documents.read, names=names), **more)
        await server.start()
        running.append(Running(made, server, path))
        return running[-1]

    yield start
    for item in running:
        await item.server.stop()
        for writer in item.writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in item.writers), return_exceptions=True)


async def test_version_one_is_answered_in_digits_when_all_is_done(serve: Serve) -> None:
    running = await serve()
    reader, _ = await running.send({**FOREVER, "Profile": [{"Load": 50, "Seconds": 5}], "Limits": None})
    await running.settled(1)
    await running.pass_time(4)
    assert running.box.machine.column("usage")[0] == pytest.approx(50)
    await running.pass_time(1)
    assert await reader.read() == b"0"
    assert not running.box.workloads()


async def test_version_two_carries_the_message(serve: Serve) -> None:
    running = await serve()
    reader, _ = await running.send({**FOREVER, "Protocol": 2, "Profile": [{"Load": 50, "Seconds": 5}]})
    await running.settled(1)
    await running.pass_time(5)
    assert json.loads(await reader.read()) == {"exit": 0, "message": "OK"}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"runtime": 3}, "Limit runtime reached, terminated"),
        ({"usage": 0.05}, "Limit usage reached, terminated"),
        ({"memory": 1e9}, "Limit memory reached, terminated"),
        ({"DCGM_FI_DEV_FB_USED": 900}, "Limit DCGM_FI_DEV_FB_USED reached, terminated"),
        ({"DCGM_FI_DEV_GPU_UTIL": 5}, "Limit DCGM_FI_DEV_GPU_UTIL reached, terminated"),
        ({"DCGM_FI_DEV_POWER_USAGE": 80, "power": 1e6}, "Limit DCGM_FI_DEV_POWER_USAGE reached, terminated"),
        ({"temperature": 25}, "Limit temperature reached, terminated"),
    ],
)
async def test_limits_end_a_workload_in_our_words_and_in_the_exporters(
    serve: Serve, limits: dict[str, float], message: str
) -> None:
    running = await serve()
    leak = {"memory": {"Func": "random-increase", "Min": 5e8, "Max": 5e8, "Unit": "absolute"}}
    document = {**FOREVER, "Protocol": 2, "Limits": limits, "Profile": [{"Load": 10, "Seconds": 300, "Metrics": leak}]}
    reader, _ = await running.send(document)
    await running.settled(1)
    await running.pass_time(4)
    assert json.loads(await reader.read()) == {"exit": 1, "message": message}


async def test_a_plain_load_has_memory_that_limits_see(serve: Serve) -> None:
    running = await serve()
    reader, _ = await running.send(
        {**FOREVER, "protocol": 2, "Limits": {"memory": 1e9}, "Profile": [{"Load": 90, "Seconds": 9}]}
    )
    await running.settled(1)
    await running.pass_time(1)
    assert json.loads(await reader.read())["message"] == "Limit memory reached, terminated"


async def test_a_client_that_goes_takes_its_workload_with_it(serve: Serve) -> None:
    running = await serve()
    _, writer = await running.send(FOREVER)
    await running.settled(1)
    writer.close()
    await running.settled(0)


async def test_a_client_that_talks_on_is_dropped(serve: Serve) -> None:
    running = await serve()
    reader, writer = await running.send(FOREVER)
    await running.settled(1)
    writer.write(b"x")
    await running.settled(0)
    assert await reader.read() == b""


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"foobar", "not JSON"),
        (b"\0" * 200, "not JSON"),
        (b'{"Foobar":0}', "missing required field"),
        (json.dumps({**FOREVER, "Repeat": -1}).encode(), "Repeat"),
        (b'{"Name":"a","Profile":[{"Load":1}],"Devices":["nvidia0"],"Profile":[{"Load":-1}]}', "Profile[0].Load"),
        (json.dumps({**FOREVER, "Profile": [{"Load": 50, "Fluctuation": 75}]}).encode(), "Profile[0].Fluctuation"),
        (json.dumps({**FOREVER, "Profile": [{"Load": 80, "Fluctuation": 30}]}).encode(), "at most 100"),
        (json.dumps({**FOREVER, "Profile": []}).encode(), "Profile"),
        (
            json.dumps({**FOREVER, "Devices": ["nvidia7"]}).encode(),
            "no device 'nvidia7'; there are 2: nvidia0 to nvidia1",
        ),
        (json.dumps({**FOREVER, "Devices": []}).encode(), "Devices"),
        (json.dumps({**FOREVER, "Name": ""}).encode(), "Name"),
        (json.dumps({**FOREVER, "Limits": {"height": 1}}).encode(), "Limits.height"),
        (b'{"Name":"' + b"\0" * 65536, "NUL"),
        (b'{"Name":"' + b"a" * (2 << 20), "larger than"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{}", "UTF-8"),
        (b'{"Name":"a","Profile":[{"Load":1}],"Devices":["nvidia0"],"Pod":{"Name":"\\ud800"}}', "not Unicode"),
        (json.dumps({**FOREVER, "Limits": {"DCGM_FI_DEV_FB_FREE": 1}}).encode(), "Limits.DCGM_FI_DEV_FB_FREE"),
    ],
)
async def test_what_is_not_allowed_is_refused_with_the_reason(serve: Serve, message: bytes, says: str) -> None:
    running = await serve()
    other, _ = await running.send(FOREVER)
    await running.settled(1)
    marked = message.replace(b'"Name":"', b'"Protocol":2,"Name":"', 1) if message.startswith(b"{") else message
    reader, writer = await running.send(b"")
    try:
        writer.write(marked)
        await writer.drain()
    except ConnectionError:
        pass  # it answered before we had said all
    try:
        answer = await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        answer = b"1"
    if answer.startswith(b"{"):
        assert json.loads(answer)["exit"] == 1
        assert says in json.loads(answer)["message"]
    else:
        assert answer == b"1"
    assert len(running.box.workloads()) == 1
    assert not other.at_eof()


async def test_a_silent_client_is_refused_soon(serve: Serve) -> None:
    running = await serve()
    reader, _ = await running.send(b"")
    assert await asyncio.wait_for(reader.read(), 2) == b"1"


async def test_a_document_may_come_in_pieces(serve: Serve) -> None:
    running = await serve()
    whole = json.dumps({**FOREVER, "Name": "jöb"}, ensure_ascii=False).encode()
    reader, writer = await running.send(b"")
    for start in range(0, len(whole), 20):
        writer.write(whole[start : start + 20])
        await writer.drain()
        await asyncio.sleep(0.002)
    await running.settled(1)
    assert not reader.at_eof()


async def test_a_thousand_workloads_connect_run_and_leave_with_none_lost(serve: Serve) -> None:
    running = await serve(8)

    async def one(number: int) -> tuple[int, str]:
        document = {**FOREVER, "Name": f"w{number}", "Protocol": 2, "Devices": [f"nvidia{number % 8}"]}
        document["Profile"] = [{"Load": 1, "Seconds": 3 + number % 5}]
        return await client.run(document, running.path)

    tasks = [asyncio.create_task(one(number)) for number in range(1000)]
    await running.settled(1000)
    for _ in range(10):
        await running.pass_time(1)
        await asyncio.sleep(0.01)
    assert await asyncio.gather(*tasks) == [(0, "OK")] * 1000
    assert not running.box.workloads()


async def test_who_waits_is_told_when_the_exporter_stops(serve: Serve) -> None:
    running = await serve()
    first, _ = await running.send(FOREVER)
    second, _ = await running.send({**FOREVER, "Protocol": 2})
    await running.settled(2)
    await running.server.stop()
    assert await first.read() == b"1"
    assert json.loads(await second.read()) == {"exit": 1, "message": "exporter shutting down", "lost": True}
    assert not running.path.exists()


async def test_without_being_told_to_reconnect_a_lost_exporter_is_an_error(tmp_path: Path) -> None:
    async def drop(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _reader.read(10)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(drop, tmp_path / "s")
    with pytest.raises(client.Lost, match="closed the connection"):
        await client.run(FOREVER, tmp_path / "s")
    server.close()
    with pytest.raises(errors.SimgpuError, match="is the exporter running"):
        await client.run(FOREVER, tmp_path / "nothing")


async def test_a_socket_in_use_is_not_taken_and_a_dead_one_is_replaced(serve: Serve, tmp_path: Path) -> None:
    running = await serve()
    with pytest.raises(errors.InputError, match="already in use"):
        await WorkloadServer(running.box, running.path).start()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.InputError, match="is not a socket"):
        await WorkloadServer(running.box, tmp_path / "file").start()
    assert (tmp_path / "file").read_text() == "mine"


def of_pod(ids: list[str]) -> guest.Identify:
    async def identify(_connection: object, _working: object) -> Guest:
        return Guest("pod ns/mine", PodRef("mine", "ns", "main", "uid-1"), tuple(ids))

    return identify


async def guest_of_second(serve: Serve, **more: Any) -> tuple[Running, list[str]]:
    """A box with three devices, and a socket on which everybody is a pod that has the second and third."""
    names = [device.uuid for device in (await serve(3)).box.devices]
    return await serve(3, identify=of_pod(names[1:]), **more), names


@pytest.mark.parametrize(
    ("wanted", "busy"), [(None, [0, 0.5, 0.5]), (["0"], [0, 0.5, 0]), (["1"], [0, 0, 0.5]), (["id 2"], [0, 0, 0.5])]
)
async def test_a_pods_devices_are_numbered_as_it_sees_them(
    serve: Serve, wanted: list[str] | None, busy: list[float]
) -> None:
    running, names = await guest_of_second(serve)
    named = [names[2] if name == "id 2" else name for name in wanted] if wanted else None
    await running.send({**FOREVER, "Devices": named, "Profile": [{"Load": 50}], "Pod": {"Name": "another"}})
    await running.settled(1)
    await running.pass_time(3)
    assert running.box.machine.column("busy").tolist() == busy
    assert {pod.name for pod in running.box.machine.pods.values()} == {"mine"}


@pytest.mark.parametrize("name", ["2", "nvidia0", "id 0", "-1", "\u0661"])
async def test_a_pod_has_no_other_devices(serve: Serve, name: str) -> None:
    running, names = await guest_of_second(serve)
    reader, _ = await running.send({**FOREVER, "Devices": [names[0] if name == "id 0" else name], "Protocol": 2})
    answer = json.loads(await reader.read())
    assert answer["exit"] == 1
    assert answer["message"].startswith("Devices: no device")
    assert names[0] not in answer["message"] or name == "id 0"
    assert not running.box.workloads()


async def test_a_pod_sets_only_its_own(serve: Serve) -> None:
    asked: list[str] = []

    def settings(device: str, _setting: str, _values: object) -> int:
        asked.append(device)
        return 0

    running, names = await guest_of_second(serve, settings=settings)
    for name, code in ((names[0], b"4"), (names[1], b"0"), ("", b"2")):
        reader, _ = await running.send({"Set": {"Device": name, "Setting": "power_limit", "Values": [500000, 0]}})
        assert await reader.read() == code
    assert asked == names[1:2]


async def test_a_guest_is_working_as_long_as_it_has_workloads(serve: Serve) -> None:
    changes: list[None] = []
    running, _ = await guest_of_second(serve, changed=lambda: changes.append(None))
    _, writer = await running.send({**FOREVER, "Devices": None})
    await running.settled(1)
    assert [item.pod.name for item in running.server.working if item.pod] == ["mine"]
    writer.close()
    await running.settled(0)
    assert not running.server.working
    assert len(changes) == 2


async def test_one_pod_cannot_take_all_connections(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 2)
    running, _ = await guest_of_second(serve)
    for _ in range(2):
        await running.send({**FOREVER, "Devices": None})
    await running.settled(2)
    reader, _ = await running.send({**FOREVER, "Devices": None, "Protocol": 2})
    assert "has 2 connections already" in json.loads(await reader.read())["message"]


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.read(10_000)


async def test_a_pods_workloads_have_a_bounded_number_of_places(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_PLACES", 3)
    running, _ = await guest_of_second(serve)
    both = {**FOREVER, "Devices": None, "Protocol": 2}
    _, first = await running.send(both)
    await running.settled(1)
    for _ in range(2):  # what is refused takes nothing
        reader, _ = await running.send(both)
        message = json.loads(await answer(reader))["message"]
        assert message.startswith("Devices: pod ns/mine would have 4 workloads")
        assert message.endswith("at most 3")
    await running.send({**both, "Devices": ["1", "1"]})
    await running.settled(2)
    first.close()
    await running.settled(1)
    await running.send(both)
    await running.settled(2)


async def test_all_pods_workloads_are_bounded_and_each_pod_can_have_one_on_all_its_devices(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_ALL_PLACES", 5)
    names = iter("aaabb")

    async def identify(_connection: object, _working: object) -> Guest:
        name = next(names)
        return Guest(f"pod ns/{name}", PodRef(name, "ns", "main", name), ("nvidia0", "nvidia1"))

    running = await serve(identify=identify)
    both = {**FOREVER, "Devices": None, "Protocol": 2}
    for count in (1, 2):
        await running.send(both)
        await running.settled(count)
    reader, _ = await running.send(both)
    assert "all pods would have more than 5 workloads" in json.loads(await answer(reader))["message"]
    await running.send(both)
    await running.settled(3)
    reader, _ = await running.send({**both, "Devices": ["0"]})
    assert json.loads(await answer(reader))["message"].endswith("pod ns/b may always have 2")


async def rest(rounds: int = 50) -> None:
    """Let everything be done that can be done now."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def test_a_pod_that_connects_anew_waits_for_the_pause_of_its_last_connection() -> None:
    counted, took = bounds.Bounds(), bounds.Effort()
    mine, other = Guest("pod ns/mine"), Guest("pod ns/other")
    took.seconds = 1e6
    with counted.connected(mine):
        async with counted.turn(mine, took):
            pass
    served: list[str] = []

    async def connect(who: Guest) -> None:
        with counted.connected(who):
            async with counted.turn(who, bounds.Effort()):
                served.append(who.name)

    tasks = [asyncio.create_task(connect(who)) for who in (mine, other)]
    await rest()
    assert served == ["pod ns/other"]
    for task in tasks:
        task.cancel()


async def test_pods_whose_pause_is_over_are_forgotten() -> None:
    counted = bounds.Bounds()

    async def connect(number: int) -> None:
        async with counted.turn(Guest(f"pod {number % 5}"), bounds.Effort()):
            pass

    given_up = asyncio.create_task(connect(0)), asyncio.create_task(connect(0))
    await rest()
    given_up[1].cancel()
    await asyncio.gather(*(connect(number) for number in range(20)))
    async with asyncio.timeout(20):
        while counted._turns:
            await asyncio.sleep(0.01)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what was decoded."""
    found: list[int] = []
    decode = receiving.decode

    def counted(buffer: bytes) -> Any:
        found.append(len(buffer))
        return decode(buffer)

    monkeypatch.setattr(receiving, "decode", counted)
    return found


async def test_of_a_client_that_is_refused_little_is_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 1)
    running, _ = await guest_of_second(serve)
    await running.send({**FOREVER, "Devices": None})
    await running.settled(1)
    wish = {**FOREVER, "Devices": None, "Protocol": 2}
    for much, told in ((1, "has 1 connections already"), (300, "1")):
        reader, _ = await running.send({**wish, "Profile": [{"Load": 1, "Seconds": 60}] * much})
        assert told in (await answer(reader)).decode()
    assert max(decoded) <= bounds.MAX_REJECTED_BYTES


async def test_a_client_that_is_refused_is_read_in_the_turn_of_its_pod_and_of_many_none(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(bounds, "MAX_REJECTED", 2)
    monkeypatch.setattr(bounds.Effort, "pause", 3600.0)
    running, _ = await guest_of_second(serve)
    wish = {**FOREVER, "Devices": None, "Protocol": 2}
    await running.send(wish)
    await running.settled(1)
    waiting = [(await running.send(wish))[0] for _ in range(bounds.MAX_REJECTED)]
    reader, _ = await running.send(b"")
    assert await answer(reader) == b"1"
    assert len(decoded) == 1
    assert not any(item.at_eof() for item in waiting)


async def test_to_find_out_who_connects_counts_for_the_pod(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, charged = iter(range(1000)), []
    monkeypatch.setattr("simgpu.workloads.bounds.time.thread_time", lambda: float(next(ticks)))

    def pause(effort: bounds.Effort) -> float:
        charged.append(effort.seconds)
        return 0.0

    monkeypatch.setattr(bounds.Effort, "pause", property(pause))

    async def identify(_connection: object, working: Working) -> Guest:
        for _ in range(10):
            with working():
                pass
        return Guest("pod ns/mine", PodRef("mine", "ns", "main", "uid-1"), ("nvidia0",))

    running = await serve(identify=identify)
    await running.send(FOREVER)
    await running.settled(1)
    assert charged == [12.0]  # with reading the document, and starting what it wants


async def test_a_pod_that_connects_from_many_processes_is_served_only_so_often(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "BURST", 5)
    monkeypatch.setattr(accepting, "PER_SECOND", 0.0)
    served: list[int] = []
    delays: list[float] = []
    streams, delay = accepting.streams, accepting.Arrivals.delay

    async def counted(connection: socket.socket, limit: int) -> Any:
        served.append(guest.pid(connection))
        return await streams(connection, limit)

    def delayed(self: accepting.Arrivals, seconds: float) -> None:
        delays.append(seconds)
        delay(self, seconds)

    monkeypatch.setattr(accepting, "streams", counted)
    monkeypatch.setattr(accepting.Arrivals, "delay", delayed)
    looping: set[int] = set()

    async def identify(connection: socket.socket, working: Working) -> Guest:
        with working():
            name = "hostile" if guest.pid(connection) in looping else "mine"
        return Guest(f"pod ns/{name}", PodRef(name, "ns", "main", name), ("nvidia0",))

    running = await serve(identify=identify)
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"input()\n{CONNECTS}", running.path, stdin=asyncio.subprocess.PIPE
        )
        looping.add(process.pid)
        await process.communicate(b"\n")
        assert process.returncode == 0
    await running.send(FOREVER)
    await running.settled(1)
    assert len([pid for pid in served if pid in looping]) == 5
    assert len(delays) == 2 * 5
    assert all(seconds > 0 for seconds in delays)


def test_what_those_that_are_turned_away_cost_delays_the_next_and_only_so_long() -> None:
    arrivals = accepting.Arrivals()
    arrivals.delay(0.01)
    arrivals.delay(0.02)
    assert arrivals.pause() == pytest.approx(0.03)
    assert arrivals.pause() == 0
    arrivals.delay(3600.0)
    assert arrivals.pause() < 1


CONNECTS = """
import contextlib, socket, sys
for _ in range(300):
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
"""


async def test_a_process_that_connects_over_and_over_is_looked_at_only_so_often(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "BURST", 5)
    monkeypatch.setattr(accepting, "PER_SECOND", 0.0)
    looked: list[int] = []

    async def identify(connection: socket.socket, _working: object) -> Guest:
        looked.append(guest.pid(connection))
        return Guest(f"pod of {looked[-1]}", PodRef("mine", "ns", "main", "uid-1"), ("nvidia0",))

    running = await serve(identify=identify)
    looping = await asyncio.create_subprocess_exec(sys.executable, "-c", CONNECTS, running.path)
    assert await looping.wait() == 0
    await running.send(FOREVER)
    await running.settled(1)
    assert looked.count(looping.pid) == 5


async def test_a_process_of_the_node_may_connect_as_often_as_it_likes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "BURST", 1)
    monkeypatch.setattr(accepting, "PER_SECOND", 0.0)

    async def identify(_connection: object, _working: object) -> Guest:
        return HOST

    running = await serve(identify=identify)
    for count in range(1, 9):
        await running.send(FOREVER)
        await running.settled(count)


async def test_a_connection_that_fails_before_it_is_served_is_no_end_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = iter([False, True])
    taken = asyncio.Event()

    def take(_connection: socket.socket) -> bool:
        if not next(turns):
            raise ZeroDivisionError
        taken.set()
        return False

    listening = accepting.listen(tmp_path / "s", 0o700)
    accept = asyncio.create_task(accepting.accept(listening, take))
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        assert await reader.read() == b""
        writer.close()
    await taken.wait()
    accept.cancel()
    listening.close()
    assert "serving a connection failed" in caplog.text


def test_a_process_that_connects_now_and_then_always_may() -> None:
    arrivals = accepting.Arrivals()
    assert all(arrivals.admit(7, now / accepting.PER_SECOND) for now in range(1000))
    assert sum(arrivals.admit(8, 0.0) for _ in range(1000)) == accepting.BURST
    assert arrivals.admit(9, 0.0)


def test_processes_that_are_long_gone_are_forgotten() -> None:
    arrivals = accepting.Arrivals()
    for pid in range(100_000):
        assert arrivals.admit(pid, pid / 100)
    assert len(arrivals._left) < 10_000


async def test_what_goes_wrong_with_one_document_is_logged_and_leaves_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    failing = iter([True, False, False])

    def changed() -> None:
        if next(failing):
            raise ZeroDivisionError

    running, _ = await guest_of_second(serve, changed=changed)
    reader, _ = await running.send({**FOREVER, "Devices": None, "Protocol": 2})
    assert json.loads(await reader.read()) == {"exit": 1, "message": "internal error; see the server's log"}
    assert "ZeroDivisionError" in caplog.text
    assert not running.box.workloads()
    assert not running.server.working
    _, writer = await running.send({**FOREVER, "Devices": None})
    await running.settled(1)
    writer.close()
    await running.settled(0)


async def test_whoever_is_not_known_is_told_why(serve: Serve) -> None:
    async def identify(_connection: object, _working: object) -> Guest:
        raise PeerRejected("process 7 is in no pod")

    running = await serve(identify=identify)
    for protocol, answer in ((1, "1"), (2, "process 7 is in no pod")):
        reader, _ = await running.send({**FOREVER, "Protocol": protocol})
        assert answer in (await reader.read()).decode()
    assert not running.box.workloads()


async def test_there_are_no_more_connections_than_files(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "max_clients", lambda: 1)
    running = await serve()
    await running.send(FOREVER)
    await running.settled(1)
    for _ in range(3):
        reader, _ = await running.send(FOREVER)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    assert running.server.clients == len(running.box.workloads()) == 1


async def test_a_pods_workloads_have_a_bounded_number_of_activities(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_ACTIVITIES", 3)
    running, _ = await guest_of_second(serve)
    two = {**FOREVER, "Devices": None, "Protocol": 2, "Profile": [{"Load": 1, "Seconds": 60}] * 2}
    _, first = await running.send(two)
    await running.settled(1)
    reader, _ = await running.send(two)
    assert "more than 3 activities in all" in json.loads(await reader.read())["message"]
    first.close()
    await running.settled(0)
    for wrong in ({"Devices": ["7"]}, {"Limits": {"nonsense": 1}}):
        reader, _ = await running.send({**two, **wrong})
        assert json.loads(await reader.read())["exit"] == 1
    await running.send(two)
    await running.settled(1)


async def test_a_long_name_makes_no_long_lines_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    running, _ = await guest_of_second(serve)
    for wrong in ({"Devices": ["x" * 50_000]}, {"Devices": None, "Limits": {"x" * 50_000: 1}}):
        reader, _ = await running.send({**FOREVER, **wrong, "Protocol": 2})
        assert "x" * 100 in json.loads(await reader.read())["message"]
    assert len(caplog.text) < 5000


async def test_a_pods_document_is_small(serve: Serve) -> None:
    running, _ = await guest_of_second(serve)
    reader, _ = await running.send({**FOREVER, "Name": "x" * vocabulary.MAX_DOCUMENT_BYTES})
    assert await reader.read(1) == b"1"


async def test_a_document_that_comes_in_many_pieces_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MAX_BYTES", 4000)
    running = await serve()
    reader, writer = await running.send(b'{"Name": "' + b"x" * 2000 + b'", "Limits": {"a": {}')
    with contextlib.suppress(ConnectionError):
        for _ in range(50):
            writer.write(b', "b": {}')
            await writer.drain()
            await asyncio.sleep(0.005)
    with contextlib.suppress(ConnectionError):
        assert await reader.read(1) == b"1"
    assert not running.box.workloads()


async def test_one_pod_that_sends_without_pause_leaves_time_to_others(serve: Serve) -> None:
    running, _ = await guest_of_second(serve)
    wish = {**FOREVER, "Devices": None, "Profile": [{"Load": 1, "Seconds": 60}] * 500}
    for _ in range(8):
        await running.send(wish)
    await running.settled(1)
    assert running.server.clients > 1
    await running.settled(8)
