"""Manifests that people deploy ask for no more than they need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ROOT = {("08-agent/agent.yaml", "agent"), ("10-fakedev/daemonset.yaml", "folder")}  # each says beside it why
CAPABLE = {("10-fakedev/daemonset.yaml", "folder"): ["CHOWN", "FOWNER"]}


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The specs of pods that run our program."""
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        if "{{" in path.read_text():
            continue  # a template, which is YAML only when it is rendered
        for document in yaml.safe_load_all(path.read_text()):
            spec = (document or {}).get("spec", {}).get("template", {}).get("spec", {})
            containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
            if any(item["image"].startswith("simgpu") for item in containers):
                yield str(path.relative_to(EXAMPLES)), spec


PODS = list(pods())


def test_all_manifests_of_ours_are_looked_at() -> None:
    assert [name for name, _ in PODS] == ["08-agent/agent.yaml", "10-fakedev/daemonset.yaml", "10-fakedev/job.yaml"]


@pytest.mark.parametrize(("name", "spec"), PODS, ids=[name for name, _ in PODS])
def test_a_pod_is_as_restricted_as_its_work_allows(name: str, spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec.get("hostNetwork")
    assert not spec.get("hostIPC")
    assert "serviceAccountName" in spec or spec["automountServiceAccountToken"] is False
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        context = {**spec["securityContext"], **container["securityContext"]}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) == CAPABLE.get((name, container["name"]), [])
        assert not context.get("privileged")
        if (name, container["name"]) in ROOT:
            assert context["runAsUser"] == 0
        else:
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] > 0
        assert container["resources"]["limits"]["memory"]
        assert "latest" not in container["image"]
        assert ":" in container["image"], "without a tag, the node fetches it anew at every start"


FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.name[0].isdigit())


def test_examples_are_numbered_and_listed_with_their_tests() -> None:
    rows = re.findall(r"^\| (\d+) \| \[(.*?)\].*\| `(.*?)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == [int(name[:2]) for _, name, _ in rows]
    assert [int(number) for number, _, _ in rows] == list(range(1, len(FOLDERS) + 1))
    assert [name for _, name, _ in rows] == [folder.name for folder in FOLDERS]
    assert [f"Run by `{test}`.\n" for _, _, test in rows] == [
        (folder / "README.md").read_text().rpartition("\n\n")[2] for folder in FOLDERS
    ]
    others = {path.name for path in EXAMPLES.iterdir()} - {folder.name for folder in FOLDERS} - {"__pycache__"}
    assert others == {"README.md", "perf-tests", "run-e2e.sh", "fakedev"}
    assert (EXAMPLES / "fakedev").resolve().name == "10-fakedev"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_an_examples_readme_names_its_files_and_a_test_that_runs_them(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    (commands,) = re.findall(r"```shell\n(.*?)```", readme, re.DOTALL)
    for path in re.findall(r"examples/\S+", commands):
        assert (EXAMPLES.parent / path).is_file(), path
    (test,) = re.findall(r"^Run by `(.*)`\.$", readme, re.MULTILINE)
    run = (EXAMPLES.parent / test).read_text()
    run += "".join(page.read_text() for page in (EXAMPLES.parent / "docs" / "guides").glob("*.md"))
    run += (EXAMPLES.parent / "README.md").read_text()  # whose commands tests run
    assert folder.name in run
    for name in {path.name for path in folder.iterdir()} - {"README.md", "__pycache__"}:
        assert f"`{name}`" in readme
        # Files that are named by another file of the example are used with it.
        beside = "".join(path.read_text() for path in folder.glob("*.yaml"))
        assert name in run or name in beside, f"{name} is not in {test}"
