"""Keeps a picture of a fleet up to date: streams of its columns, and of what is looked at in detail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import quote

import msgspec

from simgpu.dashboard.answers import ApiPage, FleetSummary, GpuDetail, NodeDetail, PodSummary
from simgpu.top import feeds
from simgpu.top.choosing import Choice, ChosenGpu, ChosenNode, Detail
from simgpu.top.feeds import Feed, FeedError, NothingYet, NotServed
from simgpu.top.fleet_state import COLUMNS, HISTORY, GpuCurves
from simgpu.top.picture import FleetPicture
from simgpu.vocabulary import MAX_API_TEXT

_POLL_SECONDS = 1.0
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before a new attempt
_PODS_SECONDS = 2.0  # a long list
MAX_PODS = 2000
FIRST_SECONDS = 30.0  # for one picture; a server with nothing to show only pings

_Work = Callable[[Callable[[], None]], Awaitable[None]]  # it calls what it is given whenever something arrived


class Follower:
    """Follows a fleet while it is open; `look` says what else is wanted. The picture changes in place."""

    def __init__(self, feed: Feed, picture: FleetPicture) -> None:
        self._feed, self.picture = feed, picture
        self._tasks: asyncio.TaskGroup | None = None
        self._extra: asyncio.Task[None] | None = None
        self._wanted: tuple[str | None, Detail | None] = (None, None)
        self.changes = 0  # of what is beside the columns

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Follower]:
        """Follow, until the block ends."""
        async with asyncio.TaskGroup() as self._tasks:
            following = [self._tasks.create_task(self._repeat(self._column(name))) for name in COLUMNS]
            try:
                yield self
            finally:
                for task in (*following, *((self._extra,) if self._extra else ())):
                    task.cancel()

    def look(self, choice: Choice) -> None:
        """Read what this choice needs besides the columns."""
        wanted = (choice.filters["pods"] if choice.view == "pods" else None, choice.detail)
        if wanted == self._wanted or self._tasks is None:
            return
        self._wanted = wanted
        if self._extra is not None:
            self._extra.cancel()
        work = self._work(*wanted)
        self._extra = self._tasks.create_task(self._repeat(work)) if work is not None else None

    def _work(self, pods: str | None, detail: Detail | None) -> _Work | None:
        if isinstance(detail, ChosenNode):
            return self._node(detail)
        if isinstance(detail, ChosenGpu):
            return self._gpu(detail)
        return None if pods is None else self._pods(pods)

    async def _repeat(self, work: _Work) -> None:
        """Do the work again and again, with growing pauses while it fails."""
        failures = 0

        def worked() -> None:
            nonlocal failures
            failures = 0

        while True:
            try:
                await work(worked)
            except FeedError as error:
                self.picture.problem = f"no data: {error}"
                self.changes += 1
                await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1

    def _column(self, name: str) -> _Work:
        async def read(worked: Callable[[], None]) -> None:
            pieces = self._feed.stream(f"/stream?view=fleet&show={name}")
            async with contextlib.aclosing(feeds.events(pieces)) as found:
                async for event in found:
                    self.picture.state.apply(name, event)
                    self._recovered()
                    worked()

        return read

    def _recovered(self) -> None:
        if self.picture.problem:
            self.picture.problem = ""
            self.changes += 1

    def _node(self, chosen: ChosenNode) -> _Work:
        async def read(worked: Callable[[], None]) -> None:
            found = await feeds.read(self._feed, f"/nodes/{quote(chosen.name, safe='')}", NodeDetail)
            self.picture.node = found
            self.changes += 1
            worked()
            await asyncio.sleep(_POLL_SECONDS)

        return read

    def _gpu(self, chosen: ChosenGpu) -> _Work:
        async def read(worked: Callable[[], None]) -> None:
            pieces = self._feed.stream(f"/stream?view=gpu&node={quote(chosen.node, safe='')}&index={chosen.index}")
            async with contextlib.aclosing(feeds.events(pieces)) as found:
                async for event in found:
                    self._take(event)
                    worked()

        return read

    def _take(self, event: feeds.StreamEvent) -> None:
        picture = self.picture
        try:
            if event.name == "curves":
                picture.curves = msgspec.json.decode(event.data, type=GpuCurves)
            elif event.name == "gpu":
                picture.gpu = msgspec.json.decode(event.data, type=GpuDetail)
                self._add(picture.gpu)
            elif event.name == "gone":
                raise NotServed("this GPU is no more")
        except (msgspec.MsgspecError, RecursionError, ValueError, LookupError) as error:
            raise FeedError(f"an unreadable event {event.name!r} of the stream: {error}") from None
        self.changes += 1

    def _add(self, gpu: GpuDetail) -> None:
        """Continue the curves with the newest readings."""
        curves = self.picture.curves
        if curves is not None and curves.names and not (curves.rows and curves.rows[-1][0] == round(gpu.time, 2)):
            curves.rows.append([round(gpu.time, 2), *(gpu.readings.get(name) for name in curves.names[1:])])
            del curves.rows[:-HISTORY]

    def _pods(self, text: str) -> _Work:
        async def read(worked: Callable[[], None]) -> None:
            await read_pods(self._feed, self.picture, text)
            self.changes += 1
            worked()
            await asyncio.sleep(_PODS_SECONDS)

        return read


async def read_pods(feed: Feed, picture: FleetPicture, text: str) -> None:
    """Read the pods that match a text, as many as are shown."""
    parts = await feeds.read_all(
        feed, f"/pods?q={quote(text[:MAX_API_TEXT], safe='')}", ApiPage[PodSummary], most=MAX_PODS
    )
    picture.pods = [pod for part in parts for pod in part.items]
    picture.pods_total = parts[0].total


async def first_picture(feed: Feed, *, pods: str | None) -> FleetPicture:
    """Read everything once, and the pods that match a text; raises `FeedError`."""
    fleet = await feeds.read(feed, "/fleet", FleetSummary)
    picture = FleetPicture(feed.label, role=fleet.role)

    async def column(name: str) -> None:
        async with contextlib.aclosing(feeds.events(feed.stream(f"/stream?view=fleet&show={name}"))) as found:
            async for event in found:
                picture.state.apply(name, event)
                if name in picture.state.known:
                    return

    try:
        async with asyncio.timeout(FIRST_SECONDS):
            while not picture.state.complete():  # a fleet that grows meanwhile has its columns read again
                for name in COLUMNS:
                    await column(name)
    except TimeoutError:
        raise NothingYet(f"{feed.label}: no picture of the fleet within {FIRST_SECONDS:g} s") from None
    if pods is not None:
        await read_pods(feed, picture, pods)
    return picture
