"""Device type files of fakedev-exporter: dependent metrics, sub-devices, limits and capability."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simgpu import errors
from simgpu.fakedev import exporter, flags
from simgpu.machines.box import Box

FILES = Path(__file__).parent.parent.parent / "examples" / "10-fakedev"
RANGES: dict[str, dict[str, Any]] = json.loads((FILES / "device-type.json").read_text())["MetricLimits"]
TWO = {"-devlist": FILES / "devices.json", "-identity": FILES / "identity.json", "-count": 2}


class Fake:
    """A box of fakedev-exporter that is stepped by hand."""

    def __init__(self, home: Path, kind: dict[str, Any], **given: Any) -> None:
        (home / "type.json").write_text(json.dumps(kind))
        words = {**TWO, "-devtype": home / "type.json", **given}
        self.settings = exporter.settings(
            flags.parse([str(word) for item in words.items() for word in item], flags.EXPORTER), print
        )
        self.box: Box = exporter.start(self.settings, print, seed=1)
        self.ended: list[str] = []

    def work(self, **document: Any) -> None:
        wanted = exporter.reader(self.settings)({"Name": "job", **document})
        self.box.admit(wanted.profile, wanted.devices, ended=lambda code, text: self.ended.append(f"{code} {text}"))

    def run(self, seconds: int) -> None:
        for _ in range(seconds * 10):
            self.box.step(self.box.engine.now + 0.1, clock=self.box.engine.now + 0.1)

    def value(self, name: str, device: str = "card0", **labels: str) -> float:
        page = exporter.renderer(self.settings, self.box).page().decode()
        lines = [line for line in page.splitlines() if line.startswith(f"{name}{{") and f'"{device}"' in line]
        wanted = [line for line in lines if all(f'{key}="{text}"' in line for key, text in labels.items())]
        if not labels:
            wanted = [line for line in lines if "sub_dev" not in line]
        assert len(wanted) == 1, page
        return float(wanted[0].rpartition(" ")[2])


def load(percent: int, **more: Any) -> dict[str, Any]:
    return {"Profile": [{"Load": percent, **more}], "Devices": ["card0"]}


def test_dependent_metrics_follow_the_simulated_card_within_their_ranges(tmp_path: Path) -> None:
    fake = Fake(tmp_path, {"MetricLimits": RANGES, "Relations": {"heat": {"inertia": 10}}})
    fake.run(1)
    assert fake.value("xpum_frequency_mhz") == 300
    assert fake.value("xpum_power_watts") == pytest.approx(3, abs=0.5)
    fake.work(**load(100))
    heat = [fake.value("xpum_temperature_celsius")]
    for seconds in (1, 9):
        fake.run(seconds)
        heat.append(fake.value("xpum_temperature_celsius"))
    assert heat[0] + 5 < heat[1] < heat[2] - 5 < 90  # it takes its time
    assert 25 < fake.value("xpum_power_watts") <= 35
    assert fake.value("xpum_frequency_mhz") > 1000
    assert fake.value("xpum_frequency_mhz", "card1") == 300


def test_a_metric_may_follow_another_quantity_and_one_without_a_range_is_a_counter(tmp_path: Path) -> None:
    identity = tmp_path / "identity.json"
    identity.write_text('{"DeviceLabelMap": {"file": "dev"}, "MetricMap": {"joules": "used", "load": "load_ratio"}}')
    metrics = {"joules": {"Quantity": "energy"}, "load": {"Min": 0, "Max": 1}}
    fake = Fake(tmp_path, {"MetricLimits": metrics}, **{"-identity": identity})
    fake.work(**load(40))
    fake.run(2)
    before = fake.value("used")
    fake.run(2)
    assert fake.value("used") > before > 0
    assert fake.value("load_ratio") == 0.4


def test_a_metric_has_a_series_for_every_value_of_its_extra_labels(tmp_path: Path) -> None:
    metrics = {"power": {**RANGES["power"], "Dims": {"rail": {"core": 0.75, "memory": 0.25}, "phase": ["a", "b"]}}}
    fake = Fake(tmp_path, {"MetricLimits": metrics})
    fake.work(**load(100))
    fake.run(1)
    found = {
        (rail, phase): fake.value("xpum_power_watts", rail=rail, phase=phase)
        for rail in ("core", "memory")
        for phase in "ab"
    }
    assert found == {("core", "a"): 26.25, ("core", "b"): 26.25, ("memory", "a"): 8.75, ("memory", "b"): 8.75}


def test_subdevices_have_series_and_workloads_of_their_own_and_add_up(tmp_path: Path) -> None:
    identity = json.loads((FILES / "identity.json").read_text())
    identity["DeviceLabelMap"]["subdevice"] = "sub_dev"
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    metrics = {
        "power": {**RANGES["power"], "Scope": "subdevice", "Aggregate": "sum"},
        "frequency": {**RANGES["frequency"], "Scope": "subdevice", "Aggregate": "max"},
        "memory": {**RANGES["memory"], "Scope": "subdevice", "Role": "dependent"},
        "temperature": RANGES["temperature"],
    }
    kind = {"SubDevices": 2, "MetricLimits": metrics}
    fake = Fake(tmp_path, kind, **{"-identity": tmp_path / "identity.json"})
    fake.work(Profile=[{"Load": 50, "Metrics": {"memory": {"Min": 1e9, "Unit": "absolute"}}}], Devices=["card0.1"])
    fake.run(1)
    assert fake.value("xpum_power_watts", sub_dev="0") == 3
    assert fake.value("xpum_power_watts", sub_dev="1") == 19
    assert fake.value("xpum_power_watts") == 22
    assert fake.value("xpum_frequency_mhz") == 975
    assert fake.value("xpum_memory_used_bytes", sub_dev="1") == pytest.approx(1e9, abs=1e6)
    assert fake.value("xpum_memory_used_bytes", sub_dev="0") == RANGES["memory"]["Min"]
    assert fake.value("xpum_temperature_celsius") == 37.5  # half of one of two
    page = exporter.renderer(fake.settings, fake.box).page().decode()
    assert not re.search(r'xpum_memory_used_bytes\{[^}]*"card1", pci_bdf="[^"]*", pci_dev="[^"]*"\}', page)
    order = [line.partition("{")[0] for line in page.splitlines() if '"card0"' in line]
    assert order == [*sorted(order[:3]), *sorted(order[3:6]), *sorted(order[6:])]


def test_subdevices_of_a_card_with_hardly_any_memory_have_some(tmp_path: Path) -> None:
    memory = {"Min": 0, "Max": 90, "Scope": "subdevice"}
    fake = Fake(tmp_path, {"SubDevices": 2, "MetricLimits": {**RANGES, "memory": memory}})
    fake.run(1)
    assert len(fake.box.machine.parts) == 2 * len(fake.box.devices)


@pytest.mark.parametrize(
    ("changes", "profiles", "ended"),
    [
        ({"power": {"TerminateAbove": 19}}, [40, 20, 10], ["1 Limit power reached, terminated"]),
        ({"frequency": {"TerminateAbove": 1000}}, [30, 20, 10], ["1 Limit frequency reached, terminated"]),
        ({"power": {"TerminateAbove": 35}}, [100], []),
        ({"temperature": {"Role": "dependent", "TerminateAbove": 40}}, [50, 50], ["1 Limit temperature"]),
        ({"frequency": {"Role": "dependent", "TerminateBelow": 299}}, [10], []),
    ],
)
def test_a_workload_that_takes_a_metric_over_its_limit_is_terminated(
    tmp_path: Path, changes: dict[str, Any], profiles: list[int], ended: list[str]
) -> None:
    metrics = {name: {**RANGES[name], **changes.get(name, {})} for name in RANGES}
    fake = Fake(tmp_path, {"MetricLimits": metrics})
    for percent in profiles:
        fake.work(**load(percent))
    fake.run(60 if "temperature" in changes else 1)
    assert [found.startswith(text) for found, text in zip(fake.ended, ended, strict=False)] == [True] * len(ended)
    assert bool(fake.ended) == bool(ended)


def test_a_subdevice_has_a_limit_of_its_own(tmp_path: Path) -> None:
    metrics = {**RANGES, "power": {**RANGES["power"], "Scope": "subdevice", "TerminateAbove": 19}}
    fake = Fake(tmp_path, {"SubDevices": 2, "MetricLimits": metrics})
    for device in ("card0.0", "card0.1", "card0", "card0.1"):
        fake.work(Profile=[{"Load": 30}], Devices=[device])
    fake.run(1)
    assert fake.ended == ["1 Limit power reached, terminated"] * 2  # of the whole device, and the last one's
    assert len(fake.box.workloads()) == 2


@pytest.mark.parametrize(
    "name", ["power", "xpum_power_watts", "frequency", "xpum_temperature_celsius", "xpum_memory_used_bytes"]
)
def test_limits_of_workloads_have_the_names_of_the_device_type_and_of_the_identity(tmp_path: Path, name: str) -> None:
    fake = Fake(tmp_path, {"MetricLimits": RANGES})
    low, high = RANGES[name if name in RANGES else name.split("_")[1]].values()
    fake.work(**load(50), Limits={name: low + 0.6 * (high - low)})
    fake.work(**load(20), Limits={name: low + 0.1 * (high - low)})
    fake.run(1)
    assert fake.ended == [f"1 Limit {name} reached, terminated"]
    with pytest.raises(errors.InputError, match="must be at least"):
        fake.work(**load(1), Limits={name: low - 1})
    with pytest.raises(errors.InputError, match=rf"Limits.height: no such quantity; there are: .*{name}"):
        fake.work(**load(1), Limits={"height": 1})


def test_a_memory_limit_is_of_the_workloads_memory_though_a_metric_of_that_name_follows_the_load(
    tmp_path: Path,
) -> None:
    fake = Fake(tmp_path, {"MetricLimits": RANGES})
    for percent, used in ((10, 3e9), (30, 5e8)):
        held = {"memory": {"Min": used, "Unit": "absolute"}}
        fake.work(**load(percent, Metrics=held), Limits={"memory": 1e9, "usage": 0.5})
    fake.run(1)
    assert fake.ended == ["1 Limit memory reached, terminated"]
    assert fake.value("xpum_power_watts") == pytest.approx(3 + 0.3 * 32)


def test_a_dependent_metric_with_a_lowest_value_only_has_no_highest(tmp_path: Path) -> None:
    metrics = {"power": {"Min": 20, "Role": "dependent"}, "temperature": {"Max": 50, "Role": "dependent"}}
    fake = Fake(tmp_path, {"MetricLimits": metrics})
    fake.run(1)
    assert fake.value("xpum_power_watts") >= 20
    assert 0 < fake.value("xpum_temperature_celsius") <= 50


def test_capability_scales_the_time_of_workloads_made_for_another_device(tmp_path: Path) -> None:
    kind = {"MetricLimits": RANGES, "Capability": {"MaxFrequencyMHz": 2000, "Relative": 2}}
    fake = Fake(tmp_path, kind)
    for reference in ({"MaxFrequencyMHz": 1000}, {"MaxFrequencyMHz": 2000, "Capability": 2}):
        fake.work(Profile=[{"Load": 10, "Seconds": 8}], Repeat=1, Devices=["card0"], Reference=reference)
    fake.run(3)
    assert fake.ended == ["0 OK"]  # four times as fast
    fake.run(6)
    assert fake.ended == ["0 OK"] * 2


def test_the_guide_shows_the_example_as_it_is() -> None:
    text = (FILES.parent.parent / "docs" / "guides" / "from-fakedev-exporter.md").read_text()
    assert (FILES / "device-type-tiles.json").read_text() in text


def test_devices_are_found_by_the_index_in_the_names_of_their_files(tmp_path: Path) -> None:
    fake = Fake(tmp_path, {"MetricLimits": RANGES, "DeviceFile": {"IndexRegex": "renderD12([0-9])"}})
    fake.work(Profile=[{"Load": 50}], Devices=["renderD121"])
    fake.run(1)
    assert (fake.value("xpum_power_watts"), fake.value("xpum_power_watts", "card1")) == (3, 19)
    with pytest.raises(errors.InputError, match="no device 'renderD199'"):
        fake.work(Profile=[{"Load": 50}], Devices=["renderD199"])
    fake = Fake(tmp_path, {"MetricLimits": RANGES, "DeviceFile": {"IndexRegex": "any|renderD12([0-9])"}})
    with pytest.raises(errors.InputError, match="no device 'any'"):
        fake.work(Profile=[{"Load": 50}], Devices=["many"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"MetricLimits": {"power": {"Min": 5, "Max": 3}}}, "MetricLimits.power: Min 5 is above Max 3"),
        ({"MetricLimits": {"height": {"Role": "dependent"}}}, "height.Quantity: no quantity 'height'; there are: "),
        ({"MetricLimits": {"power": {"Scope": "subdevice"}}}, "power.Scope: there are no sub-devices"),
        ({"MetricLimits": {"power": {"Aggregate": "sum"}}}, "power.Aggregate: is for metrics with the scope"),
        ({"MetricLimits": {"power": {"Max": 9, "TerminateBelow": 1}}}, "power.TerminateBelow: is for readings"),
        ({"MetricLimits": {"power": {"TerminateAbove": 1}}}, "power: nothing can end at a limit"),
        ({"MetricLimits": {"power": {"Scope": "moon"}}}, "MetricLimits.power: Invalid enum value 'moon'"),
        ({"MetricLimits": {"power": {"Max": 1e999}}}, "not JSON: Out of range"),
        ({"MetricLimits": {"power": {"Max": 1e16}}}, "MetricLimits.power: Expected"),
        ({"MetricLimits": {"power": {"Dims": {"a": [str(at) for at in range(2000)]}}}}, "power.Dims: more than"),
        ({"MetricLimits": {"power": {"Dims": {"a": {"b": 2}}}}}, "Expected `float` <= 1.0"),
        ({"MetricLimits": {"power": {"Dims": {"9 bad": ["x"]}}}}, "power: Expected `str` matching regex"),
        ({"MetricLimits": {"power": {"Dims": {"rail\n": ["x"]}}}}, "power: Expected `str` matching regex"),
        ({"MetricLimits": {"power": {"Dims": {"pci_dev": ["x"]}}}}, "power.Dims.pci_dev: devices have this label"),
        ({"Model": "abacus"}, "Model: no GPU model 'abacus'"),
        ({"SubDevices": 0}, "SubDevices"),
        ({"Capability": {"Relative": 0}}, "Capability: Expected"),
        ({"DeviceFile": {"IndexRegex": "("}}, "DeviceFile.IndexRegex: '\\('"),
        ({"Relations": {"heat": {"inertia": "slow"}}}, "Expected `float`"),
        ({"Relations": {"warmth": 1}}, "unknown field `warmth`"),
        (
            {"SubDevices": 2, "MetricLimits": {"temperature": {
                "Max": 90, "Role": "dependent", "Scope": "subdevice", "TerminateAbove": 80}}},
            "temperature.TerminateAbove: of sub-devices, only",
        ),
    ],
)  # fmt: skip
def test_a_device_type_that_is_not_allowed_is_refused_with_the_field(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(errors.InputError, match=problem):
        Fake(tmp_path, changes)
