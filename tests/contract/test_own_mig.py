"""MIG on a real node, from its label to what a pod and Prometheus see, with only the sockets of a kubelet."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

from simgpu import vocabulary
from simgpu.app.agent import Agent, AgentSettings
from simgpu.identities.render import Renderer
from simgpu.kube import views
from simgpu.node import messages
from simgpu.topology.devices import part_id
from tests.fixtures import smi
from tests.fixtures.kubelet import Kubelet
from tests.fixtures.lone_agent import running, until

VERSIONS = itertools.count(1)
SMALL, LARGE = "nvidia.com/mig-1g.18gb", "nvidia.com/mig-3g.71gb"
MIXED = "{gpus: [{type: h200, count: 2}], mig: {strategy: mixed, config: {1g.18gb: 2, 3g.71gb: 1}}, settable: true}"


def inform(agent: Agent, pool: str = MIXED, *, layout: str = "", state: str = "", pods: tuple[str, ...] = ()) -> None:
    """As if the API server had answered: the pool of the node, its labels, and pods of one container."""
    stores, meta = agent.stores, functools.partial(views.ObjectMeta, resource_version=str(next(VERSIONS)))
    wanted = {vocabulary.POOL_LABEL: "x", vocabulary.MIG_CONFIG: layout, vocabulary.MIG_CONFIG_STATE: state}
    labels = {name: value for name, value in wanted.items() if value}
    stores.nodes.replace([views.Node(metadata=meta(name="node-a", uid="n", labels=labels))])
    topology = views.ConfigMap(
        metadata=meta(name="topology", namespace="ns"), data={"topology.yml": f"nodePools: {{x: {pool}}}"}
    )
    stores.config_maps.replace([topology])
    spec = views.PodSpec(containers=(views.Container(name="main"),), node_name="node-a")
    stores.pods.replace(
        views.Pod(
            metadata=meta(name=name, namespace="team", uid=name, creation_timestamp="2024-01-01T00:00:00Z"),
            spec=spec, status=views.PodStatus(phase="Running"),
        )
        for name in pods
    )  # fmt: skip
    stores.views.replace([])


def allocated(resource: str, pod: str, *ids: str) -> messages.ListPodResourcesResponse:
    container = messages.ContainerResources("main", (messages.ContainerDevices(resource, ids),))
    return messages.ListPodResourcesResponse((messages.PodResources(pod, "team", (container,)),))


def layouts(agent: Agent) -> list[list[tuple[int, str]]]:
    """Numbers and profiles of the MIG devices of each card."""
    return [
        [(place.number, profile.name) for place, profile in device.mig_devices()]
        for device in agent.equipment.box.devices
    ]


async def endpoints(kubelet: Kubelet, count: int) -> dict[str, str]:
    requests = [await kubelet.next() for _ in range(count)]
    return {item.resource_name: item.endpoint for item in requests}


async def listed(kubelet: Kubelet, endpoint: str) -> list[str]:
    async with kubelet.watch(endpoint) as lists:
        return [name for name, _ in await anext(lists)]


async def test_a_pod_with_two_instances_of_a_card_sees_exactly_these(
    settings: AgentSettings, kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(settings) as agent:
        inform(agent)
        sockets = await endpoints(kubelet, 2)
        assert set(sockets) == {SMALL, LARGE}
        ids = await listed(kubelet, sockets[SMALL])
        gpus = [device.uuid for device in agent.equipment.box.devices]
        assert ids == [part_id(gpu, number) for gpu in gpus for number in (7, 8)]

        ask = messages.PreferredAllocationRequest(
            (messages.ContainerPreferredAllocationRequest((ids[0], *ids[2:]), (), 2),)
        )
        answer = await kubelet.ask(sockets[SMALL], "GetPreferredAllocation", ask, messages.PreferredAllocationResponse)
        assert answer.containers[0].ids == (ids[2], ids[3])  # both of one card

        wanted = messages.AllocateRequest((messages.ContainerAllocateRequest((ids[2], ids[3])),))
        [given] = (await kubelet.ask(sockets[SMALL], "Allocate", wanted, messages.AllocateResponse)).containers
        assert given.envs["NVIDIA_VISIBLE_DEVICES"] == f"{ids[2]},{ids[3]}"
        inside = tmp_path / "inside"
        inside.mkdir()
        for mount in given.mounts:
            if mount.container_path.startswith(vocabulary.PAGES_DIR):
                (inside / Path(mount.container_path).name).symlink_to(mount.host_path)
        seen = re.findall(r"UUID: (\S+)\)", smi.say(inside, "-L"))
        assert seen == [gpus[1], ids[2], ids[3]]

        kubelet.pods = allocated(SMALL, "p", ids[2], ids[3])
        inform(agent, pods=("p",))
        await until(lambda: len(agent.equipment.box.machine.part_pods) == 2)
        page = Renderer(agent.equipment.box.machine, settings.identity).page().decode()
        memory = re.findall(r"DCGM_FI_DEV_FB_USED\{(.*?pod=\"p\".*?)\}", page)
        assert {re.findall(r'GPU_I_ID="(\d+)"', labels)[0] for labels in memory} == {"7", "8"}
        assert all(f'UUID="{gpus[1]}"' in labels and 'GPU_I_PROFILE="1g.18gb"' in labels for labels in memory)


async def test_instances_of_one_profile_are_gpus_with_the_strategy_single(
    settings: AgentSettings, kubelet: Kubelet
) -> None:
    async with running(settings) as agent:
        inform(agent, "{gpus: [{type: h200, count: 2}], mig: {strategy: single, config: all-1g.18gb}}")
        sockets = await endpoints(kubelet, 1)
        assert set(sockets) == {"nvidia.com/gpu"}
        assert len(await listed(kubelet, sockets["nvidia.com/gpu"])) == 14


async def test_a_label_changes_the_layout_unless_pods_have_instances(settings: AgentSettings, kubelet: Kubelet) -> None:
    async with running(settings) as agent:
        inform(agent)
        sockets = await endpoints(kubelet, 2)
        mine = (await listed(kubelet, sockets[SMALL]))[0]
        before = layouts(agent)
        kubelet.pods = allocated(SMALL, "p", mine)
        inform(agent, pods=("p",), layout="all-3g.71gb")
        await until(lambda: agent.node.divisions.labels("node-a") == {vocabulary.MIG_CONFIG_STATE: "pending"})
        inform(agent, pods=("p",), layout="all-3g.71gb", state="pending")
        await until(lambda: agent.node.divisions.labels("node-a") == {vocabulary.MIG_CONFIG_STATE: "failed"})
        assert layouts(agent) == before

        kubelet.pods = messages.ListPodResourcesResponse()
        inform(agent, layout="all-7g.141gb", state="failed")
        await until(lambda: agent.node.divisions.labels("node-a") == {vocabulary.MIG_CONFIG_STATE: "pending"})
        inform(agent, layout="all-7g.141gb", state="pending")
        await until(lambda: layouts(agent) == [[(0, "7g.141gb")]] * 2)
        assert agent.node.divisions.labels("node-a") == {vocabulary.MIG_CONFIG_STATE: "success"}


async def test_what_was_divided_by_hand_outlives_the_agent_until_the_label_changes(
    settings: AgentSettings, kubelet: Kubelet
) -> None:
    def by_hand(agent: Agent, setting: str, first: int, second: int = 0) -> int:
        return agent.controller.set(agent.equipment.box.devices[0].uuid, setting, [first, second])

    before = [[(2, "3g.71gb"), (8, "1g.18gb")], [(2, "3g.71gb"), (7, "1g.18gb"), (8, "1g.18gb")]]
    changed = [[(8, "1g.18gb")], before[1]]
    async with running(settings) as agent:
        inform(agent)
        sockets = await endpoints(kubelet, 2)
        assert by_hand(agent, "destroy_gpu_instance", 7) == 19  # in use
        assert by_hand(agent, "destroy_compute_instance", 7) == 0
        assert sorted(layouts(agent)[0]) == before[0]
        async with kubelet.watch(sockets[SMALL]) as lists:
            while len(await anext(lists)) != 3:
                pass
        assert by_hand(agent, "create_gpu_instance", 19, 255) == 0
        assert by_hand(agent, "destroy_compute_instance", 2) == 0
        assert by_hand(agent, "create_compute_instance", 2, 1 | 255 << 8) == 0
        known = agent.equipment.box.devices[0]
        assert (sorted(known.bare), [item.number for item in known.compute]) == ([2, 7, 9], [0])
    async with running(settings) as agent:
        await until(lambda: [sorted(card) for card in layouts(agent)] == changed)
        assert agent.equipment.box.devices[0] == known
        inform(agent)
        await until(lambda: agent.ready)
        assert [sorted(card) for card in layouts(agent)] == changed
        inform(agent, layout="all-7g.141gb")
        await until(lambda: agent.node.divisions.labels("node-a") == {vocabulary.MIG_CONFIG_STATE: "pending"})
        inform(agent, layout="all-7g.141gb", state="pending")
        await until(lambda: layouts(agent) == [[(0, "7g.141gb")]] * 2)
