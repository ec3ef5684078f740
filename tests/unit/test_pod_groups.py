"""PodGroups: which nodes hear of their changes, and which are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.controllers import pod_groups
from simgpu.kube import views


class World:
    def __init__(self) -> None:
        self.enqueued: list[str] = []
        client: Any = None
        self.groups = pod_groups.PodGroups(client, self.enqueued.append)
        self.version = 0

    def put(self, name: str, priority: str) -> None:
        """A new version of a group, as the API server sends it."""
        self.version += 1
        meta = views.ObjectMeta(name=name, namespace="ns", resource_version=str(self.version))
        spec = views.PodGroupSpec(priority_class_name=priority)
        self.groups._groups.put(views.PodGroup(metadata=meta, spec=spec))


def test_nodes_hear_of_a_group_only_if_its_priority_class_changed() -> None:
    world = World()
    assert world.groups.priority_class("ns", "g", "n") == ""
    world.put("g", "train")
    assert world.enqueued == ["n"]
    assert world.groups.priority_class("ns", "g", "n") == "train"
    for _ in range(3):
        world.put("g", "train")  # another status
    assert world.enqueued == ["n"]
    world.put("g", "build")
    assert world.enqueued == ["n", "n"]
    assert world.groups.priority_class("ns", "g", "n") == "build"
    world.groups._groups.remove("ns/g")
    assert world.enqueued == ["n", "n", "n"]


def test_a_group_that_is_asked_for_again_displaces_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_groups, "_MAX_ASKED", 2)
    world = World()
    for name in ("first", "second", "second"):
        world.groups.priority_class("ns", name, f"node-of-{name}")
    world.put("first", "train")
    assert world.enqueued == ["node-of-first"]
