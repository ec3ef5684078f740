"""Screens of one node and of one GPU in `simgpu top`."""

from __future__ import annotations

import msgspec
import pytest

from simgpu.dashboard import reading
from simgpu.dashboard.frames import FrameKeeper
from simgpu.top import choosing, details
from simgpu.top.choosing import Choice, ChosenGpu, ChosenNode
from simgpu.top.picture import FleetPicture
from tests.fixtures.dashboards import divided_fleet


@pytest.fixture
def picture() -> FleetPicture:
    """A node whose second GPU is divided."""
    _, source = divided_fleet()
    frame = FrameKeeper(source).frame()
    assert frame is not None
    node, gpu = reading.node_detail(source, frame, "n"), reading.gpu_detail(source, frame, "n", 1)
    return FleetPicture("here", node=node, gpu=gpu, pods=[] if node is None else node.pods)


@pytest.mark.parametrize("detail", [ChosenNode("n"), ChosenGpu("n", 1)])
@pytest.mark.parametrize(("width", "height"), [(120, 40), (60, 20)])
def test_mig_instances_are_shown_with_number_profile_use_and_owner(
    detail: ChosenNode | ChosenGpu, width: int, height: int, picture: FleetPicture
) -> None:
    lines = [line.plain for line in details.draw(picture, Choice(details=[detail], still=True), width, height)]
    shown = lines[lines.index("  Instances") + 1 :][:3]
    for line, (number, profile, pod) in zip(
        shown, [(1, "3g.71gb", "team/p"), (11, "1g.18gb", "team/p"), (12, "1g.18gb", "others/q")], strict=True
    ):
        assert f"{number} {profile}" in line
        assert " 40 %" in line
        assert "GiB" in line
        assert pod in line or width < 80
    assert max(map(len, shown)) <= width


def test_a_long_list_of_instances_ends_with_how_many_more_there_are(picture: FleetPicture) -> None:
    assert picture.node is not None
    many = picture.node.instances[picture.node.gpus[1].id]
    many += many * 9
    choice = Choice(details=[ChosenNode("n")], still=True)
    lines = [line.plain for line in details.draw(picture, choice, 100, 24)]
    assert any(line.startswith("  and ") and line.endswith(" more") for line in lines)
    assert "  Pods" in lines[:24]


def test_pods_have_the_number_of_their_instances(picture: FleetPicture) -> None:
    lines = [line.plain for line in details.draw(picture, Choice(details=[ChosenNode("n")], still=True), 120, 40)]
    shown = lines[lines.index("  Pods") + 1 :]
    assert " 2 instances " in shown[0]
    assert " 1 instance " in shown[1]


def test_pods_are_found_by_the_id_of_a_gpu(picture: FleetPicture) -> None:
    assert picture.gpu is not None
    for text, count in ((picture.gpu.summary.id.upper(), 2), ("team/p", 1), ("GPU-nowhere", 0), ("", 2)):
        choice = Choice(view="pods", filters={"nodes": "", "gpus": "", "pods": text})
        assert len(choosing.pods(picture.pods, choice)) == count


def test_a_lost_gpu_has_no_readings(picture: FleetPicture) -> None:
    assert picture.node is not None
    gpu = msgspec.structs.replace(picture.node.gpus[1], health="lost")
    picture.node = msgspec.structs.replace(picture.node, gpus=[picture.node.gpus[0], gpu], instances={})
    lines = [line.plain for line in details.draw(picture, Choice(details=[ChosenNode("n")], still=True), 120, 40)]
    (lost,) = (line for line in lines if " lost " in line)
    assert lost.split() == ["1", "lost", "team/p,", "others/q"]
    assert picture.gpu is not None
    picture.gpu = msgspec.structs.replace(picture.gpu, summary=gpu, readings={})
    lines = [line.plain for line in details.draw(picture, Choice(details=[ChosenGpu("n", 1)], still=True), 120, 40)]
    assert not any("SM clock" in line for line in lines)
    assert any(line.startswith("  Counters  energy_j") for line in lines)
