"""The store is what a plain dictionary would be, and its indexes are what a search would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simgpu.kube.store import Change, Store, key_of
from simgpu.kube.views import Object, ObjectMeta

OBJECTS = st.builds(
    lambda name, uid, version, colours: Object(
        metadata=ObjectMeta(name=name, uid=uid, resource_version=str(version), labels=dict.fromkeys(colours, ""))
    ),
    st.sampled_from("abcd"),
    st.sampled_from("12"),
    st.integers(0, 3),
    st.sets(st.sampled_from(["red", "green"])),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), OBJECTS),
        st.tuples(st.just("remove"), st.sampled_from("abcd")),
        st.tuples(st.just("replace"), st.lists(OBJECTS, max_size=4)),
    ),
    max_size=20,
)


def apply(store: Store[Object], step: tuple[str, object]) -> None:
    getattr(store, step[0])(step[1])


@given(STEPS)
def test_indexes_and_listeners_tell_the_same_story_as_the_store(steps: list[tuple[str, object]]) -> None:
    store: Store[Object] = Store({"colour": lambda item: item.metadata.labels})
    replica: dict[str, Object] = {}

    def follow(change: Change[Object]) -> None:
        assert replica.get(change.key) == change.old
        if change.new is None:
            del replica[change.key]
        else:
            replica[change.key] = change.new

    store.listen(follow)
    for step in steps:
        apply(store, step)
        assert {key_of(item): item for item in store} == replica
        for colour in ("red", "green"):
            found = {key_of(item) for item in store.by("colour", colour)}
            assert found == {key for key, item in replica.items() if colour in item.metadata.labels}
        assert set(store.values("colour")) == {colour for item in replica.values() for colour in item.metadata.labels}


@given(st.lists(OBJECTS, max_size=5), st.lists(OBJECTS, max_size=5))
def test_replacing_leaves_exactly_the_new_collection(before: list[Object], after: list[Object]) -> None:
    store: Store[Object] = Store()
    store.replace(before)
    store.replace(after)
    assert {key_of(item): item.metadata.resource_version for item in store} == {
        key_of(item): item.metadata.resource_version for item in after
    }
    assert store.synced.is_set()


def test_a_late_listener_is_told_what_is_there() -> None:
    store: Store[Object] = Store()
    store.put(Object(metadata=ObjectMeta(name="a", namespace="n", resource_version="1")))
    told: list[Change[Object]] = []
    store.listen(told.append)
    assert [(change.key, change.old) for change in told] == [("n/a", None)]
    assert store.get("a", namespace="n") is store.at("n/a")
