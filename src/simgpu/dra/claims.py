"""Which container uses which device: a pod, the claims that it refers to, and the allocations of these.

Claims may be of any size and origin, so everything is bounded. Results of other drivers are left alone. What keeps the
kubelet from starting a pod is a problem here too: then the pod uses none of a claim's devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import msgspec

from simgpu import errors
from simgpu.dra import configs
from simgpu.dra.devices import MEBIBYTE, MEMORY
from simgpu.kube import quantity, views
from simgpu.vocabulary import DRA_DRIVER, GPU_RESOURCE, MAX_CLAIM_RESULTS, MAX_CLAIM_USERS, MAX_POD_CLAIMS


class AllocatedClaim(views.Object, frozen=True, gc=True, dict=True):
    """A claim without its spec: who may use which devices."""

    status: views.ResourceClaimStatus = views.ResourceClaimStatus()

    @functools.cached_property
    def configs(self) -> configs.ClaimConfigs:
        """The configuration of our devices."""
        allocation = self.status.allocation
        return configs.ClaimConfigs(allocation.devices.config if allocation is not None else ())


class ClaimedDevice(msgspec.Struct, frozen=True, gc=False):
    """A device that is allocated to a claim.

    `share` is set where claims share the device, and `memory_mib` where each has a part of its memory. With `admin`
    access the device belongs to others.
    """

    request: str
    pool: str
    device: str
    share: str = ""
    admin: bool = False
    memory_mib: int | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What distinguishes it from other devices that the claim might have."""
        return self.request, self.pool, self.device, self.share


def devices_of(claim: AllocatedClaim) -> tuple[ClaimedDevice, ...]:
    """Return the devices of ours that are allocated to a claim; none while it is not allocated."""
    allocation = claim.status.allocation
    results = allocation.devices.results[:MAX_CLAIM_RESULTS] if allocation is not None else ()
    return tuple(
        ClaimedDevice(
            item.request, item.pool, item.device, item.share_id or "", bool(item.admin_access), _memory_mib(item)
        )
        for item in results
        if item.driver == DRA_DRIVER
    )


def pools_of(claim: AllocatedClaim | None) -> frozenset[str]:
    """Return the pools that a claim has devices of ours in."""
    return frozenset(item.pool for item in devices_of(claim)) if claim is not None else frozenset()


def _memory_mib(item: views.DeviceAllocation) -> int | None:
    text = item.consumed_capacity.get(MEMORY, item.consumed_capacity.get(f"{DRA_DRIVER}/{MEMORY}"))
    return None if text is None else -(-quantity.count(text) // MEBIBYTE)


def is_reserved(claim: AllocatedClaim, pod: views.Pod) -> bool:
    """Return whether a pod may use a claim."""
    listed = claim.status.reserved_for[:MAX_CLAIM_USERS]
    return any(item.resource == "pods" and item.uid == pod.metadata.uid for item in listed)


# From pods to claims.


class ClaimReference(msgspec.Struct, frozen=True):
    """A claim that a pod refers to.

    `name` is empty until the claim is made; `owned` ones were made for this pod. `users` are containers, each with the
    request whose devices it uses; an empty request means all of them.
    """

    name: str
    title: str
    owned: bool
    users: tuple[tuple[str, str], ...]


def has_claims(pod: views.Pod) -> bool:
    """Return whether a pod refers to any claim."""
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def has_gpu_claim(pod: views.Pod) -> bool:
    """Return whether the scheduler made a claim for the pod's request of the GPU resource."""
    made = pod.status.extended_resource_claim_status
    return made is not None and any(item.resource_name == GPU_RESOURCE for item in made.request_mappings)


def references(pod: views.Pod) -> Iterator[ClaimReference]:
    """Yield the claims of a pod, and last the one for its extended resources."""
    made = {item.name: item.resource_claim_name or "" for item in pod.status.resource_claim_statuses}
    everyone = (*pod.spec.init_containers, *(pod.spec.containers or ()))
    for item in pod.spec.resource_claims[:MAX_POD_CLAIMS]:
        users = tuple(
            (container.name, entry.request)
            for container in everyone
            for entry in container.resources.claims[:MAX_POD_CLAIMS]
            if entry.name == item.name
        )
        name = item.resource_claim_name or made.get(item.name, "")
        yield ClaimReference(name, item.name, item.resource_claim_name is None, users)
    if (extended := pod.status.extended_resource_claim_status) is not None:
        mappings = extended.request_mappings[: MAX_POD_CLAIMS * MAX_POD_CLAIMS]
        users = tuple((item.container_name, item.request_name) for item in mappings)
        yield ClaimReference(extended.resource_claim_name, "extended resources", owned=True, users=users)


# Uses.


class DeviceUse(msgspec.Struct, frozen=True):
    """A container that uses a device of a claim; an empty container where the pod holds the device and none uses it."""

    container: str
    device: ClaimedDevice
    sharing: configs.SharingConfig = configs.DEFAULT


class PodUses(msgspec.Struct, frozen=True):
    """What a pod has through claims, and why it uses none of it."""

    uses: tuple[DeviceUse, ...] = ()
    problems: tuple[str, ...] = ()


FindClaim = Callable[[str, str], AllocatedClaim | None]  # by namespace and name


def uses_of(pod: views.Pod, find: FindClaim) -> PodUses:
    """Return what a pod uses of our devices, under the conditions of the kubelet.

    It starts no container of a pod unless it has prepared all claims. Those that are in order keep their devices.
    """
    found: list[DeviceUse] = []
    problems: list[str] = []
    for reference in references(pod):
        claim = find(pod.metadata.namespace, reference.name) if reference.name else None
        try:
            found += _checked_uses(pod, reference, claim)
        except errors.InputError as error:
            problems.append(str(error))
    return PodUses(held(found) if problems else tuple(found), tuple(problems))


def held(uses: Iterable[DeviceUse]) -> tuple[DeviceUse, ...]:
    """Return the devices of uses, each without the containers that would use it."""
    return tuple(DeviceUse("", device) for device in dict.fromkeys(use.device for use in uses))


def _checked_uses(pod: views.Pod, reference: ClaimReference, claim: AllocatedClaim | None) -> list[DeviceUse]:
    field = f"claim {reference.name or reference.title}"
    if claim is None:
        raise errors.InputError(field, "does not exist")
    if claim.status.allocation is None:
        raise errors.InputError(field, "is not allocated")
    listed = devices_of(claim)
    if not listed:
        return []  # devices of other drivers only
    owners = (owner.uid for owner in claim.metadata.owner_references if owner.kind == "Pod")
    if reference.owned and pod.metadata.uid not in owners:
        raise errors.InputError(field, f"was not created for pod {pod.metadata.name}")
    if not is_reserved(claim, pod):
        raise errors.InputError(field, f"is not reserved for pod {pod.metadata.name}")
    made: list[DeviceUse] = []
    for device in listed:
        sharing = claim.configs.of_request(device.request, where=f"{field}: ")
        request = device.request.partition("/")[0]
        users = [name for name, wanted in reference.users if wanted in ("", device.request, request)]
        made += (DeviceUse(name, device, sharing) for name in dict.fromkeys(users) or ("",))
    return made
