"""What was last written to each object: whether a write would repeat it, and whether the object was seen since."""

from __future__ import annotations

import collections
import hashlib

import msgspec

from simgpu.kube import client as kube_client
from simgpu.kube import errors
from simgpu.kube.operations import Target
from simgpu.kube.patches import Patch
from simgpu.kube.views import Identified, Object

_MAX_OBJECTS = 200_000
_MAX_VERSION_DIGITS = 20  # digits: etcd's revisions have 64 bits


class LastWrites:
    """Digests of the last write to each sub-resource of each object; the least recently written is evicted first."""

    def __init__(self) -> None:
        self._objects: collections.OrderedDict[Target, dict[str, bytes]] = collections.OrderedDict()
        self._versions: dict[Target, int] = {}

    def knows(self, target: Target, kind: str, body: Patch) -> bool:
        """Return whether exactly this was the last write."""
        return self._objects.get(target.object, {}).get(target.subresource) == _digest(kind, body)

    def note(self, target: Target, kind: str, body: Patch) -> None:
        """Record a write that is being sent."""
        if kind == "delete":
            self.forget(target.object)
            return
        self._objects.setdefault(target.object, {})[target.subresource] = _digest(kind, body)
        self._objects.move_to_end(target.object)
        if len(self._objects) > _MAX_OBJECTS:
            self.forget(next(iter(self._objects)))

    def written(self, key: Target, answer: bytes) -> None:
        """Record the resource version in the response to a write."""
        if key in self._objects:
            self._versions[key] = _version(answer)

    def is_newer(self, key: Target, observed: Object) -> bool:
        """Return whether our last write is newer than the observed object."""
        seen = _number(observed.metadata.resource_version)
        return seen is not None and seen < self._versions.get(key, 0)

    def forget(self, key: Target) -> None:
        """Drop everything known of an object."""
        self._objects.pop(key, None)
        self._versions.pop(key, None)


def _version(answer: bytes) -> int:
    """Return the resource version in a response; 0 if there is none."""
    try:
        version = kube_client.decode(answer, Identified).metadata.resource_version
    except errors.UnreadableAnswer:
        return 0
    return _number(version) or 0


def _number(version: str) -> int | None:
    """Return a resource version as a number; None if it is not one."""
    return int(version) if version.isdecimal() and len(version) <= _MAX_VERSION_DIGITS else None


def _digest(kind: str, body: Patch) -> bytes:
    encoded = msgspec.json.encode(body, order="sorted")
    return hashlib.blake2b(encoded, digest_size=16, person=kind.encode()).digest()
