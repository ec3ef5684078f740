"""`simgpu exec`: nvidia-smi as pods on fake nodes would see it, from a controller that is served over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from simgpu import errors
from simgpu.app import executing
from simgpu.dashboard import answers, pod_pages
from simgpu.dashboard.serving import Dashboard
from simgpu.dashboard.sources import BoxSource, ClusterFacts, FleetSource
from simgpu.kube import views
from simgpu.machines.fleet import Fleet
from simgpu.machines.health import DeviceFailure
from simgpu.machines.users import PodRef, Range, User
from simgpu.page import layout, mirror
from simgpu.topology import reading
from simgpu.vocabulary import GPU_RESOURCE
from simgpu.web import server
from tests.fixtures import boxes, smi
from tests.fixtures.proxied import api_server

BIN = Path(sys.executable).parent
NODE = "fake-0"
MIG = "{devices: [3], mig-enabled: true, mig-devices: {1g.18gb: 2, 3g.71gb: 1}}"
POOL = f"nodePools: {{p: {{gpus: [{{type: h200, count: 4}}], mig: {{config: [{MIG}]}}}}}}"


class FakeCluster:
    """A controller's part of a cluster: one fake node, with pods on it, and a pod on a real node."""

    def __init__(self) -> None:
        self.fleet = Fleet(seed=1)
        self.pods = {
            name: _pod(name, containers, node=node, phase=phase)
            for name, containers, node, phase in (
                ("train", {"sidecar": 0, "main": 2}, NODE, "Running"),
                ("small", {"main": 1}, NODE, "Running"),
                ("shared", {"main": 1}, NODE, "Running"),
                ("web", {"main": 0}, NODE, "Running"),
                ("done", {"main": 1}, NODE, "Succeeded"),
                ("metal", {"main": 1}, "real-0", "Running"),
            )
        }
        self.node = self.fleet.place(NODE, reading.parse(POOL, boxes.CATALOG).pools["p"])
        ids = self.node.ids
        train, other = _user("train", 80, 100_000), _user("train", 20, 20_000)
        self.fleet.use(self.node, {
            ids[0]: (train,),
            ids[1]: (other, _user("shared", 60, 30_000, share=0.25)),
            ids[2]: (_user("done", 0, 1000),),
            ids[3]: (_user("small", 90, 9_000, part=7),),
        })  # fmt: skip
        self.now = 0.0
        for _ in range(30):
            self.step()

    def step(self) -> None:
        self.now += 1.0
        self.fleet.step(self.now, clock=time.time())

    def source(self) -> FleetSource:
        return FleetSource(lambda: self.fleet, ClusterFacts(pod=lambda pod: self.pods.get(pod.name)))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        dashboard = Dashboard(self.source())
        http = server.HttpServer(dashboard.routes())
        await http.start("127.0.0.1", 0, field="port")
        try:
            yield f"http://{http.address}"
        finally:
            dashboard.close()
            await http.stop()


def _pod(name: str, containers: dict[str, int], *, node: str, phase: str) -> views.Pod:
    limits = {key: {GPU_RESOURCE: str(count)} if count else {} for key, count in containers.items()}
    return views.Pod(
        metadata=views.ObjectMeta(name=name, namespace="team", uid=f"uid-{name}"),
        spec=views.PodSpec(
            tuple(views.Container(key, views.Resources(limits=limit)) for key, limit in limits.items()), node_name=node
        ),
        status=views.PodStatus(phase),
    )


def _user(name: str, load: int, memory: int, *, share: float = 1.0, part: int | None = None) -> User:
    return User(PodRef(name, "team", "main", f"uid-{name}"), Range(load, load), memory, share, part=part)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def run(*words: str, program: str = "simgpu", **environ: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        str(BIN / program), "exec", *words, stdin=asyncio.subprocess.DEVNULL, env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def query(fields: str) -> tuple[str, ...]:
    return ("--", "nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")


async def test_a_fake_pods_nvidia_smi_shows_its_gpus_as_they_are_simulated(cluster: FakeCluster) -> None:
    async with cluster.serving() as url:
        code, text, said = await run("train", "-n", "team", "--url", url, *query("uuid,memory.used,power.draw"))
    assert (code, said) == (0, "")
    machine = cluster.fleet.machine_of(NODE)
    assert machine is not None
    found = [line.split(", ") for line in text.splitlines()]
    assert [row[0] for row in found] == cluster.node.ids[:2]
    assert [float(row[1]) for row in found] == pytest.approx(machine.column("memory_used")[:2], abs=1)
    assert [float(row[2]) for row in found] == pytest.approx(machine.column("power_average")[:2], abs=0.01)


async def test_its_process_is_listed_with_what_it_uses_and_nobody_elses(cluster: FakeCluster) -> None:
    async with cluster.serving() as url:
        apps = ("--", "nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader,nounits")
        assert (await run("train", "-n", "team", "--url", url, *apps))[1] == "1, main, 100000\n1, main, 20000\n"
        _, text, _ = await run("train", "-n", "team", "--url", url, "--", "nvidia-smi", "pmon", "-c", "1", "-s", "um")
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        _, table, _ = await run("pod/small", "-n", "team", "--url", url, "--", "nvidia-smi")
    assert [line[:3] for line in lines] == [["0", "1", "C"], ["1", "1", "C"]]
    assert [line[-1] for line in lines] == ["main", "main"]
    assert int(lines[0][3]) == pytest.approx(80, abs=2)
    assert int(lines[1][3]) == pytest.approx(20, abs=2)  # of the 80 that two pods together use
    assert re.search(r"\|    0    7    0 +1 +C +main +9000MiB \|", table)


async def test_a_pod_with_a_mig_instance_sees_it_alone(cluster: FakeCluster) -> None:
    async with cluster.serving() as url:
        code, text, _ = await run("small", "-n", "team", "--url", url, "--", "nvidia-smi", "-L")
    assert code == 0
    assert [line.split(" (")[0].split("Device")[0].strip() for line in text.splitlines()] == [
        "GPU 0: NVIDIA H200", "MIG 1g.18gb",
    ]  # fmt: skip


async def test_a_lost_gpu_is_lost_in_the_pod_too(cluster: FakeCluster) -> None:
    cluster.fleet.fail(cluster.node, {0: DeviceFailure.LOST})
    cluster.step()
    async with cluster.serving() as url:
        code, text, _ = await run("train", "-n", "team", "--url", url, "--", "nvidia-smi", "-i", "0")
    assert code == 15
    assert "GPU is lost" in text


async def test_it_follows_the_simulation_while_it_runs_and_ends_with_the_pod(cluster: FakeCluster) -> None:
    async with cluster.serving() as url:
        words = ("train", "-n", "team", "--url", url, "--", "nvidia-smi", "--query-gpu=uuid,power.draw",
                 "--format=csv,noheader", "-lms", "100")  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            str(BIN / "simgpu"), "exec", *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        seen: set[bytes] = set()
        async with asyncio.timeout(30):
            while len(seen) < 6:  # two GPUs, whose power changes with each step
                seen.add(await process.stdout.readline())
                cluster.step()
        cluster.pods["train"] = msgspec.structs.replace(cluster.pods["train"], status=views.PodStatus("Failed"))
        _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert "pod team/train has ended: pod team/train does not run: it is Failed" in said.decode()


@pytest.mark.parametrize(
    ("pod", "command", "code", "message"),
    [
        ("nobody", "nvidia-smi", 1, "there is no pod team/nobody on a node"),
        ("web", "nvidia-smi", 126, "nvidia-smi: pod team/web has no GPUs"),
        ("done", "nvidia-smi", 126, "nvidia-smi: pod team/done does not run: it is Succeeded"),
        ("metal", "nvidia-smi", 126, "is on node real-0, which is no fake one of ours: use kubectl exec"),
        ("train", "bash", 127, "bash: pods on fake nodes run nothing"),
    ],
)
async def test_who_has_nothing_to_show_gets_a_reason_and_an_exit_code(
    pod: str, command: str, code: int, message: str, cluster: FakeCluster
) -> None:
    async with cluster.serving() as url:
        found, text, said = await run(pod, "-n", "team", "--url", url, "--", command)
    assert (found, text) == (code, "")
    assert message in said
    assert "Traceback" not in said


async def test_a_container_is_chosen_by_name_or_by_its_gpus(cluster: FakeCluster) -> None:
    async with cluster.serving() as url:
        asked = ("train", "-n", "team", "--url", url)
        assert (await run(*asked, "-c", "main", "--", "nvidia-smi", "-L"))[0] == 0
        code, _, said = await run(*asked, "-c", "sidecar", "--", "nvidia-smi")
        assert (code, "container sidecar of pod team/train has no GPUs" in said) == (126, True)
        code, _, said = await run(*asked, "-c", "x", "--", "nvidia-smi")
        assert (code, "has no container x; it has: sidecar, main" in said) == (1, True)


async def test_kubectls_plugin_asks_the_cluster_that_kubectl_uses(cluster: FakeCluster, tmp_path: Path) -> None:
    async with cluster.serving() as url, api_server(url, tmp_path) as file:
        found = file.read_text().replace('"user": "c"', '"user": "c", "namespace": "team"')
        file.write_text(found)
        words = ("train", "--", "nvidia-smi", "-L")
        code, text, said = await run(*words, program="kubectl-simgpu", KUBECONFIG=str(file))
        assert (code, said, len(text.splitlines())) == (0, "", 2)
        code, again, _ = await run("train", "--kubeconfig", str(file), "--", "nvidia-smi", "-L")
        assert (code, again) == (0, text)


async def test_nothing_can_be_set_from_outside(cluster: FakeCluster) -> None:
    async with cluster.serving() as url:
        code, text, _ = await run("train", "-n", "team", "--url", url, "--", "nvidia-smi", "-pl", "400")
    assert code == 4
    assert "permission" in text.lower()


def test_pods_of_an_agents_node_are_on_a_real_node() -> None:
    made = boxes.busy("h200")
    pod = _pod("train", {"main": 1}, node="sim-0", phase="Running")
    source = BoxSource(lambda: made, role="agent", facts=ClusterFacts(pod=lambda _pod: pod))
    assert pod_pages.of_container(source, "team", "train", "").state == "real"


def test_a_container_whose_mig_instance_is_gone_has_no_gpus(cluster: FakeCluster) -> None:
    cluster.fleet.use(cluster.node, {cluster.node.ids[3]: (_user("small", 90, 9_000, part=99),)})
    cluster.step()
    found = pod_pages.of_container(cluster.source(), "team", "small", "")
    assert (found.state, found.node, found.pages) == ("empty", NODE, [])
    assert found.message == "container main of pod team/small has no GPUs: its MIG instances are gone"


# What a server may send.


def _sent(cluster: FakeCluster) -> list[tuple[str, bytes]]:
    found: answers.ContainerGpus = pod_pages.of_container(cluster.source(), "team", "train", "")
    return [(page.id, base64.b64decode(page.page)) for page in found.pages]


def test_pages_of_older_and_newer_versions_are_read(cluster: FakeCluster, tmp_path: Path) -> None:
    (first, page), (second, other) = _sent(cluster)
    shown = mirror.MirroredPages(tmp_path, stale=10.0)
    older = layout.DTYPE.fields["hangs"][1] if layout.DTYPE.fields else 0
    shown.show([(first, page[:older]), (second, other + bytes(512))], clock=1.0, monotonic_ns=time.monotonic_ns())
    assert len(smi.say(tmp_path, "-L").splitlines()) == 2


def test_only_gpus_of_the_last_answer_are_kept(cluster: FakeCluster, tmp_path: Path) -> None:
    (first, page), (second, other) = _sent(cluster)
    shown = mirror.MirroredPages(tmp_path, stale=10.0)
    shown.show([(first, page), (second, other)], clock=1.0, monotonic_ns=time.monotonic_ns())
    opened = (tmp_path / second / "page").open("rb")
    shown.show([(first, page)], clock=2.0, monotonic_ns=time.monotonic_ns())
    assert smi.say(tmp_path, "-L").count("UUID") == 1
    with opened:
        assert np.frombuffer(opened.read(), layout.DTYPE, count=1)["stale_ns"][0] == 0, "lost to who has it open"

    for number in range(20):
        shown.show([(f"GPU-{number}", page)], clock=3.0, monotonic_ns=time.monotonic_ns())
    assert [item.name for item in tmp_path.iterdir()] == ["GPU-19"]
    assert sum(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("../../x", b""),
        ("GPU-1", b"rubbish"),
        ("GPU-1", bytes(mirror.MAX_BYTES + 1)),
        ("GPU-" + "1" * 100, b""),
    ],
)
def test_invalid_pages_are_rejected(name: str, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(errors.SimgpuError, match="server"):
        mirror.MirroredPages(tmp_path / "gpus", stale=1.0).show([(name, content)], clock=1.0, monotonic_ns=1)
    assert not list(tmp_path.glob("gpus/*/page"))


@pytest.mark.parametrize("changed", [{"time": -1.0}, {"time": 1e300}, {"pages": [answers.GpuPage("GPU-1", "\u00e9")]}])
def test_an_answer_without_a_time_or_with_pages_that_are_none_is_rejected(
    changed: dict[str, Any], cluster: FakeCluster, tmp_path: Path
) -> None:
    found = pod_pages.of_container(cluster.source(), "team", "train", "")
    shown = mirror.MirroredPages(tmp_path, stale=10.0)
    with pytest.raises(errors.SimgpuError, match="the server sent an invalid"):
        executing._show(shown, msgspec.structs.replace(found, **changed))


def test_texts_of_a_page_cannot_drive_a_terminal(cluster: FakeCluster, tmp_path: Path) -> None:
    name, page = _sent(cluster)[0]
    shown = mirror.MirroredPages(tmp_path, stale=10.0)
    shown.show(
        [(name, page.replace(b"NVIDIA H200", b"\x1b[31m\x07\xffxx"))], clock=1.0, monotonic_ns=time.monotonic_ns()
    )
    assert "?[31m??xx" in smi.say(tmp_path, "-L")
