"""Paths of flows as a CSV table, as one measures them (traceroute, INT) or exports them.

A header with ``source``, ``target`` and ``path``: names of nodes from source to target with spaces between.  Optional
are ``queue_pair`` (0), ``job``, ``collective``, ``bytes`` (1), and ``links``: which of several links between two nodes
each hop takes, from 0, with spaces between.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from weft.errors import BadInput
from weft.units import parse_bytes

NEEDED = ("source", "target", "path")
COLUMNS = (*NEEDED, "queue_pair", "job", "collective", "bytes", "links")


def rows(text: str, where: str = "routes") -> Iterator[tuple[dict[str, Any], str]]:
    """The rows as those of ``weft.routes/1``, each with its place in the file.

    Raises:
        BadInput: a missing or unknown column, or a value that cannot be used.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in NEEDED if name not in header]
        strange = [name for name in header if name not in COLUMNS]
        if missing or strange or len(set(header)) < len(header):
            what = f"lacks the column {missing[0]}" if missing else f"has the column {(strange or header)[0][:40]!r}"
            raise BadInput(what, where=f"{where}: line 1", remedy=f"columns: {', '.join(COLUMNS)}")
        for values in reader:
            if any(value.strip() for value in values):
                place = f"{where}: line {reader.line_num}"
                if len(values) != len(header):
                    raise BadInput(f"{len(values)} values for {len(header)} columns", where=place)
                yield _row(dict(zip(header, (value.strip() for value in values), strict=True)), place), place
    except csv.Error as error:
        raise BadInput(f"is no CSV ({error})", where=f"{where}: line {reader.line_num}") from None


def _row(given: dict[str, str], place: str) -> dict[str, Any]:
    row: dict[str, Any] = {"job": given.get("job") or "job", "collective": given.get("collective") or "flows"}
    row |= {"source": given["source"], "target": given["target"], "path": given["path"].split()}
    row["queue_pair"] = _numbers(given.get("queue_pair") or "0", f"{place}: queue_pair")[0]
    if given.get("bytes"):
        row["bytes"] = parse_bytes(given["bytes"], f"{place}: bytes")
    if given.get("links"):
        row["links"] = _numbers(given["links"], f"{place}: links")
    return row


def _numbers(text: str, place: str) -> list[int]:
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise BadInput(f"{text[:40]!r} is no whole number", where=place, remedy="count from 0")
    return [int(word) for word in words]
