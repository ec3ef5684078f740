"""What `--gpus` and the annotation of a node accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors
from simgpu.topology import inline

MODELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(MODELS, st.integers(1, 1024))
def test_model_and_count_are_read(model: str, count: int) -> None:
    assert inline.split(f"{model}:{count}", field="--gpus") == (model, count)


@pytest.mark.parametrize(
    "text", ["h200", "h200:", ":8", "h200:0", "h200:-1", "h200:1025", "h200:8x", "", "h200:\uff18"]
)
def test_a_malformed_value_names_the_flag_and_what_is_allowed(text: str) -> None:
    with pytest.raises(errors.InputError, match=r"--gpus: .*(MODEL:COUNT|from 1 to 256)"):
        inline.split(text, field="--gpus")


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        model, count = inline.split(text, field="--gpus")
    except errors.InputError:
        return
    assert inline.split(f"{model}:{count}", field="--gpus") == (model, count)
