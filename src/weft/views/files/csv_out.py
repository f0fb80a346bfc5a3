"""Rows as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

_FORMULA = ("=", "+", "-", "@", "|", "%")
_BLANK = ("\t", "\r", "\n")


def rows_to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows, such as those of ``to_dicts``, under a line of column names; lists are joined by semicolons."""
    text = io.StringIO()
    write_csv(text, rows, columns)
    return text.getvalue()


def write_csv(text: IO[str], rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write rows as they come, as ``rows_to_csv`` does; what a row does not have is left empty."""
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([neutral(_plain(row.get(name))) for name in columns])


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def neutral(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a leading apostrophe; everything else is kept."""
    if isinstance(value, str) and (value.startswith(_BLANK) or value.lstrip().startswith(_FORMULA)):
        return f"'{value}"
    return value
