"""Any sequence of pod, node and configuration events leaves the fleet as a start from the same objects would."""

from __future__ import annotations

import asyncio
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.controllers.fleet import Fleet
from simgpu.controllers.nodes import Nodes, Stores
from simgpu.kube import views
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer

CATALOG = models.load()
LABEL = "run.ai/simulated-gpu-node-pool"
NODES, PODS = ("a", "b"), ("p", "q", "r", "s")


class World:
    """The objects of a cluster, and a controller over them that writes nothing."""

    def __init__(self) -> None:
        pods: Store[views.Pod] = Store({"node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()})
        self.stores = Stores(Store(), pods, Store())
        self.fleet = Fleet(seed=1)
        nobody: Any = None
        self.nodes = Nodes(
            self.stores, self.fleet, WorkQueue(), Writer(nobody, manager="test"), Recorder(nobody, component="test"),
            namespace="ns", catalog=CATALOG, clock=lambda: 0.0,
        )  # fmt: skip
        self.now = 0.0

    def apply(self, kind: str, name: str, value: Any) -> None:
        getattr(self, f"_{kind}")(name, value)
        self.nodes.configure()
        for node in NODES:
            asyncio.run(self.nodes.reconcile(node))
        self.now += 0.5
        self.fleet.step(self.now, clock=0.0)

    def _config(self, _name: str, counts: Any) -> None:
        pools = {
            pool: {"gpuCount": count, "gpuProduct": "Tesla-K80", "gpuMemory": 1000} for pool, count in counts.items()
        }
        data = {"topology.yml": yaml.safe_dump({"nodePools": pools})}
        self.stores.config_maps.put(
            views.ConfigMap(metadata=views.ObjectMeta(name="topology", namespace="ns"), data=data)
        )

    def _node(self, name: str, pool: str | None) -> None:
        if pool is None:
            self.stores.nodes.remove(name)
            return
        meta = views.ObjectMeta(name=name, labels={LABEL: pool}, annotations={"kwok.x-k8s.io/node": "fake"})
        self.stores.nodes.put(views.Node(metadata=meta))

    def _pod(self, name: str, value: tuple[str, str, tuple[int, ...]] | None) -> None:
        if value is None:
            self.stores.pods.remove(f"ns/{name}")
            return
        node, phase, counts = value
        containers = tuple(
            views.Container(name=f"c{number}", resources=views.Resources(limits={"nvidia.com/gpu": str(count)}))
            for number, count in enumerate(counts)
        )
        meta = views.ObjectMeta(
            name=name, namespace="ns", uid=f"uid-{name}-{node}", creation_timestamp="2026-01-01T00:00:00Z"
        )
        spec = views.PodSpec(containers=containers, node_name=node)
        self.stores.pods.put(views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase=phase)))

    def check(self) -> None:
        running = 0
        for name, placed in self.fleet.nodes.items():
            assert len(placed.ids) == len(set(placed.ids)) == len(placed.spec.gpus)
            wanted = 0
            for pod in self.stores.pods.by("node", name):
                if pod.status.phase not in ("Succeeded", "Failed"):
                    wanted += sum(int(item.resources.limits["nvidia.com/gpu"]) for item in pod.spec.containers or ())
            held = [card for card in placed.cards if card.use is not None]
            assert len(held) == min(wanted, len(placed.cards))
            alive = {pod.metadata.uid for pod in self.stores.pods.by("node", name)}
            assert {card.use.uid for card in held if card.use} <= alive
            running += len(held)
        assert len(self.fleet.engine.workloads()) == running
        assert set(self.fleet.nodes) <= {node.metadata.name for node in self.stores.nodes}
        assert len(self.fleet.machine().devices) == sum(len(node.cards) for node in self.fleet.nodes.values())


PHASES = st.sampled_from(["Pending", "Running", "Succeeded"])
COUNTS = st.lists(st.integers(1, 2), min_size=1, max_size=2).map(tuple)
PODS_CHANGE = st.one_of(st.none(), st.tuples(st.sampled_from(NODES), PHASES, COUNTS))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from(PODS), PODS_CHANGE),
        st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from([None, "x", "y", "unknown"])),
        st.tuples(
            st.just("config"), st.just(""), st.fixed_dictionaries({"x": st.integers(0, 4), "y": st.integers(0, 3)})
        ),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(EVENTS)
def test_whatever_happens_the_fleet_is_consistent(events: list[tuple[str, str, Any]]) -> None:
    world = World()
    world.apply("config", "", {"x": 2, "y": 3})
    for event in events:
        world.apply(*event)
        world.check()
