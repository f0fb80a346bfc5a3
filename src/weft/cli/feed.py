"""Events of a controller: lines of a file or of standard input, less those that were decided on before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.journal import Journal


def undecided(path: str | None, journal: Journal | None, done: int) -> Iterator[tuple[str, str]]:
    """Place and text of every event that a controller has not decided on.

    Args:
        path: a file; standard input where it is None, which never repeats events.
        done: decisions in the journal, which the first events of a file must be those of.

    Raises:
        BadInput: no such file, not text, or other events than those decided on.
    """
    where = path or "standard input"
    decided = 0
    for number, line in _lines(path):
        place = f"{where}: line {number}"
        if path is not None and journal is not None and decided < done:
            decided += 1
            if journal.event(decided) != line.strip():
                raise BadInput(
                    f"is not event {decided} of the state in {journal.where}",
                    where=place,
                    remedy="give the file that was watched, or an empty --state folder",
                )
            continue
        yield place, line


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
