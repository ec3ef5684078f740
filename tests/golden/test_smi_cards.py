"""nvidia-smi on other cards than the recorded one: many, cut into instances, of other models, in use, or gone."""

from __future__ import annotations

import csv
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.catalog import computing, models
from simgpu.page import layout, native
from tests.fixtures import pages, smi

RECORDINGS: Final = Path(__file__).parent / "smi"


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    return pages.write(tmp_path, pages.cards("h200", 8))


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """One card in two instances, the larger of them in use."""
    rows = pages.cards("h200", 1, mig=("1g.18gb", "3g.71gb"))
    rows["instances"][0][0]["memory_used"] = 44 * 2**20
    return pages.write(tmp_path, rows)


# Many cards.


def test_eight_cards_are_listed_in_order(eight: Path) -> None:
    lines = smi.say(eight, "-L").splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"GPU {index}: NVIDIA H200" for index in range(8)]
    assert len(set(lines)) == 8


def test_every_pair_of_linked_cards_is_eighteen_links_apart(eight: Path) -> None:
    lines = smi.say(eight, "topo", "-m").splitlines()
    for index, line in enumerate(lines[1:9]):
        name, *ways, _, numa, _, _ = line.split("\t")
        assert name == f"GPU{index}"
        assert ways == [" X " if other == index else "NV18" for other in range(8)]
        assert numa == str(index // 4)


def test_over_pcie_alone_the_way_depends_on_the_socket(eight: Path) -> None:
    line = smi.say(eight, "topo", "-mp").splitlines()[1]
    assert line.split("\t")[1:9] == [" X ", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]


def test_a_card_has_eighteen_links(eight: Path) -> None:
    lines = smi.say(eight, "nvlink", "-s").splitlines()
    assert len(lines) == 8 * 19
    assert lines[1:19] == [f"\t Link {link}: 26.562 GB/s" for link in range(18)]
    one = smi.say(eight, "nvlink", "--status", "-i", "2", "-l", "17").splitlines()
    assert one[0].startswith("GPU 2: ")
    assert one[1:] == ["\t Link 17: 26.562 GB/s"]


def test_linked_cards_can_reach_each_others_memory(eight: Path) -> None:
    assert smi.say(eight, "topo", "-p2p", "n").splitlines()[1] == " GPU0\tX\t" + "OK\t" * 7


def test_cards_on_a_fabric_say_so(eight: Path) -> None:
    told = smi.say(eight, "--query-gpu=fabric.state,fabric.status,fabric.health.summary", "--format=csv,noheader")
    assert told.splitlines() == ["Completed, Success, N/A"] * 8


@pytest.mark.parametrize("words", [("-i", "3,5"), ("-i=3,5",), ("--id=5,3",), ("--id", "3,5,99")])
def test_cards_can_be_chosen_by_number(eight: Path, words: tuple[str, ...]) -> None:
    assert smi.say(eight, *words, "--query-gpu=index,count", "--format=csv,noheader").splitlines() == ["3, 8", "5, 8"]


def test_cards_can_be_chosen_by_name_and_place(eight: Path) -> None:
    names = smi.say(eight, "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader").splitlines()
    for index, line in enumerate(names):
        for name in line.split(", "):
            assert smi.say(eight, "-i", name, "--query-gpu=index", "--format=csv,noheader") == f"{index}\n"


# Instances.


def test_instances_have_a_box_of_their_own(cut: Path) -> None:
    lines = smi.say(cut).splitlines()
    assert "|   0  NVIDIA H200                    On  |   00000000:03:00.0 Off |                   On |" in lines
    assert "| N/A   33C    P0             78W /  700W |       0MiB / 143771MiB |     N/A      Default |" in lines
    box = lines[lines.index("| MIG devices:" + " " * 76 + "|") + 1 :]
    assert box[5:8] == [
        "|  0    2   0   0  |              44MiB / 71424MiB    | 60      0 |  3   0    3    0    3 |",
        "|                  |               0MiB / 59238MiB    |           |                       |",
        "+------------------+----------------------------------+-----------+-----------------------+",
    ]
    assert box[8].startswith("|  0    7   0   1  |               0MiB / 16384MiB    | 16      0 |")
    assert {len(line) for line in box if line} == {91}


def test_instances_are_listed_below_their_card(cut: Path) -> None:
    lines = smi.say(cut, "-L").splitlines()
    assert re.fullmatch(r"  MIG 3g\.71gb     Device  0: \(UUID: MIG-[0-9a-f-]{36}\)", lines[1])
    assert re.fullmatch(r"  MIG 1g\.18gb     Device  1: \(UUID: MIG-[0-9a-f-]{36}\)", lines[2])


def test_instances_lie_where_the_page_says(cut: Path) -> None:
    assert smi.say(cut, "mig", "-lgi").splitlines()[5::2] == [
        "|   0  MIG 1g.18gb           19        7          0:1     |",
        "|   0  MIG 3g.71gb            9        2          4:4     |",
    ]
    assert smi.say(cut, "mig", "-lci").splitlines()[6::2] == [
        "|   0      7       MIG 1g.18gb          0         0          0:1     |",
        "|   0      2       MIG 3g.71gb          2         0          0:4     |",
    ]


def test_profiles_tell_how_many_more_fit(cut: Path) -> None:
    free = re.findall(r"MIG (\S+) +\d+ +(\d)/(\d)", smi.say(cut, "mig", "-lgip"))
    assert {name: (int(left), int(most)) for name, left, most in free} == {
        "1g.18gb": (3, 7), "1g.18gb+me": (1, 1), "1g.35gb": (1, 4), "2g.35gb": (1, 3), "3g.71gb": (0, 2),
        "4g.71gb": (0, 1), "7g.141gb": (0, 1),
    }  # fmt: skip


def test_a_card_in_instances_does_not_say_how_busy_it_is(cut: Path) -> None:
    assert smi.say(cut, "--query-gpu=mig.mode.current,utilization.gpu", "--format=csv,noheader") == "Enabled, [N/A]\n"
    device = Xml.fromstring(smi.say(cut, "-q", "-x")).findall("gpu/mig_devices/mig_device")
    assert [found.findtext("gpu_instance_id") for found in device] == ["2", "7"]
    assert device[0].findtext("device_attributes/shared/multiprocessor_count") == "60"
    assert device[0].findtext("fb_memory_usage/used") == "44 MiB"
    assert "        GPU Instance ID                                : 2\n" in smi.say(cut, "-q")


@pytest.mark.parametrize("key", [model.key for model in models.load().models.values() if model.mig])
def test_compute_instances_of_every_model_are_those_that_can_be_made(tmp_path: Path, key: str) -> None:
    model = models.load().models[key]
    for profile in model.mig:
        folder = pages.write(tmp_path / profile.name, pages.cards(key, 1, mig=(profile.name,)))
        lines = re.findall(r"MIG (\S+) +(\d)[* ] +0/(\d) +(\d+) ", smi.say(folder, "mig", "-lcip"))
        places = re.findall(r"Profile ID +(\d) Placements? ?: \{([\d,]+)\}:(\d)", smi.say(folder, "mig", "-lcipp"))

        kinds = computing.kinds(profile, model)
        assert [(name, *map(int, rest)) for name, *rest in lines] == [
            (computing.name(kind, profile).partition("+")[0], kind.number, len(kind.starts), kind.multiprocessors)
            for kind in kinds
        ]
        assert sorted(
            (int(kind), tuple(map(int, starts.split(","))), int(width)) for kind, starts, width in places
        ) == (sorted((kind.number, kind.starts, kind.width) for kind in kinds))


def test_an_instance_that_is_the_whole_card_has_all_of_its_window(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("h200", 1, mig=("7g.141gb",)))
    assert "|               0MiB / 262144MiB   |" in smi.say(tmp_path)


def test_a_small_card_has_four_slices(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("a30", 1, mig=("2g.12gb", "1g.6gb")))
    assert smi.say(tmp_path, "mig", "-lgipp").splitlines()[::2] == [
        "GPU  0 Profile ID 14 Placements: {0,1,2,3}:1",
        "GPU  0 Profile ID  5 Placements: {0,2}:2",
        "GPU  0 Profile ID  0 Placement : {0}:4",
    ]
    assert smi.say(tmp_path, "mig", "-lcipp").splitlines()[-1] == "GPU  0 GI  4 Profile ID  1 Placement : {0}:2"
    free = re.findall(r"MIG (\S+) +\d+ +(\d)/", smi.say(tmp_path, "mig", "-lgip"))
    assert dict(free) == {"1g.6gb": "1", "1g.6gb+me": "1", "2g.12gb": "0", "2g.12gb+me": "0", "4g.24gb": "0"}


# Other models.


def test_an_older_card_gives_limits_in_degrees_and_no_averages(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("t4"))
    text = smi.say(tmp_path, "-q", "-d", "TEMPERATURE,POWER,ROW_REMAPPER,PAGE_RETIREMENT")
    told = dict(re.findall(r"^ +(\S.*?) +: (.*)$", text.split("    Module Power Readings")[0], re.MULTILINE))
    assert told["GPU Shutdown Temp"] == "96 C"
    assert told["GPU T.Limit Temp"] == told["Memory Current Temp"] == told["Remapped Rows"] == "N/A"
    assert told["Single Bit ECC"] == "0"
    assert "        Average Power Draw                             : N/A\n" in text
    assert "|   0  Tesla T4                       On  |" in smi.say(tmp_path)
    assert smi.say(tmp_path, "mig", "-lgip") == "No MIG-supported devices found.\n"


def test_a_card_without_ecc_or_board_says_that_it_has_none(tmp_path: Path) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("inforom_ecc", "inforom_oem", "inforom_image", "vbios", "part_number"), "")
    pages.write(tmp_path, pages.cards("l40s", **nothing))
    fields = "ecc.mode.current,ecc.errors.corrected.volatile.total,inforom.ecc,vbios_version,mig.mode.current"
    assert smi.say(tmp_path, f"--query-gpu={fields}", "--format=csv,noheader") == ", ".join(["[N/A]"] * 5) + "\n"
    assert re.search(r"Off \|                  N/A \|", smi.say(tmp_path))


def test_a_long_name_is_cut_and_the_box_stays_whole(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("l40s", product="NVIDIA RTX PRO 6000 Blackwell Server Edition"))
    text = smi.say(tmp_path)
    assert "|   0  NVIDIA RTX PRO 6000 Blac...    On  |" in text
    assert {len(line) for line in text.splitlines()[1:] if line} == {91}


def ask(root: Path, *fields: str) -> list[str]:
    return smi.say(root, f"--query-gpu={','.join(fields)}", "--format=csv,noheader").rstrip("\n").split(", ")


def test_a_card_for_a_desk_shows_its_fan_and_that_its_ecc_is_off(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("rtx-a6000", fan_speed=30))
    table = smi.say(tmp_path)
    assert "|   0  NVIDIA RTX A6000               On  |   00000000:03:00.0 Off |                  Off |" in table
    assert "| 30%   33C    P0             24W /  300W |       0MiB /  49140MiB |      0%      Default |" in table
    fields = ("fan.speed", "pci.baseClass", "pci.subClass", "ecc.mode.current", "ecc.errors.corrected.volatile.total")
    assert ask(tmp_path, *fields) == ["30 %", "0x3", "0x0", "Disabled", "[N/A]"]
    log = Xml.fromstring(smi.say(tmp_path, "-q", "-x")).find("gpu")
    assert log is not None
    assert (log.findtext("fan_speed"), log.findtext("product_brand")) == ("30 %", "NVIDIA RTX")
    assert log.findtext("ecc_mode/current_ecc") == "Disabled"
    assert log.findtext("ecc_errors/volatile/dram_correctable") == "N/A"
    assert smi.say(tmp_path, "-e", "0") == "ECC support is already Disabled for GPU 00000000:03:00.0.\nAll done.\n"


def test_a_card_that_its_server_cools_may_show_a_fan_that_stands_still(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("a40"))
    assert "|  0%   33C    P0             23W /  300W |       0MiB /  46068MiB |" in smi.say(tmp_path)


def test_a_card_for_games_has_no_clocks_for_applications(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("rtx-4090"))
    assert ask(tmp_path, "name", "clocks.applications.gr", "clocks.default_applications.mem", "clocks.max.sm") == [
        "NVIDIA GeForce RTX 4090", "[N/A]", "[N/A]", "3105 MHz",
    ]  # fmt: skip
    assert "Product Brand                                      : GeForce\n" in smi.say(tmp_path, "-q")


def test_a_card_lists_all_clocks_that_its_memory_can_have(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("rtx-4090"))
    found = re.findall(r"Memory +: (\d+) MHz", smi.say(tmp_path, "-q", "-d", "SUPPORTED_CLOCKS"))
    assert found == ["10501", "10251", "5001", "810", "405"]


def test_a_card_whose_memory_processors_reach_has_no_window_on_the_bus(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("gh200"))
    text = smi.say(tmp_path, "-q", "-d", "MEMORY").split("BAR1 Memory Usage\n")[1]
    assert re.findall(r": (.*)", text)[:3] == ["N/A", "N/A", "N/A"]
    assert ask(tmp_path, "addressing_mode", "pcie.link.width.max") == ["ATS", "1"]


def test_a_page_of_an_older_writer_is_a_card_of_a_data_centre(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("h200", minor=0, size=layout.DTYPE.fields["brand"][1]))  # type: ignore[index]
    fields = ("fan.speed", "pci.subClass", "ecc.mode.current", "clocks.default_applications.gr")
    assert ask(tmp_path, *fields) == ["[N/A]", "0x2", "Enabled", "1980 MHz"]


@pytest.mark.parametrize(
    "model", sorted(key for key, model in models.load().models.items() if model.vendor == "nvidia")
)
def test_every_model_has_every_line_and_column(model: str, tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards(model, 2))
    log = Xml.fromstring(smi.say(tmp_path, "-q", "-x"))
    assert len(log.findall("gpu")) == 2
    assert {len(line) for line in smi.say(tmp_path).splitlines()[1:] if line} == {91}
    rows = list(csv.reader(smi.say(tmp_path, f"--query-gpu={','.join(fields())}").splitlines(), skipinitialspace=True))
    assert [len(row) for row in rows] == [215] * 3


# XML and help, as programs read them.


def paths(element: Xml.Element, above: str = "") -> Iterator[str]:
    yield (path := f"{above}/{element.tag}")
    for inner in element:
        yield from paths(inner, path)


@pytest.mark.parametrize("name", ["idle-smi-qx", "load-smi-qx"])
def test_xml_has_the_elements_of_the_real_one_in_their_order(name: str, tmp_path: Path) -> None:
    recorded = (RECORDINGS / f"{name}.txt").read_text().split("\n", 2)[2]
    with smi.programs("python3") as numbers:
        rows = pages.hold(pages.recorded(**pages.LOAD), *numbers) if name.startswith("load") else pages.recorded()
        pages.write(tmp_path, rows)
        log = Xml.fromstring(smi.say(tmp_path, "-q", "-x"))
    assert list(paths(log)) == list(paths(Xml.fromstring(recorded)))


def test_xml_survives_a_program_with_an_odd_name(tmp_path: Path) -> None:
    with smi.programs("'<a&b>'") as numbers:
        pages.write(tmp_path, pages.hold(pages.recorded(**pages.LOAD), *numbers))
        log = Xml.fromstring(smi.say(tmp_path, "-q", "-x"))
    assert log.findtext("gpu/processes/process_info/process_name") == "'<a&b>'"


def fields(query: str = "gpu") -> dict[str, str]:
    """Fields and their other names, from the help as nvidia_gpu_exporter reads it: quoted lines after an empty one."""
    done = smi.run(Path("/nonexistent"), f"--help-query-{query}")
    assert done.returncode == 0
    found = re.findall(r'\n\s*\n"([^"]+)"(?: or "([^"]+)")?', done.stdout)
    return dict(found)


def test_help_names_every_field_of_the_recordings() -> None:
    known = fields()
    assert len(known) == 215
    recorded = json.loads((RECORDINGS / "idle-smi-query-all.json").read_text())
    asked = [name for names, (code, *_) in recorded.items() if code == 0 for name in names.split(",")]
    assert set(asked) <= set(known)
    assert (known["name"], known["clocks.current.sm"], known["count"]) == ("gpu_name", "clocks.sm", "")


def test_an_alias_gives_the_column_of_its_field(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded())
    for name, alias in fields().items():
        if alias:
            assert smi.say(tmp_path, f"--query-gpu={alias}") == smi.say(tmp_path, f"--query-gpu={name}")


@pytest.mark.parametrize(
    "query", ["compute-apps", "accounted-apps", "supported-clocks", "retired-pages", "remapped-rows"]
)
def test_each_query_explains_its_columns_and_has_them(query: str, tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded())
    names = list(fields(query))
    header = smi.say(tmp_path, f"--query-{query}={','.join(names)}").splitlines()[0]
    assert [column.split(" [")[0] for column in header.split(", ")] == names


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], *([name, "-h"] for name in ("dmon", "pmon", "topo", "nvlink", "mig"))]
)
def test_help_needs_no_card(words: list[str]) -> None:
    done = smi.run(Path("/nonexistent"), *words)
    assert done.returncode == 0
    assert "--" in done.stdout


# Loops and files.


def rounds(root: Path, *words: str) -> list[float]:
    """Seconds after the start at which each of three rounds was there."""
    start = time.monotonic()
    with smi.started(root, *words) as process:
        assert process.stdout is not None
        return [time.monotonic() - start for _ in range(3) if process.stdout.readline()]


def test_a_loop_prints_again_after_its_pause(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded())
    ask = ("--query-gpu=power.draw", "--format=csv,noheader")
    assert rounds(tmp_path, *ask, "-lms", "50")[2] >= 0.1
    assert rounds(tmp_path, *ask, "--loop=1")[2] >= 2


def test_a_loop_has_one_header_and_sees_the_card_change(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded())
    with smi.started(tmp_path, "--query-gpu=power.draw", "--format=csv", "--loop-ms=20") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["power.draw [W]\n", "77.44 W\n", "77.44 W\n"]
        pages.write(tmp_path, pages.recorded(power_mw=500_000))
        assert any(line == "500.00 W\n" for line in process.stdout)


def test_headings_come_again_after_a_screen_of_rows(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("h200", 45))
    with smi.started(tmp_path, "dmon", "-c", "2") as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert [number for number, line in enumerate(lines) if line.startswith("# gpu")] == [0, 47]


@pytest.mark.parametrize("word", ["-debug", "--debug", "--debug=somewhere"])
def test_who_asks_for_debugging_sees_the_same(eight: Path, word: str) -> None:
    assert smi.say(eight, word).splitlines()[1:] == smi.say(eight).splitlines()[1:]  # the first is the time


def test_output_can_go_to_a_file(tmp_path: Path) -> None:
    pages.write(tmp_path / "pages", pages.recorded())
    for words in (["--query-gpu=index", "--format=csv,noheader"], ["dmon", "-c", "1"]):
        expected = smi.say(tmp_path / "pages", *words)
        assert smi.say(tmp_path / "pages", *words, "-f", str(tmp_path / "log")) == ""
        assert (tmp_path / "log").read_text() == expected
    done = smi.run(tmp_path / "pages", "-f", "/nonexistent/log")
    assert (done.returncode, done.stdout) == (255, "Failed to create the log file /nonexistent/log\n\n")


# What cannot be read.


def test_without_cards_the_driver_is_not_there(tmp_path: Path) -> None:
    for words in ([], ["-L"], ["dmon", "-c", "1"], ["topo", "-m"]):
        done = smi.run(tmp_path, *words)
        assert done.returncode == 9
        assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_a_page_of_another_version_is_a_mismatch(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded(major=layout.MAJOR + 1))
    done = smi.run(tmp_path)
    assert (done.returncode, done.stdout) == (18, "Failed to initialize NVML: Driver/library version mismatch\n")


@pytest.mark.parametrize("how", [{"sequence": 1}, {"magic": 0}])
def test_a_page_that_makes_no_sense_is_a_lost_card(tmp_path: Path, how: dict[str, Any]) -> None:
    pages.write(tmp_path, pages.recorded(**how))
    done = smi.run(tmp_path)
    assert done.returncode == 15
    assert done.stdout.startswith("Unable to determine the device handle for GPU0: 0000:")
    assert "GPU is lost" in done.stdout


def test_a_lost_card_does_not_hide_the_others(tmp_path: Path) -> None:
    rows = pages.cards("h200", 3)
    pages.write(tmp_path, rows)
    pages.write(tmp_path, pages.outdated(rows[1:2]), written_ns=0)
    done = smi.run(tmp_path, "--query-gpu=index", "--format=csv,noheader")
    lost, *others = done.stdout.splitlines()
    assert lost.startswith("Unable to determine the device handle for GPU1: 0000:03:01.0: GPU is lost")
    assert (done.returncode, others) == (15, ["0", "2"])
    assert smi.say(tmp_path, "-i", "2", "--query-gpu=index", "--format=csv,noheader") == "2\n"


def test_text_and_counts_of_a_broken_page_stay_within_it(tmp_path: Path) -> None:
    rows = pages.cards("h200", 1, mig=("1g.18gb",))
    for name, kind in ((field.name, layout.DTYPE[field.name]) for field in layout.PAGE):
        if kind.kind == "S" and name not in ("uuid", "boot"):
            rows[name] = b"x" * kind.itemsize
    for name in ("instance_count", "links", "sm_clock_step_khz", "compute_mode", "pstate", "cpus"):
        rows[name] = 2**32 - 1
    rows["instances"]["profile"] = rows["instances"]["start"] = 2**32 - 1
    rows["sm_clock_max"] = 2**31
    pages.write(tmp_path, rows)
    for words in (
        [],
        ["-q"],
        ["-q", "-x"],
        ["mig", "-lgip"],
        ["mig", "-lgi"],
        ["mig", "-lci"],
        ["mig", "-lcip"],
        ["nvlink", "-s"],
        ["topo", "-m"],
    ):
        assert smi.say(tmp_path, *words)
    assert smi.say(tmp_path, "mig", "-lcipp") == ""


OPTIONS: Final = [
    "-q", "-x", "-d", "-i", "-L", "-h", "-pl", "-ac", "-lgc", "-pm", "-c", "--format=csv", "--query-gpu=name", "--id=",
    "--query-compute-apps", "--version", "MEMORY,ECC", "0", "0,1", "topo", "-m", "-p2p", "r", "nvlink", "-s", "mig",
    "-lgip", "c2c", "=", ",", "-",
]  # fmt: skip
WORDS: Final = st.lists(st.sampled_from(OPTIONS) | st.text(max_size=600).filter(str.isprintable), max_size=6)


@given(WORDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_end_with_an_answer(tmp_path: Path, words: list[str]) -> None:
    if not any(word.startswith(("-l", "--loop", "-f", "--filename", "dmon", "pmon")) for word in words):
        pages.write(tmp_path, pages.recorded())
        assert smi.run(tmp_path, *words).returncode in {0, 2, 3, 4, 6, 255}


# Settings.


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[tuple[str, list[Any]]]:
    """Whoever has the cards: takes settings at a socket, refuses none, and remembers them."""
    path, asked = str(tmp_path / "control"), list[Any]()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    asked.append(json.loads(connection.makefile().readline())["Set"])
                    connection.sendall(b"0\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path, asked
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


SETTINGS: Final = [
    (
        ["-pl", "300"],
        "power_limit",
        [300_000, 0],
        "Power limit for GPU 00000000:00:06.0 was set to 300.00 W from 700.00 W.",
    ),
    (["--power-limit=250.5"], "power_limit", [250_500, 0], "was set to 250.50 W from 700.00 W."),
    (["-lgc", "345,1000"], "sm_clocks", [345, 1000], 'GPU clocks set to "(gpuClkMin 345, gpuClkMax 1000)" for GPU'),
    (["-lgc", "900"], "sm_clocks", [900, 900], 'GPU clocks set to "(gpuClkMin 900, gpuClkMax 900)" for GPU'),
    (["-rgc"], "reset_sm_clocks", [0, 0], ""),
    (["-ac", "3201,1500"], "applications_clocks", [3201, 1500], 'Applications clocks set to "(MEM 3201, SM 1500)"'),
    (["-rac"], "reset_applications_clocks", [0, 0], ""),
    (["-pm", "0"], "persistence", [0, 0], "Disabled persistence mode for GPU 00000000:00:06.0."),
    (["-c", "EXCLUSIVE_PROCESS"], "compute_mode", [3, 0], "Set compute mode to EXCLUSIVE_PROCESS for GPU"),
]


@pytest.mark.parametrize("case", SETTINGS, ids=[" ".join(case[0]) for case in SETTINGS])
def test_a_setting_goes_to_the_owner_of_the_card(
    case: tuple[list[str], str, list[int], str], owner: tuple[str, list[Any]], tmp_path: Path
) -> None:
    words, setting, values, said = case
    path, asked = owner
    pages.write(tmp_path / "pages", pages.recorded(control=path))
    text = smi.say(tmp_path / "pages", *words)
    assert said in text
    assert text.endswith("All done.\n")
    assert asked == [{"Device": pages.RECORDED["uuid"], "Setting": setting, "Values": values}]


def test_memory_clocks_cannot_be_locked_even_by_who_may_set_clocks(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded(control="/nonexistent"))
    assert smi.say(tmp_path, "-lmc", "3201") == (
        "This option is not supported. Please use --lock-memory-clocks-deferred instead.\nAll done.\n"
    )
    assert smi.say(tmp_path, "-rmc") == (
        "Setting locked Memory clocks is not supported for GPU 00000000:00:06.0.\n"
        "Treating as warning and moving on.\nAll done.\n"
    )


@pytest.mark.parametrize("words", [["-mig", "1"], ["-e", "0"], ["-p", "0"], ["-am", "1"], ["-caa"], ["-r"]])
def test_what_only_a_driver_can_change_is_refused_to_everybody(words: list[str], tmp_path: Path) -> None:
    pages.write(tmp_path, pages.recorded(control="/nonexistent"))
    done = smi.run(tmp_path, *words)
    assert done.returncode == 4
    assert "GPU 00000000:00:06.0: Insufficient Permissions\n" in done.stdout


def test_a_card_without_ecc_cannot_have_it_switched_on(tmp_path: Path) -> None:
    pages.write(tmp_path, pages.cards("t4", inforom_ecc=""))
    assert smi.say(tmp_path, "-e", "1").startswith("ECC features not supported for GPU ")


def test_a_setting_reaches_the_chosen_cards_only(owner: tuple[str, list[Any]], tmp_path: Path) -> None:
    path, asked = owner
    rows = pages.cards("h200", 4, control=path)
    pages.write(tmp_path / "pages", rows)
    smi.say(tmp_path / "pages", "-i", "1,3", "-pl", "400")
    assert [what["Device"] for what in asked] == [rows[index]["uuid"].decode() for index in (1, 3)]


# The other processor.


def test_there_is_one_for_arm_too() -> None:
    content = native.tool("aarch64").read_bytes()
    assert content[:4] == b"\x7fELF"
    assert int.from_bytes(content[18:20], "little") == 183
