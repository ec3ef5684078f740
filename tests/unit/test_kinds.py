"""How busy pods are by their kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.kube import views
from simgpu.machines.users import ALL, NONE, Range
from simgpu.pods import kinds

GROUPS = {"mine": "train", "built": "build", "odd": "unknown", "served": "inference"}


def find(_namespace: str, name: str) -> str:
    return GROUPS.get(name, "")


def busy(*, kind: str | None = None, group: str | None = None) -> Range:
    meta = views.ObjectMeta(
        name="p",
        labels={} if kind is None else {"workloadKind": kind},
        annotations={} if group is None else {"pod-group-name": group},
    )
    return kinds.utilisation(kinds.class_of(views.Pod(metadata=meta), find))


@pytest.mark.parametrize(
    ("kind", "group", "expected"),
    [
        (None, None, ALL),
        ("TrainingWorkload", None, Range(80, 100)),
        ("InteractiveWorkload", "mine", NONE),
        ("InferenceWorkload", None, NONE),
        ("DistributedInferenceWorkload", None, NONE),
        ("DistributedWorkload", None, NONE),
        ("Other", "mine", Range(80, 100)),
        (None, "mine", Range(80, 100)),
        (None, "built", NONE),
        (None, "served", NONE),
        (None, "odd", ALL),
        (None, "missing", ALL),
    ],
)
def test_the_label_comes_before_the_pod_group(kind: str | None, group: str | None, expected: Range) -> None:
    assert busy(kind=kind, group=group) == expected


@given(st.text(), st.text())
def test_any_kind_has_a_utilisation(kind: str, group: str) -> None:
    found = busy(kind=kind, group=group)
    assert 0 <= found.low <= found.high <= 100
