"""The controller's pages over HTTP: the topology API's errors, and the controller's own metrics."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
import pytest
from prometheus_client import parser

from simgpu import errors
from simgpu.catalog import models
from simgpu.identities import identity, labels, render
from simgpu.machines.fleet import Fleet
from simgpu.machines.health import DeviceFailure
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import inline
from simgpu.web import fleet_pages, metering, pages, server
from tests.fixtures import boxes
from tests.fixtures.prometheus import Prometheus

NODES = {"a": {"GpuProduct": "Tesla-K80"}}


def node(name: str) -> dict[str, str] | None:
    if name == "broken":
        raise RuntimeError("a mistake of ours")
    if name == "unreadable":
        raise errors.InputError("ConfigMap topology-unreadable", "a mistake of theirs")
    return NODES.get(name)


@pytest.fixture
async def topology() -> AsyncIterator[str]:
    made = server.HttpServer(
        fleet_pages.topology_routes(lambda: True, lambda: {"NodePools": {}}, node), [server.json_errors]
    )
    await made.start("127.0.0.1", 0, field="x")
    yield f"http://{made.address}"
    await made.stop()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/topology", 200), ("GET", "/topology/nodes/a", 200), ("GET", "/topology/nodes/b", 404),
        ("GET", "/topology/nodes/", 400), ("GET", "/elsewhere", 404), ("POST", "/topology", 405),
        ("DELETE", "/topology/nodes/a", 405), ("GET", "/topology/nodes/broken", 500),
        ("GET", "/topology/nodes/unreadable", 500),
    ],
)  # fmt: skip
async def test_every_answer_of_the_topology_api_is_json_with_its_code(
    topology: str, method: str, path: str, status: int
) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, f"{topology}{path}") as answer:
        assert answer.status == status
        assert answer.content_type == "application/json"
        body = await answer.json()
        assert ("error" in body) == (status >= 400)
        if status == 405:
            assert "GET" in answer.headers["Allow"]


@contextlib.asynccontextmanager
async def shown(*, plain: bool) -> AsyncIterator[str]:
    """Pages of a fleet of one node with two GPUs, one of them in use."""
    cards = Fleet(seed=1)
    node = cards.place("n1", inline.parse("h200:2", models.load(), field="x"))
    cards.use(node, {node.ids[1]: (User(PodRef("train", "team", "main", "uid-1"), Range(10, 30), 143771),)})
    cards.step(1.0, clock=0.0)
    async with showing(cards, plain=plain) as url:
        yield url


@contextlib.asynccontextmanager
async def showing(cards: Fleet, *, plain: bool) -> AsyncIterator[str]:
    """Pages of a fleet."""
    shown = fleet_pages.FleetPages(
        lambda: cards,
        identity.load("dcgm"),
        namespace="gpu-operator",
        plain=plain,
        scraped=lambda _page, _seconds: None,
    )
    made = server.HttpServer(shown.routes())
    await made.start("127.0.0.1", 0, field="x")
    yield f"http://{made.address}"
    await made.stop()


async def read(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


def labels_of(page: str, gpu: str) -> dict[str, str]:
    return next(
        sample.labels
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "DCGM_FI_DEV_GPU_UTIL" and sample.labels["gpu"] == gpu
    )


async def test_the_page_of_all_nodes_has_what_prometheus_would_add_to_each_nodes_exporter() -> None:
    async with shown(plain=False) as url:
        page = await read(f"{url}/metrics")
        [target] = json.loads(await read(f"{url}/sd"))
    used, free = labels_of(page, "1"), labels_of(page, "0")
    assert (used["exported_pod"], used["exported_namespace"], used["exported_container"]) == ("train", "team", "main")
    assert (used["Hostname"], used["namespace"], used["endpoint"]) == ("n1", "gpu-operator", "gpu-metrics")
    assert used["job"] == used["service"] == used["container"] == "nvidia-dcgm-exporter"
    assert "exported_pod" not in free
    assert target["labels"]["__metrics_path__"] == "/metrics/nodes/n1"
    assert (target["labels"]["pod"], target["labels"]["instance"]) == (used["pod"], used["instance"])
    assert 'runai_pod_gpu_memory_used_bytes{pod_uuid="uid-1",gpu="1"} 150754820096' in page


def test_a_page_after_any_changes_of_pods_is_what_a_fresh_one_would_be() -> None:
    cards = Fleet(seed=1)
    node = cards.place("n1", inline.parse("h200:4", models.load(), field="x"))
    look = fleet_pages.with_target_labels(identity.load("dcgm"), "gpu-operator")
    kept = render.Renderer(cards.machine(), look)
    for turn, uses in enumerate([{0: "a"}, {0: "a", 2: "b"}, {2: "b", 3: "c"}, {}, {1: "d", 2: "e"}], start=1):
        wanted = {
            node.ids[place]: (User(PodRef(name, "team", "main", f"uid-{name}"), Range(10, 30), 143771),)
            for place, name in uses.items()
        }
        under_way = kept.chunks()
        begun = [next(under_way)]
        before = render.Renderer(cards.machine(), look).page()
        cards.use(node, wanted)
        cards.step(float(turn), clock=0.0)
        assert kept.machine is cards.machine()
        assert kept.page() == render.Renderer(cards.machine(), look).page()
        assert all(f'exported_pod="{name}"'.encode() in kept.page() for name in uses.values())
        assert b"".join([*begun, *under_way]) == before


def test_a_page_after_any_changes_of_nodes_is_what_a_fresh_one_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = Fleet(seed=1)
    look = fleet_pages.with_target_labels(identity.load("dcgm"), "gpu-operator")
    kept = render.Renderer(cards.machine(), look)

    def use(name: str, pod: str) -> None:
        node = cards.nodes[name]
        cards.use(node, {node.ids[1]: (User(PodRef(pod, "team", "main", f"uid-{pod}"), Range(10, 30), 143771),)})

    def place(name: str, gpus: str) -> None:
        cards.place(name, inline.parse(gpus, models.load(), field="x"))

    partial = functools.partial
    changes: list[list[Callable[[], None]]] = [
        [partial(place, "n1", "h200:2")],
        [partial(place, "n2", "h200:2")],
        [partial(use, "n2", "a")],
        [partial(cards.remove, "n1"), partial(use, "n2", "b")],
        [partial(place, "n0", "h200:2")],
        [partial(cards.name_exporter, "n2", "exporter-x", "10.0.0.1")],
        [partial(place, "n3", "t4:3"), partial(use, "n3", "c")],
        [partial(place, "n2", "h200:1")],
        [partial(cards.remove, name) for name in ("n0", "n2", "n3")],
        [partial(place, name, "h200:2") for name in ("n4", "n5")],
    ]
    for turn, together in enumerate(changes, start=1):
        for change in together:
            change()
        cards.step(float(turn), clock=0.0)
        if kept.machine is not cards.machine():
            kept = kept.on(cards.machine())
        assert kept.page() == render.Renderer(cards.machine(), look).page()

    made: list[labels.Row] = []
    text = labels.Texts._text

    def counted(texts: labels.Texts, row: labels.Row) -> tuple[bytes, dict[int, int]]:
        made.append(row)
        return text(texts, row)

    monkeypatch.setattr(labels.Texts, "_text", counted)
    place("n6", "h200:2")
    kept.on(cards.machine()).page()
    assert {row.device.labels["node"] for row in made} == {"n6"}


async def test_a_compressed_page_that_is_streamed_is_the_plain_one_whatever_changed_since_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "MAX_CACHED_SERIES", 0)
    monkeypatch.setattr(labels, "BLOCK", 2)
    cards = fleet_of("h200:3", "h200:2")

    def use(node: str, pod: str) -> None:
        gpus = cards.nodes[node].ids
        cards.use(cards.nodes[node], {gpus[1]: (User(PodRef(pod, "team", "main", pod), Range(10, 90), 143771),)})

    partial = functools.partial
    changes: list[Callable[[], object]] = [
        partial(use, "n0", "a"), partial(cards.step, 3.0, clock=6.0), int, int, partial(use, "n1", "b"),
        partial(cards.step, 4.0, clock=7.0), int, partial(cards.remove, "n0"), partial(cards.step, 5.0, clock=8.0), int,
    ]  # fmt: skip
    async with showing(cards, plain=False) as url, aiohttp.ClientSession(auto_decompress=False) as session:
        for change in changes:
            change()
            async with session.get(f"{url}/metrics", headers={"Accept-Encoding": "identity"}) as answer:
                plain = await answer.read()
            async with session.get(f"{url}/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
                reader = zlib.decompressobj(31)
                assert reader.decompress(await answer.read()) == plain
                assert (reader.eof, reader.unused_data) == (True, b""), "one member: some clients read no more"


async def test_prometheus_reads_a_page_that_is_streamed(
    prometheus: Callable[..., Prometheus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_CACHED_SERIES", 0)
    async with showing(fleet_of("h200:8", "h200:8"), plain=False) as url:
        server = await asyncio.to_thread(prometheus, url.removeprefix("http://"), honor_labels=True)
        # the third scrape has pieces that the first two made
        await asyncio.to_thread(server.eventually, "count_over_time(up[1m]) > 2")
        [found] = await asyncio.to_thread(server.query, "count(DCGM_FI_DEV_GPU_UTIL)")
        assert found["value"][1] == "16"
        assert not await asyncio.to_thread(server.query, "min_over_time(up[1m]) < 1")


@pytest.mark.parametrize("name", identity.names())
def test_a_page_from_a_snapshot_is_of_its_moment(name: str) -> None:
    box = boxes.busy(boxes.OWN[name], 3)
    renderer = render.Renderer(box.machine, identity.with_workloads(identity.load(name)))
    before, snapshot = renderer.page(), renderer.snapshot()
    box.step(200.0, clock=1_700_000_200.0)
    after = renderer.page()
    assert after != before
    assert b"".join(piece.make() for piece in renderer.pieces(snapshot)) == before
    assert renderer.page() == after


def fleet_of(gpus: str, *more: str) -> Fleet:
    """A node for each."""
    cards = Fleet(seed=1)
    for number, text in enumerate((gpus, *more)):
        cards.place(f"n{number}", inline.parse(text, models.load(), field="x"))
    cards.step(1.0, clock=5.0)
    return cards


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", identity.names())
def test_no_series_of_a_fleet_is_there_twice(name: str, *, plain: bool) -> None:
    model = boxes.OWN[name]
    machine = fleet_of(f"{model}:2", f"{model}:1", f"{model}:3").machine()
    look = identity.load(name)
    look = fleet_pages.of_all_nodes(look) if plain else fleet_pages.with_target_labels(look, "gpu-operator")
    lines = render.Renderer(machine, look).page().decode().splitlines()
    series = [line.rsplit("} ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series)) > 0


def test_what_is_told_of_a_node_is_told_of_each() -> None:
    machine = fleet_of("mi300x:2", "h200:2", "mi300x:3").machine()
    for look in (identity.load("amd"), fleet_pages.with_target_labels(identity.load("amd"), "gpu-operator")):
        counts = {
            sample.labels["hostname"]: (sample.value, "instance" in sample.labels)
            for family in parser.text_string_to_metric_families(render.Renderer(machine, look).page().decode())
            for sample in family.samples
            if family.name == "gpu_nodes_total"
        }
        assert counts == {"n0": (2.0, bool(look.target_labels)), "n2": (3.0, bool(look.target_labels))}


def test_gaudi_and_nvidia_gpu_exporter_tell_of_each_node() -> None:
    page = render.Renderer(fleet_of("gaudi3:2", "gaudi3:1").machine(), identity.load("gaudi")).page().decode()
    assert re.findall(r'habanalabs_kube_info\{.*?hostname="(\w+)"', page) == ["n0", "n1"]
    look = fleet_pages.with_target_labels(identity.load("nvidia-smi"), "gpu-operator")
    page = render.Renderer(fleet_of("h200:2", "h200:1").machine(), look).page().decode()
    assert len(set(re.findall(r'nvidia_smi_last_collect_success\{.*instance="(.*?)"', page))) == 2
    assert sorted(re.findall(r"nvidia_smi_count\{.* (\d+)$", page, re.MULTILINE)) == ["1", "2", "2"]


def test_a_nodes_cards_are_linked_while_there_are_several() -> None:
    cards = Fleet(seed=1)

    def sent(gpus: str, second: float) -> float:
        node = cards.place("n1", inline.parse(gpus, models.load(), field="x"))
        cards.place("n2", inline.parse("h200:1", models.load(), field="x"))
        use = User(PodRef("train", "team", "main", "uid"), Range(80, 80), 143771)
        cards.use(node, {node.ids[0]: (use,)})
        before = cards.engine.read("fabric_bytes", [node.cards[0].number])
        cards.step(second, clock=0.0)
        return float((cards.engine.read("fabric_bytes", [node.cards[0].number]) - before)[0])

    assert sent("h200:1", 1.0) == 0
    assert sent("h200:2", 2.0) > 0
    assert sent("h200:1", 3.0) == 0


async def test_a_nodes_page_is_compressed_if_that_is_accepted() -> None:
    async with shown(plain=True) as url, aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(f"{url}/metrics/nodes/n1", headers={"Accept-Encoding": "gzip"}) as answer:
            packed = await answer.read()
            assert answer.headers["Content-Encoding"] == "gzip"
        async with session.get(f"{url}/metrics/nodes/n1", headers={"Accept-Encoding": "identity"}) as answer:
            assert gzip.decompress(packed) == await answer.read()


async def test_a_nodes_page_shows_each_step_and_what_changes_between_steps() -> None:
    cards = Fleet(seed=1)
    node = cards.place("n1", inline.parse("h200:2", models.load(), field="x"))
    cards.step(1.0, clock=0.0)
    async with showing(cards, plain=True) as url:
        assert 'pod="train"' not in await read(f"{url}/metrics/nodes/n1")
        cards.use(node, {node.ids[1]: (User(PodRef("train", "team", "main", "uid-1"), Range(10, 30), 143771),)})
        cards.step(2.0, clock=1.0)
        assert labels_of(await read(f"{url}/metrics/nodes/n1"), "1")["pod"] == "train"
        cards.fail(node, {0: DeviceFailure.LOST})
        assert " 79\n" in await read(f"{url}/metrics/nodes/n1")
        cards.place("n1", inline.parse("h200:3", models.load(), field="x"))
        assert labels_of(await read(f"{url}/metrics/nodes/n1"), "2")["gpu"] == "2"
        cards.remove("n1")
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics/nodes/n1") as answer:
            assert answer.status == 404


async def test_plain_labels_are_those_of_an_exporter_on_the_node() -> None:
    async with shown(plain=True) as url:
        page, single = await read(f"{url}/metrics"), await read(f"{url}/metrics/nodes/n1")
    labels = labels_of(page, "1")
    assert (labels["pod"], labels["namespace"], labels["container"]) == ("train", "team", "main")
    assert labels == labels_of(single, "1")
    assert "instance" not in labels


async def test_the_controllers_own_metrics_count_writes_by_kind_and_measure_times() -> None:
    requests = {("patch", "nodes"): 3, ("watch", "pods"): 7, ("create", "events"): 1}
    meters = metering.Meters(lambda: dict.fromkeys([*metering.GAUGES, *metering.COUNTERS], 2.0), lambda: requests)
    meters.waited(0.2)
    meters.scraped("fleet", 0.7)
    made = server.HttpServer([server.get("/metrics/controller", meters.page())])
    await made.start("127.0.0.1", 0, field="x")
    async with aiohttp.ClientSession() as session, session.get(f"http://{made.address}/metrics/controller") as answer:
        page = await answer.text()
    await made.stop()
    samples: Mapping[tuple[str, ...], float] = {
        (sample.name.removeprefix("simgpu_controller_"), *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["api_writes_total", "nodes", "patch"] == 3
    assert samples["api_writes_total", "events", "create"] == 1
    assert ("api_writes_total", "pods", "watch") not in samples
    assert samples["queue_depth",] == 2
    assert samples["event_lag_seconds_bucket", "0.1"] == 0
    assert samples["event_lag_seconds_bucket", "0.25"] == 1
    assert samples["scrape_seconds_sum", "fleet"] == 0.7
