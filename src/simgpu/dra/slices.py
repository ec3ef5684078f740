"""Resource slices of a node's pool: which devices are in which slice, and what has to be written.

Consumers use the slices of the highest generation, once there are as many as each of them says. So a change that
concerns several slices raises the generation of all; one that concerns a single slice of several writes that one alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from simgpu.dra import versions
from simgpu.dra.devices import CounterSet, PublishedDevice
from simgpu.dra.node_devices import NodeDevices
from simgpu.dra.taints import NO_EFFECT
from simgpu.dra.versions import ServedApi
from simgpu.kube import naming, views
from simgpu.vocabulary import (
    DRA_DRIVER,
    MAX_COUNTER_SETS,
    MAX_COUNTING_DEVICES,
    MAX_NAME,
    MAX_SLICE_DEVICES,
    SLICE_LABEL,
    SLICE_PREFIX,
    SLICE_SUFFIX,
)

_MAX_OLD_COUNTERS, _MAX_OLD_USES = 32, 1024  # of a slice, where counters and devices are in one
_MAX_INDEX_DIGITS = 3
_DEVICE_FIELDS = ("consumesCounters", "allowMultipleAllocations", "taints")


class SliceContent(msgspec.Struct, frozen=True):
    """Devices and counter sets of one slice."""

    devices: tuple[PublishedDevice, ...] = ()
    counters: tuple[CounterSet, ...] = ()


# Splitting.


def split(node: NodeDevices, api: ServedApi) -> list[SliceContent]:
    """Return the slices of a node; the devices of a GPU stay together where they fit."""
    if not node.counters:
        limit = MAX_COUNTING_DEVICES if _tainted(node) else MAX_SLICE_DEVICES
        return [SliceContent(devices=chunk) for chunk in _packed(node.groups, limit)]
    if not api.splits_counters:
        return list(_combined(node))
    sets = [
        SliceContent(counters=node.counters[first : first + MAX_COUNTER_SETS])
        for first in range(0, len(node.counters), MAX_COUNTER_SETS)
    ]
    return [*sets, *(SliceContent(devices=chunk) for chunk in _packed(node.groups, MAX_COUNTING_DEVICES))]


def _tainted(node: NodeDevices) -> bool:
    return any(device.taints for group in node.groups for device in group)


def _packed(groups: Iterable[Sequence[PublishedDevice]], limit: int) -> Iterator[tuple[PublishedDevice, ...]]:
    """Yield devices in chunks of at most `limit`; a group is divided only where it is larger."""
    chunk: list[PublishedDevice] = []
    for group in groups:
        if chunk and len(chunk) + len(group) > limit:
            yield tuple(chunk)
            chunk = []
        chunk += group
        while len(chunk) > limit:
            yield tuple(chunk[:limit])
            del chunk[:limit]
    if chunk:
        yield tuple(chunk)


def _combined(node: NodeDevices) -> Iterator[SliceContent]:
    """Yield slices of devices with their counters, as servers before 1.35 want them."""
    sets = {item.name: item for item in node.counters}
    chunk, mine = list[PublishedDevice](), list[CounterSet]()
    for group in node.groups:
        new = [
            sets[name] for name in dict.fromkeys(use.counter_set for item in group for use in item.consumes_counters)
        ]
        grown, joined = [*chunk, *group], [*mine, *new]
        if chunk and not _fits(grown, joined):
            yield SliceContent(tuple(chunk), tuple(mine))
            grown, joined = list(group), new
        chunk, mine = grown, joined
    if chunk:
        yield SliceContent(tuple(chunk), tuple(mine))


def _fits(devices: Sequence[PublishedDevice], sets: Sequence[CounterSet]) -> bool:
    uses = sum(len(use.counters) for device in devices for use in device.consumes_counters)
    counters = sum(len(item.counters) for item in sets)
    few = len(devices) <= MAX_COUNTING_DEVICES and len(sets) <= MAX_COUNTER_SETS
    return few and counters <= _MAX_OLD_COUNTERS and uses <= _MAX_OLD_USES


# Objects.


class SliceKind(msgspec.Struct, frozen=True):
    """How slices of a kind of nodes are named and labelled."""

    prefix: str
    suffix: str
    labels: dict[str, str] = {}

    def name_of(self, node: str, index: int) -> str:
        """Return the name of a node's slice: with prefix and suffix, and for further ones with a number."""
        suffix = f"{self.suffix}-{index}" if index else self.suffix
        return f"{self.prefix}{naming.shortened(node, MAX_NAME - len(self.prefix) - len(suffix))}{suffix}"

    def has_name(self, name: str, node: str) -> bool:
        """Return whether a name is that of a slice of a node."""
        first, _, index = name.rpartition("-")
        numbered = index.isdecimal() and len(index) <= _MAX_INDEX_DIGITS and name == self.name_of(node, int(index))
        return name == self.name_of(node, 0) or (bool(first) and numbered)


FAKE = SliceKind(SLICE_PREFIX, SLICE_SUFFIX, {SLICE_LABEL: "true"})
REAL = SliceKind("", f"-{DRA_DRIVER}")


def spec_of(content: SliceContent, node: str, api: ServedApi) -> dict[str, Any]:
    """Return the spec of a slice without the numbers of its pool."""
    found: dict[str, Any] = {"driver": DRA_DRIVER, "nodeName": node, "pool": {"name": node}}
    if content.devices:
        known = content.devices if api.informs_by_taints else map(_effective, content.devices)
        listed = msgspec.to_builtins(tuple(known))
        found["devices"] = [versions.render_device(device, api.version) for device in listed]
    if content.counters:
        found["sharedCounters"] = msgspec.to_builtins(content.counters)
    return found


def _effective(device: PublishedDevice) -> PublishedDevice:
    """Return a device without taints that have no effect: older servers reject these."""
    kept = tuple(taint for taint in device.taints if taint.effect != NO_EFFECT)
    return msgspec.structs.replace(device, taints=kept) if kept != device.taints else device


def body(
    spec: Mapping[str, Any],
    name: str,
    *,
    generation: int,
    count: int,
    owner: views.ObjectMeta,
    kind: SliceKind = FAKE,
) -> dict[str, Any]:
    """Return a slice to write; `owner` is its node, with which it is deleted."""
    pool = {"name": spec["pool"]["name"], "generation": generation, "resourceSliceCount": count}
    reference = {"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid, "controller": True}
    meta = {"name": name, "labels": kind.labels, "ownerReferences": [reference]}
    return {"metadata": meta, "spec": {**spec, "pool": pool}}


class SliceState(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a slice that was read: a digest of its content, its pool's numbers, fields behind gates.

    `identity` is its driver and its pool's name, which cannot be changed. `times` are those of taints, by
    (device, key).
    """

    digest: bytes = b""
    node: str = ""
    identity: tuple[str, str] = ("", "")
    generation: int = -1
    count: int = 0
    gated: frozenset[str] = frozenset()
    times: tuple[tuple[str, str, str], ...] = ()


class PublishedSlice(views.Object, frozen=True):
    """A slice in the API. Only a digest of its content is kept: there may be thousands of slices of many devices."""

    spec: msgspec.Raw = msgspec.Raw()
    state: SliceState = SliceState()

    def __post_init__(self) -> None:
        if bytes(self.spec):
            try:
                state = read_state(msgspec.json.decode(self.spec))
            except AttributeError as error:  # msgspec makes a decoding error of other kinds only
                raise ValueError(f"not the spec of a slice: {error}") from None
            msgspec.structs.force_setattr(self, "state", state)
            msgspec.structs.force_setattr(self, "spec", msgspec.Raw())


def read_state(spec: Any) -> SliceState:
    """Return what is kept of a slice's spec; an empty state if it is none."""
    if not isinstance(spec, dict) or not isinstance(spec.get("pool"), dict):
        return SliceState()
    listed = [versions.read_device(item) for item in spec.get("devices") or () if isinstance(item, dict)]
    pool = spec["pool"]
    times = [
        (str(device.get("name")), str(taint.get("key")), str(taint.get("timeAdded", "")))
        for device in listed
        for taint in device.get("taints") or ()
        if isinstance(taint, dict)
    ]
    untimed = [_untimed(device) if device.get("taints") else device for device in listed] if times else listed
    plain = {**spec, "devices": untimed, "pool": {"name": pool.get("name")}}
    return SliceState(
        digest=_digest(plain),
        node=str(spec.get("nodeName", "")),
        identity=(str(spec.get("driver", "")), str(pool.get("name", ""))),
        generation=_whole(pool.get("generation")),
        count=_whole(pool.get("resourceSliceCount")),
        gated=frozenset(_gated(spec, listed)),
        times=tuple(sorted(times)),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _untimed(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device without the times of its taints, which the server sets."""
    taints = [{name: value for name, value in taint.items() if name != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}


def _digest(spec: Mapping[str, Any]) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(spec, order="sorted"), digest_size=16).digest()


def _gated(spec: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if spec.get("sharedCounters"):
        yield "sharedCounters"
    for device in devices:
        yield from (name for name in _DEVICE_FIELDS if device.get(name))
        if any("requestPolicy" in item for item in (device.get("capacity") or {}).values()):
            yield "requestPolicy"


# What to write.


class SlicePlan(msgspec.Struct, frozen=True):
    """Slices to delete by name, and then those to write, by name, both in this order; and the wanted states of all."""

    delete: tuple[str, ...] = ()
    write: dict[str, dict[str, Any]] = {}
    states: dict[str, SliceState] = {}


def plan(
    wanted: Mapping[str, Mapping[str, Any]],
    existing: Mapping[str, SliceState],
    *,
    owner: views.ObjectMeta,
    foreign: Iterable[str] = (),
    kind: SliceKind = FAKE,
) -> SlicePlan:
    """Return what to write so that the pool has exactly the `wanted` specs, by name.

    `existing` are the slices that there are, and `foreign` the names of those whose owner is another node of the same
    name.
    """
    states = {name: read_state(spec) for name, spec in wanted.items()}
    changed = [name for name, state in states.items() if name not in existing or existing[name].digest != state.digest]
    obsolete = tuple(name for name in existing if name not in wanted)
    numbers = {(state.generation, state.count) for name, state in existing.items() if name in wanted}
    uneven = len(numbers) > 1 or any(count != len(wanted) for _, count in numbers)
    listed = list(dict.fromkeys((*changed, *(name for name in foreign if name in wanted))))
    generation = max([0, *(state.generation for state in existing.values())])
    alone = len(changed) <= 1 and (len(wanted) > 1 or not changed) and set(changed) <= set(existing)
    if obsolete or uneven or not alone:
        listed, generation = list(wanted), generation + 1
    listed.sort(key=lambda name: name not in existing)  # those that exist are updated first
    bodies = {}
    for name in listed:
        times = {(device, key): time for device, key, time in existing[name].times} if name in existing else {}
        spec = _timed(wanted[name], times) if times else wanted[name]
        bodies[name] = body(spec, name, generation=generation, count=len(wanted), owner=owner, kind=kind)
    return SlicePlan(obsolete, bodies, states)


def _timed(spec: Mapping[str, Any], times: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """Return a spec whose taints keep the times that they have in the API."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    for device in made.get("devices", ()):
        for taint in (device.get("basic") or device).get("taints", ()):
            if known := times.get((device["name"], taint["key"])):
                taint.setdefault("timeAdded", known)
    return made
