"""Looking at rows: filters, the Pareto frontier against brute force, pivots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.studies.view import chosen, filtered, pareto, pivot

COLUMNS = ("usd", "speed", "name")
ROWS = [
    {"usd": 1, "speed": 2.0, "name": "a"},
    {"usd": 2, "speed": 5.0, "name": "b"},
    {"usd": 3, "speed": 4.0, "name": "a"},
    {"usd": None, "speed": None, "name": "c"},
]


def test_filters() -> None:
    assert filtered(ROWS, ["usd >= 2", "name == 'a'"], COLUMNS) == [ROWS[2]]
    assert filtered(ROWS, ["not usd >= 2"], COLUMNS) == [ROWS[0], ROWS[3]]


def test_the_frontier() -> None:
    assert pareto(ROWS, "usd,max:speed", COLUMNS) == ROWS[:2]
    assert pareto(ROWS, "min:usd", COLUMNS) == ROWS[:1]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_the_frontier_is_what_brute_force_finds(points: list[tuple[int, int, int]]) -> None:
    rows: list[dict[str, Any]] = [{"a": a, "b": b, "c": c} for a, b, c in points]

    def beats(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
        signed = [(one[0], other[0]), (-one[1], -other[1]), (one[2], other[2])]
        return all(x <= y for x, y in signed) and any(x < y for x, y in signed)

    expected = [row for row, point in zip(rows, points, strict=True) if not any(beats(one, point) for one in points)]
    assert pareto(rows, "a,max:b,min:c", ("a", "b", "c")) == expected


def test_pivots() -> None:
    names, rows = pivot(ROWS[:3], "usd:name:speed", COLUMNS)
    assert names == ["usd", "a", "b"]
    assert rows == [{"usd": 1, "a": 2.0}, {"usd": 2, "b": 5.0}, {"usd": 3, "a": 4.0}]
    with pytest.raises(BadInput, match="usd 1, name a has several values"):
        pivot([*ROWS[:3], {"usd": 1, "speed": 9.0, "name": "a"}], "usd:name:speed", COLUMNS)


@pytest.mark.parametrize("goals", ["cost", "best:usd", "name", ""])
def test_goals_that_are_none(goals: str) -> None:
    with pytest.raises(BadInput):
        pareto(ROWS, goals, COLUMNS)


def test_columns_are_known() -> None:
    assert chosen("usd, name", COLUMNS, "--columns") == ["usd", "name"]
    with pytest.raises(BadInput, match="did you mean speed"):
        chosen("sped", COLUMNS, "--columns")
    with pytest.raises(BadInput):
        pivot(ROWS, "usd:name", COLUMNS)
