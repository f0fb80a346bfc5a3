"""Looking at rows: those with given values."""

from __future__ import annotations

import pytest

from weft.errors import BadInput
from weft.studies.view import chosen, filtered

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
    assert chosen("usd, name", COLUMNS, "--columns") == ["usd", "name"]
    with pytest.raises(BadInput, match="did you mean name"):
        chosen("nam", COLUMNS, "--columns")
