"""What runs keep in memory of the objects that they watch."""

from __future__ import annotations

from typing import Any

import msgspec

from simgpu.kube.client import decode
from simgpu.loadtest import watched


def pod(name: str, version: int = 1, *, job: str = "j") -> Any:
    """A pod as the API server sends it, decoded anew each time."""
    owner = {"kind": "Job", "uid": job, "controller": True}
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version), "ownerReferences": [owner]}
    return decode(msgspec.json.encode({"metadata": meta, "status": {"phase": "Running"}}), watched.WatchedPod)


def stores() -> tuple[watched.SharingStore, watched.SharingStore]:
    siblings: list[watched.SharingStore] = []
    siblings += (watched.SharingStore(siblings), watched.SharingStore(siblings))
    return siblings[0], siblings[1]


def version_in(store: watched.SharingStore) -> str:
    found = store.at("n/a")
    assert found is not None
    return str(found.metadata.resource_version)


def test_a_pod_that_two_measurements_watch_is_in_memory_once() -> None:
    one, other = stores()
    for name in ("a", "b"):
        one.put(pod(name))
        other.put(pod(name))
    assert [one.at(f"n/{name}") is other.at(f"n/{name}") for name in ("a", "b")] == [True, True]


def test_a_watch_that_is_behind_shows_what_it_has_seen_itself() -> None:
    one, other = stores()
    one.put(pod("a", 2))
    other.put(pod("a", 1))
    assert [version_in(store) for store in (one, other)] == ["2", "1"]
    other.put(pod("a", 2))
    assert other.at("n/a") is one.at("n/a")
    one.remove("n/a")
    assert version_in(other) == "2"


def test_all_pods_of_a_job_have_the_same_owner_in_memory() -> None:
    first, second, third = pod("a"), pod("b"), pod("c", job="k")
    assert first.metadata.owner_references is second.metadata.owner_references
    assert third.metadata.owner_references == (watched.WatchedOwner("Job", "k", controller=True),)
