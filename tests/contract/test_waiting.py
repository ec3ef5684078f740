"""The waits of `simgpu up`: what is missing at their end is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpu.cluster import control_plane, lifecycle, record, repeating, waiting
from simgpu.kube import kubeconfig, wire
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from tests.fixtures.http import Answer, Scripted, answer, status

HINT = "simgpu logs controller"


class Reported:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []

    def update(self, item: str, doing: str) -> None:
        self.lines.append(("update", item, doing))

    def done(self, item: str, result: str) -> None:
        self.lines.append(("done", item, result))

    def note(self, line: str) -> None:
        self.lines.append(("note", line))


def nodes(*counts: int) -> Answer:
    """A list of nodes that have so many GPUs each."""
    items: list[dict[str, Any]] = [
        {"metadata": {"name": f"node-{number}"}, "status": {"capacity": {"nvidia.com/gpu": str(count)}}}
        for number, count in enumerate(counts, 1)
    ]
    return answer({"metadata": {"resourceVersion": "1"}, "items": items})


def plane(progress: Reported) -> control_plane.ControlPlane:
    return control_plane.ControlPlane(record.Folder("waiting"), {}, progress)


async def test_waiting_for_gpus_ends_when_all_nodes_have_some(scripted: Scripted) -> None:
    scripted.script = [nodes(8, 0), nodes(8, 8)]
    reported = Reported()
    async with Client(scripted.target) as client:
        await waiting.gpus(client, plane(reported), reported, hint=HINT)
    assert reported.lines == [("update", "GPUs", "8 on 1 of 2 nodes"), ("done", "GPUs", "16 on 2 of 2 nodes")]


async def test_waiting_for_gpus_in_vain_names_the_nodes_without_any_and_where_to_look(scripted: Scripted) -> None:
    scripted.script = [nodes(0, 8, 0, 0, 0)] * 100
    reported = Reported()
    async with Client(scripted.target) as client:
        await waiting.gpus(client, plane(reported), reported, hint=HINT, stalled_seconds=0.0)
    without = "4 nodes have no GPUs (node-1, node-3, node-4, ...)"
    where = "check ConfigMap gpu-operator/topology and 'simgpu logs controller'"
    assert reported.lines[-2:] == [("done", "GPUs", "8 on 1 of 5 nodes"), ("note", f"{without}; {where}")]


async def test_waiting_for_gpus_goes_on_when_the_api_server_fails_for_a_moment(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "_RETRY_SECONDS", 0.0)
    scripted.script = [nodes(8, 0), status(500, "etcdserver: request timed out"), nodes(8, 8)]
    reported = Reported()
    async with Client(scripted.target, retries=wire.Retries(attempts=1)) as client:
        await waiting.gpus(client, plane(reported), reported, hint=HINT)
    assert ("done", "requests", "served") in reported.lines
    assert reported.lines[-1] == ("done", "GPUs", "16 on 2 of 2 nodes")


async def test_at_its_end_up_reports_what_there_is_although_a_request_fails(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(kubeconfig, "load", lambda _: scripted.target)
    monkeypatch.setattr(control_plane, "alive", lambda _: {"kube-apiserver"})
    record.Folder("waiting").path.mkdir(parents=True)
    record.Folder("waiting").save(
        record.Record(name="waiting", address="127.0.0.1", nodes=2, gpus="h200:8", ports={"apiserver": 1})
    )
    scripted.script = [status(500, "etcdserver: request timed out"), answer({}), nodes(8, 8), nodes()]
    quick = wire.Retries(backoff=Backoff(first_seconds=0.0))
    assert (await lifecycle.status("waiting", retries=quick)).gpus == 16
