"""Whatever a device type file holds, it is refused with the field, or its page is valid and has numbers only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors
from simgpu.fakedev import device_type
from tests.fixtures import fuzzing
from tests.fixtures.device_types import FILES, check_page
from tests.fixtures.strategies import JSON_VALUES

VALID = tuple((FILES / name).read_text() for name in ("device-type.json", "device-type-tiles.json"))


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
