"""Label a KWOK node and it has GPUs; run pods and the metrics follow. On a real cluster, with a real controller."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path

import yaml

from simgpu.kube import resources
from tests.fixtures.cluster import HOSTNAME, eventually, job
from tests.fixtures.controller import Fleet, parse_json
from tests.fixtures.prometheus import Prometheus

TWO_K80 = {
    "gpuProduct": "Tesla-K80",
    "gpuCount": 2,
    "gpuMemory": 11441,
    "otherDevices": [{"name": "rdma/hca", "count": 3}],
}
FOUR_H100 = {"gpu": {"profile": "h100", "overrides": {"device_count": 4}}, "resources": [{"nvidia.com/mig-1g.5gb": 3}]}


async def test_a_labelled_node_gets_gpus_and_an_unlabelled_one_loses_every_trace(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    await fleet.start()
    seen = await fleet.gpus(node, 2)
    assert seen.status.capacity["rdma/hca"] == "3"
    for name, value in {
        "nvidia.com/gpu.product": "Tesla-K80", "nvidia.com/gpu.memory": "11441", "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.present": "true", "run.ai/fake.gpu": "true", "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.deploy.dcgm-exporter": "true", "nvidia.com/mps.capable": "false",
    }.items():  # fmt: skip
        assert seen.metadata.labels[name] == value
    view = await eventually(
        lambda: fleet.client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
    )
    assert view.metadata.labels == {"node-topology": "true", "node-name": node}
    document = yaml.safe_load(view.data["topology.yml"])
    assert (document["gpuProduct"], document["gpuMemory"], len(document["gpus"])) == ("Tesla-K80", 11441, 2)
    await fleet.client.merge_patch(
        resources.NODES, node, {"metadata": {"labels": {fleet.label: None, "mine": "stays"}}}
    )
    bare = await fleet.gpus(node, None)

    async def clean() -> bool:
        now = await fleet.client.get(resources.NODES, node)
        gone = not any(name.startswith("nvidia.com/") for name in now.metadata.labels)
        there = await fleet.client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
        return (
            gone and there is None and "rdma/hca" not in now.status.capacity and now.metadata.labels["mine"] == "stays"
        )

    await eventually(clean)
    assert bare.status.capacity["cpu"] == "32"


async def test_each_container_has_its_own_gpus_and_reads_inside_its_range(fleet: Fleet) -> None:
    await fleet.configure("", default=FOUR_H100)
    node = await fleet.node("a")
    await fleet.start()
    assert (await fleet.gpus(node, 4)).status.allocatable["nvidia.com/mig-1g.5gb"] == "3"
    await fleet.pod("train", node, 1, 2, init=2, simulated_gpu_utilization="10-30")
    expected = {(node, "0"): ("train", "c0"), (node, "1"): ("train", "c1"), (node, "2"): ("train", "c1")}
    await fleet.held(expected)

    async def inside() -> bool:
        values = [value for key, (_, value) in fleet.series().items() if key in expected]
        assert all(value == 0 or 10 <= value <= 30 for value in values)
        return all(10 <= value <= 30 for value in values)

    await eventually(inside)
    for _ in range(5):
        await inside()
        await asyncio.sleep(0.2)
    used = fleet.series("DCGM_FI_DEV_FB_USED")
    assert used[node, "0"][1] + fleet.series("DCGM_FI_DEV_FB_RESERVED")[node, "0"][1] == 81559
    assert used[node, "3"][1] == 0
    page = fleet.controller.get("/metrics")[1]
    [in_bytes] = re.findall(r'^runai_pod_gpu_memory_used_bytes{pod_uuid=".*",gpu="0"} (.*)$', page, re.MULTILINE)
    assert int(in_bytes) == used[node, "0"][1] * 2**20
    await fleet.client.delete(resources.PODS, "train", namespace=fleet.namespace)
    await fleet.held({})


async def test_a_nonsensical_range_is_told_and_harms_nothing(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.pod("odd", node, 1, simulated_gpu_utilization="30-10")
    await fleet.held({(node, "0"): ("odd", "c0")})

    assert "the lower end is above the upper end" in (await fleet.told("InvalidUtilization")).message


async def test_a_run_time_that_nobody_can_read_is_told(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    body = job("slow", annotations={"simgpu.dev/run-time": "10 minutes"}, nodeSelector={HOSTNAME: node})
    await fleet.client.create(resources.JOBS, body, namespace=fleet.namespace)
    event = await fleet.told("InvalidRunTime")
    assert "'10 minutes': must be a time such as 30s" in event.message


async def test_a_broken_profile_is_told_and_the_last_good_state_stays(fleet: Fleet) -> None:
    defaults = {"name": "Mine", "architecture": "turing", "compute_capability": {"major": 7, "minor": 5}}
    await fleet.profile("mine", yaml.safe_dump({"device_count": 2, "device_defaults": defaults}))
    await fleet.configure("", default={"gpu": {"profile": "mine"}})
    node = await fleet.node("a")
    controller = await fleet.start()
    seen = await fleet.gpus(node, 2)
    assert seen.metadata.labels["nvidia.com/gpu.family"] == "turing"
    assert "nvidia.com/mig.capable" not in seen.metadata.labels  # nobody said
    await fleet.profile("mine", "device_count: [")
    event = await fleet.told("InvalidTopology")
    assert "nodePools.default.gpu.profile: ConfigMap gpu-profile-mine: profile.yaml: not YAML" in event.message
    assert "gpu-profile-mine" in controller.get("/healthz?verbose")[1]
    assert controller.stop() == 0
    again = await fleet.start()

    async def still_there() -> bool:
        return len(await asyncio.to_thread(fleet.series)) == 2

    await eventually(still_there)
    assert "gpu-profile-mine" in again.get("/healthz?verbose")[1]
    await fleet.gpus(node, 2)
    await fleet.profile("mine", yaml.safe_dump({"device_count": 3, "device_defaults": defaults}))
    await fleet.gpus(node, 3)
    assert again.get("/healthz?verbose")[1] == "ok\n"


async def test_a_mistyped_key_is_told_and_stops_nothing(fleet: Fleet) -> None:
    await fleet.configure("", default={**TWO_K80, "gpuMemroy": 5, "allocation": "both"})
    node = await fleet.node("a")
    controller = await fleet.start()
    await fleet.gpus(node, 2)
    await eventually(lambda: fleet.client.find(resources.RESOURCE_SLICES, f"kwok-{node}-gpu"))
    event = await fleet.told("UnknownKeys")
    assert "nodePools.default.gpuMemroy: no such key; there are: gpuProduct" in event.message
    assert "gpuMemroy" in controller.get("/healthz?verbose")[1]


async def test_a_controller_that_ends_saves_where_its_counters_stand(fleet: Fleet) -> None:
    await fleet.configure("", default=FOUR_H100)
    node = await fleet.node("a")
    controller = await fleet.start()
    await fleet.gpus(node, 4)
    await fleet.pod("train", node, 4)
    await fleet.held({(node, str(index)): ("train", "c0") for index in range(4)})

    async def grown() -> bool:
        energy = await asyncio.to_thread(fleet.series, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
        return energy[node, "0"][1] > 3e6

    await eventually(grown)
    last = fleet.series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    assert await asyncio.to_thread(controller.stop) == 0
    view = await fleet.client.get(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
    saved = parse_json(view.data["counters.json"])["gpus"]
    for labels, millijoules in last.values():
        assert saved[labels["UUID"]][0] * 1000 >= millijoules - 1


async def test_a_changed_topology_reaches_nodes_and_pods_keep_what_they_have(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80, big=FOUR_H100)
    node = await fleet.node("a")
    controller = await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.pod("stays", node, 1)
    await fleet.held({(node, "0"): ("stays", "c0")})
    await fleet.configure("", default={**TWO_K80, "gpuCount": 3}, big=FOUR_H100)
    await fleet.gpus(node, 3)
    await fleet.held({(node, "0"): ("stays", "c0")})
    await fleet.configure("nodePools: {default: {gpuCount: many}}")

    async def complained() -> bool:
        return "nodePools.default.gpuCount" in controller.get("/healthz?verbose")[1]

    await eventually(complained)
    await fleet.gpus(await fleet.node("later"), 3)
    seen = await fleet.client.get(resources.NODES, node)
    assert seen.status.allocatable["nvidia.com/gpu"] == seen.metadata.labels["nvidia.com/gpu.count"] == "3"
    await fleet.configure("", default={**TWO_K80, "gpuCount": 3}, big=FOUR_H100)
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"labels": {fleet.label: "big"}}})
    seen = await fleet.gpus(node, 4)
    assert "rdma/hca" not in seen.status.allocatable
    assert controller.get("/healthz?verbose")[1] == "ok\n"


async def test_an_annotation_and_a_name_give_gpus_too(fleet: Fleet) -> None:
    metrics = {"utilization": 40, "fb-used": 5000, "metadata": {"pod": "old"}}
    static = {
        "mig-strategy": "mixed",
        "nodePoolLabelKey": fleet.label,
        "nodes": {
            f"{fleet.namespace}-named": {
                "gpu-memory": 11441, "gpu-product": "Tesla-K80",
                "gpus": [{"id": "GPU-mine", "metrics": metrics}],
            }
        },
    }  # fmt: skip
    await fleet.configure(yaml.safe_dump(static))
    named = await fleet.node("named", None)
    annotated = await fleet.node("annotated", None, gpus="h200:3,t4:1")
    await fleet.start()
    await fleet.gpus(annotated, 4)
    await fleet.gpus(named, 1)

    async def shown() -> bool:
        labels, value = fleet.series().get((named, "0"), ({}, 0.0))
        return labels.get("UUID") == "GPU-mine" and value == 40 and labels.get("exported_pod") == "old"

    await eventually(shown)
    assert [fleet.series()[annotated, str(index)][0]["modelName"] for index in range(4)] == [
        *["NVIDIA H200"] * 3,
        "Tesla T4",
    ]
    await fleet.pod("now", named, 1)
    await fleet.held({(named, "0"): ("now", "c0")})


async def test_nodes_can_have_models_of_the_users_own(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "my-card.yaml").write_text("base: t4\nproduct: My Card\n")
    await fleet.configure("", default={"gpus": [{"type": "my-card", "count": 3}]})
    pooled = await fleet.node("a")
    annotated = await fleet.node("b", None, gpus="my-card:2")
    await fleet.start("--catalog", str(tmp_path))
    for node, count in ((pooled, 3), (annotated, 2)):
        seen = await fleet.gpus(node, count)
        assert seen.metadata.labels["nvidia.com/gpu.product"] == "My-Card"


async def test_a_typing_mistake_is_told_and_takes_no_gpus_from_a_node(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"labels": {fleet.label: "defualt"}}})

    async def told() -> bool:
        events = await fleet.client.list(resources.EVENTS, namespace="default")
        return any("no pool 'defualt'" in event.message and event.involved_object.name == node for event in events)

    await eventually(told)
    await fleet.gpus(await fleet.node("later"), 2)
    assert (await fleet.client.get(resources.NODES, node)).status.allocatable["nvidia.com/gpu"] == "2"
    assert len(fleet.series()) == 4


async def test_a_node_that_is_no_longer_fake_loses_every_trace(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    gone = {"kwok.x-k8s.io/node": None}
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"annotations": gone}})

    async def clean() -> bool:
        now = await fleet.client.get(resources.NODES, node)
        there = await fleet.client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
        named = [name for name in now.metadata.labels if name.startswith(("nvidia.com/", "run.ai/fake"))]
        return not named and there is None and not {"nvidia.com/gpu", "rdma/hca"} & now.status.capacity.keys()

    await eventually(clean)


async def published(fleet: Fleet, node: str, pods: list[str]) -> None:
    """Wait until a node's ConfigMap has these pods on its GPUs."""

    async def shows() -> bool:
        view = await fleet.client.get(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
        gpus = yaml.safe_load(view.data["topology.yml"])["gpus"]
        return [gpu["status"]["allocatedBy"]["pod"] for gpu in gpus] == pods

    await eventually(shows)


async def test_a_killed_controller_goes_on_where_it_was(fleet: Fleet) -> None:
    await fleet.configure("", default=FOUR_H100)
    nodes = [await fleet.node(name) for name in ("a", "b")]
    await fleet.start()
    for node in nodes:
        await fleet.gpus(node, 4)
    before: dict[tuple[str, str], tuple[str, str]] = {}
    for index, name in enumerate(("one", "two", "three")):
        await fleet.pod(name, nodes[0], 1)
        before[nodes[0], str(index)] = (name, "c0")
        await fleet.held(before)
    await fleet.client.delete(resources.PODS, "two", namespace=fleet.namespace)
    await fleet.held({key: value for key, value in before.items() if value[0] != "two"})
    await published(fleet, nodes[0], ["one", "", "three", ""])
    energy = fleet.series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    fleet.controller.stop(signal.SIGKILL)
    await fleet.client.delete(resources.NODES, nodes[1])
    fleet.nodes.remove(nodes[1])
    await fleet.start()
    await fleet.held({key: value for key, value in before.items() if value[0] != "two"})
    later = fleet.series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    for key in before:
        assert later[key][1] >= energy[key][1]

    async def forgotten() -> bool:
        name = f"topology-{nodes[1]}"
        return await fleet.client.find(resources.CONFIG_MAPS, name, namespace=fleet.namespace) is None

    await eventually(forgotten)
    assert {node for node, _ in fleet.series()} == {nodes[0]}


async def test_of_two_controllers_one_works(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    first = await fleet.start()
    await fleet.gpus(node, 2)
    second = await fleet.start()
    await fleet.gpus(await fleet.node("later"), 2)
    assert second.get("/healthz")[0] == 200
    assert second.get("/readyz")[0] == 503
    assert second.get("/metrics")[0] == 503
    assert first.get("/readyz")[0] == 200
    assert first.stop() == 0

    async def took_over() -> bool:
        return second.get("/readyz")[0] == 200 and bool(fleet.series())

    await eventually(took_over)


async def test_pods_and_nodes_that_vanish_free_what_they_held(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.pod("one", node, 2)
    await fleet.held({(node, "0"): ("one", "c0"), (node, "1"): ("one", "c0")})
    await fleet.client.delete(resources.PODS, "one", namespace=fleet.namespace)
    await fleet.pod("two", node, 1)
    await fleet.held({(node, "0"): ("two", "c0")})
    await fleet.client.delete(resources.NODES, node)
    fleet.nodes.remove(node)

    async def gone() -> bool:
        return not fleet.series()

    await eventually(gone)


async def test_prometheus_sees_the_labels_that_a_real_exporters_series_have(
    fleet: Fleet, prometheus: Callable[..., Prometheus]
) -> None:
    await fleet.configure("", default=TWO_K80)
    node = await fleet.node("a")
    controller = await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.pod("train", node, 1)
    await fleet.held({(node, "0"): ("train", "c0")})
    query = f'DCGM_FI_DEV_GPU_UTIL{{Hostname="{node}",gpu="0",exported_pod="train"}}'
    enriched = prometheus(controller.target, honor_labels=True)
    [whole] = await asyncio.to_thread(enriched.eventually, query)
    discovered = prometheus(controller.target, discovery="/sd")
    [single] = await asyncio.to_thread(discovered.eventually, query)
    assert set(whole["metric"]) == set(single["metric"]) - {"node"}
    assert whole["metric"]["exported_container"] == "c0"
    assert whole["metric"]["container"] == whole["metric"]["job"] == "nvidia-dcgm-exporter"
    assert whole["metric"]["instance"].endswith(":9400")


async def test_the_topology_api_tells_of_both_formats(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_K80, big=FOUR_H100)
    node = await fleet.node("a", "big")
    controller = await fleet.start()
    await fleet.gpus(node, 4)
    await fleet.pod("train", node, 1)
    await fleet.held({(node, "0"): ("train", "c0")})
    whole = parse_json(controller.get("/topology", topology=True)[1])
    assert whole["NodePools"]["default"]["GpuProduct"] == "Tesla-K80"
    assert whole["NodePools"]["big"]["GpuCount"] == 4
    one = parse_json(controller.get(f"/topology/nodes/{node}", topology=True)[1])
    assert one["Gpus"][0]["Status"]["AllocatedBy"] == {"Namespace": fleet.namespace, "Pod": "train", "Container": "c0"}
    seen = await fleet.client.get(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
    real = {"metadata": {"labels": {"node-topology": "true", "node-name": "real"}}, "data": seen.data}
    await fleet.client.apply(resources.CONFIG_MAPS, "topology-real", real, namespace=fleet.namespace, manager="test")

    async def told() -> bool:
        status, page = await asyncio.to_thread(controller.get, "/topology/nodes/real", topology=True)
        return status == 200 and [gpu["ID"] for gpu in parse_json(page)["Gpus"]] == [gpu["ID"] for gpu in one["Gpus"]]

    await eventually(told)
    assert controller.get("/topology/nodes/nobody", topology=True)[0] == 404
    assert controller.get("/topology/nodes/", topology=True)[0] == 400
    status, page = controller.get("/elsewhere", topology=True)
    assert (status, list(parse_json(page))) == (404, ["error"])
    status, page = controller.get(f"/metrics/nodes/{node}")
    assert status == 200
    assert 'pod="train"' in page
    assert "exported_pod" not in page
    own = controller.get("/metrics/controller")[1]
    assert 'simgpu_controller_api_writes_total{resource="nodes",verb="patch"}' in own
    assert 'simgpu_controller_scrape_seconds_count{page="node"} 1.0' in own
    for name in ("queue_depth 0.0", "event_lag_seconds_count"):
        assert f"\nsimgpu_controller_{name}" in own
