"""What pods' annotations have them do on GPUs of a fake node: metrics, events and phases follow."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

from simgpu.kube import resources
from tests.fixtures import pod_groups, served_types
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet

MEMORY_MIB = 143155  # of an H200, that its driver leaves
EIGHT: dict[str, Any] = {"gpus": [{"type": "h200", "count": 8}]}
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


async def test_a_pods_kind_decides_where_it_says_nothing(fleet: Fleet) -> None:
    async with served_types.served(fleet.client, pod_groups.TYPE):
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


SLICED = EIGHT | {
    "gpus": [{"type": "h200", "count": 2}],
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
}


def used(fleet: Fleet) -> dict[tuple[str, str], tuple[float, float]]:
    """Utilisation in percent and memory in MiB of each pod on each GPU, by the pod's uid and the GPU's index."""
    page = fleet.controller.get("/metrics")[1]
    found: dict[str, dict[tuple[str, str], float]] = {}
    for name, uid, gpu, value in re.findall(
        r'^runai_pod_gpu_(\w+){pod_uuid="(.*)",gpu="(.*)"} (.*)$', page, re.MULTILINE
    ):
        found.setdefault(name, {})[uid, gpu] = float(value)
    busy, memory = found.get("utilization", {}), found.get("memory_used_bytes", {})
    return {key: (busy[key], memory[key] / 2**20) for key in busy}


async def uid_of(fleet: Fleet, pod: str, namespace: str = "") -> str:
    return (await fleet.client.get(resources.PODS, pod, namespace=namespace or fleet.namespace)).metadata.uid


async def test_pods_share_gpus_by_time_slicing(fleet: Fleet) -> None:
    await fleet.configure("", default=SLICED)
    node = await fleet.node("a")
    await fleet.start()
    seen = await fleet.gpus(node, 8)
    assert seen.metadata.labels["nvidia.com/gpu.product"] == "NVIDIA-H200-SHARED"
    assert seen.metadata.labels["nvidia.com/gpu.replicas"] == "4"
    for name, share in {"one": 1, "two": 1, "three": 2}.items():
        await fleet.pod(name, node, share, simulated_gpu_utilization="20")
        await fleet.running(name)
    one, two, three = [await uid_of(fleet, name) for name in ("one", "two", "three")]
    quarter = float(MEMORY_MIB // 4)

    async def shared() -> bool:
        found = used(fleet)
        return found == {
            (one, "0"): (20.0, quarter), (two, "1"): (20.0, quarter),
            (three, "0"): (20.0, quarter), (three, "1"): (20.0, quarter),
        }  # fmt: skip

    await eventually(shared, seconds=30)
    await fleet.client.delete(resources.PODS, "one", namespace=fleet.namespace)

    async def left() -> bool:
        return set(used(fleet)) == {(two, "1"), (three, "0"), (three, "1")}

    await eventually(left, seconds=30)
    assert fleet.controller.stop() == 0
    await fleet.start()
    await eventually(left, seconds=30)
    await fleet.configure("", default=SLICED | {"sharing": {}})
    await fleet.gpus(node, 2)


async def test_pods_share_the_gpus_of_reservations(fleet: Fleet) -> None:
    await fleet.configure("", default=EIGHT)
    node = await fleet.node("a")
    place = f"{fleet.namespace}-reserved"
    await fleet.client.create(resources.NAMESPACES, {"metadata": {"name": place}})
    try:
        await fleet.start("--reservation-namespace", place)
        await fleet.gpus(node, 8)
        await fleet.pod("other", node, 1)
        await fleet.running("other")
        for group in ("x", "y"):
            await fleet.pod(f"reserve-{group}", node, 1, namespace=place, labels={"runai-gpu-group": group})
        shares = {"runai-gpu-group": "x"}, {"runai-gpu-group/x": "x", "runai-gpu-group/y": "y"}
        half, few = {"gpu-fraction": "0.5"}, {"gpu-memory": "1000", "simgpu.dev/gpu-memory": "9Gi"}
        await fleet.pod("half", node, labels=shares[0], own=half, simulated_gpu_utilization="30")
        await fleet.pod("few", node, labels=shares[1], own=few, simulated_gpu_utilization="10")
        one, two = [await uid_of(fleet, name) for name in ("half", "few")]

        async def gpus() -> dict[str, str] | None:
            """The index of each reservation's GPU, by group, once they are annotated with its id."""
            indices = {labels["UUID"]: labels["gpu"] for labels, _ in fleet.series().values()}
            found = {}
            for group in ("x", "y"):
                pod = await fleet.client.get(resources.PODS, f"reserve-{group}", namespace=place)
                found[group] = indices.get(pod.metadata.annotations.get("run.ai/reserve_for_gpu_index", ""), "")
            return found if all(found.values()) else None

        held: dict[str, str] = await eventually(gpus, seconds=30)
        expected = {
            (one, held["x"]): (30.0, float(MEMORY_MIB // 2)),
            (two, held["x"]): (10.0, 1000.0), (two, held["y"]): (10.0, 1000.0),
        }  # fmt: skip

        async def shared() -> bool:
            found = used(fleet)
            return {key: found.get(key) for key in expected} == expected

        await eventually(shared, seconds=30)
        assert by_pod(fleet)["reserve-x", "c0"] == 40
        steps = [{"time": "500ms", "utilization": 90}, {"time": "1h", "utilization": 25}]
        await annotate(fleet, "half", {TIMELINE: json.dumps(steps)})
        expected[one, held["x"]] = (25.0, float(MEMORY_MIB // 2))
        await eventually(shared, seconds=30)
        await fleet.client.delete(resources.PODS, "other", namespace=fleet.namespace)
        assert fleet.controller.stop() == 0
        await fleet.start("--reservation-namespace", place)
        await eventually(shared, seconds=30)
        assert await gpus() == held
    finally:
        await fleet.client.delete(resources.NAMESPACES, place)
