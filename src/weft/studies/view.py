"""Rows of a study looked at: those that have given values, and columns by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from weft.errors import BadInput, UnknownName

Rows = list[dict[str, Any]]


def filtered(rows: Iterable[dict[str, Any]], where: Sequence[str], columns: Collection[str]) -> Rows:
    """The rows with given values.

    Args:
        where: "COLUMN=VALUE"; of several for one column, one must hold.

    Raises:
        BadInput: a filter cannot be used.
    """
    wanted: dict[str, list[str]] = {}
    for text in where:
        name, sign, value = text.partition("=")
        if not sign:
            raise BadInput(f"{text[:60]!r} is no filter", where="--where", remedy="write COLUMN=VALUE, as count=1024")
        wanted.setdefault(_column(name, columns, "--where"), []).append(value.strip())
    return [row for row in rows if all(_one_of(row.get(name), values) for name, values in wanted.items())]


def _one_of(value: Any, texts: Sequence[str]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() in [text.lower() for text in texts]
    return any(_number(text) == value for text in texts)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
