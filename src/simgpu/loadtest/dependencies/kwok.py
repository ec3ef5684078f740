"""KWOK: whether the cluster has one that works, and its installation where it has none."""

from __future__ import annotations

import contextlib
from typing import Any

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.loadtest import concurrency, ownership
from simgpu.loadtest.dependencies import kinds, nodes, stages
from simgpu.loadtest.dependencies.workbench import DependencyError, Workbench
from simgpu.vocabulary import KWOK_NAMESPACE, KWOK_NODE, LOADTEST_NODE_PREFIX, NODE_LEASES_NAMESPACE

DEFAULT_IMAGE = "registry.k8s.io/kwok/kwok:v0.8.0"
NAME = "kwok-controller"
_PROBE_PREFIX = f"{LOADTEST_NODE_PREFIX}probe-"
_PROBE_SECONDS = 10.0
_END_SECONDS = 60.0  # for KWOK, once its Deployment is deleted
# Without leases the nodes would become NotReady after the node controller's grace period, which is 40 s or more.
CONFIGURATION = f"""\
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  enableCRDs: [Stage]
  manageAllNodes: false
  manageNodesWithAnnotationSelector: {KWOK_NODE}=fake
  nodePlayStageParallelism: 16
  nodeLeaseDurationSeconds: 40
  nodeLeaseParallelism: 16
  podPlayStageParallelism: 16
"""
# Verbs by API group and resource, by namespace; everywhere without one. Stages that the cluster has already may write
# events and remove finalizers of pods; ours do not.
_PERMISSIONS: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {
    "": {
        ("", "nodes"): ("list", "watch"),
        ("", "nodes/status"): ("patch",),
        ("", "pods"): ("list", "watch", "patch", "delete"),
        ("", "pods/status"): ("patch",),
        ("", "events"): ("create", "patch"),
        ("kwok.x-k8s.io", "stages"): ("list", "watch"),
    },
    NODE_LEASES_NAMESPACE: {("coordination.k8s.io", "leases"): ("list", "watch", "create", "update")},
}


class Kwok:
    """The KWOK that plays a run's nodes."""

    def __init__(self, bench: Workbench, *, image: str = DEFAULT_IMAGE) -> None:
        self._bench = bench
        self._image = image
        self._shared: list[tuple[Resource[Any], str, str]] = []  # in order of creation
        self._probe = f"{_PROBE_PREFIX}{bench.run.id}"

    async def setup(self, *, seconds: float) -> None:
        """Make sure that a KWOK plays nodes: the cluster's own, with its stages or ours, or one that is installed."""
        client, progress = self._bench.client, self._bench.progress
        progress.update("KWOK", "looking for one")
        await self._create_probe()
        if await self._plays(min(_PROBE_SECONDS, seconds)):
            await self._delete_probe()
            progress.done("KWOK", "the cluster has one")
            return
        served = await _stages_served(client)
        progress.update("KWOK", "adding stages")
        await self._acquire(resources.CUSTOM_RESOURCE_DEFINITIONS, stages.manifest("stage-crd.yaml")[0])
        if not await concurrency.until(lambda: _stages_served(client), seconds=seconds):
            raise DependencyError("KWOK: the API server does not serve its stages; see the events of the definition")
        for stage in stages.manifest("stages.yaml"):
            await self._acquire(resources.STAGES, stage)
        if not served or not await self._plays(_PROBE_SECONDS):
            await self._install(seconds)
        await self._delete_probe()

    async def _install(self, seconds: float) -> None:
        self._bench.progress.update("KWOK", f"installing {self._image} into {KWOK_NAMESPACE}")
        for resource, namespace, body in _objects(self._image):
            await self._acquire(resource, body, namespace=namespace)
        if not await self._plays(seconds):
            found = await self._bench.client.find(kinds.DEPLOYMENTS, NAME, namespace=KWOK_NAMESPACE)
            ready = found.status.ready_replicas if found is not None else 0
            raise DependencyError(
                f"KWOK: a probe node did not become Ready in {seconds:.0f} s; Deployment {KWOK_NAMESPACE}/{NAME} has "
                f"{ready} ready replicas: see its pods and their logs"
            )
        self._bench.progress.done("KWOK", f"installed into {KWOK_NAMESPACE}")

    async def _acquire(self, resource: Resource[Any], body: dict[str, Any], *, namespace: str = "") -> None:
        name = body["metadata"]["name"]
        self._shared.append((resource, name, namespace))
        await ownership.acquire(self._bench.client, resource, body, self._bench.run, namespace=namespace)

    async def _create_probe(self) -> None:
        body = nodes.body(self._probe, labels=self._bench.run.labels)
        body["spec"]["unschedulable"] = True
        await self._bench.client.create(resources.NODES, body)

    async def _delete_probe(self) -> None:
        await self._bench.client.delete(resources.NODES, self._probe)

    async def _plays(self, seconds: float) -> bool:
        async def look() -> bool:
            return (await self._bench.client.get(resources.NODES, self._probe)).ready

        return await concurrency.until(look, seconds=seconds, poll_seconds=0.1)

    async def teardown(self) -> None:
        """Release what was installed; the last run that uses it deletes it."""
        await self._delete_probe()
        while self._shared:
            resource, name, namespace = self._shared[-1]
            with contextlib.suppress(errors.NotFound):  # the definition of its kind is gone
                deleted = await ownership.release(
                    self._bench.client, resource, name, self._bench.run, namespace=namespace
                )
                if deleted and resource is kinds.DEPLOYMENTS:  # while KWOK runs, it needs its account
                    await concurrency.until(self._ended, seconds=_END_SECONDS)
            self._shared.pop()

    async def _ended(self) -> bool:
        return not await self._bench.client.list(resources.PODS, namespace=KWOK_NAMESPACE, labels=f"app={NAME}")


async def _stages_served(client: Client) -> bool:
    try:
        found = await client.discover(resources.STAGES.api_version)
    except errors.NotFound:
        return False
    return any(item.name == resources.STAGES.plural for item in found)


def _objects(image: str) -> list[tuple[Resource[Any], str, dict[str, Any]]]:
    """Return what KWOK needs to run in the cluster, each with its namespace."""
    meta = {"name": NAME}
    return [
        (resources.NAMESPACES, "", {"metadata": {"name": KWOK_NAMESPACE}}),
        *account(),
        (resources.CONFIG_MAPS, KWOK_NAMESPACE, {"metadata": meta, "data": {"kwok.yaml": CONFIGURATION}}),
        (kinds.DEPLOYMENTS, KWOK_NAMESPACE, _deployment(image)),
    ]


def account() -> list[tuple[Resource[Any], str, dict[str, Any]]]:
    """Return KWOK's account with its roles, each with its namespace: no more permissions than it uses."""
    meta = {"name": NAME}
    subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": KWOK_NAMESPACE}]
    found: list[tuple[Resource[Any], str, dict[str, Any]]] = [
        (resources.SERVICE_ACCOUNTS, KWOK_NAMESPACE, {"metadata": meta})
    ]
    for namespace, permissions in _PERMISSIONS.items():
        role, binding = (
            (kinds.ROLES, kinds.ROLE_BINDINGS) if namespace else (kinds.CLUSTER_ROLES, kinds.CLUSTER_ROLE_BINDINGS)
        )
        rules = [
            {"apiGroups": [group], "resources": [plural], "verbs": [*verbs]}
            for (group, plural), verbs in permissions.items()
        ]
        ref = {"apiGroup": role.group, "kind": role.kind, "name": NAME}
        found.append((role, namespace, {"metadata": meta, "rules": rules}))
        found.append((binding, namespace, {"metadata": meta, "subjects": subjects, "roleRef": ref}))
    return found


def _deployment(image: str) -> dict[str, Any]:
    labels = {"app": NAME}
    probe = {"httpGet": {"path": "/healthz", "port": 10247, "scheme": "HTTP"}, "periodSeconds": 2}
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["kwok"],
        "args": [
            "--config=/etc/kwok/kwok.yaml",
            "--node-ip=$(POD_IP)",
            "--node-port=10247",
            "--server-address=0.0.0.0:10247",
        ],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": probe,
        "volumeMounts": [{"name": "config", "mountPath": "/etc/kwok", "readOnly": True}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}
    return {
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": NAME,
                    "tolerations": [control_plane],
                    "containers": [container],
                    "volumes": [{"name": "config", "configMap": {"name": NAME}}],
                },
            },
        },
    }
