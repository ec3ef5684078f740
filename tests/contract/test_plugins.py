"""What a kubelet sees of device plugins, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc.aio
import pytest

from simgpu.node import messages, rpc
from simgpu.node.offers import Offer, Offered, Place
from simgpu.node.plugins import Plugin, Plugins
from tests.fixtures.kubelet import Kubelet

GPU = "nvidia.com/gpu"
ENDPOINT = "simgpu-nvidia.com_gpu.sock"


async def allocate(resource: str, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
    if "bad" in ids:
        raise rpc.RpcError("bad cannot be had")
    return messages.ContainerAllocateResponse(envs={"RESOURCE": resource, "IDS": ",".join(ids)})


def gpus(*ids: str, numa: int = 0) -> Offer:
    return Offer(GPU, tuple(Offered(item, Place(numa), show_numa=True) for item in ids))


@contextlib.asynccontextmanager
async def running(plugins: Plugins) -> AsyncIterator[None]:
    task = asyncio.create_task(plugins.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def plugins(kubelet: Kubelet) -> AsyncIterator[Plugins]:
    made = Plugins(allocate, folder=kubelet.folder)
    made.offer({GPU: gpus("a", "b", "bad")})
    async with running(made):
        yield made


async def test_each_resource_registers_with_its_own_socket(kubelet: Kubelet, plugins: Plugins) -> None:
    plugins.offer({GPU: gpus("a"), "rdma/hca": Offer("rdma/hca", (Offered("hca-0"),))})
    seen = {(await kubelet.next()).resource_name: None for _ in range(2)}
    assert seen.keys() == {GPU, "rdma/hca"}
    assert {path.name for path in kubelet.folder.glob("simgpu-*")} == {ENDPOINT, "simgpu-rdma_hca.sock"}


@pytest.mark.usefixtures("plugins")
async def test_registration_says_version_endpoint_and_options(kubelet: Kubelet) -> None:
    assert await kubelet.next() == messages.RegisterRequest(
        "v1beta1", ENDPOINT, GPU, messages.DevicePluginOptions(get_preferred_allocation_available=True)
    )
    answer = await kubelet.ask(ENDPOINT, "GetDevicePluginOptions", messages.Empty(), messages.DevicePluginOptions)
    assert answer.get_preferred_allocation_available
    assert not answer.pre_start_required


async def test_a_change_of_devices_reaches_the_kubelet(kubelet: Kubelet, plugins: Plugins) -> None:
    await kubelet.next()
    async with kubelet.watch(ENDPOINT) as lists:
        assert [item async for item in _first(lists)] == [[("a", "Healthy"), ("b", "Healthy"), ("bad", "Healthy")]]
        plugins.offer({GPU: Offer(GPU, (Offered("a", healthy=False), Offered("c")))})
        assert await anext(lists) == [("a", "Unhealthy"), ("c", "Healthy")]
        plugins.offer({})
        assert await anext(lists) == []


async def _first(
    lists: AsyncIterator[list[tuple[str, str]]],
) -> AsyncIterator[list[tuple[str, str]]]:
    yield await anext(lists)


@pytest.mark.usefixtures("plugins")
async def test_a_container_gets_what_its_devices_need(kubelet: Kubelet) -> None:
    await kubelet.next()
    request = messages.AllocateRequest(
        (messages.ContainerAllocateRequest(("a",)), messages.ContainerAllocateRequest(("b",)))
    )
    answer = await kubelet.ask(ENDPOINT, "Allocate", request, messages.AllocateResponse)
    assert [item.envs for item in answer.containers] == [{"RESOURCE": GPU, "IDS": "a"}, {"RESOURCE": GPU, "IDS": "b"}]


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(("wanted", "said"), [("bad", "bad cannot be had"), ("nobody", "no device nobody")])
async def test_what_cannot_be_had_is_refused_with_a_reason(kubelet: Kubelet, wanted: str, said: str) -> None:
    await kubelet.next()
    request = messages.AllocateRequest((messages.ContainerAllocateRequest((wanted,)),))
    with pytest.raises(grpc.aio.AioRpcError, match=said):
        await kubelet.ask(ENDPOINT, "Allocate", request, messages.AllocateResponse)


async def test_preferred_allocation_keeps_gpus_together(kubelet: Kubelet, plugins: Plugins) -> None:
    await kubelet.next()
    plugins.offer({GPU: Offer(GPU, (*gpus("a", numa=0).devices, *gpus("b", "c", "d", numa=1).devices))})
    question = messages.ContainerPreferredAllocationRequest(("d", "a", "b", "c"), (), 2)
    answer = await kubelet.ask(
        ENDPOINT,
        "GetPreferredAllocation",
        messages.PreferredAllocationRequest((question,)),
        messages.PreferredAllocationResponse,
    )
    assert answer.containers[0].ids == ("b", "c")


@pytest.mark.usefixtures("plugins")
async def test_a_restarted_kubelet_is_told_again(kubelet: Kubelet) -> None:
    await kubelet.next()
    await kubelet.stop()
    await kubelet.start()
    await kubelet.next()
    async with kubelet.watch(ENDPOINT) as lists:
        assert len(await anext(lists)) == 3


@pytest.mark.usefixtures("plugins")
async def test_a_plugin_whose_socket_somebody_removed_comes_back(kubelet: Kubelet) -> None:
    await kubelet.next()
    (kubelet.folder / ENDPOINT).unlink()
    await kubelet.next()
    assert (kubelet.folder / ENDPOINT).exists()


async def test_a_plugin_waits_for_a_kubelet_that_is_not_there_yet(kubelet: Kubelet) -> None:
    await kubelet.stop()
    plugins = Plugins(allocate, folder=kubelet.folder)
    plugins.offer({GPU: gpus("a")})
    async with running(plugins):
        await kubelet.start()
        assert (await kubelet.next()).resource_name == GPU


async def test_a_plugin_that_vanishes_is_gone_until_it_returns(kubelet: Kubelet, plugins: Plugins) -> None:
    await kubelet.next()
    plugins.offer({GPU: gpus("a")}, present=False)
    async with asyncio.timeout(10):
        while (kubelet.folder / ENDPOINT).exists():
            await asyncio.sleep(0.01)
    plugins.offer({GPU: gpus("a")})
    await kubelet.next()


async def test_a_kubelet_that_listens_hears_that_a_plugin_is_gone(kubelet: Kubelet, plugins: Plugins) -> None:
    await kubelet.next()
    async with kubelet.watch(ENDPOINT) as lists, asyncio.timeout(5):
        await anext(lists)
        plugins.offer({GPU: gpus("a", "b", "bad")}, present=False)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await anext(lists)


async def test_a_kubelet_that_does_not_listen_is_told_again(kubelet: Kubelet) -> None:
    plugins = Plugins(allocate, folder=kubelet.folder, silence=1.0)
    plugins.offer({GPU: gpus("a")})
    async with running(plugins):
        await kubelet.next()
        await kubelet.next()  # it never asked what there is
        async with kubelet.watch(ENDPOINT) as lists:
            await anext(lists)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.5):
                    await kubelet.registered.get()
        await kubelet.next()  # it asks no more


async def test_resources_have_sockets_of_their_own_however_they_are_called(kubelet: Kubelet) -> None:
    names = ["a.b/c", "a-b/c", "a/b_c", "a/b.c", f"{'d' * 253}/{'e' * 63}", f"{'d' * 253}/{'e' * 62}f"]
    plugins = Plugins(allocate, folder=kubelet.folder)
    plugins.offer({name: Offer(name, (Offered(f"{name}-0"),)) for name in names})
    async with running(plugins):
        requests = [await kubelet.next() for _ in names]
        assert {request.resource_name for request in requests} == set(names)
        for request in requests:
            async with kubelet.watch(request.endpoint) as lists:
                assert await anext(lists) == [(f"{request.resource_name}-0", "Healthy")]


async def test_a_socket_that_cannot_be_made_is_told_once_and_tried_again(
    kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = kubelet.folder / "simgpu-rdma_hca.sock"
    (in_the_way / "full").mkdir(parents=True)
    plugin = Plugin(kubelet.folder, Offer("rdma/hca", (Offered("hca-0"),)), allocate, silence=60)
    for _ in range(3):
        await plugin.keep(kubelet.folder / "kubelet.sock")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"cannot register rdma/hca with the kubelet: [Errno 21] Is a directory: '{in_the_way}'"
    ]
    (in_the_way / "full").rmdir()
    in_the_way.rmdir()
    await plugin.keep(kubelet.folder / "kubelet.sock")
    assert (await kubelet.next()).resource_name == "rdma/hca"
    await plugin.stop()


async def test_nothing_is_left_when_plugins_end(kubelet: Kubelet) -> None:
    plugins = Plugins(allocate, folder=kubelet.folder)
    plugins.offer({GPU: gpus("a")})
    async with running(plugins):
        await kubelet.next()
    assert not list(kubelet.folder.glob("simgpu-*"))


async def test_a_server_that_stops_hangs_up_on_clients_that_stay(tmp_path: Path) -> None:
    server = await rpc.serve(tmp_path / "socket", {})
    reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
    assert await reader.read(1)  # it has been accepted
    await server.stop()
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    await writer.wait_closed()
