"""Layouts of MIG instances: well-known names, mig-parted's entries, and what they make of cards."""

from __future__ import annotations

import contextlib
import functools
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors
from simgpu.catalog import models, placing
from simgpu.topology import mig_files, mig_layouts
from simgpu.topology.mig_layouts import CardLayout

CATALOG = models.load()
DIVISIBLE = [model for model in CATALOG.models.values() if model.mig]
H200, A30, T4 = (CATALOG.models[key] for key in ("h200", "a30", "t4"))


def names(layout: CardLayout | None) -> list[tuple[str, int]]:
    assert layout is not None
    return [(item.name, start) for item, start in zip(layout.instances, layout.starts, strict=True)]


def divided(text: str, *cards: models.Model) -> tuple[CardLayout | None, ...]:
    return mig_layouts.divide(mig_files.read(text, field="file")["x"], cards, field="file")


@pytest.mark.parametrize("layout", ["all-1g.18gb", "listed"])
def test_a_layout_is_placed_once_for_all_cards_of_a_model(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Mock(side_effect=placing.place)
    monkeypatch.setattr(placing, "place", place)
    listed = "mig-configs: {listed: [{devices: all, mig-enabled: true, mig-devices: {1g.18gb: 7}}]}"
    configs = mig_files.read(listed, field="file")
    found = mig_layouts.divide_by_name(layout, configs, [H200] * 1000, field="label")
    assert found == (found[0],) * 1000
    assert 1 <= place.call_count <= 1 + len(H200.mig)


Span = tuple[int, tuple[int, ...]]  # slices of an instance, and where it can start


def spans(model: models.Model) -> tuple[Span, ...]:
    return tuple((placing.memory_slices(item, model), tuple(placing.starts(item, model))) for item in model.mig)


def test_a_layout_fits_if_and_only_if_some_placement_of_its_instances_does_for_every_model_with_mig() -> None:
    tables = {tuple(zip(spans(model), (item.count for item in model.mig), strict=True)): model for model in DIVISIBLE}
    assert len(tables) == 2  # models are alike but for the names: those with seven slices of compute, and with four
    for model in tables.values():
        for counts in product(*(range(profile.count + 1) for profile in model.mig)):
            wanted = [profile for profile, count in zip(model.mig, counts, strict=True) for _ in range(count)]
            if not 0 < sum(placing.memory_slices(item, model) for item in wanted) <= placing.card_slices(model):
                continue
            possible = _fits(tuple(spans(model)[model.mig.index(item)] for item in wanted), frozenset())
            try:
                found = mig_layouts.placed([(item.name, None) for item in wanted], model, field="x")
            except errors.InputError:
                assert not possible, [item.name for item in wanted]
            else:
                _check_disjoint(found, model)
                assert sorted(item.name for item in found.instances) == sorted(item.name for item in wanted)


@functools.cache
def _fits(wanted: tuple[Span, ...], taken: frozenset[int]) -> bool:
    if not wanted:
        return True
    size, starts = wanted[0]
    tried = (frozenset(range(start, start + size)) for start in starts)
    return any(not span & taken and _fits(wanted[1:], taken | span) for span in tried)


def _check_disjoint(found: CardLayout, model: models.Model) -> None:
    taken: set[int] = set()
    for profile, start in zip(found.instances, found.starts, strict=True):
        span = range(start, start + placing.memory_slices(profile, model))
        assert start in placing.starts(profile, model)
        assert taken.isdisjoint(span)
        taken.update(span)


@pytest.mark.parametrize("model", DIVISIBLE, ids=lambda model: model.key)
def test_every_model_with_mig_has_the_well_known_layouts_of_its_profiles(model: models.Model) -> None:
    found = mig_layouts.well_known(model)
    assert found["all-disabled"] == mig_layouts.WHOLE
    assert found["all-enabled"] == CardLayout(enabled=True)
    for profile in model.mig:
        assert found[f"all-{profile.name.replace('+', '.')}"].instances == (profile,) * profile.count
    assert len({item.name for item in found["all-balanced"].instances}) == (2 if model is A30 else 3)


def test_a_balanced_h200_has_its_instances_where_the_driver_puts_them() -> None:
    balanced = mig_layouts.well_known(H200)["all-balanced"]
    assert names(balanced) == [("1g.18gb", 0), ("1g.18gb", 1), ("2g.35gb", 2), ("3g.71gb", 4)]


def test_a_card_that_cannot_be_divided_has_no_layout_but_the_disabled_one() -> None:
    assert list(mig_layouts.well_known(T4)) == ["all-disabled"]
    with pytest.raises(errors.InputError, match=r"no such layout for Tesla T4; there are: all-disabled"):
        mig_layouts.divide_by_name("all-balanced", {}, [T4], field="nvidia.com/mig.config")


def test_a_well_known_name_leaves_cards_of_other_models_as_they_are() -> None:
    h200, a30 = mig_layouts.divide_by_name("all-1g.18gb", {}, [H200, A30], field="x")
    assert names(h200)[0] == ("1g.18gb", 0)
    assert a30 is None


def test_entries_of_a_mig_parted_file_concern_cards_by_index_and_by_pci_id() -> None:
    text = """
version: v1
mig-configs:
  x:
  - {devices: [0], mig-enabled: false}
  - device-filter: ["0x233510DE"]
    devices: [1, 2]
    mig-enabled: true
    mig-devices: {"1g.18gb": 1, "3g.71gb": 1}
"""
    whole, h200, a30 = divided(text, H200, H200, A30)
    assert whole == mig_layouts.WHOLE
    assert names(h200) == [("1g.18gb", 0), ("3g.71gb", 4)]
    assert a30 is None


def test_instances_with_positions_are_where_they_were_put() -> None:
    text = """
mig-configs:
  x:
  - devices: [0]
    mig-enabled: true
    mig-devices: [{name: 2g.35gb, position: 0, size: 2}, {name: 1g.18gb, position: 6}]
"""
    assert names(divided(text, H200)[0]) == [("2g.35gb", 0), ("1g.18gb", 6)]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1}}", "no profile '1g.5gb'; it has: 1g.18gb"),
        ("{devices: all, mig-enabled: true, mig-devices: {4g.71gb: 1, 7g.141gb: 1}}", "does not fit on NVIDIA H200"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.18gb+me: 2}}", "at most 1 of 1g.18gb"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.18gb: 9}}", "a count from 0 to 8"),
        ("{devices: [4], mig-enabled: false}", r"x\[0\].devices: no card 4: the node has 1"),
        ("{devices: some, mig-enabled: false}", r"x\[0\].devices: 'some': must be all, or a list"),
        ("{devices: all, mig-enabled: 1}", "mig-enabled: 1: must be true or false"),
        ("{devices: all, mig-enabled: false, mig-devices: {1g.18gb: 1}}", "a card without MIG has no instances"),
        ("{devices: all, mig-enabled: false, extra: 1}", "'extra': no such key"),
        ('{device-filter: "0x1", devices: all, mig-enabled: true}', "must be PCI ids"),
        ('{device-filter: "0x20B710DE", devices: all, mig-enabled: true}', "concerns none of the node's cards"),
        ("{devices: all, mig-enabled: true, mig-devices: [{name: 2g.35gb, position: 1}]}", "it can at: 0, 2, 4"),
        (
            "{devices: all, mig-enabled: true, mig-devices: [{name: 1g.18gb+me, position: 0}, {name: 1g.18gb+me, position: 1}]}",  # noqa: E501 - one line of a file
            r"NVIDIA H200 has at most 1 of 1g\.18gb\+me",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: [{name: 3g.71gb, position: 0}, {name: 1g.18gb, position: 3}]}",  # noqa: E501 - one line of a file
            "overlaps",
        ),
    ],
)
def test_a_wrong_layout_is_an_error_with_its_place(entry: str, problem: str) -> None:
    with pytest.raises(errors.InputError, match=problem):
        divided(f"mig-configs: {{x: [{entry}]}}", H200)


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
PROFILES = st.sampled_from(["1g.18gb", "3g.71gb", "7g.141gb", "x"])
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "devices": st.sampled_from(["all", [0], [7], [True], [-1]]) | ANYTHING,
        "device-filter": st.sampled_from(["0x233510DE", ["0x233510de", "0x20B710DE"]]) | ANYTHING,
        "mig-enabled": st.booleans() | ANYTHING,
        "mig-devices": st.dictionaries(PROFILES, st.integers(0, 9), max_size=3)
        | st.lists(st.fixed_dictionaries({"name": PROFILES, "position": st.integers(-1, 9)}), max_size=9)
        | ANYTHING,
    },
)


@given(st.lists(ENTRIES, max_size=3) | ANYTHING)
def test_whatever_a_layout_holds_it_is_read_or_refused_with_its_field(document: Any) -> None:
    with contextlib.suppress(errors.InputError):
        for layout in mig_layouts.divide(mig_files.parse_layout(document, field="x"), [H200, A30], field="x"):
            assert layout is None or len(layout.instances) == len(layout.starts)
            if layout is not None and layout.instances:
                _check_disjoint(layout, H200 if layout.instances[0] in H200.mig else A30)
