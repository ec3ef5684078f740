"""`simgpu cleanup`: takes everything of SimGPU out of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from simgpu.controllers import cleaning
from simgpu.controllers.cleaning import Leftovers
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig

LOOK_SECONDS = 1.0


async def find(target: ClientConfig, namespace: str) -> Leftovers:
    """Return what there is to remove."""
    async with Client(target) as client:
        return await cleaning.find(client, namespace)


async def clean(target: ClientConfig, namespace: str, *, wait: float, report: Callable[[str], None]) -> Leftovers:
    """Remove everything; return what is left.

    Controllers and agents that run are asked first, because only agents reach the files on their nodes. What they have
    not removed after `wait` seconds is removed without them.
    """
    async with Client(target) as client:
        found = await cleaning.find(client, namespace)
        if found.topology and wait:
            await cleaning.ask_to_withdraw(client, namespace, wanted=True)
            found = await _wait(client, namespace, wait, report)
        if found:
            await cleaning.remove(client, namespace, found)
        return await cleaning.find(client, namespace)


async def _wait(client: Client, namespace: str, seconds: float, report: Callable[[str], None]) -> Leftovers:
    """Wait until controllers and agents have removed what is theirs; return what is left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        found = await cleaning.find(client, namespace)
        if not found.waiting:
            return found
        if loop.time() > deadline:
            report(f"not removed by controllers and agents within {seconds:g} s: {len(found.lines())} objects")
            return found
        await asyncio.sleep(LOOK_SECONDS)
