"""The only place that constructs and wires. Each role of the program is one module here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.cluster.components import Role


def cluster_roles() -> tuple[Role, ...]:
    """The processes of ours that a local cluster runs beside its control plane."""
    return ()
