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
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap
from simgpu.kube.writer import Target, Writer
from simgpu.machines.ticking import Clock

VIEW_EVERY = 1.0  # seconds
SAVE_EVERY = 300.0  # seconds

Failed = Callable[[Exception], None]
Render = Callable[[], dict[str, Any] | None]


class ViewState(msgspec.Struct):
    """When a node's view was last written, in seconds of the steady clock, and its text then.

    `changed`: it may differ from what is published.
    """

    written: float | None = None
    text: str = ""
    changed: bool = True


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

    def publish(self, node: str, state: ViewState, render: Render, *, urgent: bool, failed: Failed) -> float:
        """Write a view that may differ or is due to be saved; return the seconds until it should be checked again.

        It is rendered when it is sent; `render` returns None if the node is gone by then.
        """
        turn = self._turn(node)
        since = self._since(state)
        if not state.changed and since <= SAVE_EVERY - turn:
            return turn
        if since < VIEW_EVERY:
            return VIEW_EVERY - since
        self.write(node, state, render, urgent=urgent, failed=failed)
        return turn

    def write(self, node: str, state: ViewState, render: Render, *, urgent: bool, failed: Failed) -> None:
        """Write a view when its turn has come, unless it is the same by then and need not be saved."""

        def body() -> dict[str, Any] | None:
            made, published = render(), self.get(node)
            if made is None:
                return None
            text = made["data"][vocabulary.TOPOLOGY_KEY]
            same = published is not None and published.data.get(vocabulary.TOPOLOGY_KEY) == text
            state.changed = False
            if same and self._since(state) <= SAVE_EVERY - self._turn(node):
                return None
            state.written, state.text = self._clock.steady(), text
            return made

        self._writer.apply_rendered(self.target(node), body, urgent=urgent, failed=failed)

    def _since(self, state: ViewState) -> float:
        return float("inf") if state.written is None else self._clock.steady() - state.written

    def delete(self, node: str, *, failed: Failed | None = None) -> None:
        """Delete a node's view."""
        self._writer.delete(self.target(node), failed=failed)

    def _turn(self, node: str) -> float:
        """Return the seconds until a node's next save; a hash of its name spreads the saves of all nodes over time."""
        return SAVE_EVERY - (self._clock.steady() + zlib.crc32(node.encode())) % SAVE_EVERY
