"""Every NVML call that was recorded on a real H200, on a simulated one in the same state."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fixtures import answers as recorded_answers
from tests.fixtures import asking, nvml, pages

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "nvml"

# Calls whose figure is another one here, and why. Code and type have to be the same all the same.
OTHER_FIGURES: Final = {
    "field[80]": "of what keeps clocks down, power and heat are counted",
    "field[81]": "of what keeps clocks down, power and heat are counted",
    "field[169]": "the simulated bus makes no errors",
    "field[175]": "the simulated bus makes no errors",
    "field[176]": "the simulated bus makes no errors",
    "field[177]": "the simulated bus makes no errors",
    "field[183]": "the simulated bus makes no errors",
}
# The recording read these twice, at different moments; a page has one moment.
READ_TWICE: Final = {"idle": {"field[78]"}, "load": {"nvmlDeviceGetCurrentClockFreqs", "field[74]", "field[185]"}}


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


def state(seen: dict[str, Any]) -> dict[str, Any]:
    """The recording's moment, as fields of a page."""
    use, memory = seen["nvmlDeviceGetUtilizationRates"], seen["nvmlDeviceGetMemoryInfo"]
    sample = (1_794_725_936_541_834, seen["nvmlDeviceGetPowerUsage"], use["gpu"], use["memory"], 0, 0, 0)
    return {
        "usage": use["gpu"], "memory_usage": use["memory"],
        "memory_used": memory["used"] - pages.RECORDED["memory_reserved"],
        "bar1_used": seen["nvmlDeviceGetBAR1MemoryInfo"]["bar1Used"],
        "sm_clock": seen["nvmlDeviceGetClockInfo[1]"], "video_clock": seen["nvmlDeviceGetClockInfo[3]"],
        "power_mw": seen["nvmlDeviceGetPowerUsage"], "power_instant_mw": seen["field[186]"]["ui"],
        "temperature": seen["nvmlDeviceGetTemperature[0]"], "temperature_memory": seen["field[82]"]["ui"],
        "temperature_margin": seen["nvmlDeviceGetMarginTemperature"],
        "reasons": seen["nvmlDeviceGetCurrentClocksEventReasons"],
        "energy_mj": seen["nvmlDeviceGetTotalEnergyConsumption"],
        "pcie_tx_kbps": seen["nvmlDeviceGetPcieThroughput[0]"], "pcie_rx_kbps": seen["nvmlDeviceGetPcieThroughput[1]"],
        "pcie_tx_bytes": seen["field[197]"]["ui"], "pcie_rx_bytes": seen["field[198]"]["ui"],
        "throttle_power_ns": seen["nvmlDeviceGetViolationStatus[0]"]["violationTime"],
        "idle_ns": seen["nvmlDeviceGetViolationStatus[4]"]["violationTime"], "samples": sample, "sample_count": 2,
    }  # fmt: skip


def shape(answer: Any) -> Any:
    """The code of an error, or the types of an answer."""
    if isinstance(answer, dict):
        return {key: shape(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [shape(part) for part in answer]
    failed = isinstance(answer, str) and answer.startswith(asking.ERROR)
    return answer if failed else type(answer).__name__


@pytest.fixture
def worker() -> Iterator[int]:
    """A process that uses the card."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("name", ["idle", "load"])
def test_every_recorded_call_is_answered_as_the_real_card_answered(name: str, tmp_path: Path, worker: int) -> None:
    seen = recording(name)
    rows = pages.hold(pages.recorded(**state(seen), open=name == "load"), worker)
    told = nvml.ask(pages.write(tmp_path, rows), [recorded_answers.question(call) for call in seen])
    answers = dict(zip(seen, told, strict=True))

    other_shapes = {
        call: (seen[call], answer) for call, answer in answers.items() if shape(answer) != shape(seen[call])
    }
    exempt = OTHER_FIGURES.keys() | READ_TWICE[name]
    same = {
        call
        for call, answer in answers.items()
        if recorded_answers.timeless(answer) == recorded_answers.timeless(seen[call])
    }
    sys.stdout.write(
        f"{name}: {1 - len(other_shapes) / len(seen):.1%} of {len(seen)} calls with the same code and type, "
        f"{len(same) / len(seen):.1%} with the same value\n"
    )

    assert other_shapes == {}
    assert {call: (seen[call], answers[call]) for call in answers.keys() - same - exempt} == {}
    assert exempt & same == set(), "these no longer need an exception"
    assert len(seen) > 500


def divided(seen: dict[str, Any]) -> Any:
    """The recorded card in three parts."""
    memory, parts = seen["card"]["nvmlDeviceGetMemoryInfo"], seen["devices"]
    rows = pages.recorded(
        mig=("3g.71gb", "1g.18gb", "1g.18gb"),
        power_mw=seen["card"]["nvmlDeviceGetPowerUsage"],
        memory_used=memory["used"] - pages.RECORDED["memory_reserved"],
    )
    for instance, part in zip(rows[0]["instances"], parts, strict=False):
        instance["uuid"] = part["nvmlDeviceGetUUID"].encode()
        instance["memory_used"] = part["nvmlDeviceGetMemoryInfo"]["used"]
    return rows


def test_a_divided_card_and_its_parts_answer_as_the_real_ones_answered(tmp_path: Path) -> None:
    seen = recording("mig")
    asked = {
        f"part {index}: {call}": (
            recorded_answers.question(call, f"N.nvmlDeviceGetMigDeviceHandleByIndex(card, {index})"),
            answer,
        )
        for index, part in enumerate(seen["devices"])
        for call, answer in part.items()
    }
    asked |= {call: (recorded_answers.question(call), answer) for call, answer in seen["card"].items()}
    told = nvml.ask(pages.write(tmp_path, divided(seen)), [asked_as for asked_as, _ in asked.values()])
    answers = dict(zip(asked, told, strict=True))
    sys.stdout.write(f"{len(asked)} calls\n")

    assert {call: (answer, asked[call][1]) for call, answer in answers.items() if answer != asked[call][1]} == {}
    assert len(asked) > 400
