"""What is known of a fleet, as far as it can be shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from simgpu.dashboard.answers import GpuDetail, NodeDetail, PodSummary
from simgpu.top.fleet_state import FleetState, GpuCurves


@dataclass
class FleetPicture:
    """All that can be shown; `problem` is why it is out of date."""

    label: str
    role: str = ""
    state: FleetState = field(default_factory=FleetState)
    pods: list[PodSummary] = field(default_factory=list)
    pods_total: int = 0
    node: NodeDetail | None = None
    gpu: GpuDetail | None = None
    curves: GpuCurves | None = None
    problem: str = ""
    now: float = 0.0
