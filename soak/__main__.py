"""`python -m soak`: runs a soak, prints its figures, and writes a report. Ends with 1 if something did not hold."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from pathlib import Path

from soak import disk, report, run
from soak.settings import Settings


def main() -> int:
    """Run the soak that the options describe."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of load and faults (60)")
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--seed", type=int, help="of faults, load and edits; a random one, which is printed")
    parser.add_argument("--nodes", type=int, default=0, help="with whole GPUs; chosen by the length")
    parser.add_argument("--rate", type=float, default=0.0, help="pods a second; likewise")
    parser.add_argument("--peak", type=float, default=0.0, help="pods a second, for a moment; likewise")
    parser.add_argument("--pause", type=float, default=0.0, help="mean seconds between faults; likewise")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder of the report (build/soak)")
    parser.add_argument("--keep", action="store_true", help=f"keep the figures in {report.RESULTS.name}, if all held")
    options = parser.parse_args()
    disk.enter_private_mounts()
    settings = Settings(
        seconds=options.seconds or 60 * options.minutes,
        seed=random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed,
        out=options.out.absolute(),
        nodes=options.nodes,
        rate=options.rate,
        peak=options.peak,
        pause=options.pause,
    ).complete()
    print(f"seed {settings.seed}, {settings.seconds:g} s, {settings.nodes} nodes", flush=True)
    settings.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster goes then, too
    result = asyncio.run(run.run(settings, lambda line: print(line, flush=True)))
    report.write(result, settings.out)
    print("\n".join(report.lines(result)))
    print(f"report: {settings.out / 'soak.html'}")
    if options.keep and not result.failures:
        report.keep(result)
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
