"""The GPUs that a pod of a real node shares by naming reservations, for the container that is being created."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from simgpu.controllers.configuring import Configuration, subject_of
from simgpu.controllers.loading import PodLoads
from simgpu.kube.store import Change, Store
from simgpu.kube.views import Pod
from simgpu.pods import holding, reserving

PATIENCE = 0.5  # seconds for a pod to be known that its kubelet knows already; other containers wait meanwhile
_LOOK = 0.05  # seconds


class LentGpus:
    """Finds the GPUs of a sharing pod's container.

    `pods` are those of the node, `held` returns what its kubelet allocated and what claims gave, None until that is
    known, and `memory` the usable MiB of its GPUs, by id. `namespace` has the reservation pods.
    """

    def __init__(
        self,
        pods: Store[Pod],
        held: Callable[[], Sequence[holding.Held] | None],
        memory: Callable[[], Mapping[str, int]],
        loads: PodLoads,
        *,
        configuration: Configuration,
        namespace: str,
    ) -> None:
        self._pods = pods
        self._held = held
        self._memory = memory
        self._loads = loads
        self._configuration = configuration
        self._namespace = namespace
        self._reserved = asyncio.Event()
        self._shared: tuple[Sequence[holding.Held] | None, list[holding.Held]] | None = None  # with what it is made of

    async def wait_reserved(self) -> None:
        """Wait until a reservation pod is on the node: before that, no pod can share anything."""
        self._pods.listen(self._follow)
        await self._reserved.wait()

    def _follow(self, change: Change[Pod]) -> None:
        self._shared = None
        if change.new is not None and change.new.metadata.namespace == self._namespace:
            self._reserved.set()

    async def find(self, uid: str, container: str) -> dict[str, int]:
        """Return the GPUs of a container by its pod's uid in the kubelet, with the MiB that it has of each.

        An event reports a reservation that is not found.
        """
        pod, held = self._look(uid)
        for _ in range(round(PATIENCE / _LOOK)):
            if pod is not None and held is not None:
                break
            await asyncio.sleep(_LOOK)
            pod, held = self._look(uid)
        if pod is None or not reserving.names_reservation(pod) or not reserving.shares_in(pod, container):
            return {}
        memory = self._memory()
        lent = reserving.lent(self._pods, held or (), namespace=self._namespace).get(pod.metadata.uid, {})
        gpus = {
            gpu: self._loads.holder_user(holder, memory[gpu], works=True).memory_mib
            for gpu, holder in lent.items()
            if gpu in memory
        }
        if not gpus and pod.metadata.namespace != self._namespace:
            self._configuration.report(
                subject_of(pod),
                "ReservationUnknown",
                f"container {container} sees no GPU: no reservation that the pod names has one on this node yet; "
                "delete the pod to start it again",
            )
        return gpus

    def held(self) -> list[holding.Held]:
        """Return what containers share now."""
        if not self._reserved.is_set():
            return []
        held = self._held()
        if self._shared is None or self._shared[0] != held:  # peers may ask very often
            self._shared = held, self._find_shared(held or ())
        return self._shared[1]

    def _find_shared(self, held: Sequence[holding.Held]) -> list[holding.Held]:
        found = reserving.lent(self._pods, held, namespace=self._namespace)
        return [
            holding.Held(holder.container, (gpu,), uid=holding.kubelet_uid(holder.pod), lent=True)
            for gpus in found.values()
            for gpu, holder in gpus.items()
        ]

    def _look(self, uid: str) -> tuple[Pod | None, Sequence[holding.Held] | None]:
        return holding.by_kubelet_uid(self._pods).get(uid), self._held()
