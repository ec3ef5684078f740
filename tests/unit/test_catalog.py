"""The catalog: every model is whole, every name finds its model, and users can add and change models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simgpu import errors
from simgpu.catalog import models, shapes
from simgpu.cli import main

CATALOG = models.load()


def test_the_models_that_people_ask_for_are_there() -> None:
    wanted = "a100 a100-80gb a30 h100 h200 b200 gb200 gb300 l40s t4 v100 k80 dg1 flex-170 max-1550 mi300x gaudi3"
    assert set(wanted.split()) <= set(CATALOG.models)


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.key)
def test_a_models_figures_agree_with_each_other(model: models.Model) -> None:
    power, clocks, heat = model.power_w, model.clocks_mhz, model.temperature_c
    assert 0 < power.idle <= power.default <= power.max
    assert 0 < power.min <= power.max
    assert 0 < clocks.sm_min <= clocks.sm_idle <= clocks.sm_max
    assert 0 < clocks.memory_idle <= clocks.memory_max
    assert heat.gpu_max <= heat.slowdown < heat.shutdown
    assert 0 <= model.memory_mib.reserved < model.memory_mib.total
    assert re.fullmatch("0x[0-9A-F]{8}", model.pci.device)
    for profile in model.mig:
        assert profile.count >= 1
        assert (profile.memory_mib or 0) * profile.count <= model.memory_mib.total
        assert (profile.sm or 0) <= (model.sm_count or 0)


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
    ],
)
def test_names_find_their_model(name: str, key: str) -> None:
    found = CATALOG.find(name)
    assert found is not None
    assert found.key == key


def test_no_name_belongs_to_two_models() -> None:
    seen: dict[str, str] = {}
    for model in CATALOG.models.values():
        for name in {models._plain(item) for item in (model.key, model.product, *model.aliases)}:
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
        ("base: h20", "base: no model 'h20'; there are: a100"),
        ("base: own", "is based on own in turn"),
        ("base: h200\npower_w: {default: much}", "power_w.default"),
        ("base: h200\ncolour: green", "colour"),
        ("base: h200\nestimated: [power_w.colour]", "estimated: there is no field power_w.colour"),
        ("product: X", "missing required field"),
        ("base: h200\nmemory_mib: {total: -5}", "memory_mib.total"),
        ("base: h200\npower_w: {idle: .nan}", "power_w.idle"),
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
    assert "no GPU model 'h300'; there are: a100" in capsys.readouterr().err


def test_up_refuses_a_model_that_nobody_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.run(["up", "--gpus", "h300:8"]) == 2
    assert "--gpus: no GPU model 'h300'" in capsys.readouterr().err
    monkeypatch.setenv("SIMGPU_CATALOG", "/does/not/exist")
    assert main.run(["up", "--gpus", "h200:8"]) == 2
    assert "/does/not/exist: no such file" in capsys.readouterr().err
