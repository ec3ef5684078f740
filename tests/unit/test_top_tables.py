"""Tables of `simgpu top`: whatever the terminal's width, no column is cut off."""

from __future__ import annotations

import pytest

from simgpu.dashboard import answers
from simgpu.top import tables


@pytest.mark.parametrize("columns", [tables.NODES, tables.GPUS, tables.PODS])
def test_columns_that_are_shown_fit_the_terminal(columns: tuple[tables.TableColumn, ...]) -> None:
    for width in range(48, 260):
        shown = tables.widths(columns, width)
        assert sum(room + 1 for _, room in shown) <= width, (width, shown)
    assert len(tables.widths(columns, 120)) == len(columns)


def test_columns_of_pods_with_instances_take_no_more_room() -> None:
    pod = answers.PodSummary("ns", "p", "n", "Running", "", 1, [], 0.0, 0.0, instances=12)
    more = tables.pod_columns([pod])
    assert sum(column.width for column in more) == sum(column.width for column in tables.PODS)
    assert "12 instances " in tables.pod_line(pod, {column.title: column.width for column in more}, 0.0).plain
