"""Settings of the interpreter that keep the event loop of a large fleet responsive.

A full garbage collection looks at every object that may be part of a cycle: 120 ms for 5,000 nodes and 20,000 pods, in
which the event loop stands still. Objects of a fleet live long and are in no cycles, so those that have survived one
full collection are left out of later ones. Each then looks only at what came since, which the thresholds keep to about
28,000 objects and 15 ms. Cycles that end later are found by the rare collection that looks at everything.

Pages are rendered in a thread. It gives way to the event loop after a switch interval, or after the call that it is in.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Mapping

_THRESHOLDS = (700, 10, 4)  # Python's own, but for the last: a full collection after 4 of the middle ones
_OLDEST = 2
_EVERYTHING = 256  # full collections between two that look at everything
_NICENESS = 5
_SWITCH_SECONDS = 0.001  # a fifth of Python's own: a page costs no more, and half as many waits are over 5 ms


class Collections:
    """Called by the collector before and after each collection."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Leave out survivors of a full collection from the next ones."""
        if phase == "stop" and info["generation"] == _OLDEST:
            self._count = (self._count + 1) % _EVERYTHING
            if self._count:
                gc.freeze()
            else:
                gc.unfreeze()


def keep_responsive() -> None:
    """Apply the settings, for the rest of the process."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(Collections())
    gc.collect()


def make_way() -> None:
    """Lower the priority of the process, for the control plane beside it: users measure that, and not us."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
