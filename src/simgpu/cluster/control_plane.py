"""Starts the processes of one cluster and waits until they are ready."""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import functools
import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from simgpu import errors
from simgpu.cluster import processes, record
from simgpu.cluster.components import Component, Role
from simgpu.cluster.progress import Progress
from simgpu.cluster.record import Folder, Record
from simgpu.kube import errors as kube_errors
from simgpu.kube import parallel, wire

T = TypeVar("T")
READY_SECONDS = 120.0
_POLL_SECONDS = 0.05
_SERVER, _REQUESTS = "kube-apiserver", "requests"
_SERVERS = ("etcd", _SERVER)  # the rest are the API server's clients
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 2.0  # between requests that fail
_MAX_PAUSE_SECONDS = 30.0  # between looks at what takes the server long to list
_MAX_PROBE_PAUSE_SECONDS = 1.0  # between looks whether a component is ready
_PROBE_SECONDS = 5.0  # of one request for a component's health
_ALIVE_SECONDS = 0.5  # between looks whether processes run, which read all of /proc
_RESTARTS = 3  # of a program of Kubernetes that ends; its clients' are counted once the API server is ready
_RESTART_SECONDS = 1.0  # from one start to the next
_LAST_LINES, _MAX_LINE = 12, 400  # of a log in a message; characters
_LISTENERS = {
    "etcd": ("etcd", "etcd-peer"),
    "kube-apiserver": ("apiserver",),
    "kube-controller-manager": ("controller-manager",),
    "kube-scheduler": ("scheduler",),
    "kwok": ("kwok",),
}


class ComponentError(errors.SimgpuError):
    """A process ended or did not become ready; the message holds the end of its log."""

    def __init__(self, component: str, problem: str, log: str) -> None:
        shown = "\n".join(f"  {line}" for line in log.splitlines()) or "  (nothing)"
        super().__init__(f"{component} {problem}; the end of its log:\n{shown}")
        self.port_taken = "address already in use" in log


def with_ports(wanted: Record, folder: Folder, roles: Sequence[Role], chance: random.Random) -> Record:
    """Return the record with a port for every listener.

    Ports are kept, except those of stopped processes that other processes have taken.
    """
    running = alive(folder)
    listeners = {listener: name for name, names in _LISTENERS.items() for listener in names}
    listeners |= {listener: role.name for role in roles for listener in role.ports}
    kept = {
        listener: port
        for listener, port in wanted.ports.items()
        if listener in listeners and (listeners[listener] in running or record.port_is_free(wanted.address, port))
    }
    if wanted.port is not None and "apiserver" not in kept:
        record.check_port(wanted.address, wanted.port)
        kept["apiserver"] = wanted.port
    missing = [listener for listener in listeners if listener not in kept]
    taken = record.ports_of_others(folder.name) | set(kept.values()) | set(wanted.ports.values())
    chosen = record.choose_ports(wanted.address, missing, taken=taken, chance=chance)
    return msgspec.structs.replace(wanted, ports={**kept, **chosen})


def without_ports(wanted: Record, folder: Folder) -> Record:
    """Return the record without the ports of stopped processes, because one of these ports is in use."""
    held = {listener for name in alive(folder) for listener in _LISTENERS.get(name, ())}
    return msgspec.structs.replace(wanted, ports={name: port for name, port in wanted.ports.items() if name in held})


def write_kubeconfig(folder: Folder, wanted: Record) -> None:
    """Write a self-contained admin kubeconfig: it can be copied anywhere on this machine."""

    def inline(name: str) -> str:
        return base64.b64encode((folder.pki / name).read_bytes()).decode()

    name = f"simgpu-{wanted.name}" if wanted.name != "simgpu" else "simgpu"
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": wanted.server, "certificate-authority-data": inline("ca.crt")}}
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": inline("admin.crt"),
                    "client-key-data": inline("admin.key"),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    record.write_private(folder.kubeconfig, yaml.safe_dump(document, sort_keys=False).encode())


class ControlPlane:
    """The processes of one cluster."""

    def __init__(self, folder: Folder, parts: Mapping[str, Component], progress: Progress) -> None:
        self.started: list[str] = []
        self._folder = folder
        self._parts = parts
        self._progress = progress
        self._expected: list[str] = []
        self._restarts: collections.Counter[str] = collections.Counter()
        self._launched: dict[str, tuple[float, int]] = {}  # when, and the size of its log then
        self._launches: collections.Counter[str] = collections.Counter()
        self._checked = -math.inf  # when processes were looked at last
        self._server_ready = False
        self._failing = 0  # requests that are not served now

    async def start(
        self, name: str, *, restart: bool = False, stopped: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Start a component unless it runs; one with a different command line is restarted.

        `stopped` is awaited between the end of the old process and the start of the new one.
        """
        part = self._parts[name]
        mine = [process for process in processes.running(self._folder.path) if process.component == name]
        if not mine or restart or any(process.command() != part.command for process in mine):
            await processes.stop(self._folder.path, only=frozenset({name}))
            if stopped is not None:
                await stopped()
            self._progress.update(name, "starting")
            self._launch(name)
        self._expected.append(name)

    def _launch(self, name: str) -> None:
        environ = os.environ if name not in _LISTENERS else _bare_environment(self._folder)
        command, log = self._parts[name].command, self._folder.log(name)
        written = log.stat().st_size if log.exists() else 0
        self._launched[name] = asyncio.get_running_loop().time(), written
        self._launches[name] += 1
        processes.start(name, self._folder.path, command, log=log, environ=environ)
        if name not in self.started:
            self.started.append(name)

    async def ready(self, name: str) -> None:
        """Wait until a component's health check succeeds."""
        health = self._parts[name].health
        if health is not None:
            probe = functools.partial(wire.probe, health, timeout_seconds=_PROBE_SECONDS)
            await self.until(name, probe, seconds=READY_SECONDS, max_pause=_MAX_PROBE_PAUSE_SECONDS)
        self._server_ready |= name == _SERVER
        self._progress.done(name, "ready")

    async def start_ready(self, name: str) -> None:
        """Start a component and wait until it is ready."""
        await self.start(name)
        await self.ready(name)

    async def listening(self, name: str, address: str, port: int) -> None:
        """Wait until a component accepts connections."""
        listens = functools.partial(_listens, address, port)
        await self.until(name, listens, seconds=READY_SECONDS, max_pause=_MAX_PROBE_PAUSE_SECONDS)

    async def until(
        self,
        name: str,
        condition: Callable[[], Awaitable[bool]],
        *,
        seconds: float,
        reached: Callable[[], int] = lambda: 0,
        max_pause: float = _MAX_PAUSE_SECONDS,
    ) -> None:
        """Wait for a condition that a component brings about; see `met`. Raises `ComponentError` if it is not met.

        The timeout restarts when the component is started again, too.
        """

        def steps() -> int:
            return reached() + self._launches[name]

        if not await self.met(condition, seconds=seconds, reached=steps, max_pause=max_pause):
            raise ComponentError(name, f"made no progress in {seconds:g} s", self._tail(name))

    async def met(
        self,
        condition: Callable[[], Awaitable[bool]],
        *,
        seconds: float,
        reached: Callable[[], int],
        max_pause: float = _MAX_PAUSE_SECONDS,
    ) -> bool:
        """Wait for a condition, and return whether it was met in time.

        The timeout is `seconds`; it restarts whenever the count that `reached` returns grows. The time of requests that
        fail does not count: they have a timeout of their own.
        """
        clock = asyncio.get_running_loop().time
        before, deadline, took = reached(), clock() + seconds, 0.0

        async def timed() -> bool:
            nonlocal took
            began = clock()
            try:
                return await condition()
            finally:
                took = clock() - began

        while True:
            began = clock()
            if await self.until_served(timed):
                return True
            deadline += clock() - began - took
            self._check_alive()
            if reached() > before:
                before, deadline = reached(), clock() + seconds
            elif clock() > deadline:
                return False
            # Listing thousands of nodes takes CPU time that the component needs.
            await asyncio.sleep(min(max(_POLL_SECONDS, 4 * took), max_pause))

    async def until_served(self, requests: Callable[[], Awaitable[T]]) -> T:
        """Make idempotent requests to the API server until it serves them: it may be busy starting.

        The timeout counts from the first failure.
        """
        clock = asyncio.get_running_loop().time
        started, deadline, failing, pause = clock(), math.inf, False, _RETRY_SECONDS
        try:
            while True:
                try:
                    answer = await requests()
                except kube_errors.TRANSIENT as error:
                    self._check_alive()
                    deadline = min(deadline, clock() + READY_SECONDS)
                    if clock() >= deadline:
                        reason = f"did not serve a request in {clock() - started:.0f} s: {error}"
                        raise ComponentError(_SERVER, reason, self._tail(_SERVER)) from error
                    if not failing:
                        failing = True
                        self._failing += 1
                        if self._failing == 1:
                            self._progress.update(_REQUESTS, f"not served yet: {error}")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_RETRY_SECONDS)
                else:
                    if failing and self._failing == 1:
                        self._progress.done(_REQUESTS, "served")
                    return answer
        finally:
            self._failing -= failing

    async def each_served(
        self, items: Iterable[T], request: Callable[[T], Awaitable[object]], *, in_flight: int = parallel.IN_FLIGHT
    ) -> None:
        """Make an idempotent request for each item, so many at a time, each until it is served."""
        await parallel.each(
            items, lambda item: self.until_served(functools.partial(request, item)), in_flight=in_flight
        )

    @contextlib.asynccontextmanager
    async def explaining_failures(self) -> AsyncIterator[None]:
        """If the API does not respond because a component ended, raise that instead."""
        try:
            yield
        except kube_errors.KubeError:
            if ended := self._ended():
                raise ComponentError(ended[0], "ended", self._tail(ended[0])) from None
            raise

    def _ended(self) -> list[str]:
        running = alive(self._folder)
        return [name for name in self._expected if name not in running]

    def _check_alive(self) -> None:
        """Start programs of Kubernetes again that ended, a few times; raise for what ended otherwise.

        On a busy machine the API server may not have what it needs in time, and its clients not the API server: they
        wait for some seconds, some of them after their health checks succeed, and then end.
        """
        now = asyncio.get_running_loop().time()
        if now < self._checked + _ALIVE_SECONDS:
            return
        self._checked = now
        for name in self._ended():
            error = ComponentError(name, "ended", self._tail(name))
            if error.port_taken or name not in _LISTENERS or self._restarts[name] >= _RESTARTS:
                raise error
            launched, _ = self._launched.get(name, (-math.inf, 0))
            if now < launched + _RESTART_SECONDS:
                continue
            if self._server_ready or name in _SERVERS:
                self._restarts[name] += 1
            self._progress.update(name, "ended; starting again")
            self._launch(name)

    def _tail(self, name: str) -> str:
        """Return the last lines that a component has logged since it was started."""
        _, begin = self._launched.get(name, (0.0, 0))
        return tail(self._folder.log(name), begin=begin)


def _bare_environment(folder: Folder) -> dict[str, str]:
    """Return an environment without the user's settings, such as proxies and configuration files."""
    return {"HOME": str(folder.path), "PATH": os.environ.get("PATH", os.defpath)}


async def _listens(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


def alive(folder: Folder) -> set[str]:
    """Return the names of running components."""
    return {process.component for process in processes.running(folder.path)}


def tail(log: Path, *, begin: int = 0) -> str:
    """Return the last lines of a log file from a position on, each truncated."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(begin, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line[:_MAX_LINE] for line in text.splitlines()[-_LAST_LINES:])
