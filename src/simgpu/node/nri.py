"""The agent as a plugin of the container runtime (NRI): containers of pods that share GPUs get what shows them these.

Such a pod asks the kubelet for no device, so no device plugin is called for it. A plugin that fails, or is away, holds
up no container: whatever happens here, the answer is an empty one, and the runtime drops a plugin that is too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from simgpu.kube.backoff import Backoff
from simgpu.kube.views import ObjectMeta, Pod
from simgpu.node import granting
from simgpu.node import nri_messages as api
from simgpu.node.protobuf import Message
from simgpu.node.ttrpc import (
    REQUEST,
    RESPONSE,
    TtrpcMessage,
    TtrpcRequest,
    TtrpcResponse,
    TtrpcStatus,
    TtrpcTrunk,
)
from simgpu.pods import reserving
from simgpu.vocabulary import PAGES_DIR, SHARED_MEMORY_ENV

ANSWER_SECONDS = 1.0  # the runtime drops a plugin that takes 2, and meanwhile creates no other container
REGISTER_SECONDS = 5.0  # for the runtime to accept a connection, and then to answer the registration
_STEADY_SECONDS = 60.0  # after which a connection has worked: what breaks sooner is tried ever more seldom
_CONNECTIONS = (api.PLUGIN_CONNECTION, api.RUNTIME_CONNECTION)
_NAME, _INDEX = "simgpu", "50"
_UNIMPLEMENTED = 12  # gRPC's code
_OPTIONS = ("bind", "ro", "nosuid", "nodev", "rprivate")

Adjust = Callable[[api.PodSandbox, api.NriContainer], Awaitable[api.ContainerAdjustment | None]]

_log = logging.getLogger(__name__)


class NriPlugin:
    """Connects to the runtime's socket, and answers with `adjust` which changes a container gets."""

    def __init__(self, socket: Path, adjust: Adjust) -> None:
        self.registered = 0  # times so far
        self._socket = socket
        self._adjust = adjust
        self._backoff = Backoff(first_seconds=0.5, max_seconds=30.0)
        self._steady_at = math.inf  # when the connection, once registered, has worked for a while

    async def run(self) -> None:
        """Stay connected until cancelled; without a socket, or with a runtime that rejects plugins, look again."""
        failures, problem = 0, ""
        while True:
            self._steady_at = math.inf
            try:
                await self._serve()
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                if asyncio.get_running_loop().time() >= self._steady_at:
                    failures, problem = 0, ""
                if (found := f"{type(error).__name__}: {error}") != problem:
                    problem = found
                    _log.warning("pods that share GPUs do not see them until %s answers: %s", self._socket, found)
            await asyncio.sleep(self._backoff.pause(failures))
            failures += 1

    async def _serve(self) -> None:
        async with asyncio.timeout(REGISTER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        try:
            trunk = TtrpcTrunk(reader, writer, connections=_CONNECTIONS)
            try:
                async with asyncio.timeout(REGISTER_SECONDS):
                    await self._register(trunk)
            except TimeoutError:
                raise TimeoutError(f"no answer to the registration in {REGISTER_SECONDS:g} s") from None
            self._steady_at = asyncio.get_running_loop().time() + _STEADY_SECONDS
            while True:
                await self._answer(trunk, await trunk.receive())
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _register(self, trunk: TtrpcTrunk) -> None:
        """Register, and answer what the runtime asks before it has accepted that."""
        before, register = self.registered, api.RegisterPluginRequest(_NAME, _INDEX)
        call = TtrpcRequest(api.RUNTIME, "RegisterPlugin", register.encode(), int(REGISTER_SECONDS * 1e9))
        await trunk.send(TtrpcMessage(api.RUNTIME_CONNECTION, 1, REQUEST, call.encode()))
        while self.registered == before:
            await self._answer(trunk, await trunk.receive())

    async def _answer(self, trunk: TtrpcTrunk, message: TtrpcMessage) -> None:
        if message.connection == api.RUNTIME_CONNECTION and message.kind == RESPONSE:
            status = TtrpcResponse.decode(message.data).status
            if status is not None and status.code:
                raise ValueError(f"the registration was rejected: {status.message}")
            self.registered += 1
            _log.info("registered with the container runtime (NRI)")
        elif message.connection == api.PLUGIN_CONNECTION and message.kind == REQUEST:
            response = await self._response(TtrpcRequest.decode(message.data))
            await trunk.send(TtrpcMessage(message.connection, message.stream, RESPONSE, response.encode()))

    async def _response(self, request: TtrpcRequest) -> TtrpcResponse:
        if request.service != api.PLUGIN:
            return TtrpcResponse(TtrpcStatus(_UNIMPLEMENTED, "unknown service"))
        if request.method == "CreateContainer":
            return _good(api.CreateContainerResponse(await self._adjustment(request.payload)))
        if request.method == "Configure":
            return _good(api.ConfigureResponse(api.CREATE_CONTAINER))
        if request.method == "Synchronize":
            return _good(api.SynchronizeResponse(api.SynchronizeRequest.decode(request.payload).more))
        return TtrpcResponse()  # `Shutdown`, and events: nothing to do

    async def _adjustment(self, payload: bytes) -> api.ContainerAdjustment | None:
        """Return the adjustment of a container; none if that fails, so that the container is created without it."""
        name = "a container"
        try:
            found = api.CreateContainerRequest.decode(payload)
            if found.pod is None or found.container is None:
                return None
            name = f"container {found.container.name} of pod {found.pod.namespace}/{found.pod.name}"
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._adjust(found.pod, found.container)
        except Exception as error:  # noqa: BLE001 - an error would keep the container from being created
            _log.warning("%s is created without GPUs that it shares: %s: %s", name, type(error).__name__, error)
            return None


def _good(answer: Message) -> TtrpcResponse:
    return TtrpcResponse(payload=answer.encode())


def adjustment(
    gpus: Mapping[str, int], *, node: str, source: granting.Source, mounted: Collection[str]
) -> api.ContainerAdjustment:
    """Return what lets a container see GPUs; nothing is mounted over what is `mounted` already.

    `gpus` are the MiB that it has of each, by id: processes show as much as it has of the first.
    """
    granted = granting.gpus(list(gpus), node=node, source=source)
    environment = {**granted.envs, SHARED_MEMORY_ENV: str(max(1, next(iter(gpus.values()))))}  # 0 is no limit
    return api.ContainerAdjustment(
        mounts=tuple(
            api.NriMount(item.container_path, "bind", item.host_path, _OPTIONS)
            for item in granted.mounts
            if item.container_path not in mounted
        ),
        env=()
        if any(path.startswith(f"{PAGES_DIR}/") for path in mounted)  # it has GPUs of its own, which these name
        else tuple(api.KeyValue(key, value) for key, value in environment.items()),
    )


def shared_gpus(
    find: Callable[[str, str], Awaitable[Mapping[str, int]]], *, node: str, source: granting.Source
) -> Adjust:
    """Return what adjusts containers of pods that name reservations.

    `find` is called with the uid of the pod and the name of the container; it returns the MiB of each GPU, by id.
    """

    async def adjust(pod: api.PodSandbox, container: api.NriContainer) -> api.ContainerAdjustment | None:
        named = Pod(metadata=ObjectMeta(labels=pod.labels, annotations=pod.annotations))
        if not reserving.names_reservation(named):
            return None
        gpus = await find(pod.uid, container.name)
        mounted = {item.destination for item in container.mounts}
        return adjustment(gpus, node=node, source=source, mounted=mounted) if gpus else None

    return adjust
