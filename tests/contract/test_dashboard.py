"""The page's API and event stream over HTTP."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
import weakref
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest

from simgpu.app import watching_page
from simgpu.catalog import models
from simgpu.cli import output
from simgpu.dashboard import answers, openapi
from simgpu.dashboard.answers import RecordedEvent
from simgpu.dashboard.channels import StreamMessage
from simgpu.dashboard.serving import Dashboard
from simgpu.dashboard.sources import BoxSource, FleetSource
from simgpu.kube.client import Client
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology.devices import BoxConfig, GpuEntry, build
from simgpu.vocabulary import GPU_RESOURCE, MAX_PENDING_REQUESTS, MAX_VIEWERS
from simgpu.web import server
from simgpu.web.limits import Limits
from tests.fixtures.dashboards import ServedFleet, places
from tests.fixtures.http import Scripted, answer

NODE = "training-0003"  # one of its GPUs is lost


class Site:
    """A page of a small fleet, and a client of it."""

    def __init__(self, fleet: ServedFleet, url: str, session: aiohttp.ClientSession) -> None:
        self.fleet, self.url, self.session = fleet, url, session

    async def get(self, path: str, status: int = 200) -> Any:
        async with self.session.get(f"{self.url}/api/v1{path}") as answer:
            assert answer.status == status, await answer.text()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            return await answer.json()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    fleet = ServedFleet(20)
    for _ in range(20):
        fleet.step(1.0)
    async with fleet.serving() as url, aiohttp.ClientSession() as session:
        yield Site(fleet, url, session)


class Events:
    """Server-sent events of a view."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(20):
            name = (await self.answer.content.readline()).decode().removeprefix("event: ").strip()
            data = json.loads((await self.answer.content.readline()).decode().removeprefix("data: "))
            await self.answer.content.readline()
            return name, data

    async def until(self, wanted: str) -> Any:
        while True:
            name, data = await self.next()
            if name == wanted:
                return data


async def test_every_path_answers_as_the_openapi_document_says(site: Site) -> None:
    gpu = (await site.get(f"/nodes/{NODE}/gpus/1"))["summary"]["id"]
    document = await site.get("/openapi.json")
    assert document["openapi"] == "3.1.0"
    for path in openapi.PATHS:
        assert path.path in document["paths"]
        if path.answer is not None:
            filled = path.path.format(node=NODE, gpu=gpu, index="1", namespace="team", pod="nobody")
            msgspec.convert(await site.get(filled), path.answer)
    references = set(re.findall(r"#/components/schemas/([^\"]+)", json.dumps(document)))
    assert references == set(document["components"]["schemas"])


async def test_lists_come_in_parts_that_lead_from_one_to_the_next(site: Site) -> None:
    found: list[str] = []
    path = "/api/v1/gpus?limit=37&pool=training"
    while path:
        page = await site.get(path.removeprefix("/api/v1"))
        found += (item["id"] for item in page["items"])
        path = page["next"]
        assert page["total"] == 12 * 8
    assert len(found) == len(set(found)) == 12 * 8


async def test_nodes_are_listed_by_name_with_numbers_by_their_value(site: Site) -> None:
    site.fleet.fleet.place("training-10000", site.fleet.fleet.nodes["training-0000"].spec)
    site.fleet.step()
    names = [node["name"] for node in (await site.get("/nodes?q=training"))["items"]]
    assert names == [*sorted(names[:-1]), "training-10000"]


async def test_filters_and_search_find_gpus_by_node_pod_namespace_id_and_health(site: Site) -> None:
    lost = (await site.get("/gpus?health=lost"))["items"]
    assert (lost[0]["node"], lost[0]["index"], lost[0]["problem"]) == (NODE, 1, "GPU is lost, XID 79")
    assert (await site.get(f"/gpus?q={lost[0]['id']}"))["total"] == 1
    assert (await site.get(f"/gpus?node={NODE}"))["total"] == 8
    pod = (await site.get("/pods?phase=Running"))["items"][0]
    held = await site.get(f"/gpus?q={pod['namespace']}/{pod['name']}")
    assert held["total"] == pod["gpus"]
    assert {item["owners"][0]["pod"] for item in held["items"]} == {pod["name"]}
    assert all(
        item["owners"][0]["namespace"] == pod["namespace"]
        for item in (await site.get(f"/gpus?namespace={pod['namespace']}"))["items"]
    )
    result = await site.get(f"/search?q={pod['name']}")
    assert len(places(result["places"])) == pod["gpus"]
    assert result["hits"][0]["name"] == f"{pod['namespace']}/{pod['name']}"


async def test_pending_pods_come_first_with_the_schedulers_reason(site: Site) -> None:
    first = (await site.get("/pods"))["items"][0]
    assert (first["phase"], first["gpus"], first["reason"]) == ("Pending", 8, "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in first["message"]


async def test_an_answer_that_the_client_has_is_not_sent_again(site: Site) -> None:
    async with site.session.get(f"{site.url}/api/v1/fleet") as answer:
        tag = answer.headers["ETag"]
    async with site.session.get(f"{site.url}/api/v1/fleet", headers={"If-None-Match": tag}) as answer:
        assert answer.status == 304
    site.fleet.step()
    async with site.session.get(f"{site.url}/api/v1/fleet", headers={"If-None-Match": tag}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "status", "parameter"),
    [
        ("/gpus?limit=0", 400, "limit"), ("/nodes?pol=x", 400, "pol"), ("/stream?view=all", 400, "view"),
        ("/stream?view=node", 400, "node"), ("/stream?blocks=0x3", 400, "blocks"),
        (f"/stream?blocks={'f' * 65}", 400, "blocks"), ("/stream?layout=*", 400, "layout"),
        ("/nodes/nowhere", 404, ""), ("/gpus/GPU-none", 404, ""),
        (f"/nodes/{NODE}/gpus/99", 404, ""), (f"/nodes/{NODE}/gpus/x", 400, "index"),
    ],
)  # fmt: skip
async def test_a_bad_request_is_told_what_is_wrong_with_it(site: Site, path: str, status: int, parameter: str) -> None:
    refused = await site.get(path, status)
    assert refused["error"]
    assert refused.get("parameter", "") == parameter


async def test_it_is_read_only_and_serves_no_other_files(site: Site) -> None:
    async with site.session.post(f"{site.url}/api/v1/fleet") as answer:
        assert answer.status == 405
    for path in ("/static/..%2fserving.py", "/static/nothing.js", "/static/"):
        async with site.session.get(f"{site.url}{path}") as answer:
            assert answer.status == 404
    async with site.session.get(f"{site.url}/") as answer:
        assert answer.content_type == "text/html"


async def test_only_get_opens_a_stream(site: Site) -> None:
    async with site.session.head(f"{site.url}/api/v1/stream") as answer:
        assert answer.status == 405
    async with site.session.head(f"{site.url}/api/v1/fleet") as answer:
        assert answer.status == 200
    assert site.fleet.dashboard.hub.viewers == 0


async def test_parameters_that_a_view_does_not_use_make_no_further_view(site: Site) -> None:
    hub, opened = site.fleet.dashboard.hub, list[aiohttp.ClientResponse]()
    for query in ("", "?offset=1", "?limit=7&q=x", "?view=totals", "?view=totals&show=power"):
        answer = await site.session.get(f"{site.url}/api/v1/stream{query}")
        await Events(answer).next()
        opened.append(answer)
    assert (hub.viewers, len(hub._views)) == (5, 2)
    for answer in opened:
        answer.close()


async def test_events_of_a_node_are_its_own_and_those_of_its_pods(site: Site) -> None:
    node = site.fleet.fleet.nodes[NODE]
    site.fleet.fleet.use(node, {node.ids[2]: (User(PodRef("job", "team", "main", "uid"), Range(7, 7), 1),)})
    site.fleet.step()
    site.fleet.events += (
        RecordedEvent(1.0, "Warning", "Other", "of another namespace", "Pod", "job", "elsewhere"),
        RecordedEvent(2.0, "Warning", "Evicted", "too many", "Pod", "job", "team"),
    )
    reasons = [event["reason"] for event in (await site.get(f"/nodes/{NODE}"))["events"]]
    assert reasons == ["GpuUnhealthy", "Configured", "Evicted"]
    assert [event["reason"] for event in (await site.get(f"/events?node={NODE}"))["items"]] == reasons[::-1]
    assert (await site.get("/events"))["total"] == 4


def waiting_pod(name: str, *, gpus: int) -> dict[str, Any]:
    limits = {GPU_RESOURCE: str(gpus)} if gpus else {"cpu": "1"}
    container = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"containers": [container]}, "status": {}}


async def test_pending_pods_with_gpus_are_found_behind_many_without(scripted: Scripted) -> None:
    others = [waiting_pod(f"cpu-{number}", gpus=0) for number in range(3)]
    first = {"metadata": {"continue": "more"}, "items": others}
    last = {"metadata": {}, "items": [*others, waiting_pod("train", gpus=8)]}
    scripted.script = [answer(first), answer(last), *[answer(first)] * (MAX_PENDING_REQUESTS + 1)]
    async with Client(scripted.target) as client:
        assert [pod.metadata.name for pod in await watching_page._pending(client)] == ["train"]
        assert [request.query.get("continue") for request in scripted.seen] == [None, "more"]
        assert await watching_page._pending(client) == []
    assert len(scripted.seen) == 2 + MAX_PENDING_REQUESTS


@pytest.mark.parametrize(
    ("path", "name", "value", "status"),
    [
        ("/", "Host", "evil.example:9400", 421), ("/api/v1/fleet", "Host", "evil.example", 421),
        ("/api/v1/stream", "Host", "127.0.0.1.evil.example", 421), ("/static/main.js", "Host", "", 421),
        ("/", "Host", "LOCALHOST:9400", 200), ("/api/v1/fleet", "Host", "[::1]:9400", 200),
        ("/api/v1/fleet", "Sec-Fetch-Site", "cross-site", 403), ("/api/v1/stream", "Sec-Fetch-Site", "cross-site", 403),
        ("/api/v1/fleet", "Sec-Fetch-Site", "same-origin", 200), ("/", "Sec-Fetch-Site", "cross-site", 200),
    ],
)  # fmt: skip
async def test_other_sites_do_not_read_the_page_through_a_browser(
    site: Site, path: str, name: str, value: str, status: int
) -> None:
    async with site.session.get(f"{site.url}{path}", headers={name: value}) as answer:
        assert answer.status == status, await answer.text()
        if status != 200:
            assert name in (await answer.json())["error"]


async def test_a_page_that_everybody_can_reach_has_any_name() -> None:
    fleet = ServedFleet(2)
    fleet.step()
    http = server.HttpServer(fleet.dashboard.routes(loopback=False))
    await http.start("127.0.0.1", 0, field="port")
    async with aiohttp.ClientSession() as session:
        url = f"http://{http.address}/api/v1/fleet"
        async with session.get(url, headers={"Host": "gpus.example"}) as answer:
            assert answer.status == 200
    fleet.dashboard.close()
    await http.stop()


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


async def test_views_of_a_node_a_gpu_and_pods_follow_the_steps(site: Site) -> None:
    for query, name, kind in (
        (f"view=node&node={NODE}", "node", answers.NodeDetail),
        (f"view=gpu&node={NODE}&index=1", "gpu", answers.GpuDetail),
        ("view=pods&limit=5", "pods", answers.ApiPage[answers.PodSummary]),
    ):
        async with site.session.get(f"{site.url}/api/v1/stream?{query}") as answer:
            events = Events(answer)
            msgspec.convert(await events.until(name), kind)
            site.fleet.step(1.0)
            msgspec.convert(await events.until(name), kind)


async def test_viewers_share_what_is_encoded_and_nothing_runs_after_the_last_has_left(site: Site) -> None:
    hub = site.fleet.dashboard.hub
    async with (
        site.session.get(f"{site.url}/api/v1/stream") as first,
        site.session.get(f"{site.url}/api/v1/stream") as second,
    ):
        await Events(first).until("cells")
        await Events(second).until("cells")
        assert hub.viewers == 2
        assert len(hub._views) == 1
    async with asyncio.timeout(10):
        while hub.viewers:
            site.fleet.step()
            await asyncio.sleep(0.01)
    assert hub._task is None


async def test_a_fleet_that_nobody_looks_at_any_more_is_not_kept() -> None:
    served = ServedFleet(2)
    served.step()
    fleets = [served.fleet]
    dashboard = Dashboard(FleetSource(lambda: fleets[0] if fleets else None), kept_seconds=0)
    http = server.HttpServer(dashboard.routes())
    await http.start("127.0.0.1", 0, field="port")
    async with aiohttp.ClientSession() as session:
        for path in ("/pods", "/stream"):
            async with session.get(f"http://{http.address}/api/v1{path}") as answer:
                assert answer.status == 200
                await answer.content.readline()
            async with asyncio.timeout(10):
                while dashboard.hub.viewers or dashboard._keeper._frame is not None:
                    served.step()  # by which the server sees that the client is gone
                    await asyncio.sleep(0.01)
    machine = weakref.ref(served.fleet.machine())
    fleets.clear()
    del served
    gc.collect()
    assert machine() is None
    dashboard.close()
    await http.stop()


async def test_too_many_viewers_are_asked_to_try_later(site: Site) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        opened = await asyncio.gather(*(session.get(f"{site.url}/api/v1/stream") for _ in range(MAX_VIEWERS)))
        assert {answer.status for answer in opened} == {200}
        refused = await session.get(f"{site.url}/api/v1/stream")
        assert refused.status == 503
        assert "Retry-After" in refused.headers
        for answer in (*opened, refused):
            answer.close()


async def test_names_with_markup_stay_text_and_unpaired_surrogates_are_replaced(site: Site) -> None:
    node = site.fleet.fleet.nodes["training-0000"]
    pod = PodRef("<img src=x onerror=alert(1)>\udc80", "<b>", "main", "uid")
    site.fleet.fleet.use(node, {node.ids[0]: (User(pod, Range(5, 5), 1),)})
    site.fleet.step()
    found = (await site.get("/nodes/training-0000/gpus/0"))["summary"]["owners"]
    assert found[0]["pod"] == "<img src=x onerror=alert(1)>?"


async def test_a_client_that_does_not_read_is_disconnected_and_holds_a_few_messages_at_most() -> None:
    fleet = ServedFleet(2)
    fleet.step()
    http = server.HttpServer(fleet.dashboard.routes(), limits=Limits(answer_seconds=0.5))
    await http.start("127.0.0.1", 0, field="port")
    hub, host = fleet.dashboard.hub, http.address.rpartition(":")
    _, writer = await asyncio.open_connection(host[0], int(host[2]), limit=1)
    writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    large = StreamMessage(("change", "x" * 1_000_000))
    async with asyncio.timeout(20):
        while not hub.viewers:
            await asyncio.sleep(0.01)
        while hub.viewers:
            for view in list(hub._views.values()):
                for viewer in view.viewers:
                    viewer.offer(large)
                    assert len(viewer._waiting) <= 5
            await asyncio.sleep(0.01)
    writer.close()
    fleet.dashboard.close()
    await http.stop()


async def test_a_box_shows_its_instances_and_workloads() -> None:
    entry = BoxConfig((GpuEntry("a100", 2, mig=("1g.5gb", "3g.20gb")), GpuEntry("h200", 2)))
    box = Box(build(entry, models.load(), node="n"), seed=1, hostname="n")
    steps, part = [{"Load": 50, "Seconds": 0}], next(name for name in box.places() if name.startswith("nvidia0."))
    for name, device, pod in (("alone", "nvidia2", None), ("part", part, {"Name": "p", "Namespace": "team"})):
        wanted = documents.read({"Name": name, "Profile": steps, "Devices": [device], "Pod": pod})
        box.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    dashboard = Dashboard(BoxSource(lambda: box, role="exporter"))
    http = server.HttpServer(dashboard.routes())
    await http.start("127.0.0.1", 0, field="port")
    async with aiohttp.ClientSession() as session:

        async def get(path: str, status: int = 200) -> Any:
            async with session.get(f"http://{http.address}/api/v1{path}") as answer:
                assert answer.status == status
                return await answer.json()

        assert "not started" in (await get("/fleet", 503))["error"]
        box.step(1.0, clock=1.0)
        box.step(2.0, clock=2.0)
        fleet = await get("/fleet")
        assert (fleet["role"], fleet["totals"]["gpus"], fleet["totals"]["allocated"]) == ("exporter", 4, 2)
        node = await get("/nodes/n")
        first = node["gpus"][0]["id"]
        assert sorted(item["profile"] for item in node["instances"][first]) == ["1g.5gb", "3g.20gb"]
        assert {(pod["namespace"], pod["name"]) for pod in node["pods"]} == {("", "alone"), ("team", "p")}
        assert node["gpus"][0]["owners"][0]["instance"] == int(part.partition(".")[2])
        assert node["gpus"][2]["owners"][0]["pod"] == "alone"
    dashboard.close()
    await http.stop()


@pytest.mark.parametrize(
    ("asked", "host", "served"),
    [(None, "127.0.0.1", True), (None, "::1", True), (None, "localhost", True), (None, "0.0.0.0", False),
     (None, "10.0.0.1", False), (True, "0.0.0.0", True), (False, "127.0.0.1", False)],
)  # fmt: skip
def test_the_page_is_served_on_loopback_or_when_it_is_asked_for(asked: bool | None, host: str, served: bool) -> None:
    assert watching_page.wanted(asked, host) is served


@pytest.mark.parametrize(
    ("address", "printed"),
    [("127.0.0.1:9400", "127.0.0.1:9400"), ("0.0.0.0:9400", "127.0.0.1:9400"), ("[::]:9400", "[::1]:9400"),
     ("10.0.0.1:80", "10.0.0.1:80")],
)  # fmt: skip
def test_the_printed_address_of_the_page_is_one_that_a_browser_opens(
    address: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.dashboard(address)
    assert capsys.readouterr().err == f"Dashboard: http://{printed}/\n"


def test_an_ipv6_address_has_brackets() -> None:
    assert [server.address_text(host, 9400) for host in ("::1", "127.0.0.1")] == ["[::1]:9400", "127.0.0.1:9400"]
