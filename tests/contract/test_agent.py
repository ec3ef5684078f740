"""An agent while the API server is away: it goes by what the agent before it knew."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from simgpu.app.agent import Agent, AgentSettings
from simgpu.catalog import models
from simgpu.machines.users import PodRef, Range, User
from simgpu.node import messages, state
from simgpu.page import writer
from simgpu.topology import sharing
from tests.fixtures.equipment import equipment
from tests.fixtures.kubelet import Kubelet
from tests.fixtures.lone_agent import SPEC, holding, inform, remember, running, until


def shown(settings: AgentSettings, gpu: str, since: int) -> int | None:
    """How busy a GPU is on its page, if that was written since."""
    page = writer.read(settings.state / "gpus" / gpu / "page")
    return int(page["usage"][0]) if page is not None and int(page["written_ns"][0]) > since else None


async def test_gpus_are_there_as_they_were_while_the_api_server_is_away(
    settings: AgentSettings, kubelet: Kubelet
) -> None:
    ids = remember(settings, SPEC)
    since = time.monotonic_ns()
    kubelet.pods = holding(ids[1])
    async with running(settings) as agent:
        requests = [await kubelet.next() for _ in range(2)]
        assert {request.resource_name for request in requests} == {"nvidia.com/gpu", "rdma/hca"}
        endpoint = next(item.endpoint for item in requests if item.resource_name == "nvidia.com/gpu")
        async with kubelet.watch(endpoint) as lists:
            assert await anext(lists) == [(name, "Healthy") for name in ids]
        ask = messages.AllocateRequest((messages.ContainerAllocateRequest((ids[0],)),))
        answer = await kubelet.ask(endpoint, "Allocate", ask, messages.AllocateResponse)
        assert answer.containers[0].envs["NVIDIA_VISIBLE_DEVICES"] == ids[0]
        await until(lambda: agent.ready and [shown(settings, gpu, since) for gpu in ids] == [0, 40])
        assert {index: pod.name for index, pod in agent.equipment.box.machine.pods.items()} == {1: "p"}


async def test_the_pod_that_had_a_shared_gpu_first_is_named_after_a_restart_too(
    settings: AgentSettings, kubelet: Kubelet
) -> None:
    """Both were made in the same second, and a list of all pods has the other one first."""
    gpu = remember(settings, SPEC)[0]
    made = equipment(settings.state)
    made.equip(made.state.known.spec)
    made.remember({gpu: tuple(User(PodRef(name, "team", "main", name), Range(9, 9), 1, 0.5) for name in "za")})
    made.close()
    since = time.monotonic_ns()
    kubelet.pods = messages.ListPodResourcesResponse(
        tuple(item for place, name in enumerate("az") for item in holding(sharing.replica(gpu, place), name).pods)
    )
    async with running(settings) as agent:
        inform(agent, "a", "z")
        await until(lambda: agent.ready and shown(settings, gpu, since) == 100)  # as pods do of which nothing is said
        assert agent.equipment.box.machine.pods[0].name == "z"


async def test_pods_keep_their_gpus_while_the_kubelet_does_not_say_who_has_them(
    settings: AgentSettings, kubelet: Kubelet
) -> None:
    ids = remember(settings, SPEC)
    since = time.monotonic_ns()
    await kubelet.stop()
    async with running(settings) as agent:
        inform(agent, "p")
        await until(lambda: agent.ready and shown(settings, ids[1], since) == 40)
        assert list(state.load_known(settings.state / "known.json").users) == [ids[1]]


async def test_a_pod_that_has_ended_meanwhile_uses_no_gpu(settings: AgentSettings, kubelet: Kubelet) -> None:
    ids = remember(settings, SPEC)
    since = time.monotonic_ns()
    kubelet.pods = messages.ListPodResourcesResponse()
    async with running(settings) as agent:
        await until(lambda: agent.ready and shown(settings, ids[1], since) == 0)
        assert not agent.equipment.box.machine.pods


async def test_pods_see_their_gpus_before_an_agent_knows_whether_the_api_server_answers(
    settings: AgentSettings,
) -> None:
    ids = remember(settings, SPEC)
    since = time.monotonic_ns()
    async with running(settings) as agent:
        await until(lambda: shown(settings, ids[0], since) is not None)
        assert not agent.ready


async def test_an_agent_that_knows_nothing_waits_for_the_api_server(settings: AgentSettings, kubelet: Kubelet) -> None:
    async with running(settings) as agent:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await kubelet.registered.get()
        assert not agent.ready


async def test_gpus_can_be_of_a_model_of_the_users_own(settings: AgentSettings, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("base: h200\nproduct: Mine\npower_w: {default: 500, max: 500}\n")
    mine = msgspec.structs.replace(settings, catalog=models.load([own]))
    async with running(mine) as agent:
        inform(agent, model="mine")
        await until(lambda: agent.ready and bool(agent.equipment.box.devices))
        assert {device.model.power_w.max for device in agent.equipment.box.devices} == {500}


async def test_an_agent_writes_an_error_to_the_kernel_log_once_and_none_from_before_it_was_asked_to(
    settings: AgentSettings, kubelet: Kubelet, tmp_path: Path
) -> None:
    ids = remember(settings, SPEC)
    kubelet.pods = messages.ListPodResourcesResponse()
    log = tmp_path / "kern.log"
    logging = msgspec.structs.replace(settings, kernel_log=log)

    def count(gpu: str) -> int:
        page = writer.read(settings.state / "gpus" / gpu / "page")
        return int(page["event_count"][0]) if page is not None else 0

    def strike(agent: Agent) -> None:
        agent.equipment.box.engine.strike(int(agent.equipment.box.machine.ids[0]), "hangs")

    async with running(settings) as agent:
        await until(lambda: agent.ready)
        strike(agent)
        await until(lambda: count(ids[0]) == 1)
    for number in (1, 1, 2):  # the second one has nothing new
        async with running(logging) as agent:
            await until(lambda: agent.ready)
            if number > (log.read_text().count("Xid") if log.exists() else 0):
                strike(agent)
            await until(lambda number=number: log.read_text().count(": 43, pid=") == number)  # type: ignore[misc]
            steps = agent.equipment.box.steps
            await until(lambda agent=agent, steps=steps: agent.equipment.box.steps > steps + 1)  # type: ignore[misc]
    assert log.read_text().count(": 43, pid=") == 2
    assert count(ids[0]) == 3
