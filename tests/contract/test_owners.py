"""Asking a kubelet who has which device, over a real socket and from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpu.kube import views
from simgpu.node import messages
from simgpu.node.owners import Owners
from simgpu.pods import holding
from simgpu.pods.holding import Held
from tests.fixtures.kubelet import Kubelet

GPU = "nvidia.com/gpu"


def owners(folder: Path) -> Owners:
    return Owners(pod_resources=folder / "pods.sock", plugins=folder)


def checkpoint(folder: Path, *entries: dict[str, object]) -> None:
    document = {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {GPU: ["a", "b"]}}, "Checksum": 1}
    (folder / "kubelet_internal_checkpoint").write_text(json.dumps(document))


async def test_a_checkpoint_that_is_none_names_nobody(kubelet: Kubelet) -> None:
    for content in ("", "[]", '{"Data": {"Later": ' + "[" * 5000):
        (kubelet.folder / "kubelet_internal_checkpoint").write_text(content)
        assert await owners(kubelet.folder).look({"a"}) == []


async def test_containers_are_named_with_their_devices(kubelet: Kubelet) -> None:
    devices = (messages.ContainerDevices(GPU, ("a",)), messages.ContainerDevices("rdma/hca", ("h",)))
    container = messages.ContainerResources("main", devices)
    kubelet.pods = messages.ListPodResourcesResponse((messages.PodResources("p", "ns", (container,)),))
    assert await owners(kubelet.folder).look({"a", "b", "c"}) == [Held("main", ("a",), namespace="ns", pod="p")]


async def test_a_container_has_all_of_its_devices_each_of_which_the_kubelet_lists_apart(kubelet: Kubelet) -> None:
    devices = tuple(messages.ContainerDevices(GPU, (name,)) for name in ("a", "b", "c"))
    container = messages.ContainerResources("main", devices)
    kubelet.pods = messages.ListPodResourcesResponse((messages.PodResources("p", "ns", (container,)),))
    held = await owners(kubelet.folder).look({"a", "b", "c"})
    assert held is not None
    pod = views.Pod(metadata=views.ObjectMeta(name="p", namespace="ns", uid="u"))
    assert holding.gpus(pod, "main", held) == ("a", "b", "c")


async def test_devices_have_owners_whatever_they_were_called_when_they_were_given(kubelet: Kubelet) -> None:
    entry = {"PodUID": "u", "ContainerName": "main", "AllocResp": "x"}
    checkpoint(
        kubelet.folder,
        {**entry, "ResourceName": GPU, "DeviceIDs": {"-1": ["a"]}},
        {**entry, "PodUID": "v", "ResourceName": f"{GPU}.shared", "DeviceIDs": {"-1": ["a::3"]}},
        {**entry, "PodUID": "w", "ResourceName": "rdma/hca", "DeviceIDs": {"-1": ["h"]}},
    )
    assert await owners(kubelet.folder).look({"a"}) == [Held("main", ("a",), uid="u"), Held("main", ("a::3",), uid="v")]


async def test_the_checkpoint_names_init_containers_too(kubelet: Kubelet) -> None:
    entry = {"PodUID": "u", "ContainerName": "first", "ResourceName": GPU, "AllocResp": "x"}
    checkpoint(kubelet.folder, {**entry, "DeviceIDs": {"-1": ["a"], "1": ["b"]}}, {**entry, "ResourceName": "rdma/hca"})
    assert await owners(kubelet.folder).look({"a", "b", "c"}) == [Held("first", ("a", "b"), uid="u")]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"Data": {"PodDeviceEntries": null}}', '{"Data": 3}', "\xff", '{"\xff": 1}']
)
async def test_a_checkpoint_that_cannot_be_read_says_nothing(kubelet: Kubelet, content: str) -> None:
    (kubelet.folder / "kubelet_internal_checkpoint").write_text(content, encoding="latin-1")
    assert await owners(kubelet.folder).look({"a", "b", "c"}) == []


async def test_a_kubelet_that_is_gone_is_not_one_without_pods(kubelet: Kubelet) -> None:
    await kubelet.stop()
    assert await owners(kubelet.folder).look({"a", "b", "c"}) is None


async def test_the_checkpoint_speaks_for_a_kubelet_that_is_gone(kubelet: Kubelet) -> None:
    entry = {"PodUID": "u", "ContainerName": "main", "ResourceName": GPU, "AllocResp": "x"}
    checkpoint(kubelet.folder, {**entry, "DeviceIDs": {"-1": ["a"]}})
    await kubelet.stop()
    assert await owners(kubelet.folder).look({"a", "b", "c"}) == [Held("main", ("a",), uid="u")]
