"""Recordings of real cards: what was read, and the load profile that was running."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import yaml_text
from simgpu.sim import playing

FOLDER = Path(__file__).parent / "recordings"

Doubles = npt.NDArray[np.float64]

# Our columns by the recorders' names, and what a recorded number is multiplied by.
_COLUMNS = {
    "gpu_util": ("gpu_util", 1.0), "mem_util": ("mem_util", 1.0), "power_w": ("power_mw", 0.001),
    "power_instant_w": ("power_inst_mw", 0.001), "temp_c": ("temp_c", 1.0), "mem_temp_c": ("mem_temp_c", 1.0),
    "sm_mhz": ("sm_mhz", 1.0), "energy_mj": ("energy_mj", 1.0),
}  # fmt: skip


class Series(msgspec.Struct, frozen=True):
    """Columns over time, and the phase of each row."""

    t: Doubles
    phase: npt.NDArray[np.str_]
    columns: dict[str, Doubles]

    def bounds(self, phase: str) -> tuple[int, int]:
        """The first row of a phase, and the first after it."""
        rows = np.flatnonzero(self.phase == phase)
        return int(rows[0]), int(rows[-1]) + 1

    def during(self, column: str, phase: str) -> Doubles:
        """A column while a phase lasts."""
        start, stop = self.bounds(phase)
        return self.columns[column][start:stop]


class Recording(msgspec.Struct, frozen=True):
    """A recorded card."""

    name: str
    model: str
    profile: playing.LoadProfile
    real: Series
    inlet: float | None = None


def load(name: str) -> Recording:
    """A recording by the name of its folder."""
    folder = FOLDER / name
    about = yaml_text.parse_file(folder / "profile.yaml")
    model, inlet = about.pop("model"), about.pop("inlet", None)
    profile = msgspec.convert(about, playing.LoadProfile)
    return Recording(name, model, profile, _read(folder / "series.csv"), inlet)


def _read(path: Path) -> Series:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    columns = {
        ours: np.array([float(row[theirs]) for row in rows]) * factor for ours, (theirs, factor) in _COLUMNS.items()
    }
    return Series(np.array([float(row["t"]) for row in rows]), np.array([row["phase"] for row in rows]), columns)
