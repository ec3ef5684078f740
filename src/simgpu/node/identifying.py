"""The container behind a connection to the agent's socket, by what the kernel reports of the peer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence

from simgpu.kube.views import Pod
from simgpu.node import peers
from simgpu.pods import holding
from simgpu.pods.guests import HOST, Guest, PeerRejected, Working

PATIENCE = 5.0  # seconds: a container can connect before its pod's status lists it
MAX_WAITING = 64
_LOOK = 0.1  # seconds


class PeerIdentifier:
    """Identifies the container behind a connection.

    `pods` are those of the node, `held` returns what the kubelet allocated to them, `devices` all ids in their order.
    """

    def __init__(
        self, pods: Iterable[Pod], held: Callable[[], Sequence[holding.Held]], devices: Callable[[], Sequence[str]]
    ) -> None:
        self._pods = pods
        self._held = held
        self._devices = devices
        self._waiting = 0

    async def identify(self, connection: socket.socket, working: Working) -> Guest:
        """Return the container, or `HOST` for a process outside of pods; `PeerRejected` if it has no GPUs."""
        with working():
            try:
                peer = peers.of(connection)
            except peers.Unknown as error:
                raise PeerRejected(str(error)) from None
            if peer == peers.HOST:
                return HOST
            found = self._find(peer)
        if found is None and self._waiting < MAX_WAITING:
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
                if (found := self._find(peer)) is not None:
                    return found
        return None

    def _find(self, peer: peers.Peer) -> Guest | None:
        return holding.guest(self._pods, self._held(), self._devices(), uid=peer.pod, container=peer.container)
