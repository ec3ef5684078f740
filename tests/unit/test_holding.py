"""Who has which GPU of a real node, from what the kubelet says and the pods there are."""

from __future__ import annotations

from typing import Any

from simgpu.kube import views
from simgpu.pods.holding import Held, Holder, by_arrival, holders


def pod(name: str = "p", uid: str = "u", phase: str = "Running", **more: Any) -> views.Pod:
    known = {key: more.pop(key) for key in ("annotations", "creation_timestamp") if key in more}
    meta = views.ObjectMeta(name=name, namespace="ns", uid=uid, **known)
    containers = tuple(views.Container(name=item) for item in more.pop("containers", ("main",)))
    init = tuple(views.Container(name=item) for item in more.pop("init", ()))
    sidecars = tuple(views.Container(name=item, restart_policy="Always") for item in more.pop("sidecars", ()))
    running = tuple(
        views.ContainerStatus(name=item, state=views.ContainerState(running={})) for item in more.pop("now", ())
    )
    spec = views.PodSpec(containers=containers, init_containers=(*init, *sidecars), node_name="n")
    return views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase=phase, init_container_statuses=running))


def listed(container: str, *ids: str, name: str = "p") -> Held:
    return Held(container, ids, namespace="ns", pod=name)


def saved(container: str, *ids: str, uid: str = "u") -> Held:
    return Held(container, ids, uid=uid)


def shown(*args: Any, **more: Any) -> dict[str, list[tuple[str, str]]]:
    return {
        gpu: [(item.pod.metadata.name, item.container) for item in items]
        for gpu, items in holders(*args, **more).items()
    }


def test_each_container_has_the_gpus_that_the_kubelet_gave_it() -> None:
    both = pod(containers=("a", "b"))
    assert shown([both], [listed("a", "g0"), listed("b", "g3", "g4")]) == {
        "g0": [("p", "a")], "g3": [("p", "b")], "g4": [("p", "b")],
    }  # fmt: skip


def test_a_pod_is_not_taken_for_an_earlier_one_of_the_same_name() -> None:
    assert shown([pod(uid="new")], [listed("main", "g0"), saved("main", "g5", uid="new")]) == {"g5": [("p", "main")]}


def test_a_pod_that_was_given_nothing_yet_has_not_what_an_earlier_one_of_the_same_name_has() -> None:
    assert shown([pod(uid="new")], [listed("main", "g0"), saved("main", "g0", uid="old")]) == {}
    assert shown([pod(uid="new")], [listed("main", "g0"), saved("main", "g1", uid="old")]) == {"g0": [("p", "main")]}


def test_a_pod_that_ended_or_that_nobody_knows_has_nothing() -> None:
    held = [saved("main", "g0"), saved("main", "g1", uid="unknown"), listed("main", "g2", name="other")]
    assert shown([pod(phase="Succeeded")], held) == {}
    assert shown([], held) == {}


def test_a_static_pod_has_what_the_kubelet_gave_it_by_a_uid_of_its_own() -> None:
    static = pod(uid="of-the-api", annotations={"kubernetes.io/config.mirror": "of-the-kubelet"})
    held = [listed("main", "g0"), saved("main", "g0", uid="of-the-kubelet"), saved("first", "g1", uid="of-the-kubelet")]
    assert shown([static], held) == {"g0": [("p", "main")]}
    early = pod(uid="x", annotations=static.metadata.annotations, phase="Pending", init=("first",), now=("first",))
    assert shown([early], held) == {"g0": [("p", "main")], "g1": [("p", "first")]}


def test_a_pod_that_passes_itself_off_as_the_mirror_of_another_has_nothing_of_it() -> None:
    """The kubelet removes such a pod, but not at once."""
    old, new = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    mirror = {"kubernetes.io/config.mirror": "k"}
    static = pod("static", "a", annotations=mirror, creation_timestamp=old)
    forged = pod("forged", "b", annotations=mirror, creation_timestamp=new)
    plain = pod("plain", "k", creation_timestamp=new)
    older = pod("forged", "b", annotations=mirror, creation_timestamp=old)
    for pods, name in (((static, forged), "static"), ((older, plain), "plain")):
        for order in (pods, pods[::-1]):
            assert shown(order, [saved("main", "g0", uid="k")]) == {"g0": [(name, "main")]}


def test_no_pod_is_the_mirror_of_one_of_the_api_though_that_one_is_not_known() -> None:
    uid = "6f1c1e0a-2f0b-4b52-9a2e-0d8d4f6f2c11"
    forged = pod("forged", "f", annotations={"kubernetes.io/config.mirror": uid})
    held = [saved("main", "g0", uid=uid), saved("main", "g1", uid="f")]
    assert shown([forged], held) == {"g1": [("forged", "main")]}
    static = pod("static", "a", annotations={"kubernetes.io/config.mirror": uid.replace("-", "")})
    assert shown([static], [saved("main", "g0", uid=uid.replace("-", ""))]) == {"g0": [("static", "main")]}


def test_an_init_container_has_its_gpu_while_it_runs() -> None:
    held = [listed("main", "g0", "g1"), saved("first", "g0")]
    assert shown([pod(phase="Pending", init=("first",), now=("first",))], held) == {
        "g0": [("p", "first")], "g1": [("p", "main")],
    }  # fmt: skip
    assert shown([pod(init=("first",))], held) == {"g0": [("p", "main")], "g1": [("p", "main")]}


def test_a_sidecar_keeps_its_gpu() -> None:
    held = [saved("main", "g0"), saved("side", "g1")]
    assert shown([pod(sidecars=("side",), now=("side",))], held) == {"g0": [("p", "main")], "g1": [("p", "side")]}


def test_several_pods_share_a_gpu() -> None:
    pods = [pod("p", "u"), pod("q", "v")]
    held = [saved("main", "g0::0", "g0::3"), saved("main", "g0::1", uid="v")]
    found = holders(pods, held, replicas=lambda _: 4)
    assert [(item.pod.metadata.name, item.share) for item in found["g0"]] == [("p", 0.5), ("q", 0.25)]


def test_of_pods_that_share_a_gpu_the_oldest_comes_first_and_of_one_second_who_was_seen_first() -> None:
    made = {"a": "2026-01-02T00:00:00Z", "b": "2026-01-01T00:00:00Z", "c": "2026-01-01T00:00:00Z"}
    pods = [pod(name, name, creation_timestamp=time) for name, time in made.items()]
    held = [saved("main", f"g0::{number}", uid=name) for number, name in enumerate(made)]
    for order, first in ((pods, ["b", "c"]), (pods[::-1], ["c", "b"])):
        assert shown(order, held, replicas=lambda _: 3) == {"g0": [(name, "main") for name in (*first, "a")]}


def test_who_held_a_gpu_before_comes_first_and_who_reserves_it_before_all() -> None:
    found = [Holder(pod(name, name), "main", reserves=name == "r") for name in ("a", "b", "c", "r")]
    assert [item.pod.metadata.name for item in by_arrival(found, ["c", "b", "gone"])] == ["r", "c", "b", "a"]


def test_a_pod_that_got_a_gpu_before_it_was_shared_has_all_of_it() -> None:
    found = holders(
        [pod("p", "u"), pod("q", "v")], [saved("main", "g0"), saved("main", "g0::1", uid="v")], replicas=lambda _: 4
    )
    assert [(item.pod.metadata.name, item.share) for item in found["g0"]] == [("p", 1.0), ("q", 0.25)]


def test_containers_of_a_pod_share_a_gpu() -> None:
    held = [saved("a", "g0::0", "g0::2"), saved("b", "g0::1")]
    found = holders([pod(containers=("a", "b"))], held, replicas=lambda _: 4)
    assert [(item.container, item.share) for item in found["g0"]] == [("a", 0.5), ("b", 0.25)]


def test_an_init_container_takes_only_its_own_share_of_a_gpu() -> None:
    held = [saved("a", "g0::0"), saved("b", "g0::1"), saved("first", "g0::0")]
    early = pod(phase="Pending", containers=("a", "b"), init=("first",), now=("first",))
    assert shown([early], held, replicas=lambda _: 2) == {"g0": [("p", "first"), ("p", "b")]}
