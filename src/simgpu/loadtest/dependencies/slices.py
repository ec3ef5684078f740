"""Resource slices of a run's nodes: devices of the two drivers, and how they are spread over slices."""

from __future__ import annotations

import uuid
from typing import Any

from simgpu.dra import versions
from simgpu.vocabulary import (
    DRIVER_LABEL,
    LOADTEST_DRIVER,
    LOADTEST_POOL_PREFIX,
    LOADTEST_SLICE_PREFIX,
    MAX_SLICE_DEVICES,
)


def kwok_devices(count: int) -> list[dict[str, Any]]:
    """Return the devices of kwok-dra: attributes under legal names beside those of the original."""
    return [
        {
            "name": f"gpu{index}",
            "attributes": {
                "name": {"string": f"gpu_{index}"},
                "gpuType": {"string": "kwok-gpu"},
                "gpu_type": {"string": "kwok_gpu"},
                "memory": {"string": "8Gi"},
                "computeCapability": {"string": "7.5"},
                "compute_capability": {"string": "7.5"},
            },
            "capacity": {f"{LOADTEST_DRIVER}/gpu": {"value": "1"}},
        }
        for index in range(count)
    ]


def example_devices(node: str, count: int) -> list[dict[str, Any]]:
    """Return devices such as those of dra-example-driver."""
    return [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "index": {"int": index},
                "uuid": {"string": f"gpu-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}-{index}')}"},
                "model": {"string": "LATEST-GPU-MODEL"},
                "driverVersion": {"version": "1.0.0"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(count)
    ]


def bodies(
    devices: list[dict[str, Any]],
    *,
    number: int,
    node: str,
    node_uid: str,
    version: str,
    labels: dict[str, str],
    driver: str = LOADTEST_DRIVER,
) -> list[dict[str, Any]]:
    """Return the slices of a node; the node owns them, so that they go with it."""
    chunks = [devices[start : start + MAX_SLICE_DEVICES] for start in range(0, len(devices), MAX_SLICE_DEVICES)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    return [
        {
            "metadata": {
                "name": f"{LOADTEST_SLICE_PREFIX}{number}" + (f"-{part}" if part else ""),
                "labels": {DRIVER_LABEL: driver, **labels},
                "ownerReferences": [owner],
            },
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {
                    "name": f"{LOADTEST_POOL_PREFIX}{number}",
                    "generation": 1,
                    "resourceSliceCount": len(chunks),
                },
                "devices": [versions.render_device(device, version) for device in chunk],
            },
        }
        for part, chunk in enumerate(chunks)
    ]


def device_class(driver: str, *, devices_of: str = "", extended_resource: str = "") -> dict[str, Any]:
    """Return a class of all devices of a driver, by default of the one that it is named after."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": f"device.driver == '{devices_of or driver}'"}}]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {"metadata": {"name": driver}, "spec": spec}
