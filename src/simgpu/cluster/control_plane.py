"""Starts the processes of one cluster and waits until they are ready."""

from __future__ import annotations

import asyncio
import base64
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
_RETRY_SECONDS = 0.5  # between requests
_MAX_PAUSE_SECONDS = 30.0  # between looks at what takes the server long to list
_PROBE_SECONDS = 5.0  # of one request for a component's health
_RESTARTS = 3  # of a program of Kubernetes that ends before it is ready
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
        self._restarts: dict[str, int] = {}  # that are left to components that start
        self._failing = 0  # requests that are not served now

    async def start(
        self, name: str, *, restart: bool = False, stopped: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Start a component unless it runs; one with a different command line is restarted.

        `stopped` is awaited between the end of the old process and the start of the new one.
        """
        part = self._parts[name]
        mine = [process for process in processes.running(self._folder.path) if process.component == name]
        if mine and not restart and all(process.command() == part.command for process in mine):
            self._expected.append(name)
            return
        await processes.stop(self._folder.path, only=frozenset({name}))
        if stopped is not None:
            await stopped()
        self._progress.update(name, "starting")
        self._launch(name)
        self.started.append(name)
        self._expected.append(name)
        if name in _LISTENERS:
            self._restarts[name] = _RESTARTS

    def _launch(self, name: str) -> None:
        environ = os.environ if name not in _LISTENERS else _bare_environment(self._folder)
        command, log = self._parts[name].command, self._folder.log(name)
        processes.start(name, self._folder.path, command, log=log, environ=environ)

    async def ready(self, name: str) -> None:
        """Wait until a component's health check succeeds."""
        health = self._parts[name].health
        if health is not None:
            probe = functools.partial(wire.probe, health, timeout_seconds=_PROBE_SECONDS)
            await self.until(name, probe, seconds=READY_SECONDS)
        self._restarts.pop(name, None)
        self._progress.done(name, "ready")

    async def start_ready(self, name: str) -> None:
        """Start a component and wait until it is ready."""
        await self.start(name)
        await self.ready(name)

    async def listening(self, name: str, address: str, port: int) -> None:
        """Wait until a component accepts connections."""
        await self.until(name, lambda: _listens(address, port), seconds=READY_SECONDS)

    async def until(
        self,
        name: str,
        condition: Callable[[], Awaitable[bool]],
        *,
        seconds: float,
        reached: Callable[[], int] = lambda: 0,
    ) -> None:
        """Wait for a condition that a component brings about. A component that ends is an error at once.

        The timeout is `seconds`; it restarts whenever the count that `reached` returns grows.
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
            started = clock()
            if await self.until_served(timed):
                return
            deadline += clock() - started - took  # requests that failed have a timeout of their own
            self._check_alive()
            if reached() > before:
                before, deadline = reached(), clock() + seconds
            elif clock() > deadline:
                raise ComponentError(name, f"made no progress in {seconds:g} s", tail(self._folder.log(name)))
            # Listing thousands of nodes takes CPU time that the component needs.
            await asyncio.sleep(min(max(_POLL_SECONDS, 4 * took), _MAX_PAUSE_SECONDS))

    async def until_served(self, requests: Callable[[], Awaitable[T]]) -> T:
        """Make idempotent requests to the API server until it serves them: it may be busy starting.

        The timeout counts from the first failure. A component that ends is an error at once.
        """
        clock = asyncio.get_running_loop().time
        started, deadline, failing = clock(), math.inf, False
        while True:
            try:
                answer = await requests()
            except kube_errors.TRANSIENT as error:
                self._check_alive()
                deadline = min(deadline, clock() + READY_SECONDS)
                if clock() >= deadline:
                    reason = f"did not serve a request in {clock() - started:.0f} s: {error}"
                    raise ComponentError(_SERVER, reason, tail(self._folder.log(_SERVER))) from error
                if not failing:
                    failing = True
                    self._failing += 1
                    if self._failing == 1:
                        self._progress.update(_REQUESTS, f"not served yet: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                if failing:
                    self._failing -= 1
                    if not self._failing:
                        self._progress.done(_REQUESTS, "served")
                return answer

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
            self._check_alive()
            raise

    def _check_alive(self) -> None:
        """Start components again that ended before they were ready, a few times; raise for others that ended.

        On a busy machine the API server may not have what it needs in time, and its clients not the API server: they
        wait for some seconds, and then end.
        """
        running = alive(self._folder)
        for ended in [part for part in self._expected if part not in running]:
            error = ComponentError(ended, "ended", tail(self._folder.log(ended)))
            if error.port_taken or not self._restarts.get(ended):
                raise error
            self._restarts[ended] -= 1
            self._progress.update(ended, "ended before it was ready; starting again")
            self._launch(ended)


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


def tail(log: Path) -> str:
    """Return the last lines of a log file, each truncated."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line[:_MAX_LINE] for line in text.splitlines()[-_LAST_LINES:])
