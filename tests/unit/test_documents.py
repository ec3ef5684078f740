"""Workload documents and identities: whatever comes in, it is read or refused, never a crash."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors
from simgpu.catalog import models
from simgpu.fakedev import identity as fakedev
from simgpu.identities import identity, render
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.topology import devices
from simgpu.workloads import client, receiving
from tests.fixtures import boxes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
STEP = st.fixed_dictionaries(
    {},
    optional={
        "Load": st.integers(-5, 120) | JSON, "Fluctuation": st.integers(-5, 120), "Seconds": st.integers(-5, 10**6),
        "Metrics": st.dictionaries(
            st.sampled_from(["memory", "usage", "hangs", "nonsense"]),
            st.fixed_dictionaries(
                {}, optional={"Func": st.sampled_from(["random", "x"]), "Min": st.floats(), "Max": st.floats()}
            ),
            max_size=3,
        ),
    },
)  # fmt: skip
DOCUMENT = st.fixed_dictionaries(
    {"Name": st.text(max_size=5) | JSON, "Profile": st.lists(STEP, max_size=3) | JSON},
    optional={"Repeat": JSON, "Devices": JSON, "Limits": JSON, "Pod": JSON, "Reference": JSON, "Protocol": JSON},
)


@given(st.one_of(JSON, DOCUMENT, st.fixed_dictionaries({"phases": JSON})))
def test_a_document_is_read_or_refused(document: Any) -> None:
    with contextlib.suppress(errors.InputError):
        assert documents.read(document).profile.activities


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_are_a_document_incomplete_or_refused(data: bytes) -> None:
    with contextlib.suppress(errors.InputError, receiving.Incomplete):
        receiving.decode(data)


@given(st.binary(max_size=100))
def test_any_answer_is_a_verdict_or_an_error(data: bytes) -> None:
    try:
        code, message = client.verdict(data)
    except errors.SimgpuError:
        return
    assert isinstance(code, int)
    assert isinstance(message, str)


def test_names_of_members_match_whatever_their_case() -> None:
    wanted = documents.read({"NAME": "a", "profile": [{"LOAD": 10, "seconds": 5}], "devices": ["x"], "limits": None})
    assert wanted.profile.name == "a"
    assert wanted.profile.activities[0].seconds == 5
    assert wanted.profile.repeat == 0


def test_fluctuation_goes_to_both_sides() -> None:
    value = (
        documents.read({"Name": "a", "Profile": [{"Load": 40, "Fluctuation": 8}]}).profile.activities[0].values["usage"]
    )
    assert (round(value.low, 9), round(value.high, 9)) == (0.32, 0.48)
    half = documents.read({"Name": "a", "Profile": [{"Load": 40, "Fluctuation": 8}]}, peak_to_peak=True)
    value = half.profile.activities[0].values["usage"]
    assert (round(value.low, 9), round(value.high, 9)) == (0.36, 0.44)


def test_a_load_profile_is_a_document_too() -> None:
    wanted = documents.read({"name": "night", "repeat": 2, "phases": [{"seconds": 5, "shape": "memcopy"}]})
    assert (wanted.profile.name, wanted.profile.repeat) == ("night", 2)
    with pytest.raises(errors.InputError, match="no shape 'sleep'"):
        documents.read({"phases": [{"seconds": 5, "shape": "sleep"}]})


def test_jobs_that_hold_more_than_a_card_has_give_way_to_one_another() -> None:
    card = devices.device("n", 0, models.load().models["h200"])
    box = Box([card], seed=1, hostname="")
    for name in ("one", "other"):
        box.admit(documents.read({"name": name, "phases": [{"seconds": 60, "shape": "training"}]}).profile, [0])
    box.step(1.0, clock=0.0)

    assert len(box.workloads()) == 2
    assert box.machine.column("memory_used").tolist() == [card.model.memory_mib.usable]


@pytest.mark.parametrize(
    ("text", "mib"),
    [("12GB", 11444), ("40GiB", 40960), (16384, 16384), ("16384", 16384), ("1TiB", 1048576), ("1.5GiB", 1536)],
)
def test_memory_is_decimal_binary_or_mebibytes(text: str | int, mib: int) -> None:
    assert devices.mebibytes(text, where="x") == mib


@pytest.mark.parametrize("text", ["", "GB", "-5", "1e9", "12 apples", "0", "99999999TB"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(errors.InputError, match="x: "):
        devices.mebibytes(text, where="x")


@given(
    JSON
    | st.fixed_dictionaries(
        {
            "gpus": st.lists(
                st.fixed_dictionaries(
                    {"type": st.text(max_size=8)}, optional={"count": st.integers(-2, 5), "memory": JSON, "mig": JSON}
                ),
                max_size=3,
            )
        }
    )
)
def test_a_box_is_built_or_refused(document: Any) -> None:
    with contextlib.suppress(errors.InputError):
        assert devices.build(errors.convert(document, devices.BoxConfig, field="box"), boxes.CATALOG, node="n")


def test_an_index_becomes_the_jobs() -> None:
    assert client.devices_by_name("cardINDEX,x", 8, {"JOB_COMPLETION_INDEX": "11"}) == ["card3", "x"]
    with pytest.raises(errors.InputError, match="JOB_COMPLETION_INDEX"):
        client.devices_by_name("cardINDEX", 8, {})


def test_devices_are_found_by_glob_and_regular_expression(tmp_path: Path) -> None:
    for name in ("card0", "card12"):
        (tmp_path / name).touch()
    assert client.devices_by_glob(f"{tmp_path}/card*", None) == ["card0", "card12"]
    assert client.devices_by_glob(f"{tmp_path}/card*", r"card(\d+)$") == ["0", "12"]
    for pattern, regex in ((f"{tmp_path}/gpu*", None), (f"{tmp_path}/card*", "("), (f"{tmp_path}/card*", "x")):
        with pytest.raises(errors.InputError):
            client.devices_by_glob(pattern, regex)


@pytest.mark.parametrize("text", ["", "10", "10:1", "a:1:1", "10:1:5xyz", "101:0:1", "10:11:1", "10:1:1,"])
def test_bad_activities_are_refused(text: str) -> None:
    with pytest.raises(errors.InputError, match="--activity"):
        client.activities(text)


def test_space_around_the_numbers_of_an_activity_does_not_matter() -> None:
    (found,) = client.activities(" 98:\x1e\x1e4 : 0\n")
    assert found == {"Load": 98, "Fluctuation": 4, "Seconds": 0}


V1 = {
    "DeviceLabelMap": {"file": "dev_file", "addr": "pci_bdf", "pciid": "pci_dev"},
    "MetricMap": {"power": "demo_power_watts", "temperature": "demo_temperature_celsius"},
    "MetricLabels": {"temperature": {"location": "gpu"}},
}


def test_an_identity_of_the_first_form_shows_the_engines_values(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(V1))
    page = render.Renderer(boxes.busy("dg1").machine, identity.load(str(path), from_json=fakedev.read)).page().decode()
    lines = page.splitlines()
    assert lines[0].startswith('demo_power_watts{dev_file="card0",pci_bdf="0000:03:00.0",pci_dev="0x4905"} ')
    assert 'location="gpu"' in lines[2]


def test_the_second_form_adds_types_units_formats_and_dimensions(tmp_path: Path) -> None:
    families = {
        "power": {"Type": "gauge", "Help": "Power in mW.", "Scale": 1000, "Format": "%d"},
        "temperature": {"Type": "gauge", "Dims": [{"location": "gpu"}, {"location": "board"}]},
    }
    path = tmp_path / "demo.json"
    path.write_text(
        json.dumps({**V1, "MetricLabels": {}, "Families": families, "PodLabels": {"pod": "kube_pod", "namespace": ""}})
    )
    page = render.Renderer(boxes.busy("dg1").machine, identity.load(str(path), from_json=fakedev.read)).page().decode()
    assert "# TYPE demo_power_watts gauge" in page
    assert 'namespace="ml"' in page
    assert 'kube_pod="train-0"' in page
    assert page.count('location="board"') == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"MetricMap": {"colour": "x"}}, "no quantity 'colour'"),
        ({"MetricLabels": {"height": {}}}, "MetricLabels.height: is not in MetricMap"),
        ({"MetricMap": {"power": "1x"}}, "is not a valid metric name"),
        ({"DeviceLabelMap": {"colour": "x"}}, "DeviceLabelMap"),
        ({"DeviceLabelMap": 5}, "DeviceLabelMap"),
        ({"PodLabels": {"kube_pod": "pod"}}, "PodLabels.kube_pod: there are: pod, namespace"),
        ({"Families": {"power": {"Scale": 1e300}}}, r"Expected `float` <= \S+ - at `Families\[...\].Scale`"),
        ({"Families": {"power": {"Dims": {name: ["x"] * 100 for name in "abc"}}}}, "Families.power.Dims: more than"),
    ],
)
def test_a_bad_identity_is_answered_with_the_place(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "demo.json"
    path.write_text(json.dumps({**V1, "MetricLabels": {}, **change}))
    with pytest.raises(errors.InputError, match=says):
        identity.load(str(path), from_json=fakedev.read)


def test_users_write_identities_in_our_form_too(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    change = "{name: gpu_clock_ghz, scale: 0.001, form: shortest}"
    path.write_text(f"base: dcgm\nabout: with a clock in GHz\nchange:\n  DCGM_FI_DEV_SM_CLOCK: {change}\n")
    page = render.Renderer(boxes.busy("h200").machine, identity.load(str(path))).page().decode()
    assert "# TYPE gpu_clock_ghz gauge" in page


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offset", ".inf"),
        ("offset", ".nan"),
        ("scale", "-.inf"),
        ("scale", "1.0e+300"),
        ("dimensions", "[{labels: {}, scale: .nan}]"),
    ],
)
def test_a_unit_that_is_no_finite_number_is_reported_with_its_field(tmp_path: Path, field: str, value: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"base: dcgm\nchange:\n  DCGM_FI_DEV_SM_CLOCK: {{{field}: {value}}}\n")
    with pytest.raises(errors.InputError, match=rf"own.yaml: Expected `float` \S+ \S+ - at `families\[0\].{field}"):
        identity.load(str(path))


def test_whole_numbers_have_all_of_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("base: dcgm\nchange:\n  DCGM_FI_DEV_SM_CLOCK: {scale: 1.0e+15, offset: 1}\n")
    page = render.Renderer(boxes.busy("h200").machine, identity.load(str(path))).page().decode()
    numbers = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith("DCGM_FI_DEV_SM_CLOCK{")]
    assert all(re.fullmatch(r"\d{18,}", number) for number in numbers), numbers
    assert numbers


@pytest.mark.parametrize(("regex", "found"), [(r"(\d)$", ["0", "1"]), (r"\d$", ["0", "1"]), (r"card(\d)?", ["0", "1"])])
def test_an_index_is_the_first_group_of_a_pattern_or_all_that_it_matches(
    tmp_path: Path, regex: str, found: list[str]
) -> None:
    for name in ("card0", "card1"):
        (tmp_path / name).touch()
    assert client.devices_by_glob(f"{tmp_path}/card*", regex) == found


@pytest.mark.parametrize("regex", ["(9)?card", "x"])
def test_a_pattern_without_an_index_in_a_name_is_reported(tmp_path: Path, regex: str) -> None:
    (tmp_path / "card0").touch()
    with pytest.raises(errors.InputError, match=r"--index-regex: .* does not match .*card0"):
        client.devices_by_glob(f"{tmp_path}/card*", regex)


def test_label_values_are_escaped() -> None:
    made = boxes.make("h200", 1)
    made.machine.hostnames[0] = 'a"b\\c\nd'
    page = render.Renderer(made.machine, identity.load("dcgm")).page().decode()
    assert r'Hostname="a\"b\\c\nd"' in page


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_back_as_they_were(value: float) -> None:
    for form in (render.go_number, render.python_number, render.shortest):
        assert float(form(value)) == value
