"""Dynamic resource allocation on the shared cluster: served in every version, and decided by the real scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from simgpu.kube import resources
from tests.fixtures.cluster import eventually, job

if TYPE_CHECKING:
    from simgpu.kube.client import Client

DRIVER = "gpu.example.com"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_every_version_of_the_api_is_served(client: Client, version: str) -> None:
    names = {item.name for item in await client.discover(f"resource.k8s.io/{version}")}
    assert {"resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses"} <= names


async def test_the_device_taint_rules_that_are_off_by_default_are_served(client: Client) -> None:
    names = {item.name for item in await client.discover("resource.k8s.io/v1beta2")}
    assert "devicetaintrules" in names


async def test_what_is_left_of_the_alpha_version_is_served(client: Client) -> None:
    await client.discover("resource.k8s.io/v1alpha3")  # NotFound where it is not served


async def test_fields_behind_gates_are_kept(client: Client) -> None:
    body = {
        "metadata": {"name": "gated"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "kwok-gpu-node-2",
            "pool": {"name": "gated", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "gpu-0",
                    "allowMultipleAllocations": True,
                    "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi"}}},
                    "taints": [{"key": "example.com/broken", "effect": "NoSchedule"}],
                }
            ],
        },
    }
    await client.create(resources.RESOURCE_SLICES, body)
    try:
        raw = await client.raw(resources.RESOURCE_SLICES.path("gated"))
        assert b'"allowMultipleAllocations":true' in raw
        assert b'"requestPolicy"' in raw
        assert b'"taints"' in raw
    finally:
        await client.delete(resources.RESOURCE_SLICES, "gated")


async def test_a_job_with_a_claim_is_allocated_a_device_of_a_slice(client: Client, namespace: str) -> None:
    node, pool = "kwok-gpu-node-1", f"pool-{namespace}"
    device_class = {
        "metadata": {"name": namespace},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
    }
    devices = [{"name": f"gpu-{index}", "attributes": {"index": {"int": index}}} for index in range(2)]
    slice_ = {
        "metadata": {"name": pool},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    expression = f"device.attributes['{DRIVER}'].index == 1"
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": namespace, "selectors": [{"cel": {"expression": expression}}]},
    }
    template = {"metadata": {"name": "one-gpu"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await client.create(resources.DEVICE_CLASSES, device_class)
    await client.create(resources.RESOURCE_SLICES, slice_)
    try:
        await client.create(resources.RESOURCE_CLAIM_TEMPLATES, template, namespace=namespace)
        body = job("claims", annotations={"simgpu.dev/run-time": "1s"})
        spec = body["spec"]["template"]["spec"]
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
        spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        await client.create(resources.JOBS, body, namespace=namespace)

        async def allocated() -> object:
            claims = await client.list(resources.RESOURCE_CLAIMS, namespace=namespace)
            return [claim for claim in claims if claim.status.allocation is not None]

        [claim] = await eventually(allocated)
        [result] = claim.status.allocation.devices.results
        assert (result.driver, result.pool, result.device) == (DRIVER, pool, "gpu-1")

        async def placed() -> object:
            [consumer] = await client.list(resources.PODS, namespace=namespace)
            return consumer.spec.node_name

        assert await eventually(placed) == node

        async def complete() -> bool:
            return (await client.get(resources.JOBS, "claims", namespace=namespace)).status.succeeded == 1

        await eventually(complete)
    finally:
        await client.delete(resources.RESOURCE_SLICES, pool)
        await client.delete(resources.DEVICE_CLASSES, namespace)
