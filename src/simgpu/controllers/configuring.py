"""The configuration as the cluster's ConfigMaps have it, for fake and real nodes, and what users are told about it.

A broken one, or none, changes nothing: the last good one stays in force. A controller that starts and cannot read it
goes by what was published of the nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from simgpu import errors, vocabulary, yaml_text
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.kube.recording import Recorder, Subject
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.pods import annotated
from simgpu.topology import checking, inline, pools, reading

_COMPLAINTS = 10_000
LastGood = Callable[[str], pools.NodeGpus | None]

_STAYS = "the topology stays as it was"

_log = logging.getLogger(__name__)


class Configuration:
    """Which GPUs nodes are to have. `problems` is what is wrong with what is written there now."""

    def __init__(
        self, config_maps: Store[ConfigMap], recorder: Recorder, *, namespace: str, catalog: models.Catalog
    ) -> None:
        self.current: pools.Topology | None = None
        self.problems: tuple[str, ...] = ()
        self._config_maps = config_maps
        self._recorder = recorder
        self._namespace = namespace
        self._catalog = catalog
        self._complained: dict[str, str] = {}
        self._removed: set[str] = set()  # pools that were there

    @staticmethod
    def concerns(name: str) -> bool:
        """Whether a ConfigMap is part of it."""
        return name == vocabulary.TOPOLOGY or name.startswith(vocabulary.PROFILE_PREFIX)

    def read(self) -> bool:
        """Read it again; whether another is in force now."""
        before = self.current
        self.current = self._parsed() or before or publishing.published(self.views(), self._catalog)
        self._removed |= set(before.pools if before else ())
        return self.current != before

    def views(self) -> list[ConfigMap]:
        """What was published of fake nodes."""
        return [item for item in self._config_maps if publishing.is_view(item)]

    def describe(self) -> dict[str, Any] | None:
        """As the topology API tells it, whatever format it was written in."""
        if self.current is None:
            return None
        named = {name: publishing.pool_json(node) for name, node in self.current.nodes.items()}
        return {
            "NodePools": {name: publishing.pool_json(pool) for name, pool in self.current.pools.items()},
            "NodePoolLabelKey": self.current.label_key,
            "MigStrategy": self.current.mig_strategy,
            **({"Nodes": named} if named else {}),
        }

    def of(self, node: Node, last_good: LastGood) -> pools.NodeGpus | None:
        """What a node should have: by annotation, by name, by pool; None if nothing is said of it.

        Where what is said now cannot be understood, the node keeps what it had: `last_good` knows that by its name.
        """
        return self._annotated(node, last_good) or self._configured(node, last_good)

    def _annotated(self, node: Node, last_good: LastGood) -> pools.NodeGpus | None:
        try:
            override = annotated.read(node, vocabulary.GPUS_ANNOTATION)
            return None if override is None else inline.parse(override, self._catalog, field=vocabulary.GPUS_ANNOTATION)
        except errors.InputError as error:
            self.complain(about(node), "InvalidGpus", str(error))
            return last_good(node.metadata.name)

    def _configured(self, node: Node, last_good: LastGood) -> pools.NodeGpus | None:
        meta, fleet = node.metadata, self.current or pools.Topology()
        if meta.name in fleet.nodes:
            return fleet.nodes[meta.name]
        pool = meta.labels.get(fleet.label_key)
        if pool is None or pool in fleet.pools:
            return fleet.pools.get(pool) if pool is not None else None
        known = errors.clipped(", ".join(sorted(fleet.pools))) or "none"
        self.complain(about(node), "UnknownPool", f"{fleet.label_key}: no pool {pool!r}; there are: {known}")
        return None if pool in self._removed else last_good(meta.name)  # a pool that was taken away is no mistake

    def complain(self, subject: Subject, reason: str, message: str) -> None:
        """Tell users of a mistake, once."""
        key = f"{subject.kind}/{subject.namespace}/{subject.name}/{subject.uid}/{reason}"
        if self._complained.get(key) != message:
            self._complained[key] = message
            self._recorder.record(subject, "Warning", reason, message)
            while len(self._complained) > _COMPLAINTS:
                self._complained.pop(next(iter(self._complained)))

    def _parsed(self) -> pools.Topology | None:
        config_map = self._config_maps.get(vocabulary.TOPOLOGY, namespace=self._namespace)
        if config_map is None:
            missing = f"{vocabulary.TOPOLOGY}: there is no such ConfigMap in namespace {self._namespace}"
            self._tell("NoTopology", (missing,), _STAYS)
            return None
        try:
            found = reading.parse(config_map.data.get(vocabulary.TOPOLOGY_KEY, ""), self._catalog, self._profile)
        except checking.Mistakes as mistakes:
            self._tell("InvalidTopology", tuple(map(str, mistakes.found)), _STAYS, uid=config_map.metadata.uid)
            return None
        told = "the topology has keys that mean nothing"
        self._tell("UnknownKeys", found.unknown, told, uid=config_map.metadata.uid)
        return found

    def _tell(self, reason: str, problems: tuple[str, ...], what: str, *, uid: str = "") -> None:
        """Say once what is wrong."""
        if problems and problems != self.problems:
            message = "; ".join(problems)
            _log.warning("%s: %s", what, message)
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


def about(thing: Node | Pod) -> Subject:
    """A node or pod as the subject of an event."""
    meta = thing.metadata
    return Subject("v1", "Pod" if isinstance(thing, Pod) else "Node", meta.name, meta.namespace, meta.uid)
