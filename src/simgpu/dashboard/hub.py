"""The event stream: viewers of channels, moved to the current step at most twice a second.

A viewer that reads slower than events come is sent a new snapshot when it has caught up; nothing waits for it, and
nothing grows. Without viewers nothing runs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable

from simgpu.dashboard.channels import Channel, StreamMessage
from simgpu.dashboard.frames import FrameKeeper
from simgpu.vocabulary import MAX_VIEWERS, MAX_VIEWS
from simgpu.web.limits import Busy

INTERVAL_SECONDS = 0.5
PING_SECONDS = 5.0
_MAX_WAITING = 4  # messages, after which a viewer has fallen behind

AWAY = StreamMessage(("away", {}))
PING = StreamMessage(("ping", {}))


class Viewer:
    """One client of a channel; `behind` while it has to start anew from a snapshot."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.behind = True
        self.closed = False
        self._waiting: collections.deque[StreamMessage] = collections.deque()
        self._wake = asyncio.Event()
        self._wake.set()

    def offer(self, message: StreamMessage) -> None:
        """Add a message, unless a snapshot comes anyway."""
        if not self.behind:
            self._waiting.append(message)
            if len(self._waiting) > _MAX_WAITING:
                self._waiting.clear()
                self.behind = True
        self._wake.set()

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        self._wake.set()

    async def next(self) -> list[StreamMessage]:
        """Return what to send next; a ping after a while without anything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_SECONDS):
                await self._wake.wait()
        self._wake.clear()
        if self.behind:
            snapshot = self.channel.snapshot()
            self.behind = snapshot is None
            return [snapshot or AWAY]
        found = list(self._waiting) or [PING]
        self._waiting.clear()
        return found


class ViewerHub:
    """All viewers, by the view that they look at."""

    def __init__(self, keeper: FrameKeeper, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeper = keeper
        self._clock = clock
        self._channels: dict[object, tuple[Channel, set[Viewer]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._step = (-1, -1)
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many there are."""
        return sum(len(viewers) for _, viewers in self._channels.values())

    def join(self, key: object, make: Callable[[], Channel]) -> Viewer:
        """Add a viewer of a view, whose channel `make` makes for the first one; `Busy` at a limit."""
        if self._closed or self.viewers >= MAX_VIEWERS or (key not in self._channels and self._full()):
            raise Busy
        if key not in self._channels:
            channel = make()
            if (frame := self._keeper.frame()) is not None:
                channel.change(frame)
            self._channels[key] = (channel, set())
        channel, viewers = self._channels[key]
        viewer = Viewer(channel)
        viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    def _full(self) -> bool:
        return len(self._channels) >= MAX_VIEWS

    def leave(self, key: object, viewer: Viewer) -> None:
        """Remove a viewer, and its channel after the last one."""
        _, viewers = self._channels[key]
        viewers.discard(viewer)
        if not viewers:
            del self._channels[key]
        if not self._channels and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Move all channels to the current step, if there is a new one, and offer what changed."""
        frame = self._keeper.frame()
        if frame is None:
            for _, viewers in self._channels.values():
                for viewer in viewers:
                    viewer.offer(AWAY)
            return
        if (id(frame.machine), frame.step) == self._step:
            return
        self._step = (id(frame.machine), frame.step)
        for channel, viewers in self._channels.values():
            message = channel.change(frame)
            if message is not None:
                for viewer in viewers:
                    viewer.offer(message)

    def close(self) -> None:
        """End all streams, and allow no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for _, viewers in self._channels.values():
            for viewer in viewers:
                viewer.close()
