"""Recording rules for Run:ai, under the names that its dashboards read, from metrics of simulated GPUs.

They are created once where Prometheus-operator's types and Run:ai's namespace exist, and then left to users.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from simgpu import vocabulary
from simgpu.kube import errors, resources
from simgpu.kube.client import Client

_TOTAL = "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)"
_RECORDED = {
    "runai_dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "runai_dcgm_gpu_used_mebibytes": "DCGM_FI_DEV_FB_USED",
    "runai_dcgm_gpu_total_mebibytes": _TOTAL,
}
_RENAMED = {"exported_pod": "pod_name", "exported_namespace": "pod_namespace", "Hostname": "node"}

_log = logging.getLogger(__name__)


def document() -> dict[str, Any]:
    """Return the PrometheusRule."""
    rules = [{"record": name, "expr": _expression(metric)} for name, metric in _RECORDED.items()]
    labels = {vocabulary.APP_LABEL: vocabulary.EXPORTER, "component": "status-exporter-kwok"}
    return {
        "metadata": {"name": vocabulary.RUNAI_RULE, "labels": labels},
        "spec": {"groups": [{"name": "kwok-dcgm-metrics", "rules": rules}]},
    }


def _expression(metric: str) -> str:
    for source, target in _RENAMED.items():
        metric = f'label_replace({metric},"{target}","$1","{source}","(.+)")'
    return f"{metric} * on(node) group_left(nodepool) runai_node_nodepool_excluded"


async def keep(client: Client, namespace: str, seconds: float) -> None:
    """Create the rules once they can be, looking every so many seconds; until cancelled."""
    problem = ""
    while True:
        try:
            await create_if_missing(client, namespace)
            problem = ""
        except errors.KubeError as error:
            if str(error) != problem:
                problem = str(error)
                _log.warning("cannot create recording rules for Run:ai: %s", error)
        await asyncio.sleep(seconds)


async def create_if_missing(client: Client, namespace: str) -> bool:
    """Create the rules unless they are there; return whether they were created."""
    resource = resources.PROMETHEUS_RULES
    try:
        served = await client.discover(resource.api_version)
    except errors.NotFound:
        return False
    if resource.plural not in {item.name for item in served}:
        return False
    if await client.find(resources.NAMESPACES, namespace) is None:
        return False
    if await client.find(resource, vocabulary.RUNAI_RULE, namespace=namespace) is not None:
        return False
    await client.create(resource, document(), namespace=namespace)
    _log.info("created recording rules for Run:ai in namespace %s", namespace)
    return True
