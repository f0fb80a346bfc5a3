"""What every command returns in Python: a record with a verdict, a document, rows of a table, and often a chart."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from weft.codec import Document, encode
from weft.errors import MissingExtra
from weft.files import write_text


class Result(Document, ABC):
    """Base of the results of Weft's commands.

    A subclass gives ``to_dicts``, and ``DOCUMENT`` where its document is not all its fields (``weft.codec``); its
    dataclass must leave ``__repr__`` to this class (``repr=False``).  ``weft.views`` has its view and chart.
    """

    __slots__ = ()
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    """Columns of the rows, where they are known without rows."""

    INDENT: ClassVar[int | None] = 1
    """Blanks by which the document's text is indented; None puts long lists on one line."""

    def to_dict(self) -> dict[str, Any]:
        """The document that the command line writes with ``--format json``; ``schema`` comes first, where the
        result is a separate document."""
        return ({"schema": self.SCHEMA} if self.SCHEMA else {}) | self._document()

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows that the command line writes with ``--format csv``, one for each layout, flow, run, ..."""

    def to_dataframe(self) -> Any:
        """The rows of ``to_dicts`` as a ``pandas.DataFrame``, or a ``polars.DataFrame`` if only polars is installed.

        Raises:
            MissingExtra: neither is installed.
        """
        rows = self.to_dicts()
        table = {name: [row.get(name) for row in rows] for name in columns_of(self, rows)}
        if find_spec("pandas"):
            return import_module("pandas").DataFrame(table)
        if find_spec("polars"):
            return import_module("polars").DataFrame(table, strict=False)
        raise MissingExtra("to_dataframe", "dataframe")

    def to_json(self) -> str:
        """The document as text: SI units in the names, the same bytes for the same input."""
        return json.dumps(self.to_dict(), indent=self.INDENT, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file, whole or not at all; ``weft.read`` reads plans and estimates back.

        Raises:
            BadInput: it cannot be written.
        """
        write_text(path, self.to_json())

    def chart(self, **options: Any) -> Any:
        """The Altair chart that ``--chart`` of the command draws; notebooks show it, its ``save("x.svg")`` writes it.

        Args:
            options: ``pareto=True`` of a plan; ``x``, ``y``, ``colour`` and ``facet`` of a sweep.

        Raises:
            BadInput: such results have no chart.
            MissingExtra: Altair is not installed.
        """
        return _views().chart_of(self, **options)

    def _document(self) -> dict[str, Any]:
        """The document without its ``schema``: the names of ``DOCUMENT``, or all fields."""
        document: dict[str, Any] = encode(self)
        return document

    def __repr__(self) -> str:
        verdict: str = _views().verdict(self)
        return verdict

    def _repr_html_(self) -> str:
        """What the command prints, for notebooks."""
        page: str = _views().notebook_html(self)
        return page


def columns_of(result: Result, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the columns of a result's rows, in order."""
    return result.COLUMNS or tuple(rows[0] if rows else ())


def _views() -> Any:
    """How results look.  Views are above the results, so they are imported only when one is shown."""
    return import_module("weft.views")
