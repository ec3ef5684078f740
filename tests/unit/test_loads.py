"""What pods do on their GPUs, as their annotations say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.kube import views
from simgpu.machines.users import NONE, PodRef, Range
from simgpu.pods import loads, requests

TIMELINE, SHAPE = vocabulary.TIMELINE_ANNOTATION, vocabulary.SHAPE_ANNOTATION
PROFILE, MEMORY = vocabulary.ACTIVITY_ANNOTATION, vocabulary.MEMORY_ANNOTATION
REF = PodRef("p", "ns", "main", "u")
STARTED = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def pod(**more: Any) -> views.Pod:
    """A pod of two containers; annotations are text, or JSON."""
    annotations = {name: value if isinstance(value, str) else json.dumps(value) for name, value in more.items()}
    return views.Pod(
        metadata=views.ObjectMeta(name="p", namespace="ns", annotations=annotations),
        spec=views.PodSpec(containers=(views.Container(name="main"), views.Container(name="side"))),
        status=views.PodStatus(phase="Running", start_time="2026-01-01T00:00:00Z"),
    )


def nothing(_namespace: str, _name: str) -> str | None:
    return None


def load_of(made: views.Pod, container: str = "main", find: loads.FindText = nothing) -> loads.Load:
    found = loads.PodLoad(
        requests.utilisation(made), vocabulary.UTILIZATION_ANNOTATION in made.metadata.annotations,
        loads.started(made), loads.read_profiles(made, find), loads.read_timelines(made), loads.read_shapes(made),
        loads.read_memory(made),
    )  # fmt: skip
    return found.of(container)


def test_a_timeline_is_played_from_the_pods_start_and_then_it_is_idle() -> None:
    found = load_of(pod(**{TIMELINE: [{"time": "1h", "utilization": 80}, {"time": "30m", "utilization": "10-30"}]}))
    assert (found.utilization, found.memory_mib) == (Range(0, 80), None)
    assert found.plan is not None
    assert found.plan.started == STARTED
    profile = found.plan.profile
    assert [item.seconds for item in profile.activities] == [3600, 1800]
    assert [item.values["usage"].high for item in profile.activities] == [0.8, 0.3]
    assert profile.afterwards is not None
    assert profile.afterwards.values["usage"].high == 0


def test_a_shape_is_the_kind_of_work_at_its_own_pace_or_at_the_pods() -> None:
    decoding = load_of(pod(**{SHAPE: "inference-decode"}))
    assert (decoding.utilization, decoding.footprint) == (Range(85, 85), 0.9)
    slower = load_of(pod(**{SHAPE: "inference-decode", vocabulary.UTILIZATION_ANNOTATION: "10-30"}))
    assert slower.utilization == Range(10, 30)
    timed = load_of(pod(**{SHAPE: "memcopy", TIMELINE: [{"time": 9, "utilization": 50}]}))
    assert timed.plan is not None
    assert timed.plan.profile.activities[0].values["bandwidth"].high == 1
    assert timed.footprint == 1


def test_a_profile_comes_before_a_timeline_and_that_before_a_utilisation() -> None:
    timeline = {TIMELINE: [{"time": 9, "utilization": 50}], vocabulary.UTILIZATION_ANNOTATION: "20"}
    profile = {PROFILE: {"Profile": [{"Load": 70, "Seconds": 5}], "Repeat": 2}}
    assert load_of(pod(**timeline)).utilization == Range(0, 50)
    assert load_of(pod(**timeline, **profile)).utilization == Range(0, 70)


def test_each_container_can_have_values_of_its_own() -> None:
    made = pod(
        **{
            TIMELINE: {"main": {"steps": [{"time": 9, "utilization": 50}], "repeat": 0}},
            SHAPE: {"side": "interactive"},
            MEMORY: {"main": "1Gi", "side": "512Mi"},
        }
    )
    main, side = load_of(made), load_of(made, "side")
    assert (main.utilization, main.memory_mib) == (Range(50, 50), 1024)
    assert (side.utilization, side.memory_mib) == (Range(15, 15), 512)
    with pytest.raises(errors.InputError, match="no container 'other'; there are: main, side"):
        loads.read_shapes(pod(**{SHAPE: {"other": "idle"}}))


def test_memory_is_what_the_pod_asks_for_or_its_shape_holds_or_all_that_it_may_have() -> None:
    def held(**annotations: Any) -> tuple[int, float]:
        user = load_of(pod(**annotations)).user(REF, 1000, 2000)
        return user.memory_mib, user.share

    assert held() == (1000, 0.5)
    assert held(**{MEMORY: "300Mi"}) == (300, 0.15)
    assert held(**{MEMORY: "300Gi"}) == (1000, 0.5)
    assert held(**{SHAPE: "interactive"}) == (100, 0.05)
    assert held(**{SHAPE: "idle"}) == (0, 0)
    leaks = {"Metrics": {"memory": {"Func": "increase", "Min": 0.1}}}
    assert held(**{PROFILE: {"Profile": [leaks]}}) == (1000, 0.5)
    absolute = {"Metrics": {"memory": {"Min": 2**20 * 64, "Unit": "absolute"}}}
    assert held(**{PROFILE: {"Profile": [absolute]}}) == (64, 0.032)


def test_a_profile_can_be_in_a_configmap_of_the_pods_namespace() -> None:
    made = pod(**{PROFILE: {"main": "configmap/steady"}})
    assert load_of(made).utilization == Range(100, 100)  # until it is known
    texts = {("ns", "steady"): "Profile: [{Load: 40}]"}
    assert load_of(made, find=lambda *key: texts.get(key)).utilization == Range(40, 40)
    with pytest.raises(errors.InputError, match=r"activity-profile: ConfigMap steady: Profile.*length >= 1"):
        load_of(made, find=lambda *_key: "Profile: []")
    assert loads.config_maps(made) == {"steady"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (TIMELINE, "80", "must be JSON such as"),
        (TIMELINE, "[{", "not JSON"),
        (SHAPE, "gaming", "no shape 'gaming'; there are: idle, "),
        (SHAPE, {"main": 5}, "no shape 5; there are: idle, "),
        (MEMORY, "lots", "must be a Kubernetes quantity"),
        (MEMORY, "-1Gi", "must be from 0 to 100000000Mi"),
        (PROFILE, "steady", "must be a workload document as JSON, or configmap/<name>"),
        (PROFILE, "configmap/a/b", "not the name of a ConfigMap: lower-case letters"),
        (PROFILE, "configmap/x?watch=1", "not the name of a ConfigMap"),
        (PROFILE, "configmap/..%2f", "not the name of a ConfigMap"),
        (PROFILE, "configmap/.", "not the name of a ConfigMap"),
        (PROFILE, {"main": "configmap/" + "a" * 254}, "at most 253 characters"),
        (PROFILE, {"Profile": [{"Load": 101}]}, "Profile[0].Load"),
        (PROFILE, {"Profile": [{"Load": 1}], "Limits": {"speed": 1}}, "no such quantity"),
        (TIMELINE, "[" + " " * vocabulary.MAX_LOAD_ANNOTATION, "at most 16384"),
    ],
)
def test_a_bad_value_is_an_error_with_the_annotation_and_what_is_allowed(name: str, value: Any, problem: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        load_of(pod(**{name: value}))
    assert str(caught.value).startswith(name)
    assert problem in str(caught.value)


@given(st.text(max_size=30) | st.datetimes().map(str))
def test_a_start_is_a_time_or_unknown(text: str) -> None:
    made = msgspec.structs.replace(pod(), status=views.PodStatus(start_time=text))
    assert loads.started(made) >= 0


def test_a_container_that_does_not_work_yet_holds_its_memory() -> None:
    found = loads.PodLoad(
        memory={"": 100}, timelines=loads.read_timelines(pod(**{TIMELINE: [{"time": 9, "utilization": 5}]}))
    )
    assert found.of("main", works=False) == loads.Load(NONE, None, 100)


def test_what_should_happen_at_a_limit_is_one_of_a_few_words() -> None:
    assert loads.read_on_limit(pod()) == "report"
    assert loads.read_on_limit(pod(**{vocabulary.LIMIT_ANNOTATION: "fail"})) == "fail"
    with pytest.raises(errors.InputError, match="'die': must be one of report, fail"):
        loads.read_on_limit(pod(**{vocabulary.LIMIT_ANNOTATION: "die"}))
