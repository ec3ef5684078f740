"""The controller of fake nodes: from nodes, pods and configuration to cards and to what is written about them.

Level-triggered: a key is a node's name, and a reconcile looks at everything as it is now. What it writes is only what
differs; what it cannot read it leaves alone and says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers import configuring, publishing
from simgpu.controllers.fleet import Fleet, NodeCards
from simgpu.kube import resources
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.kube.writer import Target, Writer
from simgpu.pods import assigning, requests
from simgpu.topology import pools, sharing

VIEW_EVERY = 1.0
SAVE_EVERY = 300.0
RETIRE_EVERY = 1.0

_log = logging.getLogger(__name__)


class Stores(msgspec.Struct):
    """What is seen of the cluster."""

    nodes: Store[Node]
    pods: Store[Pod]
    config_maps: Store[ConfigMap]


class Clocks(msgspec.Struct, frozen=True):
    """Waits go by the steady one. The wall clock is one that other controllers share, and may be set at any time."""

    steady: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class Nodes:
    """Keeps fake nodes and the fleet's cards in step with each other."""

    def __init__(
        self,
        stores: Stores,
        fleet: Fleet,
        queue: WorkQueue[str],
        writer: Writer,
        recorder: Recorder,
        *,
        namespace: str,
        catalog: models.Catalog,
        clocks: Clocks | None = None,
    ) -> None:
        self._stores = stores
        self._fleet = fleet
        self._queue = queue
        self._writer = writer
        self._recorder = recorder
        self._namespace = namespace
        self._catalog = catalog
        clocks = clocks or Clocks()
        self._clock, self._wall_clock = clocks.steady, clocks.wall
        self.configuration = configuring.Configuration(
            stores.config_maps, recorder, namespace=namespace, catalog=catalog
        )
        self._published: dict[str, float] = {}  # when a node's view was written last
        self._unpublished: set[str] = set()  # nodes whose pods have changed since
        self._held: dict[str, dict[str, tuple[str, ...]]] = {}
        self._traces: dict[str, publishing.Traces] = {}
        self._leaving: set[str] = set()  # nodes that all traces of ours are being taken from
        self._restored: set[str] = set()
        self.unseen: set[str] = set()

    # What came.

    def watch(self) -> None:
        """Let changes of nodes, pods and configuration become work."""
        self._stores.nodes.listen(lambda change: self._node_changed(change.key, change.old, change.new))
        self._stores.pods.listen(lambda change: self._pod_changed(change.old, change.new))
        self._stores.config_maps.listen(lambda change: self._config_map_changed(change.key, change.old, change.new))

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or _told(old) != _told(new):
            self._queue.add(name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is None or not pod.spec.node_name:
                continue
            if (
                requests.requests(pod)
                or self._exports(pod)
                or vocabulary.RUN_TIME_ANNOTATION in pod.metadata.annotations
            ):
                self._queue.add(pod.spec.node_name)

    def _config_map_changed(self, key: str, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if old is not None and new is not None and publishing.same_but_counters(old, new):
            return
        if self.configuration.concerns(key.rpartition("/")[2]):
            self.configure()
        for node in {publishing.node_of(view) for view in (old, new) if view is not None} - {""}:
            if new is None:
                self._published.pop(node, None)
            self._queue.add(node)

    def configure(self) -> None:
        """Read the configuration."""
        if self.configuration.read():
            self._look_at_all()

    def start(self) -> None:
        """Read the configuration and look at everything; `unseen` is what has not been looked at yet."""
        self.configure()
        self.unseen = self._all()
        self._look_at_all()

    def _look_at_all(self) -> None:
        for name in self._all():
            self._queue.add(name)

    def _all(self) -> set[str]:
        """Nodes that are there, and those that something was published of."""
        published = {publishing.node_of(item) for item in self.configuration.views()}
        return published | {node.metadata.name for node in self._stores.nodes}

    def describe_node(self, name: str) -> dict[str, Any] | None:
        """One node as the topology API tells it; of a real one, what was published of it."""
        if (placed := self._fleet.nodes.get(name)) is not None:
            strategy = self._config.mig_strategy
            return publishing.node_json(
                publishing.document(placed.ids, placed.spec, strategy=strategy, uses=_uses_of(placed))
            )
        view = self._stores.config_maps.get(publishing.view_name(name), namespace=self._namespace)
        return publishing.view_json(view) if view is not None else None

    @property
    def _config(self) -> pools.Topology:
        """What is in force; nodes are looked at only once it was read."""
        assert self.configuration.current is not None  # noqa: S101
        return self.configuration.current

    # One node.

    async def reconcile(self, name: str) -> float | None:
        """Make everything about one node as it should be; seconds until it should be looked at again."""
        await asyncio.sleep(0)  # what was decided has to be written too
        self.unseen.discard(name)
        node = self._stores.nodes.get(name)
        spec = self._spec(node) if node is not None else None
        if node is None or spec is None:
            return self._retire(name, node)
        for pod in self._stores.pods.by("node", name):
            self._check_run_time(pod)
        first = name not in self._restored
        known = self._fleet.nodes.get(name)
        changed = known is not None and known.spec != spec
        config_map = self._stores.config_maps.get(publishing.view_name(name), namespace=self._namespace)
        before = publishing.remembered(config_map) if first else None
        if before is not None:
            self._traces.setdefault(name, publishing.traces(before, node))
            self._fleet.address(name, before.counters.address)
            if config_map is not None:
                self._published.setdefault(name, self._clock() - VIEW_EVERY)
        placed = self._fleet.place(name, spec)
        if before is not None:
            self._fleet.resume(placed, *self._saved(before))
        self._fleet.name_exporter(name, *self._exporter(name))
        uses = self._uses(name, placed, before)
        self._restored.add(name)
        if self._fleet.use(placed, uses):
            self._unpublished.add(name)
        self._publish_node(node, spec)
        # A node that left and came back: its view may still be there, and about to be deleted.
        deleting = first and not self._writer.settled(self._view_target(name), None)
        if changed or deleting or (config_map is None and name not in self._published):
            return self._write_view(placed, self._view(placed), urgent=True)
        return self._publish_view(placed, config_map, urgent=first)

    def _spec(self, node: Node) -> pools.NodeGpus | None:
        """What a node should have; None for one that is not ours. Who mistypes it keeps what was there."""
        meta = node.metadata
        if meta.annotations.get(vocabulary.KWOK_NODE) != "fake" or meta.deletion_timestamp:
            return None
        spec = self.configuration.of(node, self._last_good)
        return msgspec.structs.replace(spec, slicing=sharing.NONE) if spec else None  # nobody here offers shares

    def _last_good(self, name: str) -> pools.NodeGpus | None:
        """What a node has, or had when another controller wrote it down."""
        if (placed := self._fleet.nodes.get(name)) is not None:
            return placed.spec
        view = self._view_of(name) if name not in self._leaving else None
        return publishing.published([view] if view else [], self._catalog).nodes.get(name)

    def _view_of(self, name: str) -> ConfigMap | None:
        """What was published of a node."""
        found = self._stores.config_maps.get(publishing.view_name(name), namespace=self._namespace)
        return found if found is not None and publishing.is_view(found) else None

    def _exporter(self, name: str) -> tuple[str, str]:
        """The pod that pretends to be the node's exporter, where there is one: its name and address."""
        for pod in self._stores.pods.by("node", name):
            if self._exports(pod) and requests.holds(pod):
                return pod.metadata.name, pod.status.pod_ip
        return "", ""

    def _exports(self, pod: Pod) -> bool:
        """Whether a pod pretends to be an exporter. Anybody can label a pod, but not one in our namespace."""
        return (
            pod.metadata.namespace == self._namespace
            and pod.metadata.labels.get(vocabulary.APP_LABEL) == vocabulary.EXPORTER
        )

    def _uses(self, name: str, placed: NodeCards, before: publishing.Remembered | None) -> dict[str, publishing.Use]:
        """Who has which GPU of a node, by id."""
        there = [pod for pod in self._stores.pods.by("node", name) if requests.holds(pod) and requests.requests(pod)]
        there.sort(key=lambda pod: pod.metadata.seniority)
        wishes = [_wish(pod) for pod in there]
        if before is not None:
            self._held[name] = {wish.uid: assigning.places(wish, before.held.get(wish.uid, ())) for wish in wishes}
        held = assigning.assign(placed.ids, self._held.get(name, {}), wishes)
        self._held[name] = held
        memory = {card.id: card.gpu.model.memory_mib.usable for card in placed.cards}
        uses: dict[str, publishing.Use] = {}
        for pod, wish in zip(there, wishes, strict=True):
            span = self._range(pod)
            owners, passing = wish.owners(started=requests.running(pod)), requests.passing(pod)
            for container, gpu in zip(owners, held[wish.uid], strict=True):
                if gpu:
                    busy = requests.NONE if container in passing else span
                    uses[gpu] = _use(pod, container, busy, memory[gpu])
        return uses

    def _range(self, pod: Pod) -> requests.Range:
        if not requests.running(pod):
            return requests.NONE
        try:
            return requests.utilisation(pod)
        except errors.InputError as error:
            self.configuration.complain(configuring.about(pod), "InvalidUtilization", str(error))
            return requests.ALL

    def _check_run_time(self, pod: Pod) -> None:
        try:
            requests.check_run_time(pod)
        except errors.InputError as error:
            self.configuration.complain(configuring.about(pod), "InvalidRunTime", str(error))

    # Writing.

    def _publish_node(self, node: Node, spec: pools.NodeGpus) -> None:
        target = Target(resources.NODES, node.metadata.name)
        traces = self._traces[target.name]
        self._leaving.discard(target.name)
        if self._writer.settled(target, node):
            traces.fade(node)
        labels, amounts = publishing.labels(spec, self._config.mig_strategy), publishing.amounts(spec)
        traces.labels.update(labels)
        traces.resources.update(amounts)
        self._write_node(node, "", publishing.label_patch(labels, traces.labels))
        self._write_node(node, "status", publishing.capacity_patch(amounts, traces.resources))

    def _clean(self, node: Node) -> None:
        """Take all traces of ours from a node, once: what comes there later is somebody else's."""
        name = node.metadata.name
        if name not in self._leaving:
            self._leaving.add(name)
            traces = self._traces[name]
            # The mark goes last, so that a clean-up that was cut short is found again.
            self._write_node(node, "status", publishing.capacity_patch({}, traces.resources))
            self._write_node(node, "", publishing.label_patch({}, traces.labels))

    def _write_node(self, node: Node, part: str, patch: dict[str, Any]) -> None:
        name = node.metadata.name
        target = Target(resources.NODES, name, subresource=part)
        self._writer.merge(target, patch, observed=node, urgent=True, failed=self._again(name))

    def _again(self, name: str) -> Callable[[Exception], None]:
        """What could not be written is looked at again later."""

        def failed(_error: Exception) -> None:
            self._published.pop(name, None)
            self._leaving.discard(name)
            self._queue.add_after(name, 5.0)

        return failed

    def _publish_view(self, placed: NodeCards, config_map: ConfigMap | None, *, urgent: bool) -> float:
        """Write the view if it says something new, or it is its turn to be saved; seconds until the next look."""
        since, turn = self._clock() - self._published.get(placed.name, float("-inf")), self._turn(placed.name)
        saved = since <= SAVE_EVERY - turn
        if config_map is None and placed.name not in self._unpublished and saved:
            return turn  # it is on its way
        if since < VIEW_EVERY:
            return VIEW_EVERY - since
        body = self._view(placed)
        same = (
            config_map is not None
            and config_map.data.get(vocabulary.TOPOLOGY_KEY) == body["data"][vocabulary.TOPOLOGY_KEY]
        )
        if same and saved:
            self._unpublished.discard(placed.name)
            return turn
        return self._write_view(placed, body, urgent=urgent and not same)

    def _turn(self, name: str) -> float:
        """Seconds until a node's counters are saved: each node has a moment of its own, so that few come at once."""
        return SAVE_EVERY - (self._clock() + zlib.crc32(name.encode())) % SAVE_EVERY

    def _view(self, placed: NodeCards) -> dict[str, Any]:
        name = placed.name
        counters = {
            "time": round(self._wall_clock(), 1),
            "address": self._fleet.address(name),
            "gpus": self._fleet.counters(placed),
        }
        return publishing.view(
            name,
            placed.ids,
            placed.spec,
            strategy=self._config.mig_strategy,
            uses=_uses_of(placed),
            counters=counters,
            labelled=self._traces[name].labels,
        )

    def _write_view(self, placed: NodeCards, body: dict[str, Any], *, urgent: bool) -> float:
        self._published[placed.name] = self._clock()
        self._unpublished.discard(placed.name)
        self._writer.apply(self._view_target(placed.name), body, urgent=urgent, failed=self._again(placed.name))
        return self._turn(placed.name)

    def _view_target(self, name: str) -> Target:
        return Target(resources.CONFIG_MAPS, publishing.view_name(name), self._namespace)

    async def save(self) -> None:
        """Write where all counters stand, for whoever goes on from here."""
        for placed in list(self._fleet.nodes.values()):
            self._write_view(placed, self._view(placed), urgent=True)
            await asyncio.sleep(0)  # what was decided has to be written too

    def _saved(self, before: publishing.Remembered) -> tuple[dict[str, list[float]], float]:
        """Counters as they were saved, by GPU, and how long ago that was. What somebody broke is left out.

        Where the clock was set back since, nobody knows how long: counters were seen to grow for one turn at most.
        """
        if before.broken:
            _log.warning("saved counters cannot be read, and start anew: %s", before.broken)
            return {}, 0.0
        since = self._wall_clock() - before.counters.time
        return before.counters.gpus, since if since >= 0 else SAVE_EVERY

    def _retire(self, name: str, node: Node | None) -> float | None:
        """A node is gone, or not ours any more: nothing of ours stays on it, and then its view goes too."""
        self._fleet.remove(name)
        self._held.pop(name, None)
        self._published.pop(name, None)
        self._unpublished.discard(name)
        config_map = self._view_of(name)
        before = publishing.remembered(config_map)
        if name not in self._restored:  # it went while nobody looked, and may come back
            self._fleet.remember(*self._saved(before))
        self._restored.discard(name)
        if node is not None:
            self._traces.setdefault(name, publishing.traces(before, node))
            self._clean(node)
        if not self._writer.settled(Target(resources.NODES, name), node):
            return RETIRE_EVERY
        if config_map is not None:
            self._writer.delete(self._view_target(name), failed=self._again(name))
        if config_map is None or node is None:
            self._traces.pop(name, None)
            self._leaving.discard(name)
        return None


def _uses_of(placed: NodeCards) -> dict[str, tuple[publishing.Use, ...]]:
    return {card.id: (card.use,) for card in placed.cards if card.use is not None}


def _wish(pod: Pod) -> assigning.Wish:
    lasting, first, beside, sidecars = [], [], [], 0
    early, passing = {item.name for item in pod.spec.init_containers}, requests.passing(pod)
    for item in requests.requests(pod):
        if item.container in passing:
            first.append(item)
            beside.append(sidecars)
        else:
            lasting.append(item)
            sidecars += item.count if item.container in early else 0
    return assigning.Wish(pod.metadata.uid, tuple(lasting), tuple(first), tuple(beside))


def _use(pod: Pod, container: str, span: requests.Range, memory: int) -> publishing.Use:
    meta = pod.metadata
    return publishing.Use(meta.uid, meta.namespace, meta.name, container, span.low, span.high, memory)


def _told(node: Node) -> tuple[object, ...]:
    """What is read of a node; heartbeats change none of it."""
    meta, status = node.metadata, node.status
    return meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, status.capacity, status.allocatable
