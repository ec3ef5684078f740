"""Prepared claims: what a claim's devices are on a node, and which containers use them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import errors
from simgpu.catalog import models, placing
from simgpu.dra import grants, node_devices
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.node_devices import DevicePlace, MigPart
from simgpu.kube import views
from simgpu.topology import allocating, inline, pools

PLACES = {"gpu-a": DevicePlace("GPU-a"), "gpu-b": DevicePlace("GPU-b")}


def result(device: str = "gpu-a", request: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": "gpu.nvidia.com", "pool": "n", "device": device, **more}


def claim(
    *results: dict[str, Any], sharing: dict[str, Any] | None = None, pods: tuple[str, ...] = ()
) -> AllocatedClaim:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    config = [{"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    allocation = {"devices": {"results": results, "config": config if sharing else []}}
    consumers = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
    body = {
        "metadata": {"name": "c", "namespace": "ns", "uid": "uid-c"},
        "status": {"allocation": allocation, "reservedFor": consumers},
    }
    return msgspec.convert(body, AllocatedClaim)


def pod(uid: str, *containers: tuple[str, str], started: bool = False) -> views.Pod:
    """A pod whose containers use the claim: all of it, or one request."""
    body = {
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {
            "nodeName": "n", "resourceClaims": [{"name": "mine", "resourceClaimName": "c"}],
            "containers": [
                {"name": name, "resources": {"claims": [{"name": "mine", "request": request}]}}
                for name, request in containers
            ] + [{"name": "beside"}],
        },
        "status": {"containerStatuses": [{"name": "beside", "containerID": "x://1"}] if started else []},
    }  # fmt: skip
    return msgspec.convert(body, views.Pod)


def test_devices_are_described_to_containers_as_they_are_shared() -> None:
    made = grants.grant(claim(result(), sharing={"strategy": "MPS"}), PLACES, pool="n")
    assert made.devices[0].environment == {"GPU_DEVICE_gpu_a": "gpu-a", "GPU_DEVICE_gpu_a_SHARING_STRATEGY": "MPS"}
    slow = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    made = grants.grant(claim(result(), sharing=slow), PLACES, pool="n")
    assert made.devices[0].environment["GPU_DEVICE_gpu_a_TIMESLICE_INTERVAL"] == "Long"


def test_a_share_is_the_memory_that_was_consumed() -> None:
    shared = result(shareID="share-1", consumedCapacity={"memory": "10Gi"})
    [device] = grants.grant(claim(shared), PLACES, pool="n").devices
    assert (device.title, device.memory_mib, device.slot) == ("gpu-a-share-1", 10240, ("GPU-a", "share-1"))


@pytest.mark.parametrize("field", ["request", "uid"])
def test_what_is_too_long_for_the_checkpoint_is_refused_and_not_saved(field: str) -> None:
    long = {field: "x" * 1000}
    named = claim(result(request=long.get("request", "gpu")), pods=(long.get("uid", "p"),))
    with pytest.raises(errors.InputError, match=r"^status\..*: 'x.*': at most 506 characters are allowed"):
        grants.grant(named, PLACES, pool="n")


def test_a_mig_device_is_an_instance_with_an_id_of_its_own() -> None:
    spec = inline.parse("h200:1", models.load(), field="x")
    options = allocating.DraOptions(dynamic_mig=True)
    spec = msgspec.structs.replace(spec, allocation=allocating.GpuAllocation("dra", options))
    places = node_devices.places([gpu := pools.build(spec, "n")[0]], spec)
    name = next(name for name in places if name.endswith("-mig-1g18gb-19-6"))
    made = grants.grant(claim(result(name), result(gpu.uuid.lower(), adminAccess=True)), places, pool="n")
    instance, whole = made.devices
    assert instance.part == MigPart("1g.18gb", 6, 13, 16384)
    assert (instance.gpu, instance.id) == (gpu.uuid, f"MIG-{gpu.part_uuid(13)}")
    assert (whole.part, whole.id) == (None, gpu.uuid)
    assert grants.instances([made]) == {gpu.uuid: (instance.part,)}
    assert msgspec.json.decode(msgspec.json.encode(made), type=grants.PreparedClaim) == made
    watching = grants.grant(claim(result(name, adminAccess=True)), places, pool="n")
    assert grants.instances([watching, made]) == {gpu.uuid: (instance.part,)}
    assert grants.instances([watching, grants.grant(claim(result(gpu.uuid.lower())), places, pool="n")]) == {}


SPEC = msgspec.structs.replace(
    inline.parse("h200:1", models.load(), field="x"),
    allocation=allocating.GpuAllocation("dra", allocating.DraOptions(dynamic_mig=True)),
)
DIVISIBLE = node_devices.places(pools.build(SPEC, "n"), SPEC)
RESULTS = st.lists(st.tuples(st.sampled_from(sorted(DIVISIBLE)), st.booleans()), min_size=1, max_size=3)


@settings(max_examples=200)
@given(st.lists(RESULTS, max_size=6))
def test_no_claims_are_prepared_whose_devices_overlap(allocations: list[list[tuple[str, bool]]]) -> None:
    prepared: list[grants.PreparedClaim] = []
    for listed in allocations:
        made = grants.grant(claim(*(result(name, adminAccess=admin) for name, admin in listed)), DIVISIBLE, pool="n")
        with contextlib.suppress(errors.InputError):
            grants.check_overlaps(made, prepared)
            prepared.append(made)
    held = {device.place for one in prepared for device in one.devices if not device.admin}
    if DevicePlace(next(iter(DIVISIBLE.values())).gpu) in held:
        assert len(held) == 1
    else:
        slices = [at for place in held if place.part for at in placing.slices_of(place.part.number)]
        assert len(set(slices)) == len(slices)


def test_a_mig_device_has_the_slices_of_memory_that_its_number_stands_for() -> None:
    for model in models.load().models.values():
        for profile in model.mig:
            for start in placing.starts(profile, model):
                placed = placing.placed(profile, model, start)
                assert placing.slices_of(placed.number) == placed.slices


def test_a_container_uses_the_devices_of_its_requests_alone() -> None:
    made = grants.grant(claim(result("gpu-a", "one"), result("gpu-b", "two/small"), pods=("p",)), PLACES, pool="n")
    prepared = grants.by_name([made])
    user = pod("p", ("all", ""), ("first", "one"), ("second", "two"))
    found = [(container, device.gpu) for container, device in grants.uses(user, prepared)]
    assert found == [("all", "GPU-a"), ("first", "GPU-a"), ("all", "GPU-b"), ("second", "GPU-b")]


def test_a_pod_without_a_reservation_uses_nothing_until_the_kubelet_has_started_it() -> None:
    prepared = grants.by_name([grants.grant(claim(result(), pods=("p",)), PLACES, pool="n")])
    assert [name for name, _ in grants.uses(pod("p", ("main", "")), prepared)] == ["main"]
    assert not list(grants.uses(pod("q", ("main", "")), prepared))
    assert [name for name, _ in grants.uses(pod("q", ("main", ""), started=True), prepared)] == ["main"]
