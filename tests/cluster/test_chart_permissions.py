"""What the chart permits its accounts, by values: what they can use with them, and nothing else."""

from __future__ import annotations

import pytest

from tests.fixtures import accounts
from tests.fixtures.accounts import AGENT, CONTROLLER
from tests.fixtures.chart import Helm
from tests.permissions import roles
from tests.permissions.roles import CLEANUP, EVERYTHING

OWNED = "create delete list patch watch"
# Beside Run:ai, in a cluster that serves everything.
EVERY: dict[str, dict[str, str]] = {
    CONTROLLER: {
        "nodes": "list watch",
        "nodes/status": "patch",
        "pods": "list watch",
        "pods/status": "patch",
        "events": "create patch",
        "configmaps": "get",
        "configmaps in gpu-operator": OWNED,
        "coordination.k8s.io/leases in gpu-operator": "create delete get patch watch",
        "resource.k8s.io/resourceslices": OWNED,
        "resource.k8s.io/resourceclaims": "list watch",
        "topology.node.k8s.io/noderesourcetopologies": OWNED,
        "scheduling.run.ai/podgroups": "list watch",
        "monitoring.coreos.com/prometheusrules": "create get",
        "namespaces runai": "get",
        "pods in runai-reservation": "patch",
    },
    AGENT: {
        "nodes": "list patch watch",
        "pods": "list watch",
        "pods/status": "patch",
        "events": "create patch",
        "configmaps": "get",
        "configmaps in gpu-operator": OWNED,
        "resource.k8s.io/resourceslices": OWNED,
        "resource.k8s.io/resourceclaims": "get",
        "resource.k8s.io/deviceclasses": "list watch",
        "topology.node.k8s.io/noderesourcetopologies": OWNED,
        "scheduling.run.ai/podgroups": "list watch",
        "pods in runai-reservation": "patch",
    },
    CLEANUP: {
        "nodes": "list",
        "nodes/status": "patch",
        "configmaps in gpu-operator": "delete list patch",
        "coordination.k8s.io/leases in gpu-operator": "delete list",
        "resource.k8s.io/resourceslices": "delete list",
        "topology.node.k8s.io/noderesourcetopologies": "delete list",
    },
}
Some = dict[str, set[str]]  # resources, by account
_SLICES, _CLASSES = "resource.k8s.io/resourceslices", "resource.k8s.io/deviceclasses"
_ZONES, _GROUPS = "topology.node.k8s.io/noderesourcetopologies", "scheduling.run.ai/podgroups"
_RULES, _RESERVING = "monitoring.coreos.com/prometheusrules", "pods in runai-reservation"
# An agent that brings no DRA publishes no slices; claims that an earlier one prepared, it serves until they are gone.
_DRA_OF_AGENT: Some = {AGENT: {_SLICES, _CLASSES}}

DRIVER_ALONE = "components.driver=true," + ",".join(
    f"components.{name}=false" for name in ("devicePlugin", "dra", "labels", "exporter")
)

# Values, which types are not served, and which resources are missing then. For Helm without a cluster, types of
# Kubernetes itself are always served.
CASES: list[tuple[str, str, Some]] = [
    ("components.dra=false", "", _DRA_OF_AGENT),
    (DRIVER_ALONE, "", _DRA_OF_AGENT),
    # Whatever an agent brings, it marks its node, removes labels that it left, and shows who uses its GPUs.
    ("components.driver=true", "", {}),
    ("components.devicePlugin=false", "", {}),
    ("components.labels=false", "", {}),
    ("components.exporter=false", "", {}),
    # A pool or a node's annotation turns DRA on all the same, and slices that were published before are removed.
    ("allocation=extended", "", {}),
    ("allocation=dra", "", {}),
    ("", "topology.node.k8s.io", {CONTROLLER: {_ZONES}, AGENT: {_ZONES}, CLEANUP: {_ZONES}}),
    ("", "scheduling.run.ai", {CONTROLLER: {_GROUPS}, AGENT: {_GROUPS}}),
    ("runai.enabled=false", "", {CONTROLLER: {_RULES, "namespaces runai", _RESERVING}, AGENT: {_RESERVING}}),
    ("runai.nri=false", "", {}),
    ("agent.enabled=false", "", {AGENT: {*EVERY[AGENT]}}),
    ("controller.enabled=false", "", {CONTROLLER: {*EVERY[CONTROLLER]}}),  # what one has left, a cleanup removes
    ("cleanup.enabled=false", "", {CLEANUP: {*EVERY[CLEANUP]}}),
]  # fmt: skip


def shown(helm: Helm, *options: str, served: tuple[str, ...] = EVERYTHING) -> dict[str, dict[str, str]]:
    """The verbs that accounts have, by resource."""
    found: dict[str, dict[str, str]] = {}
    for account, bodies in roles.of_chart(helm, *options, served=served).items():
        verbs: dict[str, list[str]] = {}
        for item in sorted(accounts.allowed(bodies)):
            verbs.setdefault(item.place, []).append(item.verb)
        found[account] = {place: " ".join(names) for place, names in verbs.items()}
    return found


def test_accounts_have_these_permissions_where_everything_is_wanted_and_served(helm: Helm) -> None:
    assert shown(helm) == EVERY


@pytest.mark.parametrize(("values", "unserved", "missing"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_values_leave_out_the_permissions_that_nobody_could_use(
    values: str, unserved: str, missing: Some, helm: Helm
) -> None:
    served = tuple(item for item in EVERYTHING if not unserved or not item.startswith(unserved))
    wanted = {
        account: {place: verbs for place, verbs in places.items() if place not in missing.get(account, ())}
        for account, places in EVERY.items()
    }
    assert shown(helm, *(("--set", values) if values else ()), served=served) == wanted


def test_permissions_beside_run_ai_are_for_its_namespaces_alone(helm: Helm) -> None:
    found = shown(helm, "--set", "runai.namespace=ai,runai.reservationNamespace=held")
    for account in (CONTROLLER, AGENT):
        renamed = {place.replace("runai-reservation", "held"): verbs for place, verbs in EVERY[account].items()}
        assert found[account] == {
            place.replace("namespaces runai", "namespaces ai"): verbs for place, verbs in renamed.items()
        }
