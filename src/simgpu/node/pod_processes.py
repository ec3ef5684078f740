"""The processes of the node's pods, by container name: the kubelet's ids of both come from the pod's status."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simgpu.kube.views import Pod
from simgpu.machines.users import PodRef
from simgpu.node.cgroups import ContainerProcesses
from simgpu.pods import holding


class PodProcesses:
    """Lists processes of containers; `find` returns a pod by its names, `clock` the time in seconds."""

    def __init__(
        self, listed: ContainerProcesses, find: Callable[[PodRef], Pod | None], clock: Callable[[], float]
    ) -> None:
        self._listed, self._find, self._clock = listed, find, clock
        self._asked: set[str] = set()

    def of(self, ref: PodRef) -> Sequence[int]:
        """Return the processes of a container; none while it is not known, or not visible from here."""
        pod = self._find(ref)
        if pod is None or pod.metadata.uid != ref.uid or not (container := holding.identity(pod, ref.container)):
            return ()
        self._asked.add(container)
        return self._listed.pids(holding.kubelet_uid(pod), container, self._clock())

    def forget_others(self) -> None:
        """Forget containers that were not asked about since the last call."""
        self._listed.keep(self._asked)
        self._asked = set()
