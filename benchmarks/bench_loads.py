"""Pods that do what their annotations say: the CPU of very many, and the time to ask for their requests."""

from __future__ import annotations

import asyncio
import datetime
import http.server
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from benchmarks import frame
from simgpu import vocabulary
from simgpu.app import responsive
from simgpu.app.clock import SystemClock
from simgpu.app.step_threads import StepThreads
from simgpu.catalog import models
from simgpu.controllers.dra_fleet import DraFleet
from simgpu.controllers.fake_nodes import FakeNodes, FleetStores
from simgpu.controllers.knative import RequestRates
from simgpu.kube import resources, views
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.fleet import Fleet
from simgpu.promql import asking
from tests.fixtures import debian

PODS = 20_000
GPUS = 8  # of a node
SECONDS = 20  # of steps, one a second
CHURN = 20  # pods that end in a second, and others that start: each lives for a quarter of an hour
SERVED = 2000  # pods of inference
CHANGING = ("timeline", "profile", "range", "half")
AIMED = "aimed at"
NAMESPACE, RESERVATIONS = "gpu-operator", "runai-reservation"


class Accepting:
    """Stands for the API server: it accepts every write, and the stores show it."""

    def __init__(self, stores: FleetStores) -> None:
        self._stores = stores
        self.version = 0

    def meta(self, name: str, **more: Any) -> views.ObjectMeta:
        """Metadata of a new version of an object."""
        self.version += 1
        return views.ObjectMeta(name=name, resource_version=str(self.version), **more)

    async def patch(self, resource: Any, name: str, data: bytes, *, namespace: str, **_more: Any) -> bytes:
        """Take a write."""
        body, stores = msgspec.json.decode(data), self._stores
        given = body.get("metadata", {})
        if resource is resources.CONFIG_MAPS:
            meta = self.meta(name, namespace=namespace, labels=given["labels"], annotations=given["annotations"])
            stores.config_maps.put(views.ConfigMap(meta, data=body["data"]))
        elif resource is resources.NODES and (node := stores.nodes.get(name)) is not None:
            old = node.metadata
            meta = self.meta(name, uid=old.uid, labels=old.labels | given["labels"], annotations=old.annotations)
            status = msgspec.convert(body.get("status", {}), views.NodeStatus)
            stores.nodes.put(views.Node(meta, status=status))
        elif resource is resources.PODS and (pod := stores.pods.get(name, namespace=namespace)) is not None:
            annotations = pod.metadata.annotations | given.get("annotations", {})
            self.version += 1
            meta = replace(pod.metadata, annotations=annotations, resource_version=str(self.version))
            stores.pods.put(replace(pod, metadata=meta))
        return msgspec.json.encode({"metadata": {"name": name, "resourceVersion": str(self.version)}})


class Cluster:
    """Pods on fake nodes, and the controller's accounting of them: all but the requests to an API server."""

    def __init__(self) -> None:
        pods: Store[views.Pod] = Store({"node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()})
        self._stores = FleetStores(Store(), pods, Store())
        self._api = Accepting(self._stores)
        self._clock = SystemClock()
        self.fleet = Fleet(seed=1, parallel=StepThreads())
        self.fleet.begin(self._clock.wall())
        client: Any = self._api
        recorder = Recorder(client, component="bench")
        self._queue: WorkQueue[str] = WorkQueue()
        self._writer = Writer(client, manager="bench")
        self.nodes = FakeNodes(
            self._stores, self.fleet, self._queue, self._writer, recorder, namespace=NAMESPACE,
            catalog=models.load(), clock=self._clock, reservations=RESERVATIONS,
            dra=DraFleet(client, recorder, pods, changed=lambda _node: None, namespace=NAMESPACE),
        )  # fmt: skip
        self._gpus = 0
        pool = {"nodePools": {"default": {"gpus": [{"type": "h200", "count": GPUS}]}}}
        data = {vocabulary.TOPOLOGY_KEY: yaml.safe_dump(pool)}
        self._stores.config_maps.put(views.ConfigMap(self._meta(vocabulary.TOPOLOGY, namespace=NAMESPACE), data=data))

    def _meta(self, name: str, **more: Any) -> views.ObjectMeta:
        return self._api.meta(name, uid=f"u{self._api.version}", **more)

    def pod(self, name: str, *, gpu: bool = True, namespace: str = "team", **meta: Any) -> None:
        """Add a pod that runs, on the next GPU or beside the last one."""
        node = f"node-{(self._gpus - (not gpu)) // GPUS}"
        self._gpus += gpu
        if self._stores.nodes.get(node) is None:
            there = {vocabulary.POOL_LABEL: "default"}, {"kwok.x-k8s.io/node": "fake"}
            self._stores.nodes.put(views.Node(self._meta(node, labels=there[0], annotations=there[1])))
        resources = views.Resources(limits={vocabulary.GPU_RESOURCE: "1"} if gpu else {})
        spec = views.PodSpec(containers=(views.Container(name="main", resources=resources),), node_name=node)
        ago = self._api.version % 3600
        began = datetime.datetime.fromtimestamp(self._clock.wall() - ago, datetime.UTC).isoformat()
        status = views.PodStatus(phase="Running", start_time=began)
        self._stores.pods.put(views.Pod(self._meta(name, namespace=namespace, **meta), spec, status))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reconcile nodes as pods change, and write their views, as the controller does; all pods have GPUs."""
        self.nodes.watch()
        self.nodes.start()
        tasks = [asyncio.create_task(item) for item in (self._queue.run(self.nodes.reconcile), self._writer.run())]
        try:
            while self.nodes.unseen or self._queue.depth or self._writer.pending:
                await asyncio.sleep(0.1)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def users(self) -> int:
        """How many containers have GPUs, or parts of them."""
        return sum(len(card.users) for node in self.fleet.nodes.values() for card in node.cards)

    def step(self) -> None:
        """Make a step, and what follows it at once."""
        self.fleet.step(self._clock.steady(), clock=self._clock.wall())
        self.nodes.stepped()

    def successors(self, second: int) -> list[views.Pod]:
        """Return pods that take the places of others, of each kind as many."""
        names = [f"{kind}-{second * CHURN // 4 + at}" for kind in CHANGING for at in range(CHURN // 4)]
        pods = [pod for name in names if (pod := self._stores.pods.get(name, namespace="team")) is not None]
        now = datetime.datetime.fromtimestamp(self._clock.wall(), datetime.UTC).isoformat()
        return [
            views.Pod(
                self._meta(
                    f"{pod.metadata.name}-next",
                    namespace=pod.metadata.namespace,
                    labels=pod.metadata.labels,
                    annotations=pod.metadata.annotations,
                ),
                pod.spec,
                views.PodStatus(phase="Running", start_time=now),
            )
            for pod in pods
        ]

    def succeed(self, pods: Sequence[views.Pod]) -> None:
        """Let pods end, and their successors run."""
        for pod in pods:
            self._stores.pods.remove(f"{pod.metadata.namespace}/{pod.metadata.name.removesuffix('-next')}")
            self._stores.pods.put(pod)


def timeline(number: int) -> dict[str, str]:
    """A timeline of four steps, of which each lasts a minute or a few."""
    steps = [
        {"time": f"{60 + 20 * ((number + step) % 9)}s", "utilization": f"{10 * step}-{20 * step + 20}"}
        for step in range(4)
    ]
    return {vocabulary.TIMELINE_ANNOTATION: json.dumps({"steps": steps, "repeat": 0})}


def profile(number: int) -> dict[str, str]:
    """A profile of three activities, one of which fills its memory, with limits that it does not reach."""
    leak = {"memory": {"Func": "increase", "Min": 1e6, "Max": 2e6, "Unit": "absolute", "Period": 5}}
    steps = [{"Load": 30 + 20 * step, "Fluctuation": 5, "Seconds": 30 + number % 60} for step in range(3)]
    steps[0]["Metrics"] = leak  # type: ignore[assignment]
    limits = {"runtime": 1e9, "memory": 1.6e11, "temperature": 200}
    return {vocabulary.ACTIVITY_ANNOTATION: json.dumps({"Profile": steps, "Repeat": 0, "Limits": limits})}


def mixed() -> Cluster:
    """Of eight pods two follow timelines and two profiles, two share the GPU of a third, and one has a range."""
    made = Cluster()
    for number in range(PODS // 8):
        group = {vocabulary.RUNAI_GROUP: f"group-{number}"}
        made.pod(f"timeline-{number}", annotations=timeline(number))
        made.pod(f"timeline-too-{number}", annotations=timeline(number + 4))
        made.pod(f"profile-{number}", annotations=profile(number))
        made.pod(f"profile-too-{number}", annotations=profile(number + 30))
        made.pod(f"range-{number}", annotations={vocabulary.UTILIZATION_ANNOTATION: "20-80"})
        made.pod(f"reservation-{number}", namespace=RESERVATIONS, labels=group)
        for name, share in (("half", "0.5"), ("rest", "0.3")):
            own = {vocabulary.FRACTION_ANNOTATION: share, **(timeline(number) if name == "half" else {})}
            made.pod(f"{name}-{number}", gpu=False, labels=group, annotations=own)
    return made


async def seconds_of(made: Cluster) -> list[float]:
    """Milliseconds of CPU, of all threads, in each of many seconds with a step, while some pods end and others start.

    That includes the reconciles that follow, the users of GPUs, and rendering the views that change or are saved.
    """
    found = []
    async with made.running():
        assert made.users == PODS, f"{made.users} pods have GPUs"
        responsive.keep_responsive()  # as the controller does
        for _ in range(3):
            made.step()
            await asyncio.sleep(1)  # what follows the start
        for second in range(SECONDS):
            next_pods, until = made.successors(second), time.monotonic() + 1.0
            before = time.process_time()
            made.step()
            made.succeed(next_pods)
            await asyncio.sleep(until - time.monotonic())
            found.append(1000 * (time.process_time() - before))
        assert made.users == PODS, f"{made.users} pods have GPUs"
    return found


@contextmanager
def counting(pods: int) -> Iterator[str]:
    """A page with a counter of requests for each pod: its address."""
    began = time.monotonic()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            count = 40 * (time.monotonic() - began)
            name = "revision_app_request_count"
            lines = (
                f'{name}{{namespace_name="team",pod_name="served-{at}"}} {count * (at % 3):.3f}\n' for at in range(pods)
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("".join(lines).encode())

        def log_message(self, *_arguments: object) -> None:
            """Keep quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prometheus(target: str) -> Iterator[str]:
    """Debian's Prometheus, which scrapes a target each second: its address."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as home:
        scrape = {"job_name": "knative", "static_configs": [{"targets": [target]}]}
        times = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        Path(home, "prometheus.yml").write_text(yaml.safe_dump({"global": times, "scrape_configs": [scrape]}))
        command = [
            str(debian.program("prometheus", "usr/bin/prometheus")), f"--config.file={home}/prometheus.yml",
            f"--storage.tsdb.path={home}/data", f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def _free_port() -> int:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.server_close()
    return server.server_port


async def asked(made: Cluster, server: str, turns: int) -> tuple[float, int]:
    """Seconds of one look at the requests of all pods, the median, and how many queries each look makes."""
    queries = 0

    async def ask(query: str, seconds: float) -> list[asking.SeriesSample]:
        nonlocal queries
        queries += 1
        return await asking.instant(server, query, timeout_seconds=seconds)

    engine = made.fleet.engine
    rates = RequestRates(ask, made.fleet.request_driven, engine.set_usage, SystemClock(), print)
    assert len(list(made.fleet.request_driven())) == SERVED
    until = time.monotonic() + 120
    while True:  # until there are rates
        await rates.look()
        made.step()
        busy = sum(
            float(engine.read("usage", [card.number])[0]) > 0
            for node in made.fleet.nodes.values()
            for card in node.cards
        )
        if busy == sum(at % 3 > 0 for at in range(SERVED)):
            break
        assert time.monotonic() < until, f"{busy} pods are busy; {rates.problem}"
        await asyncio.sleep(0.5)
    queries, taken = 0, list[float]()
    for _ in range(turns):
        before = time.perf_counter()
        await rates.look()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken), queries // turns


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    spent = await seconds_of(mixed())
    about = (
        f"{PODS:,} pods with timelines, profiles, ranges and fractions, of which {CHURN} are replaced in a second: "
        "engine, reconciles and views, without requests to the API server; "
        f"a tenth of a core at one step a second, {AIMED}"
    )
    yield frame.Figure("loads.second_cpu", statistics.mean(spent), 100.0, "ms", about)
    yield frame.Figure("loads.second_cpu_p95", statistics.quantiles(spent, n=20)[-1], 100.0, "ms", about)
    served = Cluster()
    for number in range(SERVED):
        served.pod(f"served-{number}", labels={vocabulary.KIND_LABEL: "InferenceWorkload"})
    with counting(SERVED) as target, prometheus(target) as server:
        async with served.running():
            seconds, queries = await asked(served, server, turns=9)
    assert queries == 1
    yield frame.Figure("loads.knative_query", seconds, 1.0, "s", f"one query for {SERVED:,} pods, {AIMED}")
