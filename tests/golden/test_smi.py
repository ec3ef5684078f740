"""nvidia-smi beside recordings of the real one on a real H200: with the same state, the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from simgpu.page import layout
from tests.fixtures import pages, smi

RECORDINGS: Final = Path(__file__).parent / "smi"
TEXTS: Final = sorted(path.stem for path in RECORDINGS.glob("*.txt"))
QUERIES: Final = sorted(path.stem for path in RECORDINGS.glob("*.json"))

# Two recordings of one state are some seconds apart, and no card stands still: what each showed.
LATER: Final = {
    "temperature": 28, "temperature_margin": 59, "temperature_memory": 28, "power_mw": 79_530,
    "power_instant_mw": 79_230, "power_memory_mw": 35_830, "pcie_tx_kbps": 0, "pcie_rx_kbps": 0,
}  # fmt: skip
TWO_PROCESSES: Final = {
    "open": 1, "power_mw": 121_000, "temperature": 30, "temperature_memory": 30, "memory_used": 2 * 518 * 2**20,
}  # fmt: skip
MOMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "idle-smi-qx": {
        "pcie_tx_kbps": 1879, "pcie_rx_kbps": 525, "power_mw": 77_410, "power_instant_mw": 78_040,
        "power_memory_mw": 38_430,
    },
    "idle-smi-query-csv": {"temperature": 32, "power_mw": 77_280},
    "idle-smi-query-csv-nounits": {"temperature": 32, "power_mw": 77_280},
    "idle-smi-query-all": {
        "temperature": 32, "temperature_margin": 55, "power_mw": 77_290, "power_instant_mw": 77_390,
    },
    "load-smi": {"power_mw": 690_390},
    "load-smi-qx": {"pcie_tx_kbps": 11_941, "pcie_rx_kbps": 15_472, "throttle_power_ns": 14_977_545_000},
    "load-smi-query-csv": {"usage": 100, "power_mw": 690_390},
    "load-smi-query-csv-nounits": {"usage": 100, "power_mw": 690_390},
    "load-smi-query-all": {
        "throttle_power_ns": 21_677_559_000, "temperature_memory": 46, "power_mw": 692_480, "power_instant_mw": 680_300,
        "sm_clock": 1485,
    },
    "m-dmon-csv-date-time": {
        "power_mw": 125_000, "temperature": 38, "temperature_memory": 41, "sm_clock": 1830,
    },
    "m-q-temperature": {"temperature": 35, "temperature_margin": 52, "temperature_memory": 38},
    "mig-table": {"power_mw": 127_000},
    "mig-query": {"power_mw": 123_850},
    "mig-q": {
        "power_mw": 127_210, "power_instant_mw": 123_160, "power_memory_mw": 43_120, "pcie_tx_kbps": 825,
        "pcie_rx_kbps": 464,
    },
    "mig-qx": {
        "power_mw": 123_800, "power_instant_mw": 123_820, "power_memory_mw": 42_810, "pcie_tx_kbps": 2031,
        "pcie_rx_kbps": 440,
    },
    "migempty-table": {"temperature": 38, "power_mw": 149_000},
    "migempty-query": {"power_mw": 134_640},
    "migempty-q": {
        "power_mw": 138_270, "power_instant_mw": 124_970, "power_memory_mw": 57_290, "temperature_margin": 49,
        "pcie_tx_kbps": 824, "pcie_rx_kbps": 439,
    },
    "migempty-qx": {
        "power_mw": 135_440, "power_instant_mw": 124_970, "power_memory_mw": 54_580, "pcie_tx_kbps": 877,
        "pcie_rx_kbps": 430,
    },
    "migload-q": {
        "power_mw": 281_200, "power_memory_mw": 71_320, "pcie_tx_kbps": 8194, "pcie_rx_kbps": 26_763,
    },
    "migload-qx": {
        "power_mw": 281_200, "power_memory_mw": 71_270, "pcie_tx_kbps": 8280, "pcie_rx_kbps": 26_740,
    },
    "m-q-power-temperature-performance": {
        "reasons": 0, "throttle_power_ns": 73_152_949_000, "temperature": 38, "temperature_margin": 49,
        "temperature_memory": 40, "power_mw": 122_020, "power_instant_mw": 128_900, "power_memory_mw": 39_070,
    },
    **{name: TWO_PROCESSES for name in TEXTS if name.startswith("p-")},
}  # fmt: skip
# A card cut into instances: which, and the MiB in use of each; and what the card showed besides.
CUT: Final[Mapping[str, tuple[Sequence[str], Sequence[float]]]] = {
    "mig": (("3g.71gb", "1g.18gb", "1g.18gb"), (43.125, 14.5, 14.5)),
    "migload": (("3g.71gb", "1g.18gb", "1g.18gb"), (539.9, 16.9, 16.9)),
    "mig4g": (("4g.71gb", "1g.35gb"), (57.5, 14.5)),
    "mig2g": (("1g.35gb", "2g.35gb", "1g.18gb+me"), (28.75, 14.5, 14.5)),
    "mig7g": (("7g.141gb",), (0.5,)),
}
WARM: Final = {
    "temperature": 37, "temperature_margin": 50, "temperature_memory": 38, "sm_clock": 1980, "video_clock": 1545,
    "part_number": "692-2G520-0282-001",
}  # fmt: skip
STATES: Final[Mapping[str, Mapping[str, Any]]] = {
    "load": pages.LOAD, "m": LATER, "migempty": {**WARM, "mig_mode": 1}, "mig": WARM,
    "migload": {
        **WARM, "open": 1, "reasons": 0, "temperature": 42, "temperature_margin": 41, "temperature_memory": 43,
        "power_mw": 281_210, "power_instant_mw": 280_090,
    },
    "mig4g": {"temperature": 38, "power_mw": 82_000}, "mig2g": {"temperature": 38, "power_mw": 88_000},
    "mig7g": {"temperature": 38, "power_mw": 89_000},
}  # fmt: skip
# Readings over some time: seconds, how many, and their highest, lowest and mean.
SAMPLES: Final = {
    "m-q-power": ("power_mw", 2.36, 119, 79_870, 79_230, 79_510),
    "m-q-power-temperature-performance": ("power_mw", 2.36, 119, 151_620, 119_570, 120_970),
    "m-q-memory-utilization": ("usage", 14.0, 71, 0, 0, 0),
}
# Programs on the card: the recorded number and name of each.
PROGRAMS: Final[Mapping[str, Mapping[str, str]]] = {
    "load": {"406": "python3"},
    "migload": {"1641": "/opt/torch/.venv/bin/python3"},
    "p": {"768": "python3", "769": "/opt/very/long/path/to/some/virtual/environment/bin/python3.12"},
}

OWN = (
    "the card counts a few MiB of the driver's as used, which are no process's; here a card's processes have all of it"
)
UNSEEN = "a process that never ran a kernel has no utilisation; here the processes of a card share it"
TARGET = (
    "the real one shows these lines for three topics together, but for none of them alone; here, for their own topic"
)
DIFFERENCES: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "load-smi": (("1898MiB |", "1907MiB |", OWN),),
    "load-smi-q": ((": 1898 MiB", ": 1907 MiB", OWN),),
    "load-smi-qx": (("<used_memory>1898 MiB", "<used_memory>1907 MiB", OWN),),
    "load-smi-apps": (("1898 MiB", "1907 MiB", OWN),),
    "migload-table": (("488MiB |", "540MiB |", OWN),),
    "migload-q": ((": 488 MiB", ": 540 MiB", OWN),),
    "migload-qx": (("<used_memory>488 MiB", "<used_memory>540 MiB", OWN),),
    "migload-apps": (("488 MiB", "540 MiB", OWN),),
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

TIMES: Final = (
    (re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\b"), "Mon Jan  1 00:00:00 2024"),
    (re.compile(r"\b\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}\b"), "2024/01/01 00:00:00.000"),
    (re.compile(r"^ \d{8}\b", re.MULTILINE), " 20240101"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "00:00:00"),
)


@pytest.fixture
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """The card of a recording, and its processes: the number of each, and the number that was recorded."""
    name: str = request.getfixturevalue("name")
    kind = name.partition("-")[0]
    fields: dict[str, Any] = {**STATES.get(kind, {}), **MOMENTS.get(name, {})}
    programs = PROGRAMS.get(kind, {})
    if not programs:
        yield pages.write(tmp_path, card(name, fields)), {}
        return
    text = next(RECORDINGS.glob(f"{name}.*")).read_text()
    with smi.programs(*programs.values(), avoiding=set(re.findall(r"\d+", text))) as found:
        numbers = dict(zip(map(str, found), programs, strict=True))
        yield pages.write(tmp_path, pages.hold(card(name, fields), *found)), numbers


def card(name: str, fields: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    kinds, used = CUT.get(name.partition("-")[0], ((), ()))
    rows = pages.fill(pages.recorded(mig=kinds, **fields), *used) if kinds else pages.recorded(**fields)
    rows["instances"]["open"][:, 0] = rows["open"]
    if name in SAMPLES:
        field, seconds, many, highest, lowest, mean = SAMPLES[name]
        found = np.zeros(layout.SAMPLES, layout.DTYPE["samples"].base)
        found["time_us"][:many] = np.linspace(0, seconds * 1e6, many)
        found[field][:many] = round((mean * many - highest - lowest) / (many - 2))
        found[field][:2] = highest, lowest
        rows["samples"], rows["sample_count"] = found, many
    return rows


def plain(text: str, numbers: Mapping[str, str]) -> str:
    """Without what no two runs share: times, and the numbers of processes."""
    for pattern, instead in TIMES:
        text = pattern.sub(instead, text)
    for number in numbers:
        text = re.sub(rf"(?m) *\b{number}\b", lambda found: " PID" if found[0][0] == " " else "PID", text)
    return text


def recording(name: str) -> tuple[list[str], int, str]:
    """The words of a command, its exit code, and what it printed."""
    command, code, output = (RECORDINGS / f"{name}.txt").read_text().split("\n", 2)
    return command.split()[2:], int(code.removeprefix("[rc=").removesuffix("]")), output


def expected(name: str, output: str) -> str:
    for theirs, ours, _ in DIFFERENCES.get(name, ()):
        assert output.count(theirs) == 1, f"{name} has no {theirs!r}: take the difference off the list"
        output = output.replace(theirs, ours)
    return output


SCROLLING: Final = {name for name in TEXTS if re.fullmatch(r"(idle-smi|load-smi|mig\w*)-[dp]mon(-all)?", name)}


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in SCROLLING])
def test_it_prints_what_the_real_one_printed(name: str, state: tuple[Path, dict[str, str]]) -> None:
    words, code, output = recording(name)
    root, numbers = state
    done = smi.run(root, *words)
    assert plain(done.stdout, numbers) == expected(name, plain(output, {n: n for n in numbers.values()}))
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("name", QUERIES)
def test_every_field_has_the_header_and_the_value_that_was_recorded(
    name: str, state: tuple[Path, dict[str, str]]
) -> None:
    root, numbers = state
    asked = 0
    for names, (code, header, values) in json.loads((RECORDINGS / f"{name}.json").read_text()).items():
        done = smi.run(root, *f"--query-gpu={names}".split(" "), "--format=csv")
        assert done.stdout.splitlines()[0] == header
        if code == 0:
            assert plain(done.stdout, numbers).splitlines()[1:] == [plain(values, {})]
            asked += len(names.split(","))
        assert done.returncode == code
    assert asked == 194


ROWS: Final = {
    "pwr": ("power_mw", 1000), "gtemp": ("temperature", 1), "mtemp": ("temperature_memory", 1), "sm": ("usage", 1),
    "mem": ("memory_usage", 1), "pclk": ("sm_clock", 1), "rxpci": ("pcie_rx_kbps", 1000),
    "txpci": ("pcie_tx_kbps", 1000),
}  # fmt: skip


def moment(header: str, row: str) -> dict[str, int]:
    """The state that a recorded row shows."""
    cells = dict(zip(header.removeprefix("#").split(), row.split(), strict=False))
    shown = ROWS.items() if "pwr" in cells else [(column, ROWS[column]) for column in ("sm", "mem")]
    return {field: int(cells[column]) * scale for column, (field, scale) in shown if cells.get(column, "-") != "-"}


@pytest.mark.parametrize("name", sorted(SCROLLING - {"load-smi-dmon-all"}))
def test_each_row_that_scrolls_by_is_the_one_recorded(name: str, state: tuple[Path, dict[str, str]]) -> None:
    words, _, output = recording(name)
    root, numbers = state
    header, units, *rows = output.splitlines()
    for row in rows:
        fields: dict[str, Any] = {**STATES.get(name.partition("-")[0], {}), **moment(header, row)}
        pages.write(root, pages.hold(card(name, fields), *map(int, numbers)))
        done = smi.say(root, *words[:-1], "1")
        known = {n: n for n in numbers.values()}
        assert plain(done, numbers).splitlines() == [plain(line, known) for line in (header, units, row)]


def test_rows_follow_the_card_while_it_works(tmp_path: Path) -> None:
    words, _, output = recording("load-smi-dmon-all")
    header, units, *rows = output.splitlines(keepends=True)
    fields: dict[str, Any] = {**pages.LOAD, **moment(header, rows[0])}
    pages.write(tmp_path, pages.recorded(**fields))
    with smi.started(tmp_path, *words) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(3)]
        for row in rows[1:]:
            fields |= moment(header, row) | {"throttle_power_ns": fields["throttle_power_ns"] + 10**10}
            pages.write(tmp_path, pages.recorded(**fields))
            seen.append(process.stdout.readline())
        assert process.wait(10) == 0
    assert seen == [header, units, *rows]
