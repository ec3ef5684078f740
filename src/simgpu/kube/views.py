"""Small read-only views of API objects: only the fields that we use.

Unknown fields are skipped while decoding, so a view must never be written back whole: use patches or server-side apply.
Views are immutable and free of reference cycles, so the garbage collector does not track them; sequences are tuples for
the same reason (in a store of many objects it would traverse every list repeatedly). Times are strings as the server
wrote them.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]  # as the API has most of its integers


class ApiView(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """Base of all views: immutable, camelCase in JSON."""


class OwnerReference(ApiView, frozen=True):
    """An owner of the object."""

    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(ApiView, frozen=True):
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
        """A sort key, oldest first. Objects of the same second are equal: a stable sort keeps their order."""
        return self.creation_timestamp or ""


class ObjectIdentity(ApiView, frozen=True):
    """Name, namespace and resource version of any object."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Identified(ApiView, frozen=True):
    """Any object, with only its identity."""

    metadata: ObjectIdentity


class Object(ApiView, frozen=True):
    """Any object, with only its metadata."""

    metadata: ObjectMeta


class HasMeta(Protocol):
    """What the store and the reflector require of a view."""

    @property
    def metadata(self) -> ObjectMeta:
        """The object's metadata."""


class Condition(ApiView, frozen=True):
    """A condition of a node, pod or other status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Taint(ApiView, frozen=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(ApiView, frozen=True):
    """`spec` of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(ApiView, frozen=True):
    """One address of a node."""

    type: str
    address: str


class NodeStatus(ApiView, frozen=True):
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


class ContainerClaim(ApiView, frozen=True):
    """A claim of its pod that a container uses: all of it, or the devices of one request."""

    name: str
    request: str = ""


class Resources(ApiView, frozen=True):
    """`resources` of a container."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    claims: tuple[ContainerClaim, ...] = ()


class Container(ApiView, frozen=True):
    """A container of a pod's spec."""

    name: str
    resources: Resources = Resources()
    restart_policy: str | None = None


class PodResourceClaim(ApiView, frozen=True):
    """A claim that a pod refers to by name or by template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(ApiView, frozen=True):
    """`spec` of a pod. A bookmark's object has null for containers."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    resource_claims: tuple[PodResourceClaim, ...] = ()


class ContainerState(ApiView, frozen=True):
    """Which of the three states a container is in."""

    running: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class ContainerStatus(ApiView, frozen=True):
    """The observed state of one container."""

    name: str
    ready: bool = False
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState = ContainerState()


class PodClaimStatus(ApiView, frozen=True):
    """Which claim was generated for a pod's claim template."""

    name: str
    resource_claim_name: str | None = None


class RequestMapping(ApiView, frozen=True):
    """The request of a claim that stands for an extended resource of a container."""

    container_name: str
    resource_name: str
    request_name: str


class ExtendedClaimStatus(ApiView, frozen=True):
    """The claim that the scheduler made for the extended resources of a pod."""

    resource_claim_name: str = ""
    request_mappings: tuple[RequestMapping, ...] = ()


class PodStatus(ApiView, frozen=True):
    """`status` of a pod."""

    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedClaimStatus | None = None


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeResourceTopology(Object, frozen=True):
    """The NUMA zones of a node, and the resources of each, as plain JSON."""

    topology_policies: tuple[str, ...] = ()
    attributes: tuple[Any, ...] = ()
    zones: tuple[Any, ...] = ()


class PodGroupSpec(ApiView, frozen=True):
    """`spec` of a pod group."""

    priority_class_name: str = ""


class PodGroup(Object, frozen=True):
    """A pod group of Run:ai."""

    spec: PodGroupSpec = PodGroupSpec()


class ConfigMap(Object, frozen=True):
    """A config map; binary data is left out."""

    data: dict[str, str] = {}


class NamespaceStatus(ApiView, frozen=True):
    """`status` of a namespace."""

    phase: str = ""


class Namespace(Object, frozen=True):
    """A namespace."""

    status: NamespaceStatus = NamespaceStatus()


class JobStatus(ApiView, frozen=True):
    """`status` of a job."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()


class Job(Object, frozen=True):
    """A job."""

    status: JobStatus = JobStatus()


class LeaseSpec(ApiView, frozen=True):
    """`spec` of a lease."""

    holder_identity: str | None = None
    lease_duration_seconds: Int32 | None = None
    renew_time: str | None = None
    lease_transitions: Int32 | None = None


class Lease(Object, frozen=True):
    """A lease."""

    spec: LeaseSpec = LeaseSpec()


class ObjectReference(ApiView, frozen=True):
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


class ResourcePool(ApiView, frozen=True):
    """The pool that a slice belongs to."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class DraDevice(ApiView, frozen=True):
    """A DRA device of a resource slice; attributes, capacity and counters as in the API."""

    name: str
    attributes: dict[str, Any] = {}
    capacity: dict[str, Any] = {}
    consumes_counters: tuple[Any, ...] = ()
    taints: tuple[Any, ...] = ()


class ResourceSliceSpec(ApiView, frozen=True):
    """`spec` of a resource slice."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    all_nodes: bool = False
    devices: tuple[DraDevice, ...] = ()
    shared_counters: tuple[Any, ...] = ()


class ResourceSlice(Object, frozen=True):
    """A resource.k8s.io resource slice."""

    spec: ResourceSliceSpec


class DeviceAllocation(ApiView, frozen=True):
    """One allocated device of a claim."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] = {}


class DeviceAllocations(ApiView, frozen=True):
    """All allocated devices of a claim."""

    results: tuple[DeviceAllocation, ...] = ()
    config: tuple[Any, ...] = ()


class Allocation(ApiView, frozen=True):
    """The scheduler's allocation for a claim."""

    devices: DeviceAllocations = DeviceAllocations()


class ClaimConsumer(ApiView, frozen=True):
    """A pod that may use a claim."""

    resource: str
    name: str
    uid: str


class ResourceClaimStatus(ApiView, frozen=True):
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
