"""Claims that are prepared on a real node: what a claim's devices are there, and which containers use them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from simgpu import errors
from simgpu.dra import claims, configs
from simgpu.dra.node_devices import DevicePlace, MigPart
from simgpu.kube import views
from simgpu.topology import pools
from simgpu.topology.devices import part_id
from simgpu.vocabulary import DEVICE_ENV_PREFIX, MAX_CLAIM_RESULTS, MAX_CLAIM_USERS, MAX_NAME

UID = re.compile(r"\A[0-9A-Za-z][0-9A-Za-z-]{0,62}\Z")  # part of file names

_Id = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{pools.ID.pattern})\Z")]  # names the folder of a page
_MAX_TEXT = 2 * MAX_NAME  # characters
_Text = Annotated[str, msgspec.Meta(max_length=_MAX_TEXT)]


class GrantedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of a claim: the request that it serves, its pool and name, and the GPU by id.

    `environment` describes it to containers. With `memory_mib` it stands for a part of the GPU's memory, and with
    `part` for a MIG instance.
    """

    request: _Text
    pool: _Text
    name: _Text
    gpu: _Id
    environment: dict[str, str] = {}
    share: _Text = ""
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] | None = None
    admin: bool = False
    part: MigPart | None = None

    @property
    def id(self) -> str:
        """The id of the GPU, or of the MIG instance."""
        return self.gpu if self.part is None else part_id(self.gpu, self.part.number)

    @property
    def place(self) -> DevicePlace:
        """The GPU, or the MIG instance of it."""
        return DevicePlace(self.gpu, self.part)

    @property
    def slot(self) -> tuple[str, str]:
        """What its users share: the GPU or instance, or a share of it."""
        return self.id, self.share

    @property
    def title(self) -> str:
        """A name of its own within the claim: shares of one device have the same name."""
        return f"{self.name}-{self.share}" if self.share else self.name


class PreparedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prepared claim with its devices of this driver, and the pods that it was reserved for then, by uid."""

    uid: Annotated[str, msgspec.Meta(pattern=UID.pattern)]
    namespace: _Text
    name: _Text
    devices: Annotated[tuple[GrantedDevice, ...], msgspec.Meta(max_length=MAX_CLAIM_RESULTS)] = ()
    pods: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_CLAIM_USERS)] = ()

    @property
    def allocation(self) -> tuple[tuple[str, ...], ...]:
        """The keys of the claimed devices that it was prepared for."""
        return tuple((item.request, item.pool, item.name, item.share) for item in self.devices)


def grant(claim: claims.AllocatedClaim, places: Mapping[str, DevicePlace], *, pool: str) -> PreparedClaim:
    """Return a claim as the node prepares it; `places` are its devices by name, and `pool` is its own.

    Devices of other drivers are left out. Raises `InputError` for a claim that is not allocated, devices that the node
    does not have, configuration that is invalid, and names that are too long for the checkpoint.
    """
    allocation, meta = claim.status.allocation, claim.metadata
    if allocation is None:
        raise errors.InputError("status.allocation", "the claim is not allocated")
    granted = []
    for number, item in enumerate(claims.devices_of(claim)):
        field = f"status.allocation.devices.results[{number}]"
        place = places.get(item.device) if item.pool == pool else None
        if place is None:
            raise errors.InputError(field, f"the node has no device {errors.shown(item.device)} in pool {item.pool}")
        if item.share and UID.fullmatch(item.share) is None:
            raise errors.InputError(f"{field}.shareID", f"{errors.shown(item.share)} is no uid")
        _check_length(item.request, f"{field}.request")
        sharing = claim.configs.of_request(item.request)
        granted.append(
            GrantedDevice(
                item.request, item.pool, item.device, place.gpu, dict(_environment(item.device, sharing)),
                item.share, item.memory_mib, item.admin, place.part,
            )
        )  # fmt: skip
    reserved = claim.status.reserved_for[:MAX_CLAIM_USERS]
    pods = tuple(consumer.uid for consumer in reserved if consumer.resource == "pods")
    _check_length(meta.namespace, "metadata.namespace")
    _check_length(meta.name, "metadata.name")
    for uid in pods:
        _check_length(uid, "status.reservedFor")
    return PreparedClaim(meta.uid, meta.namespace, meta.name, tuple(granted), pods)


def _check_length(text: str, field: str) -> None:
    if len(text) > _MAX_TEXT:
        raise errors.InputError(field, f"{errors.shown(text)}: at most {_MAX_TEXT} characters are allowed")


def check_overlaps(claim: PreparedClaim, prepared: Iterable[PreparedClaim]) -> None:
    """Raise `InputError` if a device of a claim overlaps with another one of it, or of those that are prepared.

    Administrative access to a device excludes no other.
    """
    held = [(other, item) for other in (*prepared, claim) for item in other.devices if not item.admin]
    for number, device in enumerate(claim.devices):
        for other, item in held if not device.admin else ():
            if device.place.overlaps(item.place):
                raise errors.InputError(
                    f"status.allocation.devices.results[{number}]",
                    f"device {device.name} overlaps with device {item.name} of claim {other.namespace}/{other.name}",
                )


def _environment(device: str, sharing: configs.SharingConfig) -> Iterator[tuple[str, str]]:
    """Yield what containers learn of a device: its name, and how it is shared."""
    prefix = f"{DEVICE_ENV_PREFIX}{device.replace('-', '_')}"
    yield prefix, device
    yield f"{prefix}_SHARING_STRATEGY", sharing.strategy
    if sharing.strategy == "TimeSlicing":
        yield f"{prefix}_TIMESLICE_INTERVAL", sharing.interval
    elif sharing.strategy == "SpacePartitioning":
        yield f"{prefix}_PARTITION_COUNT", str(sharing.partition_count)


def uses(pod: views.Pod, prepared: Mapping[tuple[str, str], PreparedClaim]) -> Iterator[tuple[str, GrantedDevice]]:
    """Yield the containers of a pod, and the devices that each has of prepared claims, by namespace and name.

    The kubelet starts a pod only if its claims are reserved for it. So a pod that the claim was not reserved for when
    it was prepared has its devices once one of its containers was started.
    """
    for reference in claims.references(pod):
        claim = prepared.get((pod.metadata.namespace, reference.name))
        if claim is None or not (pod.metadata.uid in claim.pods or _started(pod)):
            continue
        for device in claim.devices:
            accepted = ("", device.request, device.request.partition("/")[0])
            for container in dict.fromkeys(name for name, request in reference.users if request in accepted):
                yield container, device


def _started(pod: views.Pod) -> bool:
    found = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return any(item.container_id for item in found)


def held_gpus(prepared: Iterable[PreparedClaim]) -> set[str]:
    """Return the GPUs that claims hold, by id; administrative access holds none."""
    return {device.gpu for claim in prepared for device in claim.devices if not device.admin}


def held_devices(prepared: Iterable[PreparedClaim]) -> set[str]:
    """Return the GPUs and MIG instances that claims hold, and the GPUs of these, by id."""
    listed = [device for claim in prepared for device in claim.devices if not device.admin]
    return {device.gpu for device in listed} | {device.id for device in listed}


def instances(prepared: Iterable[PreparedClaim]) -> dict[str, tuple[MigPart, ...]]:
    """Return the MIG instances that claims have, by GPU id; those of administrative access last.

    Such access divides no GPU that another claim holds whole.
    """
    found: dict[str, dict[MigPart, None]] = {}
    listed = [device for claim in prepared for device in claim.devices]
    whole = {device.gpu for device in listed if device.part is None and not device.admin}
    for device in sorted(listed, key=lambda device: device.admin):
        if device.part is not None and not (device.admin and device.gpu in whole):
            found.setdefault(device.gpu, {})[device.part] = None
    return {gpu: tuple(parts) for gpu, parts in found.items()}


def by_name(prepared: Iterable[PreparedClaim]) -> dict[tuple[str, str], PreparedClaim]:
    """Return claims by namespace and name."""
    return {(claim.namespace, claim.name): claim for claim in prepared}
