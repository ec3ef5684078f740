"""GPUs of KWOK nodes through dynamic resource allocation: published by our controller, allocated by the scheduler."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

import pytest
import yaml

from simgpu.kube import resources, views
from tests.fixtures import operator_readme
from tests.fixtures.cluster import HOSTNAME, TOLERATE, eventually
from tests.fixtures.controller import Fleet
from tests.fixtures.leading import QuickFleet

TWO_A100 = {"gpu": {"profile": "a100", "overrides": {"device_count": 2}}, "allocation": "dra"}
ONE_H200 = {"gpus": [{"type": "h200", "count": 1}], "allocation": "dra"}
CLASS = "gpu.nvidia.com"


async def slices(fleet: Fleet, node: str) -> list[views.ResourceSlice]:
    """The slices of a node, by name."""
    found = await fleet.client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")
    return sorted(found, key=lambda item: item.metadata.name)


async def devices(fleet: Fleet, node: str, count: int) -> list[views.DraDevice]:
    """The devices of a node, once there are so many."""

    async def look() -> tuple[list[views.DraDevice]] | None:
        listed = [device for item in await slices(fleet, node) for device in item.spec.devices]
        return (listed,) if len(listed) == count else None

    [found] = await eventually(look)
    return list(found)


def request(name: str = "gpu", *, device_class: str = CLASS, cel: str = "", **more: Any) -> dict[str, Any]:
    selectors = {"selectors": [{"cel": {"expression": cel}}]} if cel else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **selectors, **more}}


async def claim(fleet: Fleet, name: str, *requests: dict[str, Any], **more: Any) -> None:
    """A claim that pods share."""
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests), **more}}}
    await fleet.client.create(resources.RESOURCE_CLAIMS, body, namespace=fleet.namespace)


async def template(fleet: Fleet, name: str, *requests: dict[str, Any], **more: Any) -> None:
    """A template from which each pod gets a claim of its own."""
    body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": list(requests), **more}}}}
    await fleet.client.create(resources.RESOURCE_CLAIM_TEMPLATES, body, namespace=fleet.namespace)


async def pod(fleet: Fleet, name: str, node: str, *, containers: int = 1, **claims: str) -> None:
    """A pod with a claim (`claim=NAME`) or a template (`template=NAME`) that all its containers use."""
    kinds = {"claim": "resourceClaimName", "template": "resourceClaimTemplateName"}
    entries = [{"name": kind, kinds[kind]: title} for kind, title in claims.items()]
    spec = {
        "nodeSelector": {HOSTNAME: node}, "tolerations": TOLERATE, "terminationGracePeriodSeconds": 0,
        "resourceClaims": entries,
        "containers": [
            {"name": f"c{number}", "image": "x", "resources": {"claims": [{"name": kind} for kind in claims]}}
            for number in range(containers)
        ],
    }  # fmt: skip
    await fleet.client.create(resources.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=fleet.namespace)


async def users(fleet: Fleet, node: str) -> dict[int, list[str]]:
    """Names of the pods that use each GPU, by index, as the node's view has them."""
    view = await fleet.client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
    if view is None:
        return {}
    pods = {
        pod.metadata.uid: pod.metadata.name
        for pod in await fleet.client.list(resources.PODS, namespace=fleet.namespace)
    }
    gpus = yaml.safe_load(view.data["topology.yml"])["gpus"]
    listed = [sorted(pods.get(uid, uid) for uid in gpu["status"]["podGpuUsageStatus"]) for gpu in gpus]
    return {index: names for index, names in enumerate(listed) if names}


async def used(fleet: Fleet, node: str, wanted: dict[int, list[str]]) -> None:
    """Waits until the node's GPUs have exactly these users."""

    async def look() -> bool:
        return await users(fleet, node) == wanted

    try:
        await eventually(look, seconds=30)
    except AssertionError:
        assert await users(fleet, node) == wanted


async def unschedulable(fleet: Fleet, name: str) -> None:
    """Waits until the scheduler has found no place for a pod."""

    async def look() -> bool:
        found = await fleet.client.get(resources.PODS, name, namespace=fleet.namespace)
        return any(item.reason == "Unschedulable" for item in found.status.conditions)

    await eventually(look)


async def test_a_node_publishes_its_gpus_and_withdraws_them(quick: QuickFleet) -> None:
    await quick.configure("", default=TWO_A100)
    node = await quick.node("a")
    listed = await devices(quick, node, 2)
    [published] = await slices(quick, node)
    assert published.metadata.name == f"kwok-{node}-gpu"
    assert (published.spec.driver, published.spec.node_name, published.spec.pool.name) == (CLASS, node, node)
    [owner] = published.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Node", node, True)
    for device in listed:
        assert re.fullmatch("gpu-[0-9a-f-]{36}", device.name)
        assert re.fullmatch("GPU-[0-9a-f-]{36}", device.attributes["uuid"]["string"])
        assert device.attributes["model"] == {"string": "NVIDIA A100-SXM4-40GB"}
        assert device.capacity == {"memory": {"value": "40Gi"}}
    seen = await quick.client.get(resources.NODES, node)
    assert "nvidia.com/gpu" not in seen.status.capacity
    await quick.client.merge_patch(resources.NODES, node, {"metadata": {"labels": {quick.label: None}}})
    await devices(quick, node, 0)


async def test_a_change_of_one_node_writes_its_slices_alone_and_a_restart_writes_none(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_A100)
    one, other = await fleet.node("a"), await fleet.node("b")
    await fleet.start()
    await devices(fleet, one, 2)
    await devices(fleet, other, 2)
    [before], [still] = await slices(fleet, one), await slices(fleet, other)
    patch = {"metadata": {"annotations": {"simgpu.dev/gpus": "t4:130", "simgpu.dev/allocation": "dra"}}}
    await fleet.client.merge_patch(resources.NODES, one, patch)
    await devices(fleet, one, 130)
    found = await slices(fleet, one)
    assert [item.metadata.name for item in found] == [f"kwok-{one}-gpu", f"kwok-{one}-gpu-1"]
    assert {(item.spec.pool.generation, item.spec.pool.resource_slice_count) for item in found} == {
        (before.spec.pool.generation + 1, 2)
    }
    assert await slices(fleet, other) == [still]
    await asyncio.to_thread(fleet.controller.stop, signal.SIGKILL)
    await fleet.client.merge_patch(resources.RESOURCE_SLICES, found[0].metadata.name, {"spec": {"devices": []}})
    await fleet.start()
    await devices(fleet, one, 130)
    assert await slices(fleet, other) == [still]
    assert (await slices(fleet, one))[1] == found[1]


async def test_slices_that_others_change_or_delete_come_back(quick: QuickFleet) -> None:
    await quick.configure("", default=TWO_A100)
    node = await quick.node("a")
    await devices(quick, node, 2)
    await quick.client.merge_patch(resources.RESOURCE_SLICES, f"kwok-{node}-gpu", {"spec": {"devices": []}})
    await devices(quick, node, 2)
    await quick.client.delete(resources.RESOURCE_SLICES, f"kwok-{node}-gpu")
    await devices(quick, node, 2)


async def test_pods_of_a_template_get_gpus_of_their_own_and_leave_them(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_A100)
    node = await fleet.node("a")
    await fleet.start()
    await devices(fleet, node, 2)
    await template(fleet, "one", request())
    await pod(fleet, "p", node, template="one")
    await pod(fleet, "q", node, template="one")

    async def both() -> bool:
        return sorted((await users(fleet, node)).values()) == [["p"], ["q"]]

    await eventually(both)

    async def shown() -> bool:
        return {holder for holder, _ in (await asyncio.to_thread(fleet.holders)).values()} == {"p", "q"}

    await eventually(shown)
    page = fleet.controller.get("/metrics")[1]
    assert len(re.findall("^runai_pod_gpu_utilization{", page, re.MULTILINE)) == 2
    await pod(fleet, "r", node, template="one")
    await unschedulable(fleet, "r")
    await fleet.client.delete(resources.PODS, "p", namespace=fleet.namespace)

    async def moved() -> bool:
        return sorted((await users(fleet, node)).values()) == [["q"], ["r"]]

    await eventually(moved)


async def test_pods_that_share_a_claim_are_all_its_users_until_the_last_leaves(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_A100)
    node = await fleet.node("a")
    await fleet.start()
    await devices(fleet, node, 2)
    await claim(fleet, "shared", request())
    for name in ("p", "q"):
        await pod(fleet, name, node, containers=2, claim="shared")
    await used(fleet, node, {0: ["p", "q"]})
    await asyncio.to_thread(fleet.controller.stop, signal.SIGKILL)
    await fleet.client.delete(resources.PODS, "p", namespace=fleet.namespace)
    await fleet.start()
    await used(fleet, node, {0: ["q"]})
    await fleet.client.delete(resources.PODS, "q", namespace=fleet.namespace)
    await used(fleet, node, {})


async def test_every_form_of_a_claim_gets_the_devices_that_it_selects(quick: QuickFleet) -> None:
    numa = {"numa": {"zones": 2}, "allocation": "dra"}
    await quick.configure("", default={"gpus": [{"type": "a100", "count": 2}, {"type": "h200", "count": 2}], **numa})
    node = await quick.node("a")
    await devices(quick, node, 4)
    attribute, capacity = f"device.attributes['{CLASS}']", f"device.capacity['{CLASS}']"
    await claim(quick, "by-product", request(cel=f"{attribute}.productName == 'NVIDIA H200'"))
    await claim(quick, "by-memory", request(cel=f"{capacity}.memory.compareTo(quantity('100Gi')) > 0"))
    first = {
        "name": "none",
        "deviceClassName": CLASS,
        "selectors": [{"cel": {"expression": f"{attribute}.model == 'X'"}}],
    }
    second = {"name": "some", "deviceClassName": CLASS}
    await claim(quick, "alternatives", {"name": "gpu", "firstAvailable": [first, second]})
    for name in ("by-product", "by-memory", "alternatives"):
        await pod(quick, name, node, claim=name)
    await eventually(lambda: _all_used(quick, node, 3))
    placed = {names[0]: index for index, names in (await users(quick, node)).items()}
    assert {placed["by-product"], placed["by-memory"]} == {2, 3}
    assert placed["alternatives"] == 0
    for name in ("by-product", "by-memory", "alternatives"):
        await quick.client.delete(resources.PODS, name, namespace=quick.namespace)
        await quick.client.delete(resources.RESOURCE_CLAIMS, name, namespace=quick.namespace)
    await used(quick, node, {})
    match = {"requests": ["one", "two"], "matchAttribute": "resource.kubernetes.io/numaNode"}
    h200 = request("two", cel=f"{attribute}.productName == 'NVIDIA H200'")
    await claim(
        quick, "impossible", request("one", cel=f"{attribute}.architecture == 'Ampere'"), h200, constraints=[match]
    )
    await pod(quick, "impossible", node, claim="impossible")
    await unschedulable(quick, "impossible")
    await quick.client.delete(resources.PODS, "impossible", namespace=quick.namespace)
    await claim(quick, "near", request("one", cel=f"{attribute}.brand == 'Nvidia'"), h200, constraints=[match])
    await pod(quick, "near", node, claim="near")
    await used(quick, node, {2: ["near"], 3: ["near"]})
    await quick.client.delete(resources.PODS, "near", namespace=quick.namespace)
    await quick.client.delete(resources.RESOURCE_CLAIMS, "near", namespace=quick.namespace)
    await claim(quick, "everything", request(allocationMode="All"))
    await pod(quick, "everything", node, claim="everything")
    await used(quick, node, {index: ["everything"] for index in range(4)})


async def _all_used(fleet: Fleet, node: str, count: int) -> bool:
    return len(await users(fleet, node)) == count


async def test_the_counters_of_mig_devices_exclude_what_overlaps(quick: QuickFleet) -> None:
    await quick.configure("", default=ONE_H200 | {"dra": {"dynamicMIG": True}})
    node = await quick.node("a")
    await devices(quick, node, 26)
    await template(quick, "whole", request())
    for profile in ("3g.71gb", "1g.18gb"):
        cel = f"device.attributes['{CLASS}'].profile == '{profile}'"
        await template(quick, profile, request(device_class="mig.nvidia.com", cel=cel))
    for name, title in {"big": "3g.71gb", "also-big": "3g.71gb"}.items():
        await pod(quick, name, node, template=title)
    await used(quick, node, {0: ["also-big", "big"]})
    await divided(quick, node, {"big": "3g.71gb", "also-big": "3g.71gb"})
    for name, title in {"small": "1g.18gb", "all": "whole"}.items():
        await pod(quick, name, node, template=title)
        await unschedulable(quick, name)
    await holds_memory(quick, node, 2 * 71424)
    await quick.client.delete(resources.PODS, "big", namespace=quick.namespace)
    await used(quick, node, {0: ["also-big", "small"]})
    await divided(quick, node, {"also-big": "3g.71gb", "small": "1g.18gb"})
    for name in ("also-big", "small"):
        await quick.client.delete(resources.PODS, name, namespace=quick.namespace)
    await used(quick, node, {0: ["all"]})
    await divided(quick, node, {})


async def divided(quick: QuickFleet, node: str, wanted: dict[str, str]) -> None:
    """Waits until a node's first GPU is divided into the instances of these pods, in metrics and in its view."""

    async def look() -> bool:
        machine = quick.leader.fleet.machine_of(node)
        view = await quick.client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=quick.namespace)
        if machine is None or view is None:
            return False
        shown = yaml.safe_load(view.data["topology.yml"])["gpus"][0].get("mig", {"instances": []})["instances"]
        pods = machine.part_pods
        measured = {pods[part.handle].name: part.profile for part in machine.parts if part.handle in pods}
        return measured == {item["allocatedBy"]["pod"]: item["profile"] for item in shown} == wanted

    await eventually(look, seconds=30)


async def test_shares_of_a_gpu_are_consumed_by_several_claims(quick: QuickFleet) -> None:
    await quick.configure("", default=ONE_H200 | {"dra": {"consumableShares": "memory"}})
    node = await quick.node("a")
    await devices(quick, node, 1)
    for name, size in {"p": "60Gi", "q": "70Gi", "r": "50Gi"}.items():
        await claim(quick, name, request(capacity={"requests": {"memory": size}}))
    await pod(quick, "p", node, claim="p")
    await pod(quick, "q", node, claim="q")
    await used(quick, node, {0: ["p", "q"]})
    await pod(quick, "r", node, claim="r")
    await unschedulable(quick, "r")

    await holds_memory(quick, node, 130 * 1024)


async def holds_memory(quick: QuickFleet, node: str, wanted: int) -> None:
    """Waits until so many MiB of a node's first GPU are used."""

    async def look() -> bool:
        return quick.memory(node, 0) == wanted

    await eventually(look)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("TimeSlicing", {"timeSlicingConfig": {"interval": "Default"}}),
        ("SpacePartitioning", {"spacePartitioningConfig": {"partitionCount": 10}}),
    ],
)
async def test_the_containers_of_a_pod_share_a_gpu_as_configured(
    quick: QuickFleet, strategy: str, settings: dict[str, Any]
) -> None:
    await quick.configure("", default=TWO_A100)
    node = await quick.node("a")
    await devices(quick, node, 2)
    sharing = {"strategy": strategy, **settings}
    parameters = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig", "sharing": sharing}
    config = [{"requests": ["gpu"], "opaque": {"driver": CLASS, "parameters": parameters}}]
    await claim(quick, "shared", request(), config=config)
    await pod(quick, "p", node, containers=2, claim="shared")
    await used(quick, node, {0: ["p"]})
    wrong = [{"opaque": {"driver": CLASS, "parameters": {**parameters, "sharing": {"strategy": "Magic"}}}}]
    await claim(quick, "wrong", request(), config=wrong)
    await pod(quick, "q", node, claim="wrong")
    event = await quick.told("FailedPrepareDynamicResources")
    assert event.message.startswith("claim wrong: config[0].opaque.parameters.sharing.strategy: Invalid enum value")
    await used(quick, node, {0: ["p"]})


async def test_admin_access_sees_a_gpu_that_another_pod_keeps(quick: QuickFleet) -> None:
    await quick.client.merge_patch(
        resources.NAMESPACES, quick.namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    )
    await quick.configure("", default=ONE_H200)
    node = await quick.node("a")
    await devices(quick, node, 1)
    await claim(quick, "mine", request())
    await claim(quick, "looks", request(adminAccess=True, allocationMode="All"))
    await pod(quick, "owner", node, claim="mine")
    await used(quick, node, {0: ["owner"]})
    await pod(quick, "admin", node, claim="looks")
    await used(quick, node, {0: ["admin", "owner"]})
    await quick.held({(node, "0"): ("owner", "c0")})


async def test_a_request_for_the_extended_resource_is_served_through_a_claim(quick: QuickFleet) -> None:
    await quick.configure("", default=TWO_A100)
    node = await quick.node("a")
    await devices(quick, node, 2)
    await quick.pod("p", node, 1, 1)
    await quick.held({(node, "0"): ("p", "c0"), (node, "1"): ("p", "c1")})
    await quick.client.delete(resources.PODS, "p", namespace=quick.namespace)
    await quick.held({})


async def test_with_both_ways_a_claim_keeps_its_gpu_and_overcommit_is_reported(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_A100 | {"allocation": "both"})
    node = await fleet.node("a")
    await fleet.start()
    await devices(fleet, node, 2)
    await fleet.gpus(node, 2)
    await fleet.pod("p", node, 1)
    await fleet.held({(node, "0"): ("p", "c0")})
    await template(fleet, "one", request())
    await pod(fleet, "q", node, template="one")  # the scheduler knows nothing of p's GPU, and takes the first
    await fleet.held({(node, "0"): ("q", "c0"), (node, "1"): ("p", "c0")})
    await pod(fleet, "r", node, template="one")
    await fleet.held({(node, "0"): ("q", "c0"), (node, "1"): ("r", "c0")})
    event = await fleet.told("GpusOvercommitted")
    assert event.involved_object.name == "p"
    assert "1 of the 1 GPUs that it requests are not free" in event.message
    assert "simgpu_controller_gpus_overcommitted 1.0" in fleet.controller.get("/metrics/controller")[1]
    await fleet.client.delete(resources.PODS, "q", namespace=fleet.namespace)
    await fleet.held({(node, "0"): ("p", "c0"), (node, "1"): ("r", "c0")})
    assert "simgpu_controller_gpus_overcommitted 0.0" in fleet.controller.get("/metrics/controller")[1]


async def test_a_pod_whose_claim_nobody_allocated_uses_no_gpu(quick: QuickFleet) -> None:
    """No scheduler placed it; the controller manager reserves claims for such pods, but allocates none."""
    await quick.configure("", default=TWO_A100)
    node = await quick.node("a")
    await devices(quick, node, 2)
    await claim(quick, "one", request())
    spec = {
        "nodeName": node, "tolerations": TOLERATE, "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
    }  # fmt: skip
    await quick.client.create(resources.PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace=quick.namespace)
    event = await quick.told("FailedPrepareDynamicResources")
    assert event.message == "claim one: is not allocated"
    assert await users(quick, node) == {}


async def test_a_pod_of_a_node_without_the_driver_uses_no_gpu(quick: QuickFleet) -> None:
    await quick.configure("", default=TWO_A100)
    one, other = await quick.node("a"), await quick.node("b")
    await devices(quick, one, 2)
    await claim(quick, "one", request())
    await pod(quick, "p", one, claim="one")
    await used(quick, one, {0: ["p"]})
    patch = {"metadata": {"annotations": {"simgpu.dev/allocation": "extended"}}}
    await quick.client.merge_patch(resources.NODES, one, patch)
    assert "is not registered on node" in (await quick.told("FailedPrepareDynamicResources")).message
    await used(quick, one, {})
    await quick.gpus(one, 2)
    await devices(quick, other, 2)


async def test_an_invalid_allocation_is_reported_and_changes_nothing(quick: QuickFleet) -> None:
    await quick.configure("", default=TWO_A100)
    node = await quick.node("a", allocation="magic")
    await devices(quick, node, 2)

    async def event() -> views.Event | None:
        listed = await quick.client.list(resources.EVENTS, namespace="default", fields=f"involvedObject.name={node}")
        return next((item for item in listed if item.reason == "InvalidAllocation"), None)

    found: views.Event = await eventually(event)
    assert found.message == "simgpu.dev/allocation: 'magic': must be one of extended, dra, both"


@pytest.mark.parametrize(
    ("manifest", "holder"),
    [(operator_readme.KWOK_POD, ("kwok-gpu-pod", "main")), (operator_readme.PLAIN_POD, ("gpu-pod", "gpu-container"))],
)
async def test_the_manifests_of_fake_gpu_operators_readme_work_as_they_stand(
    quick: QuickFleet, manifest: str, holder: tuple[str, str]
) -> None:
    """But for the node's name and the label of its pool, which tests share; the plain pod tolerates no taint."""
    await quick.configure("", default={**TWO_A100, "allocation": "both"})
    body = operator_readme.body(operator_readme.KWOK_NODE)
    body["metadata"]["name"] = node = f"{quick.namespace}-readme"
    body["metadata"]["labels"][quick.label] = body["metadata"]["labels"].pop("run.ai/simulated-gpu-node-pool")
    if manifest == operator_readme.PLAIN_POD:
        del body["spec"]["taints"]
    await quick.client.create(resources.NODES, body)
    quick.nodes.append(node)
    await devices(quick, node, 2)
    template_body = operator_readme.body(operator_readme.TEMPLATE)
    await quick.client.create(resources.RESOURCE_CLAIM_TEMPLATES, template_body, namespace=quick.namespace)
    await quick.client.create(resources.PODS, operator_readme.body(manifest), namespace=quick.namespace)
    await quick.held({(node, "0"): holder})
    view = {"metadata": {"labels": {"touched": "yes"}}}
    await quick.client.merge_patch(resources.CONFIG_MAPS, f"topology-{node}", view, namespace=quick.namespace)
    assert len(await devices(quick, node, 2)) == 2


async def test_classes_are_there_and_stand_for_the_extended_resource(quick: QuickFleet) -> None:
    await quick.configure("", default=TWO_A100)
    await quick.node("a")

    async def there() -> Any:
        return await quick.client.find(resources.DEVICE_CLASSES, "mig.nvidia.com")

    await eventually(there)
    whole = await quick.client.get(resources.DEVICE_CLASSES, CLASS)
    assert whole.spec["extendedResourceName"] == "nvidia.com/gpu"
