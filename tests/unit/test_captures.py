"""Captures of nvidia-smi become models; whatever else is given for one is rejected with its place."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simgpu import errors
from simgpu.catalog import captures, importing, models
from simgpu.cli import main

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "13-capture" / "capture.xml"
CATALOG = models.load()


def capture(*gpus: str, head: str = "") -> bytes:
    cards = "".join(f"<gpu>{gpu}</gpu>" for gpu in gpus)
    return f"{head}<nvidia_smi_log><driver_version>570.1.2</driver_version>{cards}</nvidia_smi_log>".encode()


def card(product: str = "X", texts: Mapping[str, str] = {}) -> str:
    """A card's elements: its product's name, and texts by path."""
    return "".join(_element(path.split("/"), text) for path, text in {"product_name": product, **texts}.items())


def _element(names: list[str], text: str) -> str:
    return "".join(f"<{name}>" for name in names) + text + "".join(f"</{name}>" for name in reversed(names))


def imported(content: bytes, gpu: int = 0, base: str | None = None) -> importing.Imported:
    found = captures.parse(content)
    return importing.import_gpu(found.gpus[gpu], found.driver, CATALOG, base=CATALOG.models[base] if base else None)


def model(content: bytes) -> models.Model:
    made = imported(content)
    return models.check("mine", yaml.safe_load(made.yaml()), where=Path("mine.yaml"))


def test_the_example_becomes_the_card_that_it_was_taken_from() -> None:
    found = model(EXAMPLE.read_bytes())
    assert (found.product, found.brand, found.driver, found.cuda) == (
        "NVIDIA RTX A5000",
        "NVIDIA RTX",
        "590.44.01",
        "13.1",
    )
    assert (found.memory_mib, found.ecc) == (models.MemorySize(24564, 450, 256), "disabled")
    assert found.power_w == models.PowerLimits(230, 100, 230, 6.41)
    clocks = found.clocks_mhz
    assert (clocks.sm_min, clocks.sm_idle, clocks.sm_max, clocks.sm_step) == (210, 210, 2100, 15)
    assert (clocks.memory, clocks.memory_idle, clocks.video_idle, clocks.video_max) == ((8001, 405), 405, 555, 1950)
    assert found.temperature_c == models.Temperatures(98, 95, 90, None, "absolute")
    assert found.pci == models.Pci("0x223110DE", "0x147E10DE", "0x0300", 4, 16)
    assert (found.fans and found.fans.idle, found.row_remap_banks, found.mig) == (30, 192, ())


def test_what_a_capture_does_not_say_is_the_closest_models_and_marked() -> None:
    made = imported(EXAMPLE.read_bytes())
    assert (made.key, made.base.key) == ("rtx-a5000", "rtx-a6000")
    assert made.why == "the closest in memory and power of architecture Ampere"
    found = model(EXAMPLE.read_bytes())
    assert made.missing["sm_count"] == found.sm_count == CATALOG.models["rtx-a6000"].sm_count
    assert {"sm_count", "cores", "memory_gb_per_second", "compute_capability"} <= set(made.missing)
    for path in made.missing:
        assert found.is_estimated(path)
    for path in ("power_w.idle", "memory_mib.total", "clocks_mhz.memory", "fans.idle", "pci.class_code"):
        assert not found.is_estimated(path)


@pytest.mark.parametrize(
    ("gpu", "base"),
    [
        (card("NVIDIA H200"), "h200"),
        (card("A100-SXM4-40GB"), "a100"),
        (card("NVIDIA A10-like", {"pci/pci_device_id": "223610DE"}), "a10"),
        (
            card(
                texts={
                    "product_architecture": "Hopper",
                    "fb_memory_usage/total": "96000 MiB",
                    "power_readings/default_power_limit": "390.00 W",
                }
            ),
            "h100-nvl",
        ),
        (card(texts={"product_architecture": "Ada Lovelace", "product_brand": "GeForce"}), "rtx-4090"),
        (card(texts={"product_architecture": "Rubin", "fb_memory_usage/total": "284000 MiB"}), "gb300"),
    ],
)
def test_the_base_is_the_same_product_or_the_closest(gpu: str, base: str) -> None:
    assert imported(capture(gpu)).base.key == base


def test_a_base_can_be_chosen() -> None:
    made = imported(EXAMPLE.read_bytes(), base="l4")
    assert (made.document["base"], made.why) == ("l4", "as requested")


def test_what_a_card_lacks_is_not_taken_from_its_base() -> None:
    nothing = {
        "fan_speed": "N/A",
        "c2c_mode": "[N/A]",
        "bar1_memory_usage/total": "N/A",
        "ecc_mode/current_ecc": "[Not Supported]",
        "remapped_rows": "N/A",
    }
    found = model(capture(card("NVIDIA RTX A6000", nothing)))
    assert (found.fans, found.memory_mib.bar1, found.row_remap_banks) == (None, None, None)
    assert (found.ecc, found.c2c_mode) == ("none", "N/A")


def test_what_nvidia_smi_could_not_find_out_is_taken_from_the_base() -> None:
    unknown = {"fan_speed": "[Unknown Error]", "bar1_memory_usage/total": "Insufficient Permissions"}
    found = model(capture(card("NVIDIA A40", unknown)))
    assert (found.fans, found.memory_mib) == (CATALOG.models["a40"].fans, CATALOG.models["a40"].memory_mib)


def test_of_a_card_at_work_nothing_is_taken_that_only_rest_shows() -> None:
    text = EXAMPLE.read_text().replace("<gpu_util>0 %", "<gpu_util>97 %").replace("<gpu_temp>13 C", "<gpu_temp>80 C")
    busy = re.sub(r"(<average_power_draw>)6.41 W|(<fan_speed>)30 %", r"\g<1>\g<2>", text)
    busy = busy.replace("<average_power_draw>", "<average_power_draw>229.00 W").replace(
        "<fan_speed>", "<fan_speed>75 %"
    )
    found = model(busy.encode())
    assert found.power_w.idle == pytest.approx(24 * 230 / 300)
    assert (found.clocks_mhz.sm_idle, found.clocks_mhz.memory_idle) == (210, 405)
    assert (found.fans and found.fans.idle) == 30
    for path in ("power_w.idle", "clocks_mhz.sm_idle", "clocks_mhz.memory_idle", "fans.idle"):
        assert found.is_estimated(path)


def heat(**degrees: str) -> models.Temperatures:
    texts = {f"temperature/gpu_temp{name}": f"{value} C" for name, value in degrees.items()}
    return model(capture(card(texts={"product_architecture": "Ada Lovelace", **texts}))).temperature_c


def test_limits_that_are_distances_stay_distances() -> None:
    found = heat(_max_tlimit_threshold="-7", _slow_tlimit_threshold="-2", _tlimit="61", **{"": "30"})
    assert (found.gpu_max, found.slowdown, found.shutdown, found.shown) == (91, 93, 98, "margin")


def test_a_highest_temperature_above_that_of_slowing_down_is_brought_below_it() -> None:
    found = heat(_max_threshold="98", _slow_threshold="95", _max_gpu_threshold="105")
    assert (found.gpu_max, found.slowdown, found.shutdown, found.shown) == (95, 95, 98, "absolute")


def test_an_old_drivers_capture_is_read_too() -> None:
    old = {
        "product_brand": "Tesla",
        "clocks_throttle_reasons/clocks_throttle_reason_gpu_idle": "Active",
        "power_readings/power_draw": "39.78 W",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "3",
    }
    head = '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v10.dtd">'
    found = model(capture(card("Tesla V100-SXM2-32GB", old), head=head))
    assert (found.brand, found.power_w.idle, found.pci.generation) == ("Tesla", 39.78, 3)


CLOCK = "supported_clocks/supported_mem_clock/supported_graphics_clock"
ENTITY = b'<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "capture: not XML (line 1: no element found); write one with: nvidia-smi -q -x"),
        (b"==============NVSMI LOG==============", "capture: not XML"),
        (b'<?xml version="1.0" encoding="nothing"?><a/>', "capture: not XML"),
        (b"<nvidia_smi_log><gpu></nvidia_smi_log>", "capture: not XML (line 1: mismatched tag)"),
        (b"<html/>", "<html>: must be <nvidia_smi_log>"),
        (b"<nvidia_smi_log/>", "capture: there is no <gpu> in its <nvidia_smi_log>"),
        (ENTITY, "<!DOCTYPE>: must not declare anything"),
        (b'<!DOCTYPE a SYSTEM "x" []><nvidia_smi_log/>', "<!DOCTYPE>: must not declare anything"),
        (capture("<a>&b;</a>", head='<!DOCTYPE nvidia_smi_log SYSTEM "x.dtd">'), "&b;: entities are not allowed"),
        (capture("<a>" * captures.MAX_DEPTH), "<a>: lies more than 32 elements deep"),
        (capture("<a/>" * captures.MAX_ELEMENTS), "capture: has more than 400000 elements"),
        (b" " * (captures.MAX_BYTES + 1), "capture: larger than 16 MiB"),
        (capture(card()).replace(b"570.1.2", b"new"), "driver_version: 'new': must be a version such as"),
    ],
    ids=range(13),
)
def test_what_is_no_capture_is_rejected(content: bytes, says: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        model(content)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("product_name", "", "is missing"),
        ("product_name", "N/A", "is missing"),
        ("product_name", "x" * 96, "must be at most 95 printable ASCII characters"),
        ("product_name", "é", "must be at most 95 printable ASCII characters"),
        ("fan_speed", "fast", "'fast': must be a number and %, such as '5 %', or N/A"),
        ("fb_memory_usage/total", "80 GiB", "'80 GiB': must be a number and MiB"),
        ("ecc_mode/current_ecc", "Maybe", "'Maybe': must be Enabled, Disabled or N/A"),
        ("pci/pci_device_id", "10DE", "'10DE': must be eight hexadecimal digits, or N/A"),
        ("pci/pci_sub_class", "zero", "'zero': must be one or two hexadecimal digits, or N/A"),
        ("inforom_version/ecc_object", "new", "'new': must be a version such as 6.16, or N/A"),
        (CLOCK, "1 MHz", "must come after the <value> of its memory clock"),
    ],
)
def test_an_element_that_cannot_be_is_named_with_what_is_allowed(path: str, text: str, says: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        model(capture(card(texts={"pci/pci_base_class": "3", path: text})))
    assert str(caught.value).startswith(f"gpu[0]/{path}: ")
    assert says in str(caught.value)


def test_figures_that_cannot_all_be_true_are_named() -> None:
    limits = {"power_readings/default_power_limit": "700 W", "power_readings/max_power_limit": "600 W"}
    with pytest.raises(errors.InputError, match=r"mine.yaml: power_w: .* <= 700 <= 600 does not hold"):
        model(capture(card("NVIDIA H200", limits)))


def test_nothing_outside_a_capture_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.dtd").write_text('<!ENTITY b "from the file">')
    head = f'<!DOCTYPE nvidia_smi_log SYSTEM "{tmp_path}/x.dtd">'
    assert model(capture(card("NVIDIA H200"), head=head)).product == "NVIDIA H200"


TEXTS = [
    "N/A",
    "[N/A]",
    "0",
    "-1",
    "1e9",
    "999999999",
    "0 MiB",
    "5 W",
    "5 MHz",
    "0 %",
    "101 %",
    "-8 C",
    "16x",
    "Enabled",
    "é",
]
PATHS = sorted(
    set(captures.parse(EXAMPLE.read_bytes()).gpus[0].texts)
    | {"clocks_throttle_reasons/clocks_throttle_reason_gpu_idle", "power_readings/default_power_limit"}
)


def attempt(content: bytes) -> None:
    """Everything that the command does with a capture; only the user's mistakes may stop it."""
    try:
        found = captures.parse(content)
        for gpu in found.gpus[:4]:
            made = importing.import_gpu(gpu, found.driver, CATALOG)
            models.check("mine", yaml.safe_load(made.yaml()), where=Path("mine.yaml"))
    except errors.InputError:
        pass


@given(st.binary(max_size=300))
@example(b"\xff\xfe<\x00a\x00/\x00>\x00")
def test_no_bytes_end_in_anything_but_an_input_error(content: bytes) -> None:
    attempt(content)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_capture_with_any_bytes_in_it_is_read_or_rejected(data: st.DataObject) -> None:
    content = EXAMPLE.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    attempt(content[:start] + data.draw(st.binary(max_size=20)) + content[start + data.draw(st.integers(0, 40)) :])


@given(st.dictionaries(st.sampled_from(PATHS), st.sampled_from(TEXTS) | st.text("0123456789. MiBWHzC%x", max_size=12)))
@settings(max_examples=100, deadline=None)
def test_elements_with_any_text_are_read_or_rejected(texts: dict[str, str]) -> None:
    gpu = captures.CapturedGpu(
        0,
        {"product_name": "X", **texts},
        [captures.SupportedClocks(5.0, [9.0, 7.0]), captures.SupportedClocks(4.0, [])],
    )
    try:
        made = importing.import_gpu(gpu, None, CATALOG)
        models.check("mine", yaml.safe_load(made.yaml()), where=Path("mine.yaml"))
    except errors.InputError:
        pass


# The command.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMGPU_CATALOG", raising=False)
    return tmp_path


def test_the_command_writes_a_file_that_the_catalog_loads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["catalog", "import", str(EXAMPLE)]) == 0
    said = capsys.readouterr().err
    assert "rtx-a5000.yaml: NVIDIA RTX A5000, based on rtx-a6000 (the closest in memory and power" in said
    assert re.search(r"^  sm_count +84$", said, re.MULTILINE)
    assert "Marked as estimated: compute_capability, cores" in said
    assert models.load([folder]).get("NVIDIA RTX A5000", field="").key == "rtx-a5000"


def test_the_command_replaces_a_file_only_if_it_must(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.yaml").write_text("before")
    words = ["catalog", "import", str(EXAMPLE), "-o", "mine.yaml"]
    assert main.run(words) == 2
    assert "--output: mine.yaml exists; --force overwrites it" in capsys.readouterr().err
    assert (folder / "mine.yaml").read_text() == "before"
    assert main.run([*words, "--force"]) == 0
    assert models.load([folder]).models["mine"].product == "NVIDIA RTX A5000"


def test_the_command_reads_standard_input_and_prints(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(EXAMPLE.read_bytes())))
    assert main.run(["catalog", "import", "-", "-o", "-", "--key", "mine"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["base"] == "rtx-a6000"
    assert printed.err.startswith("mine: NVIDIA RTX A5000")
    assert not list(folder.iterdir())


def test_of_several_gpus_the_first_is_taken_unless_another_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "two.xml").write_bytes(capture(card("NVIDIA L4"), card("NVIDIA L40")))
    assert main.run(["catalog", "import", "two.xml"]) == 0
    assert (
        "It is the first of 2 GPUs, among them NVIDIA L40; choose another with --gpu INDEX." in capsys.readouterr().err
    )
    assert main.run(["catalog", "import", "two.xml", "--gpu", "1"]) == 0
    assert "the first of" not in capsys.readouterr().err
    assert {path.name for path in folder.glob("*.yaml")} == {"l4.yaml", "l40.yaml"}
    assert main.run(["catalog", "import", "two.xml", "--gpu", "2"]) == 2
    assert "--gpu: 2: the capture has 2 GPUs, from 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing.xml"], "CAPTURE: nothing.xml: No such file"),
        (["."], "CAPTURE: .: Is a directory"),
        ([str(EXAMPLE), "-o", "mine.json"], "--output: mine.json: must end in .yaml or .yml"),
        ([str(EXAMPLE), "-o", "mine.yaml", "--key", "other"], "the file name is the key, so it must be other.yaml"),
        ([str(EXAMPLE), "-o", "no/mine.yaml"], "--output: no/mine.yaml: No such file"),
        ([str(EXAMPLE), "--key", "My Card"], "lower-case letters, digits"),
        ([str(EXAMPLE), "--base", "h300"], "--base: no GPU model 'h300'"),
    ],
)
def test_a_mistake_in_the_commands_options_is_named(
    words: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["catalog", "import", *words]) == 2
    assert says in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_a_key_given_names_the_file(folder: Path) -> None:
    assert main.run(["catalog", "import", str(EXAMPLE), "--key", "desk-3"]) == 0
    body: Any = yaml.safe_load((folder / "desk-3.yaml").read_text())
    assert body["product"] == "NVIDIA RTX A5000"
