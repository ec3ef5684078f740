"""Starts, finds and ends a cluster's processes.

A process belongs to a cluster if its environment says so: each is started with two marks, the cluster's
folder and the component's name, and is found again by reading them (in our own PID namespace: a container on this
machine may have a folder of the same name). There is no pid file to go stale, a
process that was started a moment before we were killed is found all the same, and a number that the system
gave to somebody else's process never matches. Signals go through pidfds, so the process that was looked at
is the process that is signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from simgpu import errors
from simgpu.vocabulary import CLUSTER_ENV, COMPONENT_ENV

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_POLL_SECONDS = 0.02
_MARKS_SECONDS = 5.0
_END_SECONDS = 30.0
_OUR_NAMESPACE = Path("/proc/self/ns/pid").readlink() if sys.platform == "linux" else None


class Process(msgspec.Struct, frozen=True):
    """A running process of a cluster."""

    pid: int
    component: str

    def command(self) -> list[str]:
        """What it was started with; empty if it is gone meanwhile."""
        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return []
        return [os.fsdecode(part) for part in raw.removesuffix(b"\0").split(b"\0")]


def start(component: str, directory: Path, command: Sequence[str], *, log: Path, environ: Mapping[str, str]) -> int:
    """Start a component of the cluster in `directory`, on its own: it outlives us and our terminal."""
    environment = {**environ, CLUSTER_ENV: str(directory), COMPONENT_ENV: component}
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *inherited,
    ]
    defaults = [signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP]
    pid = os.posix_spawn(
        command[0],
        list(command),
        environment,
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=defaults,
    )
    _wait_for_marks(pid, command[0])
    return pid


def _wait_for_marks(pid: int, program: str) -> None:
    """A process that is just being loaded shows no environment for a moment.

    One that never shows it (its file cannot be read, or has special rights) could not be found again: it is ended.
    """
    deadline = time.monotonic() + _MARKS_SECONDS
    while _marks(pid) is None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)  # ours and not yet waited for: the number cannot mean another process
            os.waitpid(pid, 0)
            raise errors.SimgpuError(f"{program}: its process hides its environment; is the file readable to you?")
        time.sleep(0.001)


def _inheritable() -> list[int]:
    """Descriptors that our parent left open for us (make's job server, say) and that must go no further."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        with contextlib.suppress(OSError):
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def running(directory: Path) -> list[Process]:
    """Every live process of the cluster in `directory`."""
    return [process for where, process in _marked() if where == str(directory)]


def _marked() -> Iterator[tuple[str, Process]]:
    for entry in Path("/proc").iterdir():
        marks = _marks(int(entry.name)) if entry.name.isdigit() else None
        if marks is not None:
            yield marks[0], Process(int(entry.name), marks[1])


def _marks(pid: int) -> tuple[str, str] | None:
    """The cluster folder and component of a process; None for strangers, the dead and other users'."""
    try:
        if Path(f"/proc/{pid}/ns/pid").readlink() != _OUR_NAMESPACE:
            return None
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
    where, component = values.get(CLUSTER_ENV.encode()), values.get(COMPONENT_ENV.encode())
    if where is None or component is None:
        return None
    return os.fsdecode(where), os.fsdecode(component)


async def stop(directory: Path, *, only: frozenset[str] | None = None, grace_seconds: float = 0.0) -> list[Process]:
    """End the cluster's processes (or only some components), gently first if there is grace. What was ended."""
    chosen = [process for process in running(directory) if only is None or process.component in only]
    with contextlib.ExitStack() as open_files:
        handles = [handle for process in chosen if (handle := _open(process, directory, open_files)) is not None]
        if grace_seconds:
            _signal(handles, signal.SIGTERM)
            await _exits(handles, grace_seconds)
        _signal(handles, signal.SIGKILL)
        if await _exits(handles, _END_SECONDS):
            raise errors.SimgpuError(f"{directory}: processes do not end; is their disk gone?")
    for process in chosen:
        _reap(process.pid)
    return chosen


def _open(process: Process, directory: Path, files: contextlib.ExitStack) -> int | None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    files.callback(os.close, handle)
    # Looked at again behind the handle: from here on the number cannot come to mean another process.
    marks = _marks(process.pid)
    return handle if marks is not None and marks[0] == str(directory) else None


def _signal(handles: list[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


async def _exits(handles: list[int], seconds: float) -> set[int]:
    """Wait for processes to end; those that did not."""
    waiting = select.poll()
    for handle in handles:
        waiting.register(handle, select.POLLIN)
    left = set(handles)
    deadline = asyncio.get_running_loop().time() + seconds
    while left and asyncio.get_running_loop().time() < deadline:
        for handle, _ in waiting.poll(0):
            waiting.unregister(handle)
            left.discard(handle)
        if left:
            await asyncio.sleep(_POLL_SECONDS)
    return left


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
