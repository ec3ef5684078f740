"""Small read-only views of API objects: just the fields that we use.

Unknown fields are skipped while decoding, which is why a view must never be written back whole: write
patches or server-side apply. All views are immutable and free of reference cycles, so the garbage
collector does not track them; sequences are tuples for the same reason (it would go over every list, again
and again, in a store of many objects). Times stay strings as the server wrote them.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class View(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """Base of all views: immutable, camelCase on the wire."""


class OwnerReference(View, frozen=True):
    """Who made the object."""

    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(View, frozen=True):
    """`metadata` of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def seniority(self) -> str:
        """Sorts the oldest first. Those of one second are equal: they stay in the order in which a store saw them."""
        return self.creation_timestamp or ""


class Identity(View, frozen=True):
    """The little of `metadata` that every object has."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Identified(View, frozen=True):
    """Any object, seen only by its identity."""

    metadata: Identity


class Object(View, frozen=True):
    """Any object, seen only by its metadata."""

    metadata: ObjectMeta


class HasMeta(Protocol):
    """What the store and the reflector need to know of a view."""

    @property
    def metadata(self) -> ObjectMeta:
        """The object's metadata."""


class Condition(View, frozen=True):
    """A condition of a node, pod or other status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Taint(View, frozen=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(View, frozen=True):
    """`spec` of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(View, frozen=True):
    """One address of a node."""

    type: str
    address: str


class NodeStatus(View, frozen=True):
    """`status` of a node."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(Object, frozen=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether the node's Ready condition is True."""
        return any(item.type == "Ready" and item.status == "True" for item in self.status.conditions)


class Resources(View, frozen=True):
    """`resources` of a container."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class Container(View, frozen=True):
    """A container of a pod's spec."""

    name: str
    resources: Resources = Resources()
    restart_policy: str | None = None


class PodResourceClaim(View, frozen=True):
    """A claim that a pod refers to by name or by template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(View, frozen=True):
    """`spec` of a pod. A bookmark's object has null for containers."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    priority_class_name: str = ""
    scheduler_name: str = ""
    resource_claims: tuple[PodResourceClaim, ...] = ()


class ContainerState(View, frozen=True):
    """Which of the three states a container is in."""

    running: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class ContainerStatus(View, frozen=True):
    """The observed state of one container."""

    name: str
    ready: bool = False
    restart_count: int = 0
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState = ContainerState()


class PodClaimStatus(View, frozen=True):
    """Which claim was generated for a pod's claim template."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(View, frozen=True):
    """`status` of a pod."""

    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ConfigMap(Object, frozen=True):
    """A config map; binary data is left out."""

    data: dict[str, str] = {}


class NamespaceStatus(View, frozen=True):
    """`status` of a namespace."""

    phase: str = ""


class Namespace(Object, frozen=True):
    """A namespace."""

    status: NamespaceStatus = NamespaceStatus()


class JobStatus(View, frozen=True):
    """`status` of a job."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()


class Job(Object, frozen=True):
    """A job."""

    status: JobStatus = JobStatus()


class LeaseSpec(View, frozen=True):
    """`spec` of a lease."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True):
    """A lease."""

    spec: LeaseSpec = LeaseSpec()


class ObjectReference(View, frozen=True):
    """A reference to an object in an event."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class Event(Object, frozen=True):
    """A core/v1 event."""

    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None


class ResourcePool(View, frozen=True):
    """The pool that a slice belongs to."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class Device(View, frozen=True):
    """A device of a slice; attributes, capacity and counters as the API has them."""

    name: str
    attributes: dict[str, Any] = {}
    capacity: dict[str, Any] = {}
    consumes_counters: tuple[Any, ...] = ()
    taints: tuple[Any, ...] = ()


class ResourceSliceSpec(View, frozen=True):
    """`spec` of a resource slice."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    all_nodes: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[Any, ...] = ()


class ResourceSlice(Object, frozen=True):
    """A resource.k8s.io resource slice."""

    spec: ResourceSliceSpec


class DeviceAllocation(View, frozen=True):
    """One allocated device of a claim."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] = {}


class DeviceAllocations(View, frozen=True):
    """All allocated devices of a claim."""

    results: tuple[DeviceAllocation, ...] = ()
    config: tuple[Any, ...] = ()


class Allocation(View, frozen=True):
    """What the scheduler chose for a claim."""

    devices: DeviceAllocations = DeviceAllocations()


class ClaimConsumer(View, frozen=True):
    """A pod that may use a claim."""

    resource: str
    name: str
    uid: str


class ResourceClaimStatus(View, frozen=True):
    """`status` of a resource claim."""

    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()
    devices: tuple[Any, ...] = ()


class ResourceClaim(Object, frozen=True):
    """A resource.k8s.io resource claim."""

    spec: dict[str, Any] = {}
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClass(Object, frozen=True):
    """A resource.k8s.io device class."""

    spec: dict[str, Any] = {}
