"""The results of a study: rows in the order of its points, read from the disk one by one, and filters of rows."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput, UnknownName
from weft.results import Result
from weft.studies.run import Counts, StudyState
from weft.studies.study import Points

OUTCOME = ("failure", "message")
"""Columns of failures, between the axes and the figures."""


class Sweep(Result):
    """The results of a study.

    Attributes:
        points: the points of the study.
        counts: points computed and known.
        version: of Weft, its sources and constants.

    Args:
        keys: of the points.
        temporary: a folder to remove with the result.
    """

    SCHEMA = "weft.sweep/1"
    DOCUMENT = "study compute rows=table"

    def __init__(
        self, points: Points, state: StudyState, keys: NDArray[np.void], counts: Counts, temporary: str | None = None
    ) -> None:
        self.points, self.counts = points, counts
        self.version = state.noted("version") or ""
        self._kept, self._keys = state, keys
        self._columns: dict[str, type] = {}
        self._end = weakref.finalize(self, _end, state, temporary)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each point that was computed, in order: its values, ``failure`` and ``message``, figures."""
        for number, row in enumerate(self._kept.rows(self._keys)):
            if row is not None:
                yield self.points.table(number) | row

    def columns(self) -> Mapping[str, type]:
        """Names of all columns with the type of their values: bool, int, float or str."""
        if not self._columns:
            result: dict[str, type] = dict.fromkeys((*self.points.columns, *OUTCOME), type(None))
            for row in self.rows():
                for name, value in row.items():
                    result[name] = _wider(result.get(name, type(None)), type(value))
            self._columns = {name: str if kind is type(None) else kind for name, kind in result.items()}
        return self._columns

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows, each with all columns."""
        empty = dict.fromkeys(self.columns())
        return [empty | row for row in self.rows()]

    def close(self) -> None:
        """Release the state; there are no rows after that."""
        self._end()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def study(self) -> str:
        return self.points.study.name

    @property
    def compute(self) -> str:
        return self.points.study.computation.name

    @property
    def table(self) -> list[dict[str, Any]]:
        """The rows, each with all columns."""
        return self.to_dicts()


def _wider(first: type, second: type) -> type:
    """The type that holds values of two."""
    if first is second or second is type(None):
        return first
    if first is type(None):
        return second
    return float if {first, second} == {int, float} else str


def _end(state: StudyState, temporary: str | None) -> None:
    state.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


Rows = list[dict[str, Any]]


def filtered(rows: Iterable[dict[str, Any]], where: Sequence[str], columns: Collection[str]) -> Rows:
    """The rows that match "COLUMN=VALUE" filters, one of those for each column.

    Raises:
        BadInput: a filter cannot be used.
    """
    wanted: dict[str, list[str]] = {}
    for text in where:
        name, sign, value = text.partition("=")
        if not sign:
            raise BadInput(
                f"{text[:60]!r} is not a filter", where="--where", remedy="write COLUMN=VALUE, as count=1024"
            )
        wanted.setdefault(column_of(name, columns, "--where"), []).append(value.strip())
    return [row for row in rows if all(_one_of(row.get(name), values) for name, values in wanted.items())]


def _one_of(value: Any, texts: Sequence[str]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() in [text.lower() for text in texts]
    for text in texts:
        with suppress(ValueError):
            if float(text) == value:
                return True
    return False


def column_of(name: str, columns: Collection[str], where: str) -> str:
    """The name of a column, as an option has it."""
    if name.strip() not in columns:
        raise UnknownName("column", name.strip()[:60], columns, where=where)
    return name.strip()
