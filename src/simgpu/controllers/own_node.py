"""The agent's own node: what it should have, who uses it, and what is written about it.

The same configuration, annotations and views as for fake nodes; only that here the kubelet chose the devices, and that
it is the kubelet who writes the node's capacity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.controllers.configuring import Configuration, about
from simgpu.kube import resources
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.kube.writer import Target, Writer
from simgpu.pods import annotated, holding, requests, reserving
from simgpu.topology import failures, pools

VIEW_EVERY = 1.0
SAVE_EVERY = 300.0

_NOTHING = pools.NodeGpus(())

T = TypeVar("T")


class Stores(msgspec.Struct):
    """What is seen of the cluster: this node, its pods, the configuration, and what is published of the node."""

    nodes: Store[Node]
    pods: Store[Pod]
    config_maps: Store[ConfigMap]
    views: Store[ConfigMap]


class OwnNode:
    """Reads what is wanted of the node, and writes what it has. `changed` is called when something may be new.

    `before` is what it had, which it keeps where nothing that can be understood is said of it.
    """

    def __init__(
        self,
        name: str,
        stores: Stores,
        writer: Writer,
        recorder: Recorder,
        changed: Callable[[], None],
        *,
        namespace: str,
        catalog: models.Catalog,
        before: pools.NodeGpus = _NOTHING,
    ) -> None:
        self.name = name
        self.configuration = Configuration(stores.config_maps, recorder, namespace=namespace, catalog=catalog)
        self._stores = stores
        self._writer = writer
        self._changed = changed
        self._namespace = namespace
        self._published = float("-inf")
        self._spec = before
        self._labelled: set[str] = set()

    def watch(self) -> None:
        """Let changes be noticed from here on."""
        self._stores.nodes.listen(lambda _change: self._changed())
        self._stores.pods.listen(lambda _change: self._changed())
        self._stores.config_maps.listen(lambda change: self._config_map_changed(change.key))

    def _config_map_changed(self, key: str) -> None:
        if self.configuration.concerns(key.rpartition("/")[2]):
            self.configure()

    def configure(self) -> None:
        """Read the configuration."""
        if self.configuration.read():
            self._changed()

    # What is wanted.

    @property
    def node(self) -> Node | None:
        """The node, if it is there and nobody else's."""
        node = self._stores.nodes.get(self.name)
        return node if node is not None and node.metadata.annotations.get(vocabulary.KWOK_NODE) != "fake" else None

    def spec(self) -> pools.NodeGpus:
        """What the node should have; nothing if nothing is said of it."""
        spec = self.configuration.of(self.node, lambda _name: self._spec) if self.node is not None else None
        self._spec = spec or _NOTHING
        return self._spec

    def failures(self, spec: pools.NodeGpus) -> failures.Failures:
        """What fails: as the node's annotation says, else as its pool does."""
        if self.node is None:
            return spec.failures
        try:
            text = annotated.read(self.node, vocabulary.FAILURES_ANNOTATION)
            return spec.failures if text is None else failures.read(text, field=vocabulary.FAILURES_ANNOTATION)
        except errors.InputError as error:
            self.complain("InvalidFailures", str(error))
            return spec.failures

    def complain(self, reason: str, message: str) -> None:
        """Tell users, once, what is wrong with the node."""
        if self.node is not None:
            self.configuration.complain(about(self.node), reason, message)

    # Who uses it.

    def uses(
        self,
        spec: pools.NodeGpus,
        held: Sequence[holding.Held],
        memory: Mapping[str, int],
        *,
        reservations: str,
        before: Mapping[str, Uses],
    ) -> dict[str, Uses]:
        """Who has which GPU, by id; `memory` is what each has for them, in MiB, `reservations` a namespace.

        Of several that share a GPU, who was seen with it first comes first; `before` is who had it last time.
        """
        replicas = spec.slicing.replicas(vocabulary.GPU_RESOURCE)
        found = holding.holders(self._stores.pods, held, replicas=replicas)
        source = spec.utilization_from
        there = {gpu: found[gpu] for gpu in memory if gpu in found}
        lent = reserving.lend(self._stores.pods, there, namespace=reservations)
        uses: dict[str, Uses] = {}
        for gpu, items in lent.items():
            ordered = holding.by_arrival(items, [item.use.uid for item in before.get(gpu, ())])
            uses[gpu] = tuple(self._use(holder, memory[gpu], source) for holder in ordered)
        return uses

    def _use(self, holder: holding.Holder, memory: int, source: str) -> Shared:
        pod, meta = holder.pod, holder.pod.metadata
        span, used, container, cores = requests.NONE, 0, "", 0.0
        if not holder.reserves:
            fraction = self._said(pod, reserving.fraction, "InvalidFraction", 1.0)
            used = int(memory * holder.share * fraction)
            if requests.works(pod, holder.container):
                span = self._said(pod, requests.utilisation, "InvalidUtilization", requests.ALL)
                if (
                    self._said(pod, lambda pod: requests.source(pod, source), "InvalidUtilization", source)
                    == vocabulary.FROM_CPU
                ):
                    container, cores = holding.identity(pod, holder.container), requests.cores(pod, holder.container)
                    span = requests.ANY
        use = publishing.Use(
            meta.uid, meta.namespace, meta.name, holder.container, span.low, span.high, used, holder.reserves
        )
        return Shared(use, used / memory, container, cores, pod=holding.kubelet_uid(pod))

    def _said(self, pod: Pod, read: Callable[[Pod], T], reason: str, otherwise: T) -> T:
        """What an annotation says. One that makes no sense is told, and counts as none."""
        try:
            return read(pod)
        except errors.InputError as error:
            self.configuration.complain(about(pod), reason, str(error))
            return otherwise

    # What is written.

    def publish(self, spec: pools.NodeGpus, ids: Sequence[str], uses: Mapping[str, Uses], counters: Any) -> float:
        """Write labels and the node's view where they differ; seconds until the view should be looked at again."""
        self._tell_reservations(uses)
        node, fleet = self.node, self.configuration.current
        if node is None or fleet is None:
            return SAVE_EVERY
        config_map = self._stores.views.get(publishing.view_name(self.name), namespace=self._namespace)
        target = Target(resources.CONFIG_MAPS, publishing.view_name(self.name), self._namespace)
        labels = publishing.labels_of_real(spec, fleet.mig_strategy) if spec.gpus or spec.other else {}
        self._labelled.update(labels, publishing.labelled(config_map))
        patch = publishing.label_patch(labels, self._labelled)
        self._writer.merge(Target(resources.NODES, self.name), patch, observed=node, urgent=True)
        if not labels:
            if config_map is not None:
                self._writer.delete(target)
            return SAVE_EVERY
        since = time.monotonic() - self._published
        if config_map is not None and since < VIEW_EVERY:
            return VIEW_EVERY - since
        body = publishing.view(
            self.name, ids, spec, strategy=fleet.mig_strategy, fake=False, labelled=labels,
            uses={gpu: tuple(item.use for item in items) for gpu, items in uses.items()},
            counters={"time": round(time.time(), 1), "gpus": counters},
        )  # fmt: skip
        same = (
            config_map is not None
            and config_map.data.get(vocabulary.TOPOLOGY_KEY) == body["data"][vocabulary.TOPOLOGY_KEY]
        )
        if same and since < SAVE_EVERY:
            return SAVE_EVERY - since
        self._published = time.monotonic()
        self._writer.apply(target, body)
        return SAVE_EVERY

    def _tell_reservations(self, uses: Mapping[str, Uses]) -> None:
        """Tell each reservation pod which GPU it holds, the first of several; what it says already stays."""
        told: set[str] = set()
        for gpu, use in ((gpu, item.use) for gpu, items in uses.items() for item in items if item.use.reserves):
            pod = self._stores.pods.get(use.pod, namespace=use.namespace)
            if pod is not None and use.uid not in told and vocabulary.RUNAI_RESERVED not in pod.metadata.annotations:
                patch = {"metadata": {"annotations": {vocabulary.RUNAI_RESERVED: gpu}}}
                self._writer.merge(Target(resources.PODS, use.pod, use.namespace), patch, observed=pod, urgent=True)
            told.add(use.uid)


class Shared(msgspec.Struct, frozen=True):
    """A use of a GPU, and how much of it.

    Where the use of processors is to drive it: the container's id, the cores that are all of it, and the `pod` by the
    kubelet's uid. One that is `resting` has other work, which says how busy it is.
    """

    use: publishing.Use
    share: float
    container: str = ""
    cores: float = 0.0
    resting: bool = False
    pod: str = ""


Uses = tuple[Shared, ...]
