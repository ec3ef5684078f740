"""Slices of a real node, in whichever version of the API the server serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from simgpu.controllers import dra_fleet
from simgpu.controllers.own_slices import OwnSlices
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors
from simgpu.kube.client import ApiResource
from simgpu.kube.recording import Recorder
from simgpu.kube.reflector import ReflectorCounters


class Upgraded:
    """An API server that answers discovery; each answer is that of the next version of the list, None for no answer."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def discover(self, api_version: str) -> Sequence[ApiResource]:
        if self.answers[0] is None:
            self.answers.pop(0)
            raise errors.ConnectError("refused")
        if api_version.rpartition("/")[2] != self.answers[0]:
            raise errors.NotFound(404, "NotFound", api_version)
        return [ApiResource("resourceclaims", "ResourceClaim", namespaced=True)]

    async def raw(self, _path: str) -> bytes:
        self.asked += 1
        if len(self.answers) > 1:
            self.answers.pop(0)
        return msgspec.json.encode({"major": "1", "minor": "36"})


class Reading:
    """A watch that fails."""

    def __init__(self) -> None:
        self.counters = ReflectorCounters()


def test_an_agent_goes_on_in_the_version_that_the_server_has_after_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra_fleet, "CHECK_SECONDS", 0.0)
    client: Any = Upgraded("v1beta1", None, "v1beta1", "v1")
    slices = OwnSlices(client, Recorder(client, component="test"), "node-a")
    followed: list[str] = []

    async def follow(api: ServedApi) -> None:
        followed.append(api.version)
        reading: Any = Reading()
        slices._reading = reading
        while api.version != "v1":  # which is not served any more
            reading.counters.failures += 1
            await asyncio.sleep(0)
        for _ in range(100):  # no failures: nothing is asked
            await asyncio.sleep(0)
        raise ConnectionAbortedError

    async def run() -> None:
        slices.need()
        await slices.run()

    monkeypatch.setattr(slices, "_follow", follow)
    with pytest.raises(ConnectionAbortedError):
        asyncio.run(run())
    assert followed == ["v1beta1", "v1"]
    assert client.asked == 3
