"""Pods and GPUs: who asks for what, and who gets which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.kube import views
from simgpu.machines import users
from simgpu.pods import assigning, requests, reserving


def pod(*containers: views.Container, init: tuple[views.Container, ...] = (), **annotations: str) -> views.Pod:
    meta = views.ObjectMeta(name="p", annotations={key.replace("_", "-"): value for key, value in annotations.items()})
    return views.Pod(metadata=meta, spec=views.PodSpec(containers=containers, init_containers=init))


def container(name: str, gpus: str = "", *, sidecar: bool = False, requested: str = "") -> views.Container:
    resources = views.Resources(
        limits={vocabulary.GPU_RESOURCE: gpus} if gpus else {},
        requests={vocabulary.GPU_RESOURCE: requested} if requested else {},
    )
    return views.Container(name=name, resources=resources, restart_policy="Always" if sidecar else None)


def test_every_container_counts() -> None:
    made = pod(
        container("a", "1"),
        container("b"),
        container("c", requested="2"),
        init=(container("i", "4"), container("s", "1", sidecar=True)),
    )
    assert [(item.container, item.count) for item in requests.requests(made)] == [
        ("i", 4),
        ("s", 1),
        ("a", 1),
        ("c", 2),
    ]
    assert requests.regular_init(made) == {"i"}


@pytest.mark.parametrize(
    ("text", "low", "high"), [("15", 15, 15), ("10-30", 10, 30), ("50%", 50, 50), (" 10 - 30 ", 10, 30), ("0", 0, 0)]
)
def test_a_utilisation_is_a_number_or_a_range(text: str, low: int, high: int) -> None:
    made = views.Pod(metadata=views.ObjectMeta(annotations={vocabulary.UTILIZATION_ANNOTATION: text}))
    assert requests.utilisation(made) == users.Range(low, high)


@pytest.mark.parametrize("text", ["", "abc", "-5", "30-10", "150", "99999999999999999999", "10-30-50"])
def test_a_utilisation_that_makes_no_sense_is_an_error_with_the_annotation(text: str) -> None:
    made = views.Pod(metadata=views.ObjectMeta(annotations={vocabulary.UTILIZATION_ANNOTATION: text}))
    with pytest.raises(errors.InputError, match=vocabulary.UTILIZATION_ANNOTATION):
        requests.utilisation(made)


READERS: dict[str, Callable[[views.Pod], object]] = {
    vocabulary.UTILIZATION_ANNOTATION: requests.utilisation,
    vocabulary.RUN_TIME_ANNOTATION: requests.check_run_time,
    vocabulary.SOURCE_ANNOTATION: lambda pod: requests.source(pod, "pod"),
    vocabulary.FRACTION_ANNOTATION: reserving.fraction,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "text", ["1" + " " * 99_999 + "-1" + " " * 99_999 + "x", "9" * 200_000, "0." + "0" * 200_000 + "1"]
)
def test_an_annotation_of_any_length_is_an_error_and_holds_nobody_up(name: str, text: str) -> None:
    made = job_pod(name, text)
    with pytest.raises(errors.InputError, match=f"at most {vocabulary.MAX_POD_ANNOTATION}"):
        READERS[name](made)


def job_pod(name: str, text: str) -> views.Pod:
    owner = views.OwnerReference(kind="Job", name="j", uid="u")
    return views.Pod(metadata=views.ObjectMeta(annotations={name: text}, owner_references=(owner,)))


@given(st.sampled_from(sorted(READERS)), st.text() | st.text("0123456789 %-.ehms", max_size=80) | st.floats().map(str))
def test_an_annotation_is_read_or_refused(name: str, text: str) -> None:
    try:
        found = READERS[name](job_pod(name, text))
    except errors.InputError as error:
        assert error.field == name  # noqa: PT017 - either is right
        return
    if isinstance(found, users.Range):
        assert 0 <= found.low <= found.high <= 100
    elif isinstance(found, float):
        assert 0 < found <= 1
    else:
        assert found in (None, *vocabulary.UTILIZATION_SOURCES)


def test_a_pod_that_asks_for_more_than_a_node_can_have_costs_no_more_than_one_that_has_it_all() -> None:
    greedy = [container(f"c{number}", "99999") for number in range(2000)]
    made = pod(*greedy[1000:], init=(*greedy[:999], container("s", "99999", sidecar=True)))
    found = requests.requests(made)
    assert len(found) == vocabulary.MAX_CONTAINERS
    assert {item.count for item in found} == {vocabulary.MAX_GPUS}
    assert [item.count for item in requests.requests(pod(*greedy))] == [vocabulary.MAX_GPUS]
    assert assigning.Wish("u", requests.requests(pod(*greedy)), found).count == vocabulary.MAX_GPUS


@pytest.mark.parametrize("text", ["30s", "1h30m", "500ms", "90", "1.5"])
def test_a_run_time_that_kwok_can_read_is_fine(text: str) -> None:
    requests.check_run_time(job_pod(vocabulary.RUN_TIME_ANNOTATION, text))


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "-5s", "1d", "s"])
def test_a_run_time_that_kwok_cannot_read_is_an_error_with_the_annotation(text: str) -> None:
    with pytest.raises(errors.InputError, match=vocabulary.RUN_TIME_ANNOTATION):
        requests.check_run_time(job_pod(vocabulary.RUN_TIME_ANNOTATION, text))
    owned_by_nobody = views.Pod(metadata=views.ObjectMeta(annotations={vocabulary.RUN_TIME_ANNOTATION: text}))
    requests.check_run_time(owned_by_nobody)


def wish(uid: str, *lasting: int, first: tuple[int, ...] = ()) -> assigning.Wish:
    return assigning.Wish(
        uid,
        tuple(requests.Request(f"c{number}", count) for number, count in enumerate(lasting)),
        tuple(requests.Request(f"i{number}", count) for number, count in enumerate(first)),
    )


def by_container(made: assigning.Wish, places: tuple[str, ...], *, started: bool = True) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, gpu in zip(made.owners(started=started), places, strict=True):
        found.setdefault(name, []).extend([gpu] if gpu else [])
    return found


def test_the_lowest_free_come_first_and_what_is_held_stays() -> None:
    ids = ["g0", "g1", "g2", "g3"]
    first = assigning.assign(ids, {}, [wish("a", 1), wish("b", 2)])
    assert first == {"a": ("g0",), "b": ("g1", "g2")}
    assert assigning.assign(ids, first, [wish("b", 2), wish("c", 1)]) == {"b": ("g1", "g2"), "c": ("g0",)}
    assert assigning.assign(ids[:2], first, [wish("b", 2)]) == {"b": ("g1", "g0")}
    assert assigning.assign(ids[:1], {}, [wish("a", 2)]) == {"a": ("g0", "")}


def test_a_gpu_that_vanishes_moves_no_container_to_anothers() -> None:
    made = wish("a", 1, 1)
    left = assigning.assign(["g1"], {"a": ("g0", "g1")}, [made])["a"]
    assert by_container(made, left) == {"c0": [], "c1": ["g1"]}
    mended = assigning.assign(["g1", "g2"], {"a": left}, [made])["a"]
    assert by_container(made, mended) == {"c0": ["g2"], "c1": ["g1"]}


def test_what_containers_had_is_found_again_in_its_places() -> None:
    made = wish("a", 1, 2, first=(4,))
    assert assigning.places(made, [("i0", "g7"), ("c1", "g3"), ("c0", "g5")]) == ("g5", "g3", "", "g7")


def test_init_containers_use_what_the_others_will_have() -> None:
    made = wish("a", 1, 1, first=(2,))
    assert made.count == 2
    assert by_container(made, ("g0", "g1")) == {"c0": ["g0"], "c1": ["g1"]}
    assert by_container(made, ("g0", "g1"), started=False) == {"i0": ["g0", "g1"]}


def test_a_gpu_that_only_an_init_container_needs_is_that_ones() -> None:
    made = wish("a", 1, first=(1, 3))
    assert made.owners(started=False) == ("i0", "i1", "i1")
    assert made.owners(started=True) == ("c0", "i1", "i1")


def test_a_sidecar_has_its_gpu_while_init_containers_run() -> None:
    sidecar, main, init = (requests.Request(name, 1) for name in ("s", "c", "i"))
    made = assigning.Wish("a", (sidecar, main), (init,), beside=(1,))
    assert made.owners(started=False) == ("s", "i")
    assert made.owners(started=True) == ("s", "c")


WISHES = st.lists(
    st.builds(
        lambda uid, lasting, first: wish(uid, *lasting, first=tuple(first)),
        st.sampled_from("abcdef"),
        st.lists(st.integers(1, 3), max_size=2),
        st.lists(st.integers(1, 3), max_size=2),
    ),
    unique_by=lambda item: item.uid,
    max_size=6,
)


@given(st.lists(st.tuples(st.integers(0, 8), WISHES), min_size=1, max_size=6))
def test_whatever_changes_no_gpu_is_held_twice_and_what_can_stay_stays(
    history: list[tuple[int, list[assigning.Wish]]],
) -> None:
    held: dict[str, tuple[str, ...]] = {}
    for count, wishes in history:
        ids = [f"g{index}" for index in range(count)]
        before, held = held, assigning.assign(ids, held, wishes)
        given_out = [item for items in held.values() for item in items if item]
        assert len(given_out) == len(set(given_out))
        assert set(given_out) <= set(ids)
        for item in wishes:
            places = held[item.uid]
            assert len(places) == item.count
            for place, gpu in enumerate(before.get(item.uid, ())[: item.count]):
                assert places[place] == gpu or gpu not in ids
            for started in (False, True):
                had = list(zip(item.owners(started=started), places, strict=True))
                again = assigning.places(item, sorted((pair for pair in had if pair[1]), key=lambda pair: pair[1]))
                assert sorted(zip(item.owners(started=started), again, strict=True)) == sorted(had)
        short = sum(held[item.uid].count("") for item in wishes)
        assert short == 0 or len(given_out) == count
