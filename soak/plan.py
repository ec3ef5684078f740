"""Which fault comes when: drawn from the seed alone, before anything runs.

Faults are in three lanes that run at the same time: what happens to processes, to the disk, and to network and clock.
So any two of different lanes meet sooner or later. In each lane every kind has its turn before one comes again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

AGENTS = ("agent", "claims-agent")  # one for pods that get GPUs by count, and one for claims
OURS = ("controller", *AGENTS, "exporter")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok")

PROCESS_FAULTS = (*(f"kill {name}" for name in (*OURS, *CONTROL_PLANE)), "freeze controller", "restart kubelets")
DISK_FAULTS = ("full disk", "slow disk")
NETWORK_FAULTS = (
    "cut network",
    "lost network",
    "slow network",
    "429 storm",
    "500 storm",
    "stepped clock",
    "compaction",
)
LANES = {"processes": PROCESS_FAULTS, "disk": DISK_FAULTS, "network": NETWORK_FAULTS}
RARER = {"disk": 4.0}  # times the pause between faults: that lane has few kinds
PROVEN = (*DISK_FAULTS, "cut network", "429 storm", "500 storm", "stepped clock")  # whose effect is looked for
KILLS = tuple(kind for kind in PROCESS_FAULTS if kind.startswith("kill "))
KILLS_OF_OURS = tuple(f"kill {name}" for name in OURS)


class Planned(msgspec.Struct, frozen=True):
    """A fault: how long to wait before it, how long it lasts, and a number in [0, 1) for what it has to choose."""

    kind: str
    wait: float
    seconds: float
    choice: float


def lane(kinds: Sequence[str], chance: random.Random, *, pause: float, rarer: float = 1.0) -> Iterator[Planned]:
    """Yield faults forever; `pause` is the mean wait between them, in seconds, times `rarer`.

    They last up to as long as `pause`. Kills of the controller come in every round twice: it is what the run is about.
    """
    while True:
        turns = [*kinds, *(kind for kind in kinds if kind == "kill controller")]
        chance.shuffle(turns)
        for kind in turns:
            yield Planned(
                kind,
                round(chance.uniform(0.2, 1.8) * pause * rarer, 3),
                round(chance.uniform(0.5, 1.0) * (1.0 + pause), 3),
                chance.random(),
            )
