"""fakedev-exporter's device files: a device type with the limits of its metrics, and a list of devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology.devices import Device

_LARGEST = 4 << 20
T = TypeVar("T")


class Limits(msgspec.Struct, rename="pascal"):
    """The range of a metric; its lower end is its idle value."""

    min: float = 0.0
    max: float = 0.0


class DeviceType(msgspec.Struct, rename="pascal"):
    """Labels and metrics that all devices have."""

    device_labels: dict[str, str] = msgspec.field(default_factory=dict)
    metric_limits: dict[str, Limits] = msgspec.field(default_factory=dict)


class DeviceList(msgspec.Struct, rename="pascal"):
    """Labels of each device; `file` is its name."""

    device_labels: list[dict[str, str]] = msgspec.field(default_factory=list)


def read(path: Path) -> Any:
    """One JSON value of a file."""
    try:
        if path.stat().st_size > _LARGEST:
            raise errors.SimgpuError(f"{path}: larger than {_LARGEST} bytes")
        return json.loads(path.read_text())
    except OSError as error:
        raise errors.SimgpuError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise errors.SimgpuError(f"{path}: not JSON: {error}") from None


def device_type(path: Path) -> DeviceType:
    """A device type file."""
    found = _convert(path, DeviceType)
    for name, limits in found.metric_limits.items():
        if limits.min > limits.max:
            raise errors.SimgpuError(f"{path}: MetricLimits.{name}: Min {limits.min:g} is above Max {limits.max:g}")
    return found


def devices(path: Path, kind: DeviceType, count: int, model: models.Model) -> list[Device]:
    """The first `count` devices of a list."""
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


def _members(document: Any) -> Any:
    """Names of members match whatever their case."""
    known = {"devicelabels": "DeviceLabels", "metriclimits": "MetricLimits"}
    if not isinstance(document, dict):
        return document
    result = {known.get(str(name).lower(), name): value for name, value in document.items() if value is not None}
    if isinstance(limits := result.get("MetricLimits"), dict):
        result["MetricLimits"] = {
            metric: {str(name).capitalize(): value for name, value in given.items()}
            if isinstance(given, dict)
            else given
            for metric, given in limits.items()
        }
    return result
