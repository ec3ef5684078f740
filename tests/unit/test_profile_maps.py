"""Activity profiles in ConfigMaps: what pods get of them, whatever the ConfigMaps hold."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from simgpu import errors
from simgpu.controllers.profile_maps import ProfileMaps
from simgpu.kube import views
from simgpu.kube.store import Store


class Api:
    """An API server with one ConfigMap."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data = data

    async def find(self, _resource: Any, name: str, *, namespace: str) -> views.ConfigMap:
        return views.ConfigMap(metadata=views.ObjectMeta(name=name, namespace=namespace), data=self.data)


def fetched(data: dict[str, str]) -> ProfileMaps:
    """Profiles after the ConfigMap that a pod names was fetched, and its node was enqueued."""
    pods: Store[views.Pod] = Store()
    annotations = {"simgpu.dev/activity-profile": "configmap/steady"}
    meta = views.ObjectMeta(name="p", namespace="ns", uid="u", annotations=annotations)
    pods.put(views.Pod(metadata=meta, spec=views.PodSpec(node_name="n")))

    async def look() -> ProfileMaps:
        looked, client = asyncio.Event(), Api(data)
        found = ProfileMaps(client, pods, lambda _node: looked.set())  # type: ignore[arg-type]
        task = asyncio.create_task(found.run())
        assert found.text("ns", "steady") is None
        async with asyncio.timeout(10):
            await looked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    return asyncio.run(look())


def test_an_error_that_is_raised_again_and_again_does_not_grow() -> None:
    found = fetched({"other": "text"})
    lengths = set()
    for _ in range(5):
        with pytest.raises(errors.InputError, match=r"ConfigMap steady: has no key profile.yaml") as caught:
            found.text("ns", "steady")
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


def test_any_text_is_known_once_it_was_fetched() -> None:
    assert fetched({"profile.yaml": "None"}).text("ns", "steady") == "None"
