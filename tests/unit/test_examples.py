"""Manifests that people deploy ask for no more than they need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ROOT = {("agent.yaml", "agent"), ("fakedev/daemonset.yaml", "folder")}  # each says beside it why
CAPABLE = {("fakedev/daemonset.yaml", "folder"): ["CHOWN", "FOWNER"]}


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
    assert [name for name, _ in PODS] == ["agent.yaml", "fakedev/daemonset.yaml", "fakedev/job.yaml"]


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


def test_every_example_is_listed_with_a_test_that_names_it() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|.*\| `(.*?)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    listed = {name: test for _, names, test in rows for name in re.findall(r"`(.*?)`", names)}
    folders = tuple(name for name in listed if name.endswith("/"))
    found = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.is_file()}
    single = {name for name in found if "__pycache__" not in name and not name.startswith(folders)}
    assert single == {*listed, "README.md"} - {*folders}
    pages = "".join(page.read_text() for page in (EXAMPLES.parent / "docs" / "guides").glob("*.md"))
    pages += (EXAMPLES.parent / "README.md").read_text()  # whose commands tests run
    for name, test in listed.items():
        text = (EXAMPLES.parent / test).read_text()
        assert Path(name).name in text or f"examples/{name}" in pages, f"{name} is not in {test}"
