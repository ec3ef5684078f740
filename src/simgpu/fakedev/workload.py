"""fakedev-workload: the workload document that its options describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgpu import errors
from simgpu.fakedev import files, flags
from simgpu.machines import documents
from simgpu.workloads import client


def document(options: flags.Options, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the workload document of the options; fields of the file `-json` override them."""
    if options["devnames"]:
        devices = client.devices_by_name(options["devnames"], options["max-index"], environment)
    else:
        devices = client.devices_by_glob(options["devices"], options["index-regex"] or None)
    found: dict[str, Any] = {
        "Name": options["name"],
        "Repeat": options["repeat"],
        "Profile": client.activities(options["activity"]),
        "Devices": devices,
        "Limits": client.limits(options["limit"].split(","), field="-limit") if options["limit"] else None,
    }
    if options["json"]:
        given = files.read(Path(options["json"]))
        if not isinstance(given, dict):
            raise errors.SimgpuError(f"{options['json']}: must hold an object")
        found |= documents.named(given, documents.Document)
    if not found["Name"]:
        raise errors.SimgpuError("the workload has no name")
    return {**found, "Protocol": 2}
