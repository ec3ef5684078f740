"""Notices that another KWOK plays a run's nodes, and has it look at all pods of the run.

KWOK gives itself a new identity when it starts, by which it holds the leases of its nodes.
"""

from __future__ import annotations

import asyncio
import functools

from simgpu.kube import errors, nudging, parallel, resources
from simgpu.loadtest.dependencies.workbench import Workbench
from simgpu.vocabulary import NODE_LEASES_NAMESPACE

_POLL_SECONDS = 2.0


async def follow(bench: Workbench, node: str) -> None:
    """Nudge the run's pods whenever the lease of one of its nodes has a new holder. It ends when it is cancelled."""
    known = ""
    while True:
        try:
            lease = await bench.client.find(resources.LEASES, node, namespace=NODE_LEASES_NAMESPACE)
            holder = (lease.spec.holder_identity or "") if lease is not None else ""
            if holder and known and holder != known:
                count = await _nudge_pods(bench)
                bench.progress.note(f"KWOK was restarted: {count} pods were nudged, so that none of them runs longer")
            known = holder or known
        except errors.Forbidden:
            return  # node leases cannot be read here
        except errors.KubeError:
            pass  # asked again
        await asyncio.sleep(_POLL_SECONDS)


async def _nudge_pods(bench: Workbench) -> int:
    client = bench.client
    pods = [pod for space in bench.namespaces for pod in await nudging.unfinished_pods(client, namespace=space)]
    await parallel.each(pods, functools.partial(nudging.nudge, client), in_flight=nudging.IN_FLIGHT)
    return len(pods)
