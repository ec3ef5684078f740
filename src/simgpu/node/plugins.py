"""Device plugins: a server for each resource, and the kubelet's knowledge of them.

Wanted is what is offered; seen are the sockets in the kubelet's folder, and whether it listens to what a plugin has. A
kubelet that starts empties that folder and makes its own socket anew, and a plugin that it does not know, for
whatever reason, listens and registers again.
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
LONGEST_PATH = 107  # of a socket

_CALL_SECONDS = 5.0
_OPTIONS = messages.DevicePluginOptions(get_preferred_allocation_available=True)

_log = logging.getLogger(__name__)

Allocate = Callable[[str, Sequence[str]], Coroutine[Any, Any, messages.ContainerAllocateResponse]]


class Plugin:
    """Serves one resource. Handlers only translate."""

    def __init__(self, folder: Path, offer: Offer, allocate: Allocate, *, silence: float) -> None:
        self.socket = socket_of(offer.resource, folder)
        self._offer = offer
        self._allocate = allocate
        self._silence = silence
        self._listening = 0
        self._silent_since = 0.0
        self._changed = asyncio.Event()
        self._server: rpc.Server | None = None
        self._known_to: tuple[int, ...] | None = None
        self._refused: str = ""

    def offer(self, offer: Offer) -> None:
        """Tell the kubelet, if anything is new."""
        if offer != self._offer:
            self._offer = offer
            self._changed.set()
            self._changed = asyncio.Event()

    async def keep(self, kubelet: Path) -> None:
        """Listen, and be known to the kubelet that is there now."""
        now = identity(kubelet)
        if self._server is not None and (now != self._known_to or identity(self.socket) is None or self._forgotten):
            await self.stop()
        if now is None or self._server is not None:
            return
        methods = {
            "GetDevicePluginOptions": rpc.unary(messages.Empty, self._options),
            "ListAndWatch": rpc.stream(messages.Empty, self._list_and_watch),
            "GetPreferredAllocation": rpc.unary(messages.PreferredAllocationRequest, self._preferred),
            "Allocate": rpc.unary(messages.AllocateRequest, self._allocated),
        }
        request = messages.RegisterRequest(messages.VERSION, self.socket.name, self._offer.resource, _OPTIONS)
        try:
            self._server = await rpc.serve(self.socket, messages.DEVICE_PLUGIN, methods)
            await rpc.call(kubelet, f"{messages.REGISTRATION}/Register", request, messages.Empty, seconds=_CALL_SECONDS)
        except (rpc.Refused, OSError) as error:
            await self.stop()
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("the kubelet does not take %s: %s", self._offer.resource, error)
            return
        self._known_to, self._refused, self._silent_since = now, "", time.monotonic()
        _log.info("the kubelet knows %s", self._offer.resource)

    @property
    def _forgotten(self) -> bool:
        """Whether the kubelet has not listened for so long that it never will."""
        return not self._listening and time.monotonic() - self._silent_since > self._silence

    async def stop(self) -> None:
        """Be gone."""
        server, self._server, self._known_to = self._server, None, None
        if server is not None:
            await server.stop()
        with contextlib.suppress(OSError):
            self.socket.unlink()

    async def _options(self, _request: messages.Empty) -> messages.DevicePluginOptions:
        return _OPTIONS

    async def _list_and_watch(self, _request: messages.Empty) -> AsyncGenerator[messages.ListAndWatchResponse, None]:
        self._listening += 1
        try:
            while True:
                changed = self._changed
                yield self._offer.message()
                await changed.wait()
        finally:
            self._listening -= 1
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

    async def _allocated(self, request: messages.AllocateRequest) -> messages.AllocateResponse:
        return messages.AllocateResponse(tuple([await self._container(item.ids) for item in request.containers]))

    async def _container(self, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        known = {item.id for item in self._offer.devices}
        unknown = [item for item in ids if item not in known]
        if unknown:
            raise rpc.Refused(f"{self._offer.resource}: no device {', '.join(unknown)}")
        if self._offer.largest is not None and len(ids) > self._offer.largest:
            raise rpc.Refused(f"{self._offer.resource} is shared: at most {self._offer.largest} for a container")
        return await self._allocate(self._offer.resource, ids)


class Plugins:
    """All plugins of a node; `run` it, and say what is offered."""

    def __init__(self, allocate: Allocate, *, folder: Path, silence: float = SILENCE_SECONDS) -> None:
        self._allocate = allocate
        self._folder = folder
        self._silence = silence
        self._plugins: dict[str, Plugin] = {}
        self._present = True
        self._wake = asyncio.Event()

    def offer(self, offers: Mapping[str, Offer], *, present: bool = True) -> None:
        """What there is now. What is offered no more stays known, with no devices."""
        for resource in self._plugins.keys() - offers.keys():
            self._plugins[resource].offer(Offer(resource, ()))
        for resource, offer in offers.items():
            if resource in self._plugins:
                self._plugins[resource].offer(offer)
            else:
                self._plugins[resource] = Plugin(self._folder, offer, self._allocate, silence=self._silence)
        self._present = present
        self._wake.set()

    async def run(self) -> None:
        """Keep all plugins known until cancelled."""
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
    """Where a plugin listens. A resource has no other underscore before its slash, so no two are at one place."""
    plain = folder / f"simgpu-{resource.replace('/', '_')}.sock"
    if len(os.fsencode(plain)) <= LONGEST_PATH:
        return plain
    return folder / f"simgpu-{hashlib.sha256(resource.encode()).hexdigest()[:16]}.sock"


def identity(socket: Path) -> tuple[int, ...] | None:
    """What tells a socket from another at the same place; None where there is none."""
    try:
        found = socket.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
