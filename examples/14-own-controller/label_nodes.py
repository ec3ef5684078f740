"""Watches nodes and labels each with its size: a controller in fifty lines.

Run it against any cluster: `KUBECONFIG=$(simgpu kubeconfig) python examples/14-own-controller/label_nodes.py`. Nodes
with 32 CPUs or more get `example.com/size=large`, the others `small`; change a label by hand and it is put right again.
"""

from __future__ import annotations

import asyncio

from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.kube.operations import Target
from simgpu.kube.queue import WorkQueue
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import Node
from simgpu.kube.writer import Writer

LABEL = "example.com/size"


def cpus(node: Node) -> float:
    """The node's CPUs; the API writes parts of one in thousandths."""
    amount = node.status.capacity.get("cpu", "0")
    return float(amount.removesuffix("m")) / 1000 if amount.endswith("m") else float(amount)


async def main() -> None:
    """One store, one queue, one writer; everything ends together."""
    nodes: Store[Node] = Store()
    queue: WorkQueue[str] = WorkQueue()
    nodes.listen(lambda change: queue.add(change.key))

    async with Client(kubeconfig.load()) as client:
        writer = Writer(client, manager="label-nodes", per_second=50, burst=50)

        async def reconcile(name: str) -> None:
            node = nodes.get(name)
            if node is None:
                return
            size = "large" if cpus(node) >= 32 else "small"
            patch = {"metadata": {"labels": {LABEL: size}}}
            if writer.merge(Target(resources.NODES, name), patch, observed=node):
                print(f"{name} is {size}", flush=True)

        async with asyncio.TaskGroup() as group:
            group.create_task(Reflector(client, resources.NODES, nodes).run())
            group.create_task(queue.run(reconcile, workers=4))
            group.create_task(writer.run())


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("stopped")
