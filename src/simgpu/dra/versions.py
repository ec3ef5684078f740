"""Versions of the API group, what each looks like, and the feature gates behind fields that a server may drop."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from simgpu.kube.resources import Resource, V

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")  # in the order of preference

PARTITIONABLE_DEVICES = "DRAPartitionableDevices"
GATES = {
    "sharedCounters": PARTITIONABLE_DEVICES,
    "consumesCounters": PARTITIONABLE_DEVICES,
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
    "taints": "DRADeviceTaints",
    "extendedResourceName": "DRAExtendedResource",
}  # by field: a server drops it while the gate is off

_SPLIT_SINCE = 35  # minor version: counters and devices are in different slices
_NO_EFFECT_SINCE = 35  # minor version: taints without an effect


class ServedApi(msgspec.Struct, frozen=True):
    """The version of the API group that a server serves and we use, and the server's minor version."""

    version: str = VERSIONS[0]
    minor: int = _SPLIT_SINCE

    @property
    def splits_counters(self) -> bool:
        """Whether counters and devices must be in different slices."""
        return self.minor >= _SPLIT_SINCE

    @property
    def informs_by_taints(self) -> bool:
        """Whether taints may have the effect `None`."""
        return self.minor >= _NO_EFFECT_SINCE

    @property
    def api_version(self) -> str:
        """`apiVersion` of objects."""
        return f"{GROUP}/{self.version}"

    def of(self, resource: Resource[V]) -> Resource[V]:
        """Return a resource of the group in this version."""
        return dataclasses.replace(resource, version=self.version)


def minor(text: str) -> int:
    """Return the number of a server's minor version, such as `36+`; that of the oldest layout if it has none."""
    found = re.match("[0-9]{1,4}", text)
    return int(found[0]) if found else 0


def render_device(device: dict[str, Any], version: str) -> dict[str, Any]:
    """Return a device of v1 in another version: v1beta1 has all but its name in `basic`."""
    if version != "v1beta1":
        return device
    return {"name": device["name"], "basic": {name: value for name, value in device.items() if name != "name"}}


def read_device(device: dict[str, Any]) -> dict[str, Any]:
    """Return a device of any version as in v1."""
    basic = device.get("basic")
    return {"name": device.get("name"), **basic} if isinstance(basic, dict) else device


def gates_of(wanted: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return the gates of the fields that were written and that the server has not kept."""
    return tuple(sorted({GATES[name] for name in set(wanted) - set(kept) if name in GATES}))
