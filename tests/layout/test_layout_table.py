"""Tables of layouts: round trips, and the grouping of equal rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.layout.drawn import layouts

from weft.errors import UnknownName
from weft.layout.spec import Layout, PipelineSchedule, Recompute
from weft.layout.table import COLUMNS, LayoutTable, collapse


@given(st.lists(layouts(), min_size=1, max_size=8))
def test_rows_round_trip(rows: list[Layout]) -> None:
    table = LayoutTable.of(rows)
    assert [table.row(i) for i in range(len(table))] == rows
    assert table.world.tolist() == [layout.world for layout in rows]
    assert table.stage_ranks.tolist() == [layout.stage_ranks for layout in rows]


@given(st.lists(layouts(), min_size=1, max_size=8), st.data())
def test_take_and_replace(rows: list[Layout], data: st.DataObject) -> None:
    table = LayoutTable.of(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    taken = table.take(np.array(chosen, dtype=np.intp))
    assert [taken.row(i) for i in range(len(taken))] == [rows[i] for i in chosen]
    other = table.replaced({"x": np.full(len(rows), 5)})
    assert (other.x == 5).all()
    assert all((other.column(name) == table.column(name)).all() for name in COLUMNS if name != "x")


columns = st.integers(1, 40).flatmap(
    lambda length: st.lists(
        st.lists(st.sampled_from([0, 1, 2, 3, 300, 70000, 4_000_000]), min_size=length, max_size=length),
        min_size=1,
        max_size=5,
    )
)


@given(columns)
def test_collapse_groups_exactly_the_equal_rows(values: list[list[int]]) -> None:
    arrays = [np.array(column, dtype=np.int64) for column in values]
    found = collapse(arrays)
    rows = list(zip(*values, strict=True))
    assert len(found.first) == len(set(rows))
    for i, row in enumerate(rows):
        assert rows[found.first[found.group[i]]] == row


def test_words_may_be_strings() -> None:
    layout = Layout(schedule="zbv", recompute="full")  # type: ignore[arg-type]
    assert layout.schedule is PipelineSchedule.ZBV
    assert layout == Layout(schedule=PipelineSchedule.ZBV, recompute=Recompute.FULL)
    assert "schedule='zbv', " in repr(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout
    with pytest.raises(UnknownName, match="unknown schedule 'zbw' -- did you mean zbv"):
        Layout(schedule="zbw")  # type: ignore[arg-type]
