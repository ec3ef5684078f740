"""The page's API and event stream over HTTP."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
import weakref
from typing import Any

import aiohttp
import msgspec
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
from simgpu.kube.recording import Recorder
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology.devices import BoxConfig, GpuEntry, build
from simgpu.vocabulary import GPU_RESOURCE, MAX_PENDING_REQUESTS, MAX_VIEWERS
from simgpu.web import server
from simgpu.web.limits import Limits
from tests.fixtures.dashboard_site import Events, Site
from tests.fixtures.dashboards import ServedFleet, places
from tests.fixtures.http import Scripted, answer

NODE = "training-0003"  # one of its GPUs is lost


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


async def test_lists_of_nodes_and_pods_are_searched_by_node_pod_namespace_and_gpu_id(site: Site) -> None:
    pod = (await site.get("/pods?phase=Running"))["items"][0]
    own = pod["node"]
    for text in (
        own,
        own.upper(),
        f"{pod['namespace']}/{pod['name']}",
        pod["gpu_ids"][0],
        pod["gpu_ids"][-1][9:].upper(),
    ):
        assert [node["name"] for node in (await site.get(f"/nodes?q={text}"))["items"]] == [own], text
        assert pod in (await site.get(f"/pods?phase=Running&q={text}"))["items"], text
    for text in (f"{pod['namespace']}/{pod['name']}", pod["gpu_ids"][0]):
        assert (await site.get(f"/pods?q={text}"))["total"] == 1, text
    of_team = await site.get(f"/nodes?q={pod['namespace']}/")
    having = await site.get(f"/pods?phase=Running&limit=1000&namespace={pod['namespace']}")
    assert {node["name"] for node in of_team["items"]} == {pod["node"] for pod in having["items"]}
    model = (await site.get(f"/nodes?q={own}"))["items"][0]["models"][0]
    assert (await site.get(f"/nodes?q={own}&model={model}"))["total"] == 1
    assert (await site.get(f"/nodes?q={own}&pool=none"))["total"] == 0


async def test_a_lost_gpu_has_counters_and_no_readings(site: Site) -> None:
    gpu = await site.get(f"/nodes/{NODE}/gpus/1")
    names = ("utilization", "power_w", "temperature_c", "memory_used_mib")
    assert gpu["summary"]["health"] == "lost"
    assert [gpu["summary"][name] for name in names] == [0] * len(names)
    assert (gpu["readings"], gpu["reasons"]) == ({}, [])
    assert gpu["counters"]["energy_j"] > 0
    node = await site.get(f"/nodes/{NODE}")
    whole = [item for item in node["gpus"] if item["health"] != "lost"]
    assert len(whole) == 7
    for name in ("power_w", "memory_used_mib"):
        assert node["summary"][name] == pytest.approx(sum(item[name] for item in whole), abs=0.1)
    every = (await site.get("/gpus?limit=1000"))["items"]
    totals = (await site.get("/fleet"))["totals"]
    for name in ("power_w", "memory_used_mib"):
        assert totals[name] == pytest.approx(sum(item[name] for item in every), abs=1)
    assert totals["busy"] == sum(item["utilization"] > 0 for item in every)
    for show in ("power", "temperature"):
        async with site.session.get(f"{site.url}/api/v1/stream?show={show}") as answer:
            events = Events(answer)
            layout, cells = await events.until("layout"), await events.until("cells")
        first = sum(layout["counts"][: layout["names"].index(NODE)])
        values = base64.b64decode(cells["cells"])
        assert values[first + 1] == 0
        assert values[first]


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


def waiting_pod(name: str, *, gpus: int, resource: str = GPU_RESOURCE) -> dict[str, Any]:
    limits = {resource: str(gpus)} if gpus else {"cpu": "1"}
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


async def test_pods_that_wait_for_mig_instances_or_shares_of_gpus_are_listed(site: Site, scripted: Scripted) -> None:
    wanted = {
        "nvidia.com/mig-1g.18gb": (2, 2), "nvidia.com/mig-1g.5gb.shared": (1, 1), "nvidia.com/gpu.shared": (3, 0),
        "example.com/slice": (4, 0),
    }  # fmt: skip
    listed = [waiting_pod(f"w-{at}", gpus=counts[0], resource=name) for at, (name, counts) in enumerate(wanted.items())]
    listed.append(waiting_pod("other", gpus=1, resource="nvidia.com/mlnxnics"))
    scripted.script = [answer({"metadata": {}, "items": listed})]
    renamed = ("example.com/slice",)
    async with Client(scripted.target) as client:
        site.fleet.pending = list(await watching_page._pending(client, renamed))
    assert len(site.fleet.pending) == len(wanted)
    site.fleet.renamed = renamed
    page = await site.get("/pods?phase=Pending")
    assert [(pod["name"], pod["gpus"], pod["instances"]) for pod in page["items"]] == [
        (f"w-{at}", *counts) for at, counts in enumerate(wanted.values())
    ]


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


async def test_an_agents_page_has_the_pool_of_its_node(scripted: Scripted) -> None:
    box = Box(build(BoxConfig((GpuEntry("h200", 2),)), models.load(), node="n"), seed=1, hostname="n")
    box.step(1.0, clock=1.0)
    async with Client(scripted.target) as client:
        recorder = Recorder(client, component="test")
        dashboard = watching_page.of_agent(lambda: box, lambda: None, recorder, node="real-node", pool=lambda: "real")
        http = server.HttpServer(dashboard.routes())
        await http.start("127.0.0.1", 0, field="port")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{http.address}/api/v1/nodes/real-node") as found:
                assert (await found.json())["summary"]["pool"] == "real"
            async with session.get(f"http://{http.address}/api/v1/fleet") as found:
                assert (await found.json())["pools"] == {"real": 2}
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
