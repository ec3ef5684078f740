"""Whatever a pod's annotations hold, each is followed, or refused with a text that says what is allowed."""

from __future__ import annotations

import functools
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from tests.fixtures import fuzzing
from tests.fixtures.annotated import LABELS, PARSERS, VALID, check_pod, check_text, pod
from tests.fixtures.strategies import JSON_VALUES, TIMELINES

JSON = (TIMELINES | JSON_VALUES).map(functools.partial(json.dumps, allow_nan=True))
BY_CONTAINER = st.dictionaries(
    st.sampled_from(["main", "side", "other", "", "Profile"]) | st.text(max_size=3), TIMELINES | JSON_VALUES, max_size=3
).map(json.dumps)
ANY = st.text(max_size=40) | JSON | BY_CONTAINER


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
