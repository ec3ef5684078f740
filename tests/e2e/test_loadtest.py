"""A load test on a cluster without KWOK: one is installed from an image, tries nothing it may not, and is removed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.image import oci
from simgpu.cli import progress
from simgpu.cluster import lifecycle, processes
from simgpu.vocabulary import KWOK_NAMESPACE, NODE_LEASES_NAMESPACE
from tests.fixtures import accounts, audit, images
from tests.fixtures.audit import Permission
from tests.fixtures.node import Node
from tests.permissions import roles

ROOT = Path(__file__).parent.parent.parent
SIMGPU = Path(sys.executable).parent / "simgpu"
IMAGE = "simgpu.test/kwok:1"
LATER = {Permission("update", "coordination.k8s.io/leases", NODE_LEASES_NAMESPACE)}  # a quarter of a lease
OF_OTHER_STAGES = {
    Permission("create", "events", ""), Permission("patch", "events", ""), Permission("patch", "pods", ""),
}  # fmt: skip


def test_kwok_is_installed_where_there_is_none_and_removed_again(
    services: Node,
    programs: Callable[..., dict[str, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with oci.Layer(tmp_path / "layer", level=1) as layer:
        layer.file("usr/local/bin/kwok", programs("kwok")["kwok"].read_bytes(), 0o755)
    images.write(tmp_path / "kwok.tar", {IMAGE: ["kwok"]}, [layer.blob])
    services.load(tmp_path / "kwok.tar")
    folder, log = services.cluster.kubeconfig.parent, audit.Tail(services.machine.scratch)
    monkeypatch.setenv("XDG_STATE_HOME", str(services.cluster.state_home))
    asyncio.run(processes.stop(folder, only=frozenset({"kwok"})))
    services.kubectl("delete", "crd", "stages.kwok.x-k8s.io")
    try:
        original = (ROOT / "src/simgpu/loadtest/scenarios/kwok-dra/test-config.yaml").read_text()
        config = tmp_path / "config.yaml"
        config.write_text(original.replace("gpusPerNode: 8", f"gpusPerNode: 8\n    kwokImage: {IMAGE}"))
        environ = {
            **os.environ, "KUBECONFIG": str(services.cluster.kubeconfig), "CL2_JOB_RUNNING_TIME_MS": "1000",
        }  # fmt: skip
        command: list[str | Path] = [SIMGPU, "loadtest", config, "--nodes", "2", "--report-dir", tmp_path / "report"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{services.kubectl('get', 'pods', '-A', '-o', 'wide')}"
        assert f"installing {IMAGE} into kwok-system" in done.stderr
        assert "nothing is left" in done.stderr
        kinds = "crd,ns,clusterrole,clusterrolebinding,role,rolebinding,deviceclass,resourceslice,node"
        assert services.kubectl("get", "-A", kinds, "-l", "simgpu.dev/loadtest", "-o", "name") == ""
        allowed = accounts.allowed(roles.of_load_tests()[roles.KWOK])
        acts = audit.acts(log.read(), namespace=KWOK_NAMESPACE)
        used = audit.used(acts, allowed)
        assert [act for act in acts if act.code == 403] == []
        assert used - allowed == set()
        assert allowed - used - LATER == OF_OTHER_STAGES  # of a cluster that has stages already: in a test of its own
    finally:
        asyncio.run(lifecycle.up(lifecycle.UpSettings(name="real", address=services.machine.outside), progress.Plain()))
