"""The DRA plugin: a socket that registers it with the kubelet, and one that prepares claims and reports health.

Calls are only translated here; `preparing` has the work. Sockets have the uid of the agent's pod in their names, where
that is known: during an update the kubelet then knows the plugins of both agents, and calls the newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from simgpu import vocabulary
from simgpu.node import dra_messages, plugins, rpc

HEALTH_SECONDS = 10.0  # between reports that nothing changed
HEALTH_TIMEOUT = 30  # seconds after which the kubelet takes a report for outdated
MAX_BATCH = 256  # claims of a call

R = TypeVar("R")
Prepare = Callable[[dra_messages.ClaimRef], Coroutine[Any, Any, dra_messages.PrepareResult]]
Unprepare = Callable[[dra_messages.ClaimRef], Coroutine[Any, Any, dra_messages.UnprepareResult]]

_log = logging.getLogger(__name__)


class DraSockets(msgspec.Struct, frozen=True):
    """Paths of the plugin's socket and of the one that registers it."""

    service: Path
    registration: Path

    def all(self) -> tuple[Path, ...]:
        """Return both."""
        return self.service, self.registration


def sockets(plugins_folder: Path, registry: Path, *, pod: str = "") -> DraSockets:
    """Return the sockets of the plugin of an agent, which is the pod of this uid if it is one."""
    own = f"-{pod}" if pod else ""
    folder, driver = plugins_folder / vocabulary.DRA_DRIVER, vocabulary.DRA_DRIVER
    return DraSockets(_short(folder, f"dra{own}", ".sock"), _short(registry, f"{driver}{own}", "-reg.sock"))


def _short(folder: Path, name: str, ending: str) -> Path:
    """Return the path of a socket; a name that is too long is hashed."""
    path = folder / f"{name}{ending}"
    if len(os.fsencode(path)) <= plugins.MAX_SOCKET_PATH:
        return path
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}{ending}"


class DeviceHealths(msgspec.Struct, frozen=True):
    """The health of devices by name: empty text for a healthy one, else what is wrong with it."""

    pool: str = ""
    devices: Mapping[str, str] = {}

    def message(self, now: float) -> dra_messages.WatchResponse:
        """Return the message for the kubelet; `now` is in seconds since 1970."""
        return dra_messages.WatchResponse(
            tuple(
                dra_messages.HealthOfDevice(
                    dra_messages.DeviceIdentifier(self.pool, name),
                    dra_messages.UNHEALTHY if problem else dra_messages.HEALTHY,
                    int(now), HEALTH_TIMEOUT, problem,
                )
                for name, problem in self.devices.items()
            )
        )  # fmt: skip


class DraPlugin:
    """Serves the driver's claims on a node while it is `offer`ed."""

    def __init__(self, prepare: Prepare, unprepare: Unprepare, *, at: DraSockets) -> None:
        self.registered = False
        self._prepare = prepare
        self._unprepare = unprepare
        self._at = at
        self._health = DeviceHealths()
        self._changed = asyncio.Event()
        self._present = False
        self._wake = asyncio.Event()
        self._servers: dict[Path, tuple[rpc.RpcServer, tuple[int, ...] | None]] = {}
        self._problem = ""  # that was logged last

    @property
    def folder(self) -> Path:
        """The folder of the plugin's socket."""
        return self._at.service.parent

    def offer(self, health: DeviceHealths, *, present: bool) -> None:
        """Report the health of devices, and register or deregister the plugin."""
        if health != self._health:
            self._health = health
            self._changed.set()
            self._changed = asyncio.Event()
        if present != self._present:
            self._present = present
            self._wake.set()

    async def run(self) -> None:
        """Keep the plugin registered as offered, until cancelled."""
        try:
            while True:
                self._wake.clear()
                await (self.keep() if self._present else self.stop())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(plugins.LOOK_SECONDS):
                        await self._wake.wait()
        finally:
            await self.stop()

    async def keep(self) -> None:
        """Listen on both sockets; the kubelet finds the second one by itself."""
        if all(path in self._servers and plugins.identity(path) == self._servers[path][1] for path in self._at.all()):
            return
        await self.stop()
        try:
            for path, services in self.services().items():
                await self._listen(path, services)
        except OSError as error:
            await self.stop()
            self._report(f"cannot listen for the kubelet: {error}")

    def services(self) -> Mapping[Path, rpc.Services]:
        """Return the methods that the kubelet calls, by the path of their socket: the one that it finds comes last."""
        service = {
            "NodePrepareResources": rpc.unary(dra_messages.ClaimsRequest, self._prepare_each),
            "NodeUnprepareResources": rpc.unary(dra_messages.ClaimsRequest, self._unprepare_each),
        }
        watch = {"NodeWatchResources": rpc.stream(dra_messages.WatchRequest, self._watch)}
        registration = {
            "GetInfo": rpc.unary(dra_messages.InfoRequest, self._info),
            "NotifyRegistrationStatus": rpc.unary(dra_messages.RegistrationStatus, self._notified),
        }
        found = dict.fromkeys(dra_messages.PLUGIN_SERVICES.values(), service)
        found |= dict.fromkeys(dra_messages.HEALTH_SERVICES.values(), watch)
        return {self._at.service: found, self._at.registration: {dra_messages.REGISTRATION: registration}}

    async def _listen(self, path: Path, services: rpc.Services) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in _abandoned(path.parent, path):
            _log.info("removing a socket without a listener: %s", other)
            other.unlink(missing_ok=True)
        server = await rpc.serve(path, services)
        self._servers[path] = server, plugins.identity(path)

    async def stop(self) -> None:
        """Deregister, then finish calls in progress and remove the sockets."""
        self.registered = False
        for path in reversed(self._at.all()):
            server, made = self._servers.pop(path, (None, None))
            if server is None:
                continue
            with contextlib.suppress(OSError):
                if plugins.identity(path) == made:
                    path.unlink()
            await server.stop()

    def _report(self, problem: str) -> None:
        """Log a problem unless it was the last one logged."""
        if problem and problem != self._problem:
            _log.warning("%s", problem)
        self._problem = problem

    async def _info(self, _request: dra_messages.InfoRequest) -> dra_messages.PluginInfo:
        versions = (*dra_messages.PLUGIN_SERVICES, *dra_messages.HEALTH_SERVICES)
        return dra_messages.PluginInfo(dra_messages.PLUGIN_TYPE, vocabulary.DRA_DRIVER, str(self._at.service), versions)

    async def _notified(self, status: dra_messages.RegistrationStatus) -> dra_messages.RegistrationStatusResponse:
        self.registered = status.plugin_registered
        if self.registered:
            _log.info("registered %s with the kubelet", vocabulary.DRA_DRIVER)
        self._report("" if self.registered else f"the kubelet rejected the DRA plugin: {status.error}")
        return dra_messages.RegistrationStatusResponse()

    async def _prepare_each(self, request: dra_messages.ClaimsRequest) -> dra_messages.PrepareResponse:
        return dra_messages.PrepareResponse(await self._each(request, self._prepare))

    async def _unprepare_each(self, request: dra_messages.ClaimsRequest) -> dra_messages.UnprepareResponse:
        return dra_messages.UnprepareResponse(await self._each(request, self._unprepare))

    @staticmethod
    async def _each(
        request: dra_messages.ClaimsRequest, work: Callable[[dra_messages.ClaimRef], Coroutine[Any, Any, R]]
    ) -> dict[str, R]:
        if len(request.claims) > MAX_BATCH:
            raise rpc.RpcError(f"claims: {len(request.claims)} in one call; at most {MAX_BATCH} are allowed")
        return {claim.uid: await work(claim) for claim in request.claims}

    async def _watch(self, _request: dra_messages.WatchRequest) -> AsyncGenerator[dra_messages.WatchResponse, None]:
        while True:
            changed = self._changed
            yield self._health.message(time.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_SECONDS):
                    await changed.wait()


def _abandoned(folder: Path, own: Path) -> Iterator[Path]:
    """Yield sockets of earlier agents, which were killed: those of this driver without a listener.

    The driver's folder is its own; other drivers have sockets in the registry, too.
    """
    pattern = "*.sock" if folder.name == vocabulary.DRA_DRIVER else f"{vocabulary.DRA_DRIVER}-*.sock"
    for path in folder.glob(pattern):
        if path != own and _refuses(path):
            yield path


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        try:
            return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
        except OSError:
            return False
