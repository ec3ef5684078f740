"""Whatever a device type file holds, it is refused with the field, or its page is valid and has numbers only."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser

from simgpu import errors
from simgpu.fakedev import device_type, exporter, files
from simgpu.fakedev import identity as identities
from tests.fixtures import fuzzing
from tests.fixtures.strategies import JSON_VALUES

FILES = Path(__file__).parent.parent.parent / "examples" / "10-fakedev"
VALID = tuple((FILES / name).read_text() for name in ("device-type.json", "device-type-tiles.json"))


@functools.cache
def _names(file: str) -> object:
    return files.read(FILES / file)


def check_page(kind: device_type.DeviceType, where: str) -> None:
    """A device of this type has values at rest and at work, within the ranges of its metrics."""
    subdevices = any(metric.of_parts for metric in kind.metrics.values())
    shown = identities.from_json(_names("identity.json"), where="", compatible=True, subdevices=subdevices)
    families = tuple(
        exporter.scoped(item, kind, shown.labels, where=where) for item in shown.families if item.value in kind.metrics
    )
    settings = exporter.FakedevSettings(
        devices=files.devices(FILES / "devices.json", 1, kind.labels, kind.model),
        type=kind, identity=type(shown)(about="", labels=shown.labels, families=families, layout=shown.layout),
        listen=("", 0), socket=Path(),
    )  # fmt: skip
    box = exporter.start(settings, lambda _line: None, seed=1)
    wanted = exporter.reader(settings)({"Name": "w", "Profile": [{"Load": 70}], "Devices": ["card0"]})
    box.admit(wanted.profile, wanted.devices)
    for second in (1.0, 60.0):
        box.step(second, clock=second)
        page = exporter.renderer(settings, box).page().decode()
        values = [sample.value for family in parser.text_string_to_metric_families(page) for sample in family.samples]
        assert all(map(math.isfinite, values))


def check_field(error: errors.InputError, file: Path) -> None:
    """The error names the file."""
    assert str(error).startswith(str(file))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # about what some expressions will mean
@fuzzing.inputs(2000)
@given(JSON_VALUES.map(json.dumps), st.integers(0))
def test_device_type_files(tmp_path: Path, drawn: str, seed: int) -> None:
    file, shown = tmp_path / "type.json", 0
    for text in fuzzing.near(drawn, seed, VALID):
        file.write_text(text, "utf-8", "surrogatepass")
        try:
            kind = device_type.read(file)
            if (shown := shown + 1) <= 1:
                check_page(kind, str(file))
        except errors.InputError as error:
            check_field(error, file)
