"""The configuration that is in force: read from ConfigMaps, whatever its format, for fake and real nodes alike.

A broken one changes nothing but what users are told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from simgpu import errors
from simgpu.catalog import models
from simgpu.kube.recording import Recorder, Subject
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node
from simgpu.topology import pools

TOPOLOGY = "topology"
KEY = "topology.yml"
GPUS_ANNOTATION = "simgpu.dev/gpus"

_PROFILE = "gpu-profile-"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COMPLAINTS = 10_000

_log = logging.getLogger(__name__)


class Configuration:
    """What the ConfigMaps say. `changed` is called when it comes to say something else."""

    def __init__(
        self,
        config_maps: Store[ConfigMap],
        recorder: Recorder,
        changed: Callable[[], None],
        *,
        namespace: str,
        catalog: models.Catalog,
    ) -> None:
        self.fleet: pools.Fleet | None = None
        self.problem: str | None = None
        self._config_maps = config_maps
        self._recorder = recorder
        self._changed = changed
        self._namespace = namespace
        self._catalog = catalog
        self._complained: dict[str, str] = {}

    @staticmethod
    def concerns(name: str) -> bool:
        """Whether a ConfigMap is part of it."""
        return name == TOPOLOGY or name.startswith(_PROFILE)

    def read(self) -> None:
        """Read it; the last good one stays in force."""
        config_map = self._config_maps.get(TOPOLOGY, namespace=self._namespace)
        if config_map is None:
            self.problem = f"there is no ConfigMap {TOPOLOGY} in namespace {self._namespace}"
            if self.fleet is None:
                self.fleet = pools.Fleet()
                self._changed()
            return
        try:
            found = pools.parse(config_map.data.get(KEY, ""), self._catalog, self._profile)
        except errors.InputError as error:
            if self.problem != str(error):
                self.problem = str(error)
                _log.error("the topology stays as it was: %s", error)
                subject = Subject("v1", "ConfigMap", TOPOLOGY, self._namespace, config_map.metadata.uid)
                self._recorder.record(subject, "Warning", "InvalidTopology", str(error))
            return
        self.problem = None
        if found != self.fleet:
            self.fleet = found
            self._changed()

    def _profile(self, name: str) -> Mapping[str, Any] | None:
        config_map = self._config_maps.get(f"{_PROFILE}{name}", namespace=self._namespace)
        if config_map is None:
            return None
        try:
            document = yaml.load(config_map.data.get("profile.yaml", ""), Loader=_LOADER)  # noqa: S506 - a safe loader
        except (yaml.YAMLError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def of(self, node: Node) -> pools.NodeGpus | None:
        """What a node should have: by annotation, by name, by pool; None if nothing is said of it."""
        meta, fleet = node.metadata, self.fleet or pools.Fleet()
        override = meta.annotations.get(GPUS_ANNOTATION)
        if override is not None:
            try:
                return pools.parse_gpus(override, self._catalog, field=GPUS_ANNOTATION)
            except errors.InputError as error:
                self.complain(about(node), "InvalidGpus", str(error))
        if meta.name in fleet.nodes:
            return fleet.nodes[meta.name]
        pool = meta.labels.get(fleet.label_key)
        if pool is None:
            return None
        if pool not in fleet.pools:
            known = ", ".join(sorted(fleet.pools)) or "none"
            self.complain(about(node), "UnknownPool", f"{fleet.label_key}: no pool {pool!r}; there are: {known}")
            return None
        return fleet.pools[pool]

    def complain(self, subject: Subject, reason: str, message: str) -> None:
        """Tell users of a mistake, once."""
        key = f"{subject.kind}/{subject.namespace}/{subject.name}/{subject.uid}/{reason}"
        if self._complained.get(key) != message:
            self._complained[key] = message
            self._recorder.record(subject, "Warning", reason, message)
            while len(self._complained) > _COMPLAINTS:
                self._complained.pop(next(iter(self._complained)))


def about(node: Node) -> Subject:
    """A node as the subject of an event."""
    return Subject("v1", "Node", node.metadata.name, uid=node.metadata.uid)
