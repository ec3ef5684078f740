"""The catalog: every model is whole, every name finds its model, and users can add and change models."""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path

import msgspec
import pytest

from simgpu import errors
from simgpu.catalog import models, placing, shapes
from simgpu.cli import main
from simgpu.kube import naming
from simgpu.topology import devices, inline

CATALOG = models.load()


def test_the_models_that_people_ask_for_are_there() -> None:
    nvidia = """k80 v100 v100-32gb t4 a10 a10g a30 a40 a100 a100-80gb a100-pcie-40gb a100-pcie-80gb rtx-a6000
        rtx-6000-ada rtx-4090 l4 l40 l40s h20 h100 h100-pcie h100-nvl h200 gh200 b200 b300 gb200 gb300"""
    others = "dg1 flex-170 max-1550 mi250x mi300x mi325x gaudi2 gaudi3"
    assert {*nvidia.split(), *others.split()} == set(CATALOG.models)


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.key)
def test_a_models_figures_agree_with_each_other(model: models.Model) -> None:
    power, clocks, heat = model.power_w, model.clocks_mhz, model.temperature_c
    assert 0 < power.idle <= power.default <= power.max
    assert 0 < power.min <= power.default
    assert 0 < clocks.sm_min <= clocks.sm_idle < clocks.sm_max
    assert 0 < clocks.memory_idle <= clocks.memory_max
    assert (clocks.video_idle or 0) <= (clocks.video_max or math.inf)
    assert list(clocks.memory) == sorted(clocks.memory, reverse=True)
    assert not clocks.memory or clocks.memory[0] == clocks.memory_max
    assert heat.gpu_max <= heat.slowdown < heat.shutdown
    assert 0 <= model.memory_mib.reserved < model.memory_mib.total
    assert re.fullmatch("0x[0-9A-F]{8}", model.pci.device)
    assert model.fans is None or model.fans.idle <= model.fans.highest


@pytest.mark.parametrize(
    "model", [model for model in CATALOG.models.values() if model.mig], ids=lambda model: model.key
)
def test_as_many_instances_of_a_kind_fit_on_a_card_as_its_profile_says(model: models.Model) -> None:
    assert model.mig[-1].id == 0
    for profile in model.mig:
        whole = 1 if profile.name.endswith("+me") else len(placing.starts(profile, model))
        assert profile.count == whole, profile.name
        assert placing.memory_mib(profile, model) * profile.count <= model.memory_mib.total
        assert placing.multiprocessors(profile, model) * profile.count <= (model.sm_count or 0)
        placing.place([profile] * profile.count, model, where="mig")


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.key)
def test_what_is_estimated_is_a_figure_of_the_model(model: models.Model) -> None:
    facts = msgspec.to_builtins(model)
    for path in model.estimated:
        value = functools.reduce(dict.__getitem__, path.split("."), facts)
        assert value not in (None, (), []), path
        assert model.is_estimated(path)


@pytest.mark.parametrize(
    "model", [model for model in CATALOG.models.values() if model.vendor == "nvidia"], ids=lambda model: model.key
)
def test_a_model_of_nvidias_has_what_its_tools_show(model: models.Model) -> None:
    assert model.pci.device.endswith("10DE")
    assert model.driver is not None
    assert model.cuda
    assert model.sm_count is not None
    assert model.compute_capability is not None
    assert model.ecc is not None or (model.board is not None and model.board.inforom_ecc)
    assert model.product.startswith(("NVIDIA ", "Tesla "))


def test_the_h200_is_the_measured_one() -> None:
    model = CATALOG.models["h200"]
    assert (model.product, model.memory_mib.total, model.memory_mib.reserved) == ("NVIDIA H200", 143771, 616)
    assert [(item.name, item.id, item.count, item.sm) for item in model.mig] == [
        ("1g.18gb", 19, 7, 16),
        ("1g.18gb+me", 20, 1, 16),
        ("1g.35gb", 15, 4, 26),
        ("2g.35gb", 14, 3, 32),
        ("3g.71gb", 9, 2, 60),
        ("4g.71gb", 5, 1, 64),
        ("7g.141gb", 0, 1, 132),
    ]
    assert model.estimated == ()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h200", "h200"),
        ("H200", "h200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA-A100-SXM4-40GB", "a100"),
        ("Tesla-K80", "k80"),
        ("Tesla K80", "k80"),
        ("NVIDIA T4", "t4"),
        ("mi300x", "mi300x"),
        ("A100", "a100"),
        ("NVIDIA-A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA-A100-80GB-PCIe", "a100-pcie-80gb"),
        ("NVIDIA-A10G", "a10g"),
        ("NVIDIA-RTX-6000-Ada-Generation", "rtx-6000-ada"),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090"),
        ("Tesla-V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-GH200-480GB", "gh200"),
        ("NVIDIA-B300-SXM6-AC", "b300"),
        ("Gaudi2", "gaudi2"),
        ("HL-225", "gaudi2"),
    ],
)
def test_names_find_their_model(name: str, key: str) -> None:
    found = CATALOG.find(name)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.key)
def test_every_way_to_name_gpus_takes_a_models_key_product_and_label(model: models.Model) -> None:
    for name in (model.key, model.product, naming.label_value(model.product), *model.aliases):
        assert CATALOG.find(name) is model
        assert inline.parse(f"{name}:2", CATALOG, field="gpus").gpus[1].model is model
        assert devices.model_of(devices.GpuEntry(name), CATALOG, "gpus[0]").memory_mib == model.memory_mib


def test_no_name_belongs_to_two_models() -> None:
    seen: dict[str, str] = {}
    for model in CATALOG.models.values():
        for name in {models.plain(item) for item in (model.key, model.product, *model.aliases)}:
            assert seen.setdefault(name, model.key) == model.key


def test_a_file_of_the_users_own_takes_what_it_does_not_say_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "h200-nvl.yaml").write_text("base: h200\nproduct: NVIDIA H200 NVL\npower_w: {default: 600, max: 600}\n")
    catalog = models.load([tmp_path])
    model = catalog.models["h200-nvl"]
    assert (model.power_w.default, model.power_w.min, model.memory_mib.total) == (600, 200, 143771)
    assert catalog.find("NVIDIA H200 NVL") is model
    assert catalog.find("NVIDIA H200") is catalog.models["h200"]


def test_a_file_can_change_a_built_in_model(tmp_path: Path) -> None:
    (tmp_path / "h200.yaml").write_text("base: h200\npower_w: {default: 500}\n")
    model = models.load([tmp_path / "h200.yaml"]).models["h200"]
    assert (model.power_w.default, model.power_w.max) == (500, 700)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base: h21", "base: no model 'h21'; there are: a10, a100"),
        ("base: own", "is itself based on own"),
        ("base: h200\npower_w: {default: much}", "power_w.default"),
        ("base: h200\ncolour: green", "colour"),
        ("base: h200\nclocks_mhz: {memory: [9, 8, 7, 6, 5, 4, 3, 2, 1]}", "clocks_mhz.memory: at most 8 clocks, not 9"),
        ("base: h200\nmig: [{name: small, id: 1, count: 1}]", "mig[0].name"),
        ("base: h200\npci: {device: '10DE'}", "pci.device"),
        ("base: h200\nboard: {inforom_ecc: new}", "board.inforom_ecc"),
        ("base: h200\ncompute_capability: nine", "compute_capability"),
        ("base: h200\nestimated: [power_w.colour]", "estimated: there is no field power_w.colour"),
        ("product: X", "missing required field"),
        ("base: h200\nmemory_mib: {total: -5}", "memory_mib.total"),
        ("base: h200\npower_w: {idle: .nan}", "power_w.idle"),
        ("base: h200\nclocks_mhz: {sm_step: 1.0e-300}", "clocks_mhz.sm_step"),
        ("base: h200\nlinks: {gb_per_second: .inf}", "links.gb_per_second"),
        ("base: h200\nsm_count: -1", "sm_count"),
        ("base: h200\npci: {width: 64}", "pci.width"),
        ("base: h200\nrelations: {sensors: {refresh: 1.0e-320}}", "relations.sensors.refresh"),
        ("base: h200\nrelations: {power: {leakage: 100}}", "relations.power.leakage: each watt of it warms the die"),
        ("base: h200\ndriver: 2024-13-45", "not YAML"),
        ("- 1", "must hold a mapping"),
        ("{", "not YAML"),
    ],
)
def test_a_broken_file_is_named_with_its_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(errors.InputError) as caught:
        models.load([path])
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_model_that_kept_its_bases_product_name_does_not_take_the_name_over(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("base: h200\n")
    catalog = models.load([tmp_path])
    assert catalog.find("NVIDIA H200") is catalog.models["h200"]
    assert catalog.models["mine"].product == "NVIDIA H200"


def test_shapes_are_mixes_and_nothing_else() -> None:
    known = shapes.load()
    wanted = (
        "idle idle-context matmul-bf16 matmul-fp32 memcopy h2d tiny-kernels training inference-prefill inference-decode"
    )
    assert set(wanted.split()) | {"interactive"} == set(known)
    assert not known["idle"].context
    assert known["idle-context"].demand == shapes.Demand()


def test_the_command_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["catalog"]) == 0
    listed = capsys.readouterr().out
    assert "NVIDIA H200" in listed
    assert "matmul-bf16" in listed
    assert main.run(["catalog", "show", "NVIDIA B200"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"power_w\.default +1000", shown)
    assert re.search(r"temperature_c\.slowdown +91\S* +estimate", shown)
    assert "1g.23gb" in shown
    assert main.run(["catalog", "show", "h200", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory_mib"]["total"] == 143771
    assert main.run(["catalog", "-o", "json", "show", "h200"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == "h200"
    assert main.run(["catalog", "show", "h300"]) == 2
    assert re.search("no GPU model 'h300'; did you mean .*h200.*[?]; there are: a10, a100", capsys.readouterr().err)


def test_up_refuses_a_model_that_nobody_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.run(["up", "--gpus", "h300:8"]) == 2
    assert "--gpus: no GPU model 'h300'" in capsys.readouterr().err
    monkeypatch.setenv("SIMGPU_CATALOG", "/does/not/exist")
    assert main.run(["up", "--gpus", "h200:8"]) == 2
    assert "/does/not/exist: no such file" in capsys.readouterr().err
