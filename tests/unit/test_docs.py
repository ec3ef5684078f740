"""Documentation is true: generated pages are current, links lead somewhere, commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import architecture, generate
from simgpu.catalog import models
from simgpu.cli import main
from simgpu.topology import devices, reading

ROOT = Path(__file__).parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def test_the_command_reference_is_current() -> None:
    assert generate.CLI_PAGE.read_text() == generate.cli_reference(), "run 'make docs'"


def test_the_list_of_models_is_current() -> None:
    assert generate.MODELS_PAGE.read_text() == generate.models_reference(), "run 'make docs'"


def test_the_list_of_names_is_current() -> None:
    assert generate.KEYS_PAGE.read_text() == generate.keys_reference(), "run 'make docs'"


def test_the_keys_of_a_topology_are_current() -> None:
    assert generate.TOPOLOGY_PAGE.read_text() == generate.topology_reference(), "run 'make docs'"


def test_the_list_of_series_is_current() -> None:
    assert generate.METRICS_PAGE.read_text() == generate.metrics_reference(), "run 'make docs'"


def test_the_description_of_the_api_is_current() -> None:
    assert generate.API_PAGE.read_text() == generate.api_reference(), "run 'make docs'"
    assert generate.OPENAPI_FILE.read_text() == generate.openapi_document(), "run 'make docs'"


RUN = {
    "console": ("docs/guides", "README.md"),
    "shell": ("install.md", "real-nodes.md", "troubleshooting.md"),
    "bash": ("real-nodes.md",),
}


@pytest.mark.parametrize("page", [ROOT / "README.md", *ROOT.glob("docs/**/*.md")], ids=lambda page: page.stem)
def test_every_block_of_commands_is_run_by_a_test_or_says_that_it_is_not(page: Path) -> None:
    """Those for a console by tests of the local cluster, those for a shell by tests of the real node."""
    for kind in re.findall(r"^```(console|shell|bash|sh)$", page.read_text(), re.MULTILINE):
        assert any(place in str(page) for place in RUN.get(kind, ())), f"{page}: {kind} without 'not-tested'"


def test_the_picture_of_the_architecture_is_current() -> None:
    drawn = architecture.draw(architecture.parse(architecture.SOURCE.read_text()))
    assert architecture.PICTURE.read_text() == drawn, "run 'make docs'"


def test_the_picture_of_the_architecture_names_commands_that_exist() -> None:
    drawing = architecture.parse(architecture.SOURCE.read_text())
    assert {box.title for box in drawing.processes} <= {f"simgpu {name}" for name in main.root.commands}
    named = {name for lane in drawing.lanes for box in lane.boxes for name in box.processes}
    assert named == {box.name for box in drawing.processes}


def test_the_picture_of_the_architecture_names_packages_that_exist() -> None:
    drawing = architecture.parse(architecture.SOURCE.read_text())
    packages = {path.name for path in (ROOT / "src" / "simgpu").iterdir()} | {"native"}
    outer = [box for lane in drawing.lanes if not lane.framed for box in lane.boxes]
    assert {name for box in outer for name in box.place.split(", ")} <= packages
    assert {box.title for lane in drawing.lanes if lane.framed for box in lane.boxes} <= packages


def test_a_text_that_is_too_long_for_its_box_is_named() -> None:
    text = architecture.SOURCE.read_text().replace("which GPU models there are", "which models of GPUs there are in it")
    with pytest.raises(ValueError, match="which models of GPUs"):
        architecture.draw(architecture.parse(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_the_pages_exist(page: Path) -> None:
    text = page.read_text()
    known = {*main.root.commands}
    for command in re.findall(r"^(?:\$ )?(?:\.venv/bin/)?simgpu ([a-z]+)", text, re.MULTILINE):
        assert command in known, f"{page}: simgpu {command}"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^(?:\$ )?make ([a-z]+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile, f"{page}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_the_pages_exist(page: Path) -> None:
    for path in re.findall(r"`((?:\w+/)+[\w-]+\.(?:py|ya?ml|txt))`", page.read_text()):
        assert (ROOT / path).exists() or (ROOT / "src" / "simgpu" / path).exists(), f"{page}: {path}"


GUIDE = ROOT / "docs" / "guides" / "fleet.md"


def test_topologies_in_the_guide_have_no_mistakes() -> None:
    shown = re.findall(r"^```yaml\n(node.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    found = [reading.parse(text, models.load()) for text in shown]
    assert [topology.unknown for topology in found] == [(), ()]
    metrics = found[1].nodes["node-a"].gpus[1].metrics
    assert metrics == devices.StaticMetrics(40.0, 2000.0, namespace="team", pod="job", container="main")


TRUST = ROOT / "docs" / "concepts" / "trust.md"


def test_every_test_that_the_page_on_trust_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TRUST.read_text())
    assert len(named) > 40
    for path, test in named:
        defined = re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE)
        assert defined, f"{TRUST}: {path} has no {test}"
