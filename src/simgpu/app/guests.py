"""Who connects to the agent's socket: a container that has GPUs, known by what the kernel and the kubelet say of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence

from simgpu.identities import view
from simgpu.kube.views import Pod
from simgpu.node import peers
from simgpu.pods import holding
from simgpu.workloads.guest import HOST, Guest, PeerRejected, Working

PATIENCE = 5.0  # seconds: what a container does first may come before its pod's status does
MOST_WAITING = 64
_LOOK = 0.1


class Guests:
    """Finds the container behind a connection: `pods` of the node, `held` by them, and all devices in their order."""

    def __init__(
        self, pods: Iterable[Pod], held: Callable[[], Sequence[holding.Held]], devices: Callable[[], Sequence[str]]
    ) -> None:
        self._pods = pods
        self._held = held
        self._devices = devices
        self._waiting = 0

    async def identify(self, connection: socket.socket, working: Working) -> Guest:
        """The container, or an error if there is none with GPUs; the node's own processes may act on all of them."""
        with working():
            try:
                peer = peers.of(connection)
            except peers.Unknown as error:
                raise PeerRejected(str(error)) from None
            if peer == peers.HOST:
                return HOST
            found = self.find(peer)
        if found is None and self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                found = await self._await(peer, working)
            finally:
                self._waiting -= 1
        if found is None:
            raise PeerRejected(f"container {peer.container[:12]} of pod {peer.pod} has no GPUs here")
        return found

    async def _await(self, peer: peers.Peer, working: Working) -> Guest | None:
        for _ in range(round(PATIENCE / _LOOK)):
            await asyncio.sleep(_LOOK)
            with working():
                if (found := self.find(peer)) is not None:
                    return found
        return None

    def find(self, peer: peers.Peer) -> Guest | None:
        """The container as far as it is known by now."""
        same = (item for item in self._pods if holding.kubelet_uid(item) == peer.pod)
        pod = holding.by_kubelet_uid(same).get(peer.pod)
        if pod is None:
            return None
        held, meta = self._held(), pod.metadata
        container = holding.container(pod, peer.container, held)
        mine = set(holding.gpus(pod, container, held)) if container else set()
        devices = tuple(item for item in self._devices() if item in mine)
        if not container or not devices:
            return None
        name = f"pod {meta.namespace}/{meta.name}"
        return Guest(name, view.Pod(meta.name, meta.namespace, container, meta.uid), devices)
