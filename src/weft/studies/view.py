"""Rows of a study looked at: those that conditions keep, the Pareto frontier, two columns against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from weft.errors import BadInput, UnknownName
from weft.studies.conditions import Condition

Rows = list[dict[str, Any]]


def filtered(rows: Iterable[dict[str, Any]], where: Sequence[str], columns: Collection[str]) -> Rows:
    """The rows for which all conditions hold.

    Raises:
        BadInput: a condition cannot be used.
    """
    conditions = [Condition(text, columns, "--where") for text in where]
    return [row for row in rows if all(one(row.get) for one in conditions)]


def goals_of(text: str, columns: Collection[str]) -> dict[str, float]:
    """The columns of goals, as "usd,max:tokens_per_s", with the sign by which less is better.

    Raises:
        BadInput: a goal is no column.
    """
    signs = {}
    for one in text.split(","):
        direction, _, name = one.strip().rpartition(":")
        if direction not in ("", "min", "max"):
            raise BadInput(f"{one[:60]!r} is no goal", where="--pareto", remedy="write it like usd,max:tokens_per_s")
        signs[_column(name, columns, "--pareto")] = -1.0 if direction == "max" else 1.0
    return signs


def pareto(rows: Rows, goals: str, columns: Collection[str]) -> Rows:
    """The rows that no other is at least as good as in every goal and better in one; rows without a value are out.

    Args:
        goals: columns, the least of each is best, or the most after "max:", as "usd,max:tokens_per_s".

    Raises:
        BadInput: a goal is no column of numbers.
    """
    signs = goals_of(goals, columns)
    known = [row for row in rows if all(row.get(name) is not None for name in signs)]
    for name in signs:
        if odd := [row[name] for row in known if isinstance(row[name], str)][:1]:
            raise BadInput(f"{name} holds {odd[0]!r}", where="--pareto", remedy="name columns of numbers")
    scored = [(tuple(sign * row[name] for name, sign in signs.items()), row) for row in known]
    best: list[tuple[float, ...]] = []
    for score in sorted({one for one, _ in scored}):  # what dominates another comes before it
        if not any(all(a <= b for a, b in zip(other, score, strict=True)) for other in best):
            best.append(score)
    chosen = set(best)
    return [row for score, row in scored if score in chosen]


def pivot(rows: Rows, spec: str, columns: Collection[str]) -> tuple[list[str], Rows]:
    """A table of one column's values by two others: the names of its columns, and its rows.

    Args:
        spec: "ROW:COLUMN:VALUE".

    Raises:
        BadInput: it names no three columns, or a cell would hold several values.
    """
    names = [_column(name, columns, "--pivot") for name in spec.split(":")]
    if len(names) != 3:
        raise BadInput(f"{spec[:60]!r} names no three columns", where="--pivot", remedy="write ROW:COLUMN:VALUE")
    down, across, value = names
    heads = list(dict.fromkeys(str(row.get(across)) for row in rows))
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        line = found.setdefault(row.get(down), {down: row.get(down)})
        head = str(row.get(across))
        if head in line and line[head] != row.get(value):
            cell = f"{down} {row.get(down)}, {across} {head}"
            raise BadInput(f"{cell} has several values", where="--pivot", remedy="leave one with --where")
        line[head] = row.get(value)
    return [down, *heads], list(found.values())


def chosen(text: str, columns: Collection[str], where: str) -> list[str]:
    """The columns that a list with commas names.

    Raises:
        UnknownName: one is none.
    """
    return [_column(name, columns, where) for name in text.split(",") if name.strip()]


def _column(name: str, columns: Collection[str], where: str) -> str:
    if name.strip() not in columns:
        raise UnknownName("column", name.strip()[:60], columns, where=where)
    return name.strip()
