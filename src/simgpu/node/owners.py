"""Which container has which devices, from the kubelet's pod resources interface and its checkpoint.

The interface omits init containers; the checkpoint has them. The checkpoint also names pods by uid, so that a pod is
not mistaken for an earlier one of the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from simgpu import vocabulary
from simgpu.kube import errors as kube_errors
from simgpu.node import messages, rpc
from simgpu.pods.holding import Held
from simgpu.topology import sharing

_SECONDS = 5.0

_log = logging.getLogger(__name__)


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    device_ids: dict[str, list[str]] | list[str] | None = msgspec.field(default=None, name="DeviceIDs")

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all NUMA nodes."""
        if isinstance(self.device_ids, dict):
            return tuple(name for names in self.device_ids.values() for name in names)
        return tuple(self.device_ids or ())


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data = msgspec.field(default_factory=_Data)


class Owners:
    """Reads assignments from the kubelet."""

    def __init__(self, *, pod_resources: Path, plugins: Path) -> None:
        self._socket = pod_resources
        self._checkpoint = plugins / vocabulary.KUBELET_CHECKPOINT

    async def look(self, devices: Collection[str]) -> list[Held] | None:
        """Return every container with any of these devices or their replicas; None if that is unknown.

        While the kubelet does not answer, its checkpoint is used.
        """
        try:
            answer = await rpc.call(
                self._socket, f"{messages.POD_RESOURCES}/List", messages.Empty(),
                messages.ListPodResourcesResponse, seconds=_SECONDS,
            )  # fmt: skip
        except rpc.RpcError as error:
            _log.info("listing pod resources failed, using the kubelet's checkpoint: %s", error)
            return _of(devices, self._saved()) or None
        listed = (
            Held(container.name, given.ids, namespace=pod.namespace, pod=pod.name)
            for pod in answer.pods
            for container in pod.containers
            for given in container.devices
        )
        return _of(devices, [*listed, *self._saved()])

    def _saved(self) -> list[Held]:
        try:
            document = msgspec.json.decode(self._checkpoint.read_bytes(), type=_Checkpoint)
        except (OSError, *kube_errors.DECODING) as error:
            _log.debug("cannot read the kubelet's checkpoint: %s", error)
            return []
        entries = document.data.pod_device_entries or ()
        return [Held(item.container_name, item.ids, uid=item.pod_uid) for item in entries]


def _of(devices: Collection[str], held: Iterable[Held]) -> list[Held]:
    return [item for item in held if any(sharing.device(name) in devices for name in item.ids)]
