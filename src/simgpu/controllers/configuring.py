"""The configuration in the cluster's ConfigMaps, for fake and real nodes, and events about its problems.

If it is invalid or missing, the last valid one stays in force. A controller that starts without a valid one uses the
published views of the nodes instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from simgpu import errors, vocabulary, yaml_text
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.kube.recording import Recorder, Subject
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.pods import annotated
from simgpu.topology import allocating, checking, failures, inline, mig_files, mig_layouts, pools, reading

_MAX_REPORTED = 10_000  # objects with a reason, to deduplicate
T = TypeVar("T")
Thing = TypeVar("Thing", Node, Pod)
LastGood = Callable[[str], pools.NodeGpus | None]

_UNCHANGED = "the previous topology stays in force"

_log = logging.getLogger(__name__)


class Configuration:
    """Which GPUs nodes should have. `problems` are those of the ConfigMap as it is now."""

    def __init__(
        self,
        config_maps: Store[ConfigMap],
        recorder: Recorder,
        *,
        namespace: str,
        catalog: models.Catalog,
        allocation: str = vocabulary.EXTENDED,
    ) -> None:
        self.current: pools.Topology | None = None
        self.renamed: frozenset[str] = frozenset()  # names that time-slicing gives to resources
        self.problems: tuple[str, ...] = ()
        self.uninstalling = False  # whether nodes should have nothing any more
        self._config_maps = config_maps
        self._recorder = recorder
        self._namespace = namespace
        self._catalog = catalog
        self._allocation = allocation
        self._reported: dict[str, str] = {}  # the last message, by object and reason
        self._removed: set[str] = set()  # pools of earlier configurations
        self._mig_configs: dict[str, mig_layouts.Layout] = {}  # of mig-parted's ConfigMap, when it was last valid

    @staticmethod
    def concerns(name: str) -> bool:
        """Return whether a ConfigMap of this name is part of it."""
        return name in (vocabulary.TOPOLOGY, vocabulary.MIG_FILE) or name.startswith(vocabulary.PROFILE_PREFIX)

    def read(self) -> bool:
        """Read it again, and return whether that changed anything."""
        before, was = self.current, self.uninstalling
        self.uninstalling = self._uninstalling()
        found = self._parsed() or before or publishing.published(self.views(), self._catalog)
        self._removed |= set(before.pools if before else ())
        if found == before and self.uninstalling == was:
            return False
        # Another object even if it is equal: nodes are reconciled again.
        self.current = found.adopting(before) if before else found
        specs = (*self.current.pools.values(), *self.current.nodes.values())
        self.renamed = frozenset(spec.slicing.name(item.name) for spec in specs for item in spec.slicing.resources)
        return True

    def _uninstalling(self) -> bool:
        config_map = self._config_maps.get(vocabulary.TOPOLOGY, namespace=self._namespace)
        return config_map is not None and is_uninstalling(config_map)

    def views(self) -> list[ConfigMap]:
        """Return the published views of fake nodes."""
        return [item for item in self._config_maps if publishing.is_view(item)]

    def describe(self) -> dict[str, Any] | None:
        """Return it for the topology API, in one format for all formats that it can be written in."""
        if self.current is None:
            return None
        named = {name: publishing.pool_json(node) for name, node in self.current.nodes.items()}
        return {
            "NodePools": {name: publishing.pool_json(pool) for name, pool in self.current.pools.items()},
            "NodePoolLabelKey": self.current.label_key,
            "MigStrategy": self.current.mig_strategy,
            **({"Nodes": named} if named else {}),
        }

    def gpus_of(self, node: Node, last_good: LastGood) -> pools.NodeGpus | None:
        """Return what a node should have, by annotation, by name or by pool; None if nothing is configured.

        Where the configuration is invalid, the node keeps what it had, which `last_good` returns by its name.
        """
        if self.uninstalling:
            return None
        found = self._annotated(node, last_good) or self._configured(node, last_good)
        return self._allocated(node, found) if found is not None else None

    def _allocated(self, node: Node, spec: pools.NodeGpus) -> pools.NodeGpus:
        """Return what a node has, with the way in which pods get it that its annotation names."""
        way = self.checked(node, "InvalidAllocation", _annotated_way, None) or spec.allocation.way
        if way == spec.allocation.way:
            return spec
        return msgspec.structs.replace(spec, allocation=msgspec.structs.replace(spec.allocation, way=way))

    def failures_of(self, node: Node, spec: pools.NodeGpus) -> failures.Failures:
        """Return the failures in a node's annotation, else those of its pool."""
        found = self.checked(node, "InvalidFailures", _annotated_failures, None)
        return spec.failures if found is None else found

    def _annotated(self, node: Node, last_good: LastGood) -> pools.NodeGpus | None:
        try:
            override = annotated.read(node, vocabulary.GPUS_ANNOTATION)
            found = None
            if override is not None:
                found = inline.parse(override, self._catalog, field=vocabulary.GPUS_ANNOTATION)
        except errors.InputError as error:
            self.report(subject_of(node), "InvalidGpus", str(error))
            return last_good(node.metadata.name)
        self.resolved(node, "InvalidGpus")
        if found is None or self.current is None:
            return found
        return msgspec.structs.replace(found, allocation=self.current.allocation)

    def _configured(self, node: Node, last_good: LastGood) -> pools.NodeGpus | None:
        meta, fleet = node.metadata, self.current or pools.Topology()
        pool = meta.labels.get(fleet.label_key)
        if meta.name in fleet.nodes or pool is None or pool in fleet.pools:
            self.resolved(node, "UnknownPool")
        if meta.name in fleet.nodes:
            return fleet.nodes[meta.name]
        if pool is None or pool in fleet.pools:
            return fleet.pools.get(pool) if pool is not None else None
        known = errors.clipped(", ".join(sorted(fleet.pools))) or "none"
        self.report(subject_of(node), "UnknownPool", f"{fleet.label_key}: no pool {pool!r}; there are: {known}")
        return None if pool in self._removed else last_good(meta.name)  # a pool was removed on purpose

    def report(self, subject: Subject, reason: str, message: str) -> None:
        """Record a warning event, unless its message is the last one with that reason and not `resolved` yet."""
        key = _key(subject, reason)
        if self._reported.get(key) != message:
            self._reported[key] = message
            self._recorder.record(subject, "Warning", reason, message)
            _trim(self._reported, _MAX_REPORTED)

    def resolved(self, thing: Node | Pod, reason: str) -> None:
        """Note that there is no such problem: if it comes back, it is reported again."""
        if self._reported:
            self._reported.pop(_key(subject_of(thing), reason), None)

    def checked(self, thing: Thing, reason: str, read: Callable[[Thing], T], otherwise: T) -> T:
        """Return what `read` returns of a node or pod; invalid input is reported and replaced by `otherwise`."""
        try:
            found = read(thing)
        except errors.InputError as error:
            self.report(subject_of(thing), reason, str(error))
            return otherwise
        self.resolved(thing, reason)
        return found

    def _parsed(self) -> pools.Topology | None:
        config_map = self._config_maps.get(vocabulary.TOPOLOGY, namespace=self._namespace)
        if config_map is None:
            missing = f"{vocabulary.TOPOLOGY}: there is no such ConfigMap in namespace {self._namespace}"
            self._report_problems("NoTopology", (missing,), _UNCHANGED)
            return None
        wrong, uid = self._read_mig_configs(), config_map.metadata.uid
        try:
            text = config_map.data.get(vocabulary.TOPOLOGY_KEY, "")
            topology = reading.parse(
                text, self._catalog, self._profile, allocation=self._allocation, mig_configs=self._mig_configs
            )
        except checking.Mistakes as mistakes:
            found = (*wrong, *map(str, mistakes.found))
            self._report_problems("InvalidTopology", found, _UNCHANGED, uid=uid)
            return None
        if wrong:
            effect = "the previous layouts of MIG stay in force"
            self._report_problems("InvalidMigLayouts", (*wrong, *topology.unknown), effect, uid=uid)
        else:
            self._report_problems("UnknownKeys", topology.unknown, "the topology has unknown keys", uid=uid)
        return topology

    def _read_mig_configs(self) -> tuple[str, ...]:
        """Read the layouts in the ConfigMap of mig-parted; return what is wrong with it.

        Others may own it: an invalid one leaves the layouts before in force, and the topology as it is.
        """
        config_map = self._config_maps.get(vocabulary.MIG_FILE, namespace=self._namespace)
        text = config_map.data.get(vocabulary.MIG_FILE_KEY) if config_map is not None else None
        try:
            field = f"ConfigMap {vocabulary.MIG_FILE}: {vocabulary.MIG_FILE_KEY}"
            self._mig_configs = mig_files.read(text, field=field) if text is not None else {}
        except errors.InputError as error:
            return (str(error),)
        return ()

    def _report_problems(self, reason: str, problems: tuple[str, ...], effect: str, *, uid: str = "") -> None:
        """Log problems and record an event, unless they are the same as last time."""
        if problems and problems != self.problems:
            message = "; ".join(problems)
            _log.warning("%s: %s", effect, message)
            subject = Subject("v1", "ConfigMap", vocabulary.TOPOLOGY, self._namespace, uid)
            self._recorder.record(subject, "Warning", reason, message)
        self.problems = problems

    def _profile(self, name: str) -> Mapping[str, Any] | None:
        config_map = self._config_maps.get(f"{vocabulary.PROFILE_PREFIX}{name}", namespace=self._namespace)
        if config_map is None:
            return None
        place = f"ConfigMap {vocabulary.PROFILE_PREFIX}{name}"
        if vocabulary.PROFILE_KEY not in config_map.data:
            raise errors.InputError(place, f"has no {vocabulary.PROFILE_KEY}")
        try:
            document = yaml_text.parse(config_map.data[vocabulary.PROFILE_KEY])
        except ValueError as error:
            raise errors.InputError(place, f"{vocabulary.PROFILE_KEY}: {error}") from None
        if not isinstance(document, dict):
            raise errors.InputError(place, f"{vocabulary.PROFILE_KEY} must be a mapping")
        return document


def _annotated_way(node: Node) -> str | None:
    text = annotated.read(node, vocabulary.ALLOCATION_ANNOTATION)
    return None if text is None else allocating.parse_way(text, field=vocabulary.ALLOCATION_ANNOTATION)


def _annotated_failures(node: Node) -> failures.Failures | None:
    text = annotated.read(node, vocabulary.FAILURES_ANNOTATION)
    return None if text is None else failures.read(text, field=vocabulary.FAILURES_ANNOTATION)


def _key(subject: Subject, reason: str) -> str:
    return f"{subject.kind}/{subject.namespace}/{subject.name}/{subject.uid}/{reason}"


def _trim(kept: dict[str, Any], limit: int) -> None:
    """Forget the oldest entries."""
    while len(kept) > limit:
        kept.pop(next(iter(kept)))


def is_uninstalling(topology: ConfigMap) -> bool:
    """Return whether the topology's ConfigMap asks to remove everything."""
    return topology.metadata.annotations.get(vocabulary.UNINSTALL_ANNOTATION) == "true"


def subject_of(thing: Node | Pod) -> Subject:
    """Return a node or pod as the subject of an event."""
    meta = thing.metadata
    return Subject("v1", "Pod" if isinstance(thing, Pod) else "Node", meta.name, meta.namespace, meta.uid)
