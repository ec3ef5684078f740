"""Both cards in one picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot

from fidelity.recordings import Recording, Series

_PANELS = (
    ("power_w", "power, W"),
    ("temp_c", "die, °C"),
    ("mem_temp_c", "memory, °C"),
    ("sm_mhz", "SM clock, MHz"),
    ("mem_util", "memory utilisation, %"),
)


def draw(recording: Recording, simulated: Series, target: Path) -> None:
    """The recorded card in grey, the simulated one over it."""
    figure, axes = pyplot.subplots(len(_PANELS), 1, figsize=(12, 11), sharex=True, layout="constrained")
    for axis, (column, label) in zip(axes, _PANELS, strict=True):
        axis.plot(recording.real.t, recording.real.columns[column], color="0.65", linewidth=2.2, label="recorded")
        axis.plot(simulated.t, simulated.columns[column], color="tab:green", linewidth=0.9, label="simulated")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.margins(x=0.01)
    start = float(simulated.t[0])
    for phase in recording.profile.phases:
        axes[0].annotate(phase.name or "", (start, 1.02), xycoords=("data", "axes fraction"), rotation=28, fontsize=8)
        for axis in axes:
            axis.axvline(start, color="0.85", linewidth=0.6)
        start += phase.seconds
    axes[1].legend(loc="upper right")
    axes[-1].set_xlabel("seconds")
    figure.savefig(target, dpi=80)
    pyplot.close(figure)
