"""What a pod's annotations have its containers do on their GPUs, and the memory that they hold.

An activity profile comes before a timeline, and that before a plain utilisation; a shape is the kind of work of both
of the latter. Each annotation has a value for all containers, or an object with values by container. Those not named
in it have the default.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from simgpu import errors, vocabulary, yaml_text
from simgpu.catalog import shapes
from simgpu.kube import quantity
from simgpu.kube.views import Pod
from simgpu.machines import documents
from simgpu.machines.users import ALL, NONE, Plan, PodRef, Range, User
from simgpu.pods import annotated, requests, timelines
from simgpu.sim import activity

T = TypeVar("T")
FindText = Callable[[str, str], str | None]  # of a ConfigMap, by namespace and name; None while it is not known yet
ByContainer = Mapping[str, T]  # "" is every container that is not named

EVERY = ""
_MIB = 2**20
_NUMBER = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,9})?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")  # of objects
_MAX_FULL_LOAD = 1e9
_WHOLE = {"profile", "phases", "steps", "repeat"}  # keys of documents and timelines, in lower case
_NOTHING: Mapping[str, Any] = {}


class Load(msgspec.Struct, frozen=True):
    """What a container does on each of its GPUs.

    `memory_mib` is what it holds of each; without it, the part `footprint` of what it may have.
    """

    utilization: Range
    plan: Plan | None = None
    memory_mib: int | None = None
    footprint: float = 1.0
    full_load: float = 0.0  # requests a second that are 100 %, where requests drive it

    def user(self, pod: PodRef, room: int, total: int) -> User:
        """Return the container as a user of a GPU of `total` MiB, of which it may have `room`."""
        memory = room
        if self.memory_mib is not None:
            memory = min(self.memory_mib, room)
        elif self.footprint < 1:
            memory = int(room * self.footprint)
        share = memory / total if total else 0.0
        return User(pod, self.utilization, memory, share, plan=self.plan, full_load=self.full_load)


class PodLoad(msgspec.Struct, frozen=True):
    """What a pod's containers do, by container; `stated` is whether the pod has a utilisation of its own."""

    utilization: Range = ALL
    stated: bool = False
    started: float = 0.0  # seconds since 1970
    profiles: ByContainer[activity.Profile] = _NOTHING
    timelines: ByContainer[timelines.Timeline] = _NOTHING
    shapes: ByContainer[str] = _NOTHING
    memory: ByContainer[int] = _NOTHING
    full_load: float = 0.0  # requests a second that are 100 %, where requests drive it
    plain: bool = False  # whether it has no annotations but that of its utilisation

    def of(self, container: str, *, works: bool = True) -> Load:
        """Return what a container does; one that does not work holds its memory."""
        if self.plain:
            return _simple(self.utilization if works else NONE)
        memory, shape = _choose(self.memory, container), _choose(self.shapes, container)
        footprint = 1.0 if shape is None else _footprint(shape)
        if not works:
            return Load(NONE, None, memory, footprint)
        if (profile := _choose(self.profiles, container)) is not None:
            held = _held(profile)
            footprint, memory = (held, None) if isinstance(held, float) else (1.0, memory if held is None else held)
            return Load(_span(profile), Plan(profile, self.started), memory, footprint)
        if (timeline := _choose(self.timelines, container)) is not None:
            return Load(timeline.span, Plan(_played(timeline, shape), self.started), memory, footprint)
        if shape is not None:
            steady = _steady(shape, self.utilization if self.stated else None)
            return Load(_span(steady), Plan(steady), memory, footprint)
        return Load(self.utilization, None, memory, full_load=self.full_load)


@functools.lru_cache(512)
def plain(utilization: Range) -> PodLoad:
    """Return the load of a pod without any annotation of this module."""
    return PodLoad(utilization, plain=True)


_simple = functools.lru_cache(512)(Load)


def is_annotated(pod: Pod) -> bool:
    """Return whether a pod has any of the annotations of this module."""
    return not annotated.LOADS.isdisjoint(pod.metadata.annotations)


# Reading.


def read_timelines(pod: Pod) -> ByContainer[timelines.Timeline]:
    """Return the timelines of a pod; `InputError` if one is invalid."""
    text = annotated.read(pod, vocabulary.TIMELINE_ANNOTATION)
    return _NOTHING if text is None else _named(pod, vocabulary.TIMELINE_ANNOTATION, _timelines(text))


def read_shapes(pod: Pod) -> ByContainer[str]:
    """Return the shapes of a pod by name; `InputError` if one is unknown."""
    text = annotated.read(pod, vocabulary.SHAPE_ANNOTATION)
    return _NOTHING if text is None else _named(pod, vocabulary.SHAPE_ANNOTATION, _shapes(text))


def read_memory(pod: Pod) -> ByContainer[int]:
    """Return the memory that a pod's containers hold, in MiB; `InputError` if one is no quantity."""
    text = annotated.read(pod, vocabulary.MEMORY_ANNOTATION)
    return _NOTHING if text is None else _named(pod, vocabulary.MEMORY_ANNOTATION, _memory(text))


def read_profiles(pod: Pod, find: FindText) -> ByContainer[activity.Profile]:
    """Return the activity profiles of a pod; `InputError` if one is invalid. Those not known yet are left out."""
    name = vocabulary.ACTIVITY_ANNOTATION
    text = annotated.read(pod, name)
    if text is None:
        return _NOTHING
    found: dict[str, activity.Profile] = {}
    for container, value in _named(pod, name, _documents(text)).items():
        if isinstance(value, activity.Profile):
            found[container] = value
        elif (there := find(pod.metadata.namespace, value)) is not None:
            found[container] = _stored(there, value)
    return found


def read_full_load(pod: Pod) -> float:
    """Return how many requests a second are 100 % of a pod's GPUs."""
    text = annotated.read(pod, vocabulary.FULL_LOAD_ANNOTATION)
    if text is None:
        return vocabulary.DEFAULT_FULL_LOAD
    found = _NUMBER.fullmatch(text)
    if found is None or not 0 < (value := float(text)) <= _MAX_FULL_LOAD:
        problem = f"{text[:40]!r}: must be requests a second, above 0 and at most {_MAX_FULL_LOAD:.0f}"
        raise errors.InputError(vocabulary.FULL_LOAD_ANNOTATION, problem)
    return value


def read_on_limit(pod: Pod) -> str:
    """Return what should happen when a limit of its profile is crossed."""
    text = annotated.read(pod, vocabulary.LIMIT_ANNOTATION)
    if text is not None and text not in vocabulary.LIMIT_ACTIONS:
        allowed = ", ".join(vocabulary.LIMIT_ACTIONS)
        raise errors.InputError(vocabulary.LIMIT_ANNOTATION, f"{text[:40]!r}: must be one of {allowed}")
    return text or vocabulary.REPORT_LIMIT


def config_maps(pod: Pod) -> set[str]:
    """Return the names of the ConfigMaps that a pod's annotation names; none if it is invalid."""
    try:
        text = annotated.read(pod, vocabulary.ACTIVITY_ANNOTATION)
        return set() if text is None else {item for item in _documents(text).values() if isinstance(item, str)}
    except errors.InputError:
        return set()


def started(pod: Pod) -> float:
    """Return when a pod started, in seconds since 1970; 0 if that is not known."""
    text = pod.status.start_time or pod.metadata.creation_timestamp or ""
    try:
        return max(0.0, datetime.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _choose(found: ByContainer[T], container: str) -> T | None:
    if not found:
        return None
    return found[container] if container in found else found.get(EVERY)


def _named(pod: Pod, name: str, found: ByContainer[T]) -> ByContainer[T]:
    """Return the values by container, which must be the pod's."""
    there = [item.name for item in requests.containers(pod)]
    for container in found:
        if container != EVERY and container not in there:
            known = errors.clipped(", ".join(there))
            raise errors.InputError(name, f"there is no container {container[:63]!r}; there are: {known}")
    return found


def _decoded(text: str, name: str) -> Any:
    """Return the JSON in an annotation; text that is not JSON is returned as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text.strip()
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise errors.InputError(name, f"not JSON: {errors.clipped(str(error), 120)}") from None


def _by_container(text: str, name: str, read: Callable[[Any], T]) -> ByContainer[T]:
    document = _decoded(text, name)
    if isinstance(document, dict) and not _WHOLE & {key.lower() for key in document}:
        return {container: read(value) for container, value in document.items() if container}
    return {EVERY: read(document)}


# Pods of one controller have the same texts, and each is read whenever something changes on its node.


@functools.lru_cache(1024)
def _timelines(text: str) -> ByContainer[timelines.Timeline]:
    name = vocabulary.TIMELINE_ANNOTATION
    return _by_container(text, name, lambda value: timelines.read(value, field=name))


@functools.lru_cache(1024)
def _shapes(text: str) -> ByContainer[str]:
    name, known = vocabulary.SHAPE_ANNOTATION, shapes.load()

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise errors.InputError(name, f"no shape {errors.shown(value)}; there are: {', '.join(known)}")
        return value

    return _by_container(text, name, read)


@functools.lru_cache(1024)
def _memory(text: str) -> ByContainer[int]:
    name, highest = vocabulary.MEMORY_ANNOTATION, vocabulary.MAX_MEMORY_MIB

    def read(value: Any) -> int:
        try:
            amount = quantity.parse(str(value)) / _MIB
        except ValueError as error:
            raise errors.InputError(name, str(error)) from None
        if not 0 <= amount <= highest:
            raise errors.InputError(name, f"{errors.shown(value)}: must be from 0 to {highest}Mi, such as 20Gi")
        return int(amount)

    return _by_container(text, name, read)


@functools.lru_cache(512)
def _documents(text: str) -> ByContainer[activity.Profile | str]:
    """Return profiles, or the names of ConfigMaps that hold them."""
    name = vocabulary.ACTIVITY_ANNOTATION

    def read(value: Any) -> activity.Profile | str:
        if isinstance(value, str):
            prefix = vocabulary.CONFIG_MAP_PREFIX
            rest = value.removeprefix(prefix)
            if rest == value or not rest:
                problem = f"{value[:40]!r}: must be a workload document as JSON, or {prefix}<name>"
                raise errors.InputError(name, problem)
            if len(rest) > vocabulary.MAX_NAME or _DNS_NAME.fullmatch(rest) is None:
                allowed = f"lower-case letters, digits, '-' and '.', at most {vocabulary.MAX_NAME} characters"
                raise errors.InputError(name, f"{value[:40]!r}: not the name of a ConfigMap: {allowed}")
            return rest
        return _profile(value, name)

    return _by_container(text, name, read)


@functools.lru_cache(512)
def _stored(text: str, name: str) -> activity.Profile:
    """Return the profile in a ConfigMap's text."""
    place = f"{vocabulary.ACTIVITY_ANNOTATION}: ConfigMap {name}"
    if len(text) > vocabulary.MAX_DOCUMENT_BYTES:
        raise errors.InputError(place, f"has {len(text)} characters; at most {vocabulary.MAX_DOCUMENT_BYTES}")
    try:
        document = yaml_text.parse(text)
    except ValueError as error:
        raise errors.InputError(place, f"{vocabulary.PROFILE_KEY}: {error}") from None
    return _profile(document, place)


def _profile(document: Any, place: str) -> activity.Profile:
    """Return a document's profile for a pod: it rests afterwards, and what it holds without a word is the pod's."""
    if isinstance(document, dict) and not {"name", "phases"} & {str(key).lower() for key in document}:
        document = {"Name": "profile", **document}
    try:
        found = documents.read(document).profile
    except errors.InputError as error:
        raise errors.InputError(place, str(error)) from None
    if len(found.activities) > vocabulary.MAX_ACTIVITIES:
        raise errors.InputError(place, f"has {len(found.activities)} activities; at most {vocabulary.MAX_ACTIVITIES}")
    if not (isinstance(document, dict) and "phases" in document):
        found = replace(found, activities=tuple(map(_without_yielding, found.activities)))
    return replace(found, afterwards=_IDLE if found.repeat else None)


def _without_yielding(doing: activity.Activity) -> activity.Activity:
    values = {name: value for name, value in doing.values.items() if name != activity.YIELDING}
    return replace(doing, values=values)


# Plans.

_IDLE = activity.Activity({activity.USAGE: activity.constant(0.0)})


@functools.lru_cache(1024)
def _played(timeline: timelines.Timeline, shape: str | None) -> activity.Profile:
    steps = tuple(_doing(step.utilization, shape, seconds=step.seconds) for step in timeline.steps)
    return activity.Profile("timeline", steps, repeat=timeline.repeat, afterwards=_IDLE if timeline.repeat else None)


@functools.lru_cache(512)
def _steady(shape: str, utilization: Range | None) -> activity.Profile:
    duty = round(100 * shapes.load()[shape].duty)
    return activity.Profile(shape, (_doing(utilization or Range(duty, duty), shape),), repeat=0)


def _doing(span: Range, shape: str | None, *, seconds: float = 0.0) -> activity.Activity:
    known = shapes.load()[shape or documents.TYPICAL]
    usage = activity.Value(span.low / 100, span.high / 100, period=1.0)
    return activity.Activity(activity.mix(known.demand, usage=usage), seconds=seconds, context=known.context)


def _footprint(shape: str) -> float:
    """Return the part of its memory that a pod of a shape holds."""
    known = shapes.load()[shape]
    whole = 1.0 if known.context else 0.0
    return whole if known.footprint is None else known.footprint


def _span(profile: activity.Profile) -> Range:
    """Return the range, in percent, in which a profile's utilisation is."""
    doing = [*profile.activities, *([profile.afterwards] if profile.afterwards else [])]
    found = [item.values.get(activity.USAGE, activity.constant(0.0)) for item in doing]
    high = max(1.0 if value.function == "increase" else value.high for value in found)
    low = min(value.low for value in found)
    return Range(math.floor(round(100 * low, 6)), math.ceil(round(100 * min(1.0, high), 6)))


def _held(profile: activity.Profile) -> float | int | None:
    """Return the most memory that a profile states: a share of the card's, or whole MiB; None if it states none."""
    found = [item.values[activity.MEMORY] for item in profile.activities if activity.MEMORY in item.values]
    if not found:
        return None
    if any(value.function == "increase" for value in found):
        return 1.0
    shares = [value.high for value in found if value.share]
    return float(max(shares)) if shares else math.ceil(max(value.high for value in found))
