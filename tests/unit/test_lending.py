"""The GPUs that a sharing pod's container gets when it is created."""

from __future__ import annotations

from typing import Any

from simgpu.controllers.configuring import Configuration
from simgpu.controllers.lending import LentGpus
from simgpu.controllers.loading import PodLoads
from simgpu.kube.store import Store
from simgpu.kube.views import Container, ObjectMeta, Pod, PodSpec
from simgpu.pods.holding import Held

GROUP = {"runai-gpu-group": "g"}


class Reports:
    """Takes the place of what records events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def report(self, _subject: Any, reason: str, _message: str) -> None:
        self.reasons.append(reason)

    def checked(self, pod: Pod, _reason: str, read: Any, _default: Any) -> Any:
        return read(pod)

    def resolved(self, *_arguments: Any) -> None:
        """Nothing was wrong."""


def pod(name: str, namespace: str = "team", **meta: Any) -> Pod:
    made = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", resource_version="1", **meta)
    return Pod(made, PodSpec(containers=(Container("main"), Container("side")), node_name="n"))


def lent(*pods: Pod, held: list[Held] | None) -> tuple[LentGpus, Reports]:
    store: Store[Pod] = Store()
    store.replace(pods)
    reports: Any = Reports()
    configuration: Configuration = reports
    loads = PodLoads(configuration, reports)
    made = LentGpus(
        store,
        lambda: None if held is None else [*held],
        lambda: {"GPU-1": 1000, "GPU-2": 1000},
        loads,
        configuration=configuration,
        namespace="r",
    )
    return made, reports


async def test_the_first_container_gets_the_gpus_of_the_reservation_that_its_pod_names_and_its_part_of_them() -> None:
    held = [Held("main", ("GPU-2",), namespace="r", pod="holds")]
    sharing = pod("shares", labels=GROUP, annotations={"gpu-fraction": "0.25"})
    found, reports = lent(pod("holds", "r", labels=GROUP), sharing, pod("other"), held=held)
    assert await found.find("uid-shares", "main") == {"GPU-2": 250}
    assert await found.find("uid-shares", "side") == await found.find("uid-other", "main") == {}
    assert await found.find("uid-holds", "main") == {}
    assert reports.reasons == []


async def test_a_reservation_that_is_not_there_is_reported_and_gives_nothing() -> None:
    found, reports = lent(pod("shares", labels=GROUP), held=[])
    assert await found.find("uid-shares", "main") == {}
    assert reports.reasons == ["ReservationUnknown"]


async def test_a_reservation_may_have_its_gpu_by_a_claim() -> None:
    held = [Held("main", ("GPU-1",), uid="uid-holds")]
    sharing = pod("shares", labels=GROUP, annotations={"gpu-fraction": "0.5"})
    found, reports = lent(pod("holds", "r", labels=GROUP), sharing, held=held)
    assert await found.find("uid-shares", "main") == {"GPU-1": 500}
    await found.wait_reserved()
    assert [(item.ids, item.uid) for item in found.held()] == [(("GPU-1",), "uid-shares")]
    held.clear()  # the claim was released
    assert found.held() == []
    assert reports.reasons == []
