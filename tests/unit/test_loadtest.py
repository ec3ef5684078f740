"""Parts of load tests that need no cluster: schedules, figures, objects, reports."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.kube.resources import Resource
from simgpu.kube.store import Change
from simgpu.kube.views import Condition, Lease, LeaseSpec, Node, NodeStatus, Object, ObjectMeta
from simgpu.loadtest import concurrency, heartbeat, served
from simgpu.loadtest.dependencies import nodes, slices, stages
from simgpu.loadtest.gotemplate import executing, functions
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.rendering import Template
from simgpu.loadtest.measurements import histograms, percentiles, prometheus_query, scheduler, throughput
from simgpu.loadtest.measurements.bench import Measured, MeasurementError, Summary
from simgpu.loadtest.reports import comparison, junit, page, writing
from simgpu.loadtest.running.objects import ApiCall, TemplateSource
from simgpu.loadtest.running.results import CaseResult, RunResult
from simgpu.loadtest.running.timeline import MAX_SAMPLES, Census, TimelineSample
from simgpu.loadtest.running.tuning import Tuning, delays
from simgpu.loadtest.scenario.fields import Problems
from simgpu.loadtest.scenario.model import ObjectTemplate, TuningSet
from simgpu.loadtest.watched import WatchedClaim, WatchedPod
from simgpu.promql import asking

# The end of a run.


async def test_teardown_goes_on_after_an_interrupt_with_a_warning_and_ends_at_the_second() -> None:
    warnings: list[str] = []
    finish = asyncio.Event()

    async def teardown() -> None:
        await finish.wait()

    for interrupts, finished in ((1, True), (2, False)):
        warnings.clear()
        finish.clear()
        task = asyncio.create_task(concurrency.insistent(teardown(), lambda: warnings.append("once more")))
        for _ in range(interrupts):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        finish.set()
        assert await task is finished
        assert warnings == ["once more"]


# Templates.


def library() -> executing.Library:
    return functions.library([], random.Random(1))


@pytest.mark.parametrize("value", ["a: b", "x\ny: z", "- a", "{a: 1}", "[1]", "a\n---\nb", "&a b\nc: *a"])
def test_a_variable_that_would_add_structure_is_rejected(value: str) -> None:
    with pytest.raises(TemplateError, match="changes the structure"):
        Template("key: {{.Value}}\nother: 1\n", library()).render({"Value": value})


@given(st.text(max_size=30))
def test_a_quoted_variable_is_the_string_that_it_was(value: str) -> None:
    document = Template("key: {{YamlQuote .Value 1}}\nother: 1\n", library()).documents({"Value": value})
    assert document == [{"key": value, "other": 1}]


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_a_variable_never_changes_the_shape_of_a_document(first: str, second: str) -> None:
    template = Template('a: {{.First}}\nb: [1, {{printf "%s" .Second}}]\n', library())
    try:
        [document] = template.documents({"First": first, "Second": second})
    except TemplateError:
        return
    assert [*document] == ["a", "b"]
    assert not isinstance(document["a"], dict | list)
    assert len(document["b"]) == 2
    assert not isinstance(document["b"][1], dict | list)


@pytest.mark.parametrize(
    "template",
    [
        "{{range Loop 100000}}{{range Loop 100000}}x{{end}}{{end}}",
        '{{$x := "aaaaaaaa"}}{{range Loop 60}}{{$x = printf "%s%s" $x $x}}{{end}}',
        "{{Loop 100001}}", "{{RandData 100001}}", '{{printf "%99999d" 1}}', "{{" + "(" * 100 + "1" + ")" * 100 + "}}",
        "{{if 1}}" * 70 + "{{end}}" * 70, "x" * 2_000_000, '{{IncludeFile "../../../etc/passwd"}}',
        "{{DivideInt 1 0}}", '{{AddInt "inf" 1}}', "{{MultiplyInt 1e300 1e300}}",
    ],
)  # fmt: skip
def test_templates_are_bounded(template: str) -> None:
    with pytest.raises(TemplateError):
        Template(template, library()).render({})


@pytest.mark.parametrize(
    "template",
    [
        "apiVersion: v1\nkind: Pod\nmetadata: {labels: {a: '{{.Name}}-x'}}\nspec: {n: {{.Mode}}}\n",
        "apiVersion: v1\nkind: Pod\nspec: {i: {{.Index}}}\n",
        "apiVersion: v1\nkind: Pod\nspec: {n: '{{if eq .Name \"pod-1\"}}one{{end}}'}\n",
        "apiVersion: v1\nkind: Pod\nspec: {n: '{{len .Name}}', {{with .Mode}}m: {{.}}{{end}}}\n",
    ],
)
def test_objects_made_by_copying_are_those_made_by_rendering(tmp_path: Path, template: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(template)
    item = ObjectTemplate("x", "pod", file, {"Mode": "a"})
    source = TemplateSource(item, {}, random.Random(1))
    for index in (0, 1, 12):
        own = {"Mode": "a", "Name": f"pod-{index}", "Index": index, "BaseName": "pod", "Namespace": "ns"}
        [rendered] = Template(template, library()).documents(own)
        [made] = source.bodies(index, "ns")
        assert made == {**rendered, "metadata": {**rendered.get("metadata", {}), "name": f"pod-{index}"}}


def test_an_index_of_which_a_template_makes_no_object_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("{{if lt .Index 5}}apiVersion: v1\nkind: Pod\n{{else}}[x]{{end}}")
    source = TemplateSource(ObjectTemplate("x", "pod", file, {}), {}, random.Random(1))
    assert source.bodies(4, "ns")
    with pytest.raises(TemplateError, match=r"pod\.yaml: must be objects with apiVersion and kind"):
        source.bodies(5, "ns")


# Schedules.


def tuning(kind: str, **settings: float) -> TuningSet:
    return TuningSet("t", kind, settings)


def test_schedules_of_tuning_sets() -> None:
    chance = random.Random(3)

    def starts(kind: str, count: int = 6, **settings: float) -> list[float]:
        return list(delays(count, tuning(kind, **settings), chance))

    assert starts("qpsLoad", qps=2) == [0, 0.5, 1, 1.5, 2, 2.5]
    assert starts("steppedLoad", burstSize=2, stepDelay=10) == [0, 0, 10, 10, 20, 20]
    assert starts("timeLimitedLoad", timeLimit=12) == [0, 2, 4, 6, 8, 10]
    for kind, settings in (
        ("randomizedLoad", {"averageQps": 10.0}),
        ("poissonLoad", {"expectedActionsPerSecond": 10.0}),
    ):
        found = starts(kind, 2001, **settings)
        assert found == sorted(found)
        assert 180 < found[-1] < 220
    spread = starts("randomizedTimeLimitedLoad", 100, timeLimit=5)
    assert spread == sorted(spread)
    assert 0 <= spread[0] <= spread[-1] <= 5


async def test_phases_with_a_global_rate_share_it() -> None:
    shared = tuning("globalQPSLoad", qps=200.0, burst=3.0)
    performed = Tuning(random.Random(1))
    moments: list[float] = []
    clock = asyncio.get_running_loop().time
    started = clock()

    async def action() -> None:
        moments.append(clock() - started)

    await asyncio.gather(performed.perform([action] * 10, shared), performed.perform([action] * 10, shared))
    assert len(moments) == 20
    assert moments[-1] >= 17 / 200


# Figures.


def test_percentiles_are_those_of_the_sorted_list() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentiles.of(values) == {"Perc50": 50, "Perc90": 90, "Perc99": 99}
    assert percentiles.milliseconds([0.25]) == {"Perc50": 250, "Perc90": 250, "Perc99": 250}


PAGE = """\
# HELP x y
x_bucket{le="0.1",result="a"} 10
x_bucket{le="0.2",result="a"} 20
x_bucket{le="+Inf",result="a"} 20
x_bucket{le="0.1",result="b"} 0
x_bucket{le="0.2",result="b"} 5
x_bucket{le="+Inf",result="b"} 10
xx_bucket{le="0.1"} 99
x_bucket{le="broken
x_bucket{le="0.1"} NaN
x_bucket{le="low"} 7
x_bucket{le="NaN"} 7
"""


def test_histograms_are_read_from_a_page_and_their_quantiles_interpolated() -> None:
    found = histograms.read(PAGE, "x")
    assert found == {0.1: 10, 0.2: 25, float("inf"): 30}
    assert histograms.read(PAGE, "x", {"result": "b"})[0.2] == 5
    assert histograms.quantile(found, 0.5) == pytest.approx(0.1 + 0.1 * 5 / 15)
    assert histograms.quantile(found, 0.99) == 0.2
    assert histograms.quantile({}, 0.5) == 0
    assert histograms.read('x_bucket{le="-Inf"} 1\n' + PAGE, "x") == found  # no value can be below that
    later = {bound: value * 3 for bound, value in found.items()}
    assert histograms.increase(found, later) == {bound: value * 2 for bound, value in found.items()}
    assert histograms.increase(later, found) == found  # the scheduler was restarted


async def gathered(buckets: dict[str, float], *, prometheus: str, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """What a scheduler's latencies are, with these buckets of each histogram when they are gathered."""

    async def instant(_server: str, _query: str) -> list[asking.SeriesSample]:
        return [asking.SeriesSample({"le": bound}, count) for bound, count in buckets.items()]

    async def page_of_metrics() -> str:
        pages.append("".join(f'{scheduler.E2E}_bucket{{le="{bound}"}} {buckets[bound]}\n' for bound in buckets))
        return pages[-1] if len(pages) > 1 else ""

    pages: list[str] = []
    monkeypatch.setattr(asking, "instant", instant)
    there: Any = SimpleNamespace(prometheus=prometheus, scheduler=page_of_metrics)
    measurement = scheduler.SchedulingMetrics(there, "SchedulingMetrics")
    await measurement.execute("x", {"action": "start"})
    return await measurement.execute("x", {"action": "gather"})


@pytest.mark.parametrize("prometheus", ["http://prometheus", ""])
async def test_series_without_a_bound_are_left_out_of_the_schedulers_latencies(
    prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = {"0.1": 10.0, "x": 5.0, "": 5.0, "NaN": 5.0, "+Inf": 10.0}
    found = await gathered(buckets, prometheus=prometheus, monkeypatch=monkeypatch)
    assert found.summaries[0].content["e2eSchedulingLatency"]["Perc50"] == 50_000_000


@pytest.mark.parametrize("prometheus", ["http://prometheus", ""])
@pytest.mark.parametrize(
    "buckets", [{"1e308": 10.0}, {"1e300": 10.0}, {"1": 1e308, "+Inf": 1e308, "inf": 1e308, "1.0": 1e308}]
)
async def test_latencies_that_no_scheduler_has_are_an_error_of_the_measurement(
    buckets: dict[str, float], prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MeasurementError, match=r"x: \w+: a latency of \S+ s"):
        await gathered(buckets, prometheus=prometheus, monkeypatch=monkeypatch)


def test_the_rate_of_a_short_run_is_that_of_its_own_time() -> None:
    assert throughput.windows([], 0, 10, 5) == []
    assert throughput.windows([0.5, 1.0], 0, 1.0, 5) == [2.0]
    assert throughput.windows([1, 2, 3, 6, 7], 0, 8, 5) == [0.6, pytest.approx(2 / 3)]


def test_a_long_run_needs_no_more_samples_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("simgpu.loadtest.running.timeline.time.time", lambda: now[0])
    census = Census(frozenset({"a"}))
    for tick in range(20_000):
        now[0] = tick * 0.5
        census.called(ApiCall("create", 0.01))
        census.sample()
    assert MAX_SAMPLES / 2 - 1 <= len(census.samples) < MAX_SAMPLES
    assert census.samples[-1].objects > 19_000


def watched_pod(*limits: str, phase: str = "Running", claimed: str = "") -> WatchedPod:
    """A pod as the API server reports it."""
    containers = [{"name": f"c{place}", "resources": {"limits": {"nvidia.com/gpu": amount}}}
                  for place, amount in enumerate(limits)]  # fmt: skip
    mapping = [{"containerName": "c0", "resourceName": claimed, "requestName": "r"}]
    extended = {"extendedResourceClaimStatus": {"requestMappings": mapping, "resourceClaimName": "x"}}
    document = {
        "metadata": {"name": "pod", "uid": "1"},
        "spec": {"containers": [*containers, {"name": "side"}]},
        "status": {"phase": phase, **(extended if claimed else {})},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=WatchedPod)


@pytest.mark.parametrize(
    ("pod", "claimed_devices", "in_use"),
    [
        (watched_pod("1", "2"), 0, 3),
        (watched_pod("1", phase="Pending"), 0, 0),
        (watched_pod("1", claimed="nvidia.com/gpu"), 1, 1),
        (watched_pod("1", claimed="example.com/other"), 1, 2),
    ],
)
def test_each_gpu_in_use_is_counted_once(pod: WatchedPod, claimed_devices: int, in_use: int) -> None:
    census = Census(frozenset({"a"}))
    claim = {"metadata": {"name": "x"}, "status": {"allocation": {"devices": {"results": [{}] * claimed_devices}}}}
    census.claim(Change("a/x", None, msgspec.convert(claim, WatchedClaim)))
    census.pod(Change("a/pod", None, pod))
    assert census.sample().gpus == in_use


# Objects of dependencies.


@pytest.mark.parametrize(("count", "sizes"), [(8, [8]), (128, [128]), (300, [128, 128, 44])])
def test_slices_are_split_at_what_the_api_allows(count: int, sizes: list[int]) -> None:
    made = slices.bodies(
        slices.kwok_devices(count), number=4, node="kwok-node-4", node_uid="u", version="v1", labels={"run": "r"}
    )
    assert [len(body["spec"]["devices"]) for body in made] == sizes
    assert [body["metadata"]["name"] for body in made] == ["kwok-gpu-node-4", "kwok-gpu-node-4-1", "kwok-gpu-node-4-2"][
        : len(sizes)
    ]
    assert {body["spec"]["pool"]["name"] for body in made} == {"kwok-gpu-pool-node-4"}
    assert {body["spec"]["pool"]["resourceSliceCount"] for body in made} == {len(sizes)}
    names = [device["name"] for body in made for device in body["spec"]["devices"]]
    assert names == [f"gpu{index}" for index in range(count)]


def test_of_two_dependencies_each_waits_for_the_nodes_that_it_created() -> None:
    def change(name: str, *, ready: bool) -> Change[Node]:
        status = NodeStatus(conditions=(Condition(type="Ready", status=str(ready)),))
        return Change(name, None, Node(metadata=ObjectMeta(name=name), status=status))

    second = nodes.CreatedNodes()
    assert not second.look(change("first-0", ready=True))
    second.look(change("second-0", ready=True))  # seen before the response to its creation
    for name in ("second-0", "second-1"):
        second.add(name)
    assert (second.names, second.ready) == ({"second-0", "second-1"}, 1)
    assert not second.look(change("second-0", ready=True))
    assert second.look(change("second-1", ready=True))
    assert second.ready == 2
    assert second.look(Change("second-0", None, None))
    assert second.ready == 1


def test_running_times_come_from_the_environment() -> None:
    found = stages.running_milliseconds({"CL2_JOB_RUNNING_TIME_MS": 10000}, Problems(""))
    assert found == {"short-lived": 10000, "long-running": 3600000}


def test_running_times_can_be_given_as_clusterloader2_spells_them() -> None:
    spelled = {"CL2_JOB_RUNNING_TIME": "1m30s", "CL2_LONG_JOB_RUNNING_TIME": 45}
    assert stages.running_milliseconds(spelled, Problems("")) == {"short-lived": 90_000, "long-running": 45_000}
    both = {**spelled, "CL2_JOB_RUNNING_TIME": "infinity", "CL2_JOB_RUNNING_TIME_MS": 500}
    problems = Problems("")
    assert stages.running_milliseconds(both, problems)["short-lived"] == 500
    assert problems.found == []
    stages.running_milliseconds({"CL2_LONG_JOB_RUNNING_TIME": "soon", "CL2_JOB_RUNNING_TIME": -1}, problems)
    assert [line.partition(":")[0] for line in problems.found] == ["CL2_JOB_RUNNING_TIME", "CL2_LONG_JOB_RUNNING_TIME"]
    stages.running_milliseconds({"CL2_JOB_RUNNING_TIME": 1e300, "CL2_LONG_JOB_RUNNING_TIME": True}, problems)
    assert len(problems.found) == 4


def claims(version: str) -> Resource[Any]:
    return Resource("ResourceClaimTemplate", "x", Object, group="resource.k8s.io", version=version)


def test_requests_of_claims_are_brought_into_the_form_of_the_served_version() -> None:
    new = {"name": "gpu", "exactly": {"deviceClassName": "c", "count": 1}}
    old = {"name": "gpu", "deviceClassName": "c", "count": 1}

    def template(version: str, request: dict[str, Any]) -> dict[str, Any]:
        spec = {"spec": {"devices": {"requests": [request]}}}
        return {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceClaimTemplate", "spec": spec}

    assert served.converted(template("v1beta2", new), claims("v1")) == template("v1", new)
    assert served.converted(template("v1beta1", old), claims("v1")) == template("v1", new)
    assert served.converted(template("v1", new), claims("v1beta1")) == template("v1beta1", old)


def test_devices_of_slices_are_brought_into_the_form_of_the_served_version() -> None:
    inner = {"attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "1Gi"}}}
    old, new = {"name": "gpu-0", "basic": inner}, {"name": "gpu-0", **inner}

    def converted(version: str, device: Any, target: str) -> Any:
        body = {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceSlice", "spec": {"devices": [device]}}
        resource = Resource("ResourceSlice", "x", Object, group="resource.k8s.io", version=target)
        made = served.converted(body, resource)
        assert made["apiVersion"] == f"resource.k8s.io/{target}"
        return made["spec"]["devices"][0]

    assert converted("v1beta1", old, "v1") == new
    assert converted("v1beta1", old, "v1beta2") == new
    assert converted("v1", new, "v1beta1") == old
    for wrong in ("text", {"basic": inner}):  # the server says what is wrong with it
        assert converted("v1", wrong, "v1beta1") == wrong


# Reports.


def result(**changes: Any) -> RunResult:
    data = {"Perc50": 1.0, "Perc90": 2.0, "Perc99": 3.0}
    content = {"version": "1.0", "dataItems": [{"data": data, "unit": "ms", "labels": {"Metric": "pod_startup"}}]}
    made = RunResult(
        scenario="dra-steady-state",
        identifier="",
        config="config.yaml",
        run="abc",
        server="https://127.0.0.1:1",
        started=1e9,
        seconds=10.0,
        cases=[CaseResult("[step: 01] one", 1.0), CaseResult("[step: 02] two [00] - Id", 2.0, ["too <slow>"])],
        summaries=[Summary("PodStartupLatency_FastFillPodStartupLatency", content)],
        timeline=[TimelineSample(at=float(at), running=at, gpus=at) for at in range(10)],
        startup=[(float(at), at / 10) for at in range(10)],
        pods=10,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_junit_counts_its_cases() -> None:
    suite = ElementTree.fromstring(junit.document([result()]))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("ClusterLoaderV2", "3", "2")
    names = [case.get("name") for case in suite]
    assert names == [
        "dra-steady-state overall (config.yaml)",
        "dra-steady-state: [step: 01] one",
        "dra-steady-state: [step: 02] two [00] - Id",
    ]
    assert [len(case) for case in suite] == [1, 0, 1]


async def test_a_query_without_a_prometheus_is_skipped_and_not_listed_as_passed() -> None:
    without: Any = SimpleNamespace(prometheus="")
    query = prometheus_query.GenericPrometheusQuery(without)
    [start, gather] = [await query.execute("q", {"action": action}) for action in ("start", "gather")]
    assert start.skipped == gather.skipped == "there is no Prometheus (--prometheus URL)"
    made = result(cases=[CaseResult("one", 1.0), CaseResult("q", 2.0, skipped=gather.skipped)])
    suite = ElementTree.fromstring(junit.document([made]))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "1")
    assert [[child.tag for child in case] for case in suite] == [[], [], ["skipped"]]
    text = page.render(made)
    assert '<td>q</td><td><span class="soft">skipped</span>' in text
    assert "1 of 2 passed, 1 skipped" in text
    assert not made.failed


def test_a_report_has_the_files_that_perfdash_looks_for(tmp_path: Path) -> None:
    written = {path.name for path in writing.write(tmp_path, result())}
    assert "PodStartupLatency_FastFillPodStartupLatency_dra-steady-state_2001-09-09T01:46:50Z.json" in written
    assert {"junit.xml", "report.html", "results.json"} <= written
    [data] = tmp_path.glob("PodStartupLatency_*")
    assert json.loads(data.read_text())["dataItems"][0]["data"]["Perc99"] == 3.0


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    text = page.render(result(scenario="<script>alert(1)</script>"))
    assert "<script>alert" not in text
    assert "too &lt;slow&gt;" in text
    assert not re.search(r"(src|href)=|@import|url\(", text)
    assert text.count("<figure>") == 8
    assert text.count("<svg") == 7  # there were no calls to plot


def test_two_reports_are_compared_figure_by_figure(tmp_path: Path) -> None:
    writing.write(tmp_path / "a", result())
    writing.write(tmp_path / "b", result(seconds=15.0))
    found = comparison.compare(comparison.read(tmp_path / "a"), comparison.read(tmp_path / "b"))
    changes = {item.name: item.change for item in found}
    assert changes["run time"] == 0.5
    assert changes["PodStartupLatency_FastFillPodStartupLatency: pod_startup Perc99"] == 0
    assert "highest scheduling rate" not in changes  # zero in both
    assert "+50.0%" in page.render(result(), found, "a")


@pytest.mark.parametrize(
    "content",
    [
        {"dataItems": [3]}, {"dataItems": [{"labels": [1], "data": {"a": 1}}]}, {"dataItems": [{"data": [1]}]},
        {"a": {"b": "c"}}, {"a": {"b": None}}, {"a": 10**400}, {"a": {"b": 10**400}}, [1], None,
    ],
)  # fmt: skip
def test_whatever_is_no_number_in_a_report_is_left_out_when_it_is_compared(tmp_path: Path, content: object) -> None:
    writing.write(tmp_path, result(summaries=[Summary("Strange", content)]))
    read = comparison.read(tmp_path)
    assert {item.change for item in comparison.compare(read, read)} == {0.0}


def test_of_two_measurements_with_one_name_the_last_is_compared() -> None:
    made = result(summaries=[Summary("Twice", {"a": 1}), Summary("Twice", {"a": 2})])
    assert [item.after for item in comparison.compare(made, made) if item.name == "Twice: a"] == [2]


def test_a_report_that_started_at_no_time_is_refused(tmp_path: Path) -> None:
    writing.write(tmp_path, result())
    file = tmp_path / comparison.RESULTS
    file.write_bytes(msgspec.json.encode(msgspec.json.decode(file.read_bytes()) | {"started": 1e30}))
    with pytest.raises(InputError, match=r"started: 1e[+]30: must be seconds since 1970"):
        comparison.read(tmp_path)


@pytest.mark.parametrize(
    ("renewed", "expected"),
    [
        ("2030-01-01T00:00:30.000000Z", "alive"),
        ("2029-12-31T23:59:00.000000Z", "dead"),
        ("2031-01-01T00:00:00Z", "alive"),
        ("2030-01-01", "unknown"),
        ("soon", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_run_is_dead_a_minute_after_its_last_heartbeat_and_never_by_a_time_that_cannot_be_read(
    renewed: str | None, expected: str
) -> None:
    lease = Lease(metadata=ObjectMeta(), spec=LeaseSpec(renew_time=renewed))
    now = datetime.datetime(2030, 1, 1, 0, 1, tzinfo=datetime.UTC)
    assert heartbeat.liveness(lease, now) == expected
