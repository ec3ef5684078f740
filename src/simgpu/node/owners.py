"""Which container the kubelet gave which devices: asked from it, and read from its checkpoint.

The pod resources interface leaves out init containers, which only the checkpoint names. It also names pods by their
uid, so that a pod is not taken for one of the same name before it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from simgpu import vocabulary
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
        """Ids, whatever their NUMA node."""
        if isinstance(self.device_ids, dict):
            return tuple(name for names in self.device_ids.values() for name in names)
        return tuple(self.device_ids or ())


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data = msgspec.field(default_factory=_Data)


class Owners:
    """Asks the kubelet."""

    def __init__(self, *, pod_resources: Path, plugins: Path) -> None:
        self._socket = pod_resources
        self._checkpoint = plugins / vocabulary.KUBELET_CHECKPOINT

    async def look(self, devices: Collection[str]) -> list[Held] | None:
        """Every container with any of these devices, whatever they were called when it got them; None if nobody knows.

        For a kubelet that does not answer, its checkpoint does.
        """
        try:
            answer = await rpc.call(
                self._socket, f"{messages.POD_RESOURCES}/List", messages.Empty(),
                messages.ListPodResourcesResponse, seconds=_SECONDS,
            )  # fmt: skip
        except rpc.Refused as error:
            _log.info("the kubelet does not say who has which device: %s", error)
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
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.debug("no checkpoint of the kubelet: %s", error)
            return []
        entries = document.data.pod_device_entries or ()
        return [Held(item.container_name, item.ids, uid=item.pod_uid) for item in entries]


def _of(devices: Collection[str], held: Iterable[Held]) -> list[Held]:
    return [item for item in held if any(sharing.device(name) in devices for name in item.ids)]
