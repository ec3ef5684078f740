"""Which changes of pods and nodes matter to fake nodes, and how soon."""

from __future__ import annotations

from simgpu.dra import claims
from simgpu.kube.views import Node, Pod

START_SECONDS = 2.0  # that a pod may take from its node to Running, before its GPUs are assigned anyway
CLAIMED_START_SECONDS = 0.15  # the same where the scheduler chose the GPUs: who has them shows within a second


def patience(pod: Pod) -> float:
    """Return the seconds that a pod may take from its node to Running before a look at its node."""
    return CLAIMED_START_SECONDS if claims.has_claims(pod) else START_SECONDS


def of_pod(pod: Pod) -> tuple[object, ...]:
    """Return the fields of a pod that matter here; conditions and deletion marks are not among them."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    return (
        meta.uid, meta.annotations, meta.labels, meta.owner_references, spec.node_name, spec.init_containers,
        spec.containers, status.phase, status.pod_ip, status.resource_claim_statuses,
        status.extended_resource_claim_status,
    )  # fmt: skip


def of_node(node: Node) -> tuple[object, ...]:
    """Return the fields of a node that matter here; heartbeats change none of them."""
    meta, status = node.metadata, node.status
    return meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, status.capacity, status.allocatable
