"""Messages of the kubelet's device plugin interface (v1beta1) and of its pod resources interface (v1)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from simgpu.node.protobuf import Message

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
VERSION = "v1beta1"
REGISTRATION = "v1beta1.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
POD_RESOURCES = "v1.PodResourcesLister"


class Empty(Message, frozen=True):
    """A message without fields."""


# Device plugin.


class DevicePluginOptions(Message, frozen=True):
    """Optional calls that a plugin supports."""

    pre_start_required: Annotated[bool, 1] = False
    get_preferred_allocation_available: Annotated[bool, 2] = False


class RegisterRequest(Message, frozen=True):
    """A plugin registers with the kubelet."""

    version: Annotated[str, 1] = ""
    endpoint: Annotated[str, 2] = ""
    resource_name: Annotated[str, 3] = ""
    options: Annotated[DevicePluginOptions | None, 4] = None


class NumaNode(Message, frozen=True):
    """A NUMA node."""

    id: Annotated[int, 1] = 0


class TopologyInfo(Message, frozen=True):
    """The NUMA nodes of a device."""

    nodes: Annotated[tuple[NumaNode, ...], 1] = ()


class PluginDevice(Message, frozen=True):
    """A device and its health; `Device` in the interface."""

    id: Annotated[str, 1] = ""
    health: Annotated[str, 2] = ""
    topology: Annotated[TopologyInfo | None, 3] = None


class ListAndWatchResponse(Message, frozen=True):
    """All devices of a plugin."""

    devices: Annotated[tuple[PluginDevice, ...], 1] = ()


class ContainerPreferredAllocationRequest(Message, frozen=True):
    """Devices of which a container gets `size`."""

    available: Annotated[tuple[str, ...], 1] = ()
    must_include: Annotated[tuple[str, ...], 2] = ()
    size: Annotated[int, 3] = 0


class PreferredAllocationRequest(Message, frozen=True):
    """One request per container of a pod."""

    containers: Annotated[tuple[ContainerPreferredAllocationRequest, ...], 1] = ()


class ContainerPreferredAllocationResponse(Message, frozen=True):
    """The devices that a container should get."""

    ids: Annotated[tuple[str, ...], 1] = ()


class PreferredAllocationResponse(Message, frozen=True):
    """One response per container."""

    containers: Annotated[tuple[ContainerPreferredAllocationResponse, ...], 1] = ()


class ContainerAllocateRequest(Message, frozen=True):
    """The devices that a container gets."""

    ids: Annotated[tuple[str, ...], 1] = ()


class AllocateRequest(Message, frozen=True):
    """The devices of each container of a pod."""

    containers: Annotated[tuple[ContainerAllocateRequest, ...], 1] = ()


class Mount(Message, frozen=True):
    """A file or directory of the node in a container."""

    container_path: Annotated[str, 1] = ""
    host_path: Annotated[str, 2] = ""
    read_only: Annotated[bool, 3] = False


class DeviceSpec(Message, frozen=True):
    """A device file of the node in a container."""

    container_path: Annotated[str, 1] = ""
    host_path: Annotated[str, 2] = ""
    permissions: Annotated[str, 3] = ""


class CdiDevice(Message, frozen=True):
    """A CDI device, by its qualified name."""

    name: Annotated[str, 1] = ""


class ContainerAllocateResponse(Message, frozen=True):
    """Environment, mounts and device files of a container."""

    envs: Annotated[dict[str, str], 1] = msgspec.field(default_factory=dict)
    mounts: Annotated[tuple[Mount, ...], 2] = ()
    devices: Annotated[tuple[DeviceSpec, ...], 3] = ()
    annotations: Annotated[dict[str, str], 4] = msgspec.field(default_factory=dict)
    cdi_devices: Annotated[tuple[CdiDevice, ...], 5] = ()


class AllocateResponse(Message, frozen=True):
    """One response per container of the pod."""

    containers: Annotated[tuple[ContainerAllocateResponse, ...], 1] = ()


# Pod resources.


class ContainerDevices(Message, frozen=True):
    """Devices of one resource that a container has."""

    resource: Annotated[str, 1] = ""
    ids: Annotated[tuple[str, ...], 2] = ()
    topology: Annotated[TopologyInfo | None, 3] = None


class ContainerMemory(Message, frozen=True):
    """Memory that a container has of NUMA nodes, in bytes."""

    type: Annotated[str, 1] = ""
    size: Annotated[int, 2] = 0
    topology: Annotated[TopologyInfo | None, 3] = None


class ContainerResources(Message, frozen=True):
    """The devices, CPUs and memory of a container."""

    name: Annotated[str, 1] = ""
    devices: Annotated[tuple[ContainerDevices, ...], 2] = ()
    cpu_ids: Annotated[tuple[int, ...], 3] = ()
    memory: Annotated[tuple[ContainerMemory, ...], 4] = ()


class PodResources(Message, frozen=True):
    """The devices of a pod."""

    name: Annotated[str, 1] = ""
    namespace: Annotated[str, 2] = ""
    containers: Annotated[tuple[ContainerResources, ...], 3] = ()


class ListPodResourcesResponse(Message, frozen=True):
    """The devices of all pods of the node."""

    pods: Annotated[tuple[PodResources, ...], 1] = ()
