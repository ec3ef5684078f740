"""The real node itself: what everything else in this folder stands on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.parse
import uuid
from collections.abc import Sequence
from pathlib import Path

from simgpu.kube import kubeconfig
from simgpu.node import messages
from simgpu.node.offers import Offer, Offered
from simgpu.node.plugins import Plugins
from tests.fixtures.machine import Machine, Service, child_of
from tests.fixtures.node import Node


def _name() -> str:
    return f"pod-{uuid.uuid4().hex[:8]}"


def test_a_pod_prints_a_line_that_kubectl_logs_shows(node: Node) -> None:
    name = _name()
    node.pod(name, "echo hello from the node")
    node.phase(name, "Succeeded")
    assert node.kubectl("logs", name) == "hello from the node\n"


def test_kubectl_exec_runs_a_command_in_a_pod(node: Node) -> None:
    name = _name()
    node.pod(name, "sleep 1000")
    node.phase(name, "Running")
    assert node.kubectl("exec", name, "--", "cat", "/proc/1/cmdline") == "sleep\x001000\x00"
    node.kubectl("delete", "pod", name, "--now")


def test_a_pod_reaches_the_api_server(node: Node) -> None:
    name, server = _name(), urllib.parse.urlsplit(kubeconfig.load(node.cluster.kubeconfig).server)
    node.pod(name, f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc {server.hostname} {server.port}")
    node.phase(name, "Succeeded")
    assert "Client sent an HTTP request to an HTTPS server" in node.kubectl("logs", name)


def test_a_machine_leaves_nothing_behind(tmp_path: Path) -> None:
    def seen() -> tuple[str, list[str], list[str], str]:
        links = sorted(path.name for path in Path("/sys/class/net").iterdir())
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/simgpu-*")]
        routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        return Path("/proc/mounts").read_text(), links, groups, routes

    before = seen()
    with Machine(tmp_path) as machine:
        process = Service(machine, "orphan", ["sh", "-c", "setsid sleep 1000 & wait"])
        process.start()
        left = child_of(process.pid)
        machine.run("mkdir", "/var/lib/kubelet")
        machine.run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/kubelet")
        assert seen() != before
    assert seen() == before
    assert not Path(f"/proc/{left}").exists()


async def test_a_cdi_device_arrives(node: Node) -> None:
    edits = {"env": ["FROM_CDI=yes"], "deviceNodes": [{"path": "/dev/from-cdi", "hostPath": "/dev/null"}]}
    spec = {"cdiVersion": "0.6.0", "kind": "simgpu.test/thing", "devices": [{"name": "one", "containerEdits": edits}]}
    (node.machine.scratch / "cdi").mkdir(exist_ok=True)
    (node.machine.scratch / "cdi" / "thing.json").write_text(json.dumps(spec))

    async def allocate(_resource: str, _ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        return messages.ContainerAllocateResponse(cdi_devices=(messages.CdiDevice("simgpu.test/thing=one"),))

    def use() -> str:
        name = _name()
        node.allocatable("simgpu.test/thing", 1)
        script = "echo $FROM_CDI; ls /dev/from-cdi"
        node.pod(name, script, resources={"limits": {"simgpu.test/thing": 1}})
        node.phase(name, "Succeeded")
        return node.kubectl("logs", name)

    plugins = Plugins(allocate, folder=node.machine.path("/var/lib/kubelet/device-plugins"))
    plugins.offer({"simgpu.test/thing": Offer("simgpu.test/thing", (Offered("thing-0"),))})
    running = asyncio.create_task(plugins.run())
    try:
        assert await asyncio.to_thread(use) == "yes\n/dev/from-cdi\n"
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_pod_reaches_the_api_server_as_a_service_with_its_token(services: Node, python_image: str) -> None:
    script = """
import json, os, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
request = urllib.request.Request(
    f"{address}/apis/authentication.k8s.io/v1/selfsubjectreviews", json.dumps(review).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + open(f"{account}/token").read()},
)
context = ssl.create_default_context(cafile=f"{account}/ca.crt")
answer = json.load(urllib.request.urlopen(request, context=context, timeout=20))
print(request.host, answer["status"]["userInfo"]["username"])
"""
    name = _name()
    services.pod(name, f"python3 - <<'END'\n{script}END", image=python_image)
    services.phase(name, "Succeeded")
    assert services.kubectl("logs", name) == "10.96.0.1:443 system:serviceaccount:default:default\n"
