"""What a container runtime sees of the plugin that adjusts containers, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from simgpu.kube.backoff import Backoff
from simgpu.node import granting, nri
from simgpu.node import nri_messages as api
from simgpu.node.protobuf import Message
from simgpu.node.ttrpc import REQUEST, RESPONSE, TtrpcMessage, TtrpcRequest, TtrpcResponse, TtrpcStatus, TtrpcTrunk

GROUP = {"runai-gpu-group": "g"}
ACCEPTED = TtrpcResponse()
GPUS = {f"GPU-{number}": 1000 for number in range(40)}  # whose mounts do not fit in one frame


class Runtime:
    """Where plugins connect."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(lambda *pair: self._connected.put_nowait(pair), str(self.socket))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def plugin(self, answer: TtrpcResponse | None = ACCEPTED) -> Connection:
        """The next plugin that registers, and what it is answered: None for nothing."""
        async with asyncio.timeout(20):
            reader, writer = await self._connected.get()
        self._writers.append(writer)
        found = Connection(reader, writer)
        asked = await found.trunk.receive()
        request = TtrpcRequest.decode(asked.data)
        assert (asked.connection, asked.kind, request.service, request.method) == (
            2,
            REQUEST,
            api.RUNTIME,
            "RegisterPlugin",
        )
        assert api.RegisterPluginRequest.decode(request.payload) == api.RegisterPluginRequest("simgpu", "50")
        if answer is not None:
            await found.trunk.send(TtrpcMessage(2, asked.stream, RESPONSE, answer.encode()))
        return found


class Connection:
    """A plugin that has registered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.trunk = TtrpcTrunk(reader, writer, connections=(1, 2))
        self._stream = -1

    async def call(self, method: str, request: Message) -> bytes:
        self._stream += 2
        sent = TtrpcRequest(api.PLUGIN, method, request.encode())
        await self.trunk.send(TtrpcMessage(1, self._stream, REQUEST, sent.encode()))
        async with asyncio.timeout(20):
            answer = await self.trunk.receive()
        assert (answer.connection, answer.stream, answer.kind) == (1, self._stream, RESPONSE)
        response = TtrpcResponse.decode(answer.data)
        assert response.status is None
        return response.payload

    async def create(self, labels: dict[str, str], *mounts: str) -> api.ContainerAdjustment | None:
        """What a container of a pod with these labels gets."""
        pod = api.PodSandbox("p", "uid-p", "team", labels=labels)
        container = api.NriContainer("main", tuple(api.NriMount(path) for path in mounts))
        payload = await self.call("CreateContainer", api.CreateContainerRequest(pod, container))
        return api.CreateContainerResponse.decode(payload).adjust


Find = Callable[[str, str], Awaitable[Mapping[str, int]]]


@contextlib.asynccontextmanager
async def serving(runtime: Runtime, find: Find) -> AsyncIterator[None]:
    source = granting.Source(Path("/pages"), Path("/run/agent"), granting.Programs(Path("/lib.so"), Path("/smi")))
    plugin = nri.NriPlugin(runtime.socket, nri.shared_gpus(find, node="node-a", source=source))
    task = asyncio.create_task(plugin.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    made = Runtime(tmp_path / "nri.sock")
    yield made
    await made.stop()


async def test_a_container_of_a_pod_that_names_a_reservation_gets_its_gpus_and_others_nothing(runtime: Runtime) -> None:
    async def find(uid: str, container: str) -> Mapping[str, int]:
        return GPUS if (uid, container) == ("uid-p", "main") else {}

    await runtime.start()
    async with serving(runtime, find):
        plugin = await runtime.plugin()
        assert await plugin.call("Configure", Message()) == api.ConfigureResponse(8).encode()
        for more in (True, False):
            synchronized = await plugin.call("Synchronize", api.SynchronizeRequest(more))
            assert api.SynchronizeResponse.decode(synchronized).more is more
        assert await plugin.create({}) is None
        got = await plugin.create(GROUP, "/usr/bin/nvidia-smi")
        assert got is not None
        assert {item.key: item.value for item in got.env} == {
            "NVIDIA_VISIBLE_DEVICES": ",".join(GPUS), "MOCK_NVIDIA_VISIBLE_DEVICES": ",".join(GPUS),
            "NODE_NAME": "node-a", "SIMGPU_SOCKET": "/run/simgpu/workload.sock",
            "SIMGPU_MEMORY_MIB": "1000",
        }  # fmt: skip
        mounts = {item.destination: item for item in got.mounts}
        assert mounts["/var/lib/simgpu/gpus/GPU-7"].source == "/pages/GPU-7"
        assert "/usr/bin/nvidia-smi" not in mounts, "what the pod itself mounts stays"
        assert "/bin/nvidia-smi" in mounts
        assert all("ro" in item.options for item in got.mounts)
        own = await plugin.create(GROUP, "/var/lib/simgpu/gpus/GPU-own")
        assert own is not None
        assert own.env == (), "the environment names its own GPUs"


async def test_whatever_goes_wrong_the_container_is_created(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nri, "ANSWER_SECONDS", 0.05)

    async def find(_uid: str, container: str) -> Mapping[str, int]:
        if container == "main":
            await asyncio.Event().wait()
        raise ZeroDivisionError

    await runtime.start()
    async with serving(runtime, find):
        plugin = await runtime.plugin()
        assert await plugin.create(GROUP) is None
        pod = api.PodSandbox("p", "uid-p", "team", labels=GROUP)
        request = api.CreateContainerRequest(pod, api.NriContainer("other"))
        assert await plugin.call("CreateContainer", request) == b""
        assert await plugin.call("CreateContainer", TtrpcRequest(service="no", method="sense")) == b""


async def test_a_plugin_registers_when_the_socket_appears_and_again_when_its_connection_breaks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "pause", lambda _self, _failures: 0.01)

    async def find(_uid: str, _container: str) -> Mapping[str, int]:
        return {"GPU-1": 1000}

    async with serving(runtime, find):
        await runtime.start()
        broken = await runtime.plugin()
        broken.writer.close()
        for rubbish in (
            struct.pack(">II", 1, 1 << 30), struct.pack(">IIIIBB", 1, 10, 1 << 30, 1, 1, 0), struct.pack(">II", 3, 0),
        ):  # fmt: skip
            plugin = await runtime.plugin()
            assert await plugin.create(GROUP) is not None
            plugin.writer.write(rubbish)  # and the connection stays open: the plugin ends it, without waiting for more
        assert await (await runtime.plugin()).create(GROUP) is not None


async def test_a_runtime_that_rejects_a_plugin_or_never_answers_is_asked_again_and_logged_once_for_each_problem(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[int] = []

    def pause(_self: Backoff, failures: int) -> float:
        pauses.append(failures)
        return 0.001

    monkeypatch.setattr(Backoff, "pause", pause)
    monkeypatch.setattr(nri, "REGISTER_SECONDS", 0.05)

    async def find(_uid: str, _container: str) -> Mapping[str, int]:
        return {"GPU-1": 1000}

    await runtime.start()
    async with serving(runtime, find):
        for answer in (TtrpcResponse(TtrpcStatus(3, "no plugins here")),) * 3 + (None, None):
            await runtime.plugin(answer)
        for _ in range(3):  # accepted, and dropped at once
            (await runtime.plugin()).writer.close()
        assert await (await runtime.plugin()).create(GROUP) is not None
    assert pauses == list(range(8)), "none has worked for long"
    problems = [item.getMessage().partition(": ")[2] for item in caplog.records if item.levelname == "WARNING"]
    assert [text.partition(":")[0] for text in problems] == ["ValueError", "TimeoutError", "IncompleteReadError"]
    assert "no plugins here" in problems[0]
