"""The controller of fake nodes: from nodes, pods and configuration to cards, and to labels, capacity and views.

Level-triggered: a key is a node's name, and a reconcile works from the current state of the stores. It writes only
differences. Invalid input is reported and changes nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.controllers import (
    claimed,
    configuring,
    dividing,
    feature_labels,
    instance_users,
    numa_zones,
    publishing,
    relevance,
    shared_gpus,
    whole_users,
)
from simgpu.controllers.dra_fleet import DraFleet
from simgpu.controllers.loading import PodLoads
from simgpu.controllers.node_topologies import NodeTopologies
from simgpu.controllers.node_views import SAVE_EVERY, NodeViews, Render, Source, ViewState
from simgpu.dra import claims
from simgpu.kube import resources
from simgpu.kube.operations import Target
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.kube.writer import Writer
from simgpu.machines import health
from simgpu.machines.fleet import Fleet, NodeCards
from simgpu.machines.health import DeviceFaults
from simgpu.machines.ticking import Clock
from simgpu.machines.users import User
from simgpu.pods import assigning, requests, reserving
from simgpu.topology import failures, mig_choice, mig_offers, pools, sharing
from simgpu.topology.mig_offers import NumberedInstance, numbered_on

RETIRE_EVERY = 1.0  # seconds
RETRY_AFTER = 5.0  # seconds after a write that failed
MIN_GROWTH = 1 / 6  # of counters at rest, relative to those of a GPU at its power limit
MAX_SAVE_SECONDS = 6.0  # shorter than the default lease, and than the grace period of a process that is asked to end

_NOTHING = pools.NodeGpus(())

_log = logging.getLogger(__name__)


class FleetStores(msgspec.Struct):
    """The watched objects; pods are indexed by `node`."""

    nodes: Store[Node]
    pods: Store[Pod]
    config_maps: Store[ConfigMap]


class NodeRecord(msgspec.Struct):
    """The controller's state of a node.

    `held` are the GPUs of each pod by uid, `owned` what was written on the node. `leaving` is set while the latter is
    removed, `restored` once the saved counters were resumed. `spec` follows from `node` and `topology`, as they were
    when the node had all of it; `node` is None until then. `troubles` are problems with claims, and `missing` is how
    many GPUs pods lack. `failures` are the configured ones, and `faults` what is wrong with GPUs, by id.
    GPUs are `shared` by time-slicing, with so many `replicas`, by reservations or by MIG: then `held` is saved.
    `offers` are the resources of GPUs that are divided.
    """

    view: ViewState = msgspec.field(default_factory=ViewState)
    held: dict[str, tuple[str, ...]] = {}
    owned: publishing.OwnedFields | None = None
    leaving: bool = False
    restored: bool = False
    node: Node | None = None
    topology: pools.Topology | None = None
    spec: pools.NodeGpus | None = None
    troubles: claimed.Troubles = {}
    missing: int = 0
    failures: failures.Failures = failures.NONE
    failing_since: float = 0.0
    faults: Mapping[str, DeviceFaults] = {}
    replicas: int = 1
    shared: bool = False
    offers: tuple[NodeCards, str, list[instance_users.OfferedResource]] | None = None

    @property
    def unhealthy(self) -> set[str]:
        """GPUs, by id, that nothing new should get."""
        return {gpu for gpu, faults in self.faults.items() if faults.unhealthy}


class FakeNodes:
    """Keeps fake nodes and the fleet's cards in sync."""

    def __init__(  # noqa: PLR0913 - it is where all parts of the controller meet
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
        dra: DraFleet,
        allocation: str = vocabulary.EXTENDED,
        reservations: str = vocabulary.DEFAULT_RESERVATION_NAMESPACE,
        topologies: NodeTopologies | None = None,
        time: Callable[[], float] | None = None,
        term: int = 0,
    ) -> None:
        self._dra = dra
        self._time = time or clock.wall  # of saved counters: seconds since 1970 that never go back
        self._term = term  # the number of this lead
        self._topologies = topologies
        self._stores = stores
        self._fleet = fleet
        self._queue = queue
        self._writer = writer
        self._recorder = recorder
        self._namespace = namespace
        self._catalog = catalog
        self._clock = clock
        self._started = clock.wall()
        self._began = self._time()
        self._views = NodeViews(writer, stores.config_maps, namespace=namespace, clock=clock)
        self.configuration = configuring.Configuration(
            stores.config_maps, recorder, namespace=namespace, catalog=catalog, allocation=allocation
        )
        self.loads = PodLoads(self.configuration, writer)
        self.divisions = dividing.Divisions(self.configuration)
        self._reservations = reservations
        self._renamed: set[str] = set()  # other names under which nodes offer GPUs
        self._records: dict[str, NodeRecord] = {}
        self._struck: set[str] = set()  # nodes whose GPUs had errors, to be looked at
        self.unseen = {""}  # nodes to reconcile for the first time; unknown before `start`

    # Events.

    def watch(self) -> None:
        """Enqueue the nodes that changes of nodes, pods and ConfigMaps concern."""
        self._stores.nodes.listen(lambda change: self._node_changed(change.key, change.old, change.new))
        self._stores.pods.listen(lambda change: self._pod_changed(change.old, change.new))
        self._stores.config_maps.listen(lambda change: self._config_map_changed(change.key, change.old, change.new))

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or relevance.of_node(old) != relevance.of_node(new):
            self._queue.add(name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and relevance.of_pod(old) == relevance.of_pod(new):
            return
        concerned = {pod.spec.node_name: pod for pod in (old, new) if pod is not None and self._concerns(pod)}
        for name, pod in concerned.items():
            if name:
                # A pod that was placed just now is about to run: one look is enough for both.
                starting = pod.status.phase == "Pending" and old is None
                self._queue.add_after(name, relevance.patience(pod) if starting else 0.0)

    def _concerns(self, pod: Pod) -> bool:
        timed = vocabulary.RUN_TIME_ANNOTATION in pod.metadata.annotations
        asks = bool(requests.requests(pod)) or claims.has_claims(pod) or reserving.names_reservation(pod)
        return timed or asks or self._exports(pod) or any(requests.requests(pod, name) for name in self._renamed)

    def _config_map_changed(self, key: str, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if old is not None and new is not None and publishing.same_but_counters(old, new):
            return
        if self.configuration.concerns(key.rpartition("/")[2]):
            self.configure()
        for node in {publishing.node_of(view) for view in (old, new) if view is not None} - {""}:
            if (record := self._records.get(node)) is not None:
                if new is not None and new.data.get(vocabulary.TOPOLOGY_KEY) == record.view.text:
                    continue  # our own write
                record.view.shown = None
                record.view.written = record.view.written if new is not None else None
            self._queue.add(node)

    def stepped(self) -> None:
        """After each step: report users that limits ended, and enqueue the nodes whose GPUs had errors."""
        for user, message in self._fleet.take_ended():
            self.loads.report_ended(self._stores.pods, user, message)
        for name in self._fleet.struck():
            self._struck.add(name)
            self._queue.add(name)

    def configure(self) -> None:
        """Read the configuration, and enqueue the nodes that changes of it concern."""
        before, was = self.configuration.current, self.configuration.uninstalling
        if not self.configuration.read():
            return
        changed = self._config.changed_since(before) if before is not None else None
        if changed is None or self.configuration.uninstalling != was:
            self._enqueue_all()
        else:
            self._enqueue_of(*changed)

    def start(self) -> None:
        """Read the configuration and enqueue all nodes; `unseen` are those that wait for their first reconcile."""
        self._began = self._time() - self._fleet.engine.now
        self.configure()
        self.unseen = self._node_names()
        self._enqueue_all()

    def _enqueue_of(self, of_pools: set[str], named: set[str]) -> None:
        """Enqueue the nodes of pools, those named, and all that do not have yet what they should."""
        key = self._config.label_key
        for node in self._stores.nodes:
            name, record = node.metadata.name, self._records.get(node.metadata.name)
            settled = record is not None and record.node is not None and not self.divisions.concerns(name)
            if not settled or name in named or node.metadata.labels.get(key) in of_pools:
                self._queue.add(name)

    def _enqueue_all(self) -> None:
        for name in self._node_names():
            self._queue.add(name)

    def _node_names(self) -> set[str]:
        """Return nodes that exist, and those that have a view."""
        published = {publishing.node_of(item) for item in self.configuration.views()}
        return published | {node.metadata.name for node in self._stores.nodes} | self._dra.slices.nodes()

    def describe_node(self, name: str) -> dict[str, Any] | None:
        """Return a node for the topology API, a real one from its view; None if there is none."""
        if (placed := self._fleet.nodes.get(name)) is not None:
            shown = publishing.document(
                placed.ids, placed.spec, strategy=self._strategy(placed.spec), users=placed.users(),
                claimed=_claimed_instances(placed),
            )  # fmt: skip
            return publishing.node_json(shown)
        view = self._stores.config_maps.get(publishing.view_name(name), namespace=self._namespace)
        return publishing.view_json(view) if view is not None else None

    @property
    def _config(self) -> pools.Topology:
        """The configuration in force: nodes are reconciled only after the first read."""
        assert self.configuration.current is not None  # noqa: S101
        return self.configuration.current

    def _strategy(self, spec: pools.NodeGpus) -> str:
        return mig_choice.strategy(spec, self._config)

    @property
    def withdrawn(self) -> bool:
        """Whether everything was removed from nodes for an uninstall."""
        if not self.configuration.uninstalling:  # as almost always, and it is asked after each step
            return False
        left = self._records or self.unseen or self.configuration.views()
        return not left and self._dra.cleared and (self._topologies is None or self._topologies.cleared)

    # One node.

    async def reconcile(self, name: str) -> float | None:
        """Reconcile one node; return the seconds until it should be reconciled again, None for never."""
        node, record = self._stores.nodes.get(name), self._records.get(name, NodeRecord())
        looked_at = record.node is node and record.topology is self._config
        spec = record.spec if looked_at else self._spec(node)
        news = not looked_at and not self._unaffected(node, record, spec)
        if spec is not None and self._dra.awaits(name, spec):
            self.unseen.add(name)
            return None
        self.unseen.discard(name)
        if node is None or spec is None:
            return self._retire(name, node)
        self._records[name] = record
        first, known = not record.restored, self._fleet.nodes.get(name)
        before = self._restore(node, record) if first else None
        placed = self._fleet.place(name, spec)
        if news:
            self._renamed.update(mig_offers.other_names(spec, self._strategy(spec)))
        if before is not None:
            self._fleet.resume(placed, *self._saved(before), before.counters.failures)
            record.faults = self._fleet.faults(placed)
        record.restored = True
        struck = name in self._struck
        failed, change = self._fail(node, placed, record)
        wait = self._use(placed, record, before)
        if self._topologies is not None:
            self._topologies.want(name, _zones(node, placed, record))
        record.topology = self._config
        if news or failed:
            self._publish_node(node, placed, record)
            self._dra.publish(node.metadata, placed, record.faults)
        # A node that left and came back: a delete of its view may still be pending.
        deleting = first and not self._writer.settled(self._views.target(name), None)
        # Errors that counters include are saved at once: nobody could know of them after a crash.
        if deleting or failed or struck or (known is not None and known is not placed):
            record.view.forget()
        record.view.growth = growth(placed)
        urgent = first or record.view.written is None
        source, render = self._view_of_node(name)
        due = self._views.publish(name, record.view, source, render, urgent=urgent, failed=self._retry(name))
        going_on = 0.0 if self.divisions.unfinished(node) else None
        return min(item for item in (due, wait, change, going_on) if item is not None)

    def _unaffected(self, node: Node | None, record: NodeRecord, spec: pools.NodeGpus | None) -> bool:
        """Return whether only the configuration is new, and gives a node what it has."""
        if spec is None or record.topology is None or record.node is not node or record.spec is not spec:
            return False
        return mig_choice.strategy(spec, record.topology) == self._strategy(spec)

    def _fail(self, node: Node, placed: NodeCards, record: NodeRecord) -> tuple[bool, float | None]:
        """Let GPUs fail as configured; return whether their health changed, and the seconds until it changes next.

        Errors of the simulation count too.
        """
        wanted, now = self.configuration.failures_of(node, placed.spec), self._clock.steady()
        if wanted != record.failures:
            record.failures, record.failing_since = wanted, now
        if wanted == failures.NONE and not record.faults and placed.name not in self._struck:
            return False, None
        self._struck.discard(placed.name)
        elapsed, before = now - record.failing_since, record.faults
        self._fleet.fail(placed, health.configured(wanted, elapsed))
        record.faults = self._fleet.faults(placed)
        return record.faults != before, wanted.next_change(elapsed)

    def faults(self) -> dict[str, DeviceFaults]:
        """Return what is wrong with GPUs of all nodes, by id; healthy ones are left out."""
        found: dict[str, DeviceFaults] = {}
        for record in self._records.values():
            if record.faults:
                found |= record.faults
        return found

    def pool_of(self, name: str) -> str:
        """Return the pool of a node, from its label; empty if it has none."""
        node, config = self._stores.nodes.get(name), self.configuration.current
        return node.metadata.labels.get(config.label_key, "") if node is not None and config is not None else ""

    def renamed_resources(self) -> frozenset[str]:
        """Return the names that time-slicing gives to resources of GPUs."""
        return self.configuration.renamed

    @property
    def overcommitted(self) -> int:
        """How many GPUs pods on all nodes request that they cannot have."""
        return sum(record.missing for record in self._records.values())

    def _restore(self, node: Node, record: NodeRecord) -> publishing.PreviousView:
        """Return what the view of a node holds, at the first look at it."""
        name = node.metadata.name
        before = publishing.read_previous(config_map := self._views.get(name))
        record.owned = record.owned or publishing.owned_on(before, node)
        self._fleet.address(name, before.counters.address)
        if config_map is not None and record.view.written is None:
            record.view.written = self._clock.steady()
        return before

    def _spec(self, node: Node | None) -> pools.NodeGpus | None:
        """Return what a node should have; None for one that is not ours. Invalid configuration changes nothing."""
        if node is None:
            return None
        meta = node.metadata
        if meta.annotations.get(vocabulary.KWOK_NODE) != "fake" or meta.deletion_timestamp:
            return None
        found = self.configuration.gpus_of(node, self._last_good)
        if found is None:
            return None
        name = node.metadata.name
        return self.divisions.of(
            node,
            found,
            self._config,
            current=lambda: self._last_good(name, found),
            users=lambda gpu: self._pods_on(name, gpu),
        )

    def _pods_on(self, name: str, gpu: int) -> list[str]:
        """Return the pods that have a GPU of a node, or a part of it."""
        placed = self._fleet.nodes.get(name)
        users = placed.cards[gpu].users if placed is not None and gpu < len(placed.cards) else ()
        return list(dict.fromkeys(f"{user.pod.namespace}/{user.pod.name}" for user in users))

    def _last_good(self, name: str, pool: pools.NodeGpus | None = None) -> pools.NodeGpus | None:
        """Return what a node has, or had according to its view; its GPUs may be those of a `pool`."""
        if (placed := self._fleet.nodes.get(name)) is not None:
            return placed.spec
        record = self._records.get(name)
        view = None if record is not None and record.leaving else self._view_of(name)
        return publishing.published([view] if view else [], self._catalog, pool=pool).nodes.get(name)

    def _view_of(self, name: str) -> ConfigMap | None:
        """Return the view of a node, if it is a fake one's."""
        found = self._stores.config_maps.get(publishing.view_name(name), namespace=self._namespace)
        return found if found is not None and publishing.is_view(found) else None

    def _exporter(self, pods: Sequence[Pod]) -> tuple[str, str]:
        """Return name and address of the pod that stands for the node's exporter; empty if there is none."""
        for pod in pods:
            if self._exports(pod) and requests.holds(pod):
                return pod.metadata.name, pod.status.pod_ip
        return "", ""

    def _exports(self, pod: Pod) -> bool:
        """Return whether a pod stands for an exporter. Only pods in our namespace do: labels alone can be forged."""
        return (
            pod.metadata.namespace == self._namespace
            and pod.metadata.labels.get(vocabulary.APP_LABEL) == vocabulary.EXPORTER
        )

    def _use(self, placed: NodeCards, record: NodeRecord, before: publishing.PreviousView | None) -> float | None:
        """Give a node's GPUs to its pods; return the seconds until problems with that should be looked at again.

        One ledger: claims keep their GPUs, and pods with requests are assigned the others.
        """
        pods = self._stores.pods.by("node", placed.name)
        for pod in pods:
            self._check_run_time(pod)
        self._fleet.name_exporter(placed.name, *self._exporter(pods))
        through = self._dra.users(placed, pods, self.loads)
        if placed.spec.divided:
            return self._use_instances(placed, record, before, pods, through)
        resource, replicas = _offered(placed.spec)
        holding = (
            (pod, assigning.wish_of(pod, resource))
            for pod in pods
            if requests.holds(pod) and _counted(pod, placed.spec)
        )
        there = sorted((pair for pair in holding if pair[1].count), key=lambda pair: pair[0].metadata.seniority)
        wishes = [wish for _, wish in there]
        if before is not None:
            record.held = {wish.uid: _restored(wish, before) for wish in wishes}
        if replicas > 1 or record.replicas > 1 or (before is not None and before.counters.held):
            offered = assigning.shares(placed.ids, replicas) if replicas > 1 else placed.ids
            record.held = assigning.adopt(record.held, offered)
        record.replicas = replicas
        kept = {gpu for wish in wishes for gpu in record.held.get(wish.uid, ())}  # also where it became unhealthy
        if replicas > 1:
            free = shared_gpus.free_shares(
                placed.ids, replicas, kept=kept, unhealthy=record.unhealthy, claimed=through.owners.keys()
            )
        else:
            barred = (record.unhealthy - kept) | through.owners.keys()
            free = [gpu for gpu in placed.ids if gpu not in barred] if barred else placed.ids
        record.held = assigning.assign(free, record.held, wishes) if wishes else {}
        record.shared = replicas > 1 or any(pod.metadata.namespace == self._reservations for pod, _ in there)
        if record.shared:
            assigned = shared_gpus.users_of(
                there, record.held, pods, replicas=replicas, reservations=self._reservations, loads=self.loads,
                memory={card.device.uuid: card.device.model.memory_mib.usable for card in placed.cards},
            )  # fmt: skip
            self.loads.annotate_reservations(self._stores.pods, assigned)
        else:
            assigned = whole_users.users_of(there, placed, record.held, self.loads)
        self._give(placed, through, assigned)
        return self._report_problems(record, through, there)

    def _give(self, placed: NodeCards, through: claimed.ClaimedUsers, assigned: Mapping[str, tuple[User, ...]]) -> None:
        """Set the users of a node's GPUs, by claims and by assignment; those of MIG devices get instances made."""
        if placed.spec.allocation.divides or placed.instances:
            self._fleet.divide(placed, through.instances(assigned) if placed.spec.allocation.divides else {})
        self._fleet.use(placed, through.joined(assigned))

    def _use_instances(
        self,
        placed: NodeCards,
        record: NodeRecord,
        before: publishing.PreviousView | None,
        pods: Sequence[Pod],
        through: claimed.ClaimedUsers,
    ) -> float | None:
        """The same for a node whose GPUs are divided."""
        found = instance_users.assign(
            placed,
            [pod for pod in pods if _counted(pod, placed.spec)],
            before.counters.held if before is not None else record.held,
            resources=lambda: self._offers(placed, record),
            loads=self.loads,
            unhealthy=record.unhealthy,
            claimed=through.taken,
            reservations=self._reservations,
        )
        self.loads.annotate_reservations(self._stores.pods, found.users)
        record.held, record.shared, record.replicas = found.held, bool(found.held), 1
        self._give(placed, through, found.users)
        return self._report_problems(record, through, found.wishes)

    def _offers(self, placed: NodeCards, record: NodeRecord) -> list[instance_users.OfferedResource]:
        strategy = self._strategy(placed.spec)
        if record.offers is None or record.offers[0] is not placed or record.offers[1] != strategy:
            record.offers = placed, strategy, instance_users.resources_of(placed, strategy)
        return record.offers[2]

    def _report_problems(
        self, record: NodeRecord, through: claimed.ClaimedUsers, there: Sequence[tuple[Pod, assigning.Wish]]
    ) -> float | None:
        """Report pods that cannot use their claims, and GPUs that are promised twice, once that has lasted."""
        lacking = any("" in gpus for gpus in record.held.values())
        short = claimed.shortages(there, record.held, len(through.owners)) if lacking else []
        problems = [*through.problems, *short]
        record.missing = sum(item.missing for item in problems)
        if not problems and not record.troubles:
            return None
        lasting, record.troubles, wait = claimed.lasting(problems, record.troubles, self._clock.steady())
        for item in lasting:
            self._recorder.record(configuring.subject_of(item.pod), "Warning", item.reason, item.message)
        return wait

    def _check_run_time(self, pod: Pod) -> None:
        self.configuration.checked(pod, "InvalidRunTime", requests.check_run_time, None)

    # Writing.

    def _publish_node(self, node: Node, placed: NodeCards, record: NodeRecord) -> None:
        """Write labels and capacity, until the node has them and all our writes are seen."""
        spec, strategy = placed.spec, self._strategy(placed.spec)
        owned = record.owned = record.owned or publishing.OwnedFields(set(), set())
        record.leaving = False
        settled = self._writer.settled(Target(resources.NODES, node.metadata.name), node)
        if settled:
            owned.drop_missing(node)
        sick = [place for place, gpu in enumerate(placed.ids) if gpu in record.unhealthy] if record.faults else []
        labels, amounts = feature_labels.labels(spec, strategy), publishing.amounts(spec, strategy)
        allocatable = publishing.amounts(spec, strategy, unhealthy=sick)
        labels |= feature_labels.discovery_time(node, self._started) if spec.gpus else {}
        labels |= self.divisions.labels(placed.name)
        owned.labels.update(labels)
        owned.resources.update(amounts)
        patch = publishing.node_patch(labels, amounts, owned, allocatable=allocatable)
        patch["metadata"] |= self.divisions.annotations(node, spec, placed.ids)
        done = not self._write_node(node, patch) and settled and not self.divisions.unfinished(node)
        record.node, record.spec = node if done else None, spec

    def _clean(self, node: Node, record: NodeRecord, owned: publishing.OwnedFields) -> None:
        """Remove what we own from a node, once: what appears there later is not ours."""
        if not record.leaving:
            record.leaving = True
            patch = publishing.node_patch({}, {}, owned)
            patch["metadata"] |= self.divisions.annotations(node, _NOTHING, ())
            self._write_node(node, patch)

    def _write_node(self, node: Node, patch: dict[str, Any]) -> bool:
        """Write labels and capacity in one request, as a patch of a node's status may change its metadata too.

        Return whether that changes anything.
        """
        name = node.metadata.name
        target = Target(resources.NODES, name, subresource="status")
        return self._writer.merge(target, patch, observed=node, urgent=True, failed=self._retry(name))

    def _retry(self, name: str) -> Callable[[Exception], None]:
        """Return a callback for a failed write, which enqueues the node again later."""

        def failed(_error: Exception) -> None:
            if (record := self._records.get(name)) is not None:
                record.view.forget()
                record.node, record.leaving = None, False
            self._queue.add_after(name, RETRY_AFTER)

        return failed

    def _view_of_node(self, name: str) -> tuple[Source, Render]:
        """Return what a node's view shows, None once it is gone, and the function that renders it."""

        def source() -> object:
            if (placed := self._fleet.nodes.get(name)) is None:
                return None
            return placed.spec, self._strategy(placed.spec), [card.users for card in placed.cards], placed.instances

        return source, functools.partial(self._render, name)

    def _render(self, name: str) -> dict[str, Any]:
        placed, owned = self._fleet.nodes[name], self._records[name].owned
        counters = {
            "time": math.floor(self._counted_until() * 10) / 10,
            "growth": growth(placed),
            "term": self._term,
            "address": self._fleet.address(name),
            "gpus": self._fleet.counters(placed),
            "failures": self._fleet.failures(placed),
        }
        if self._records[name].shared:
            counters["held"] = self._records[name].held
        return publishing.view(
            name, placed.ids, placed.spec, strategy=self._strategy(placed.spec), users=placed.users(),
            counters=counters, labelled=owned.labels if owned is not None else (), claimed=_claimed_instances(placed),
        )  # fmt: skip

    def _counted_until(self) -> float:
        """Return the time that counters have reached: that of the last step, as the next one goes on from there."""
        return self._began + self._fleet.engine.now

    async def save(self) -> None:
        """Write all counters, for the next controller to resume from."""
        for name in list(self._fleet.nodes):
            state = self._records[name].view
            state.written = None  # it is due
            self._views.write(name, state, *self._view_of_node(name), urgent=True, failed=self._retry(name))
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

    def _saved(self, before: publishing.PreviousView) -> tuple[dict[str, list[float]], float]:
        """Return saved counters by GPU, and for how many seconds they may have grown; nothing if they are invalid.

        If they are from the future, the time is unknown: then it is the longest time between two saves. Counters of
        a node that was idle grow slowly, but for the time until a save would have shown that it no longer was: that
        may have been so in each lead since then.
        """
        if before.broken:
            _log.warning("counters restart from zero: the saved ones are invalid: %s", before.broken)
            return {}, 0.0
        since = self._counted_until() - before.counters.time
        since = since if since >= 0 else SAVE_EVERY
        slow = before.counters.growth
        leads = max(1, self._term - before.counters.term) if before.counters.term is not None else 1
        # Never less than what was shown after an earlier start from the same save: it has to grow with time, too.
        return before.counters.gpus, since * slow + min(since, leads * SAVE_EVERY) * (1.0 - slow)

    def _retire(self, name: str, node: Node | None) -> float | None:
        """Remove what we own from a node that is gone or not ours any more, and then its view."""
        self._fleet.remove(name)
        self._struck.discard(name)
        self._dra.retire(name)
        if self._topologies is not None:
            self._topologies.drop(name)
        self.divisions.forget(name)
        record = self._records.get(name, NodeRecord())
        config_map = self._view_of(name)
        before = publishing.read_previous(config_map)
        if not record.restored:  # it left while no controller ran, and may come back
            self._fleet.remember(*self._saved(before))
        record = self._records[name] = NodeRecord(owned=record.owned, leaving=record.leaving)
        if node is not None:
            record.owned = record.owned or publishing.owned_on(before, node)
            self._clean(node, record, record.owned)
        if not self._writer.settled(Target(resources.NODES, name), node):
            return RETIRE_EVERY
        if config_map is not None:
            self._views.delete(name, failed=self._retry(name))
        if config_map is None or node is None:
            del self._records[name]
        return None


def growth(placed: NodeCards) -> float:
    """Return how fast a node's counters can grow, relative to those of GPUs at their power limits."""
    noise = 1.1  # what GPUs draw at rest varies
    return min(1.0, max(noise * placed.idle_share, MIN_GROWTH)) if placed.idle else 1.0


def _counted(pod: Pod, spec: pools.NodeGpus) -> bool:
    """Return whether a pod's requests are for any GPUs of a node, and not for those of a claim that was made for them.

    Where a node offers its resource by count, no claim is made: one that a pod names was for another node, which the
    scheduler chose before, and could not bind the pod to.
    """
    return spec.allocation.by_count or not claims.has_gpu_claim(pod)


def _claimed_instances(placed: NodeCards) -> dict[str, list[NumberedInstance]]:
    """Return the MIG instances of GPUs that claims have divided, by GPU id."""
    if not placed.instances:
        return {}
    divided = (card.device for card in placed.cards if card.device.uuid in placed.instances)
    return {device.uuid: numbered_on(device) for device in divided}


def _zones(node: Node, placed: NodeCards, record: NodeRecord) -> numa_zones.NodeZones | None:
    """Return the NUMA zones of a node, with the GPUs that pods have."""
    if placed.spec.numa is None:
        return None
    taken = dict.fromkeys(placed.users(), 1)
    if record.replicas > 1:
        taken = Counter(sharing.device(item) for items in record.held.values() for item in items if item)
    return numa_zones.zones_of(node, placed.spec, placed.ids, taken, record.unhealthy)


def _offered(spec: pools.NodeGpus) -> tuple[str, int]:
    """Return the resource that a node's GPUs are, and how many shares of each it has."""
    if not spec.slicing.resources:
        return vocabulary.GPU_RESOURCE, 1
    return spec.slicing.name(vocabulary.GPU_RESOURCE), spec.slicing.replicas(vocabulary.GPU_RESOURCE)


def _restored(wish: assigning.Wish, before: publishing.PreviousView) -> tuple[str, ...]:
    """Return what a pod held according to a view."""
    saved = before.counters.held.get(wish.uid, ())
    return saved if len(saved) == wish.count else assigning.places(wish, before.held.get(wish.uid, ()))
