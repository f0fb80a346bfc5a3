"""Events of a controller: lines of a file or of standard input, less those that were decided on before."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.journal import Journal

Timed = tuple[float, str, str]
"""Time, place and text of an event."""


def undecided(
    path: str | None, journal: Journal | None, done: int, *, first: int = 0, beside: Sequence[Timed] | None = None
) -> Iterator[tuple[str, str]]:
    """Place and text of every event that a controller has not decided on.

    Args:
        path: a file; standard input where it is None, which never repeats events (unless there are events ``beside``:
            those alone then).
        done: decisions in the journal, which the first events of a file must be those of.
        first: how many of these are of no file.
        beside: events of other files in order of time, which go among those of ``path`` by their time.

    Raises:
        BadInput: no such file, not text, or other events than those decided on.
    """
    where = path or "standard input"
    decided = first
    given = _lines(path) if path is not None or beside is None else iter(())
    placed = ((f"{where}: line {number}", line) for number, line in given)
    for place, line in _among(placed, beside) if beside else placed:
        if (path is not None or beside is not None) and journal is not None and decided < done:
            decided += 1
            if journal.event(decided) != line.strip():
                raise BadInput(
                    f"is not event {decided} of the state in {journal.where}",
                    where=place,
                    remedy="give the file that was watched, or an empty --state folder",
                )
            continue
        yield place, line


def _among(placed: Iterator[tuple[str, str]], beside: Sequence[Timed]) -> Iterator[tuple[str, str]]:
    """Events of a file and others by their time; at one time the file's come first."""
    others = iter(beside)
    waiting = next(others, None)
    for place, line in placed:
        time_s = _time_s(line)
        while waiting is not None and waiting[0] < time_s:
            yield waiting[1:]
            waiting = next(others, None)
        yield place, line
    while waiting is not None:
        yield waiting[1:]
        waiting = next(others, None)


def _time_s(line: str) -> float:
    """The time of an event; of a line that is none, at once, so that it is refused in its place."""
    try:
        return float(json.loads(line)["time_s"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return 0.0


def _lines(path: str | None) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    if path is None:
        stream: TextIO = sys.stdin
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
        except UnicodeDecodeError:
            raise BadInput("is not text in UTF-8", where="standard input") from None
        return
    from weft.files import read_text

    text = read_text(Path(path), where=path)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line
