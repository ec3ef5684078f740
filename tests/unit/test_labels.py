"""Names that users choose cannot break a page: not its lines, not its quotes, not its encoding."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import parser

from simgpu import errors
from simgpu.catalog import models
from simgpu.fakedev import identity as fakedev
from simgpu.identities import identity, render
from simgpu.machines.box import Box
from simgpu.machines.users import PodRef
from simgpu.topology import devices
from simgpu.web import fleet_pages, server

CATALOG = models.load()
MODELS = {"dcgm": "h200", "xpum": "flex-170"}  # one in the order of families, and one whose lines are sorted
PLAIN = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
TEXT = st.text(st.characters(), min_size=1, max_size=20)
HOSTILE = [
    "a\u2028b",
    "a\u2029b",
    "a\x85b",
    "a\x0bb\x0cc\x1cd\x1de\x1ef",
    "a\rb",
    "a\0b",
    "\ud800",
    'a"} 1\nx{y="',
    "\\",
    "\\n",
]


def page(name: str, pod: str) -> str:
    """The page of a box of which a pod has the first GPU."""
    found = identity.load(name)
    box = Box([devices.device("n", index, CATALOG.models[MODELS[name]]) for index in range(2)], seed=1, hostname="h")
    box.machine.set_pods({0: PodRef(pod, "ns", "c")})
    box.step(1.0, clock=0.0)
    return render.Renderer(box.machine, found).page().decode()


@pytest.fixture(scope="module", params=MODELS)
def plain(request: pytest.FixtureRequest) -> tuple[str, int]:
    name: str = request.param
    return name, len(page(name, "train").split("\n"))


@pytest.mark.parametrize("pod", HOSTILE, ids=ascii)
def test_a_hostile_name_leaves_a_page_as_it_is_but_for_the_name(plain: tuple[str, int], pod: str) -> None:
    name, lines = plain
    text = page(name, pod)
    assert len(text.split("\n")) == lines
    assert len(text.splitlines()) == lines - 1, "for readers that know other line ends too"
    names = {
        sample.labels[label]
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        for label in ("pod", "kube_pod")
        if label in sample.labels
    }
    assert len(names - {""}) == 1


@given(TEXT | st.text(PLAIN, max_size=20))
@example("a\u2028b")
@example("\ud800")
@example('"\\')
def test_any_label_is_read_back_as_it_was_or_with_a_mark_where_it_was_no_text(text: str) -> None:
    printed = b"".join(piece.make() for piece in fleet_pages._pod_pieces([(text, 0, 50.0, 1.0)])).decode()
    [usage, memory] = list(parser.text_string_to_metric_families(printed))
    found = usage.samples[0].labels["pod_uuid"]
    assert len(found) == len(text)
    assert all(new in (old, "\ufffd") for old, new in zip(text, found, strict=True))
    assert memory.samples[0].labels["pod_uuid"] == found
    if text.isprintable():
        assert found == text


def test_names_that_are_no_text_are_json_too() -> None:
    assert server.json_response({"name": "\ud800"}).body == b'{"name": "\\ud800"}'


def test_labels_of_the_configuration_come_after_the_exporters_own_and_never_twice(tmp_path: Path) -> None:
    config = devices.BoxConfig((devices.GpuEntry("h200", labels={"rack": "r1", "owner": 'a "b"'}),))
    made = Box(devices.build(config, CATALOG, node="n"), seed=1, hostname="n")
    shown = identity.with_labels(identity.load("dcgm"), ["rack", "owner"], where="box.yaml: labels")
    lines = render.Renderer(made.machine, shown).page().decode().splitlines()
    assert all(line.partition("}")[0].endswith(r'rack="r1",owner="a \"b\""') for line in lines if line[0] != "#")
    with pytest.raises(errors.InputError, match=r"box.yaml: labels: the exporter has a label gpu already"):
        identity.with_labels(identity.load("dcgm"), ["gpu"], where="box.yaml: labels")
    with pytest.raises(errors.InputError, match="has a label severity already"):  # of one metric
        identity.with_labels(identity.load("amd"), ["severity"], where="box.yaml: labels")
    file = tmp_path / "mine.yaml"
    file.write_text("{base: dcgm, labels: {shelf: '@rack'}}")
    renamed = identity.with_labels(identity.load(str(file)), ["rack"], where="")
    assert renamed.labels == {"shelf": "@rack"}
    form = {"DeviceLabelMap": {"rack": "shelf", "file": ""}, "MetricMap": {"power": "watts"}}
    assert fakedev.from_json(form, where="f", own=["rack"]).labels["shelf"] == "@rack"
    with pytest.raises(errors.InputError, match="DeviceLabelMap: no such label for rack"):
        fakedev.from_json(form, where="f")


@pytest.mark.parametrize("labels", [{"__name__": "x"}, {"a-b": "x"}, {"a": 1}, {"a": "x" * 1025}, {"": "x"}])
def test_labels_of_the_configuration_that_prometheus_would_not_take_are_refused(labels: dict[str, object]) -> None:
    with pytest.raises(errors.InputError, match=r"box.yaml"):
        errors.convert({"gpus": [{"type": "h200", "labels": labels}]}, devices.BoxConfig, field="box.yaml")
