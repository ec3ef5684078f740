"""`simgpu up`, `down` and their company, run as commands, each test in a state folder of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simgpu.cluster import binaries, components, control_plane, lifecycle, processes, progress, record
from tests.fixtures.cluster import SIMGPU, simgpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def lasting_home(tmp_path_factory: pytest.TempPathFactory, programs: Callable[..., dict[str, Path]]) -> Iterator[Path]:
    """The state folder of a cluster that tests share which change it and can go on from whatever another left."""
    programs(*binaries.LOCAL_CLUSTER)
    home = tmp_path_factory.mktemp("lasting")
    yield home
    simgpu("down", state_home=home)


@pytest.fixture
def lasting(lasting_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared cluster with one node of eight H200, as a new one would be; the folder of its state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(lasting_home))
    simgpu("up", "--nodes", "1", "--gpus", "h200:8", state_home=lasting_home)
    return lasting_home


@pytest.fixture
def home(tmp_path: Path, programs: Callable[..., dict[str, Path]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder; whatever a failed test leaves running in it is ended."""
    programs(*binaries.LOCAL_CLUSTER)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield tmp_path
    for name in ("simgpu", "a", "left", "right"):
        asyncio.run(processes.stop(tmp_path / "simgpu" / "clusters" / name))


def alive(home: Path, name: str) -> set[str]:
    return {process.component for process in processes.running(home / "simgpu" / "clusters" / name)}


def status(home: Path, name: str, *, check: int | None = 0) -> dict[str, object]:
    answer: dict[str, object] = json.loads(
        simgpu("status", "--name", name, "-o", "json", state_home=home, check=check).stdout
    )
    return answer


def leftovers(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.name != ".unfinished"]


def test_up_status_kubeconfig_logs_and_down(home: Path) -> None:
    made = simgpu("up", "--name", "a", "--nodes", "2", "--gpus", "a100:4", state_home=home)
    assert "created cluster a" in made.stdout
    assert "simgpu down --name a" in made.stdout
    seen = status(home, "a")
    assert seen["ready"] is True
    assert (seen["name"], seen["nodes"], seen["gpus"], seen["pods"]) == ("a", 2, 8, 0)
    assert str(seen["endpoints"]["apiserver"]).startswith("https://127.0.0.1:")  # type: ignore[index]
    config = simgpu("kubeconfig", "--name", "a", state_home=home).stdout.strip()
    assert config == seen["kubeconfig"]
    assert Path(config).stat().st_mode & 0o777 == 0o600
    nodes = simgpu("kubectl", "--name", "a", "get", "nodes", "-o", "name", state_home=home).stdout.split()
    assert nodes == ["node/kwok-gpu-node-1", "node/kwok-gpu-node-2"]
    assert "v1.36" in simgpu("kubectl", "--name", "a", "version", state_home=home).stdout
    assert "==> kube-apiserver <==" in simgpu("logs", "--name", "a", state_home=home).stdout
    wrong = simgpu("logs", "--name", "a", "kubelet", state_home=home, check=2)
    assert "kube-apiserver" in wrong.stderr
    assert "\na " in simgpu("status", "--all", state_home=home).stdout
    again = simgpu("up", "--name", "a", state_home=home)
    assert "up already; nothing to do" in again.stdout
    simgpu("down", "--name", "a", state_home=home)
    assert alive(home, "a") == set()
    assert leftovers(home) == []
    assert "nothing to do" in simgpu("down", "--name", "a", state_home=home).stdout
    assert "no cluster named a" in simgpu("status", "--name", "a", state_home=home, check=1).stderr


def test_the_users_own_kubeconfig_is_not_touched(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    user = tmp_path_factory.mktemp("user")
    own = user / "own-config"
    own.write_text("apiVersion: v1\nkind: Config\n")
    environ = {"HOME": str(user), "KUBECONFIG": str(own), "XDG_CACHE_HOME": str(_cache_home())}
    simgpu("up", "--nodes", "1", "--no-wait", state_home=home, environ=environ)
    simgpu("down", state_home=home, environ=environ)
    assert own.read_text() == "apiVersion: v1\nkind: Config\n"
    assert [path.name for path in user.rglob("*")] == ["own-config"]


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def test_two_clusters_side_by_side_do_not_meet(home: Path) -> None:
    starting = [
        subprocess.Popen(
            [SIMGPU, "up", "--name", name, "--nodes", nodes, "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, nodes in (("left", "1"), ("right", "2"))
    ]
    try:
        for process in starting:
            _, complaints = process.communicate(timeout=240)
            assert process.returncode == 0, complaints
    finally:
        for process in starting:
            process.kill()
    left, right = status(home, "left"), status(home, "right")
    assert (left["nodes"], right["nodes"]) == (1, 2)
    assert left["endpoints"] != right["endpoints"]
    simgpu("down", "--name", "left", state_home=home)
    assert status(home, "right")["ready"] is True
    simgpu("down", "--name", "right", state_home=home)
    assert leftovers(home) == []


def test_more_and_fewer_nodes_and_other_gpus_are_applied(lasting: Path) -> None:
    grown = simgpu("up", "--nodes", "5", "--gpus", "t4:2", state_home=lasting)
    assert "created 4 nodes" in grown.stdout
    assert "h200:8 -> t4:2" in grown.stdout
    kept = simgpu("up", state_home=lasting)
    assert "nothing to do" in kept.stdout
    shrunk = simgpu("up", "--nodes", "1", state_home=lasting)
    assert "deleted 4 nodes" in shrunk.stdout
    assert status(lasting, "simgpu")["nodes"] == 1


def test_after_kill_9_of_each_component_up_repairs_and_down_cleans(home: Path) -> None:
    simgpu("up", "--nodes", "1", state_home=home)
    simgpu("kubectl", "create", "configmap", "keepsake", state_home=home)
    folder = home / "simgpu" / "clusters" / "simgpu"
    for component in binaries.CONTROL_PLANE:
        asyncio.run(processes.stop(folder, only=frozenset({component})))
        assert status(home, "simgpu", check=1)["ready"] is False
        repaired = simgpu("up", state_home=home)
        assert f"started {component}" in repaired.stdout
        assert status(home, "simgpu")["ready"] is True
    assert "keepsake" in simgpu("kubectl", "get", "configmaps", state_home=home).stdout
    asyncio.run(processes.stop(folder, only=frozenset({"etcd", "kwok"})))
    simgpu("down", state_home=home)
    assert alive(home, "simgpu") == set()
    assert leftovers(home) == []


def test_a_restarted_kwok_takes_the_nodes_over_at_once(lasting: Path) -> None:
    """It has new leases: those of the KWOK before it, which it would wait for, are gone."""

    def leases() -> dict[str, tuple[str, str]]:
        listed = simgpu("kubectl", "get", "leases", "-n", "kube-node-lease", "-o", "json", state_home=lasting).stdout
        found = {item["metadata"]["name"]: item for item in json.loads(listed)["items"]}
        return {name: (item["metadata"]["uid"], item["spec"]["holderIdentity"]) for name, item in found.items()}

    before = leases()
    asyncio.run(processes.stop(lasting / "simgpu" / "clusters" / "simgpu", only=frozenset({"kwok"})))
    simgpu("up", state_home=lasting)
    while not all(name in (now := leases()) and now[name][1] != holder for name, (_, holder) in before.items()):
        time.sleep(0.2)  # ended by the test's time limit
    assert before
    assert {name: now[name][0] != uid for name, (uid, _) in before.items()} == dict.fromkeys(before, True)


@pytest.mark.parametrize("moment", ["etcd", "kube-apiserver", "kube-scheduler", "kwok"])
def test_up_after_a_killed_up_repairs(home: Path, moment: str) -> None:
    process = _interrupt_up(home, moment, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert alive(home, "simgpu")
    assert "is up" in simgpu("up", "--nodes", "2", state_home=home).stdout
    assert status(home, "simgpu")["ready"] is True
    simgpu("down", state_home=home)
    assert leftovers(home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_up_leaves_nothing_behind(home: Path, number: signal.Signals) -> None:
    process = _interrupt_up(home, "kube-apiserver", number)
    assert process.returncode == 130
    assert alive(home, "simgpu") == set()
    assert leftovers(home) == []


def test_an_impatient_user_who_interrupts_many_times_leaves_nothing_behind(home: Path) -> None:
    process = _interrupt_up(home, "kube-apiserver", signal.SIGINT, times=20)
    assert process.returncode in (130, -signal.SIGINT)  # the last ones reach a process that has cleaned up already
    assert alive(home, "simgpu") == set()
    assert leftovers(home) == []


def test_interrupting_the_repair_of_a_cluster_that_never_was_leaves_nothing_behind(home: Path) -> None:
    _interrupt_up(home, "etcd", signal.SIGKILL)
    assert alive(home, "simgpu")
    process = _interrupt_up(home, "kube-apiserver", signal.SIGINT)
    assert process.returncode == 130
    assert alive(home, "simgpu") == set()
    assert leftovers(home) == []


def _interrupt_up(home: Path, moment: str, number: signal.Signals, times: int = 1) -> subprocess.Popen[bytes]:
    """Start `up` and signal it as soon as a component runs."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([SIMGPU, "up", "--nodes", "2"], stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 450  # `up` has time limits of its own
        while moment not in alive(home, "simgpu"):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                code = process.wait()
                output.seek(0)
                pytest.fail(f"{moment} did not start; up ended with {code}: {output.read().decode()}")
            time.sleep(0.005)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.005)
    process.wait(timeout=60)
    return process


def test_down_finds_the_processes_even_when_the_folder_is_gone(home: Path) -> None:
    simgpu("up", "--nodes", "1", "--no-wait", state_home=home)
    record.Folder("simgpu").remove()
    assert alive(home, "simgpu")
    simgpu("down", state_home=home)
    assert alive(home, "simgpu") == set()
    assert leftovers(home) == []


@pytest.mark.parametrize("listener", record.PORTS)
def test_a_port_that_somebody_took_while_its_component_was_down_is_given_up(lasting: Path, listener: str) -> None:
    folder = record.Folder("simgpu")
    known = folder.load()
    assert known is not None
    component = next(name for name, names in control_plane._LISTENERS.items() if listener in names)
    asyncio.run(processes.stop(folder.path, only=frozenset({component})))
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", known.ports[listener]))
        squatter.listen()
        simgpu("up", state_home=lasting)
        assert status(lasting, "simgpu")["ready"] is True
    moved = folder.load()
    assert moved is not None
    assert {name for name, port in moved.ports.items() if port != known.ports[name]} == {listener}


def test_a_port_of_the_users_choice_is_kept_through_repairs(home: Path) -> None:
    port = record.choose_ports("127.0.0.1", ["x"], taken=set(), chance=random.Random())["x"]
    simgpu("up", "--nodes", "1", "--port", str(port), state_home=home)
    asyncio.run(processes.stop(record.Folder("simgpu").path, only=frozenset({"kwok"})))
    simgpu("up", "--port", str(port), state_home=home)
    assert status(home, "simgpu")["endpoints"]["apiserver"] == f"https://127.0.0.1:{port}"  # type: ignore[index]
    assert "'simgpu down' it first" in simgpu("up", "--port", str(port + 1), state_home=home, check=2).stderr
    simgpu("down", state_home=home)


def test_what_a_user_wrote_into_the_topology_stays_and_a_broken_one_is_named(lasting: Path) -> None:
    kubectl = ("kubectl", "patch", "configmap", "topology", "-n", "gpu-operator", "--type=merge", "-p")
    own = {"data": {"topology.yml": "nodePools: {default: {gpuCount: 2, gpuProduct: Own, gpuMemory: 1000}}"}}
    simgpu(*kubectl, json.dumps(own), state_home=lasting)
    simgpu("up", state_home=lasting)
    assert "Own" in simgpu("kubectl", "get", "configmaps", "-A", "-o", "yaml", state_home=lasting).stdout
    for broken in ("nodePools: [", "nodePools: 7"):
        simgpu(*kubectl, json.dumps({"data": {"topology.yml": broken}}), state_home=lasting)
        failed = simgpu("up", state_home=lasting, check=1)
        assert "ConfigMap gpu-operator/topology, topology.yml" in failed.stderr
        assert "Traceback" not in failed.stderr
    simgpu(*kubectl, json.dumps({"data": {"topology.yml": "nodePools:"}}), state_home=lasting)
    simgpu("up", state_home=lasting)
    assert status(lasting, "simgpu")["ready"] is True


async def test_a_component_whose_settings_changed_is_started_anew(
    lasting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await lifecycle.up(lifecycle.UpSettings(nodes=2, wait=False), progress.Silent())).changes == [
        "created 1 nodes"
    ]
    monkeypatch.setattr(components, "lease_seconds", lambda _nodes: 80)  # as if there were many: leases last longer
    grown = await lifecycle.up(lifecycle.UpSettings(wait=False), progress.Silent())
    assert set(grown.changes) == {"started kube-controller-manager", "started kwok"}
    assert status(lasting, "simgpu")["nodes"] == 2


def test_a_node_of_somebody_else_does_not_make_the_cluster_unready_and_its_end_is_watched(lasting: Path) -> None:
    foreign = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}}
    manifest = lasting / "foreign.json"
    manifest.write_text(json.dumps(foreign))
    simgpu("kubectl", "apply", "-f", str(manifest), state_home=lasting)
    seen = status(lasting, "simgpu")
    assert (seen["ready"], seen["nodes"], seen["nodesReady"]) == (True, 2, 1)
    environment = {**os.environ, "XDG_STATE_HOME": str(lasting)}
    watch = [SIMGPU, "status", "--watch", "-o", "json"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["nodes"] == 2
        simgpu("kubectl", "delete", "node", "foreign", state_home=lasting)
        seen_nodes = (json.loads(line)["nodes"] for line in watching.stdout)
        assert next(nodes for nodes in seen_nodes if nodes != 2) == 1  # other changes have lines too
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=20) == 0


def test_a_half_made_cluster_shows_as_broken_among_the_others(home: Path) -> None:
    (home / "simgpu" / "clusters" / "half").mkdir(parents=True)
    listed = simgpu("status", "--all", state_home=home, check=1)
    assert "half" in listed.stdout
    assert "broken" in listed.stdout
    simgpu("down", "--name", "half", state_home=home)
    assert "No clusters" in simgpu("status", "--all", state_home=home).stdout


def test_a_taken_port_is_refused_by_name_and_nothing_is_started(home: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        refused = simgpu("up", "--port", str(port), state_home=home, check=2)
    assert f"--port: {port} is in use" in refused.stderr
    assert leftovers(home) == []


def test_a_component_that_cannot_start_is_explained_by_its_own_words(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bin_dir = tmp_path_factory.mktemp("bin")
    fake = bin_dir / "etcd"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "etcd Version: 3.6.0"; exit 0; }\necho out of luck; exit 3\n'
    )
    fake.chmod(0o755)
    failed = simgpu("up", "--bin-dir", str(bin_dir), state_home=home, check=1)
    assert "etcd ended" in failed.stderr
    assert "out of luck" in failed.stderr
    assert leftovers(home) == []


def test_a_component_that_ends_before_it_is_ready_is_started_again(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bin_dir = tmp_path_factory.mktemp("bin")
    etcd = simgpu("tools", "etcd", state_home=home).stdout.strip()
    once = bin_dir / "etcd"
    once.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {etcd} --version\n'
        f'mkdir {bin_dir}/ended 2>/dev/null && exit 3\nexec {etcd} "$@"\n'
    )
    once.chmod(0o755)
    made = simgpu("up", "--bin-dir", str(bin_dir), "--nodes", "1", "--no-wait", state_home=home)
    assert "etcd ended (exit code 3); it is started again" in " ".join(made.stderr.split())
    assert (bin_dir / "ended").is_dir()
    assert "etcd" in alive(home, "simgpu")


SERVE = """
import http.server, sys
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


async def test_roles_are_started_repaired_and_stopped_with_the_cluster(home: Path) -> None:
    role = components.Role(
        "role",
        (sys.executable, "-c", SERVE, "{port:metrics}", "{kubeconfig}"),
        ports=("metrics",),
        health="http://127.0.0.1:{port:metrics}/",
        endpoints={"metrics": "http://127.0.0.1:{port:metrics}/metrics"},
    )
    quiet = progress.Silent()
    made = await lifecycle.up(lifecycle.UpSettings(nodes=1, wait=False), quiet, [role])  # this role brings no GPUs
    known = record.Folder("simgpu").load()
    assert known is not None
    assert made.status.endpoints["metrics"] == f"http://127.0.0.1:{known.ports['metrics']}/metrics"
    assert made.status.components["role"] == "running"
    folder = record.Folder("simgpu")
    await processes.stop(folder.path, only=frozenset({"role"}))
    assert not (await lifecycle.status("simgpu", [role])).ready
    again = await lifecycle.up(lifecycle.UpSettings(wait=False), quiet, [role])
    assert again.changes == ["started role"]
    assert again.status.endpoints == made.status.endpoints
    await lifecycle.down("simgpu", quiet)
    assert alive(home, "simgpu") == set()


async def test_a_role_that_ends_at_once_is_an_error_with_its_own_words(home: Path) -> None:
    role = components.Role("role", (sys.executable, "-c", "print('no luck')"), health="http://127.0.0.1:9/")
    with pytest.raises(control_plane.ComponentError, match="no luck"):
        await lifecycle.up(lifecycle.UpSettings(nodes=1), progress.Silent(), [role])
    assert leftovers(home) == []


async def test_a_role_that_cannot_start_is_an_error_and_leaves_nothing(home: Path) -> None:
    role = components.Role("role", (str(home / "no-such-program"),))
    with pytest.raises(Exception, match="no-such-program"):
        await lifecycle.up(lifecycle.UpSettings(nodes=1), progress.Silent(), [role])
    assert leftovers(home) == []


def test_the_sample_workload_runs(home: Path) -> None:
    made = simgpu("up", "--sample", state_home=home)
    assert "get pods -n sample" in made.stdout
    assert "nothing to do" in simgpu("up", "--sample", state_home=home).stdout
    deadline = time.monotonic() + 60
    while True:
        shown = simgpu("kubectl", "get", "pods", "-n", "sample", "--no-headers", state_home=home).stdout
        if shown.count("Running") == 6:
            break
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    command = ("exec", shown.split()[0], "-n", "sample", "--", "nvidia-smi", "-L")
    while (seen := simgpu(*command, state_home=home, check=None)).returncode:
        assert "has no GPUs" in seen.stderr  # they are assigned a moment after the pod runs
        assert time.monotonic() < deadline, seen.stderr
        time.sleep(0.2)
    with_plugin = {"PATH": f"{Path(SIMGPU).parent}{os.pathsep}{os.environ['PATH']}"}
    assert simgpu("kubectl", "simgpu", *command, state_home=home, environ=with_plugin).stdout == seen.stdout
    assert seen.stdout.startswith("GPU 0: NVIDIA ")
    simgpu("down", state_home=home)
