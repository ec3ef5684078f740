"""Takes each permission of each account away, one at a time: `python -m tests.permissions [--rules] [WORD ...]`.

It runs in a control plane of its own, whose API server does not stream lists: so a list is a request of its own, as
with older servers, and lacking the permission for it is noticed. Each account also does everything while nothing is
missing. Each case is printed when it is decided; the status is 1 if one was not noticed, or by something else than the
permission that it lacks. With words, only the cases run whose names have all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simgpu.cli import progress
from simgpu.cluster import lifecycle, locate
from tests.fixtures import audit
from tests.fixtures.chart import helm_program
from tests.fixtures.cluster import Cluster
from tests.permissions import roles, taking
from tests.permissions.taking import Case, How, Outcome

_NAME = "permissions"
_NO_STREAMS = "--feature-gates=WatchList=false"


@contextmanager
def control_plane(home: Path) -> Iterator[Cluster]:
    """A control plane with a log, whose state is in a folder."""
    os.environ["XDG_STATE_HOME"] = str(home)
    flags = {name: (*more, _NO_STREAMS) for name, more in audit.flags(home).items()}
    made = asyncio.run(lifecycle.up(lifecycle.UpSettings(name=_NAME, flags=flags), progress.Plain()))
    try:
        yield Cluster(_NAME, Path(made.status.kubeconfig), home)
    finally:
        asyncio.run(lifecycle.down(_NAME, progress.Plain()))


async def run(cluster: Cluster, full: dict[str, list[roles.Body]], kwok: Path, wanted: list[Case]) -> list[Outcome]:
    """Run cases, and print each when it is decided."""
    async with cluster.client() as client:
        taker = taking.Taker(cluster, client, full, kwok)
        return await taker.take(wanted, report=lambda outcome: print(outcome, flush=True))


def summary(account: str, outcomes: list[Outcome]) -> str:
    """Return how often it was noticed in which way that an account lacked permissions."""
    ways = collections.Counter(outcome.decision.how for outcome in outcomes if outcome.case.taken and not outcome.wrong)
    shown = "; ".join(f"{ways[how]} by {how.value}" for how in How if ways[how])
    return f"{account}: {sum(ways.values())} noticed{': ' if shown else ''}{shown}"


def main() -> int:
    """Run the cases that are wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.permissions", description=__doc__)
    parser.add_argument("--rules", action="store_true", help="take whole rules away, not single permissions")
    parser.add_argument("--list", action="store_true", help="print the cases, and run none")
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the names of cases")
    options = parser.parse_args()
    found = asyncio.run(locate.ensure(["helm", "kwok"], progress.Plain()))
    full = roles.full(helm_program(found["helm"].path))
    split = roles.rules if options.rules else roles.permissions
    complete = [Case(account) for account in full]
    wanted = [
        case for case in (*complete, *taking.cases(full, split)) if all(word in str(case) for word in options.words)
    ]
    if options.list:
        print(*wanted, sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as home, control_plane(Path(home)) as cluster:
        started = time.monotonic()
        outcomes = asyncio.run(run(cluster, full, found["kwok"].path, wanted))
        seconds = time.monotonic() - started
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    for account in full:
        print(summary(account, [outcome for outcome in outcomes if outcome.case.account == account]))
    print(f"{len(outcomes)} cases in {seconds:.0f} s, {len(wrong)} of them wrong")
    print(*wrong, sep="\n")
    return 1 if wrong or len(outcomes) < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
