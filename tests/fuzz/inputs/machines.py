"""Files for simulated machines without Kubernetes: configurations of an exporter, workloads and load profiles."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from pathlib import Path

import msgspec
import numpy as np

from simgpu import errors
from simgpu.catalog import shapes
from simgpu.cli import exporter, simulate
from simgpu.identities import identity, render
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.sim import playing
from simgpu.topology import devices
from tests.fixtures import annotated, boxes
from tests.fuzz.target import Target, encoded, files, scratch

_FEW = 4  # devices of an entry: more of them are like these
_MANY = 16  # devices
_LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*\{([a-zA-Z_]\w*="([^"\\\n]|\\[\\n"])*",?)*\} \S+|# .*')
_RATE, _SAMPLES = 100.0, 3
_CONFIG = """
gpus:
- {type: h200, count: 4, labels: {rack: r12, "row": "a\\\\\\"b"}}
- {type: a100-sxm4-80gb, count: 2, mig: [1g.10gb, 3g.40gb]}
- {type: Tesla-K80, memory: 12GB, count: 2}
- {type: max-1550}
- {type: mi300x, memory: 100GiB}
- {type: gaudi3, memory: 4096}
"""
_PROFILE = """
phases:
- {seconds: 10, shape: idle}
- {seconds: 60, name: train, shape: matmul-bf16, fb_mib: 40000}
- {seconds: 0.5, demand: {sm: 0.4, memory: 0.9}, duty: 0.5, period: 0.2}
"""


def _written(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


def _config(data: bytes) -> None:
    """A configuration lists devices that run, with series that can be read; or it is refused with the field."""
    path = _written("box.yaml", data)
    try:
        config = exporter.read_config(path)
        entries = tuple(msgspec.structs.replace(item, count=min(item.count, _FEW)) for item in config.gpus)
        found = devices.build(devices.BoxConfig(entries), boxes.CATALOG, node="n")
        own = list(dict.fromkeys(name for device in found for name in device.labels))
        shown_as = identity.with_labels(_identity(found[0].model.vendor), own, where=f"{path}: labels")
    except errors.InputError as error:
        str(error).encode()
        return
    box = Box(found[:_MANY], seed=1, hostname="n")
    box.step(1.0, clock=1.0)
    boxes.check_finite(box)
    lines = render.Renderer(box.machine, shown_as).page().decode().splitlines()
    assert all(map(_LINE.fullmatch, lines[:_MANY])), lines[:_MANY]


@functools.cache
def _identity(vendor: str) -> identity.Identity:
    return identity.load({"nvidia": "dcgm", "intel": "xpum", "amd": "amd", "habana": "gaudi"}[vendor])


def _workload(data: bytes) -> None:
    """A workload runs on a machine from its start and can be sent to another one, or is refused with the file."""
    path = _written("workload.yaml", data)
    try:
        document = exporter.read_document(path)
    except errors.InputError as error:
        assert str(path) in str(error)
        str(error).encode()
        return
    json.dumps(document).encode()
    wanted, box = documents.read(document), boxes.mixed()
    with contextlib.suppress(errors.InputError):
        box.admit(wanted.profile, wanted.devices or box.places(), pod=wanted.pod)
    box.step(1.0, clock=1.0)
    boxes.check_finite(box)


def _profile(data: bytes) -> None:
    """A load profile is played with finite values, or is refused with the file and the phase."""
    path, model = _written("profile.yaml", data), boxes.CATALOG.models["h200"]
    try:
        profile = simulate.read_profile(path)
        simulate._check_memory(profile, model, path)
        simulate._check_numbers(profile, _RATE, 1, None)
    except errors.InputError as error:
        str(error).encode()
        return
    player = playing.Player(model, profile, seed=1)
    for sample in itertools.islice(player.samples(_RATE), _SAMPLES):
        sample.phase.encode()
        assert np.isfinite(sample.values).all()
    json.dumps(player.totals(), allow_nan=False)


_WORDS = ("gpus", "type", "count", "memory", "mig", "labels", "GiB", "GB", "1g.18gb", "7g.141gb", *boxes.CATALOG.models)

TARGETS = (
    Target("exporter-configs", _config, encoded([_CONFIG, "gpus: [{type: h200}]"]), _WORDS),
    Target(
        "workload-files", _workload,
        (*encoded([annotated.PROFILE, annotated.PHASES]), *files("examples/11-load/*.yaml")),
    ),
    Target(
        "load-profiles", _profile, (*encoded([_PROFILE]), *files("examples/11-load/load.yaml")),
        ("phases", "seconds", "shape", "demand", "duty", "period", "fb_mib", "name", *shapes.load()),
    ),
)  # fmt: skip
