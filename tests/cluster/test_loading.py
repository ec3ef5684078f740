"""What pods' annotations have them do on GPUs of a fake node: metrics, events and phases follow."""

from __future__ import annotations

import json
import signal
from typing import Any

from simgpu.kube import errors, resources
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet

EIGHT = {"gpus": [{"type": "h200", "count": 8}]}
TIMELINE, SHAPE, MEMORY, PROFILE = (
    f"simgpu.dev/{name}" for name in ("utilization-timeline", "shape", "gpu-memory", "activity-profile")
)


def by_pod(fleet: Fleet, family: str = "DCGM_FI_DEV_GPU_UTIL") -> dict[tuple[str, str], float]:
    """Values of a family, by pod and container."""
    return {
        (labels["exported_pod"], labels["exported_container"]): value
        for labels, value in fleet.series(family).values()
        if "exported_pod" in labels
    }


async def shown(fleet: Fleet, wanted: dict[tuple[str, str], float], family: str = "DCGM_FI_DEV_GPU_UTIL") -> None:
    async def look() -> bool:
        found = by_pod(fleet, family)
        return {key: found.get(key) for key in wanted} == wanted

    await eventually(look, seconds=30)


async def annotate(fleet: Fleet, pod: str, annotations: dict[str, str | None]) -> None:
    patch = {"metadata": {"annotations": annotations}}
    await fleet.client.merge_patch(resources.PODS, pod, patch, namespace=fleet.namespace)


async def test_pods_do_what_their_annotations_say_also_after_a_restart(fleet: Fleet) -> None:
    await fleet.configure("", default=EIGHT)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 8)
    steps = [{"time": "500ms", "utilization": 90}, {"time": "1h", "utilization": 60}]
    await fleet.pod("timed", node, 1, own={TIMELINE: json.dumps(steps)})
    by_container = {"c0": "memcopy", "c1": "inference-decode"}
    await fleet.pod("shaped", node, 1, 1, own={SHAPE: json.dumps(by_container), MEMORY: '{"c0": "20Gi"}'})
    document = {"Profile": [{"Load": 35, "Seconds": 3600}], "Repeat": 0}
    await fleet.pod("profiled", node, 1, own={PROFILE: json.dumps(document)})
    await fleet.pod("stored", node, 1, own={PROFILE: "configmap/steady"})
    busy = {("timed", "c0"): 60.0, ("shaped", "c0"): 100.0, ("shaped", "c1"): 85.0, ("profiled", "c0"): 35.0}
    await shown(fleet, busy)
    await shown(fleet, {("shaped", "c0"): 20480.0}, "DCGM_FI_DEV_FB_USED")
    assert "ConfigMap steady: there is none" in (await fleet.told("InvalidActivityProfile")).message
    body = {"data": {"profile.yaml": "Profile: [{Load: 45}]"}}
    await fleet.client.apply(
        resources.CONFIG_MAPS, "steady", body, namespace=fleet.namespace, manager="test", force=True
    )
    await shown(fleet, busy | {("stored", "c0"): 45.0})

    fleet.controller.stop(signal.SIGKILL)
    await fleet.start()
    seen: list[float] = []

    async def again() -> bool:
        found = by_pod(fleet).get(("timed", "c0"))
        seen.append(found or 0.0)
        return found == 60.0

    await eventually(again, seconds=30)
    assert max(seen) <= 60  # it did not begin anew, with 90 %

    await annotate(fleet, "timed", {TIMELINE: None, "run.ai/simulated-gpu-utilization": "25"})
    await annotate(fleet, "profiled", {PROFILE: json.dumps(document | {"Profile": [{"Load": 15}]})})
    await annotate(fleet, "shaped", {SHAPE: "gaming"})
    await shown(fleet, {("timed", "c0"): 25.0, ("profiled", "c0"): 15.0, ("shaped", "c0"): 100.0})
    assert "no shape 'gaming'; there are: idle, " in (await fleet.told("InvalidShape")).message


async def test_a_pod_that_crosses_a_limit_is_reported_and_fails_if_it_asks_for_that(fleet: Fleet) -> None:
    await fleet.configure("", default=EIGHT)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 8)
    document = json.dumps({"Profile": [{"Load": 35}], "Limits": {"runtime": 1}})
    await fleet.pod("ends", node, 1, own={PROFILE: document, "simgpu.dev/on-limit": "fail"})
    await fleet.pod("stays", node, 1, own={PROFILE: document})

    async def failed() -> bool:
        pod = await fleet.client.get(resources.PODS, "ends", namespace=fleet.namespace)
        return (pod.status.phase, pod.status.reason) == ("Failed", "GpuLimitReached")

    await eventually(failed, seconds=30)
    assert "container c0: Limit runtime reached" in (await fleet.told("GpuLimitReached")).message
    await shown(fleet, {("stays", "c0"): 0.0})
    stays = await fleet.client.get(resources.PODS, "stays", namespace=fleet.namespace)
    assert stays.status.phase == "Running"
    assert ("ends", "c0") not in by_pod(fleet)


POD_GROUPS: dict[str, Any] = {
    "metadata": {"name": "podgroups.scheduling.run.ai"},
    "spec": {
        "group": "scheduling.run.ai", "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v2alpha2", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip


async def test_a_pods_kind_decides_where_it_says_nothing(fleet: Fleet) -> None:
    await fleet.client.create(resources.CUSTOM_RESOURCE_DEFINITIONS, POD_GROUPS)
    try:

        async def served() -> bool:
            try:
                return bool(await fleet.client.discover(resources.POD_GROUPS.api_version))
            except errors.NotFound:
                return False

        await eventually(served, seconds=30)
        await fleet.configure("", default=EIGHT)
        node = await fleet.node("a")
        await fleet.start()
        await fleet.gpus(node, 8)
        await fleet.pod("runai-idle-gpu-1", node, 1, simulated_gpu_utilization="50")
        await fleet.pod("grouped", node, 1, own={"pod-group-name": "builds"})
        await fleet.pod("other", node, 1, own={"pod-group-name": "missing"})
        await shown(fleet, {("runai-idle-gpu-1", "c0"): 0.0, ("grouped", "c0"): 100.0, ("other", "c0"): 100.0})
        body = {"metadata": {"name": "builds"}, "spec": {"priorityClassName": "build"}}
        await fleet.client.create(resources.POD_GROUPS, body, namespace=fleet.namespace)
        await shown(fleet, {("grouped", "c0"): 0.0, ("other", "c0"): 100.0})
        label = {"metadata": {"labels": {"workloadKind": "InteractiveWorkload"}}}
        await fleet.client.merge_patch(resources.PODS, "other", label, namespace=fleet.namespace)
        await shown(fleet, {("other", "c0"): 0.0})
    finally:
        await fleet.client.delete(resources.CUSTOM_RESOURCE_DEFINITIONS, "podgroups.scheduling.run.ai")
