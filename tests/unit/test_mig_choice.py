"""Which layout a node gets: label, annotation, pool; and the pool's section in a topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu import errors
from simgpu.catalog import models
from simgpu.cli import main
from simgpu.topology import checking, mig_choice, pools, reading
from simgpu.vocabulary import MIG_CONFIG, RUNAI_MIG_CONFIG

CATALOG = models.load()
RUNAI = "mig-configs: {selected: [{devices: [0], mig-enabled: true, mig-devices: [{name: 3g.71gb, position: 0}]}]}"


def topology(mig: str, more: str = "") -> pools.Topology:
    return reading.parse(f"{more}\nnodePools: {{p: {{gpus: [{{type: h200, count: 2}}], mig: {mig}}}}}", CATALOG)


def profiles(spec: pools.NodeGpus) -> list[list[str]]:
    return [[item.name for item in gpu.layout.instances] for gpu in spec.gpus]


def test_a_pool_has_its_layout_by_name_or_as_it_is() -> None:
    assert profiles(topology("{strategy: single, config: all-3g.71gb}").pools["p"]) == [["3g.71gb"] * 2] * 2
    assert profiles(topology("{config: {1g.35gb: 2}}").pools["p"]) == [["1g.35gb"] * 2] * 2
    listed = "{config: [{devices: [1], mig-enabled: true, mig-devices: {7g.141gb: 1}}]}"
    assert profiles(topology(listed).pools["p"]) == [[], ["7g.141gb"]]


def test_layouts_of_a_mig_parted_file_in_the_topology_come_before_the_well_known_ones() -> None:
    more = "version: v1\nmig-configs: {all-balanced: [{devices: all, mig-enabled: true, mig-devices: {4g.71gb: 1}}]}"
    made = topology("{config: all-balanced}", more)
    assert not made.unknown
    assert profiles(made.pools["p"]) == [["4g.71gb"]] * 2


@pytest.mark.parametrize(
    ("mig", "problem"),
    [
        ("{strategy: both}", "nodePools.p.mig.strategy: 'both': must be one of none, single, mixed"),
        ("{config: all-1g.5gb}", "nodePools.p.mig.config: 'all-1g.5gb': no such layout for NVIDIA H200"),
        ("{config: {3g.71gb: 3}}", "nodePools.p.mig.config: NVIDIA H200 has at most 2"),
        (
            "{config: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1}}]}",
            "nodePools.p.mig.config[0].mig-devices: NVIDIA H200 has no profile '1g.5gb'",
        ),
        ("{layout: x}", "nodePools.p.mig: 'layout': no such key"),
        ("7", "nodePools.p.mig: must be a mapping"),
        ("{config: 7}", "nodePools.p.mig.config: must be"),
        ("{config: all-balanced}, allocation: dra, dra: {dynamicMIG: true}", "mig.config: the pool has dra.dynamicMIG"),
    ],
)
def test_a_wrong_mig_section_is_a_mistake_with_its_path(mig: str, problem: str) -> None:
    with pytest.raises(checking.Mistakes) as caught:
        topology(mig)
    assert problem in str(caught.value)


def test_the_label_comes_before_the_annotation_and_that_before_the_pool() -> None:
    made = topology("{config: all-7g.141gb}")
    pool, annotations = made.pools["p"], {RUNAI_MIG_CONFIG: RUNAI}

    def chosen(labels: dict[str, str], annotated: dict[str, str]) -> list[list[str]]:
        return profiles(mig_choice.apply(mig_choice.choose(labels, annotated, pool), pool, made))

    assert chosen({}, {}) == [["7g.141gb"]] * 2
    assert chosen({}, annotations) == [["3g.71gb"], ["7g.141gb"]]
    assert chosen({MIG_CONFIG: "all-1g.35gb"}, annotations) == [["1g.35gb"] * 4] * 2
    assert chosen({MIG_CONFIG: "all-disabled"}, annotations) == [[], []]


def test_a_choice_differs_where_its_source_or_text_does() -> None:
    plain, divided = topology("{}").pools["p"], topology("{config: {1g.18gb: 1}}").pools["p"]
    choices = [
        mig_choice.choose({}, {}, plain),
        mig_choice.choose({}, {}, divided),
        mig_choice.choose({MIG_CONFIG: "x"}, {}, plain),
        mig_choice.choose({}, {RUNAI_MIG_CONFIG: "x"}, plain),
    ]
    assert len(set(choices)) == 4
    assert [bool(item) for item in choices] == [False, True, True, True]


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("mig-configs: {other: [{devices: all, mig-enabled: false}]}", "must have a layout selected"),
        ("[]", "run.ai/mig.config: must be a mapping"),
        ("version: v2\nmig-configs: {}", "version: 'v2': must be v1"),
        ("mig-configs: {a: " + "x" * 5000, "at most 4096 characters"),
        ("{{", "run.ai/mig.config"),
    ],
)
def test_a_wrong_annotation_is_an_error(annotation: str, problem: str) -> None:
    made = topology("{}")
    with pytest.raises(errors.InputError, match=problem):
        mig_choice.apply(mig_choice.LayoutChoice(RUNAI_MIG_CONFIG, annotation), made.pools["p"], made)


def test_the_pools_strategy_wins_over_the_topologys() -> None:
    made = topology("{strategy: single}", "migStrategy: none")
    assert mig_choice.strategy(made.pools["p"], made) == "single"
    made = topology("{}", "migStrategy: none")
    assert mig_choice.strategy(made.pools["p"], made) == "none"


def test_config_show_lists_instances_and_config_check_reads_a_mig_parted_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, layouts = tmp_path / "fleet.yaml", tmp_path / "config.yaml"
    fleet.write_text("nodePools: {p: {gpus: [{type: h200, count: 2}], mig: {config: all-balanced}}}")
    assert main.run(["config", "show", str(fleet)]) == 0
    assert "2 x NVIDIA H200 (143771 MiB), divided into 4 x 1g.18gb, 2 x 2g.35gb, 2 x 3g.71gb" in capsys.readouterr().out
    layouts.write_text("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}")
    assert main.run(["config", "check", str(layouts)]) == 0
    assert "1 MIG layouts, no errors" in capsys.readouterr().out
    layouts.write_text("version: v1\nmig-configs: {a: [{devices: all}]}")
    assert main.run(["config", "check", str(layouts)]) == 2
    assert "mig-configs.a[0].mig-enabled: None: must be true or false" in capsys.readouterr().err
