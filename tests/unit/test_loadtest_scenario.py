"""Scenario files: what loads, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpu.catalog import models
from simgpu.loadtest.running import runner
from simgpu.loadtest.scenario import durations, files, kube_syntax, loading, variables
from simgpu.loadtest.scenario.fields import ScenarioError
from simgpu.loadtest.scenario.model import Scenario
from tests.fixtures.scenarios import GOOD, POD


def load(folder: Path, text: str, **known: Any) -> Scenario:
    (folder / "config.yaml").write_text(text)
    if not (folder / "pod.yaml").exists():
        (folder / "pod.yaml").write_text(POD)
    return loading.load(folder / "config.yaml", known, runner.METHODS)


def mistakes(folder: Path, text: str, **known: Any) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load(folder, text, **known)
    assert caught.value.exit_code == 2
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_keys_are_read_in_any_case_and_both_spellings_of_the_dependency_mean_the_same(tmp_path: Path) -> None:
    short = load(tmp_path, GOOD)
    long = GOOD.replace("dependencyConfigs:\n- name: kwok-dra", "Dependencies:\n- name: x\n  Method: DRAKWOKDriver")
    assert [call.method for call in short.dependencies] == ["DRAKWOKDriver"]
    assert load(tmp_path, long).dependencies[0].params == short.dependencies[0].params
    assert short.steps[0].phases[0].replicas == 3
    assert short.steps[0].phases[0].objects[0].fill == {"Mode": "x"}


@pytest.mark.parametrize("scenario", files.built_in(), ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("nodes", [1, 3, 500])
def test_built_in_scenarios_have_no_mistakes(scenario: files.BuiltIn, nodes: int) -> None:
    known = variables.gather([], {}, nodes)
    assert loading.load(scenario.file, known, runner.METHODS).steps


def test_all_mistakes_are_reported_at_once_with_their_fields(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
name: bad
colour: red
chaosMonkey: {nodeFailure: {failureRate: 1}}
namespace: {number: 1, deleteStaleNamespaces: true}
dependencies:
- {name: a, method: Nope}
- {name: b, method: DRAKWOKDriver, params: {nodes: -1, gpus: 3, timeout: soon}}
tuningSets:
- {name: t, qpsLoad: {qps: 0}}
- {name: u, qpsLoad: {qps: 1}, poissonLoad: {expectedActionsPerSecond: 1}}
steps:
- {name: neither}
- name: phases
  phases:
  - {namespaceRange: {min: 1, max: 9}, replicasPerNamespace: -2, tuningSet: gone, objectBundle: [
      {basename: Bad_Name, objectTemplatePath: missing.yaml}]}
- measurements:
  - {identifier: x, method: NoSuchThing}
  - {identifier: y, method: PodStartupLatency, params: {action: dance, threshold: 5}}
  - {identifier: z, method: WaitForFinishedJobs, params: {}}
""",
    )
    paths = {line.split(":")[0] for line in found}
    assert paths >= {
        "colour", "chaosMonkey", "namespace.deleteStaleNamespaces", "dependencies[0].method",
        "dependencies[1].params.nodes", "dependencies[1].params.gpus", "dependencies[1].params.timeout",
        "tuningSets[0].qpsLoad.qps", "tuningSets[1]", "steps[0]", "steps[1].phases[0].replicasPerNamespace",
        "steps[1].phases[0].tuningSet", "steps[1].phases[0].objectBundle[0].basename",
        "steps[1].phases[0].objectBundle[0].objectTemplatePath", "steps[1].phases[0].namespaceRange.max",
        "steps[2].measurements[0].method", "steps[2].measurements[1].params.action",
        "steps[2].measurements[1].params.threshold", "steps[2].measurements[2].params.action",
    }  # fmt: skip


def measured(*calls: str) -> str:
    """A scenario with a step for each measurement."""
    return "name: m\nsteps:\n" + "".join(f"- measurements: [{{{call}}}]\n" for call in calls)


def test_what_only_shows_in_the_middle_of_a_run_is_reported_before_it(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
name: bad
dependencies:
- {name: a, method: DRAKWOKDriver, params: {model: h2oo}}
- {name: b, method: DRAKWOKDriver, params: {model: h200, gpusPerNode: 0, extendedResourceName: Not A Name}}
- {name: c, method: DRATestDriver, params: {ExtendedResourceName: kubernetes.io/gpu}}
steps:
- measurements:
  - {identifier: x, method: PodStartupLatency, params: {action: start, labelSelector: "job-type ==== (bad"}}
  - {identifier: y, method: WaitForFinishedJobs, params: {action: start, fieldSelector: bad}}
  - {identifier: z, method: WaitForControlledPodsRunning, params: {action: start, kind: ""}}
- measurements:
  - {identifier: other, method: PodStartupLatency, params: {action: gather}}
  - method: WaitForFinishedJobs
    params: {action: gather}
    instances: [{identifier: x}, {identifier: y}]
""",
        CL2_JOB_RUNNING_TIME_MS="10s",
    )
    problems = dict(line.split(": ", 1) for line in found)
    assert set(problems) == {
        "CL2_JOB_RUNNING_TIME_MS", "dependencies[0].params.model", "dependencies[1].params.gpusPerNode",
        "dependencies[1].params.extendedResourceName", "dependencies[2].params.ExtendedResourceName",
        "steps[0].measurements[0].params.labelSelector", "steps[0].measurements[1].params.fieldSelector",
        "steps[0].measurements[2].params.apiVersion", "steps[0].measurements[2].params.kind",
        "steps[1].measurements[0].identifier", "steps[1].measurements[1].instances[0].identifier",
    }  # fmt: skip
    assert problems["CL2_JOB_RUNNING_TIME_MS"].startswith("'10s': must be milliseconds")
    assert "no GPU model 'h2oo'" in problems["dependencies[0].params.model"]
    assert problems["steps[1].measurements[0].identifier"] == (
        "'other': is gathered, but PodStartupLatency was not started with it before"
    )


def test_running_times_matter_only_where_there_are_simulated_nodes(tmp_path: Path) -> None:
    assert load(tmp_path, measured("identifier: x, method: SchedulingMetrics, params: {action: start}"),
                CL2_JOB_RUNNING_TIME_MS="10s").steps  # fmt: skip


def test_a_measurement_can_be_started_again_and_gathered_more_than_once(tmp_path: Path) -> None:
    name = "identifier: x, method: SchedulingMetrics, params: {action: %s}"
    assert load(tmp_path, measured(*(name % action for action in ("reset", "gather", "start", "gather")))).steps


def test_models_of_a_catalog_of_your_own_are_known(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: h200\nproduct: Mine\n")
    (tmp_path / "config.yaml").write_text(GOOD.replace("gpusPerNode: 16", "model: mine"))
    (tmp_path / "pod.yaml").write_text(POD)
    own = runner.methods(models.load([tmp_path / "mine.yaml"]))
    assert loading.load(tmp_path / "config.yaml", {}, own).dependencies
    with pytest.raises(ScenarioError, match="--catalog FILE adds models"):
        loading.load(tmp_path / "config.yaml", {}, runner.METHODS)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "!a", "a=b", "a==b", "a != b", "a=", "a in (b, c),d notin (e)", "x.io/a>5", "in in (in)",
     "job-type = short-lived", "a in ()", " a = b , ! c "],
)  # fmt: skip
def test_label_selectors_of_kubernetes_are_accepted(text: str) -> None:
    assert kube_syntax.label_selector(text) == text


@pytest.mark.parametrize(
    "text", ["a ==== b", "a b", ",", "a,", "a in b", "a in (b", "a > x", "-a", "a = b c", "A_/a", "a=" + "x" * 64, "=b"]
)
def test_what_the_server_would_not_take_for_a_label_selector_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a label selector|is not the|needs a whole"):
        kube_syntax.label_selector(text)


@pytest.mark.parametrize("text", ["", "metadata.name=a", "a==b,c!=d", "metadata.name=a\\,b", "a="])
def test_field_selectors_of_kubernetes_are_accepted(text: str) -> None:
    assert kube_syntax.field_selector(text) == text


@pytest.mark.parametrize("text", ["bad", "a=b,c", "=b", "a=b\\\\,c"])
def test_what_the_server_would_not_take_for_a_field_selector_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be a field selector"):
        kube_syntax.field_selector(text)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("apiVersion: v1\nkind: {{.Kind}}\n", "without variables"),
        ("{apiVersion: v1, kind: {{if true}}Pod{{else}}Job{{end}}, metadata: {name: {{.Name}}}}", "without variables"),
        ("apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\n", "one of each kind"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {{.Name\n", "unclosed action"),
        ("apiVersion: v1\nkind: Pod\nspec: [{{.Index}}\n", "not YAML"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_reported_before_anything_runs(
    tmp_path: Path, template: str, problem: str
) -> None:
    (tmp_path / "pod.yaml").write_text(template)
    [line] = mistakes(tmp_path, GOOD)
    assert line.startswith("steps[0].phases[0].objectBundle[0].objectTemplatePath: pod.yaml")
    assert problem in line


@pytest.mark.parametrize(
    "template",
    [
        '{apiVersion: v1, kind: Pod, metadata: {name: "{{.Name}}"}}',
        "{apiVersion: v1, metadata: {name: {{.Name}}}, kind: Pod, spec: {index: {{.Index}}}}",
        '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{{.Name}}"}}',
    ],
)
def test_a_template_may_be_one_line_of_flow_style(tmp_path: Path, template: str) -> None:
    (tmp_path / "pod.yaml").write_text(template)
    load(tmp_path, GOOD)
    assert loading.identities(tmp_path / "pod.yaml") == [("v1", "Pod")]


def test_modules_are_replaced_by_their_steps_with_their_parameters(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(
        "steps:\n- name: wave {{.n}} of {{.Nodes}}\n  measurements:\n"
        "  - {identifier: a, method: WaitForFinishedJobs, params: {action: start}}\n"
    )
    text = "name: m\nsteps:\n{{range Loop 3}}- module: {path: /inner.yaml, params: {n: {{.}}}}\n{{end}}"
    assert [step.name for step in load(tmp_path, text, Nodes=7).steps] == [f"wave {n} of 7" for n in range(3)]


def test_a_module_that_contains_itself_is_reported(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").write_text("steps:\n- module: {path: loop.yaml}\n")
    found = mistakes(tmp_path, "name: m\nsteps:\n- module: {path: loop.yaml}\n")
    assert any("nested more than" in line for line in found)


def test_the_environment_is_typed_and_must_agree_with_override_files(tmp_path: Path) -> None:
    environ = {"CL2_N": "12", "CL2_F": "1.5", "CL2_B": "true", "CL2_S": "x y", "CL2_NAN": "nan", "OTHER": "1"}
    found = variables.gather([], environ, 4)
    expected = {"CL2_N": 12, "CL2_F": 1.5, "CL2_B": True, "CL2_S": "x y", "CL2_NAN": "nan", "Nodes": 4}
    assert {key: found[key] for key in expected} == expected
    assert "OTHER" not in found
    (tmp_path / "a.yaml").write_text("CL2_N: 12\nother: [1]\n")
    (tmp_path / "b.yaml").write_text("other: [2]\n")
    assert variables.gather([tmp_path / "a.yaml", tmp_path / "b.yaml"], environ, None)["other"] == [2]
    with pytest.raises(ScenarioError, match="CL2_N: is 12 in an override file and 13 outside"):
        variables.gather([tmp_path / "a.yaml"], {"CL2_N": "13"}, None)


def test_a_variable_cannot_add_structure_to_a_scenario(tmp_path: Path) -> None:
    text = GOOD.replace("name: small", "name: {{.CL2_NAME}}")
    assert load(tmp_path, text, CL2_NAME="two words").name == "two words"
    [line] = mistakes(tmp_path, text, CL2_NAME="a\nchaosMonkey: {}")
    assert "changes the structure" in line


def test_a_missing_number_of_nodes_says_how_to_give_it(tmp_path: Path) -> None:
    [line] = mistakes(tmp_path, "name: {{DivideInt .Nodes 2}}\n")
    assert "--nodes" in line


def test_paths_of_perf_tests_mean_built_in_scenarios_where_there_is_no_such_file(tmp_path: Path) -> None:
    for prefix in ("", "clusterloader2/", f"{tmp_path}/"):
        path, note = files.resolve(f"{prefix}pkg/dependency/kwok/examples/test-config.yaml")
        assert path.parent.name == "kwok-dra"
        assert "built-in" in note
    with pytest.raises(ScenarioError, match="built-in scenarios are: burst-fill"):
        files.resolve("nothing.yaml")


def test_a_copied_scenario_still_finds_its_templates(tmp_path: Path) -> None:
    original, _ = files.resolve("kwok-dra")
    made = load(tmp_path, original.read_text())
    assert made.steps[1].phases[0].objects[0].file.parent.name == "kwok-dra"
    assert any("not beside the scenario" in note for note in made.notes)


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("500ms", 0.5), ("0", 0), (0, 0), ("1.5h", 5400)])
def test_durations_are_those_of_go(text: object, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize("text", ["5", "-1s", "1 s", "", "1d", "s", 5, True, None, "9999h", "1" * 100 + "s"])
def test_what_is_no_duration_is_rejected(text: object) -> None:
    with pytest.raises(ValueError, match="must"):
        durations.parse(text)
