"""A real node in the API: its configuration, its users, and the labels and view that are written for it.

Configuration, annotations and views are those of fake nodes; but here the kubelet allocates devices and writes the
node's capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.controllers import feature_labels, mig_labels, publishing
from simgpu.controllers.configuring import Configuration, subject_of
from simgpu.controllers.dividing import Divisions
from simgpu.controllers.loading import PodLoads
from simgpu.controllers.node_views import SAVE_EVERY, NodeViews, ViewState
from simgpu.dra import grants
from simgpu.dra.claims import references
from simgpu.kube import resources
from simgpu.kube.operations import Target
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.kube.writer import Writer
from simgpu.machines import users
from simgpu.machines.ticking import Clock
from simgpu.machines.users import CpuSource, User
from simgpu.pods import holding, requests, reserving
from simgpu.topology import allocating, failures, mig_choice, pools

_NOTHING = pools.NodeGpus(())


class NodeStores(msgspec.Struct):
    """The watched objects: this node, its pods, the configuration, and the node's view."""

    nodes: Store[Node]
    pods: Store[Pod]
    config_maps: Store[ConfigMap]
    views: Store[ConfigMap]


class _Shown(msgspec.Struct, frozen=True):
    """What a node's view is rendered from, besides counters."""

    spec: pools.NodeGpus = _NOTHING
    ids: tuple[str, ...] = ()
    users: dict[str, tuple[User, ...]] = {}
    labels: tuple[str, ...] = ()
    strategy: str = ""
    claimed: Mapping[str, Sequence[tuple[int, int, models.MigProfile]]] = {}


class OwnNode:
    """Reads the node's configuration and users, and writes its labels and view.

    `before` is what it had, which it keeps while its configuration is invalid. Unless it is to be `labelled`, labels of
    feature discovery are left to others, and unless its GPUs are `claimable`, so is DRA.
    """

    def __init__(  # noqa: PLR0913 - what it reads, what it writes to, and how
        self,
        name: str,
        stores: NodeStores,
        writer: Writer,
        recorder: Recorder,
        *,
        namespace: str,
        catalog: models.Catalog,
        clock: Clock,
        before: pools.NodeGpus = _NOTHING,
        allocation: str = vocabulary.EXTENDED,
        labelled: bool = True,
        claimable: bool = True,
    ) -> None:
        self.name = name
        self.configuration = Configuration(
            stores.config_maps, recorder, namespace=namespace, catalog=catalog, allocation=allocation
        )
        self.loads = PodLoads(self.configuration, writer)
        self.divisions = Divisions(self.configuration)
        self._stores = stores
        self._writer = writer
        self._changed: Callable[[], None] = lambda: None
        self._namespace = namespace
        self._clock = clock
        self._views = NodeViews(writer, stores.views, namespace=namespace, clock=clock)
        self._view = ViewState()
        self._shown = _Shown()
        self._counters: Callable[[], Mapping[str, Sequence[float]]] = dict
        self._spec = before
        self._labels, self._claimable = labelled, claimable
        self._started = clock.wall()
        self._labelled: set[str] = set()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` for each change from now on."""
        self._changed = changed
        self._stores.nodes.listen(lambda _change: self._changed())
        self._stores.pods.listen(lambda _change: self._changed())
        self._stores.config_maps.listen(lambda change: self._config_map_changed(change.key))
        self._stores.views.listen(lambda change: self._view_changed(change.old, change.new))

    def _config_map_changed(self, key: str) -> None:
        if self.configuration.concerns(key.rpartition("/")[2]):
            self.configure()

    def _view_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if old is not None and new is not None and publishing.same_but_counters(old, new):
            return
        if new is not None and new.data.get(vocabulary.TOPOLOGY_KEY) == self._view.text:
            return  # our own write
        self._view.shown = None
        self._view.written = self._view.written if new is not None else None
        self._changed()

    def configure(self) -> None:
        """Read the configuration, and call `changed` if it differs."""
        if self.configuration.read():
            self._changed()

    # Configuration.

    @property
    def node(self) -> Node | None:
        """The node, if it exists and is not a fake one."""
        node = self._stores.nodes.get(self.name)
        return node if node is not None and node.metadata.annotations.get(vocabulary.KWOK_NODE) != "fake" else None

    @property
    def pool(self) -> str:
        """The node's pool, from its label; empty if it has none."""
        node, config = self.node, self.configuration.current
        return node.metadata.labels.get(config.label_key, "") if node is not None and config is not None else ""

    def spec(self) -> pools.NodeGpus:
        """Return what the node should have, with its MIG strategy; nothing if nothing is configured."""
        spec = self.configuration.gpus_of(self.node, lambda _name: self._spec) if self.node is not None else None
        self._spec = mig_choice.with_strategy(spec or _NOTHING, self.configuration.current)
        if not self._claimable:
            self._spec = msgspec.structs.replace(self._spec, allocation=allocating.DEFAULT)
        return self._spec

    def failures(self, spec: pools.NodeGpus) -> failures.Failures:
        """Return the failures in the node's annotation, else those of its pool."""
        return spec.failures if self.node is None else self.configuration.failures_of(self.node, spec)

    def report_ended(self, user: User, message: str) -> None:
        """Report that a container crossed a limit, of its profile or its GPU."""
        self.loads.report_ended(self._stores.pods, user, message)

    def report(self, reason: str, message: str) -> None:
        """Record a warning event on the node, once for each message."""
        if self.node is not None:
            self.configuration.report(subject_of(self.node), reason, message)

    # Users.

    def users(
        self,
        spec: pools.NodeGpus,
        held: Sequence[holding.Held],
        memory: Mapping[str, int],
        *,
        reservations: str,
        before: Mapping[str, tuple[User, ...]],
        claims: Iterable[grants.PreparedClaim] = (),
        instances: Mapping[str, holding.HeldInstance] = {},
    ) -> dict[str, tuple[User, ...]]:
        """Return the users of each GPU, by id, in the order in which they got it: from the kubelet, or by claims.

        `memory` is each GPU's usable memory in MiB, `instances` are its MIG devices by id, `reservations` is the
        namespace of reservation pods, `before` the last result.
        """

        def replicas(name: str) -> int:
            item = instances.get(name)
            return spec.slicing.replicas(vocabulary.GPU_RESOURCE if item is None else item.resource)

        found = holding.by_gpu(holding.holders(self._stores.pods, held, replicas=replicas), instances)
        for gpu, holder in self._claim_holders(claims, memory):
            found[gpu] = (*found.get(gpu, ()), holder)
        source = spec.utilization_from
        there = {gpu: found[gpu] for gpu in memory if gpu in found}
        lent = reserving.lend(self._stores.pods, there, namespace=reservations)
        listed: dict[str, tuple[User, ...]] = {}
        for gpu, items in lent.items():
            ordered = holding.by_arrival(items, [user.pod.uid for user in before.get(gpu, ())])
            # A container that holds a GPU and claims it too is one user.
            users_here: dict[tuple[tuple[str, str], int | None], User] = {}
            for holder in ordered:
                user = self._user(holder, holder.memory_mib or memory[gpu], source)
                users_here.setdefault((user.key, user.part), user)
            listed[gpu] = tuple(users_here.values())
        return listed

    def _claim_holders(
        self, claims: Iterable[grants.PreparedClaim], memory: Mapping[str, int]
    ) -> Iterator[tuple[str, holding.Holder]]:
        """Yield the containers with devices of prepared claims, and the GPU of each, the oldest pod first.

        Containers that share a device, or a share of it, divide its memory, and so do shares that name no amount of it;
        those with admin access have none. A MIG instance is a device of its own.
        """
        prepared = grants.by_name(claims)
        pods = sorted(self._stores.pods if prepared else (), key=lambda pod: pod.metadata.seniority)
        uses = [
            (pod, container, device)
            for pod in pods
            if requests.holds(pod)
            for container, device in _present(pod, grants.uses(pod, prepared))
            if device.gpu in memory
        ]
        members = Counter(device.slot for _, _, device in uses if not device.admin)
        slots = Counter({device.slot: device.id for _, _, device in uses if not device.admin}.values())
        found: dict[tuple[str, str, str], tuple[str, holding.Holder]] = {}  # shares of one device are one use of it
        for pod, container, device in uses:
            key, instance = (device.id, pod.metadata.uid, container), device.part
            part = device.memory_mib / memory[device.gpu] if device.memory_mib else 1 / max(1, slots[device.id])
            mine = 0.0 if device.admin else part / members[device.slot]
            _, before = found.get(key, ("", holding.Holder(pod, container, 0.0, observes=True)))
            found[key] = device.gpu, holding.Holder(
                pod, container, min(1.0, before.share + mine), observes=before.observes and device.admin,
                part=None if instance is None else instance.number,
                memory_mib=0 if instance is None else instance.memory_mib,
            )  # fmt: skip
        yield from found.values()

    def held_gpus(self, held: Sequence[holding.Held]) -> set[str]:
        """Return the GPUs and MIG instances that the kubelet allocated to pods that there are, by id."""
        return set(holding.holders(self._stores.pods, held))

    def claim_names(self) -> set[tuple[str, str]]:
        """Return the claims that pods of the node refer to, by namespace and name."""
        return {(pod.metadata.namespace, item.name) for pod in self._stores.pods for item in references(pod)}

    def claimed(self, claims: Iterable[grants.PreparedClaim]) -> list[holding.Held]:
        """Return what containers have of prepared claims."""
        prepared = grants.by_name(claims)
        return [
            holding.Held(container, (device.id,), uid=holding.kubelet_uid(pod))
            for pod in (self._stores.pods if prepared else ())
            for container, device in grants.uses(pod, prepared)
        ]

    def _user(self, holder: holding.Holder, memory: int, source: str) -> User:
        pod = holder.pod
        works = requests.works(pod, holder.container)
        user = self.loads.holder_user(holder, memory, works=works)
        if works and not holder.reserves and not holder.observes:
            chosen = self.configuration.checked(
                pod, "InvalidUtilizationSource", lambda pod: requests.source(pod, source), source
            )
            if chosen == vocabulary.FROM_CPU:
                container, cores = holding.identity(pod, holder.container), requests.cores(pod, holder.container)
                cpu = CpuSource(holding.kubelet_uid(pod), container, cores)
                return msgspec.structs.replace(user, utilization=users.ANY, cpu=cpu, plan=None, full_load=0.0)
        return user

    # Publishing.

    def publish(
        self,
        spec: pools.NodeGpus,
        ids: Sequence[str],
        listed: Mapping[str, tuple[User, ...]],
        counters: Callable[[], Mapping[str, Sequence[float]]],
        *,
        claimed: Mapping[str, Sequence[tuple[int, int, models.MigProfile]]] = {},
    ) -> float:
        """Write labels and view if they differ; return the seconds until the view should be checked again.

        `claimed` are the MIG instances of GPUs that claims have divided.
        """
        self.loads.annotate_reservations(self._stores.pods, listed)
        node, fleet = self.node, self.configuration.current
        if node is None or fleet is None:
            return SAVE_EVERY
        config_map = self._views.get(self.name)
        labels = self._feature_labels(node, spec, mig_choice.strategy(spec, fleet))
        if spec.gpus or spec.other or config_map is not None or self.configuration.uninstalling:
            labels[vocabulary.MANAGED_LABEL] = "true"  # the last to be removed; in an uninstall, by the agent itself
        self._note_labels(node, labels, config_map)
        if not spec.gpus:
            self.divisions.forget(self.name)
        patch = publishing.label_patch(labels, self._labelled)
        patch["metadata"] |= self.divisions.annotations(node, spec, ids)
        self._writer.merge(Target(resources.NODES, self.name), patch, observed=node, urgent=True)
        if not (spec.gpus or spec.other):
            if config_map is not None:
                self._views.delete(self.name)
            return SAVE_EVERY
        strategy = mig_choice.strategy(spec, fleet)
        self._shown = _Shown(spec, tuple(ids), dict(listed), tuple(labels), strategy, claimed)
        self._counters = counters
        urgent = self._view.written is None and config_map is None
        return self._views.publish(
            self.name, self._view, lambda: self._shown, self._render, urgent=urgent, failed=self._failed
        )

    def _note_labels(self, node: Node, labels: Mapping[str, str], config_map: ConfigMap | None) -> None:
        """Note the labels that are, or may be, an agent's own: those of them that are not wanted are removed."""
        if not self._labels:  # only those that an agent with labels left: others write them now
            self._labelled = {*labels, *publishing.owned_labels(config_map)}
            return
        self._labelled.update(labels, publishing.owned_labels(config_map))
        if vocabulary.MANAGED_LABEL in node.metadata.labels:
            self._labelled.add(vocabulary.MIG_CONFIG_STATE)  # perhaps of an agent that did not get to its view
        if config_map is None and vocabulary.MANAGED_LABEL in node.metadata.labels:  # an agent did not get further
            self._labelled.update(feature_labels.ALL_LABELS, filter(mig_labels.is_ours, node.metadata.labels))

    def _feature_labels(self, node: Node, spec: pools.NodeGpus, strategy: str) -> dict[str, str]:
        if not self._labels or not (spec.gpus or spec.other):
            return {}
        time = feature_labels.discovery_time(node, self._started) if spec.gpus else {}
        return feature_labels.of_real(spec, strategy) | time | self.divisions.labels(self.name)

    @property
    def withdrawn(self) -> bool:
        """Whether everything in the API was removed for an uninstall, but for the mark on the node."""
        if not self.configuration.uninstalling or self._views.get(self.name) is not None or self.node is None:
            return False
        left = self._labelled & self.node.metadata.labels.keys()
        return left <= {vocabulary.MANAGED_LABEL}

    def _render(self) -> dict[str, Any]:
        shown = self._shown
        return publishing.view(
            self.name, shown.ids, shown.spec, strategy=shown.strategy, users=shown.users, fake=False,
            labelled=shown.labels, counters={"time": round(self._clock.wall(), 1), "gpus": self._counters()},
            claimed=shown.claimed,
        )  # fmt: skip

    def _failed(self, _error: Exception) -> None:
        self._view.forget()


def _present(pod: Pod, uses: Iterable[tuple[str, grants.GrantedDevice]]) -> Iterator[tuple[str, grants.GrantedDevice]]:
    """Yield the uses of containers that run, or will; init containers run alone, and not again."""
    early = requests.regular_init(pod)
    running = {item.name for item in pod.status.init_container_statuses if item.state.running is not None} & early
    for container, device in uses:
        if container in running if running else container not in early:
            yield container, device
