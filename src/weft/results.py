"""What every verb returns: a record that says in short what it is, as a document and as rows of a table."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, ClassVar

from weft.codec import Document, encode
from weft.files import write_text

SHOWN_ROWS = 20
"""Rows of a notebook's table."""


class Result(Document, ABC):
    """Base of the results of Weft's verbs.

    A subclass gives ``to_dicts``, ``_facts`` for people, and ``DOCUMENT`` where its document is not all its fields
    (``weft.codec``). Its dataclass must leave ``__repr__`` to this class (``repr=False``).
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
        """One flat row for each thing found: ``pandas.DataFrame(found.to_dicts())`` is a table."""

    def to_json(self) -> str:
        """The document as text: SI units in the names, the same bytes for the same input."""
        return json.dumps(self.to_dict(), indent=self.INDENT, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file, whole or not at all; ``weft.read`` reads plans and estimates back.

        Raises:
            BadInput: it cannot be written.
        """
        write_text(path, self.to_json())

    def _document(self) -> dict[str, Any]:
        """The document without its ``schema``: the names of ``DOCUMENT``, or all fields."""
        document: dict[str, Any] = encode(self)
        return document

    @abstractmethod
    def _facts(self) -> Sequence[str]:
        """What ``repr`` says, in a few words each."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self._facts())}>"

    def _repr_html_(self) -> str:
        """The facts and the first rows, for notebooks."""
        return f"<p>{escape(repr(self))}</p>{html_table(self._shown())}"

    def _shown(self) -> list[dict[str, Any]]:
        """The rows that a notebook shows."""
        return self.to_dicts()


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first rows as an HTML table, and a line that says how many are left out."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows[:SHOWN_ROWS]
    )
    left = len(rows) - SHOWN_ROWS
    more = f"<p>and {left:,} more rows</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
