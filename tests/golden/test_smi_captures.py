"""What nvidia-smi prints of a card, imported as a model, is what it prints of a card of that model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from simgpu.catalog import captures, importing, models
from tests.fixtures import pages, smi

RECORDINGS: Final = Path(__file__).parent / "smi"
CATALOG: Final = models.load()
NVIDIA: Final = sorted(key for key, model in CATALOG.models.items() if model.vendor == "nvidia")

# What a card is, whatever it does; whether it has MIG profiles is not to be seen where the catalog has no such card.
STATIC: Final = re.compile(
    r"product_|addressing_mode|c2c_mode|vbios|board_part|gpu_part|inforom_version/|pci/pci_(device_id|sub|base|gpu_link)"
    r"|fan_speed|(fb|bar1)_memory_usage/(total|reserved)|ecc_mode/|remapped_rows/row_remapper_histogram"
    r"|temperature/.*_threshold|gpu_power_readings/.*_power_limit|max_clocks/"
)


def xml(root: Path, key: str, catalog: models.Catalog) -> str:
    """`nvidia-smi -q -x` of an idle card, but for the time."""
    pages.write(root, pages.cards(key, catalog=catalog))
    return re.sub("<timestamp>.*</timestamp>", "", smi.say(root, "-q", "-x"))


def import_text(text: str, catalog: models.Catalog) -> models.Catalog:
    """A catalog with the model `mine`, from the first card of a capture."""
    capture = captures.parse(text.encode())
    made = importing.import_gpu(capture.gpus[0], capture.driver, catalog)
    mine = models.check("mine", yaml.safe_load(made.yaml()), where=Path("mine.yaml"))
    return models.Catalog({mine.key: mine})


@pytest.mark.parametrize("key", NVIDIA)
def test_a_card_of_the_catalog_comes_back_as_it_was(key: str, tmp_path: Path) -> None:
    before = xml(tmp_path / "before", key, CATALOG)
    after = xml(tmp_path / "after", "mine", import_text(before, CATALOG))
    assert _without_identity(after) == _without_identity(before)


@pytest.mark.parametrize("key", ["rtx-4090", "rtx-a6000", "a40", "a100", "l4", "h100-nvl", "gh200", "b300"])
def test_a_card_that_the_catalog_does_not_have_comes_back_with_all_that_it_showed(key: str, tmp_path: Path) -> None:
    others = models.Catalog({name: model for name, model in CATALOG.models.items() if name != key})
    before = xml(tmp_path / "before", key, CATALOG)
    after = xml(tmp_path / "after", "mine", import_text(before, others))
    assert _static(after) == _static(before)
    assert len(_static(after)) > 30


@pytest.mark.parametrize("recording", ["idle-smi-qx", "load-smi-qx", "mig-qx", "migload-qx"])
def test_a_recorded_h200_comes_back_with_all_that_it_was(recording: str, tmp_path: Path) -> None:
    text = (RECORDINGS / f"{recording}.txt").read_text().split("[rc=0]\n")[1]
    imported = import_text(text, CATALOG)
    assert _static(xml(tmp_path, "mine", imported)).items() >= _static(text).items()
    assert _clocks(smi.say(tmp_path, "-q", "-x")) == _clocks(text)
    assert imported.models["mine"].estimated == ()
    assert imported.models["mine"].power_w.idle == (77.41 if recording == "idle-smi-qx" else 78.04)


def _without_identity(text: str) -> str:
    return re.sub(r"<(serial|uuid|pdi)>.*</\1>", "", text)


def _static(text: str) -> dict[str, str]:
    texts = captures.parse(text.encode()).gpus[0].texts
    return {path: value for path, value in texts.items() if STATIC.match(path) and value != "N/A"}


def _clocks(text: str) -> list[tuple[float, list[float]]]:
    return [(clocks.memory, clocks.graphics) for clocks in captures.parse(text.encode()).gpus[0].clocks]
