"""Users of GPUs through claims: who has how much of a device, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from simgpu.catalog import models
from simgpu.controllers import claimed
from simgpu.controllers.configuring import Configuration
from simgpu.controllers.loading import PodLoads
from simgpu.dra import node_devices
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.node_devices import DevicePlace
from simgpu.kube import views
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.users import PodRef, User
from simgpu.topology import inline, mig_layouts, pools
from simgpu.topology.devices import Device, part_id

[DEVICE] = pools.build(inline.parse("t4:1", models.load(), field=""), "n")
PLACES = {"g0": DevicePlace(DEVICE.uuid)}
_CLIENT: Any = None
_CONFIGURATION = Configuration(Store(), Recorder(_CLIENT, component="test"), namespace="ns", catalog=models.load())
LOADS = PodLoads(_CONFIGURATION, Writer(_CLIENT, manager="test"))
TOTAL = DEVICE.model.memory_mib.usable


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"claims": [{"name": "gpu"}]}, **more}


def used(
    phase: str,
    *,
    early: list[dict[str, Any]],
    main: list[dict[str, Any]],
    places: dict[str, DevicePlace] = PLACES,
    device: Device = DEVICE,
) -> claimed.ClaimedUsers:
    """The users of a GPU that a claim of pod p has."""
    body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {
            "nodeName": "n", "initContainers": early, "containers": main,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
        },
        "status": {"phase": phase},
    }  # fmt: skip
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n", "device": "g0"}
    claim = {
        "metadata": {"name": "c", "namespace": "ns"},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u1"}],
        },
    }
    known = msgspec.convert(claim, AllocatedClaim)
    return claimed.users_of(
        "n", [msgspec.convert(body, views.Pod)], lambda _namespace, _name: known,
        places=places, devices={device.uuid: device}, loads=LOADS,
    )  # fmt: skip


def memory(found: claimed.ClaimedUsers) -> dict[str, int]:
    return {user.pod.container: user.memory_mib for user in found.owners[DEVICE.uuid]}


def test_an_init_container_that_ended_leaves_its_memory_to_the_others() -> None:
    found = used("Running", early=[container("init")], main=[container("main")])
    assert memory(found) == {"main": TOTAL}


def test_a_sidecar_stays_a_user() -> None:
    found = used("Running", early=[container("side", restartPolicy="Always")], main=[container("main")])
    assert memory(found) == {"side": TOTAL // 2, "main": TOTAL // 2}


def test_a_problem_is_reported_once_until_it_has_gone_and_comes_back() -> None:
    mine = views.Pod(metadata=views.ObjectMeta(name="p", uid="u1"))
    both = [claimed.Trouble(mine, "R", "one"), claimed.Trouble(mine, "R", "two")]
    troubles: claimed.Troubles = {}
    reported = []
    for now, problems in enumerate([both, both, both[:1], both, both, both[::-1], both]):
        found, troubles, _ = claimed.lasting(problems, troubles, now * claimed.PATIENCE)
        reported.append([item.message for item in found])
    assert reported == [[], ["one", "two"], [], [], ["two"], [], []]


@pytest.mark.parametrize("early", [[], [container("init")]])
def test_a_gpu_that_no_container_uses_is_held_by_its_claim(early: list[dict[str, Any]]) -> None:
    found = used("Running", early=early, main=[{"name": "main"}])
    assert found.owners == {DEVICE.uuid: ()}
    assert not found.problems


def test_claims_of_instances_have_these_and_leave_the_other_ones_of_the_gpu_to_pods_that_request_them() -> None:
    layout = mig_layouts.well_known(models.load().models["h200"])["all-3g.71gb"]
    [gpu] = inline.parse("h200:1", models.load(), field="").gpus
    spec = pools.NodeGpus((msgspec.structs.replace(gpu, layout=layout),))
    [divided] = pools.build(spec, "n")
    places = {f"g{number}": place for number, place in enumerate(node_devices.places([divided], spec).values())}
    found = used("Running", early=[], main=[container("main"), container("other")], places=places, device=divided)
    users = [(user.pod.container, user.part, user.memory_mib) for user in found.owners[divided.uuid]]
    assert users == [("main", 1, 71424 // 2), ("other", 1, 71424 // 2)]
    assert found.taken == {part_id(divided.uuid, 1)}
    requesting = User(PodRef("q", "ns", "main", "u2"), part=2)
    joined = found.joined({divided.uuid: (requesting,)})[divided.uuid]
    assert [user.part for user in joined] == [1, 1, 2]
