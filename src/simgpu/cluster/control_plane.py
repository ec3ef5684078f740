"""Supervises the processes of one cluster: starts them, waits until they are ready, and explains why one ended.

Also chooses the ports that they listen on, and writes the kubeconfig of the administrator.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from simgpu import errors
from simgpu.cluster import processes, record, repeating
from simgpu.cluster.components import Component, Role
from simgpu.cluster.progress import Progress
from simgpu.cluster.record import Folder, Record
from simgpu.kube import errors as kube_errors
from simgpu.kube import wire

READY_SECONDS = 120.0
_PROBE_SECONDS = 5.0  # of one request for a component's health
_MAX_PROBE_PAUSE_SECONDS = 0.25  # between these requests
_ALIVE_SECONDS = 0.5  # between checks whether processes run, which read all of /proc
_RESTARTS = 3  # of a program of Kubernetes that ends before it is ready
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
        self.component, self.problem = component, problem
        self.last_line = log.rpartition("\n")[2] or "(nothing)"
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


@dataclasses.dataclass(slots=True)
class _Run:
    """A component that has to run."""

    launches: int = 0  # by us
    launched: float = -math.inf  # when, the last time
    log_begin: int = 0  # size of its log then
    pid: int | None = None  # if it is our child
    ready: bool = False


class ControlPlane:
    """The processes of one cluster."""

    def __init__(self, folder: Folder, parts: Mapping[str, Component], progress: Progress) -> None:
        self.requests = repeating.Requests(
            progress, check=self._check_at_intervals, unserved=functools.partial(self._error, "kube-apiserver")
        )
        self._folder = folder
        self._parts = parts
        self._progress = progress
        self._runs: dict[str, _Run] = {}
        self._checked = -math.inf  # when processes were checked last

    @property
    def started(self) -> list[str]:
        """The components that did not run, or not with this command line."""
        return [name for name, run in self._runs.items() if run.launches]

    async def start(
        self, name: str, *, restart: bool = False, stopped: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Start a component unless it runs; one with a different command line is restarted.

        `stopped` is awaited between the end of the old process and the start of the new one.
        """
        part, run = self._parts[name], _Run()
        mine = [process for process in processes.running(self._folder.path) if process.component == name]
        if not mine or restart or any(process.command() != part.command for process in mine):
            await processes.stop(self._folder.path, only=frozenset({name}))
            if stopped is not None:
                await stopped()
            self._progress.update(name, "starting")
            self._launch(name, run)
        self._runs[name] = run

    def _launch(self, name: str, run: _Run) -> None:
        environ = os.environ if name not in _LISTENERS else _bare_environment(self._folder)
        command, log = self._parts[name].command, self._folder.log(name)
        run.log_begin = log.stat().st_size if log.exists() else 0
        run.launched = asyncio.get_running_loop().time()
        run.launches += 1
        run.pid = processes.start(name, self._folder.path, command, log=log, environ=environ)

    async def ready(self, name: str) -> None:
        """Wait until a component's health check succeeds."""
        part = self._parts[name]
        if part.health is not None:
            probe = functools.partial(
                wire.probe, part.health, timeout_seconds=_PROBE_SECONDS, certificate=part.certificate
            )
            await self.until(name, probe, seconds=READY_SECONDS, max_pause=_MAX_PROBE_PAUSE_SECONDS)
        self._runs[name].ready = True
        self._progress.done(name, "ready")

    async def start_ready(self, name: str) -> None:
        """Start a component and wait until it is ready."""
        await self.start(name)
        await self.ready(name)

    async def until(
        self,
        name: str,
        condition: Callable[[], Awaitable[bool]],
        *,
        seconds: float,
        reached: Callable[[], int] = lambda: 0,
        max_pause: float = repeating.MAX_PAUSE_SECONDS,
    ) -> None:
        """Wait for a condition that a component brings about; see `Requests.met`. `ComponentError` if it is not met.

        The timeout restarts when the component is started again, too.
        """

        run = self._runs.get(name, _Run())
        if not await self.requests.met(
            condition, seconds=seconds, reached=lambda: reached() + run.launches, max_pause=max_pause
        ):
            raise self._error(name, f"made no progress in {seconds:g} s")

    @contextlib.asynccontextmanager
    async def explaining_failures(self) -> AsyncIterator[None]:
        """If the API does not respond because a component ended, raise that instead."""
        try:
            yield
        except kube_errors.KubeError:
            if ended := self._ended():
                raise ended[0] from None
            raise

    def check(self) -> None:
        """Raise for a component that has ended; a program of Kubernetes that never was ready is started again.

        On a busy machine programs may not get what they need before their own timeouts. One that ends after it was
        ready is an error: others may have lost what it had.
        """
        self._checked = now = asyncio.get_running_loop().time()
        for error in self._ended():
            name, run = error.component, self._runs[error.component]
            if run.ready or error.port_taken or name not in _LISTENERS or run.launches > _RESTARTS:
                raise error
            if now >= run.launched + _RESTART_SECONDS:
                self._progress.note(
                    f"{name} {error.problem}; it is started again. The last line of its log: {error.last_line}"
                )
                self._launch(name, run)

    def _check_at_intervals(self) -> None:
        if asyncio.get_running_loop().time() >= self._checked + _ALIVE_SECONDS:
            self.check()

    def _ended(self) -> list[ComponentError]:
        running = alive(self._folder)
        return [self._error(name, _ending(run)) for name, run in self._runs.items() if name not in running]

    def _error(self, name: str, problem: str) -> ComponentError:
        """Return an error with the last lines that a component has logged since it was started."""
        begin = self._runs.get(name, _Run()).log_begin
        return ComponentError(name, problem, tail(self._folder.log(name), begin=begin))


def _ending(run: _Run) -> str:
    how = processes.ending(run.pid) if run.pid is not None else ""
    return f"ended ({how})" if how else "ended"


def _bare_environment(folder: Folder) -> dict[str, str]:
    """Return an environment without the user's settings, such as proxies and configuration files."""
    return {"HOME": str(folder.path), "PATH": os.environ.get("PATH", os.defpath)}


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
