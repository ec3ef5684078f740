"""Whatever a pod's annotations hold, each is followed, or refused with a text that says what is allowed."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.catalog import models, shapes
from simgpu.controllers.configuring import Configuration
from simgpu.controllers.loading import PodLoads
from simgpu.kube import views
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines import profiles
from simgpu.machines.users import Range, User
from simgpu.pods import kinds, loads, requests, reserving
from simgpu.pods.holding import Holder
from simgpu.sim import activity
from tests.fixtures import fuzzing
from tests.fixtures.strategies import JSON_VALUES, TIMELINES

CATALOG = models.load()
MEMORY_MIB = 80_000
JSON = (TIMELINES | JSON_VALUES).map(functools.partial(json.dumps, allow_nan=True))
BY_CONTAINER = st.dictionaries(
    st.sampled_from(["main", "side", "other", "", "Profile"]) | st.text(max_size=3), TIMELINES | JSON_VALUES, max_size=3
).map(json.dumps)
ANY = st.text(max_size=40) | JSON | BY_CONTAINER

STEPS = '[{"time": "1h30m", "utilization": "10-30"}, {"time": 500, "utilization": 80}]'
TIMELINE = f'{{"steps": {STEPS}, "repeat": 5}}'
METRICS = (
    '{"memory": {"Func": "increase", "Min": 1e8, "Max": 2e8, "Unit": "absolute", "Period": 1}, "usage": {"Min": 0.1}}'
)
LIMITS = '{"memory": 6e10, "runtime": 60, "temperature": 80}'
PROFILE = f"""\
{{"Name": "leak", "Repeat": 1, "Profile": [{{"Load": 30, "Fluctuation": 5, "Seconds": 600, "Metrics": {METRICS}}}],
"Limits": {LIMITS}, "Reference": {{"MaxFrequencyMHz": 1650, "Capability": 2}}, "Pod": {{"Name": "x"}}}}"""
PHASES = '{"phases": [{"seconds": 60, "shape": "training", "duty": 0.5, "period": 2, "fb_mib": 1000}], "repeat": 0}'
YAML = "Profile:\n- {Load: 40, Seconds: 5}\n- Load: 1\n  Metrics: {memory: {Min: .5}}\nLimits: {runtime: 1}\n"


class Parser(NamedTuple):
    """A reader of an annotation: valid texts, and whether what it returns is right."""

    name: str
    valid: tuple[str, ...]
    read: Callable[[views.Pod], Any]
    right: Callable[[Any], bool]


def pod(annotations: dict[str, str], *, labels: dict[str, str] | None = None, **more: Any) -> views.Pod:
    """A pod of a job, with two containers."""
    meta = views.ObjectMeta(
        name=more.pop("name", "p"), namespace="ns", uid="u", annotations=annotations, labels=labels or {},
        owner_references=(views.OwnerReference(kind="Job", name="j", uid="j"),),
    )  # fmt: skip
    spec = views.PodSpec(containers=(views.Container(name="main"), views.Container(name="side")), node_name="n")
    return views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase="Running", **more))


def _among(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low <= value <= high  # not NaN


def _range(value: Any) -> bool:
    return isinstance(value, Range) and 0 <= value.low <= value.high <= 100


def _by_container(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda found: set(found) <= {"main", "side", loads.EVERY} and all(map(right, found.values()))


def _profile(value: Any) -> bool:
    activity.check(value)
    return len(value.activities) <= vocabulary.MAX_ACTIVITIES


def _timeline(value: Any) -> bool:
    longest = vocabulary.MAX_TIMELINE_SECONDS
    assert value.repeat >= 0
    assert _range(value.span)
    return bool(value.steps) and all(_range(item.utilization) and 0 < item.seconds <= longest for item in value.steps)


CONFIG_MAP = "activity-profile-configmap"
NAMING = pod({vocabulary.ACTIVITY_ANNOTATION: "configmap/x"})
_PARSERS = (
    Parser(
        vocabulary.UTILIZATION_ANNOTATION, ("80", "10-30", " 5 % - 7% ", "0-100"),
        requests.utilisation, _range,
    ),
    Parser(
        vocabulary.SOURCE_ANNOTATION, ("cpu", "pod"), lambda pod: requests.source(pod, "pod"),
        lambda found: found in vocabulary.UTILIZATION_SOURCES,
    ),
    Parser(
        vocabulary.RUN_TIME_ANNOTATION, ("30s", "1h30m", "500ms", "1.5"), requests.check_run_time,
        lambda found: found is None,
    ),
    Parser(
        vocabulary.TIMELINE_ANNOTATION, (STEPS, TIMELINE, f'{{"main": {TIMELINE}, "side": {STEPS}}}'),
        loads.read_timelines, _by_container(_timeline),
    ),
    Parser(
        vocabulary.SHAPE_ANNOTATION, ("training", '{"main": "idle", "side": "memcopy"}'), loads.read_shapes,
        _by_container(lambda found: found in shapes.load()),
    ),
    Parser(
        vocabulary.ACTIVITY_ANNOTATION,
        (PROFILE, PHASES, "configmap/steady", f'{{"main": {PHASES}, "side": "configmap/x"}}'),
        lambda pod: loads.read_profiles(pod, lambda _namespace, _name: None), _by_container(_profile),
    ),
    Parser(
        CONFIG_MAP, (YAML, PROFILE, PHASES),
        lambda pod: loads.read_profiles(NAMING, lambda *_key: pod.metadata.annotations[CONFIG_MAP]),
        _by_container(_profile),
    ),
    Parser(
        vocabulary.MEMORY_ANNOTATION, ("20Gi", "1.5e9", "512Mi", '{"main": "1Gi", "side": 5}'),
        loads.read_memory, _by_container(lambda found: _among(found, 0, vocabulary.MAX_MEMORY_MIB)),
    ),
    Parser(
        vocabulary.FULL_LOAD_ANNOTATION, ("100", "0.5", "1000000000"), loads.read_full_load,
        lambda found: found > 0 and _among(found, 0, 1e9),
    ),
    Parser(
        vocabulary.LIMIT_ANNOTATION, vocabulary.LIMIT_ACTIONS, loads.read_on_limit,
        lambda found: found in vocabulary.LIMIT_ACTIONS,
    ),
    Parser(
        vocabulary.FRACTION_ANNOTATION, ("0.5", "1", "1e-3"), reserving.fraction,
        lambda found: found > 0 and _among(found, 0, 1),
    ),
    Parser(
        vocabulary.GPU_MEMORY_KEY, ("500", "40000"), reserving.absolute_memory,
        lambda found: _among(found, 1, vocabulary.MAX_MEMORY_MIB),
    ),
)  # fmt: skip
PARSERS = {parser.name: parser for parser in _PARSERS}


def check_text(text: str, name: str) -> None:
    """A text for an event: it begins with the annotation, can be sent, and says more than that something is wrong."""
    assert text.startswith(vocabulary.ACTIVITY_ANNOTATION if name == CONFIG_MAP else name)
    assert len(text) > len(name) + 10
    text.encode()


@pytest.mark.parametrize("name", PARSERS)
@fuzzing.inputs(2000)
@given(drawn=ANY, seed=st.integers(0))
def test_an_annotation_has_a_value_or_is_refused_with_a_reason(name: str, drawn: str, seed: int) -> None:
    parser = PARSERS[name]
    for text in fuzzing.near(drawn, seed, parser.valid):
        try:
            found = parser.read(pod({name: text}))
        except errors.InputError as error:
            check_text(str(error), name)
            continue
        assert parser.right(found), text


class Events:
    """A recorder that keeps reasons and messages."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def record(self, _subject: object, _kind: str, reason: str, message: str) -> None:
        self.found.append((reason, message))


@functools.cache
def reader() -> tuple[PodLoads, Events]:
    events, client = Events(), None
    configuration = Configuration(Store(), events, namespace="ns", catalog=CATALOG)  # type: ignore[arg-type]
    return PodLoads(configuration, Writer(client, manager="test"), lambda *_key: None), events  # type: ignore[arg-type]


KINDS = (
    "TrainingWorkload", "InteractiveWorkload", "InferenceWorkload", "DistributedWorkload",
    "DistributedInferenceWorkload",
)  # fmt: skip
VALID = {
    **{parser.name: parser.valid for parser in _PARSERS if parser.name != CONFIG_MAP},
    vocabulary.POD_GROUP_ANNOTATION: ("group",),
    vocabulary.RUNAI_INDEX: ("0", "GPU-0"),
}
LABELS = {vocabulary.KIND_LABEL: KINDS, vocabulary.RUNAI_GROUP: ("a",), f"{vocabulary.RUNAI_GROUP}/a": ("a", "")}


@fuzzing.inputs(2000)
@given(st.sets(st.sampled_from([*VALID, *LABELS]), min_size=1), ANY, st.integers(0))
def test_all_annotations_together_make_a_user_of_a_gpu_and_events_for_the_rest(
    names: set[str], drawn: str, seed: int
) -> None:
    known = VALID | LABELS
    columns = {name: fuzzing.near(drawn, seed + at, known[name]) for at, name in enumerate(sorted(names))}
    starts = fuzzing.near(drawn, seed, ("2026-01-01T00:00:00Z",))
    classes = itertools.cycle(("train", "build", "inference", "distributed-inference", "", drawn))
    for values in zip(starts, classes, *columns.values(), strict=False):
        start, priority_class, *texts = values
        given_texts = dict(zip(columns, texts, strict=True))
        check_pod(
            pod(
                {name: text for name, text in given_texts.items() if name in VALID},
                labels={name: text for name, text in given_texts.items() if name in LABELS},
                name="p" if seed % 2 else f"{vocabulary.IDLE_POD_PREFIX}1",
                start_time=start,
            ),
            priority_class,
        )


def check_pod(made: views.Pod, priority_class: str) -> None:
    """Whatever its annotations hold, a pod is a user of GPUs, with events for those that are invalid."""
    reads, events = reader()
    reads.find_class = lambda _namespace, _name, _node: priority_class
    events.found.clear()
    assert _range(kinds.utilisation(kinds.class_of(made, lambda _namespace, _name: priority_class)))
    holders = (Holder(made, "main"), Holder(made, "side", 0.5, claims=True))
    for user in (reads.holder_user(holder, MEMORY_MIB, works=True) for holder in holders):
        assert _range(user.utilization)
        assert _among(user.memory_mib, 0, MEMORY_MIB)
        assert _among(user.share, 0, 1)
        activity.check(profiles.of_user(user))
        assert msgspec.json.decode(msgspec.json.encode(user), type=User) == user
    for reason, message in events.found:
        assert reason.startswith(("Invalid", "GpuMemoryExceeded"))
        check_text(message, message.partition(":")[0])
    reserved = pod({vocabulary.RUNAI_RESERVED: "0"}, labels={vocabulary.RUNAI_GROUP: "a"}, name="r")
    lent = reserving.lend([made, reserved], {"GPU-0": (Holder(reserved, "main"),)}, namespace="ns")
    assert list(lent) == ["GPU-0"]
