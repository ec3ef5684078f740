"""What `simgpu top` reads of a server, and draws: events of one GPU, and answers of the API."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator

import msgspec
from rich.cells import cell_len

from simgpu.dashboard import answers, reading
from simgpu.dashboard.frames import FrameKeeper
from simgpu.top import feeds, following, screens, services
from simgpu.top.choosing import SORTS, VIEWS, Choice, ChosenGpu, ChosenNode, Detail
from simgpu.top.fleet_state import GpuCurves
from simgpu.top.picture import FleetPicture
from tests.fixtures.dashboards import divided_fleet
from tests.fuzz.target import Target, awaited, numbered, split

_SIZES = ((120, 40), (60, 20), (40, 12))


class Answers:
    """A server, or a client of one, which answers everything with the same bytes."""

    label = "server"

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def get(self, _path: str) -> bytes:
        return self._data

    async def raw(self, _path: str) -> bytes:
        return self._data

    async def stream(self, _path: str) -> AsyncGenerator[bytes, None]:
        for piece in self._data.split(b"\0|\0"):
            yield piece


def check_drawn(picture: FleetPicture, choice: Choice, size: tuple[int, int]) -> None:
    """The screen is full, no line is too long, and none has anything that a terminal would act on."""
    width, height = size
    picture.now = 1_700_000_000.0
    lines = screens.draw(picture, choice, width, height)
    assert len(lines) == height
    for line in lines:
        assert line.plain.isprintable()
        assert cell_len(line.plain) <= width


def _detail(detail: Detail | None, data: bytes) -> Choice:
    """Return what is looked at, in a view that follows from the input; one half of them stand still."""
    view = VIEWS[len(data) % len(VIEWS)]
    return Choice(view=view, details=[detail] if detail else [], still=len(data) % 2 == 0)


def _size(data: bytes) -> tuple[int, int]:
    return _SIZES[len(data) % len(_SIZES)]


async def _gpu(data: bytes) -> None:
    """Events of a GPU are drawn, or `simgpu top` reports that they cannot be read."""
    picture = FleetPicture("here")
    follower = following.Follower(Answers(data), picture)
    with contextlib.suppress(feeds.FeedError):
        await follower._gpu(ChosenGpu("n", 1))(lambda: None)
    if picture.gpu is not None:
        check_drawn(picture, _detail(ChosenGpu(picture.gpu.summary.node, picture.gpu.summary.index), data), _size(data))
    assert picture.curves is None or len(picture.curves.rows) <= len(data)


async def _node(data: bytes) -> None:
    picture = FleetPicture("here", node=await feeds.read(Answers(data), "/nodes/n", answers.NodeDetail))
    assert picture.node is not None
    msgspec.json.encode(picture.node)
    check_drawn(picture, _detail(ChosenNode(picture.node.summary.name), data), _size(data))


async def _pods(data: bytes) -> None:
    picture = FleetPicture("here")
    await following.read_pods(Answers(data), picture, "a/b")
    for sort in SORTS["pods"]:
        choice = Choice(view="pods", still=True)
        choice.sort["pods"] = sort
        check_drawn(picture, choice, _size(data))


async def _fleet(data: bytes) -> None:
    fleet = await feeds.read(Answers(data), "/fleet", answers.FleetSummary)
    msgspec.json.encode(fleet)
    check_drawn(FleetPicture("here", role=fleet.role), Choice(still=True), _size(data))


async def _services(data: bytes) -> None:
    found = await services.find(Answers(data), "server")  # type: ignore[arg-type]
    found.label.encode()


async def _refusal(data: bytes) -> None:
    for status in (404, 500, 503):
        assert len(str(feeds._refused("server", status, data))) < 2000


_READERS = (_node, _pods, _fleet, _services, _refusal)


async def _answer(data: bytes) -> None:
    """An answer is drawn, or `simgpu top` reports that it cannot be read."""
    number, rest = split(data, len(_READERS))
    try:
        await _READERS[number](rest)
    except feeds.FeedError as error:
        str(error).encode()


def _event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


@functools.cache
def _shown() -> tuple[answers.NodeDetail, answers.GpuDetail]:
    _, source = divided_fleet()
    frame = FrameKeeper(source).frame()
    assert frame is not None
    node, gpu = reading.node_detail(source, frame, "n"), reading.gpu_detail(source, frame, "n", 1)
    assert node is not None
    assert gpu is not None
    return node, gpu


def _examples() -> list[list[bytes]]:
    node = _shown()[0]
    pods: answers.ApiPage[answers.PodSummary] = answers.ApiPage(2, 0, [*node.pods, _WAITING])
    return [
        [msgspec.json.encode(node)], [msgspec.json.encode(pods), _HUGE], [msgspec.json.encode(_FLEET)], [_SERVICES],
        [b'{"error":"not leading"}', b"<html>"],
    ]  # fmt: skip


_WAITING = answers.PodSummary(
    "ns", "waits", "", "Pending", "2026-01-01T00:00:00Z", 1, [], 0.0, 0.0, reason="Unschedulable", message="no node"
)
_FLEET = answers.FleetSummary(
    "controller",
    "1",
    1.5,
    3,
    answers.FleetTotals(1, 2, 1, 1, 0, 0, 50.0, 300.0, 700.0, 1.0, 2.0, 3.0),
    {"p": 2},
    {"m": 2},
)
_HUGE = b'{"offset":0,"items":[],"total":' + b"9" * 400 + b"}"
_SERVICES = b'{"items":[{"metadata":{"name":"s","namespace":"ns"},"spec":{"ports":[{"name":"gpu-metrics"}]}}]}'
_CURVES = GpuCurves(["time", "power_w", "utilization"], [[1.0, 300.0, 50.0], [2.0, None, 60.0]])

TARGETS = (
    Target("gpu-streams", awaited(_gpu), (_event("curves", _CURVES) + _event("gpu", _shown()[1]) * 2,)),
    Target("top-answers", awaited(_answer), numbered(_examples())),
)  # fmt: skip
