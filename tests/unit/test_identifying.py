"""Which container is behind a connection."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from simgpu.kube import views
from simgpu.node import peers
from simgpu.node.identifying import PeerIdentifier
from simgpu.pods.guests import PeerRejected
from simgpu.pods.holding import Held

ID = "3b" * 32


@pytest.mark.parametrize(("annotations", "uid"), [({}, "u"), ({"kubernetes.io/config.mirror": "k"}, "k")])
def test_a_container_is_found_by_the_uid_that_the_kubelet_has_of_its_pod(annotations: dict[str, str], uid: str) -> None:
    pod = views.Pod(
        metadata=views.ObjectMeta(name="p", namespace="ns", uid="u", annotations=annotations),
        spec=views.PodSpec(containers=(views.Container(name="main"),), node_name="n"),
        status=views.PodStatus(container_statuses=(views.ContainerStatus(name="main", container_id=f"x://{ID}"),)),
    )
    identifier = PeerIdentifier([pod], lambda: [Held("main", ("g1", "g0"), uid=uid)], lambda: ["g0", "g1", "g2"])
    found = identifier._find(peers.Peer(uid, ID))
    assert found is not None
    assert (found.name, found.devices) == ("pod ns/p", ("g0", "g1"))
    assert identifier._find(peers.Peer("another", ID)) is None


@pytest.mark.parametrize("own", [Held("main", ("g0",), uid="u"), Held("main", ("g0",), namespace="ns", pod="p")])
def test_a_pod_acts_on_a_gpu_that_it_shares_by_a_reservation_but_sets_only_its_own(own: Held) -> None:
    pod = views.Pod(
        metadata=views.ObjectMeta(name="p", namespace="ns", uid="u"),
        spec=views.PodSpec(containers=(views.Container(name="main"),), node_name="n"),
    )
    lent = Held("main", ("g1",), uid="u", lent=True)
    held = [own, lent]
    found = PeerIdentifier([pod], lambda: held, lambda: ["g0", "g1", "g2"])._find(peers.Peer("u", ID))
    assert found is not None
    assert found.choose(()) == ("g0", "g1")
    assert [found.may_set(gpu) for gpu in ("g0", "g1", "g2")] == [True, False, False]


def test_a_process_is_not_taken_for_one_of_a_pod_that_claims_to_be_the_mirror_of_its_own() -> None:
    container = (views.Container(name="main"),)
    forged, real = (
        views.Pod(
            metadata=views.ObjectMeta(name=name, namespace="ns", uid=uid, annotations=annotations),
            spec=views.PodSpec(containers=container, node_name="n"),
        )
        for name, uid, annotations in (("forged", "f", {"kubernetes.io/config.mirror": "u"}), ("real", "u", {}))
    )
    identifier = PeerIdentifier([forged, real], lambda: [Held("main", ("g0",), uid="u")], lambda: ["g0"])
    found = identifier._find(peers.Peer("u", ID))
    assert found is not None
    assert found.name == "pod ns/real"


async def test_finding_out_who_connects_is_counted_as_work() -> None:
    worked: list[None] = []

    @contextlib.contextmanager
    def working() -> Iterator[None]:
        worked.append(None)
        yield

    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.suppress(PeerRejected):
        await PeerIdentifier([], list, list).identify(ours, working)
    assert worked
