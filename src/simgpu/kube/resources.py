"""The resources that we read or write: the API path and the view of each."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

from simgpu.kube import views

V = TypeVar("V", bound=views.HasMeta)

_RESERVED = frozenset("/?#%")  # what would end a part of a path, or change it


@dataclasses.dataclass(frozen=True, slots=True)
class Resource(Generic[V]):
    """One resource of the API, and the view that decodes its objects."""

    kind: str
    plural: str
    view: type[V]
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
        """Return the URL path of an object; without a name, of the collection (without a namespace, of all of them)."""
        for part in (name, namespace, subresource):
            if not _RESERVED.isdisjoint(part) or part in (".", ".."):
                raise ValueError(f"{part!r}: not a valid part of the path of a {self.kind}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name}: namespace is missing")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "/".join(part for part in (self.plural, name, subresource) if part)
        return f"{root}{scope}/{tail}"


_DRA = "resource.k8s.io"

NODES = Resource("Node", "nodes", views.Node, namespaced=False)
PODS = Resource("Pod", "pods", views.Pod)
CONFIG_MAPS = Resource("ConfigMap", "configmaps", views.ConfigMap)
NAMESPACES = Resource("Namespace", "namespaces", views.Namespace, namespaced=False)
SERVICE_ACCOUNTS = Resource("ServiceAccount", "serviceaccounts", views.Object)
EVENTS = Resource("Event", "events", views.Event)
LEASES = Resource("Lease", "leases", views.Lease, group="coordination.k8s.io")
JOBS = Resource("Job", "jobs", views.Job, group="batch")
DEPLOYMENTS = Resource("Deployment", "deployments", views.Object, group="apps")
RESOURCE_SLICES = Resource("ResourceSlice", "resourceslices", views.ResourceSlice, group=_DRA, namespaced=False)
RESOURCE_CLAIMS = Resource("ResourceClaim", "resourceclaims", views.ResourceClaim, group=_DRA)
RESOURCE_CLAIM_TEMPLATES = Resource("ResourceClaimTemplate", "resourceclaimtemplates", views.Object, group=_DRA)
DEVICE_CLASSES = Resource("DeviceClass", "deviceclasses", views.DeviceClass, group=_DRA, namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "CustomResourceDefinition",
    "customresourcedefinitions",
    views.Object,
    group="apiextensions.k8s.io",
    namespaced=False,
)
STAGES = Resource("Stage", "stages", views.Object, group="kwok.x-k8s.io", version="v1alpha1", namespaced=False)
PROMETHEUS_RULES = Resource("PrometheusRule", "prometheusrules", views.Object, group="monitoring.coreos.com")
POD_GROUPS = Resource("PodGroup", "podgroups", views.PodGroup, group="scheduling.run.ai", version="v2alpha2")
NODE_RESOURCE_TOPOLOGIES = Resource(
    "NodeResourceTopology",
    "noderesourcetopologies",
    views.NodeResourceTopology,
    group="topology.node.k8s.io",
    version="v1alpha2",
    namespaced=False,
)
