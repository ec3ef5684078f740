"""The command as a user meets it: help that teaches, errors without tracebacks, exit codes that mean something."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from simgpu.app import executing
from simgpu.cli import main
from simgpu.cli.agent import agent
from simgpu.cluster import record

NAMESPACE = "reservation_namespace"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SIMGPU_DOWNLOAD", "never")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--gpus", "h200"], "--gpus: 'h200': must be MODEL:COUNT"),
        (["up", "--nodes", "0"], "--nodes: 0: must be from 1 to"),
        (["up", "--nodes", "many"], "'many' is not a valid integer"),
        (["up", "--name", "a/b"], "--name: 'a/b': must be 1 to 40 lower-case letters"),
        (["up", "--name", "../x"], "--name"),
        (["up", "--port", "70000"], "--port: 70000: must be from 1 to 65535"),
        (["up", "--bin-dir", "/does/not/exist"], "--bin-dir: /does/not/exist is not a folder"),
        (["tools", "kubctl"], "no tool named 'kubctl'"),
        (["down", "--name", "A"], "--name"),
        (["no-such-command"], "No such command"),
        (["loadtest", "churn", "--report-dir", "/dev/null/x"], "--report-dir: /dev/null/x: /dev/null is not a folder"),
        (["loadtest", "x.yaml", "--testsuite=s"], "Error: --testsuite: not supported; give its scenarios one by one"),
        (["loadtest", "x.yaml", "--prometheus-scrape-etcd"], "Error: --prometheus-scrape-etcd: not supported; --prom"),
    ],
)
def test_bad_input_is_named_and_ends_with_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.run(arguments) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert "Traceback" not in printed.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "arguments", [["status"], ["status", "--watch"], ["kubeconfig"], ["logs"], ["kubectl", "get", "nodes"]]
)
def test_a_cluster_that_is_not_there_is_said_so(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 1
    assert "no cluster named simgpu" in capsys.readouterr().err


def test_down_without_a_cluster_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["down"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_help_answers_fast_because_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from simgpu.cli import main; main.run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "simgpu up" in done.stdout
    for heavy in ("aiohttp", "numpy", "grpclib", "cryptography", "yaml", "textual"):
        assert f"'{heavy}'" not in done.stderr


def test_the_doctor_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["doctor", "-o", "json"])
    findings = json.loads(capsys.readouterr().out)
    assert {"system", "downloads", "Go", "programs", "ports", "root", "cgroups", "kmsg"} <= {
        item["topic"] for item in findings
    }
    assert all(item["advice"] for item in findings if item["verdict"] == "missing")


def test_a_damaged_record_says_how_to_get_out_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    folder = record.Folder("simgpu")
    folder.path.mkdir(parents=True)
    folder.record.write_bytes(b"\xff{")
    assert main.run(["status"]) == 1
    assert "'simgpu down --name simgpu' removes this cluster" in capsys.readouterr().err
    assert main.run(["down"]) == 0
    assert not folder.path.exists()


def test_what_the_operating_system_refuses_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert main.run(["up", "--bin-dir", str(tmp_path)]) == 1
    assert str(blocked) in capsys.readouterr().err
    assert main.run(["doctor"]) in (0, 1)


def test_a_reader_who_has_seen_enough_gets_no_complaint() -> None:
    program = str(Path(sys.executable).parent / "simgpu")
    done = subprocess.run(
        f"{program} tools | head -1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout[:4], done.stderr) == ("TOOL", "")


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        assert not record.port_is_free("127.0.0.1", port)


def test_a_port_that_nobody_has_is_seen() -> None:
    """One of many, for others on this machine come and go."""
    assert any(record.port_is_free("127.0.0.1", port) for port in range(20000, 20100))


def test_an_agent_looks_for_reservations_where_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def where(*arguments: str) -> str:
        found: str = agent.make_context("agent", [*arguments], **main.root.context_settings).params[NAMESPACE]
        return found

    assert where() == "runai-reservation"
    monkeypatch.setenv("RESOURCE_RESERVATION_NAMESPACE", "elsewhere")
    assert where() == "elsewhere"
    assert where("--reservation-namespace", "mine") == "mine"


def test_a_pod_whose_name_is_no_text_is_asked_for_by_its_bytes() -> None:
    name, container = os.fsdecode(b"a/\xff"), os.fsdecode(b"\xfe")
    asked = executing.PodCommand("ns", name, container, ("nvidia-smi",))
    assert executing.gpus_path(asked) == "/pods/ns/a%2F%FF/gpus?container=%FE"
