"""The event stream: viewers of channels, moved to the current step at most twice a second.

A viewer that reads slower than events come is sent a new snapshot when it has caught up; nothing waits for it, and
nothing grows. Without viewers nothing runs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from simgpu.dashboard.channels import EVERYTHING, Channel, StreamMessage, StreamUpdate, WantedPart
from simgpu.dashboard.frames import FleetFrame, FrameKeeper
from simgpu.vocabulary import MAX_VIEWERS, MAX_VIEWS
from simgpu.web.limits import Busy

INTERVAL_SECONDS = 0.5
PING_SECONDS = 5.0
_MAX_WAITING = 4  # updates, after which a viewer has fallen behind

_log = logging.getLogger(__name__)

AWAY = StreamMessage(("away", {}))
PING = StreamMessage(("ping", {}))


class Viewer:
    """One client of a channel; `behind` while it has to start anew from a snapshot."""

    def __init__(self, channel: Channel, wanted: WantedPart = EVERYTHING) -> None:
        self.channel = channel
        self._wanted = wanted
        self.behind = True
        self.closed = False
        self._waiting: collections.deque[Sequence[StreamMessage]] = collections.deque()
        self._wake = asyncio.Event()
        self._wake.set()

    def offer(self, update: StreamUpdate) -> None:
        """Add what it looks at of an update, unless a snapshot comes anyway."""
        if not self.behind:
            self._waiting.append(self._messages(update))
            if len(self._waiting) > _MAX_WAITING:
                self._waiting.clear()
                self.behind = True
        self._wake.set()

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        self._wake.set()

    async def next(self) -> Sequence[StreamMessage]:
        """Return what to send next; a ping after a while without anything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_SECONDS):
                await self._wake.wait()
        self._wake.clear()
        if self.behind:
            snapshot = self.channel.snapshot()
            self.behind = snapshot is None
            return self._messages(snapshot or AWAY)
        found = [message for messages in self._waiting for message in messages] or [PING]
        self._waiting.clear()
        return found

    def _messages(self, update: StreamUpdate) -> Sequence[StreamMessage]:
        found = update.messages(self._wanted)
        if update.tag not in ("", self._wanted.layout):  # the client's is replaced, and must be sent if it returns
            self._wanted = msgspec.structs.replace(self._wanted, layout="")
        return found


class _View:
    """A channel with its viewers, and the frame that it was moved to last."""

    def __init__(self, channel: Channel, frame: FleetFrame | None) -> None:
        self.channel = channel
        self.viewers: set[Viewer] = set()
        self._frame: FleetFrame | None = None
        if frame is not None:
            self.move(frame)

    def move(self, frame: FleetFrame) -> None:
        """Move to a frame, if it is another one, and offer what changed."""
        if frame is self._frame:
            return
        self._frame = frame
        update = self.channel.change(frame)
        if update is not None:
            self.offer(update)

    def offer(self, update: StreamUpdate) -> None:
        """Offer an update to all viewers."""
        for viewer in self.viewers:
            viewer.offer(update)

    def close(self) -> None:
        """End the streams of all viewers."""
        for viewer in self.viewers:
            viewer.close()


class ViewerHub:
    """All viewers, by the view that they look at."""

    def __init__(self, keeper: FrameKeeper) -> None:
        self._keeper = keeper
        self._views: dict[object, _View] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many there are."""
        return sum(len(view.viewers) for view in self._views.values())

    def join(self, key: object, make: Callable[[], Channel], *, wanted: WantedPart = EVERYTHING) -> Viewer:
        """Add a viewer of a view, whose channel `make` makes for the first one; `Busy` at a limit."""
        if self._closed or self.viewers >= MAX_VIEWERS or (key not in self._views and self._full()):
            raise Busy
        if key not in self._views:
            self._views[key] = _View(make(), self._keeper.frame())
        view = self._views[key]
        viewer = Viewer(view.channel, wanted)
        view.viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    def _full(self) -> bool:
        return len(self._views) >= MAX_VIEWS

    def leave(self, key: object, viewer: Viewer) -> None:
        """Remove a viewer, and its channel after the last one."""
        view = self._views.get(key)
        if view is not None:  # else it failed
            view.viewers.discard(viewer)
            if not view.viewers:
                del self._views[key]
        if not self._views and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Move all channels to the current step, and offer what changed.

        Streams of a view that cannot be made are ended, so that nobody takes old data for current: their clients
        connect again, and are answered with the error. Other views go on.
        """
        try:
            frame = self._keeper.frame()
        except Exception:  # noqa: BLE001 - logged, and viewers see it
            _log.exception("the state of GPUs cannot be read")
            for key in tuple(self._views):
                self._views.pop(key).close()
            return
        for key, view in tuple(self._views.items()):
            if frame is None:
                view.offer(AWAY)
                continue
            try:
                view.move(frame)
            except Exception:  # noqa: BLE001 - logged, and its viewers see it
                _log.exception("view %r cannot be made", key)
                self._views.pop(key).close()

    def close(self) -> None:
        """End all streams, and allow no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for view in self._views.values():
            view.close()
