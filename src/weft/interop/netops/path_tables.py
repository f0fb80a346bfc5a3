"""Paths of flows as a CSV table, as one measures them (traceroute, INT) or exports them.

A header with ``source``, ``target`` and ``path``: names of nodes from source to target with spaces between.  Optional
are ``queue_pair`` (0), ``job``, ``collective``, ``bytes`` (1), and ``links``: which of several links between two nodes
each hop takes, from 0, with spaces between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.units import parse_bytes

NEEDED = ("source", "target", "path")
COLUMNS = (*NEEDED, "queue_pair", "job", "collective", "bytes", "links")


def rows(text: str, where: str = "routes") -> Iterator[tuple[dict[str, Any], str]]:
    """The rows as those of ``weft.routes/1``, each with its place in the file.

    Raises:
        BadInput: a missing or unknown column, or a value that cannot be used.
    """
    for row, place in csv_rows(text, where, NEEDED, COLUMNS):
        yield _row(row, place), place


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
