"""Pages over HTTP, with Prometheus' own programs as readers."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simgpu.identities import identity
from tests.fixtures import boxes, debian, nvml
from tests.fixtures.exporters import Exporter
from tests.fixtures.prometheus import Prometheus

# What promtool finds in the real exporters' own names, and why it stays.
_COUNTERS = "some fields are counters by type only, some only by name"
_UNITS = "fields have the vendor's units"
LINT = {
    "dcgm": {
        'counter metrics should have "_total" suffix': "DCGM's fields have no such suffix before 4.9",
        'non-counter metrics should not have "_total" suffix': "NVLINK_BANDWIDTH_TOTAL is DCGM's name",
        "snake_case": "DCGM's labels are gpu, UUID, modelName, Hostname",
        "metric names should not contain abbreviated units": _UNITS,
        "metric name should not include type": "PCIE_REPLAY_COUNTER is DCGM's name",
    },
    "nvidia-smi": {
        "non-counter metrics should not have": _COUNTERS,
        '"_count" suffix': "the query field is called count",
        "metric name should not include type": "histogram is in the query fields' names",
        "abbreviated units": _UNITS,
    },
    "xpum": {"abbreviated units": _UNITS},
    "collectd": {"abbreviated units": _UNITS},
    "amd": {
        "non-counter metrics should not have": "all of AMD's families are gauges, totals too",
        '"_count" suffix': "AMD's names",
        "metric name should not include type": "AMD's names",
        "abbreviated units": _UNITS,
    },
    "gaudi": {
        '"_count" suffix': "habanalabs_pcie_replay_count is its name",
        "snake_case": "habanalabs_power_mW and the labels Serial and UUID are its names",
        "abbreviated units": _UNITS,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", identity.names())
def test_promtool_finds_nothing_that_is_not_the_exporters_own(name: str, promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"], input=boxes.page(name), capture_output=True, text=True, check=False
    )
    known = LINT.get(name.split("-4", maxsplit=1)[0], {})
    findings = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert [line for line in findings if not any(reason in line for reason in known)] == []


@pytest.fixture(scope="session")
def promtool() -> Path:
    return debian.program("prometheus", "usr/bin/promtool")


@pytest.fixture
def exporter() -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(*arguments: str) -> Exporter:
        started.append(Exporter(*arguments))
        return started[-1]

    yield start
    for item in started:
        if item.process.poll() is None:
            item.stop()


@pytest.mark.parametrize("name", identity.names())
def test_prometheus_stores_the_names_that_the_real_exporters_have(
    name: str, exporter: Callable[..., Exporter], prometheus: Callable[..., Prometheus], tmp_path: Path
) -> None:
    config, load, model = tmp_path / "box.yaml", tmp_path / "load.json", boxes.OWN[name]
    divided = [{"type": model, "mig": ["1g.18gb"]}, {"type": "rtx-a6000"}] if model == "h200" else []
    config.write_text(json.dumps({"gpus": [{"type": model, "count": 8}, *divided]}))
    hangs = {"Func": "constant", "Min": 1, "Unit": "absolute", "Period": 1}
    step = {"Load": 50, "Metrics": {"hangs": hangs}}
    load.write_text(json.dumps({"Name": "w", "Profile": [step], "Pod": {"Name": "train-0"}}))
    running = exporter("--config", str(config), "--base-workload", str(load), "--identity", name)
    server = prometheus(running.target, path="/metrics")
    expected = {family.name for family in identity.load(name).families}
    for item in sorted(expected):
        server.eventually(item)
    stored = set(server.get("/api/v1/label/__name__/values"))
    assert {item for item in stored if item != "up" and not item.startswith("scrape_")} == expected


def test_a_page_is_text_whatever_is_asked_for_and_compressed_if_that_is_accepted(
    exporter: Callable[..., Exporter],
) -> None:
    running = exporter("--count", "1")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    status, headers, body = running.get("/metrics", Accept=accept)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"# EOF" not in body
    _, headers, packed = running.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed).startswith(b"# HELP DCGM_FI_DEV_SM_CLOCK")


def test_scrapes_change_nothing_and_those_of_one_step_see_the_same(exporter: Callable[..., Exporter]) -> None:
    running = exporter("--count", "3", "--interval", "600", "--base-workload", "examples/11-load/load.yaml")
    pages = {running.get("/metrics")[2] for _ in range(20)}
    assert len(pages) == 1


def test_large_pages_are_streamed_and_whole(exporter: Callable[..., Exporter]) -> None:
    running = exporter("--count", "3000", "--interval", "600")
    status, headers, body = running.get("/metrics")
    assert (status, headers.get("Content-Length")) == (200, None)
    assert body.count(b"DCGM_FI_DEV_GPU_UTIL{") == 3000
    _, headers, packed = running.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed) == body


def test_several_models_in_one_box_and_the_other_views(exporter: Callable[..., Exporter], tmp_path: Path) -> None:
    config = tmp_path / "box.yaml"
    config.write_text(
        "gpus: [{type: h200, count: 2, labels: {rack: r12}}, {type: Tesla-K80, memory: 12GB, labels: {zone: a}}, "
        "{type: NVIDIA X1, memory: 10GiB}]"
    )
    running = exporter("--config", str(config), "--hostname", "box")
    devices = running.json("/api/v1/devices")
    assert [device["product"] for device in devices] == ["NVIDIA H200", "NVIDIA H200", "Tesla-K80", "NVIDIA X1"]
    assert [device["memory_total_mib"] for device in devices] == [143771, 143771, 11444, 10240]
    assert running.json("/api/v1/workloads") == []
    assert running.get("/healthz")[0] == 200
    assert running.get("/readyz")[0] == 200
    assert running.get("/nothing")[0] == 404
    page = running.get("/metrics")[2].decode()
    assert set(re.findall('modelName="(.*?)"', page)) == {"NVIDIA H200", "Tesla-K80", "NVIDIA X1"}
    assert [device["labels"] for device in devices] == [{"rack": "r12"}, {"rack": "r12"}, {"zone": "a"}, {}]
    assert len(re.findall(r'DCGM_FI_DEV_GPU_UTIL\{gpu="[01]",.*rack="r12"\} 0', page)) == 2
    assert re.search(r'DCGM_FI_DEV_GPU_UTIL\{gpu="2",.*zone="a"\} 0', page)
    assert running.stop() == 0


def test_time_goes_on_without_scrapes(exporter: Callable[..., Exporter]) -> None:
    running = exporter("--count", "1", "--interval", "0.05")
    first = int(re.findall(r"TOTAL_ENERGY_CONSUMPTION\{.* (\d+)", running.get("/metrics")[2].decode())[0])
    deadline, later = time.monotonic() + 20, first
    while time.monotonic() < deadline:
        later = int(re.findall(r"TOTAL_ENERGY_CONSUMPTION\{.* (\d+)", running.get("/metrics")[2].decode())[0])
        if later > first + 20_000:  # 20 J at idle take a quarter of a second
            return
    raise AssertionError((first, later))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "h300"], "--model: no GPU model 'h300'"),
        (["--identity", "nagios"], "--identity: no identity 'nagios'; there are: amd"),
        (["--listen", "here"], "--listen: 'here': must be HOST:PORT"),
        (["--config", "/no/such/file"], "/no/such/file: no such file"),
        (["--base-workload", "/no/such/file"], "/no/such/file: no such file"),
        (["--model", "h200", "--config", "x"], "--config: cannot be combined with --model or --count"),
        (["--interval", "0"], "--interval"),
    ],
)
def test_bad_input_is_named_and_ends_with_2(arguments: list[str], says: str) -> None:
    command = [str(Path(sys.executable).parent / "simgpu"), "exporter", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert says in done.stderr


def workload(*arguments: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).parent / "simgpu"), "workload", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_workload_runs_on_the_devices_it_finds_and_ends_as_it_should(
    exporter: Callable[..., Exporter], tmp_path: Path
) -> None:
    socket, files = tmp_path / "s", tmp_path / "dev"
    running = exporter("--count", "2", "--socket", str(socket), "--device-files", str(files), "--interval", "0.1")
    assert sorted(path.name for path in files.iterdir()) == ["nvidia0", "nvidia1"]
    common = ("--socket", str(socket), "--devices", f"{files}/nvidia*")
    done = workload(*common, "--activity", "60:0:1", "--pod", "ml/job-0/main")
    deadline = time.monotonic() + 10
    while 'pod="job-0"' not in running.get("/metrics")[2].decode():
        assert time.monotonic() < deadline
    assert done.communicate(timeout=20)[0] == "OK\n"
    assert done.returncode == 0
    limited = workload(*common, "--index-regex", r"nvidia(\d+)$", "--activity", "60:0:100", "--limit", "runtime=0.5")
    said, _ = limited.communicate(timeout=20)
    assert (said, limited.returncode) == ("Limit runtime reached, terminated\n", 1)
    played = workload(*common, "--profile", str(_short_load(tmp_path)), "--repeat", "1")
    assert played.communicate(timeout=20)[0] == "OK\n"
    refused = workload("--socket", str(socket), "--devnames", "nvidia7")
    said, _ = refused.communicate(timeout=20)
    assert "no device 'nvidia7'" in said
    assert refused.returncode == 1
    assert running.stop() == 0
    assert list(files.iterdir()) == []
    assert not socket.exists()


def _short_load(folder: Path) -> Path:
    path = folder / "load.yaml"
    path.write_text("phases: [{seconds: 0.5, shape: memcopy, fb_mib: 1000}]")
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--devnames", "x", "--activity", "200:0:1"], "--activity: '200:0:1'"),
        (["--devices", "/no/such/*"], "--devices: '/no/such/*' matches no file"),
        (["--devnames", "x", "--limit", "much"], "--limit: 'much': must be NAME=NUMBER"),
        (["--devnames", "x", "--pod", "a"], "--pod: 'a': must be NAMESPACE/NAME"),
        (["--devnames", "x", "--profile", "/no/such/file"], "/no/such/file: no such file"),
    ],
)
def test_a_workload_that_cannot_be_is_refused_by_the_command_itself(arguments: list[str], says: str) -> None:
    done = workload(*arguments)
    _, said = done.communicate(timeout=20)
    assert says in said
    assert done.returncode == 2


def test_a_client_can_survive_a_killed_exporter(exporter: Callable[..., Exporter], tmp_path: Path) -> None:
    socket = tmp_path / "s"
    first = exporter("--count", "1", "--socket", str(socket))
    common = ("--socket", str(socket), "--devnames", "nvidia0", "--activity", "10:0:3")
    patient = workload(*common, "--reconnect", "30")
    hasty = workload("--socket", str(socket), "--devnames", "nvidia0", "--activity", "10:0:60")
    deadline = time.monotonic() + 10
    while len(first.json("/api/v1/workloads")) < 2:
        assert time.monotonic() < deadline
    first.process.kill()
    first.process.communicate()
    _, said = hasty.communicate(timeout=20)
    assert "the exporter closed the connection" in said
    assert hasty.returncode == 1
    second = exporter("--count", "1", "--socket", str(socket))
    deadline = time.monotonic() + 10
    while not second.json("/api/v1/workloads"):
        assert time.monotonic() < deadline
    assert second.stop() == 0
    exporter("--count", "1", "--socket", str(socket), "--interval", "0.2")
    assert patient.communicate(timeout=30)[0] == "OK\n"
    assert patient.returncode == 0


def test_nvml_lists_the_exporter_with_the_memory_of_its_base_workload(
    exporter: Callable[..., Exporter], tmp_path: Path
) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("{name: train, phases: [{seconds: 3600, shape: training}]}")
    running = exporter("--base-workload", str(base), "--page", str(tmp_path / "pages"))
    used = re.search(rb"^DCGM_FI_DEV_FB_USED{.*} (\d+)$", running.get("/metrics")[2], re.MULTILINE)
    listed = "[(p.pid, round(p.usedGpuMemory / 2**20)) for p in N.nvmlDeviceGetComputeRunningProcesses(card)]"
    ((found,),) = nvml.ask(tmp_path / "pages", [listed])

    assert used is not None
    assert found == [running.process.pid, int(used[1])]
    assert found[1] > 100_000
