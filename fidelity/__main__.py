"""Prints every figure of every phase, real against simulated; ends with 1 if one is off by more than is allowed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fidelity import compare, recordings
from simgpu.catalog import models


def main() -> int:
    """The table, and a picture where one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m fidelity", description=__doc__)
    parser.add_argument("recording", nargs="?", default="h200-a", help="a folder of fidelity/recordings")
    parser.add_argument("--all", action="store_true", help="print what is good too")
    parser.add_argument("--plot", type=Path, help="write a picture of both")
    options = parser.parse_args()
    recording = recordings.load(options.recording)
    model = models.load().get(recording.model, field="model")
    simulated = compare.simulate(recording, model)
    found = compare.checks(recording, simulated)
    print(f"{'phase':<18} {'figure':<20} {'real':>10} {'simulated':>10} {'off':>9} {'allowed':>9}")
    for check in found:
        unit = compare.unit(check.what)
        off = check.simulated - check.real
        mark = ("  * the recording knows it no better" if check.widened else "") if check.good else "  <-- off"
        print(
            f"{check.phase:<18} {check.what:<20} {check.real:>10.2f} {check.simulated:>10.2f} {off:>+9.2f} "
            f"{check.allowed:>9.2f} {unit}{mark}"
        )
    bad = sum(not check.good for check in found)
    worst = max(found, key=lambda check: check.off)
    print(
        f"\n{len(found) - bad} of {len(found)} figures are within what is allowed; the furthest is {worst.what} of "
        f"{worst.phase}, at {worst.off:.0%} of it"
    )
    widened = sum(check.widened for check in found)
    if widened:
        print(f"{widened} of them (*) are further off than the tolerance, by less than the recording's own uncertainty")
    if options.plot:
        from fidelity import picture  # noqa: PLC0415 - matplotlib is an extra

        picture.draw(recording, simulated, options.plot)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
