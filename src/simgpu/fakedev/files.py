"""The JSON files of both programs: a device type with the ranges of its metrics, and a list of devices."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology.devices import Device

_MAX_BYTES = 4 << 20
T = TypeVar("T")


class MetricRange(msgspec.Struct, rename="pascal"):
    """The range of a metric, in the metric's unit; `min` is its value at no load."""

    min: float = 0.0
    max: float = 0.0


class DeviceType(msgspec.Struct, rename="pascal"):
    """A device type file: labels of all devices, and the range of each metric."""

    device_labels: dict[str, str] = msgspec.field(default_factory=dict)
    metric_limits: dict[str, MetricRange] = msgspec.field(default_factory=dict)


class DeviceList(msgspec.Struct, rename="pascal"):
    """A device list file: the labels of each device; `file` is its name."""

    device_labels: list[dict[str, str]] = msgspec.field(default_factory=list)


def read(path: Path) -> Any:
    """Return the JSON value that a file holds."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise errors.SimgpuError(f"{path}: larger than {_MAX_BYTES} bytes")
        return json.loads(path.read_text())
    except OSError as error:
        raise errors.SimgpuError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise errors.SimgpuError(f"{path}: not JSON: {error}") from None


def device_type(path: Path) -> DeviceType:
    """Read and check a device type file."""
    found = _convert(path, DeviceType)
    for name, limits in found.metric_limits.items():
        if limits.min > limits.max:
            raise errors.SimgpuError(f"{path}: MetricLimits.{name}: Min {limits.min:g} is above Max {limits.max:g}")
    return found


def devices(path: Path, kind: DeviceType, count: int, model: models.Model) -> list[Device]:
    """Return the first `count` devices of a device list file."""
    listed = _convert(path, DeviceList).device_labels
    if not 0 <= count <= len(listed):
        raise errors.SimgpuError(f"{path}: has {len(listed)} devices, and {count} were asked for")
    found = []
    for index, labels in enumerate(listed[:count]):
        if "file" not in labels:
            raise errors.SimgpuError(f"{path}: DeviceLabels[{index}]: has no label 'file'")
        found.append(
            Device(
                index=index,
                model=model,
                uuid=labels.get("uuid", labels["file"]),
                file=labels["file"],
                pci_bus_id=labels.get("addr", ""),
                serial="",
                numa=0,
                labels={**kind.device_labels, **labels},
            )
        )
    return found


def _convert(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.convert(_members(read(path)), kind)
    except msgspec.ValidationError as error:
        raise errors.SimgpuError(f"{path}: {str(error).replace('`$.', '`')}") from None


def renamed(document: dict[Any, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the members under their known names, which match in any case; null counts as absent."""
    names = {name.lower(): name for name in known}
    return {names.get(str(name).lower(), str(name)): value for name, value in document.items() if value is not None}


def _members(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    result = renamed(document, ("DeviceLabels", "MetricLimits"))
    if isinstance(limits := result.get("MetricLimits"), dict):
        result["MetricLimits"] = {
            metric: {str(name).capitalize(): value for name, value in given.items()}
            if isinstance(given, dict)
            else given
            for metric, given in limits.items()
        }
    return result
