"""Decides when views of nodes, fake and real, are written: if missing or changed, and periodically to save counters.

A view is rendered only when it may be written: once in `VIEW_EVERY` seconds at most.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.controllers import publishing
from simgpu.kube import resources
from simgpu.kube.views import ConfigMap
from simgpu.kube.writer import Target, Writer
from simgpu.machines.ticking import Clock

VIEW_EVERY = 1.0  # seconds
SAVE_EVERY = 300.0  # seconds

Failed = Callable[[Exception], None]
Render = Callable[[], dict[str, Any]]


class ViewState(msgspec.Struct):
    """When a node's view was last written, in seconds of the steady clock, and whether its users changed since."""

    written: float | None = None
    changed: bool = False


class NodeViews:
    """Writes and deletes views."""

    def __init__(self, writer: Writer, *, namespace: str, clock: Clock) -> None:
        self._writer = writer
        self._namespace = namespace
        self._clock = clock

    def target(self, node: str) -> Target:
        """Return the ConfigMap of a node as the target of a write."""
        return Target(resources.CONFIG_MAPS, publishing.view_name(node), self._namespace)

    def publish(
        self, node: str, state: ViewState, config_map: ConfigMap | None, render: Render, *, urgent: bool, failed: Failed
    ) -> float:
        """Write a view that differs or is due to be saved; return the seconds until it should be checked again."""
        turn = self._turn(node)
        if state.written is None:
            since = float("inf")
            if config_map is None:
                return self.write(node, state, render(), urgent=True, failed=failed)
        else:
            since = self._clock.steady() - state.written
        saved = since <= SAVE_EVERY - turn
        if config_map is None and not state.changed and saved:
            return turn  # the write is in flight
        if since < VIEW_EVERY:
            return VIEW_EVERY - since
        body = render()
        same = (
            config_map is not None
            and config_map.data.get(vocabulary.TOPOLOGY_KEY) == body["data"][vocabulary.TOPOLOGY_KEY]
        )
        if same and saved:
            state.changed = False
            return turn
        return self.write(node, state, body, urgent=urgent and not same, failed=failed)

    def write(self, node: str, state: ViewState, body: dict[str, Any], *, urgent: bool, failed: Failed) -> float:
        """Write a view; return the seconds until it should be saved again."""
        state.written, state.changed = self._clock.steady(), False
        self._writer.apply(self.target(node), body, urgent=urgent, failed=failed)
        return self._turn(node)

    def delete(self, node: str, *, failed: Failed | None = None) -> None:
        """Delete a node's view."""
        self._writer.delete(self.target(node), failed=failed)

    def _turn(self, node: str) -> float:
        """Return the seconds until a node's next save; a hash of its name spreads the saves of all nodes over time."""
        return SAVE_EVERY - (self._clock.steady() + zlib.crc32(node.encode())) % SAVE_EVERY
