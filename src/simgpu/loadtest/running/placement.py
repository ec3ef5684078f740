"""Places the GPU pods of a run on the run's own simulated nodes.

Classes of devices, resource names and the taint of simulated nodes are the same for all runs: without this, pods of one
run take the GPUs of another, and go away with its nodes. A template that selects nodes by the run's label itself is
left as it is, and so is a pod that is bound already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from simgpu.loadtest.dependencies.fake_gpus import GpuSettings
from simgpu.loadtest.dependencies.nodes import TAINT
from simgpu.loadtest.ownership import Run
from simgpu.vocabulary import GPU_RESOURCE, LOADTEST_LABEL, MIG_RESOURCE_PREFIX

_TOLERATION = {"key": TAINT["key"], "operator": "Exists", "effect": TAINT["effect"]}
# The second is for resources that stand for a class of devices without another name.
_PREFIXES = (MIG_RESOURCE_PREFIX, "deviceclass.resource.kubernetes.io/")


def of_run(run: Run, wanted: Sequence[GpuSettings]) -> RunPlacement | None:
    """Return the placement of a run's pods; None for a run without nodes of its own."""
    if not wanted:
        return None
    return RunPlacement(
        run,
        frozenset(item.extended_resource for item in wanted if item.extended_resource),
        every_pod=any(item.every_pod for item in wanted),
    )


class RunPlacement(msgspec.Struct, frozen=True):
    """Which pods have to be on the run's nodes: those with GPUs, those that tolerate simulated nodes, or all."""

    run: Run
    resources: frozenset[str] = frozenset()  # extended resources that stand for GPUs, beside nvidia.com/gpu
    every_pod: bool = False

    def placed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an object whose pods, its own or those of its templates, select the run's nodes."""
        if body.get("kind") == "Pod":
            spec = body.get("spec")
            return {**body, "spec": self._placed_spec(spec)} if isinstance(spec, dict) else body
        placed: dict[str, Any] = self._placed_templates(body)
        return placed

    def _placed_templates(self, value: Any) -> Any:
        """Return a value with all pod templates in it placed: of a job, a CronJob's job, tasks of a JobSet."""
        if isinstance(value, list):
            return [self._placed_templates(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: {**item, "spec": self._placed_spec(item["spec"])}
            if key == "template" and _is_pod_template(item)
            else self._placed_templates(item)
            for key, item in value.items()
        }

    def _placed_spec(self, spec: dict[str, Any]) -> dict[str, Any]:
        selector = spec.get("nodeSelector") or {}
        if spec.get("nodeName") or not isinstance(selector, dict) or LOADTEST_LABEL in selector:
            return spec
        if _has_own_rule(spec) or not (self.every_pod or self._for_simulated_nodes(spec)):
            return spec
        made = {**spec, "nodeSelector": {**selector, **self.run.labels}}
        listed = spec.get("tolerations") or []
        if isinstance(listed, list) and not _tolerates(spec):
            made["tolerations"] = [*listed, _TOLERATION]
        return made

    def _for_simulated_nodes(self, spec: dict[str, Any]) -> bool:
        if spec.get("resourceClaims") or _tolerates(spec):
            return True
        return any(
            name == GPU_RESOURCE or name in self.resources or name.startswith(_PREFIXES)
            for name in _resource_names(spec)
        )


def _is_pod_template(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("spec"), dict) and "containers" in value["spec"]


def _has_own_rule(spec: dict[str, Any]) -> bool:
    """Return whether the affinity of a pod names the label of runs."""
    found: Any = spec
    for key in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        found = found.get(key) if isinstance(found, dict) else None
    terms = found.get("nodeSelectorTerms") if isinstance(found, dict) else None
    return any(
        expression.get("key") == LOADTEST_LABEL
        for term in _mappings(terms)
        for expression in _mappings(term.get("matchExpressions"))
    )


def _tolerates(spec: dict[str, Any]) -> bool:
    """Return whether a pod tolerates the taint of simulated nodes."""
    return any(
        item.get("key") in (None, "", TAINT["key"])
        and (item.get("operator") == "Exists" or item.get("value") == TAINT["value"])
        and item.get("effect") in (None, "", TAINT["effect"])
        for item in _mappings(spec.get("tolerations"))
    )


def _resource_names(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the names of all resources that containers of a pod request."""
    for container in (*_mappings(spec.get("containers")), *_mappings(spec.get("initContainers"))):
        requested = container.get("resources")
        for kind in ("limits", "requests"):
            amounts = requested.get(kind) if isinstance(requested, dict) else None
            yield from (str(name) for name in amounts) if isinstance(amounts, dict) else ()


def _mappings(value: Any) -> list[dict[str, Any]]:
    """Return the mappings of a list; nothing of anything else, which the API server will reject."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
