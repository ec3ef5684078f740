"""A process that stands for election: `python -m tests.cluster.candidate IDENTITY NAMESPACE LOG`.

While it leads it writes "IDENTITY" with the time into the log, many times a second.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from simgpu.kube import kubeconfig
from simgpu.kube.client import Client
from simgpu.kube.leading import Election, Terms

TERMS = Terms(lease_seconds=3, renew_seconds=0.5, give_up_seconds=2.0, retry_seconds=0.5)


async def main(identity: str, namespace: str, log: Path) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    async def lead() -> None:
        while True:
            with log.open("a") as file:
                file.write(f"{time.monotonic()} {identity}\n")
            await asyncio.sleep(0.02)

    async with Client(kubeconfig.load()) as client:
        await Election(client, "leader", namespace=namespace, identity=identity, terms=TERMS).run(lead)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    except asyncio.CancelledError:
        sys.exit(0)
