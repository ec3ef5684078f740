"""The algebra of the writer: folding patches, and telling whether one would change anything."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simgpu.kube import operations, patches, views

NAMES = st.sampled_from("abc")
LEAVES = st.none() | st.integers(0, 2) | st.sampled_from(["x", "y"]) | st.lists(st.integers(0, 1), max_size=2)
PATCHES = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=6), max_size=3
)


def merge_patch(document: Any, patch: Any) -> Any:
    """RFC 7386, as the server does it."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


@given(PATCHES, PATCHES, PATCHES)
def test_a_folded_patch_does_what_its_parts_do_one_after_the_other(
    document: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    start = merge_patch({}, document)
    one_by_one = merge_patch(merge_patch(start, first), second)
    folded = patches.fold(first, second)
    if folded is not None:
        assert merge_patch(start, folded) == one_by_one


def test_patches_of_different_fields_fold_and_a_removal_before_a_merge_does_not() -> None:
    assert patches.fold({"a": {"x": 1}}, {"a": {"y": None}, "b": 2}) == {"a": {"x": 1, "y": None}, "b": 2}
    assert patches.fold({"a": {"x": 1}}, {"a": None}) == {"a": None}
    assert patches.fold({"a": None}, {"a": {"x": 1}}) is None


DATA = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]), max_size=3)
CHANGES = st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from(["", "x", "y"]), max_size=3)


@given(DATA, CHANGES)
def test_a_patch_of_a_map_differs_exactly_if_it_would_change_the_map(
    data: dict[str, str], changes: dict[str, str | None]
) -> None:
    seen = views.ConfigMap(metadata=views.ObjectMeta(), data=data)
    assert patches.differs(seen, {"data": changes}) == (merge_patch(data, changes) != data)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "v"])), max_size=3), st.integers(0, 3))
def test_a_list_differs_exactly_if_it_is_another_list(taints: list[tuple[str, str]], cut: int) -> None:
    seen = views.NodeSpec(taints=tuple(views.Taint(key, "NoSchedule", value) for key, value in taints))
    wanted = [{"key": key, "effect": "NoSchedule"} | ({"value": value} if value else {}) for key, value in taints[:cut]]
    node = views.Node(metadata=views.ObjectMeta(), spec=seen)
    assert patches.differs(node, {"spec": {"taints": wanted}}) == (len(wanted) != len(taints))


def test_a_view_is_compared_in_the_words_of_the_wire() -> None:
    node = views.Node(
        metadata=views.ObjectMeta(name="n", labels={"a": "b"}), status=views.NodeStatus(capacity={"cpu": "1"})
    )
    assert not patches.differs(node, {"metadata": {"labels": {"a": "b", "gone": None}}})
    assert not patches.differs(node, {"status": {"capacity": {"cpu": "1"}}})
    assert patches.differs(node, {"metadata": {"labels": {"a": "c"}}})
    assert patches.differs(node, {"metadata": {"labels": {"a": None}}})
    tainted = views.Node(metadata=views.ObjectMeta(), spec=views.NodeSpec(taints=(views.Taint("a", "NoSchedule"),)))
    assert not patches.differs(tainted, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule", "value": ""}]}})
    assert not patches.differs(tainted, {"metadata": {"finalizers": []}})
    assert patches.differs(tainted, {"metadata": {"labels": {"role": ""}}}), "an empty label is a label"
    assert patches.differs(tainted, {"spec": {"podCIDR": None}}), "what is not shown may be there"
    assert patches.differs(tainted, {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}})
    assert patches.differs(tainted, {"spec": {"taints": []}})
    assert patches.differs(node, {"spec": {"podCIDR": "10.0.0.0/24"}}), "what the view does not show may differ"


def operation(kind: Any, subresource: str = "", **body: Any) -> operations.Operation:
    return operations.Operation(kind, subresource, body, [])


def joined(*given: operations.Operation) -> list[tuple[str, str, dict[str, Any]]]:
    waiting: list[operations.Operation] = []
    for item in given:
        operations.add_operation(waiting, item)
    return [(item.kind, item.subresource, item.body) for item in waiting]


def test_operations_are_joined_only_where_nothing_is_lost() -> None:
    merge, apply, delete = operation("merge", a=1), operation("apply", a=1), operation("delete")
    assert joined(operation("merge", a=1), operation("merge", b=2)) == [("merge", "", {"a": 1, "b": 2})]
    assert joined(operation("apply", a=1), operation("apply", b=2)) == [("apply", "", {"b": 2})]
    assert joined(merge, operation("apply", b=2)) == [("merge", "", {"a": 1}), ("apply", "", {"b": 2})]
    assert joined(apply, operation("merge", b=2)) == [("apply", "", {"a": 1}), ("merge", "", {"b": 2})]
    assert joined(operation("merge", a=1), delete) == [("delete", "", {})]
    assert joined(operation("delete"), operation("apply", a=1)) == [("delete", "", {}), ("apply", "", {"a": 1})]
    status = operation("merge", "status", x=1)
    assert joined(operation("apply", a=1), status, operation("apply", b=2)) == [
        ("apply", "", {"b": 2}),
        ("merge", "status", {"x": 1}),
    ]
