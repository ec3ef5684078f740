"""DeviceClasses for whole GPUs and for MIG devices."""

from __future__ import annotations

from typing import Any

from simgpu.dra.versions import ServedApi
from simgpu.vocabulary import DRA_DRIVER, GPU_RESOURCE, MIG_CLASS


def device_classes(api: ServedApi) -> dict[str, dict[str, Any]]:
    """Return the classes by name; v1 has the extended resource that whole GPUs stand for too."""
    gpus = _selecting("gpu")
    if api.version == "v1":
        gpus["spec"]["extendedResourceName"] = GPU_RESOURCE
    return {DRA_DRIVER: gpus, MIG_CLASS: _selecting("mig")}


def _selecting(kind: str) -> dict[str, Any]:
    expression = f"device.driver == '{DRA_DRIVER}' && device.attributes['{DRA_DRIVER}'].type == '{kind}'"
    return {"spec": {"selectors": [{"cel": {"expression": expression}}]}}
