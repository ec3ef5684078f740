"""Files and ConfigMaps of operators: topologies, MIG layouts, views of nodes, models of GPUs, fakedev's files."""

from __future__ import annotations

import functools
import json
import math
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import captures, importing, models, relations
from simgpu.controllers import fake_nodes, feature_labels, publishing
from simgpu.fakedev import device_type
from simgpu.fakedev import files as fakedev_files
from simgpu.fakedev import identity as fakedev_identity
from simgpu.identities import identity, render
from simgpu.kube import views
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.machines.fleet import Fleet
from simgpu.sim import cards
from simgpu.topology import checking, devices, mig_files, mig_layouts, pools, reading
from tests.fixtures import boxes, device_types, equipment
from tests.fuzz.target import ROOT, Target, encoded, files, numbered, scratch, split, text

_FORMS = """
migStrategy: mixed
nodePoolLabelKey: run.ai/pool
allocation: both
dra: {dynamicMIG: true}
nodePools:
  listed: {gpus: [{type: h200, memory: 141GB, count: 2}, {type: t4, count: 1}], settable: true, driver: "570.1"}
  legacy: {gpuProduct: Tesla-K80, gpuCount: 2, gpuMemory: 11441, otherDevices: [{name: example.com/x, count: 2}]}
  profiled: {gpu: {profile: p, count: 2, overrides: {memory: 1GiB}}, resources: {example.com/y: 1}, numa: {nodes: 2}}
  mig: {gpus: [{type: a100, count: 1}], mig: {strategy: single, config: {1g.5gb: 7}}}
  shared: {gpus: [{type: l4, count: 1}], sharing: {timeSlicing: {replicas: 4}}, failures: {dying: [{gpu: 0}]}}
"""
_NAMED = """
mig-strategy: none
nodes:
  node-a: {gpus: [{id: GPU-1, type: h100}, {id: GPU-2, type: h100}]}
  node-b: {gpus: [{id: GPU-3, type: t4}], migStrategy: single}
"""
_PARTED = """
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-balanced:
  - {device-filter: ["0x233510DE"], devices: all, mig-enabled: true, mig-devices: {1g.18gb: 2, 2g.35gb: 1, 3g.71gb: 1}}
  - {devices: [0, 1], mig-enabled: true, mig-devices: [{name: 1g.18gb, position: 0, size: 1}]}
"""
_VIEW = """
gpuMemory: 143771
gpuProduct: NVIDIA-H200
migStrategy: mixed
allocation: both
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 2}]}}
otherDevices: [{name: example.com/x, count: 2}]
gpus:
- id: GPU-1
  mig: {instances: [{id: MIG-1, profile: 1g.18gb, start: 0}]}
  status:
    allocatedBy: {namespace: a, pod: b, container: c}
    podGpuUsageStatus: {u: {utilization: {min: 1, max: 2}, fbUsed: 3, useKnativeUtilization: false}}
"""
_BUSY = {"Name": "x", "Profile": [{"Load": 80, "Fluctuation": 5}]}
_KEYS = ("h200", "max-1550", "mi300x", "gaudi3")
_MODELS = [str((models.DATA / f"{key}.yaml").relative_to(ROOT)) for key in _KEYS]
_RELATED = f"base: h200\nrelations:\n{textwrap.indent(relations.DATA.read_text(), '  ')}".encode()
_VALUE = re.compile(r"[\w:]+(?:\{.*\})? (\S+)(?: \d+)?")
_OTHER_UNITS = """
base: dcgm
about: other units
change:
  DCGM_FI_DEV_SM_CLOCK: {scale: 2.5, offset: 1.5, digits: 3, form: fixed}
  DCGM_FI_DEV_POWER_USAGE: {scale: 2.5, offset: 1.5, digits: 3, form: int}
  DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION: {offset: 4.5, form: shortest, dimensions: [{labels: {}, scale: 3.5}]}
"""
_NOW = 1_700_000_000.0  # seconds since 1970
_SPEC = equipment.spec(1)
_COUNTERS = json.dumps(
    {
        "time": _NOW - 5, "growth": 0.5, "term": 2, "address": "1.2.3.4", "held": {"u": ["GPU-1"]},
        "gpus": dict.fromkeys(("GPU-1", equipment.IDS[0]), [1.5] * len(cards.COUNTERS)), "failures": {"GPU-1": "lost"},
    }
)  # fmt: skip
_PROFILE = {"product": "NVIDIA L4", "memory": "24GiB"}


@functools.cache
def _catalog() -> models.Catalog:
    return models.load()


def _profile(name: str) -> dict[str, Any] | None:
    if len(name) > 20:
        raise errors.InputError("profile", "a mistake in it")
    return _PROFILE if name == "p" else None


def check_nodes(topology: pools.Topology) -> None:
    """Devices of each node can be built and are within the limits, and the whole can be shown."""
    for name, spec in (*topology.pools.items(), *topology.nodes.items()):
        assert len(spec.gpus) <= vocabulary.MAX_GPUS
        for device in pools.build(spec, name[:63] or "n")[:4]:
            assert device.model.memory_mib.usable > 0
        msgspec.json.encode(publishing.pool_json(spec))
        publishing.amounts(spec, topology.mig_strategy)
        feature_labels.labels(spec, topology.mig_strategy)


def _topology(data: bytes) -> None:
    """A topology is read, or all of its mistakes are found with their fields."""
    try:
        found = reading.parse(text(data), _catalog(), _profile)
    except checking.Mistakes as mistakes:
        assert mistakes.found
        str(mistakes).encode()
        return
    check_nodes(found)


def _layouts(data: bytes) -> None:
    """A file of mig-parted has layouts that cards can have, or is refused with the field."""
    mig_files.is_file_of_layouts(text(data))
    try:
        layouts = mig_files.read(text(data), field="file")
        for name in layouts:
            mig_layouts.divide_by_name(name, layouts, [_catalog().get("h200", field="x")] * 2, field=name)
    except errors.InputError as error:
        str(error).encode()


def _view(data: bytes) -> None:
    """A node's view restores what it can, and never fails."""
    view, _, counters = text(data).partition("\n===\n")
    config_map = views.ConfigMap(
        metadata=views.ObjectMeta(
            name="topology-n", namespace="ns", labels={vocabulary.VIEW_NODE_LABEL: "n"},
            annotations={vocabulary.VIEW_LABELS_ANNOTATION: view[:200]},
        ),
        data={vocabulary.TOPOLOGY_KEY: view, vocabulary.COUNTERS_KEY: counters},
    )  # fmt: skip
    topology = publishing.published([config_map], _catalog())
    check_nodes(topology)
    _resume(publishing.read_previous(config_map), topology.nodes.get("n") or _SPEC)
    try:
        publishing.view_json(config_map)
    except errors.InputError as error:
        str(error).encode()


def _resume(before: publishing.PreviousView, spec: pools.NodeGpus) -> None:
    """GPUs resume from saved counters, at once or when they come back, with finite ones that grow from there."""
    since: Any = SimpleNamespace(_counted_until=lambda: _NOW, _term=3)
    saved = fake_nodes.FakeNodes._saved(since, before)
    for there in (True, False):
        fleet = Fleet(seed=1)
        fleet.begin(_NOW)
        if not there:
            fleet.remember(*saved)
        placed = fleet.place("node-a", pools.NodeGpus(spec.gpus[:2]))
        if there:
            fleet.resume(placed, *saved, before.counters.failures)
        first = fleet.counters(placed)
        fleet.step(1.0, clock=_NOW + 1.0)
        boxes.check_engine_finite(fleet.engine)
        for name, values in fleet.counters(placed).items():
            assert all(new >= old >= 0 for new, old in zip(values, first[name], strict=True))


def _capture(data: bytes) -> None:
    """A capture of nvidia-smi is a model that the catalog can load and that runs, or is refused with the element."""
    try:
        found = captures.parse(data)
        for gpu in found.gpus[:2]:
            made = importing.import_gpu(gpu, found.driver, _catalog())
            made.yaml()
            _check_model(models.check(made.key, made.document, where=Path(f"{made.key}.yaml")))
    except errors.InputError as error:
        str(error).encode()


def _of_file(name: str, check: Callable[[Path], object]) -> Callable[[bytes], None]:
    """A file is read, or is refused with its name."""

    def read(data: bytes) -> None:
        path = scratch() / name
        path.write_bytes(data)
        try:
            check(path)
        except errors.InputError as error:
            assert str(path) in str(error)
            str(error).encode()

    return read


def _model(path: Path) -> None:
    _check_model(models.check(path.stem, models.parse_yaml(path), where=path))


def _check_model(model: models.Model) -> None:
    """Devices of a model run with finite values, at rest and in use, and so are those on their page."""
    made = Box([devices.device("n", index, model) for index in range(2)], seed=1, hostname="n")
    made.admit(documents.read(_BUSY).profile, [made.devices[0].file])
    for second in (0.01, 1.0, 2.0, 60.0):
        made.step(second, clock=_NOW + second)
    boxes.check_finite(made)
    _check_page(_own(model.vendor), made)


@functools.cache
def _own(vendor: str) -> identity.Identity:
    return identity.load({"nvidia": "dcgm", "intel": "xpum", "amd": "amd", "habana": "gaudi"}[vendor])


def _identity(path: Path) -> None:
    _check_page(identity.load(str(path)), _box())


def _fakedev_identity(path: Path) -> None:
    _check_page(fakedev_identity.read(path), _box())


def _check_page(found: identity.Identity, made: Box) -> None:
    """All numbers on a page are finite."""
    page = render.Renderer(made.machine, found).page().decode().removeprefix(f"{found.layout.header}\n")
    assert all(math.isfinite(float(match[1])) for match in map(_VALUE.fullmatch, page.split("\n")) if match)


@functools.cache
def _box() -> Box:
    """Two devices of each vendor, one of them divided, and the first one in use."""
    entries = (devices.GpuEntry("h200", 1, mig=("1g.18gb", "3g.71gb")), *(devices.GpuEntry(key, 2) for key in _KEYS))
    made = Box(devices.build(devices.BoxConfig(entries), _catalog(), node="n"), seed=1, hostname="n")
    made.admit(documents.read(_BUSY).profile, [made.devices[1].file])
    made.step(60.0, clock=60.0)
    return made


def _device_type(path: Path) -> None:
    device_types.check_page(device_type.read(path), str(path))


def _fakedev(data: bytes) -> None:
    number, rest = split(data, len(_FAKEDEV))
    _FAKEDEV[number](rest)


@functools.cache
def _kind() -> device_type.DeviceType:
    return device_type.read(device_types.FILES / "device-type.json")


_FAKEDEV = (
    _of_file("type.json", _device_type),
    _of_file("devices.json", lambda path: fakedev_files.devices(path, 4, _kind().labels, _kind().model)),
    _of_file("identity.json", _fakedev_identity),
)
_FAKEDEV_FILES = ("device-type*.json", "devices.json", "identity.json")

TARGETS = (
    Target("topologies", _topology, (*encoded([_FORMS, _NAMED, _PARTED]), *files("examples/06-topology/*.yaml"))),
    Target("mig-parted-files", _layouts, encoded([_PARTED])),
    Target("node-views", _view, encoded([f"{_VIEW}\n===\n{_COUNTERS}"])),
    Target("captures", _capture, files("examples/13-capture/capture.xml"), max_length=1 << 15),
    Target("gpu-models", _of_file("model.yaml", _model), (*files("examples/12-gpu-model/*.yaml", *_MODELS), _RELATED)),
    Target(
        "identities",
        _of_file("identity.yaml", _identity),
        (*files("src/simgpu/identities/data/dcgm-4*.yaml"), *encoded([_OTHER_UNITS])),
    ),
    Target("fakedev-files", _fakedev, numbered(files(f"examples/10-fakedev/{name}") for name in _FAKEDEV_FILES)),
)
