"""Boxes in a state that does not change from run to run."""

from __future__ import annotations

from simgpu.catalog import models
from simgpu.identities import identity, render
from simgpu.machines import box
from simgpu.topology import devices
from simgpu.workloads import documents

CATALOG = models.load()
OWN = {
    "dcgm": "h200", "dcgm-4.8.3": "h200", "dcgm-4.9": "h200", "nvidia-smi": "h200", "xpum": "max-1550",
    "collectd": "max-1550", "amd": "mi300x", "gaudi": "gaudi3",
}  # fmt: skip


def make(model: str, count: int = 2, **entry: object) -> box.Box:
    """Devices of a model, at rest."""
    wanted = devices.BoxConfig((devices.GpuEntry(model, count, **entry),))  # type: ignore[arg-type]
    return box.Box(devices.build(wanted, CATALOG, node="sim-0"), seed=1, hostname="sim-0")


def busy(model: str, count: int = 2, **entry: object) -> box.Box:
    """The first device under a pod's load for a minute."""
    made = make(model, count, **entry)
    wanted = documents.read(
        {
            "Name": "train",
            "Profile": [{"Load": 80, "Fluctuation": 5}],
            "Devices": [made.devices[0].file],
            "Pod": {"Name": "train-0", "Namespace": "ml", "Container": "main"},
        }
    )
    made.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    for second in range(1, 61):
        made.step(float(second), clock=1_700_000_000.0 + second)
    return made


def page(name: str) -> str:
    """An identity's page of a box of its own vendor."""
    return render.Renderer(busy(OWN[name]).machine, identity.load(name)).page().decode()
