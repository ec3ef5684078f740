"""What `simgpu cleanup` finds of dynamic resource allocation on a real API server."""

from __future__ import annotations

from simgpu.controllers import cleaning
from simgpu.kube import resources
from tests.fixtures.cluster import eventually
from tests.fixtures.leading import QuickFleet

GPU = {"gpus": [{"type": "t4", "count": 1}], "allocation": "dra"}


async def test_a_slice_of_the_controller_is_found_and_removed(quick: QuickFleet) -> None:
    await quick.configure("", default=GPU)
    node = await quick.node("a")
    name = f"kwok-{node}-gpu"
    first = await eventually(lambda: quick.client.find(resources.RESOURCE_SLICES, name))
    found = await cleaning.find(quick.client, quick.namespace)
    assert name in found.slices
    assert {*found.classes} <= {"gpu.nvidia.com", "mig.nvidia.com"}  # a chart of another test may have made them
    assert f"resourceslice {name}" in found.lines()
    await cleaning.remove(quick.client, quick.namespace, cleaning.Leftovers(slices=(name,)))

    async def restored() -> bool:
        again = await quick.client.find(resources.RESOURCE_SLICES, name)
        return again is not None and again.metadata.uid != first.metadata.uid

    await eventually(restored)  # by the controller, which still runs
