"""`simgpu simulate` as a user meets it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from simgpu.cli import main

LOAD = """
phases:
- {seconds: 2, shape: idle}
- {seconds: 4, name: work, shape: matmul-bf16, fb_mib: 5000}
- {seconds: 4, name: pulses, demand: {sm: 0.8, memory: 0.3}, duty: 0.4, period: 0.15}
"""
HEADER = (
    "t,phase,gpu_util,mem_util,power_w,power_instant_w,temp_c,mem_temp_c,sm_mhz,mem_mhz,fb_used_mib,throttle,energy_mj"
)


@pytest.fixture
def load(tmp_path: Path) -> Path:
    path = tmp_path / "load.yaml"
    path.write_text(LOAD)
    return path


def play(load: Path, target: Path, *more: str) -> list[dict[str, str]]:
    assert main.run(["simulate", "--profile", str(load), "--csv", str(target), *more]) == 0
    with target.open() as file:
        return list(csv.DictReader(file))


def test_rows_have_the_columns_of_a_recording(load: Path, tmp_path: Path) -> None:
    rows = play(load, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == HEADER
    assert len(rows) == 100
    assert [row["phase"] for row in rows[::20]] == ["idle", "work", "work", "pulses", "pulses"]
    assert rows[0]["sm_mhz"] == "345"
    assert rows[59]["fb_used_mib"] == "5616"
    assert int(rows[55]["throttle"]) & 4
    energies = [int(row["energy_mj"]) for row in rows]
    assert energies == sorted(energies)


def test_rows_depend_on_the_seed_and_never_on_the_rate(load: Path, tmp_path: Path) -> None:
    by_rate = {
        rate: {round(float(row["t"]), 6): row for row in play(load, tmp_path / "out.csv", "--rate", str(rate))}
        for rate in (1, 10, 40)
    }
    for t, row in by_rate[1].items():
        assert {**row, "t": ""} == {**by_rate[10][t], "t": ""} == {**by_rate[40][t], "t": ""}
    other = play(load, tmp_path / "out.csv", "--seed", "2")
    assert [row["power_w"] for row in other] != [row["power_w"] for row in by_rate[10].values()]


def test_a_shape_holds_the_memory_of_such_a_job_unless_the_phase_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "load.yaml"
    path.write_text(
        "phases: [{seconds: 1, shape: training}, {seconds: 1, name: less, shape: training, fb_mib: 5000},"
        " {seconds: 1, shape: memcopy}]"
    )
    used = {row["phase"]: int(row["fb_used_mib"]) for row in play(path, tmp_path / "out.csv")}

    assert used["training"] == pytest.approx(0.85 * 143771, rel=0.01)
    assert used["less"] == 5616
    assert used["memcopy"] < 2000


def test_pulses_shorter_than_a_row_count_all_the_same(load: Path, tmp_path: Path) -> None:
    rows = [row for row in play(load, tmp_path / "out.csv", "--rate", "1") if row["phase"] == "pulses"]
    energy = int(rows[-1]["energy_mj"]) - int(rows[1]["energy_mj"])
    power = [float(row["power_w"]) for row in rows[2:]]
    assert sum(power) / len(power) == pytest.approx(energy / 1000 / (len(rows) - 2), rel=0.08)


def test_several_cards_have_rows_of_their_own(load: Path, tmp_path: Path) -> None:
    rows = play(load, tmp_path / "out.csv", "--count", "3", "--rate", "2")
    assert [row["gpu"] for row in rows[:4]] == ["0", "1", "2", "0"]
    assert len({row["power_w"] for row in rows[-6:-3]}) == 3
    alone = play(load, tmp_path / "out.csv", "--rate", "2")
    assert float(alone[-1]["temp_c"]) == float(rows[-3]["temp_c"])


def test_a_warmer_inlet_is_a_warmer_card(load: Path, tmp_path: Path) -> None:
    mild = play(load, tmp_path / "out.csv", "--inlet-temp", "20")
    warm = play(load, tmp_path / "out.csv", "--inlet-temp", "45")
    assert float(warm[0]["temp_c"]) == pytest.approx(float(mild[0]["temp_c"]) + 25, abs=1)


def test_without_a_target_it_prints_what_each_phase_came_to(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", "--profile", str(load)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["PHASE", "GPU"]
    assert [line.split()[0] for line in lines[1:]] == ["idle", "work", "pulses"]
    assert main.run(["simulate", "--profile", str(load), "-o", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [entry["phase"] for entry in table] == ["idle", "work", "pulses"]
    assert table[1]["power_w"] > 300


def test_rows_can_go_to_standard_output(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", "--profile", str(load), "--csv", "-", "--rate", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == HEADER
    assert len(lines) == 11


def test_a_picture_needs_nothing_else_and_shows_names_as_text(tmp_path: Path) -> None:
    load, picture, page = tmp_path / "load.yaml", tmp_path / "load.svg", tmp_path / "load.html"
    load.write_text("phases: [{seconds: 3, name: '</script><b>&', shape: matmul-bf16}, {seconds: 2, shape: idle}]")
    for target in (picture, page):
        assert main.run(["simulate", "--profile", str(load), "--plot", str(target)]) == 0
    root = ElementTree.fromstring(picture.read_text())
    texts = ["".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"NVIDIA H200", "</script><b>&", "idle", "Power W", "Memory in use GiB", "limit 700"} <= {*texts}
    assert "prefers-color-scheme:dark" in picture.read_text()
    text = page.read_text()
    assert "</script><b>" not in text
    assert re.findall(r"(?:src|href)=|url\(|https?://(?!www\.w3\.org/2000/svg)", text + picture.read_text()) == []
    readings = json.loads(text.split('id="readings">')[1].split("</script>")[0])
    assert readings["phases"] == ["</script><b>&", "idle"]
    assert {len(row["values"]) for row in readings["rows"]} == {50}


def test_a_picture_of_many_rows_stays_small(tmp_path: Path) -> None:
    load, picture = tmp_path / "load.yaml", tmp_path / "load.svg"
    load.write_text("phases: [{seconds: 60, shape: training}]")
    assert main.run(["simulate", "--profile", str(load), "--rate", "200", "--plot", str(picture)]) == 0
    assert picture.stat().st_size < 600_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("phases: []", "phases"),
        ("phases: [{shape: idle}]", "missing required field `seconds`"),
        ("phases: [{seconds: 0, shape: idle}]", "phases[0].seconds"),
        ("phases: [{seconds: 5, shape: sleeping}]", "phases[0].shape: no shape 'sleeping'; there are: idle"),
        ("phases: [{seconds: 5}]", "phases[0]: needs either a shape or a demand"),
        ("phases: [{seconds: 5, shape: idle, demand: {sm: 1}}]", "phases[0]: needs either a shape or a demand"),
        ("phases: [{seconds: 5, demand: {sm: 2}}]", "phases[0].demand.sm"),
        ("phases: [{seconds: 5, demand: {colour: 1}}]", "colour"),
        ("phases: [{seconds: 5, shape: idle, duty: 7}]", "phases[0].duty"),
        ("phases: [{seconds: 5, shape: idle, period: 1}]", "phases[0].period: needs a duty"),
        ("phases: {", "not YAML"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_a_bad_profile_is_answered_with_the_place(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.yaml"
    path.write_text(text)
    assert main.run(["simulate", "--profile", str(path), "--csv", str(tmp_path / "out.csv")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_other_bad_input_is_named_too(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", "--profile", str(load), "--model", "h300"]) == 2
    assert "--model: no GPU model 'h300'" in capsys.readouterr().err
    assert main.run(["simulate", "--profile", "/no/such/file"]) == 2
    assert "/no/such/file" in capsys.readouterr().err
    assert main.run(["simulate", "--profile", str(load), "--rate", "1000", "--count", "100000"]) == 2
    assert "more than 20 million rows" in capsys.readouterr().err
