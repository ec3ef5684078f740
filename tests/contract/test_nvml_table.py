"""NVML's private table, called as NVIDIA's own nvidia-smi calls it: what each slot answers is in the page."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.fixtures import nvml, pages, smi

GPU_IS_LOST: Final = 15


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that calls the table."""
    program = tmp_path_factory.mktemp("table") / "caller"
    nvml.table_caller(program)
    return program


def call(caller: Path, root: Path) -> list[list[str]]:
    """The words of each line that it prints."""
    done = subprocess.run([caller], capture_output=True, text=True, env=nvml.environment(root), timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return [line.split() for line in done.stdout.splitlines()]


def slot(answers: list[list[str]], number: int) -> list[str]:
    """The first answer of a slot: its code, and what it wrote."""
    return next(words[1:] for words in answers if words[0] == str(number))


def test_the_table_is_found_by_its_id_alone_and_has_the_size_of_the_real_one(caller: Path, tmp_path: Path) -> None:
    answers = call(caller, pages.write(tmp_path, pages.recorded()))

    assert answers[:2] == [["table", "2160"], ["other", "table", "6", "none"]]


def test_the_slots_answer_as_they_did_on_the_recorded_card(caller: Path, tmp_path: Path) -> None:
    with smi.programs("python3") as (pid,):
        rows = pages.hold(pages.recorded(**pages.LOAD), pid)
        answers = call(caller, pages.write(tmp_path, rows))

    assert answers[2:-1] == [
        ["81", "0", "0000:00:06.0"], ["72", "0", "1"], ["231", "0", "2335-895-A1"], ["237", "0"],
        ["230", "3", "57005"],  # a virtual machine does not know its slot, and nothing was written
        ["232", "0", "0"], ["249", "0", "0"],
        ["213", "0", "1"], [str(pid), str(pages.LOAD["memory_used"]), "-1", "-1", "0", "python3"],
        ["214", "0", "0"], ["215", "0", "0"],
        ["213", "7", "1"],  # no room: the number that there are
        ["108", "0", "700000"], ["199", "3", "57005"],
        ["145", "6", "1", "0"], ["145", "6", "1", "0"],  # no sample yet
        ["75", "0", "0", "0", "6"],
        ["12", "0", "0", "0", "6", "0"], ["12", "0", "0", "0", "6", "0"], ["12", "0", "1", "0", "1f", "0"],
        ["12", "2"], ["12", "2"], ["12", "2"],
        ["251", "4"], ["169", "4"], ["168", "4"],
        ["others", "harmless"],
    ]  # fmt: skip


def test_what_processes_do_has_the_time_of_the_last_sample_and_is_told_once(caller: Path, tmp_path: Path) -> None:
    rows = pages.recorded(**pages.LOAD)
    rows["sample_count"], rows["samples"]["time_us"] = 3, 0
    rows["samples"]["time_us"][:, :3] = 100, 200, 300
    with smi.programs("python3", "sh") as pids:
        answers = call(caller, pages.write(tmp_path, pages.hold(rows, *pids)))
    found = [words for words in answers if words[0] == "300"]
    shown = [[int(word.partition(":")[2]) for word in words[1:3]] for words in found]

    assert slot(answers, 145) == ["0", "1", "2"]
    assert [sum(values) for values in zip(*shown, strict=True)] == [pages.LOAD["usage"], pages.LOAD["memory_usage"]]
    assert [[word.partition(":")[0] for word in words[1:]] for words in found] == [
        [str(pid), str(pid), "-1", "-1", "-1", "-1"] for pid in sorted(pids)
    ]
    assert [words[1:] for words in answers if words[0] == "145"][1] == ["6", "1", "0"]


def test_a_card_of_a_machine_that_is_not_virtual_shows_the_generation_of_its_slot(caller: Path, tmp_path: Path) -> None:
    root = pages.write(tmp_path, pages.cards("h200", 1))

    assert slot(call(caller, root), 230) == ["0", "5"]
    assert smi.say(root, "--query-gpu=pcie.link.gen.hostmax", "--format=csv,noheader") == "5\n"


def test_every_card_has_its_own_answers(caller: Path, tmp_path: Path) -> None:
    rows = pages.cards("h200", 3)
    answers = call(caller, pages.write(tmp_path, rows))
    listed = [words[2] for words in answers if words[:2] == ["81", "0"]]

    assert len(set(listed)) == 3
    printed = smi.say(tmp_path, "--query-gpu=pci.bus_id", "--format=csv,noheader").split()
    assert [f"0000{bus}" for bus in listed] == printed
    assert answers[-1] == ["81", "2", "beyond"]


def test_a_card_that_is_lost_still_has_its_place(caller: Path, tmp_path: Path) -> None:
    rows = pages.outdated(pages.recorded())
    answers = call(caller, pages.write(tmp_path, rows, written_ns=0))

    assert slot(answers, 81) == ["0", "0000:00:06.0"]
    assert slot(answers, 72)[0] == str(GPU_IS_LOST)


def test_processes_are_listed_with_their_instance(caller: Path, tmp_path: Path) -> None:
    rows = pages.fill(pages.recorded(mig=("3g.71gb", "1g.18gb"), open=1), 500, 10)
    rows["instances"]["open"][:, 0] = 1
    with smi.programs("python3") as (pid,):
        answers = call(caller, pages.write(tmp_path, pages.hold(rows, pid)))
    process = next(words for words in answers if words[0] == str(pid))
    instance = rows["instances"][0][0]

    assert process[2:4] == [str(instance["gpu_instance"]), str(instance["compute_instance"])]


def test_the_pending_driver_model_alone_is_answered_like_the_current_one(tmp_path: Path) -> None:
    function = "N._nvmlGetFunctionPointer('nvmlDeviceGetDriverModel_v2')"
    room = "ctypes.create_string_buffer(4)"
    patterns = (f"{room}, {room}", f"{room}, None", f"None, {room}", "None, None")

    assert nvml.ask(
        pages.write(tmp_path, pages.recorded()), [f"{function}(card, {pattern})" for pattern in patterns]
    ) == [3, 3, 3, 2]


def test_a_card_that_is_not_divided_has_room_for_all_instances_of_each_kind(tmp_path: Path) -> None:
    profiles = "{i: N.nvmlDeviceGetGpuInstanceRemainingCapacity(card, i) for i in (19, 20, 15, 14, 9, 5, 0)}"

    assert nvml.ask(pages.write(tmp_path, pages.recorded()), [profiles]) == [
        {"19": 7, "20": 1, "15": 4, "14": 3, "9": 2, "5": 1, "0": 1}
    ]
