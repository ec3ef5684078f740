"""Device plugins: a server for each resource, and its registration with the kubelet.

A kubelet that starts empties its plugin folder and creates its own socket anew. A plugin whose socket is missing, that
registered with an earlier kubelet, or whose devices the kubelet does not watch, listens and registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpu import vocabulary
from simgpu.node import messages, rpc
from simgpu.node.offers import Offer, prefer

LOOK_SECONDS = 0.5
SILENCE_SECONDS = 15.0
MAX_SOCKET_PATH = 107  # bytes

_CALL_SECONDS = 5.0
_OPTIONS = messages.DevicePluginOptions(get_preferred_allocation_available=True)

_log = logging.getLogger(__name__)

Allocate = Callable[[str, Sequence[str]], Coroutine[Any, Any, messages.ContainerAllocateResponse]]


class Plugin:
    """Serves one resource. It registers again after `silence` seconds without a watch by the kubelet."""

    def __init__(self, folder: Path, offer: Offer, allocate: Allocate, *, silence: float) -> None:
        self.socket = socket_of(offer.resource, folder)
        self._offer = offer
        self._allocate = allocate
        self._silence = silence
        self._watches = 0
        self._silent_since = 0.0
        self._changed = asyncio.Event()
        self._server: rpc.RpcServer | None = None
        self._known_to: tuple[int, ...] | None = None
        self._problem = ""  # that was logged last

    def offer(self, offer: Offer) -> None:
        """Publish the devices to the kubelet, if they changed."""
        if offer != self._offer:
            self._offer = offer
            self._changed.set()
            self._changed = asyncio.Event()

    async def keep(self, kubelet: Path) -> None:
        """Listen, and register with the kubelet that runs now."""
        now = identity(kubelet)
        if self._server is not None and (now != self._known_to or identity(self.socket) is None or self._forgotten):
            await self.stop()
        if now is None or self._server is not None:
            return
        request = messages.RegisterRequest(messages.VERSION, self.socket.name, self._offer.resource, _OPTIONS)
        try:
            self._server = await rpc.serve(self.socket, self.services())
            await rpc.call(kubelet, f"{messages.REGISTRATION}/Register", request, messages.Empty, seconds=_CALL_SECONDS)
        except (rpc.RpcError, OSError) as error:
            await self.stop()
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("cannot register %s with the kubelet: %s", self._offer.resource, error)
            return
        self._known_to, self._problem, self._silent_since = now, "", time.monotonic()
        _log.info("registered %s with the kubelet", self._offer.resource)

    def services(self) -> rpc.Services:
        """Return the methods that the kubelet calls."""
        methods = {
            "GetDevicePluginOptions": rpc.unary(messages.Empty, self._options),
            "ListAndWatch": rpc.stream(messages.Empty, self._list_and_watch),
            "GetPreferredAllocation": rpc.unary(messages.PreferredAllocationRequest, self._preferred),
            "Allocate": rpc.unary(messages.AllocateRequest, self._allocate_each),
        }
        return {messages.DEVICE_PLUGIN: methods}

    @property
    def _forgotten(self) -> bool:
        """Whether the kubelet has not watched the devices for too long."""
        return not self._watches and time.monotonic() - self._silent_since > self._silence

    async def stop(self) -> None:
        """Stop serving, and remove the socket."""
        server, self._server, self._known_to = self._server, None, None
        try:
            if server is not None:
                await server.stop()
        finally:
            with contextlib.suppress(OSError):
                self.socket.unlink()

    async def _options(self, _request: messages.Empty) -> messages.DevicePluginOptions:
        return _OPTIONS

    async def _list_and_watch(self, _request: messages.Empty) -> AsyncGenerator[messages.ListAndWatchResponse, None]:
        self._watches += 1
        try:
            while True:
                changed = self._changed
                yield self._offer.message()
                await changed.wait()
        finally:
            self._watches -= 1
            self._silent_since = time.monotonic()

    async def _preferred(self, request: messages.PreferredAllocationRequest) -> messages.PreferredAllocationResponse:
        return messages.PreferredAllocationResponse(
            tuple(
                messages.ContainerPreferredAllocationResponse(
                    prefer(self._offer, item.available, item.must_include, item.size)
                )
                for item in request.containers
            )
        )

    async def _allocate_each(self, request: messages.AllocateRequest) -> messages.AllocateResponse:
        return messages.AllocateResponse(tuple([await self._allocate_one(item.ids) for item in request.containers]))

    async def _allocate_one(self, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        known = {item.id for item in self._offer.devices}
        unknown = [item for item in ids if item not in known]
        if unknown:
            raise rpc.RpcError(f"{self._offer.resource}: no device {', '.join(unknown)}")
        if self._offer.max_request is not None and len(ids) > self._offer.max_request:
            raise rpc.RpcError(f"{self._offer.resource} is shared: at most {self._offer.max_request} for a container")
        return await self._allocate(self._offer.resource, ids)


class Plugins:
    """All plugins of a node. `folder` is the kubelet's plugin folder, `silence` in seconds."""

    def __init__(self, allocate: Allocate, *, folder: Path, silence: float = SILENCE_SECONDS) -> None:
        self._allocate = allocate
        self._folder = folder
        self._silence = silence
        self._plugins: dict[str, Plugin] = {}
        self._present = True
        self._wake = asyncio.Event()

    def offer(self, offers: Mapping[str, Offer], *, present: bool = True) -> None:
        """Set the offers. A resource that is no longer offered stays registered, with no devices."""
        for resource in self._plugins.keys() - offers.keys():
            self._plugins[resource].offer(Offer(resource, ()))
        for resource, offer in offers.items():
            if resource in self._plugins:
                self._plugins[resource].offer(offer)
            else:
                self._plugins[resource] = Plugin(self._folder, offer, self._allocate, silence=self._silence)
        self._present = present
        self._wake.set()

    def remove_files(self) -> None:
        """Remove the sockets of all agents, those that were killed included; none may run any more."""
        for path in self._folder.glob("simgpu-*.sock"):
            path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Keep all plugins registered until cancelled."""
        try:
            while True:
                self._wake.clear()
                for plugin in list(self._plugins.values()):
                    await (plugin.keep(self._folder / vocabulary.KUBELET_SOCKET) if self._present else plugin.stop())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._wake.wait()
        finally:
            for plugin in self._plugins.values():
                await plugin.stop()


def socket_of(resource: str, folder: Path) -> Path:
    """Return a plugin's socket path. A resource's domain has no underscore, so no two resources share a path."""
    plain = folder / f"simgpu-{resource.replace('/', '_')}.sock"
    if len(os.fsencode(plain)) <= MAX_SOCKET_PATH:
        return plain
    return folder / f"simgpu-{hashlib.sha256(resource.encode()).hexdigest()[:16]}.sock"


def identity(socket: Path) -> tuple[int, ...] | None:
    """Return what distinguishes a socket from another at the same path; None where there is none."""
    try:
        found = socket.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
