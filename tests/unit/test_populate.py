"""What `--gpus` accepts, and how nodes are numbered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors
from simgpu.cluster import populate

MODELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(MODELS, st.integers(1, 1024))
def test_model_and_count_survive_a_round_trip(model: str, count: int) -> None:
    assert str(populate.parse_gpus(f"{model}:{count}")) == f"{model}:{count}"


@pytest.mark.parametrize(
    "text", ["h200", "h200:", ":8", "h200:0", "h200:-1", "h200:1025", "h200:8x", "", "h200:\uff18"]
)
def test_a_malformed_value_names_the_flag_and_what_is_allowed(text: str) -> None:
    with pytest.raises(errors.InputError, match=r"--gpus: .*(MODEL:COUNT|from 1 to 256)"):
        populate.parse_gpus(text)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        gpus = populate.parse_gpus(text)
    except errors.InputError:
        return
    assert str(populate.parse_gpus(str(gpus))) == str(gpus)


def test_node_numbers() -> None:
    assert populate.node_number(populate.node_name(12)) == 12
    assert populate.node_number("kwok-gpu-node-x") is None
    assert populate.node_number("other-1") is None
    assert populate.node_number("kwok-gpu-node-007") is None, "that is not node 7"


def test_every_manifest_can_be_applied() -> None:
    for name in ("stage-crd.yaml", "stages.yaml", "sample.yaml"):
        for body in populate.manifest(name):
            assert body["kind"] in populate._RESOURCES
            assert body["metadata"]["name"]
