"""An agent that brings the driver alone: the folder and the GPUs are there, and everything else is left to others."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import IO, Any

import aiohttp
import msgspec
import numpy as np
import pytest

from simgpu import vocabulary
from simgpu.app import agent as agents
from simgpu.app.agent import AgentSettings
from simgpu.kube.client import Client
from simgpu.node import messages
from simgpu.page import layout, writer
from tests.fixtures.kubelet import Kubelet
from tests.fixtures.lone_agent import SPEC, holding, inform, remember, running, until


def driver_only(settings: AgentSettings) -> AgentSettings:
    return msgspec.structs.replace(settings, components=frozenset({vocabulary.DRIVER_PART}))


async def test_the_driver_is_there_and_the_kubelet_is_left_alone(
    settings: AgentSettings, kubelet: Kubelet, tmp_path: Path
) -> None:
    ids = remember(settings, SPEC)
    kubelet.pods = holding(ids[1])
    settings = driver_only(settings)
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


async def test_settings_go_to_the_socket_as_the_node_has_it_and_those_of_pods_as_they_have_it(
    settings: AgentSettings, tmp_path: Path
) -> None:
    [first, _] = remember(settings, msgspec.structs.replace(SPEC, settable=True))
    async with running(driver_only(settings)):
        pages = {name: tmp_path / name / first / "page" for name in ("driver/var/lib/simgpu/gpus", "state/gpus")}
        await until(pages["driver/var/lib/simgpu/gpus"].exists)
        on_node, in_pods = (bytes(_page(path)["control"][0]).decode() for path in pages.values())
        assert on_node == str(settings.state / "run" / vocabulary.SOCKET_NAME)
        assert in_pods == vocabulary.POD_SOCKET


async def test_pods_that_run_keep_their_pages_while_the_driver_is_switched_on_and_off(
    settings: AgentSettings, kubelet: Kubelet, tmp_path: Path
) -> None:
    ids = remember(settings, SPEC)
    kubelet.pods = holding(ids[1])
    own, driver = settings.state / "gpus" / ids[1] / "page", tmp_path / "driver"
    async with running(settings):
        await until(lambda: _is_written(own))
    both = msgspec.structs.replace(settings, components=settings.components | {vocabulary.DRIVER_PART})
    with own.open("rb") as in_pod:  # as a mount has it
        async with running(both):
            through_driver = driver / "var/lib/simgpu/gpus" / ids[1] / "page"
            await until(lambda: _is_written(through_driver))
            await until(lambda: _is_written(in_pod))
        with through_driver.open("rb") as mounted:
            async with running(settings) as agent:
                await until(lambda: _is_written(in_pod) and _is_written(mounted))
                await until(lambda: agent.ready and agent._awaits_pods)
                assert (driver / "usr/bin/nvidia-smi").exists()  # which its containers mount when they start again
                await until(lambda: _is_written(mounted))
            async with running(settings) as agent:  # one after the other
                await until(lambda: agent._awaits_pods and _is_written(mounted))
                kubelet.pods = messages.ListPodResourcesResponse()
                agent.controller.wake()
                await until(lambda: not [*driver.iterdir()])
                await until(lambda: _is_written(in_pod))


async def test_a_driver_that_was_switched_off_is_removed_and_the_files_of_others_stay(
    settings: AgentSettings, tmp_path: Path
) -> None:
    remember(settings, SPEC)
    async with running(driver_only(settings)):
        await until((tmp_path / "driver/usr/bin/nvidia-smi").exists)
    (tmp_path / "driver/usr/bin/other").touch()
    for _ in range(2):  # again, and nothing is left to do
        async with running(settings) as agent:
            await until(lambda: agent.ready and not (tmp_path / "driver/.simgpu").exists())
            found = [path for path in (tmp_path / "driver").rglob("*") if not path.is_dir()]
            assert found == [tmp_path / "driver/usr/bin/other"]
            await until(lambda: _is_written(next(settings.state.glob("gpus/*/page"))))


def _page(path: Path) -> Any:
    page = writer.read(path)
    assert page is not None
    return page


def _is_written(page: Path | IO[bytes], *, within: float = 1.0) -> bool:
    """Whether the page, also one that a pod has open, was written in the last seconds."""
    if isinstance(page, Path):
        return page.exists() and _is_fresh(page.read_bytes(), within)
    page.seek(0)
    return _is_fresh(page.read(), within)


def _is_fresh(content: bytes, within: float) -> bool:
    row = np.frombuffer(content[: layout.DTYPE.itemsize], layout.DTYPE)
    return bool(time.monotonic_ns() - int(row["written_ns"][0]) < within * 1e9)


@pytest.mark.filterwarnings("ignore:Bare functions:DeprecationWarning")  # the page is an object that is called
async def test_there_are_no_metrics_but_health(settings: AgentSettings) -> None:
    async with Client(settings.target) as client, aiohttp.ClientSession() as session:
        for settings_of, status in ((settings, 200), (driver_only(settings), 404)):
            http = agents._Role(settings_of, agents.NodeLinks(settings_of, client)).http()
            await http.start("127.0.0.1", 0, field="--listen")
            try:
                async with session.get(f"http://{http.address}/metrics") as answer:
                    assert answer.status == status
                async with session.get(f"http://{http.address}/healthz") as answer:
                    assert answer.status == 200
            finally:
                await http.stop()


async def test_labels_of_feature_discovery_are_not_written(settings: AgentSettings) -> None:
    async with running(driver_only(settings)) as agent:
        inform(agent)
        await until(lambda: bool(agent.node._labelled))
        assert agent.node._labelled == {vocabulary.MANAGED_LABEL}
