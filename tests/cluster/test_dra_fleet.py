"""Controllers on servers of other versions and with feature gates off, and devices that fail; all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simgpu.app.controlling import Controller
from simgpu.cluster import components, lifecycle, progress
from simgpu.kube import resources, views
from simgpu.kube.client import Client
from tests.fixtures.cluster import HOSTNAME, TOLERATE, Cluster, eventually, new_namespace
from tests.fixtures.controller import Fleet
from tests.fixtures.leading import QuickFleet, quick_in

CLASS = "gpu.nvidia.com"
ONE_H200 = {"gpus": [{"type": "h200", "count": 1}], "allocation": "dra"}
TWO_H200 = {"gpus": [{"type": "h200", "count": 2}], "allocation": "dra"}


async def slices(fleet: Fleet, node: str) -> list[views.ResourceSlice]:
    return await fleet.client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")


async def users(controller: Controller, node: str) -> list[str]:
    """The pods that use GPUs of a node."""
    placed = controller.fleet.nodes.get(node)
    return sorted({user.pod.name for listed in placed.users().values() for user in listed}) if placed else []


async def pod(fleet: Fleet, name: str, node: str, **request: Any) -> None:
    """A pod with a claim of its own name."""
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}}
    await fleet.client.create(resources.RESOURCE_CLAIMS, body, namespace=fleet.namespace)
    spec = {
        "nodeSelector": {HOSTNAME: node}, "tolerations": TOLERATE, "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
    }  # fmt: skip
    await fleet.client.create(resources.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=fleet.namespace)


@pytest.fixture
async def fleet(cluster: Cluster, client: Client, namespace: str) -> AsyncIterator[QuickFleet]:
    """A fleet whose controllers a test starts."""
    async with quick_in(cluster, client, namespace) as made:
        yield made


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_older_versions_of_the_api_do(fleet: QuickFleet, version: str) -> None:
    await fleet.configure("", default=ONE_H200 | {"dra": {"dynamicMIG": True}})
    node = await fleet.node("a")
    async with fleet.leading(version) as controller:
        await eventually(lambda: _count(fleet, node, 26))
        assert controller._dra.slices._resource.version == version
        await pod(fleet, "p", node, deviceClassName="mig.nvidia.com")
        await eventually(lambda: _used_by(controller, node, ["p"]))
        before, instances, energy = await slices(fleet, node), _instances(controller, node), _energy(controller, node)
        assert len(instances) == 1
    async with fleet.leading() as controller:
        await eventually(lambda: _used_by(controller, node, ["p"]))
        await eventually(lambda: _idle(controller))
        assert _instances(controller, node) == instances
        assert _energy(controller, node) >= energy
        assert await slices(fleet, node) == before  # the same in every version


def _instances(controller: Controller, node: str) -> list[tuple[str, int]]:
    """Profile and first slice of the MIG instances of a node's first GPU."""
    device = controller.fleet.nodes[node].cards[0].device
    return [(profile.name, place.start) for place, profile in device.mig_devices()]


def _energy(controller: Controller, node: str) -> float:
    placed = controller.fleet.nodes[node]
    return controller.fleet.counters(placed)[placed.ids[0]][0]


async def _count(fleet: Fleet, node: str, count: int) -> bool:
    return sum(len(item.spec.devices) for item in await slices(fleet, node)) == count


async def _used_by(controller: Controller, node: str, wanted: list[str]) -> bool:
    return await users(controller, node) == wanted


async def _idle(controller: Controller) -> bool:
    return controller.ready and not controller._dra.slices.queue.depth


async def test_without_the_api_it_is_off_and_says_so_once(fleet: QuickFleet) -> None:
    await fleet.configure("", default=ONE_H200 | {"allocation": "both"})
    node = await fleet.node("a")
    async with fleet.leading("v1alpha3") as controller:
        event = await fleet.told("DraOff")
        assert "serves none of resource.k8s.io/v1, v1beta2, v1beta1" in event.message
        assert event.involved_object.name == "topology"
        assert any("dynamic resource allocation is off" in problem for problem in controller.problems())
        await fleet.gpus(node, 1)
        assert await slices(fleet, node) == []


async def test_the_scheduler_avoids_a_gpu_with_an_xid_until_it_is_healed(fleet: QuickFleet) -> None:
    await fleet.configure("", default=TWO_H200)
    node = await fleet.node("a")

    async def fail(failures: str | None) -> None:
        patch = {"metadata": {"annotations": {"simgpu.dev/failures": failures}}}
        await fleet.client.merge_patch(resources.NODES, node, patch)

    async def tainted() -> list[Any]:
        [item] = await slices(fleet, node)
        return [taint for device in item.spec.devices for taint in device.taints]

    async with fleet.leading() as controller:
        await eventually(lambda: _count(fleet, node, 2))
        placed = controller.fleet.nodes[node]
        await fail("{unhealthy: [0]}")
        [taint] = await eventually(tainted)
        assert (taint["key"], taint["value"], taint["effect"]) == ("gpu.nvidia.com/xid", "48", "NoSchedule")
        await pod(fleet, "p", node, deviceClassName=CLASS)
        await eventually(lambda: _used_by(controller, node, ["p"]))
        assert list(placed.users()) == [placed.ids[1]]
        await fail("{unhealthy: [0, 1]}")

        async def both() -> bool:
            return len(await tainted()) == 2

        await eventually(both)
        assert taint in await tainted()  # it keeps its time
        await fail(None)
        await pod(fleet, "q", node, deviceClassName=CLASS)
        await eventually(lambda: _used_by(controller, node, ["p", "q"]))
        assert await tainted() == []


GATES = ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRAExtendedResource")


@pytest.fixture(scope="module")
def ungated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cluster whose gates are off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setattr(components, "feature_gates", lambda _version: ",".join(f"{gate}=false" for gate in GATES))
        outcome = asyncio.run(lifecycle.up(lifecycle.UpSettings(name="ungated", nodes=1), progress.Silent()))
        try:
            yield Cluster("ungated", Path(outcome.status.kubeconfig), tmp_path_factory.getbasetemp())
        finally:
            asyncio.run(lifecycle.down("ungated", progress.Silent()))


async def test_what_a_server_drops_is_reported_and_gpus_that_it_would_allocate_twice_are_published_whole(
    ungated: Cluster,
) -> None:
    async with (
        ungated.client() as client,
        new_namespace(client) as namespace,
        quick_in(ungated, client, namespace) as fleet,
    ):
        await fleet.configure(
            "", divided=ONE_H200 | {"dra": {"dynamicMIG": True}}, shared=ONE_H200 | {"dra": {"consumableShares": 2}}
        )
        nodes = [await fleet.node("a", "divided"), await fleet.node("b", "shared")]
        async with fleet.leading() as controller:
            assert "DRAExtendedResource is off" in (await fleet.told("FeatureGateOff")).message

            async def reported() -> bool:
                listed = await client.list(resources.EVENTS, namespace="default")
                texts = [event.message for event in listed if event.reason == "FeatureGateOff"]
                return all(any(f"{gate} is off" in text for text in texts) for gate in GATES[:2])

            await eventually(reported)
            await eventually(lambda: _idle(controller))
            before = [await slices(fleet, node) for node in nodes]
            [[divided], [shared]] = before
            assert [len(item.spec.devices) for item in (divided, shared)] == [1, 1]
            assert (divided.spec.pool.generation, divided.spec.pool.resource_slice_count) == (1, 1)  # written once
            await pod(fleet, "p", nodes[0], deviceClassName=CLASS)
            await eventually(lambda: _used_by(controller, nodes[0], ["p"]))
            for node in nodes:
                await controller._dra.slices.reconcile(node)
            assert [await slices(fleet, node) for node in nodes] == before  # it is not written again and again
        async with fleet.leading() as controller:

            async def examined() -> bool:
                return GATES[0] in controller._dra.slices.dropped and await _idle(controller)

            await eventually(examined)
            assert await slices(fleet, nodes[0]) == [divided]  # nor by the next controller
