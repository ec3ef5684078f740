"""Pods of a run are placed on its own simulated nodes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from simgpu.kube.resources import Resource
from simgpu.kube.views import Object
from simgpu.loadtest.dependencies import fake_gpus, nodes
from simgpu.loadtest.ownership import Run
from simgpu.loadtest.running import objects, placement
from simgpu.loadtest.scenario.model import DependencyCall

RUN = Run("abc")
LABEL = {"simgpu.dev/loadtest": "abc"}
KWOK = {"key": "kwok.x-k8s.io/node", "operator": "Equal", "value": "fake", "effect": "NoSchedule"}
TOLERATION = {"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}
CLAIM = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}
PLAIN = {"containers": [{"name": "main", "resources": {"limits": {"cpu": 1, "example.com/fpga": 1}}}]}


def dependency(method: str = "DRAKWOKDriver", **params: Any) -> fake_gpus.GpuSettings:
    return fake_gpus.settings(DependencyCall("dependencies[0]", "d", method, params), {}, None)


def placed(spec: dict[str, Any], *dependencies: fake_gpus.GpuSettings) -> dict[str, Any]:
    """The pod spec as it is created, after its template has been read."""
    own = placement.of_run(RUN, dependencies or [dependency()])
    assert own is not None
    before = copy.deepcopy(spec)
    made: dict[str, Any] = own.placed({"apiVersion": "v1", "kind": "Pod", "spec": spec})["spec"]
    assert spec == before
    return made


def limits(**amounts: Any) -> dict[str, Any]:
    return {"containers": [{"name": "side"}, {"name": "main", "resources": {"limits": amounts}}]}


@pytest.mark.parametrize(
    "spec",
    [
        CLAIM,
        {**PLAIN, "tolerations": [KWOK]},
        {**PLAIN, "tolerations": [{"operator": "Exists"}]},
        limits(**{"nvidia.com/gpu": 1}),
        limits(**{"nvidia.com/mig-1g.18gb": 1}),
        limits(**{"deviceclass.resource.kubernetes.io/cl2-gpu.kwok.x-k8s.io": 1}),
        limits(**{"example.com/gpu": 1}),
        {**PLAIN, "initContainers": [{"name": "first", "resources": {"requests": {"nvidia.com/gpu": 1}}}]},
    ],
)
def test_pods_with_gpus_or_for_simulated_nodes_select_the_nodes_of_their_run(spec: dict[str, Any]) -> None:
    assert placed(spec, dependency(extendedResourceName="example.com/gpu"))["nodeSelector"] == LABEL


@pytest.mark.parametrize(
    "spec",
    [
        PLAIN,
        limits(**{"example.com/gpu": 1}),
        {**PLAIN, "tolerations": [{"key": "other", "operator": "Exists"}, {**KWOK, "value": "real"}]},
        {**CLAIM, "nodeName": "node-1"},
        {**CLAIM, "nodeSelector": {"simgpu.dev/loadtest": "other"}},
        {**CLAIM, "nodeSelector": "no mapping"},
    ],
)
def test_other_pods_are_created_as_they_stand(spec: dict[str, Any]) -> None:
    assert placed(spec) == spec


def test_what_a_template_selects_itself_still_holds() -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}}  # fmt: skip
    made = placed({**CLAIM, "nodeSelector": {"type": "kwok"}, "affinity": affinity})
    assert made["nodeSelector"] == {"type": "kwok", **LABEL}
    assert made["affinity"] == affinity


def test_a_template_with_an_affinity_for_the_label_of_runs_is_left_as_it_is() -> None:
    own = {"matchExpressions": [{"key": "simgpu.dev/loadtest", "operator": "DoesNotExist"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [own]}}
    spec = {**CLAIM, "affinity": {"nodeAffinity": required}}
    assert placed(spec) == spec


@pytest.mark.parametrize(
    "wrap",
    [
        lambda template: {"kind": "Job", "spec": {"parallelism": 2, "template": template}},
        lambda template: {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}},
        lambda template: {"kind": "JobSet", "spec": {"replicatedJobs": [
            {"name": "a", "template": {"spec": {"template": template}}}]}},
        lambda template: {"kind": "PodTemplate", "template": template},
    ],
)  # fmt: skip
def test_pods_of_everything_with_a_pod_template_are_placed(wrap: Any) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": CLAIM}
    own = placement.of_run(RUN, [dependency()])
    assert own is not None
    selected = {**CLAIM, "nodeSelector": LABEL, "tolerations": [TOLERATION]}
    assert own.placed(wrap(template)) == wrap({**template, "spec": selected})


@pytest.mark.parametrize("method", ["DRAKWOKDriver", "DRATestDriver"])
def test_pods_of_others_do_not_land_on_simulated_nodes_and_those_of_the_run_tolerate_them(method: str) -> None:
    assert nodes.body("kwok-node-0", labels={})["spec"] == {"taints": [{
        "key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]}  # fmt: skip
    other = {"key": "other", "operator": "Exists"}
    assert placed({**CLAIM, "tolerations": [other]}, dependency(method))["tolerations"] == [other, TOLERATION]
    assert placed({**CLAIM, "tolerations": [KWOK]}, dependency(method))["tolerations"] == [KWOK]


def test_tolerations_that_the_server_would_reject_are_left_for_it() -> None:
    assert placed({**CLAIM, "tolerations": {"key": "x"}})["tolerations"] == {"key": "x"}
    assert placed({**CLAIM, "tolerations": ["x"]})["tolerations"] == ["x", TOLERATION]


def test_nodes_of_the_test_driver_are_for_all_pods_of_the_run() -> None:
    made = placed(PLAIN, dependency(), dependency("DRATestDriver"))
    assert made == {**PLAIN, "nodeSelector": LABEL, "tolerations": [TOLERATION]}


def test_a_run_without_nodes_of_its_own_changes_no_pod() -> None:
    assert placement.of_run(RUN, []) is None


class Recorded:
    """An API server that takes everything."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def resource(self, api_version: str, kind: str) -> Resource[Any]:  # noqa: ARG002 - as Served
        return Resource(kind, "jobs", Object, group="batch")

    async def create(self, _resource: object, body: dict[str, Any], **_options: Any) -> None:
        self.sent.append(body)

    async def merge_patch(self, _resource: object, _name: str, body: dict[str, Any], **_options: Any) -> None:
        self.sent.append(body)


async def test_an_object_that_is_patched_keeps_its_place() -> None:
    server: Any = Recorded()
    own = placement.of_run(RUN, [dependency()])
    creator = objects.Creator(server, server, RUN.labels, frozenset({"ns"}), lambda _: None, placement=own)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {"template": {"spec": CLAIM}}}
    await creator.create(job, "ns")
    await creator.patch(job, "ns")
    created, patched = (body["spec"]["template"]["spec"] for body in server.sent)
    assert created == patched
    assert created["nodeSelector"] == LABEL
