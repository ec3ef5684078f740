"""The chart: what it renders for values files of users, what it rejects, and that the API server accepts it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import schema
from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.topology import pools, reading
from tests.fixtures.chart import CHART, SERVED, Helm, template
from tests.fixtures.cluster import Cluster, eventually

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "chart"
SETS = sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml"))
UPDATE = os.environ.get("SIMGPU_UPDATE_GOLDEN")  # writes the expected files anew


def objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    documents = [item for item in yaml.safe_load_all(text) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in documents}


def values(name: str) -> tuple[str, str]:
    return "--values", str(GOLDEN / f"{name}.values.yaml")


def test_lint_finds_nothing(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict")


@pytest.mark.parametrize("name", SETS)
def test_a_values_file_renders_as_expected(name: str, helm: Helm) -> None:
    text = template(helm, *values(name))
    expected = GOLDEN / f"{name}.yaml"
    if UPDATE:
        expected.write_text(text)
    assert objects(text) == objects(expected.read_text()), "SIMGPU_UPDATE_GOLDEN=1 writes it anew"


def test_the_live_page_is_off_unless_a_value_turns_it_on(helm: Helm) -> None:
    assert "--dashboard" not in template(helm)
    both = template(helm, "--set", "controller.dashboard=true,agent.dashboard=true")
    assert both.count("- --dashboard\n") == 2


def test_agents_may_make_device_files_only_where_they_bring_the_driver(helm: Helm) -> None:
    def agent(*options: str) -> tuple[dict[str, Any], set[str]]:
        found = objects(template(helm, *options))
        [(name, spec)] = [(name, item["spec"]) for (kind, name), item in found.items() if kind == "DaemonSet"]
        return {"name": name, **spec["template"]["spec"]["containers"][0]}, {
            name for kind, name in found if kind == "Service"
        }

    plain, _ = agent()
    assert plain["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "/run/nvidia/driver" in [mount["mountPath"] for mount in plain["volumeMounts"]], "to remove what was left"
    others = ("devicePlugin", "dra", "labels", "exporter")
    alone, services = agent(
        "--set", f"components.driver=true,{','.join(f'components.{name}=false' for name in others)}"
    )
    assert alone["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["MKNOD"]}
    assert "--driver-only" in alone["args"]
    assert "/run/nvidia/driver" in [mount["mountPath"] for mount in alone["volumeMounts"]]
    assert alone["name"] == "simgpu-agent", "the exporter's name is left to the exporter"
    assert "nvidia-dcgm-exporter" not in services
    beside, services = agent("--set", "components.driver=true,components.dra=false,agent.driverDir=/run/other")
    assert {"--components=device-plugins,driver,exporter,labels", "--driver-dir=/run/other"} <= {*beside["args"]}
    assert "nvidia-dcgm-exporter" in services


def test_an_agent_is_privileged_only_to_write_the_nodes_kernel_log(helm: Helm) -> None:
    def agent(*options: str) -> tuple[dict[str, Any], list[str], dict[str, str]]:
        pod = objects(template(helm, *options))["DaemonSet", "nvidia-dcgm-exporter"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        log: dict[str, str] = next((item["hostPath"] for item in pod["volumes"] if item["name"] == "kernel-log"), {})
        return container["securityContext"], [item for item in container["args"] if "kernel-log" in item], log

    assert agent("--set", "agent.kernelLog=null")[1:] == ([], {})
    rights, words, log = agent("--set", "agent.kernelLog=/dev/kmsg")
    assert (rights["privileged"], words) == (True, ["--kernel-log=/dev/kmsg"])
    assert log == {"path": "/dev/kmsg", "type": "CharDevice"}
    rights, words, log = agent("--set", "agent.kernelLog=/var/log/gpus/kern.log")
    assert ("privileged" in rights, rights["allowPrivilegeEscalation"]) == (False, False)
    assert (words, log["path"]) == (["--kernel-log=/var/log/gpus/kern.log"], "/var/log/gpus")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/kern.log", ""),
        ("/var/log/gpus/", ""),
        ("/var/lib/simgpu/kern.log", ""),
        ("/run/own/../own/kern.log", ",agent.driverDir=/run/own/"),
    ],
)
def test_a_kernel_log_outside_of_a_folder_of_its_own_is_rejected(path: str, more: str, helm: Helm) -> None:
    said = template(helm, "--set", f"agent.kernelLog={path}{more}", fails=True)
    assert f"agent.kernelLog: {path}: specify a file in a folder of its own, such as /var/log/simgpu/kern.log" in said


@pytest.mark.parametrize("name", SETS)
def test_the_topology_of_a_values_file_has_no_mistakes(name: str, helm: Helm) -> None:
    topology = topology_of(objects(template(helm, *values(name))))
    assert topology.unknown == ()
    assert all(pool.gpus for pool in topology.pools.values())


def topology_of(found: dict[tuple[str, str], dict[str, Any]]) -> pools.Topology:
    """The topology as controller and agents read it, with the chart's profiles."""
    maps = {name: item["data"] for (kind, name), item in found.items() if kind == "ConfigMap"}

    def profile(name: str) -> dict[str, Any] | None:
        data = maps.get(f"{vocabulary.PROFILE_PREFIX}{name}")
        return None if data is None else yaml.safe_load(data[vocabulary.PROFILE_KEY])

    return reading.parse(maps[vocabulary.TOPOLOGY][vocabulary.TOPOLOGY_KEY], models.load(), profile)


def test_profiles_have_fake_gpu_operators_figures_and_a_users_come_before_them(helm: Helm, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"

    def pool_of(name: str, overrides: dict[str, Any] | None = None, **other: Any) -> tuple[str, int, int, str]:
        pool = {"gpu": {"profile": name, "overrides": overrides or {}}}
        file.write_text(yaml.safe_dump({"cluster": {"nodePools": {"p": pool}}, **other}))
        found = topology_of(objects(template(helm, "--values", str(file)))).pools["p"]
        model = found.gpus[0].model
        return model.product, model.memory_mib.total, len(found.gpus), found.driver

    assert pool_of("t4") == ("NVIDIA T4", 16384, 4, "550.163.01")
    assert pool_of("gb300") == ("NVIDIA GB300 NVL", 294912, 8, "570.124.06")
    assert pool_of("h100", {"device_count": 4}) == ("NVIDIA H100 80GB HBM3", 81920, 4, "550.163.01")
    assert pool_of("h100", {"devices": [{}, {}]}) == ("NVIDIA H100 80GB HBM3", 81920, 2, "550.163.01")
    own = {"devices": [{}], "device_defaults": {"name": "Mine"}, "system": {"driver_version": "999.1"}}
    assert pool_of("h100", customProfiles={"h100": own}) == ("Mine", 81559, 1, "999.1")
    assert pool_of("t4", builtinProfiles={"enabled": False}) == ("Tesla T4", 15360, 8, "")


def test_the_names_that_others_rely_on_are_there(helm: Helm) -> None:
    found = objects(template(helm))
    assert found["Deployment", "nvidia-dcgm-exporter-kwok"]["spec"]["template"]["metadata"]["labels"]["app"] == (
        "nvidia-dcgm-exporter-kwok"
    )
    agent = found["DaemonSet", "nvidia-dcgm-exporter"]["spec"]["template"]["metadata"]["labels"]
    assert (agent["app"], agent["app.kubernetes.io/component"]) == (vocabulary.EXPORTER, "agent")
    for name in ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter-kwok"):
        (port,) = found["Service", name]["spec"]["ports"]
        assert (port["name"], port["port"]) == ("gpu-metrics", 9400)
    assert found["Service", "topology-server"]["spec"]["ports"][0]["port"] == 80
    assert found["RuntimeClass", "nvidia"]["handler"] == "runc"
    with_dra = objects(template(helm, "--set", "draPlugin.enabled=true"))
    labels = with_dra["DaemonSet", "nvidia-dcgm-exporter"]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "kubeletplugin"
    assert with_dra["DeviceClass", "gpu.nvidia.com"]["spec"]["extendedResourceName"] == "nvidia.com/gpu"


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet", "Job"])
def test_pods_of_the_chart_are_as_restricted_as_their_work_allows(kind: str, helm: Helm) -> None:
    (spec,) = [item["spec"]["template"]["spec"] for (of, _), item in objects(template(helm)).items() if of == kind]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec.get("hostNetwork")
    assert spec.get("hostPID", False) == (kind == "DaemonSet")
    (container,) = spec["containers"]
    context = {**spec["securityContext"], **container["securityContext"]}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not context.get("privileged")
    assert context["runAsUser"] == (0 if kind == "DaemonSet" else 65532)
    assert container["resources"]["limits"]["memory"]


def test_openshift_chooses_the_user_of_pods_and_gives_agents_the_folders_of_the_node(helm: Helm) -> None:
    plain = objects(template(helm))
    by_value = objects(template(helm, "--set", "environment.openshift=true"))
    found = objects(template(helm, served=(*SERVED, "security.openshift.io/v1")))
    assert found == by_value
    ((_, binding),) = {*found} - {*plain}
    assert found["RoleBinding", binding]["roleRef"]["name"] == "system:openshift:scc:privileged"
    assert [item["name"] for item in found["RoleBinding", binding]["subjects"]] == ["simgpu-agent"]
    for kind, name in (("Deployment", "nvidia-dcgm-exporter-kwok"), ("Job", "simgpu-cleanup")):
        context = found[kind, name]["spec"]["template"]["spec"]["securityContext"]
        assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_agents_have_the_runtimes_plugin_socket_only_beside_run_ai(helm: Helm) -> None:
    def folders(*options: str) -> set[str]:
        spec = objects(template(helm, *options))["DaemonSet", "nvidia-dcgm-exporter"]["spec"]["template"]["spec"]
        mounts = {item["mountPath"]: item for item in spec["containers"][0]["volumeMounts"]}
        assert {volume["name"] for volume in spec["volumes"]} == {item["name"] for item in mounts.values()}
        return set(mounts)

    plain, runai = folders(), ("--set", "runai.enabled=true")
    assert folders(*runai) - plain == {"/var/run/nri"}
    assert folders(*runai, "--set", "runai.nri=false") == plain


def test_numa_zones_may_be_written_and_removed_wherever_their_type_is_served(helm: Helm) -> None:
    served = (*SERVED, "topology.node.k8s.io/v1alpha2")
    numa = ("--set", "topology.nodePools.p.gpus[0].type=h200", "--set", "topology.nodePools.p.numa.zones=2")

    def verbs(*options: str, served: tuple[str, ...] = served) -> dict[str, list[str]]:
        found = objects(template(helm, *options, served=served))
        return {
            name: rule["verbs"]
            for (kind, name), item in found.items()
            if kind == "ClusterRole"
            for rule in item["rules"]
            if rule["resources"] == ["noderesourcetopologies"]
        }

    assert verbs(*numa, served=SERVED) == {}
    written = ["list", "watch", "create", "patch", "delete"]
    expected = {"simgpu-controller": written, "simgpu-agent": written, "simgpu-cleanup": ["list", "delete"]}
    assert verbs(*numa) == verbs() == expected  # without zones too: what was published before has to be removed


def test_models_of_a_user_are_known_to_controller_and_agents(helm: Helm) -> None:
    found = objects(template(helm, "--set", r"catalog.mine\.yaml.base=h200"))
    assert found["ConfigMap", "simgpu-catalog"]["data"] == {"mine.yaml": "base: h200\n"}
    for kind, name in (("Deployment", "nvidia-dcgm-exporter-kwok"), ("DaemonSet", "nvidia-dcgm-exporter")):
        spec = found[kind, name]["spec"]["template"]["spec"]
        assert "--catalog=/etc/simgpu/catalog" in spec["containers"][0]["args"]
        assert {"name": "catalog", "configMap": {"name": "simgpu-catalog"}} in spec["volumes"]


def test_a_second_release_shares_no_name_with_the_first(helm: Helm) -> None:
    options = ("--set", "fullnameOverride=other", "--set", "runtimeClass.name=other")
    first, second = (objects(template(helm, *more)) for more in ((), options))
    shared = {("DeviceClass", "gpu.nvidia.com"), ("DeviceClass", "mig.nvidia.com")}  # left out where they are there
    common = {*first} & {*second} - shared
    assert {kind for kind, _ in common} == {"ConfigMap"}  # in the release's own namespace:
    assert {name for _, name in common if not name.startswith(vocabulary.PROFILE_PREFIX)} == {vocabulary.TOPOLOGY}


def test_the_pools_label_selects_nodes_for_the_agent(helm: Helm) -> None:
    found = objects(template(helm, "--set", "topology.nodePoolLabelKey=example.com/pool"))
    spec = found["DaemonSet", "nvidia-dcgm-exporter"]["spec"]["template"]["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    selected = [term["matchExpressions"][0]["key"] for term in required["nodeSelectorTerms"]]
    assert selected == ["example.com/pool", vocabulary.AGENT_LABEL, vocabulary.MANAGED_LABEL]
    assert vocabulary.KWOK_NODE in {item["key"] for item in spec["tolerations"]}
    off = objects(template(helm, "--set", "agent.onKwokNodes=false"))
    spec = off["DaemonSet", "nvidia-dcgm-exporter"]["spec"]["template"]["spec"]
    assert vocabulary.KWOK_NODE not in {item["key"] for item in spec["tolerations"]}


def test_monitors_are_made_only_where_their_types_are_served(helm: Helm) -> None:
    with_types, without = (objects(template(helm, served=served)) for served in (SERVED, ()))
    assert {name for kind, name in with_types if kind == "ServiceMonitor"} == {
        "nvidia-dcgm-exporter", "nvidia-dcgm-exporter-kwok",
    }  # fmt: skip
    (endpoint,) = with_types["ServiceMonitor", "nvidia-dcgm-exporter-kwok"]["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert not [name for kind, name in without if kind == "ServiceMonitor"]


def test_dashboards_of_the_identities_in_use_are_there_if_they_are_wanted(helm: Helm, tmp_path: Path) -> None:
    assert not [name for _, name in objects(template(helm)) if "dashboard" in name]
    file = tmp_path / "values.yaml"
    file.write_text("dashboards: {enabled: true, annotations: {grafana_folder: GPUs}}\nagent: {identity: xpum}\n")
    found = objects(template(helm, "--values", str(file)))
    for identity in ("dcgm", "xpum"):
        given = found["ConfigMap", f"simgpu-dashboard-{identity}"]
        assert given["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert given["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
        written = (ROOT / "deploy" / "dashboards" / f"simgpu-{identity}.json").read_text()
        assert json.loads(given["data"][f"simgpu-{identity}.json"]) == json.loads(written)
    assert ("ConfigMap", "simgpu-dashboard-collectd") not in found


def test_a_users_pool_does_not_meet_the_default_one(helm: Helm) -> None:
    found = objects(template(helm, "--set", "topology.nodePools.mine.gpus[0].type=h200"))
    assert [*yaml.safe_load(found["ConfigMap", "topology"]["data"]["topology.yml"])["nodePools"]] == ["mine"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("agnet.enabled=false", "agnet"),
        ("agent.enabeld=false", "enabeld"),
        ("agent.enabled=perhaps", "agent"),
        ("topology.nodePools.default.gpuz=3", "gpuz"),
        ("topology.nodePools.default.gpuCount=100000", "1,?024"),
        ("allocation=nvlink", "allocation"),
        ("draPlugin.enable=true", "enable"),
    ],
)
def test_a_typing_mistake_is_named(given: str, complaint: str, helm: Helm) -> None:
    assert re.search(complaint, template(helm, "--set", given, fails=True))


def test_no_null_breaks_the_render(helm: Helm) -> None:
    document = yaml.safe_load((CHART / "values.yaml").read_text())
    nested = [f"{name}.{key}" for name, inner in document.items() if isinstance(inner, dict) for key in inner]
    plain = objects(template(helm))
    for name in (*document, *schema.FAKE_GPU_OPERATOR, "statusUpdater.runaiIntegration"):
        assert objects(template(helm, "--set", f"{name}=null")) == plain, name
    everything = ",".join(f"{name}=null" for name in nested)
    assert objects(template(helm, "--set", everything)) == plain


def test_the_files_that_are_written_twice_are_the_same() -> None:
    assert (CHART / "files" / "defaults.yaml").read_text() == (CHART / "values.yaml").read_text()
    assert schema.FILE.read_text() == schema.rendered(), "run 'make docs'"
    assert [*schema.unknown_to_the_reader()] == []


def test_values_without_a_meaning_here_are_named_after_the_install(helm: Helm, cluster: Cluster) -> None:
    install = ("install", "gpu-operator", str(CHART), "--dry-run=client", "--kubeconfig", str(cluster.kubeconfig))
    text = helm(*install, *values("fake-gpu-operator-0.2"))
    notes = text.partition("NOTES:")[2]
    assert "computeDomainDraPlugin: ComputeDomains are not simulated yet" in notes
    assert "migFaker" not in notes  # which the file turns off
    assert "statusUpdater" not in notes
    plain = helm(*install).partition("NOTES:")[2]
    assert "ignored" not in plain
    assert "Service nvidia-dcgm-exporter\n" in plain
    assert "Service nvidia-dcgm-exporter\n" not in helm(*install, "--set", "components.exporter=false")


@pytest.mark.parametrize("name", SETS)
async def test_the_api_server_accepts_a_release(
    name: str, helm: Helm, cluster: Cluster, client: Client, namespace: str
) -> None:
    options = ("--namespace", namespace, "--kubeconfig", str(cluster.kubeconfig))
    install = ("install", f"r-{namespace}", str(CHART), *options, "--dry-run=server", *values(name))
    text = await asyncio.to_thread(helm, *install)
    there = {item.metadata.name for item in await client.list(resources.NAMESPACES)}
    assert set(re.findall(r"^  namespace: (\S+)$", text, re.MULTILINE)) <= there  # which a dry run does not check
    assert await client.list(resources.DEPLOYMENTS, namespace=namespace) == []


async def test_a_release_is_upgraded_with_the_values_of_an_older_one(
    helm: Helm, cluster: Cluster, client: Client, namespace: str
) -> None:
    at = ("--namespace", namespace, "--kubeconfig", str(cluster.kubeconfig))
    own = (
        "--set",
        f"fullnameOverride={namespace},runtimeClass.enabled=false,agent.enabled=false,cleanup.enabled=false",
    )
    install = ("install", "simgpu", str(CHART), *at, *own, "--set", "topology.nodePools.mine.gpus[0].type=h200")
    await asyncio.to_thread(helm, *install)
    upgrade = ("upgrade", "simgpu", str(CHART), *at, "--reuse-values", "--set", "controller=null,image=null")
    await asyncio.to_thread(helm, *upgrade)
    found = await client.get(resources.CONFIG_MAPS, "topology", namespace=namespace)
    assert "mine" in found.data["topology.yml"]
    await asyncio.to_thread(helm, "uninstall", "simgpu", *at)
    await eventually(lambda: _gone(client, namespace))


async def _gone(client: Client, namespace: str) -> bool:
    return await client.find(resources.CONFIG_MAPS, "topology", namespace=namespace) is None
