"""`python -m benchmarks [PACKAGE ...]`: run the benchmarks of all packages, or of some."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import time
from pathlib import Path

from benchmarks import frame

PACKAGES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


async def main(wanted: list[str]) -> int:
    """Run, print and keep. A benchmark that is interrupted or terminated takes its cluster down."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    unknown = [name for name in wanted if name not in PACKAGES]
    if unknown:
        print(f"no benchmarks for {', '.join(unknown)}; there are: {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    for package in wanted or PACKAGES:
        print(f"=== {package} ===", flush=True)
        started = time.perf_counter()
        async for figure in importlib.import_module(f"benchmarks.bench_{package}").figures():
            frame.show(figure)
            frame.keep(figure)
        print(f"{package}: {time.perf_counter() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
