"""The local cache of a collection, with named indexes and listeners.

Only a reflector writes it. Listeners are called after each change, in the order of changes; they should do little, such
as enqueue a key. What they raise is logged and does not propagate.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple

from simgpu.kube.resources import V
from simgpu.kube.views import ObjectIdentity, ObjectMeta

_log = logging.getLogger(__name__)


class Change(NamedTuple, Generic[V]):
    """A change of one object: `old` is None if it is new, `new` is None if it was deleted."""

    key: str
    old: V | None
    new: V | None


def key_of(view: V) -> str:
    """Return `namespace/name`, or the name of a cluster-scoped object."""
    return key_of_identity(view.metadata)


def key_of_identity(meta: ObjectMeta | ObjectIdentity) -> str:
    """Return the key of an object from its metadata; one text, in however many stores it is."""
    return sys.intern(f"{meta.namespace}/{meta.name}") if meta.namespace else meta.name


Listener = Callable[[Change[V]], None]
Index = Callable[[V], Iterable[str]]


class Store(Generic[V]):
    """Objects by key, and keys by the values of each index."""

    def __init__(self, indexes: Mapping[str, Index[V]] | None = None) -> None:
        self.synced = asyncio.Event()
        self._objects: dict[str, V] = {}
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._index_functions}
        self._listeners: list[Listener[V]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[V]:
        return iter(list(self._objects.values()))

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def get(self, name: str, *, namespace: str = "") -> V | None:
        """Return an object by name."""
        return self._objects.get(f"{namespace}/{name}" if namespace else name)

    def at(self, key: str) -> V | None:
        """Return an object by key."""
        return self._objects.get(key)

    def keys(self) -> list[str]:
        """Return all keys."""
        return list(self._objects)

    def by(self, index: str, value: str) -> list[V]:
        """Return the objects that have a value in an index, in the order in which they were added to it."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def values(self, index: str) -> list[str]:
        """Return all values of an index."""
        return list(self._indexes[index])

    def listen(self, listener: Listener[V]) -> None:
        """Call `listener` for every object in the store now, and for every change from now on."""
        for key, view in list(self._objects.items()):
            self._call(listener, Change(key, None, view))
        self._listeners.append(listener)

    # For the reflector

    def put(self, view: V) -> None:
        """Add or replace an object; the same resource version is no change."""
        key = key_of(view)
        old = self._objects.get(key)
        if old is not None and old.metadata.resource_version == view.metadata.resource_version:
            return
        self._objects[key] = view
        if self._index_functions:
            self._reindex(key, old, view)
        self._announce(Change(key, old, view))

    def remove(self, key: str) -> None:
        """Remove an object."""
        old = self._objects.pop(key, None)
        if old is None:
            return
        if self._index_functions:
            self._reindex(key, old, None)
        self._announce(Change(key, old, None))

    def replace(self, views: Iterable[V]) -> None:
        """Replace the whole collection; objects that are not in it were deleted meanwhile."""
        fresh = {key_of(view): view for view in views}
        for key in [key for key in self._objects if key not in fresh]:
            self.remove(key)
        for key, view in fresh.items():
            old = self._objects.get(key)
            if old is not None and old.metadata.uid != view.metadata.uid:
                self.remove(key)  # deleted and created again: two changes, as in a watch
            self.put(view)
        self.synced.set()

    def _reindex(self, key: str, old: V | None, new: V | None) -> None:
        for name, function in self._index_functions.items():
            before = self._values(name, function, old)
            after = self._values(name, function, new)
            index = self._indexes[name]
            for value in before - after:
                keys = index[value]
                keys.pop(key, None)
                if not keys:
                    del index[value]
            for value in after - before:
                index.setdefault(value, {})[key] = None

    @staticmethod
    def _values(name: str, function: Index[V], view: V | None) -> set[str]:
        try:
            return set(function(view)) if view is not None else set()
        except Exception:  # noqa: BLE001 - one malformed object must not stop the reflector
            _log.exception("index %s failed on %s", name, key_of(view) if view is not None else "nothing")
            return set()

    def _announce(self, change: Change[V]) -> None:
        for listener in self._listeners:
            self._call(listener, change)

    @staticmethod
    def _call(listener: Listener[V], change: Change[V]) -> None:
        try:
            listener(change)
        except Exception:  # noqa: BLE001 - nor a listener that fails
            _log.exception("a listener failed on %s", change.key)
