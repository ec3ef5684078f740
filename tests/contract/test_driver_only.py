"""An agent that brings the driver alone: the folder and the GPUs are there, and everything else is left to others."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import aiohttp
import msgspec
import pytest

from simgpu import vocabulary
from simgpu.app import agent as agents
from simgpu.app.agent import AgentSettings
from simgpu.kube.client import Client
from simgpu.page import writer
from tests.fixtures.kubelet import Kubelet
from tests.fixtures.lone_agent import SPEC, holding, inform, remember, running, until


def driver_only(settings: AgentSettings, tmp_path: Path) -> AgentSettings:
    parts = frozenset({vocabulary.DRIVER_PART})
    return msgspec.structs.replace(settings, components=parts, driver=tmp_path / "driver")


async def test_the_driver_is_there_and_the_kubelet_is_left_alone(
    settings: AgentSettings, kubelet: Kubelet, tmp_path: Path
) -> None:
    ids = remember(settings, SPEC)
    kubelet.pods = holding(ids[1])
    settings = driver_only(settings, tmp_path)
    async with running(settings) as agent:
        await until((tmp_path / "driver/proc/driver/nvidia/version").exists)
        tool = [str(tmp_path / "driver/usr/bin/nvidia-smi"), "-L"]
        listed = await asyncio.to_thread(subprocess.run, tool, capture_output=True, text=True, check=True)
        assert [line.partition("UUID: ")[2].rstrip(")") for line in listed.stdout.splitlines()] == ids
        await until(lambda: _usage(tmp_path, ids[1]) > 0)  # a pod has it, by another's device plugin
        assert not [*kubelet.folder.glob("simgpu-*.sock")]
        assert not settings.runai.exists()
        agent.remove_files()
        assert not [*(tmp_path / "driver").iterdir()]


def _usage(tmp_path: Path, gpu: str) -> int:
    page = writer.read(tmp_path / "driver/var/lib/simgpu/gpus" / gpu / "page")
    return 0 if page is None else int(page["usage"][0])


async def test_settings_go_to_the_socket_as_the_node_has_it(settings: AgentSettings, tmp_path: Path) -> None:
    async with Client(settings.target) as client:
        links = agents.NodeLinks(driver_only(settings, tmp_path), client)
        assert links.control == str(settings.state / "run" / vocabulary.SOCKET_NAME)
        assert agents.NodeLinks(settings, client).control == vocabulary.POD_SOCKET


@pytest.mark.filterwarnings("ignore:Bare functions:DeprecationWarning")  # the page is an object that is called
async def test_there_are_no_metrics_but_health(settings: AgentSettings, tmp_path: Path) -> None:
    async with Client(settings.target) as client, aiohttp.ClientSession() as session:
        for settings_of, status in ((settings, 200), (driver_only(settings, tmp_path), 404)):
            http = agents._Role(settings_of, agents.NodeLinks(settings_of, client)).http()
            await http.start("127.0.0.1", 0, field="--listen")
            try:
                async with session.get(f"http://{http.address}/metrics") as answer:
                    assert answer.status == status
                async with session.get(f"http://{http.address}/healthz") as answer:
                    assert answer.status == 200
            finally:
                await http.stop()


async def test_labels_of_feature_discovery_are_not_written(settings: AgentSettings, tmp_path: Path) -> None:
    async with running(driver_only(settings, tmp_path)) as agent:
        inform(agent)
        await until(lambda: bool(agent.node._labelled))
        assert agent.node._labelled == {vocabulary.MANAGED_LABEL}
