"""The agent as people deploy it: `examples/08-agent`, by the guide's commands, with an account of its own."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import audit
from tests.fixtures.agent import H200, NAMESPACE, POOL_LABEL, Gpus
from tests.fixtures.claimed import Claimed
from tests.fixtures.machine import wait_for
from tests.fixtures.node import Node

ROOT = Path(__file__).parent.parent.parent
EXAMPLE, GUIDE = ROOT / "examples" / "08-agent" / "agent.yaml", ROOT / "docs" / "guides" / "real-nodes.md"
AGENTS = ("-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")


class Deployed(Gpus):
    """A node whose agent is a pod."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._earlier = len(audit.lines(node.machine.scratch))

    def rejected(self) -> list[audit.Act]:
        """What its account tried and may not."""
        written = audit.lines(self.node.machine.scratch)[self._earlier :]
        return [act for act in audit.acts(written, namespace=NAMESPACE) if act.code == 403]

    def find(self) -> str:
        """The agent's pod, once it is ready; metrics come from there."""

        def ready() -> list[dict[str, Any]]:
            pods = json.loads(self.node.kubectl("get", "pods", *AGENTS, "-o", "json"))["items"]
            if len(pods) != 1:  # one that was replaced is still there
                return []
            conditions = pods[0]["status"].get("conditions", ())
            return pods if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions) else []

        wait_for(ready, "one agent that is ready")
        (pod,) = ready()
        self.url = f"http://{pod['status']['podIP']}:9400"
        name: str = pod["metadata"]["name"]
        return name

    def logs(self) -> str:
        return self.node.kubectl("logs", "-n", NAMESPACE, self.find())


@pytest.fixture(scope="module")
def _in_a_pod(
    equipped: Gpus, services: Node, python_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("guide")
    (folder / "examples" / "08-agent").mkdir(parents=True)
    manifest = folder / "examples" / "08-agent" / "agent.yaml"
    text, count = re.subn(r"image: \S+", f"image: {python_image}", EXAMPLE.read_text())
    assert count == 1
    manifest.write_text(text)
    equipped.agent.stop(signal.SIGTERM)
    (commands,) = re.findall(r"```shell\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    try:
        services.shell(commands, folder)
        yield Deployed(services)
    finally:
        services.kubectl("delete", "-f", str(manifest), "--timeout=60s")
        services.kubectl("wait", "pod", *AGENTS, "--for=delete", "--timeout=60s")
        services.kubectl("label", "node", services.name, "simgpu.dev/agent-")
        equipped.agent.start()
        equipped.wait_ready()


@pytest.fixture
def deployed(_in_a_pod: Deployed) -> Iterator[Deployed]:
    """The node as it was: eight GPUs, no pods but the agent's."""
    _in_a_pod.find()
    _in_a_pod.fail("")
    _in_a_pod.configure(H200)
    _in_a_pod.have(8)
    yield _in_a_pod
    _in_a_pod.node.kubectl("delete", "pods", "--all", "--now")
    _in_a_pod.find()
    wait_for(lambda: not _in_a_pod.held(), "pods to be gone")


def test_a_pod_gets_a_gpu_that_nvidia_smi_and_the_agents_port_show(deployed: Deployed) -> None:
    name = deployed.pod(annotations={"run.ai/simulated-gpu-utilization": "40"})
    deployed.running(name)
    gpu = deployed.holds(name)
    assert deployed.sees(name) == gpu
    wait_for(lambda: (gpu[0], 40) in [(labels["UUID"], value) for labels, value in deployed.series()], "40 %")
    assert deployed.exec(name, "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader").strip() == "40 %"


def test_the_agent_is_root_with_no_other_privileges_on_the_node(deployed: Deployed) -> None:
    status = deployed.node.kubectl("exec", "-n", NAMESPACE, deployed.find(), "--", "cat", "/proc/self/status")
    assert re.search(r"^Uid:\t0\t", status, re.MULTILINE)
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)


def test_the_permissions_of_its_account_are_enough(deployed: Deployed) -> None:
    node, view = deployed.node, f"topology-{deployed.node.name}"
    for mistake in ("melt", "burst", "melt"):
        before = deployed.events(mistake)
        deployed.fail(f"{mistake}: true")
        wait_for(lambda: deployed.events(mistake) == before + 1, "an event, counted once")  # noqa: B023 - at once
    name = deployed.pod(annotations={"run.ai/simulated-gpu-utilization": "lots"})
    deployed.running(name)
    wait_for(lambda: deployed.events("InvalidUtilization", name), "an event of the pod")
    deployed.delete(name)
    node.kubectl("label", "node", node.name, f"{POOL_LABEL}-")
    deployed.have(0)
    wait_for(lambda: view not in node.kubectl("get", "configmaps", "-n", NAMESPACE), "the view to be gone")
    node.kubectl("label", "node", node.name, f"{POOL_LABEL}=real")
    deployed.have(8)
    wait_for(lambda: view in node.kubectl("get", "configmaps", "-n", NAMESPACE), "the view")
    labels = json.loads(node.kubectl("get", "node", node.name, "-o", "json"))["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert deployed.rejected() == []


def test_a_reservation_is_told_its_gpu_with_the_right_for_that(deployed: Deployed) -> None:
    node, place = deployed.node, ("-n", "runai-reservation")
    node.kubectl("apply", "-f", str(EXAMPLE.with_name("agent-runai.yaml")))
    node.pod("holds", "sleep 1000", namespace=place[1], resources={"limits": {"nvidia.com/gpu": 1}})
    try:
        (gpu,) = deployed.holds("holds")
        path = r"jsonpath={.metadata.annotations.run\.ai/reserve_for_gpu_index}"
        wait_for(lambda: node.kubectl("get", "pod", "holds", *place, "-o", path) == gpu, "the annotation")
        assert deployed.rejected() == []
    finally:
        node.kubectl("delete", "pod", "holds", *place, "--now")


def test_pods_are_known_on_the_agents_socket_and_by_their_use_of_processors(
    deployed: Deployed, python_image: str
) -> None:
    works = deployed.pod("exec simgpu workload --activity 30:0:3600", image=python_image)
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": "200m"}}
    follows = "follows"
    annotations = {"simgpu.dev/utilization-from": "cpu"}
    deployed.node.pod(follows, "while :; do :; done", resources=resources, annotations=annotations)
    deployed.running(works, follows)
    held = {name: deployed.holds(name)[0] for name in (works, follows)}

    def usage(name: str) -> float:
        return next(value for labels, value in deployed.series() if labels["UUID"] == held[name])

    wait_for(lambda: usage(works) == 30, "the pod's workload", seconds=30)
    wait_for(lambda: 50 < usage(follows) <= 100, "the GPU to follow the processor", seconds=30)
    deployed.delete(follows)


def test_an_update_changes_agents_without_a_gap(deployed: Deployed) -> None:
    """The next agent is ready before the last one ends, and nothing is lost on the way."""
    node, before = deployed.node, deployed.energy()
    deployed.configure({**H200, "allocation": "dra"})
    Claimed(node).publish_classes()
    wait_for(lambda: "gpu.nvidia.com" in node.kubectl("get", "resourceslices"), "the slices")
    node.allocatable("nvidia.com/gpu", 0)  # else the scheduler counts them still, and makes no claims
    last = deployed.find()
    node.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/simgpu-agent")
    started = [deployed.pod() for _ in range(4)]  # plain requests, which the scheduler makes claims for
    node.kubectl("rollout", "status", "-n", NAMESPACE, "daemonset/simgpu-agent", "--timeout=120s")
    assert deployed.find() != last
    deployed.running(*started)
    held = [deployed.holds(name) for name in started]
    assert len({gpu for mine in held for gpu in mine}) == 4
    assert all(deployed.energy()[key] >= value for key, value in before.items())
    assert "another agent runs on the node; this one stands by" in deployed.logs()
    assert deployed.rejected() == []
    deployed.delete(*started)


def test_a_new_agent_goes_on_where_the_last_one_was(deployed: Deployed) -> None:
    name = deployed.pod()
    deployed.running(name)
    gpu, before = deployed.holds(name), deployed.energy()
    gone = deployed.find()
    deployed.node.kubectl("delete", "pod", "-n", NAMESPACE, gone)
    assert deployed.sees(name) == gpu
    deployed.node.kubectl("rollout", "status", "-n", NAMESPACE, "daemonset/simgpu-agent", "--timeout=60s")
    assert deployed.find() != gone
    deployed.have(8)
    assert deployed.holds(name) == gpu
    assert deployed.sees(name) == gpu
    assert all(deployed.energy()[key] >= value for key, value in before.items())
    other = deployed.pod()
    deployed.running(other)
    assert deployed.holds(other) != gpu
