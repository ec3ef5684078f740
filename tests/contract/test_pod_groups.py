"""PodGroups that are served, and may not be read at first."""

from __future__ import annotations

import asyncio
import logging

import pytest

from simgpu.controllers import pod_groups
from simgpu.kube.client import Client
from tests.fixtures.http import Scripted, answer, status, stream

SERVED = answer({"resources": [{"name": "podgroups", "kind": "PodGroup", "namespaced": True}]})
DENIED = status(403, "podgroups is forbidden", reason="Forbidden")
META = {"name": "g", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
GROUP = {"metadata": META, "spec": {"priorityClassName": "train"}}
END = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}


async def test_a_missing_permission_is_logged_once_and_noticed_once_it_is_granted(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pod_groups, "FORBIDDEN_SECONDS", 0.001)
    listed = stream(
        {"type": "ADDED", "object": GROUP}, {"type": "BOOKMARK", "object": {"metadata": END}},
        then="silence", server=scripted,
    )  # fmt: skip
    scripted.script = [*(SERVED, DENIED) * 8, SERVED, answer({"items": []}), listed]
    known = asyncio.Event()
    async with Client(scripted.target) as client:
        groups = pod_groups.PodGroups(client, lambda _node: known.set())
        assert groups.priority_class("ns", "g", "n") == ""
        task = asyncio.create_task(groups.run())
        async with asyncio.timeout(10):
            await known.wait()
        assert groups.priority_class("ns", "g", "n") == "train"
        scripted.hold.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    [warning] = [item.getMessage() for item in caplog.records if item.levelno >= logging.WARNING]
    assert "grant list and watch" in warning
