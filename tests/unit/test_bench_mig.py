"""A change of a node's layout is measured until every surface shows it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bench_mig
from simgpu.kube import views

NAME = "nvidia.com/mig-3g.71gb"
SHOWN: dict[str, Any] = {
    "state": "success",
    "labels": {f"{NAME}.count": "8"},
    "capacity": {NAME: "8"},
    "allocatable": {NAME: "8"},
    "/metrics/nodes/a": b'DCGM_FI_DEV_FB_USED{gpu="0",GPU_I_PROFILE="3g.71gb"} 0',
    "/api/v1/nodes/a": b'{"instances":{"GPU-0":[{"id":2,"profile":"3g.71gb"}]}}',
    "view": "mig: {instances: [{profile: 3g.71gb}]}",
}


class Surfaces:
    """The API server and the controller, with what they show of a node."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self._shown = shown

    async def get(self, _resource: Any, name: str) -> views.Node:
        labels = {"nvidia.com/mig.config.state": self._shown["state"], **self._shown["labels"]}
        status = views.NodeStatus(capacity=self._shown["capacity"], allocatable=self._shown["allocatable"])
        return views.Node(metadata=views.ObjectMeta(name=name, labels=labels), status=status)

    async def find(self, _resource: Any, name: str, **_more: Any) -> views.ConfigMap:
        return views.ConfigMap(metadata=views.ObjectMeta(name=name), data={"topology.yml": self._shown["view"]})

    async def read(self, path: str) -> bytes:
        found: bytes = self._shown[path]
        return found


async def shows(**changed: Any) -> bool:
    surfaces: Any = Surfaces({**SHOWN, **changed})
    return await bench_mig.shows(surfaces, surfaces, "a")


async def test_a_layout_is_there_once_all_surfaces_have_it() -> None:
    assert await shows()


@pytest.mark.parametrize("surface", SHOWN)
async def test_a_layout_is_not_there_while_one_surface_has_the_old_one(surface: str) -> None:
    assert not await shows(**{surface: type(SHOWN[surface])()})
