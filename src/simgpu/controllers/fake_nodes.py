"""The controller of fake nodes: from nodes, pods and configuration to cards and to what is written about them.

Level-triggered: a key is a node's name, and a reconcile looks at everything as it is now. It writes only what differs;
what it cannot read it reports and leaves alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers import configuring, publishing
from simgpu.controllers.node_views import SAVE_EVERY, VIEW_EVERY, NodeViews, ViewState
from simgpu.kube import resources
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.kube.writer import Target, Writer
from simgpu.machines import users
from simgpu.machines.fleet import Fleet, NodeCards
from simgpu.machines.ticking import Clock
from simgpu.machines.users import PodRef, User
from simgpu.pods import assigning, requests
from simgpu.topology import pools, sharing

RETIRE_EVERY = 1.0  # seconds
RETRY_AFTER = 5.0  # seconds after a write that failed
MAX_SAVE_SECONDS = 6.0  # shorter than the default lease, and than the grace period of a process that is asked to end

_log = logging.getLogger(__name__)


class FleetStores(msgspec.Struct):
    """What is seen of the cluster."""

    nodes: Store[Node]
    pods: Store[Pod]
    config_maps: Store[ConfigMap]


class NodeRecord(msgspec.Struct):
    """What the controller knows of a node beyond what the API shows.

    `held` are the GPUs of each pod by uid, `traces` what we have written on the node. A node that is `leaving` is being
    cleaned of them, one that is `restored` has its saved counters.
    """

    view: ViewState = msgspec.field(default_factory=ViewState)
    held: dict[str, tuple[str, ...]] = {}
    traces: publishing.Traces | None = None
    leaving: bool = False
    restored: bool = False


class FakeNodes:
    """Keeps fake nodes and the fleet's cards in step with each other."""

    def __init__(
        self,
        stores: FleetStores,
        fleet: Fleet,
        queue: WorkQueue[str],
        writer: Writer,
        recorder: Recorder,
        *,
        namespace: str,
        catalog: models.Catalog,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._fleet = fleet
        self._queue = queue
        self._writer = writer
        self._recorder = recorder
        self._namespace = namespace
        self._catalog = catalog
        self._clock = clock
        self._views = NodeViews(writer, namespace=namespace, clock=clock)
        self.configuration = configuring.Configuration(
            stores.config_maps, recorder, namespace=namespace, catalog=catalog
        )
        self._records: dict[str, NodeRecord] = {}
        self.unseen = {""}  # nodes to reconcile for the first time; unknown before `start`

    # What came.

    def watch(self) -> None:
        """Let changes of nodes, pods and configuration become work."""
        self._stores.nodes.listen(lambda change: self._node_changed(change.key, change.old, change.new))
        self._stores.pods.listen(lambda change: self._pod_changed(change.old, change.new))
        self._stores.config_maps.listen(lambda change: self._config_map_changed(change.key, change.old, change.new))

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or _relevant(old) != _relevant(new):
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
            if new is None and (record := self._records.get(node)) is not None:
                record.view.written = None
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
        """One node as the topology API shows it; of a real one, what was published of it."""
        if (placed := self._fleet.nodes.get(name)) is not None:
            strategy = self._config.mig_strategy
            return publishing.node_json(
                publishing.document(placed.ids, placed.spec, strategy=strategy, users=placed.users())
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
        record = self._records.setdefault(name, NodeRecord())
        first = not record.restored
        known = self._fleet.nodes.get(name)
        changed = known is not None and known.spec != spec
        config_map = self._stores.config_maps.get(publishing.view_name(name), namespace=self._namespace)
        before = publishing.remembered(config_map) if first else None
        if before is not None:
            record.traces = record.traces or publishing.traces(before, node)
            self._fleet.address(name, before.counters.address)
            if config_map is not None and record.view.written is None:
                record.view.written = self._clock.steady() - VIEW_EVERY
        placed = self._fleet.place(name, spec)
        if before is not None:
            self._fleet.resume(placed, *self._saved(before))
        self._fleet.name_exporter(name, *self._exporter(name))
        assigned = self._users(name, placed, record, before)
        record.restored = True
        if self._fleet.use(placed, assigned):
            record.view.changed = True
        self._publish_node(node, spec, record)
        failed = self._retry(name)
        # A node that left and came back: its view may still be there, and about to be deleted.
        deleting = first and not self._writer.settled(self._views.target(name), None)
        if changed or deleting:
            return self._views.write(name, record.view, self._view(placed), urgent=True, failed=failed)
        return self._views.publish(
            name, record.view, config_map, lambda: self._view(placed), urgent=first, failed=failed
        )

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
        record = self._records.get(name)
        view = None if record is not None and record.leaving else self._view_of(name)
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

    def _users(
        self, name: str, placed: NodeCards, record: NodeRecord, before: publishing.Remembered | None
    ) -> dict[str, tuple[User, ...]]:
        """Who uses which GPU of a node, by id."""
        there = [pod for pod in self._stores.pods.by("node", name) if requests.holds(pod) and requests.requests(pod)]
        there.sort(key=lambda pod: pod.metadata.seniority)
        wishes = [_wish(pod) for pod in there]
        if before is not None:
            record.held = {wish.uid: assigning.places(wish, before.held.get(wish.uid, ())) for wish in wishes}
        held = record.held = assigning.assign(placed.ids, record.held, wishes)
        memory = {card.device.uuid: card.device.model.memory_mib.usable for card in placed.cards}
        found: dict[str, tuple[User, ...]] = {}
        for pod, wish in zip(there, wishes, strict=True):
            span, meta = self._range(pod), pod.metadata
            owners, passing = wish.owners(started=requests.running(pod)), requests.passing(pod)
            for container, gpu in zip(owners, held[wish.uid], strict=True):
                if gpu:
                    busy = users.NONE if container in passing else span
                    ref = PodRef(meta.name, meta.namespace, container, meta.uid)
                    found[gpu] = (User(ref, busy, memory[gpu]),)
        return found

    def _range(self, pod: Pod) -> users.Range:
        if not requests.running(pod):
            return users.NONE
        try:
            return requests.utilisation(pod)
        except errors.InputError as error:
            self.configuration.complain(configuring.about(pod), "InvalidUtilization", str(error))
            return users.ALL

    def _check_run_time(self, pod: Pod) -> None:
        try:
            requests.check_run_time(pod)
        except errors.InputError as error:
            self.configuration.complain(configuring.about(pod), "InvalidRunTime", str(error))

    # Writing.

    def _publish_node(self, node: Node, spec: pools.NodeGpus, record: NodeRecord) -> None:
        traces = record.traces = record.traces or publishing.Traces(set(), set())
        record.leaving = False
        if self._writer.settled(Target(resources.NODES, node.metadata.name), node):
            traces.fade(node)
        labels, amounts = publishing.labels(spec, self._config.mig_strategy), publishing.amounts(spec)
        traces.labels.update(labels)
        traces.resources.update(amounts)
        self._write_node(node, "", publishing.label_patch(labels, traces.labels))
        self._write_node(node, "status", publishing.capacity_patch(amounts, traces.resources))

    def _clean(self, node: Node, record: NodeRecord, traces: publishing.Traces) -> None:
        """Take all traces of ours from a node, once: what comes there later is not ours."""
        if not record.leaving:
            record.leaving = True
            # The mark goes last, so that a clean-up that was cut short is found again.
            self._write_node(node, "status", publishing.capacity_patch({}, traces.resources))
            self._write_node(node, "", publishing.label_patch({}, traces.labels))

    def _write_node(self, node: Node, part: str, patch: dict[str, Any]) -> None:
        name = node.metadata.name
        target = Target(resources.NODES, name, subresource=part)
        self._writer.merge(target, patch, observed=node, urgent=True, failed=self._retry(name))

    def _retry(self, name: str) -> Callable[[Exception], None]:
        """A callback for a write that failed: the node is looked at again later."""

        def failed(_error: Exception) -> None:
            if (record := self._records.get(name)) is not None:
                record.view.written = None
                record.leaving = False
            self._queue.add_after(name, RETRY_AFTER)

        return failed

    def _view(self, placed: NodeCards) -> dict[str, Any]:
        name = placed.name
        traces = self._records[name].traces
        counters = {
            "time": round(self._clock.wall(), 1),
            "address": self._fleet.address(name),
            "gpus": self._fleet.counters(placed),
        }
        return publishing.view(
            name,
            placed.ids,
            placed.spec,
            strategy=self._config.mig_strategy,
            users=placed.users(),
            counters=counters,
            labelled=traces.labels if traces is not None else (),
        )

    async def save(self) -> None:
        """Write all counters, for the next controller to resume from."""
        for placed in list(self._fleet.nodes.values()):
            name = placed.name
            state = self._records[name].view
            self._views.write(name, state, self._view(placed), urgent=True, failed=self._retry(name))
            await asyncio.sleep(0)  # let the writer run

    async def save_before_exit(self) -> None:
        """Save, and run the writer until that is done or out of time: then counters resume from the save before."""
        writing = asyncio.create_task(self._writer.run())
        try:
            async with asyncio.timeout(MAX_SAVE_SECONDS):
                await self.save()
                await self._writer.drained()
        except TimeoutError:
            _log.warning("%d nodes' counters could not be saved in time", self._writer.pending)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _saved(self, before: publishing.Remembered) -> tuple[dict[str, list[float]], float]:
        """Counters as they were saved, by GPU, and how long ago that was. What somebody broke is left out.

        Where the clock was set back since, nobody knows how long: counters were seen to grow for one turn at most.
        """
        if before.broken:
            _log.warning("saved counters cannot be read, and start anew: %s", before.broken)
            return {}, 0.0
        since = self._clock.wall() - before.counters.time
        return before.counters.gpus, since if since >= 0 else SAVE_EVERY

    def _retire(self, name: str, node: Node | None) -> float | None:
        """A node is gone, or not ours any more: nothing of ours stays on it, and then its view goes too."""
        self._fleet.remove(name)
        record = self._records.get(name, NodeRecord())
        config_map = self._view_of(name)
        before = publishing.remembered(config_map)
        if not record.restored:  # it went while nobody looked, and may come back
            self._fleet.remember(*self._saved(before))
        record = self._records[name] = NodeRecord(traces=record.traces, leaving=record.leaving)
        if node is not None:
            record.traces = record.traces or publishing.traces(before, node)
            self._clean(node, record, record.traces)
        if not self._writer.settled(Target(resources.NODES, name), node):
            return RETIRE_EVERY
        if config_map is not None:
            self._views.delete(name, failed=self._retry(name))
        if config_map is None or node is None:
            del self._records[name]
        return None


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


def _relevant(node: Node) -> tuple[object, ...]:
    """What is read of a node; heartbeats change none of it."""
    meta, status = node.metadata, node.status
    return meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, status.capacity, status.allocatable
