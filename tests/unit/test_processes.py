"""Processes are found by their marks, and only marked ones are ever ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu.cluster import control_plane, locks, processes, record


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for process in processes.running(tmp_path / "cluster"):
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)


def start(folder: Path, name: str, script: str) -> int:
    command = [sys.executable, "-c", script]
    return processes.start(name, folder, command, log=folder / f"{name}.log", environ=os.environ)


async def says_something(log: Path) -> None:
    while not log.read_text():
        await asyncio.sleep(0.01)


SLEEP = "import time; time.sleep(600)"


async def test_a_started_process_is_found_logged_and_stopped(folder: Path) -> None:
    pid = start(folder, "talker", f"print('hello', flush=True); {SLEEP}")
    assert processes.running(folder) == [processes.Process(pid, "talker")]
    await says_something(folder / "talker.log")
    stopped = await processes.stop(folder, grace_seconds=5)
    assert [process.pid for process in stopped] == [pid]
    assert processes.running(folder) == []
    assert control_plane.tail(folder / "talker.log") == "hello"


def test_how_a_process_of_ours_ended_is_known_however_often_one_asks(folder: Path) -> None:
    killed, failed = start(folder, "killed", SLEEP), start(folder, "failed", "raise SystemExit(3)")
    assert processes.ending(killed) == ""
    os.kill(killed, signal.SIGKILL)
    for pid in (killed, failed):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [processes.ending(pid) for pid in (killed, failed) * 2] == ["signal 9", "exit code 3"] * 2
    for pid in (killed, failed):
        os.waitpid(pid, 0)
    assert processes.ending(killed) == ""


async def test_only_the_named_components_are_stopped(folder: Path) -> None:
    start(folder, "one", SLEEP)
    start(folder, "two", SLEEP)
    await processes.stop(folder, only=frozenset({"one"}))
    assert [process.component for process in processes.running(folder)] == ["two"]


async def test_a_process_that_ignores_the_gentle_signal_is_ended_all_the_same(folder: Path) -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); {SLEEP}"
    start(folder, "stubborn", stubborn)
    await says_something(folder / "stubborn.log")
    await processes.stop(folder, grace_seconds=0.2)
    assert processes.running(folder) == []


async def test_strangers_and_other_clusters_are_left_alone(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    theirs = start(other, "etcd", SLEEP)
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", SLEEP)
    start(folder, "etcd", SLEEP)
    await processes.stop(folder)
    assert stranger.returncode is None
    assert [process.pid for process in processes.running(other)] == [theirs]
    stranger.kill()
    await stranger.wait()
    await processes.stop(other)


def test_descriptors_of_our_parents_are_not_passed_on(folder: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        start(folder, "child", SLEEP)
    finally:
        os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b""  # end of file: nobody else holds the other end
    os.close(reader)


async def test_a_lock_file_that_was_deleted_is_no_lock_any_more(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    told: list[str] = []
    async with locks.exclusive(path):
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        path.unlink()
        async with locks.exclusive(path, waiting=lambda: told.append("waiting")):
            assert not told  # a new file is a new lock
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 1


async def test_holders_come_one_by_one_even_when_each_removes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inside = 0

    async def hold() -> None:
        nonlocal inside
        folder = record.Folder("shared")
        async with locks.exclusive(folder.lock):
            inside += 1
            assert inside == 1
            assert [path.name for path in folder.path.iterdir()] == ["lock"]
            for number in range(20):
                (folder.path / str(number)).write_text("")
            await asyncio.sleep(0.001)
            inside -= 1
            folder.remove()

    await asyncio.gather(*(hold() for _ in range(8)))
    assert list(tmp_path.iterdir()) == []


async def test_a_second_holder_waits_for_the_first(tmp_path: Path) -> None:
    path, told, order = tmp_path / "lock", [], []

    async def second() -> None:
        async with locks.exclusive(path, waiting=lambda: told.append("waiting")):
            order.append("second")

    async with locks.exclusive(path):
        task = asyncio.create_task(second())
        while not told:
            await asyncio.sleep(0.01)
        order.append("first")
    await task
    assert order == ["first", "second"]
