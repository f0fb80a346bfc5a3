"""Looking at rows: those with given values."""

from __future__ import annotations

import pytest

import weft
from weft.commands.sweep import open_sweep
from weft.errors import BadInput
from weft.studies.result import column_of, filtered
from weft.studies.run import StudyState

COLUMNS = ("usd", "name", "failed")
ROWS = [
    {"usd": 1, "name": "a", "failed": False},
    {"usd": 2.5, "name": "tp=8,sp", "failed": True},
    {"usd": 3, "name": "a", "failed": True},
    {"usd": None, "name": "c", "failed": False},
]


def test_filters() -> None:
    assert filtered(ROWS, [], COLUMNS) == ROWS
    assert filtered(ROWS, ["name=a", "failed=true"], COLUMNS) == [ROWS[2]]
    assert filtered(ROWS, ["name=tp=8,sp"], COLUMNS) == [ROWS[1]]
    assert filtered(ROWS, ["usd=1.0", "usd=25e-1", "usd=many"], COLUMNS) == ROWS[:2]
    with pytest.raises(BadInput, match="write COLUMN=VALUE"):
        filtered(ROWS, ["usd > 1"], COLUMNS)
    with pytest.raises(BadInput, match="did you mean usd"):
        filtered(ROWS, ["us=1"], COLUMNS)


def test_columns_are_known() -> None:
    assert column_of(" name", COLUMNS, "--x") == "name"
    with pytest.raises(BadInput, match="did you mean name"):
        column_of("nam", COLUMNS, "--x")


def test_what_a_state_lacks_is_counted(tmp_path):
    axes = {"model": "gpt2-124m", "cluster": "a100-8", "layout": "dp=8", "batch": [8, 16, 24]}
    weft.sweep({"name": "p", "compute": "estimate", "axes": axes}, state=str(tmp_path), workers=1).close()
    kept = StudyState(tmp_path)
    with kept._state.transaction() as base:
        base.execute("delete from results where key = (select min(key) from results)")
    kept.close()
    with open_sweep(tmp_path) as found:
        assert (found.counts.known, found.counts.left, len(list(found.rows()))) == (2, 1, 2)
