"""nvidia-smi beside recordings of the real one on a real H200: with the same state, the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fixtures import pages, recordings, smi

OWN = (
    "the card counts a few MiB of the driver's as used, which are no process's; here a card's processes have all of it"
)
UNSEEN = "a process that never ran a kernel has no utilisation; here the processes of a card share it"
TARGET = (
    "the real one shows these lines for three topics together, but for none of them alone; here, for their own topic"
)
DIFFERENCES: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "load-smi": (("1898MiB |", "1906MiB |", OWN),),
    "load-smi-q": ((": 1898 MiB", ": 1906 MiB", OWN),),
    "load-smi-qx": (("<used_memory>1898 MiB", "<used_memory>1906 MiB", OWN),),
    "load-smi-apps": (("1898 MiB", "1906 MiB", OWN),),
    "migload-table": (("488MiB |", "539MiB |", OWN),),
    "migload-q": ((": 488 MiB", ": 539 MiB", OWN),),
    "migload-qx": (("<used_memory>488 MiB", "<used_memory>539 MiB", OWN),),
    "migload-apps": (("488 MiB", "539 MiB", OWN),),
    "m-q-power-temperature-performance": (
        (f"    Supported GPU_TARGET_TEMP\n        Min{'': <44}: N/A\n        Max{'': <44}: N/A\n", "", TARGET),
    ),
    "p-table": (("1051MiB /", "1036MiB /", OWN),),
    "p-pmon": (("-      -      -      -      -      -    518", "0      0      -      -      -      -    518", UNSEEN),),
    "p-apps": (
        ("PID, /opt/very/long/path/to/some/virtual/environment/bin/python3.12, 518 MiB\nPID, python3, 518 MiB",
         "PID, python3, 518 MiB\nPID, /opt/very/long/path/to/some/virtual/environment/bin/python3.12, 518 MiB",
         "the driver lists them in its own order; here they are sorted by their numbers"),
    ),
}  # fmt: skip


@pytest.fixture
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """The card of a recording, and its processes: the number of each, and the number that was recorded."""
    name: str = request.getfixturevalue("name")
    rows = recordings.card(name, recordings.fields(name))
    programs = recordings.PROGRAMS.get(recordings.kind(name), {})
    if not programs:
        yield pages.write(tmp_path, rows), {}
        return
    text = next(recordings.RECORDINGS.glob(f"{name}.*")).read_text()
    with smi.programs(*programs.values(), avoiding=set(re.findall(r"\d+", text))) as found:
        numbers = dict(zip(map(str, found), programs, strict=True))
        yield pages.write(tmp_path, pages.hold(rows, *found)), numbers


@pytest.mark.parametrize("name", [name for name in recordings.TEXTS if name not in recordings.SCROLLING])
def test_it_prints_what_the_real_one_printed(name: str, state: tuple[Path, dict[str, str]]) -> None:
    words, code, output = recordings.recording(name)
    root, numbers = state
    done = smi.run(root, *words)
    recorded = recordings.plain(output, {n: n for n in numbers.values()})
    assert recordings.plain(done.stdout, numbers) == recordings.expected(recorded, DIFFERENCES.get(name, ()))
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("name", recordings.QUERIES)
def test_every_field_has_the_header_and_the_value_that_was_recorded(
    name: str, state: tuple[Path, dict[str, str]]
) -> None:
    root, numbers = state
    asked = 0
    for names, (code, header, values) in json.loads((recordings.RECORDINGS / f"{name}.json").read_text()).items():
        done = smi.run(root, *f"--query-gpu={names}".split(" "), "--format=csv")
        assert done.stdout.splitlines()[0] == header
        if code == 0:
            assert recordings.plain(done.stdout, numbers).splitlines()[1:] == [recordings.plain(values, {})]
            asked += len(names.split(","))
        assert done.returncode == code
    assert asked == 194


@pytest.mark.parametrize("name", sorted(recordings.SCROLLING - {"load-smi-dmon-all"}))
def test_each_row_that_scrolls_by_is_the_one_recorded(name: str, state: tuple[Path, dict[str, str]]) -> None:
    words, _, output = recordings.recording(name)
    root, numbers = state
    header, units, *rows = output.splitlines()
    for row in rows:
        fields: dict[str, Any] = {**recordings.STATES.get(recordings.kind(name), {}), **recordings.moment(header, row)}
        pages.write(root, pages.hold(recordings.card(name, fields), *map(int, numbers)))
        done = smi.say(root, *words[:-1], "1")
        known = {n: n for n in numbers.values()}
        assert recordings.plain(done, numbers).splitlines() == [
            recordings.plain(line, known) for line in (header, units, row)
        ]


def test_rows_follow_the_card_while_it_works(tmp_path: Path) -> None:
    words, _, output = recordings.recording("load-smi-dmon-all")
    header, units, *rows = output.splitlines(keepends=True)
    fields: dict[str, Any] = {**pages.LOAD, **recordings.moment(header, rows[0])}
    pages.write(tmp_path, pages.recorded(**fields))
    with smi.started(tmp_path, *words) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(3)]
        for row in rows[1:]:
            fields |= recordings.moment(header, row) | {"throttle_power_ns": fields["throttle_power_ns"] + 10**10}
            pages.write(tmp_path, pages.recorded(**fields))
            seen.append(process.stdout.readline())
        assert process.wait(10) == 0
    assert seen == [header, units, *rows]
