"""Tables of `simgpu top`: whatever the terminal's width, no column is cut off."""

from __future__ import annotations

import pytest

from simgpu.top import tables


@pytest.mark.parametrize("columns", [tables.NODES, tables.GPUS, tables.PODS])
def test_columns_that_are_shown_fit_the_terminal(columns: tuple[tables.TableColumn, ...]) -> None:
    for width in range(48, 260):
        shown = tables.widths(columns, width)
        assert sum(room + 1 for _, room in shown) <= width, (width, shown)
    assert len(tables.widths(columns, 120)) == len(columns)
