"""What the API server itself accepts and how it writes it: amounts, and names at their longest."""

from __future__ import annotations

import pytest

from simgpu.controllers import publishing
from simgpu.kube import errors, quantity, resources
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet

AMOUNTS = [  # none finer than a thousandth: the API rounds the amounts of nodes to these
    "0", "8", "1000", "1500", "1k", "1e3", "1E3", "0.5", "500m", "1.5", "+5", "1024", "1Ki", "1536Mi", "1.5Gi",
    "12e6", "1M", "1000k", "123456789", "8Ei", "7Ei", "1P", "1E", "5000", "1.", ".5", "00012", "1e-3", "100e-2",
    "1234.567", "1.0Ki", "1023Ki", "1e18", "1000000000000", "1.5e3", "3e0",
]  # fmt: skip
NO_AMOUNTS = ["", "1K", "1ki", "1e", "1e+", "1kk", "0x10", "1 k", "NaN", "1_000", "--1", "1.2.3"]


async def test_amounts_mean_what_they_mean_to_the_api_server(fleet: Fleet) -> None:
    client, name = fleet.client, await fleet.node("amounts", None)
    for text in AMOUNTS:
        patch = {"status": {"capacity": {"cpu": text}}}
        seen = await client.merge_patch(resources.NODES, name, patch, subresource="status")
        written = seen.status.capacity["cpu"]
        assert quantity.parse(written) == quantity.parse(text), (text, written)
        if text.isdecimal() and not text.startswith("00"):
            assert quantity.canonical(int(text)) == written
    for text in NO_AMOUNTS:
        patch = {"status": {"capacity": {"cpu": text}}}
        with pytest.raises(errors.ApiError):
            await client.merge_patch(resources.NODES, name, patch, subresource="status")
        with pytest.raises(ValueError, match="must be"):
            quantity.parse(text)


@pytest.mark.parametrize("length", [64, 253])
async def test_a_node_with_a_long_name_has_a_view_that_goes_with_it(fleet: Fleet, length: int) -> None:
    await fleet.configure("", default={"gpuProduct": "Tesla-K80", "gpuCount": 1, "gpuMemory": 11441})
    long = await fleet.node(("a" + ".x" * 200)[: length - len(fleet.namespace) - 1].rstrip("."))
    await fleet.start()
    await fleet.gpus(long, 1)
    view = await eventually(
        lambda: fleet.client.find(resources.CONFIG_MAPS, publishing.view_name(long), namespace=fleet.namespace)
    )
    assert publishing.node_of(view) == long
    await fleet.client.delete(resources.NODES, long)

    async def gone() -> bool:
        named = publishing.view_name(long)
        return await fleet.client.find(resources.CONFIG_MAPS, named, namespace=fleet.namespace) is None

    await eventually(gone)
