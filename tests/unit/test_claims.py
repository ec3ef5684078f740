"""Claims, read under the kubelet's conditions: which container uses which device, and why a pod uses none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from simgpu.dra import claims
from simgpu.kube import views

CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def pod(*containers: dict[str, Any], status: dict[str, Any] | None = None, **refs: str) -> views.Pod:
    """A pod p with uid u1; `refs` are claims by their names in the pod, `template` for one that is made."""
    listed = [
        {"name": name, **({"resourceClaimTemplateName": "t"} if claim == "template" else {"resourceClaimName": claim})}
        for name, claim in refs.items()
    ]
    body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"nodeName": "n1", "containers": list(containers), "resourceClaims": listed},
        "status": status or {},
    }
    return msgspec.convert(body, views.Pod)


def container(name: str, *names: str) -> dict[str, Any]:
    """A container; `claim/request` names one request of a claim."""
    pairs = [entry.partition("/") for entry in names]
    return {"name": name, "resources": {"claims": [{"name": one, "request": rest} for one, _, rest in pairs]}}


def claim(
    *devices: dict[str, Any], reserved: str = "u1", owner: str = "", config: Any = (), name: str = "c"
) -> claims.AllocatedClaim:
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", **device} for device in devices]
    body = {
        "metadata": {
            "name": name, "namespace": "ns",
            "ownerReferences": [{"kind": "Pod", "name": "p", "uid": owner}] if owner else [],
        },
        "status": {
            "allocation": {"devices": {"results": results, "config": list(config)}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": reserved}],
        },
    }  # fmt: skip
    return msgspec.convert(body, claims.AllocatedClaim)


def found(pod_: views.Pod, *known: claims.AllocatedClaim) -> claims.PodUses:
    by_name = {item.metadata.name: item for item in known}
    return claims.uses_of(pod_, lambda namespace, name: by_name.get(name) if namespace == "ns" else None)


def pairs(uses: claims.PodUses) -> list[tuple[str, str]]:
    return [(use.container, use.device.device) for use in uses.uses]


def test_each_container_uses_the_devices_of_its_claims_and_requests() -> None:
    both = claim({"device": "g0", "request": "a"}, {"device": "g1", "request": "b/first"})
    uses = found(pod(container("x", "one"), container("y", "one/b"), container("z"), one="c"), both)
    assert pairs(uses) == [("x", "g0"), ("x", "g1"), ("y", "g1")]
    assert uses.problems == ()


def test_a_claim_that_no_container_refers_to_is_held_by_the_pod() -> None:
    assert pairs(found(pod(container("x"), one="c"), claim({"device": "g0"}))) == [("", "g0")]


def test_a_claim_of_a_template_is_the_one_that_was_made_for_the_pod() -> None:
    status = {"resourceClaimStatuses": [{"name": "one", "resourceClaimName": "p-one-x"}]}
    mine = pod(container("x", "one"), status=status, one="template")
    assert pairs(found(mine, claim({"device": "g0"}, owner="u1", name="p-one-x"))) == [("x", "g0")]
    other = found(mine, claim({"device": "g0"}, owner="u2", name="p-one-x"))
    assert other.problems == ("claim p-one-x: was not created for pod p",)


def test_an_extended_resource_is_followed_into_the_claim_that_the_scheduler_made() -> None:
    mappings = [
        {"containerName": "y", "resourceName": "nvidia.com/gpu", "requestName": "container-1-request-0"},
    ]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mappings}}
    mine = pod({"name": "x"}, {"name": "y"}, status=status)
    assert claims.has_gpu_claim(mine)
    special = claim({"device": "g3", "request": "container-1-request-0"}, owner="u1")
    assert pairs(found(mine, special)) == [("y", "g3")]


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        (None, "claim c: does not exist"),
        (claims.AllocatedClaim(views.ObjectMeta(name="c")), "claim c: is not allocated"),
        (claim({"device": "g0"}, reserved="u2"), "claim c: is not reserved for pod p"),
        (
            claim({"device": "g0"}, config=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "X"}}}]),
            "claim c: config[0].opaque.parameters: Object missing required field `apiVersion`",
        ),
    ],
)
def test_what_stops_the_kubelet_stops_the_pod_from_using_a_gpu(
    known: claims.AllocatedClaim | None, problem: str
) -> None:
    uses = found(pod(container("x", "one"), one="c"), *([known] if known is not None else []))
    assert (uses.uses, uses.problems) == ((), (problem,))


def test_a_pod_with_one_bad_claim_uses_no_device_of_its_good_ones() -> None:
    mine = pod(container("x", "one"), container("y", "two"), one="c", two="d")
    uses = found(mine, claim({"device": "g0"}), claim({"device": "g1"}, name="d", reserved="u2"))
    assert (pairs(uses), uses.problems) == ([("", "g0")], ("claim d: is not reserved for pod p",))


def test_configuration_is_parsed_once_for_all_devices_and_pods_of_a_claim() -> None:
    sharing = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Gi"}}
    opaque = {"driver": "gpu.nvidia.com", "parameters": {**CONFIG, "sharing": sharing}}
    beaten = {"driver": "gpu.nvidia.com", "parameters": "x" * 20_000}
    config = [{"source": "FromClass", "opaque": beaten}, {"source": "FromClaim", "opaque": opaque}]
    shared = claim(*({"device": f"g{number}", "request": f"r{number}"} for number in range(8)), config=config)
    looks = [found(pod(container("x", "one"), one="c"), shared) for _ in range(2)]
    assert [len(uses.uses) for uses in looks] == [8, 8]
    assert len({id(use.sharing) for uses in looks for use in uses.uses}) == 1


def test_devices_of_other_drivers_are_left_alone() -> None:
    mixed = claim({"device": "nic", "driver": "net.example.com"}, {"device": "g0"})
    assert pairs(found(pod(container("x", "one"), one="c"), mixed)) == [("x", "g0")]
    foreign = claim({"device": "nic", "driver": "net.example.com"}, reserved="u2")
    assert found(pod(container("x", "one"), one="c"), foreign) == claims.PodUses()


def test_shares_and_admin_access_are_read() -> None:
    parts = claim(
        {"device": "g0", "shareID": "s1", "consumedCapacity": {"memory": "10Gi", "shares": "1"}},
        {"device": "g1", "adminAccess": True},
    )
    first, second = (use.device for use in found(pod(container("x", "one"), one="c"), parts).uses)
    assert (first.share, first.memory_mib, first.admin) == ("s1", 10240, False)
    assert (second.share, second.memory_mib, second.admin) == ("", None, True)


def test_a_claim_without_bounds_costs_no_more_than_one_of_the_api() -> None:
    many = claim(*({"device": f"g{number}"} for number in range(10_000)))
    assert len(claims.devices_of(many)) == 32
