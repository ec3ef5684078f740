"""The chart as people install it: real and fake GPU nodes in one cluster, metrics, permissions, upgrade, uninstall."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures import audit, operator, terminals
from tests.fixtures.agent import NAMESPACE, POOL_LABEL
from tests.fixtures.cluster import SIMGPU, TOLERATE
from tests.fixtures.machine import wait_for
from tests.fixtures.prometheus import Prometheus
from tests.fixtures.release import A100, CONTROLLER, H100, VALUES, Release, series

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
OLD_VALUES = ROOT / "tests" / "golden" / "chart" / "fake-gpu-operator-0.0.values.yaml"
RESERVATIONS = "runai-reservation"
KWOK, HIGHEND = "kwok-gpu-node-1", "kwok-gpu-node-4"
SLICES = "resource.k8s.io/resourceslices"
# Claims of real pods are in tests of their own, and none of ours changes or deletes a slice before its node.
ELSEWHERE = {
    "simgpu-controller": {("patch", SLICES), ("delete", SLICES)},
    "simgpu-agent": {
        *((verb, SLICES) for verb in ("list", "watch", "create", "patch", "delete")),
        ("get", "resource.k8s.io/resourceclaims"),
        *((verb, "resource.k8s.io/deviceclasses") for verb in ("list", "watch")),
    },
}


def commands(guide: str) -> list[str]:
    """The blocks of commands of a guide that are tested."""
    return re.findall(r"```shell\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def installed(release: Release) -> Release:
    """The release as the guide has it, then with pools for these tests, and the guide's pod on the labelled node."""
    node = release.node
    install, namespace, *_ = commands("install")
    before = release.nodes()
    release.shell(install)
    release.shell(namespace)
    node.allocatable("nvidia.com/gpu", 2)
    assert "K80" in release.gpus.exec("gpu-pod", "nvidia-smi", "-L")
    release.before = before | {node.name: _labelled(before[node.name])}
    release.upgrade()
    wait_for(lambda: A100 in release.gpus.exec("gpu-pod", "nvidia-smi", "-L"), "the pool's GPUs")
    release.follow_agent()
    return release


def _labelled(node: Any) -> Any:
    """The node with its pool, and without the GPUs of an earlier agent, which the kubelet still has in mind."""
    meta, taints, amounts = node
    amounts = {name: amount for name, amount in amounts.items() if name != "nvidia.com/gpu"}
    return meta | {"labels": meta["labels"] | {POOL_LABEL: "default"}}, taints, amounts


def test_the_quick_starts_pod_runs_with_a_gpu(installed: Release) -> None:
    pod = installed.get("pod", "gpu-pod")
    assert pod["spec"]["nodeName"] == installed.node.name
    shown = installed.gpus.exec("gpu-pod", "nvidia-smi")
    assert A100[:10] in shown
    assert "40960MiB" in shown
    assert installed.gpus.sees("gpu-pod") == installed.gpus.holds("gpu-pod", container="gpu-container")


def test_real_and_fake_nodes_have_their_pools_gpus_at_once(installed: Release) -> None:
    assert_pools(installed)


def assert_pools(installed: Release) -> None:
    """Every node has the GPUs of its pool, as fake-gpu-operator's own tests expect them of both of its formats."""
    pools = ((installed.node.name, A100, 2, 40960), (KWOK, A100, 2, 40960), (HIGHEND, H100, 4, 81920))
    for name, product, count, memory in pools:
        wait_for(lambda: installed.get("node", name)["status"]["allocatable"].get("nvidia.com/gpu") == str(count), name)  # noqa: B023
        labels = installed.get("node", name)["metadata"]["labels"]
        assert (labels["nvidia.com/gpu.present"], labels["run.ai/fake.gpu"]) == ("true", "true")
        assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.product"]) == (
            str(count),
            product.replace(" ", "-"),
        )
        assert ("nvidia.com/gpu.deploy.device-plugin" in labels) == (name == installed.node.name)
        (view,) = installed.get("configmaps", "-n", NAMESPACE, "-l", f"node-name={name}")["items"]
        document = yaml.safe_load(view["data"]["topology.yml"])
        assert (len(document["gpus"]), document["gpuProduct"], document["gpuMemory"]) == (count, product, memory)


def test_nodes_have_gpus_of_a_users_own_model(installed: Release) -> None:
    names = (installed.node.name, KWOK)
    for name in names:
        installed.node.kubectl("annotate", "node", name, "simgpu.dev/gpus=mine:2")

    def products() -> set[str]:
        return {installed.get("node", name)["metadata"]["labels"]["nvidia.com/gpu.product"] for name in names}

    wait_for(lambda: products() == {"My-GPU"}, f"the model, not {products()}")
    assert "My GPU" in installed.gpus.exec("gpu-pod", "nvidia-smi", "-L")
    for name in names:
        installed.node.kubectl("annotate", "node", name, "simgpu.dev/gpus-")
    wait_for(lambda: products() == {A100.replace(" ", "-")}, "the pool's GPUs")


def test_the_guides_commands_for_problems_show_what_there_is(installed: Release) -> None:
    (script,) = commands("troubleshooting")
    installed.shell(script)


def test_one_controller_serves_all_fake_nodes(installed: Release) -> None:
    deployment = installed.get("deployment", "nvidia-dcgm-exporter-kwok", "-n", NAMESPACE)
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["template"]["metadata"]["labels"]["app"] == "nvidia-dcgm-exporter-kwok"
    assert [pod["status"]["phase"] for pod in installed.pods(CONTROLLER)] == ["Running"]
    assert {item["Hostname"] for item in series(installed.controller_page())} == {KWOK, HIGHEND}


def test_top_shows_the_cluster_through_its_api_server(installed: Release) -> None:
    options = [SIMGPU, "top", "--kubeconfig", str(installed.node.cluster.kubeconfig)]
    found = json.loads(subprocess.check_output([*options, "-o", "json"], text=True, timeout=60))
    assert {node["name"]: node["gpus"] for node in found["nodes"]} == {KWOK: 2, HIGHEND: 4}
    with terminals.opened(options, 120, 30) as terminal:  # by streams
        terminal.shows(f"{NAMESPACE}/nvidia-dcgm-exporter-kwok", "2 nodes", KWOK, HIGHEND)
        terminal.press(b"q")
        assert terminal.ends() == 0


def test_fake_pods_of_the_agent_stand_for_exporters_in_the_fleets_labels(installed: Release) -> None:
    exporter = installed.exporter_of(KWOK)
    wanted = (exporter["metadata"]["name"], f"{exporter['status']['podIP']}:9400")

    def shown() -> set[tuple[str, str]]:
        page = series(installed.controller_page())
        return {(item["pod"], item["instance"]) for item in page if item["Hostname"] == KWOK}

    wait_for(lambda: shown() == {wanted}, f"{wanted}, not {shown()}")


def test_series_of_real_and_fake_nodes_have_the_same_labels(installed: Release) -> None:
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
        "tolerations": TOLERATE, "nodeSelector": {"kubernetes.io/hostname": KWOK},
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-kwok"}, "spec": spec}
    installed.node.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    wait_for(lambda: "on-kwok" in installed.controller_page(), "the pod's metrics")
    fake = [item for item in series(installed.controller_page()) if item.get("exported_pod") == "on-kwok"]
    real = [item for item in series(installed.gpus.get("/metrics")) if item.get("pod") == "gpu-pod"]
    assert len(fake) == 2
    scraped = {"pod", "namespace", "container", "instance", "job", "service", "endpoint"}  # Prometheus adds or renames
    names = {key.removeprefix("exported_") for key in fake[0]} - scraped
    assert {*real[0]} - scraped == names
    installed.node.kubectl("delete", "pod", "on-kwok", "--now")


def test_prometheus_scrapes_both_as_its_operator_says_and_no_target_is_down(
    prometheus_operator: Path, installed: Release, prometheus: Callable[..., Prometheus], tmp_path: Path
) -> None:
    config = operator.scrape_config(prometheus_operator, installed.node, tmp_path / "operator.log")
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    monitors = ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter-kwok")
    assert {*jobs} == {f"serviceMonitor/{NAMESPACE}/{name}/0" for name in monitors}
    assert all(len(job["static_configs"]) > 2 for job in jobs.values())  # services of all kinds, on all nodes
    started = prometheus(config=config)
    fake = started.eventually(f'DCGM_FI_DEV_GPU_UTIL{{Hostname="{KWOK}"}}')
    real = started.eventually('DCGM_FI_DEV_GPU_UTIL{exported_pod="gpu-pod"}')
    assert len(fake) == 2
    assert fake[0]["metric"]["job"] == real[0]["metric"]["job"] == "nvidia-dcgm-exporter"
    assert fake[0]["metric"]["pod"] == installed.exporter_of(KWOK)["metadata"]["name"]
    # One target each: fake pods of the agent are dropped.
    assert sorted(item["metric"]["job"] for item in started.query("up == 1")) == [*monitors]
    assert started.query("up == 0") == []
    dropped = started.get("/api/v1/targets", state="dropped")["droppedTargets"]
    fakes = {item["discoveredLabels"].get("__meta_kubernetes_endpoint_node_name") for item in dropped}
    assert {KWOK, HIGHEND} <= fakes


def test_run_ai_gets_its_rules_once_its_namespace_exists(installed: Release) -> None:
    assert installed.get("prometheusrules", "-A")["items"] == []
    installed.node.kubectl("create", "namespace", "runai")
    wait_for(lambda: installed.get("prometheusrules", "-n", "runai")["items"], "the rules")
    (rule,) = installed.get("prometheusrules", "-n", "runai")["items"]
    assert rule["metadata"]["name"] == "fake-gpu-operator-kwok-dcgm"
    assert rule["metadata"]["labels"] == {"app": "nvidia-dcgm-exporter", "component": "status-exporter-kwok"}
    assert len(rule["spec"]["groups"][0]["rules"]) == 3


def test_a_pod_sees_the_gpu_that_it_shares_by_a_reservation(installed: Release) -> None:
    node, labels = installed.node, {"runai-gpu-group": "shared"}
    fake: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": KWOK}, "tolerations": TOLERATE}
    limits = {"limits": {"nvidia.com/gpu": 1}}
    for name, place in {"holds": {}, "fakes": fake}.items():
        node.pod(name, "sleep 1000", namespace=RESERVATIONS, labels=labels, resources=limits, **place)

    def told(name: str) -> str:
        annotation = "jsonpath={.metadata.annotations.run\\.ai/reserve_for_gpu_index}"
        return node.kubectl("get", "pod", name, "-n", RESERVATIONS, "-o", annotation)

    wait_for(lambda: told("holds") and told("fakes"), "the reservations to be told their GPUs")
    node.pod("shares", "sleep 1000", labels=labels, annotations={"gpu-fraction": "0.5"})
    installed.gpus.running("shares")
    assert installed.gpus.sees("shares") == [told("holds")]
    node.kubectl("delete", "pod", "shares", "--now")
    node.kubectl("delete", "pod", "holds", "fakes", "-n", RESERVATIONS, "--now")


def test_an_agents_account_changes_its_own_node_only(installed: Release) -> None:
    node, agent = installed.node, installed.exporter_of(installed.node.name)["metadata"]["name"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={agent}")
    token = node.kubectl("create", "token", "simgpu-agent", "-n", NAMESPACE, *bound).strip()
    authority = ssl.create_default_context(cafile=node.cluster.kubeconfig.parent / "pki" / "ca.crt")
    server = node.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")

    def attempt(method: str, path: str) -> str:
        """The API server's refusal; kubectl would read the object first, which an agent may not."""
        body = json.dumps({"metadata": {"labels": {"example.com/mine": None}}}).encode() if method == "PATCH" else None
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        request = urllib.request.Request(f"{server}/api/v1/{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=authority):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()

    maps = f"namespaces/{NAMESPACE}/configmaps"
    assert "its own node only" in attempt("PATCH", f"nodes/{KWOK}")
    assert "of its own node only" in attempt("PATCH", f"{maps}/topology")
    assert "of its own node only" in attempt("DELETE", f"{maps}/topology-{KWOK}")
    assert attempt("PATCH", f"nodes/{node.name}") == ""


def test_an_upgrade_to_values_of_another_format_keeps_the_gpus_of_running_pods(installed: Release) -> None:
    gpus = installed.gpus
    held, energy = gpus.holds("gpu-pod", container="gpu-container"), gpus.energy()
    before = installed.exporter_of(installed.node.name)["metadata"]["name"]
    old = yaml.safe_load(OLD_VALUES.read_text())
    del old["environment"]  # which asks for OpenShift
    old["statusUpdater"] |= VALUES["statusUpdater"]
    new = {"podAnnotations": {"example.com/version": "2"}}
    installed.upgrade(**old, cluster=None, kwokDraPlugin={"enabled": True}, agent=new, controller=new)
    wait_for(lambda: installed.exporter_of(installed.node.name)["metadata"]["name"] != before, "a new agent")
    installed.follow_agent()
    assert gpus.holds("gpu-pod", container="gpu-container") == held
    assert gpus.sees("gpu-pod") == held
    assert all(gpus.energy()[key] >= value for key, value in energy.items())
    assert installed.get("pod", "gpu-pod")["status"]["containerStatuses"][0]["restartCount"] == 0
    other = "rdma/rdma_shared_device_a"
    for name in (installed.node.name, KWOK):
        wait_for(lambda: installed.get("node", name)["status"]["allocatable"].get(other) == "1", name)  # noqa: B023
    assert_pools(installed)
    _, _, upgrade, *_ = commands("install")
    installed.shell(upgrade)
    assert_pools(installed)


def test_the_release_takes_everything_back_and_needed_exactly_its_permissions(installed: Release) -> None:
    node = installed.node
    exercise(installed)
    roles = {
        role: audit.granted(installed.get("clusterrole", role)["rules"], "")
        | audit.granted(installed.get("role", role, "-n", NAMESPACE)["rules"], NAMESPACE)
        | audit.granted(installed.get("role", role, "-n", RESERVATIONS)["rules"], RESERVATIONS)
        for role in ("simgpu-controller", "simgpu-agent")
    }
    rejected = [act for act in installed.acts() if act.code == 403]  # the permissions of those that end go with them
    node.kubectl("delete", "pod", "gpu-pod", "--now")
    *_, uninstall, cleanup = commands("install")
    installed.shell(uninstall)
    wait_for(lambda: installed.nodes() == installed.before, f"{installed.nodes()}, not {installed.before}", seconds=20)
    for kind in ("configmaps", "leases", "pods", "jobs", "serviceaccounts", "services"):
        wait_for(lambda: left(installed, kind) == [], f"{kind} to be gone: {left(installed, kind)}")  # noqa: B023
    for folder in ("/var/lib/simgpu", "/var/lib/runai"):
        assert not [*node.machine.path(folder).iterdir()], folder
    assert not [*node.machine.path("/var/lib/kubelet/device-plugins").glob("simgpu-*")]
    installed.shell(cleanup)
    assert rejected == []
    for role, allowed in roles.items():
        needed = audit.used([act for act in installed.acts() if act.account == role], allowed)
        assert needed - allowed == set(), role
        assert {item for item in allowed - needed if item[:2] not in ELSEWHERE[role]} == set(), role
    # What only it can remove, where controllers and agents are gone, is in a test of its own.
    assert [act for act in installed.acts() if act.account == "simgpu-cleanup" and act.code in (0, 403)] == []


def left(installed: Release, kind: str) -> list[str]:
    """What is in the namespace but for what every namespace has."""
    found = [item["metadata"]["name"] for item in installed.get(kind, "-n", NAMESPACE)["items"]]
    return [name for name in found if name not in ("kube-root-ca.crt", "default")]


def exercise(installed: Release) -> None:
    """Use permissions that other tests do not: events of mistakes, pods that fail at a limit, a second controller."""
    node = installed.node
    for mistake in ("melt", "burst", "melt"):
        before = installed.gpus.events(mistake)
        installed.gpus.fail(f"{mistake}: true")
        wait_for(lambda: installed.gpus.events(mistake) > before, "an event of the agent")  # noqa: B023
    installed.gpus.fail("")
    for mistake in ("h200:none", "h200:few", "h200:none"):
        before = installed.gpus.events(mistake.partition(":")[2])
        node.kubectl("annotate", "node", KWOK, "--overwrite", f"simgpu.dev/gpus={mistake}")
        wait_for(lambda: installed.gpus.events(mistake.partition(":")[2]) > before, "an event of the controller")  # noqa: B023
    node.kubectl("annotate", "node", KWOK, "simgpu.dev/gpus-")
    body = {"metadata": {"name": "short"}, "data": {"profile.yaml": "{Profile: [{Load: 5}], Limits: {runtime: 1}}"}}
    node.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "ConfigMap", **body}))
    profile = {"simgpu.dev/activity-profile": "configmap/short", "simgpu.dev/on-limit": "fail"}
    fake: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": KWOK}, "tolerations": TOLERATE}
    names = [installed.gpus.pod(annotations=profile), installed.gpus.pod(annotations=profile, **fake)]
    for name in names:
        node.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s")
    installed.gpus.delete(*names)
    node.kubectl("scale", "-n", NAMESPACE, "deployment/nvidia-dcgm-exporter-kwok", "--replicas=2")
    waiting = ("simgpu-controller", "watch", "coordination.k8s.io/leases")
    wait_for(lambda: waiting in [(act.account, *act.permission[:2]) for act in installed.acts()], "a second controller")
