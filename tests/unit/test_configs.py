"""Opaque configuration of claims: both kinds, checked field by field."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu import errors
from simgpu.dra import configs

NVIDIA = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
OPERATOR = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig"}


def test_the_operators_and_nvidias_configuration_are_read() -> None:
    long = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    assert configs.parse({**OPERATOR, "sharing": long}, field="f").interval == "Long"
    parts = {"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": 10}}
    assert configs.parse({**OPERATOR, "sharing": parts}, field="f").partition_count == 10
    mps = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    assert configs.parse({**NVIDIA, "sharing": mps}, field="f").strategy == "MPS"
    assert configs.parse({**NVIDIA, "kind": "MigDeviceConfig"}, field="f") == configs.DEFAULT


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({**NVIDIA, "sharing": {"strategy": "Magic"}}, "f.sharing.strategy: Invalid enum value 'Magic'"),
        ({**OPERATOR, "sharing": {"strategy": "MPS"}}, "f.sharing.strategy: 'MPS': must be one of TimeSlicing, Space"),
        ({**NVIDIA, "colour": 1}, "f: Object contains unknown field `colour`"),
        ({**NVIDIA, "kind": "Other"}, "f: 'Other' of 'resource.nvidia.com/v1beta1': must be one of GpuConfig of"),
        (
            {**OPERATOR, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Never"}}},
            "f.sharing.timeSlicingConfig.interval: Invalid enum value 'Never'",
        ),
        (
            {**OPERATOR, "sharing": {"strategy": "TimeSlicing", "spacePartitioningConfig": {"partitionCount": 2}}},
            "f.sharing.spacePartitioningConfig: has no meaning with strategy TimeSlicing",
        ),
        (
            {
                **OPERATOR,
                "sharing": {"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": -1}},
            },
            "f.sharing.spacePartitioningConfig.partitionCount: Expected `int` >= 0",
        ),
        (
            {**NVIDIA, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "much"}}},
            "f.sharing.mpsConfig: 'much': must be a Kubernetes quantity",
        ),
        (
            {
                **NVIDIA,
                "sharing": {
                    "strategy": "MPS",
                    "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {str(number): "1Gi" for number in range(33)}},
                },
            },
            "f.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: Expected `object` of length <= 32",
        ),
        ({**NVIDIA, "sharing": "x" * 11_000}, "f: at most 10240 bytes are allowed"),
        ([], "f: Expected `object`"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(parameters: Any, message: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        configs.parse(parameters, field="f")
    assert str(caught.value).startswith(message)


def test_a_claim_comes_before_its_class_and_a_later_entry_before_an_earlier_one() -> None:
    def entry(source: str, interval: str, *requests: str, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
        opaque = {"driver": driver, "parameters": {**OPERATOR, "sharing": sharing}}
        return {"source": source, "requests": list(requests), "opaque": opaque}

    listed = [
        entry("FromClaim", "Short"), entry("FromClaim", "Long", "b"), entry("FromClass", "Medium"),
        entry("FromClaim", "Default", driver="other.example.com"),
    ]  # fmt: skip
    assert configs.ClaimConfigs(listed).of_request("a").interval == "Short"
    assert configs.ClaimConfigs(listed).of_request("b/first").interval == "Long"
    assert configs.ClaimConfigs(listed[2:]).of_request("a").interval == "Medium"
    assert configs.ClaimConfigs(()).of_request("a").interval == "Default"


def test_requests_of_an_entry_that_are_no_list_are_named() -> None:
    found = configs.ClaimConfigs([{"requests": 3, "opaque": {"driver": "gpu.nvidia.com", "parameters": OPERATOR}}])
    with pytest.raises(errors.InputError, match=r"^claim\.config\[0\]\.requests: must be a list"):
        found.of_request("a", where="claim.")
