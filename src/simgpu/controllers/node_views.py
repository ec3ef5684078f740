"""Decides when views of nodes, fake and real, are written: if missing or changed, and periodically to save counters.

A changed view waits for `VIEW_EVERY` seconds, so that one write shows all that changed meanwhile. It is rendered when
it is sent, and not at all if the node is by then as its published view shows it.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.controllers import publishing
from simgpu.kube import resources
from simgpu.kube.operations import Target
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap
from simgpu.kube.writer import Writer
from simgpu.machines.ticking import Clock

VIEW_EVERY = 1.0  # seconds
SAVE_EVERY = 600.0  # seconds; more where counters grow slowly, because nobody uses a node

Failed = Callable[[Exception], None]
Source = Callable[[], object]  # what a view is made of, to be compared; None if the node is gone
Render = Callable[[], dict[str, Any]]


class ViewState(msgspec.Struct):
    """What is published of a node: its text, what that was made of, and when it was written.

    `shown` is None if that is unknown, `written` if nothing is published. `changed` is when a difference was first
    seen. Times are in seconds of the steady clock. `growth` is how fast counters grow, 1 at most.
    """

    text: str = ""
    shown: object = None
    written: float | None = None
    changed: float | None = None
    growth: float = 1.0

    def forget(self) -> None:
        """Write it again in any case."""
        self.shown = self.written = None


class NodeViews:
    """Writes and deletes views."""

    def __init__(self, writer: Writer, config_maps: Store[ConfigMap], *, namespace: str, clock: Clock) -> None:
        self._writer = writer
        self._config_maps = config_maps
        self._namespace = namespace
        self._clock = clock

    def target(self, node: str) -> Target:
        """Return the ConfigMap of a node as the target of a write."""
        return Target(resources.CONFIG_MAPS, publishing.view_name(node), self._namespace)

    def get(self, node: str) -> ConfigMap | None:
        """Return the ConfigMap of a node as it is in the cluster."""
        return self._config_maps.get(publishing.view_name(node), namespace=self._namespace)

    def publish(
        self, node: str, state: ViewState, source: Source, render: Render, *, urgent: bool, failed: Failed
    ) -> float:
        """Write a view that differs, a little later, or is due to be saved; return the seconds until the next save."""
        turn, now = self._turn(node, state), self._clock.steady()
        if source() == state.shown:
            state.changed = None
            if not self._due(node, state):
                return turn
        elif state.written is not None and (state.changed is None or now < state.changed + VIEW_EVERY):
            if state.changed is None:
                state.changed = now
                write = functools.partial(self._write_changed, node, state, source, render, failed=failed)
                asyncio.get_running_loop().call_later(VIEW_EVERY, write, now)
            return turn
        self.write(node, state, source, render, urgent=urgent, failed=failed)
        return turn

    def _write_changed(
        self, node: str, state: ViewState, source: Source, render: Render, since: float, *, failed: Failed
    ) -> None:
        """Write a view unless it is again, or was meanwhile, as published."""
        if state.changed == since:
            self.write(node, state, source, render, urgent=False, failed=failed)

    def write(
        self, node: str, state: ViewState, source: Source, render: Render, *, urgent: bool, failed: Failed
    ) -> None:
        """Write a view when its turn has come, unless it is the same by then and need not be saved."""

        def body() -> dict[str, Any] | None:
            shown, published, due = source(), self.get(node), self._due(node, state)
            seen = published.data.get(vocabulary.TOPOLOGY_KEY) if published is not None else None
            state.changed = None
            if shown is None or (not due and shown == state.shown and seen == state.text):
                return None
            made = render()
            state.shown, state.text = shown, made["data"][vocabulary.TOPOLOGY_KEY]
            if not due and seen == state.text:
                return None
            state.written = self._clock.steady()
            return made

        self._writer.apply_rendered(self.target(node), body, urgent=urgent, failed=failed)

    def _due(self, node: str, state: ViewState) -> bool:
        """Return whether a view is missing, or the time to save the counters has come."""
        since = float("inf") if state.written is None else self._clock.steady() - state.written
        return since > _every(state) - self._turn(node, state)

    def delete(self, node: str, *, failed: Failed | None = None) -> None:
        """Delete a node's view."""
        self._writer.delete(self.target(node), failed=failed)

    def _turn(self, node: str, state: ViewState) -> float:
        """Return the seconds until a node's next save; a hash of its name spreads the saves of all nodes over time."""
        every = _every(state)
        return every - (self._clock.steady() + zlib.crc32(node.encode())) % every


def _every(state: ViewState) -> float:
    return SAVE_EVERY / state.growth
