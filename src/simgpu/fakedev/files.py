"""The JSON files of both programs, and the list of devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.machines import documents
from simgpu.topology.devices import Device

_MAX_BYTES = 4 << 20

T = TypeVar("T", bound=msgspec.Struct)


class _DeviceList(msgspec.Struct, rename="pascal"):
    device_labels: list[dict[str, str]] = []


def read(path: Path) -> Any:
    """Return the JSON value that a file holds."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise errors.InputError(str(path), f"larger than {_MAX_BYTES} bytes")
        document = json.loads(path.read_text())
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()  # all of it can be printed on a page
    except OSError as error:
        raise errors.InputError(str(path), error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise errors.InputError(str(path), f"not JSON: {error}") from None
    return document


def convert(document: Any, kind: type[T], *, where: str) -> T:
    """Return a JSON value as a struct. Names of members match in any case, and null counts as absent."""
    return errors.convert(documents.named(document, kind), kind, field=where)


def devices(path: Path, count: int, labels: dict[str, str], model: models.Model) -> list[Device]:
    """Return the first `count` devices of a device list file; `labels` are those of the device type."""
    listed = convert(read(path), _DeviceList, where=str(path)).device_labels
    if not 0 <= count <= len(listed):
        raise errors.InputError(str(path), f"has {len(listed)} devices, and {count} were requested")
    found = []
    for index, own in enumerate(listed[:count]):
        if "file" not in own:
            raise errors.InputError(f"{path}: DeviceLabels[{index}]", "has no label 'file'")
        found.append(
            Device(
                index=index,
                model=model,
                uuid=own.get("uuid", own["file"]),
                file=own["file"],
                pci_bus_id=own.get("addr", ""),
                serial="",
                numa=0,
                labels={**labels, **own},
            )
        )
    return found
