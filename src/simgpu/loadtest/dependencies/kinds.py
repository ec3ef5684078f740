"""Kinds of objects that only dependencies write."""

from __future__ import annotations

import dataclasses

from simgpu.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES, Resource
from simgpu.kube.views import ApiView, DeviceClass, Object

_RBAC = "rbac.authorization.k8s.io"


class _DeploymentStatus(ApiView, frozen=True):
    ready_replicas: int = 0


class WatchedDeployment(Object, frozen=True):
    """A deployment, of which the ready replicas count."""

    status: _DeploymentStatus = _DeploymentStatus()


DEPLOYMENTS = Resource("Deployment", "deployments", WatchedDeployment, group="apps")
ROLES = Resource("Role", "roles", Object, group=_RBAC)
ROLE_BINDINGS = Resource("RoleBinding", "rolebindings", Object, group=_RBAC)
CLUSTER_ROLES = Resource("ClusterRole", "clusterroles", Object, group=_RBAC, namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource("ClusterRoleBinding", "clusterrolebindings", Object, group=_RBAC, namespaced=False)


class _SliceOfNode(ApiView, frozen=True):
    node_name: str = ""


class PublishedNodeSlice(Object, frozen=True):
    """A slice, of which the node counts."""

    spec: _SliceOfNode = _SliceOfNode()


def published(version: str) -> Resource[PublishedNodeSlice]:
    """Return resource slices in an API version, with their nodes."""
    return dataclasses.replace(slices(version), view=PublishedNodeSlice)  # type: ignore[return-value]


def slices(version: str) -> Resource[Object]:
    """Return resource slices in an API version, of which only the metadata is read."""
    plural, group = RESOURCE_SLICES.plural, RESOURCE_SLICES.group
    return Resource("ResourceSlice", plural, Object, group=group, version=version, namespaced=False)


def device_classes(version: str) -> Resource[DeviceClass]:
    """Return device classes in an API version."""
    plural, group = DEVICE_CLASSES.plural, DEVICE_CLASSES.group
    return Resource("DeviceClass", plural, DeviceClass, group=group, version=version, namespaced=False)
