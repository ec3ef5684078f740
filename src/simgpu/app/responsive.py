"""Settings of the interpreter that keep the event loop of a large fleet responsive.

A full garbage collection looks at every object that may be part of a cycle: 120 ms for 5,000 nodes and 20,000 pods, in
which the event loop stands still. Objects of a fleet live long and are in no cycles, so those that have survived one
full collection are left out of later ones. Each then looks only at what came since, which the thresholds keep to about
28,000 objects and 15 ms. Cycles that end later are found by the rare collection that looks at everything: when as many
objects were left out since the last one as that had left, so that what nobody needs is at most as much as what is.

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
_NICENESS = 5
_SWITCH_SECONDS = 0.001  # a fifth of Python's own: a page costs no more, and half as many waits are over 5 ms


class Collections:
    """Called by the collector before and after each collection."""

    def __init__(self) -> None:
        self._everything = True  # whether the next full collection looks at everything
        self._kept = 0  # objects that the last such one left
        self._since = 0  # objects left out since then; some are gone, as most objects go without a collector

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Leave out survivors of a full collection from the next ones."""
        if phase != "stop" or info["generation"] != _OLDEST:
            return
        survivors = len(gc.get_objects(_OLDEST))
        self._kept, self._since = (survivors, 0) if self._everything else (self._kept, self._since + survivors)
        self._everything = self._since > self._kept
        if self._everything:
            gc.unfreeze()
        else:
            gc.freeze()

    def collect(self) -> None:
        """Look at everything now."""
        gc.unfreeze()
        self._everything = True
        gc.collect()


_collections = Collections()


def keep_responsive() -> None:
    """Apply the settings, for the rest of the process."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(_collections)
    gc.collect()


def collect() -> None:
    """Free all that nobody needs any more, at a moment at which nobody waits."""
    _collections.collect()


def make_way() -> None:
    """Lower the priority of the process, for the control plane beside it: users measure that, and not us."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
