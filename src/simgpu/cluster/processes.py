"""Starts, finds and stops a cluster's processes.

A process belongs to a cluster by its environment: each is started with two variables, the cluster's folder and the
component's name, and is found again by reading them (in our own PID namespace only: a container on this machine may
have a folder of the same name). So there is no PID file that can be stale, a process that was started just before we
were killed is found too, and a reused PID never matches. Signals go through pidfds, so the process that was checked is
the one that is signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from simgpu import errors
from simgpu.vocabulary import CLUSTER_ENV, COMPONENT_ENV

_POLL_SECONDS = 0.02
_TAGS_SECONDS = 30.0
_END_SECONDS = 30.0
_OUR_NAMESPACE = Path("/proc/self/ns/pid").readlink() if sys.platform == "linux" else None


class Process(msgspec.Struct, frozen=True):
    """A running process of a cluster."""

    pid: int
    component: str

    def command(self) -> list[str]:
        """Return its command line; empty if it has ended."""
        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return []
        return [os.fsdecode(part) for part in raw.removesuffix(b"\0").split(b"\0")]


def start(component: str, directory: Path, command: Sequence[str], *, log: Path, environ: Mapping[str, str]) -> int:
    """Start a component of the cluster in `directory` as a daemon: it outlives us and our terminal. Return its PID."""
    environment = {**environ, CLUSTER_ENV: str(directory), COMPONENT_ENV: component}
    log.parent.mkdir(parents=True, exist_ok=True)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
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
    _wait_for_tags(pid, command[0])
    return pid


def _wait_for_tags(pid: int, program: str) -> None:
    """Wait until a new process shows its environment, which takes a moment while it is loaded.

    One that never does (its file is not readable, or has special privileges) could not be found again: it is killed.
    """
    deadline = time.monotonic() + _TAGS_SECONDS
    while _tags(pid) is None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)  # our child and not yet reaped: the PID cannot be reused
            os.waitpid(pid, 0)
            raise errors.SimgpuError(
                f"{program}: its process has no readable environment after {_TAGS_SECONDS:g} s; can you read the file?"
            )
        time.sleep(0.001)


def _inheritable() -> list[int]:
    """Return inherited file descriptors (such as make's job server) that must not be passed on."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        with contextlib.suppress(OSError):
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def running(directory: Path) -> list[Process]:
    """Return the running processes of the cluster in `directory`."""
    tagged = ((int(entry.name), _tags(int(entry.name))) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [Process(pid, tags[1]) for pid, tags in tagged if tags is not None and tags[0] == str(directory)]


def _tags(pid: int) -> tuple[str, str] | None:
    """Return cluster folder and component of a process; None if it has none, has ended or is another user's."""
    try:
        if Path(f"/proc/{pid}/ns/pid").readlink() != _OUR_NAMESPACE:
            return None
        return read_tags(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return None


def read_tags(environ: bytes) -> tuple[str, str] | None:
    """Return cluster folder and component in an environment; None if it has none."""
    pairs = environ.split(b"\0")
    values = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
    where, component = values.get(CLUSTER_ENV.encode()), values.get(COMPONENT_ENV.encode())
    if where is None or component is None:
        return None
    return os.fsdecode(where), os.fsdecode(component)


def ending(pid: int) -> str:
    """Return how a child of ours ended, such as "signal 9"; empty if it has not, or is none."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if ended is None:
        return ""
    return f"{'exit code' if ended.si_code == os.CLD_EXITED else 'signal'} {ended.si_status}"


async def stop(directory: Path, *, only: frozenset[str] | None = None, grace_seconds: float = 0.0) -> list[Process]:
    """Kill the cluster's processes (or `only` some components), after SIGTERM and a grace period. Return them."""
    chosen = [process for process in running(directory) if only is None or process.component in only]
    with contextlib.ExitStack() as open_files:
        handles = [handle for process in chosen if (handle := _open(process, directory, open_files)) is not None]
        if grace_seconds:
            _signal(handles, signal.SIGTERM)
            await _exits(handles, grace_seconds)
        _signal(handles, signal.SIGKILL)
        if await _exits(handles, _END_SECONDS):
            raise errors.SimgpuError(
                f"{directory}: processes did not end within {_END_SECONDS:g} s of SIGKILL; their disk may hang"
            )
    for process in chosen:
        _reap(process.pid)
    return chosen


def _open(process: Process, directory: Path, files: contextlib.ExitStack) -> int | None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    files.callback(os.close, handle)
    # Checked again with the pidfd open: from here on the PID cannot be reused.
    tags = _tags(process.pid)
    return handle if tags is not None and tags[0] == str(directory) else None


def _signal(handles: list[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


async def _exits(handles: list[int], seconds: float) -> set[int]:
    """Wait for processes to end. Return those that did not."""
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
