"""Amounts as Kubernetes writes them, by its rules and exactly."""

from __future__ import annotations

import decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.cluster import populate
from simgpu.controllers import publishing
from simgpu.kube import quantity, views
from simgpu.pods import requests
from simgpu.topology import pools

CONTEXT = decimal.Context(prec=400, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
POWERS = {
    "n": (10, -9), "u": (10, -6), "m": (10, -3), "": (10, 0), "k": (10, 3), "M": (10, 6), "G": (10, 9), "T": (10, 12),
    "P": (10, 15), "E": (10, 18), "Ki": (2, 10), "Mi": (2, 20), "Gi": (2, 30), "Ti": (2, 40), "Pi": (2, 50),
    "Ei": (2, 60),
}  # fmt: skip
DIGITS = st.text("0123456789", min_size=1, max_size=12)
NUMBERS = DIGITS | st.tuples(DIGITS, st.text("0123456789", max_size=12)).map(".".join) | DIGITS.map(lambda n: f".{n}")
EXPONENTS = st.tuples(st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 40).map(str)).map("".join)
SUFFIXES = st.sampled_from(sorted(POWERS)) | EXPONENTS


def expected(sign: str, number: str, suffix: str) -> Fraction:
    """By the rules, in decimal arithmetic."""
    base, power = POWERS[suffix] if suffix in POWERS else (10, int(suffix[1:]))
    with decimal.localcontext(CONTEXT):
        amount = decimal.Decimal(f"0{number}") * decimal.Decimal(base) ** power
        amount = amount.quantize(decimal.Decimal("1e-9"), rounding=decimal.ROUND_UP)
        if base == 2:
            amount = min(amount, decimal.Decimal(2**63 - 1))
        return Fraction(amount.copy_negate() if sign == "-" else amount)


@given(st.sampled_from(["", "+", "-"]), NUMBERS, SUFFIXES)
def test_every_form_is_read_exactly(sign: str, number: str, suffix: str) -> None:
    assert quantity.parse(f"{sign}{number}{suffix}") == expected(sign, number, suffix)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1000", "1k"), ("1k", "1e3"), ("1E3", "1000"), ("0.5", "500m"), ("1Ki", "1024"), ("1.5Gi", "1536Mi"),
        ("+5", "5"),
        ("1E", "1000P"), ("0.1n", "1n"), ("-0.1n", "-1n"), ("8Ei", "9223372036854775807"), ("-0", "0"), ("1.", "1"),
        ("0.1", "100m"), ("1e-3", "1m"), ("00012", "12"),
    ],
)  # fmt: skip
def test_forms_of_one_amount_are_equal(one: str, other: str) -> None:
    assert quantity.parse(one) == quantity.parse(other)


@pytest.mark.parametrize(
    "text",
    [
        "", "-", ".", "k", "1 k", " 1", "1K", "1ki", "1KI", "1mi", "1e", "1e+", "1ee3", "1.2.3", "0x10", "1_000", "NaN",
        "inf", "\u0661", "1\n", "1" * 65, "1e65", "1e-65", "1e9999", "1e99999999999", "--1", "1kk", "1k1", "1.5.Gi",
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_rejected_and_counts_as_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        quantity.parse(text)
    assert quantity.count(text) == 0


@given(st.text(max_size=80) | st.text("0123456789.eEinumkKMGTP+-", max_size=20))
def test_any_text_is_read_or_rejected_in_no_time(text: str) -> None:
    assert 0 <= quantity.count(text) < 10**130


@given(st.integers(0, 10**21))
def test_a_canonical_number_is_the_same_number(number: int) -> None:
    text = quantity.canonical(number)
    assert quantity.parse(text) == number
    assert quantity.canonical(int(quantity.parse(text))) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (8, "8"), (1000, "1k"), (1500, "1500"), (1_000_000, "1M")])
def test_numbers_are_written_as_the_api_server_writes_them(number: int, text: str) -> None:
    assert quantity.canonical(number) == text


def pod(**limits: str) -> views.Pod:
    named = {"gpus": "nvidia.com/gpu", "cpu": "cpu"}
    given = views.Resources(limits={named[name]: value for name, value in limits.items()})
    container = views.Container(name="c", resources=given)
    return views.Pod(metadata=views.ObjectMeta(name="p"), spec=views.PodSpec(containers=(container,)))


@pytest.mark.parametrize(
    ("text", "count"), [("8", 8), ("1k", 1000), ("1e3", 1000), ("0", 0), ("1M", 0), ("1E", 0), ("-1", 0), ("x", 0)]
)
def test_a_pod_asks_for_gpus_in_any_form(text: str, count: int) -> None:
    assert sum(item.count for item in requests.requests(pod(gpus=text))) == count


@pytest.mark.parametrize(
    ("text", "cores"),
    [("2", 2.0), ("500m", 0.5), ("1k", 1000.0), ("1500000u", 1.5), ("2e0", 2.0), ("0", 1.0), ("-2", 1.0), ("x", 1.0)],
)  # fmt: skip
def test_a_limit_of_processors_is_read_in_any_form(text: str, cores: float) -> None:
    assert requests.cores(pod(cpu=text), "c") == cores


def node(gpus: str) -> views.Node:
    return views.Node(metadata=views.ObjectMeta(name="n"), status=views.NodeStatus(capacity={"nvidia.com/gpu": gpus}))


def test_gpus_of_nodes_are_added_up_in_any_form() -> None:
    assert populate.gpu_count([node("8"), node("1k"), node("2e1"), node("nonsense")]) == 1028


def test_gpus_that_are_divided_count_as_their_instances() -> None:
    amounts = {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.18gb": "7", "nvidia.com/mig-3g.71gb": "2", "cpu": "32"}
    made = views.Node(metadata=views.ObjectMeta(name="n"), status=views.NodeStatus(capacity=amounts))
    assert (populate.gpu_count([made]), populate.gpu_count([made], divided=False)) == (10, 1)


def test_a_thousand_gpus_are_written_once() -> None:
    model = models.load().models["h200"]
    spec: Any = pools.NodeGpus((pools.NodeGpu(model),) * 1000, {"rdma/hca": 5000})
    assert publishing.amounts(spec, "mixed") == {"nvidia.com/gpu": "1k", "rdma/hca": "5k"}
