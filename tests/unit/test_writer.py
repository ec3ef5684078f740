"""The algebra of the writer: folding patches, and telling whether one would change anything."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simgpu.kube import views, writer

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
    folded = writer.fold(first, second)
    if folded is not None:
        assert merge_patch(start, folded) == one_by_one


def test_patches_of_different_fields_fold_and_a_removal_before_a_merge_does_not() -> None:
    assert writer.fold({"a": {"x": 1}}, {"a": {"y": None}, "b": 2}) == {"a": {"x": 1, "y": None}, "b": 2}
    assert writer.fold({"a": {"x": 1}}, {"a": None}) == {"a": None}
    assert writer.fold({"a": None}, {"a": {"x": 1}}) is None


@given(PATCHES, PATCHES)
def test_a_patch_differs_exactly_if_it_would_change_the_object(document: dict[str, Any], patch: dict[str, Any]) -> None:
    start = merge_patch({}, document)
    assert writer._differs(start, patch) == (merge_patch(start, patch) != start)


def test_a_view_is_compared_in_the_words_of_the_wire() -> None:
    node = views.Node(
        metadata=views.ObjectMeta(name="n", labels={"a": "b"}), status=views.NodeStatus(capacity={"cpu": "1"})
    )
    assert not writer.differs(node, {"metadata": {"labels": {"a": "b", "gone": None}}})
    assert not writer.differs(node, {"status": {"capacity": {"cpu": "1"}}})
    assert writer.differs(node, {"metadata": {"labels": {"a": "c"}}})
    assert writer.differs(node, {"metadata": {"labels": {"a": None}}})
    assert writer.differs(node, {"spec": {"podCIDR": "10.0.0.0/24"}}), "what the view does not show may differ"
