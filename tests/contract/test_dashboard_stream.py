"""The event stream of the canvas: layouts, cells and their changes, and only those that a client looks at."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from simgpu.machines.users import PodRef, Range, User
from tests.fixtures.dashboard_site import Events, Site
from tests.fixtures.dashboards import places

NODE = "training-0003"


@pytest.mark.parametrize("show", ["utilization", "power", "temperature", "memory", "health", "owner"])
async def test_a_snapshot_and_its_changes_make_the_current_state(site: Site, show: str) -> None:
    async with site.session.get(f"{site.url}/api/v1/stream?show={show}") as answer:
        events = Events(answer)
        layout = await events.until("layout")
        assert sum(layout["counts"]) == 144
        assert [layout["pools"][number] for number in layout["pool_of"]][:2] == ["training", "training"]
        data = await events.until("cells")
        kind = np.dtype("<u4" if data["width"] == 4 else "u1")
        cells = np.frombuffer(base64.b64decode(data["cells"]), kind).copy()
        node = site.fleet.fleet.nodes["training-0000"]
        site.fleet.fleet.use(node, {node.ids[2]: (User(PodRef("new", "team", "main", "uid"), Range(77, 77), 50_000),)})
        change: dict[str, Any] = {}
        for _ in range(3):
            site.fleet.step(1.0)
            change = await events.until("change")
            if "cells" in change:
                cells[places(change["cells"][0])] = np.frombuffer(base64.b64decode(change["cells"][1]), kind)
        frame = site.fleet.dashboard._keeper.frame()
        assert frame is not None
        assert change["step"] == frame.step
        assert (cells == frame.cells(show)).all()


async def test_only_the_pool_that_is_looked_at_is_sent(site: Site) -> None:
    async with site.session.get(f"{site.url}/api/v1/stream?pool=inference") as answer:
        events = Events(answer)
        layout = await events.until("layout")
        assert layout["pools"] == ["inference"]
        data = await events.until("cells")
        assert len(base64.b64decode(data["cells"])) == sum(layout["counts"]) == data["totals"]["gpus"] == 16


async def test_only_the_blocks_of_nodes_that_are_looked_at_are_sent(site: Site) -> None:
    async with site.session.get(f"{site.url}/api/v1/stream") as answer:
        layout = await Events(answer).until("layout")
    of_cell = np.repeat(layout["block_of"], layout["counts"])
    block = layout["block_of"][layout["names"].index(NODE)]
    seen = np.flatnonzero(of_cell == block).tolist()
    query = f"blocks={1 << block:x}&layout={layout['tag']}"
    async with site.session.get(f"{site.url}/api/v1/stream?{query}") as answer:
        events = Events(answer)
        name, data = await events.next()
        assert name == "cells"  # and no layout
        assert not {"cells", "faults", "curves"} & data.keys()
        name, data = await events.next()
        assert (name, data["block"], len(base64.b64decode(data["faults"]))) == ("block", block, len(seen))
        cells = np.zeros(len(of_cell), np.uint8)
        cells[seen] = np.frombuffer(base64.b64decode(data["cells"]), np.uint8)
        node = site.fleet.fleet.nodes[NODE]
        site.fleet.fleet.use(node, {node.ids[2]: (User(PodRef("new", "team", "main", "uid"), Range(77, 77), 50_000),)})
        for _ in range(3):
            site.fleet.step(1.0)
        frame = site.fleet.dashboard._keeper.frame()
        assert frame is not None
        assert not (cells[seen] == frame.cells("utilization")[seen]).all()
        while not (cells[seen] == frame.cells("utilization")[seen]).all():
            name, data = await events.next()
            if name == "block_change":
                assert data["block"] == block
                change = data.get("cells", ("", ""))
                cells[[seen[inside] for inside in places(change[0])]] = [*base64.b64decode(change[1])]
            else:
                assert (name, "cells" in data) == ("change", False)
                assert data["totals"]["gpus"] == len(of_cell)


async def test_a_client_with_another_layout_gets_all_of_the_current_one(site: Site) -> None:
    async with site.session.get(f"{site.url}/api/v1/stream?blocks=1&layout=abc") as answer:
        events = Events(answer)
        layout = await events.until("layout")
        data = await events.until("cells")
        assert len(base64.b64decode(data["cells"])) == sum(layout["counts"])
        assert data["curves"]["rows"]
    async with site.session.get(f"{site.url}/api/v1/stream?layout={layout['tag']}") as answer:
        name, data = await Events(answer).next()
        assert (name, "cells" in data, "curves" in data) == ("cells", True, False)


async def test_new_nodes_lead_to_a_new_layout(site: Site) -> None:
    async with site.session.get(f"{site.url}/api/v1/stream") as answer:
        events = Events(answer)
        before = await events.until("layout")
        site.fleet.fleet.remove("training-0000")
        site.fleet.step()
        after = await events.until("layout")
        assert len(after["names"]) == len(before["names"]) - 1


@pytest.mark.parametrize("blocks", ["", "1"])
@pytest.mark.parametrize("opened", ["before the node is removed", "after it"])
async def test_a_layout_that_returns_is_sent_again(site: Site, blocks: str, opened: str) -> None:
    async with site.session.get(f"{site.url}/api/v1/stream") as answer:
        first = await Events(answer).until("layout")
    name, fleet = first["names"][-1], site.fleet.fleet
    spec = fleet.nodes[name].spec

    def remove() -> None:
        fleet.remove(name)
        site.fleet.step()

    if opened == "after it":
        remove()
    async with site.session.get(f"{site.url}/api/v1/stream?blocks={blocks}&layout={first['tag']}") as answer:
        events = Events(answer)
        if opened == "before the node is removed":
            assert (await events.next())[0] == "cells"  # and no layout: the client has it
            remove()
        other = await events.until("layout")
        assert other["names"] == first["names"][:-1]
        assert len(base64.b64decode((await events.until("cells"))["cells"])) == sum(other["counts"])
        fleet.place(name, spec)
        site.fleet.step()
        while (event := await events.next())[0] == "ping":
            pass
        assert event == ("layout", first)
        assert len(base64.b64decode((await events.until("cells"))["cells"])) == sum(first["counts"])
