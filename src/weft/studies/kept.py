"""Results on disk, by key; a transaction survives any kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.states import State
from weft.studies.points import KEY_BYTES

FILE = "sweep.sqlite"
_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists results (key blob primary key, failed integer not null, result text not null)
without rowid;
"""
_AT_ONCE = 500


class StudyState:
    """A folder with the results of the studies of one name, by one version of Weft.

    Raises:
        BadInput: the folder cannot be used, is in use, or has results of another study or version.
    """

    def __init__(self, folder: str | os.PathLike[str], about: dict[str, str] | None = None) -> None:
        self.folder = os.fspath(folder)
        self._state = State(folder, file=FILE, schema=_SCHEMA, user="sweep")
        try:
            self._state.claim(about or {})
        except BaseException:
            self.close()
            raise

    def keys(self) -> NDArray[np.void]:
        """Keys of all results, sorted."""
        with self._state.readable():
            result = b"".join(key for (key,) in self._state.base.execute("select key from results order by key"))
        if len(result) % KEY_BYTES:
            raise self._state.damaged("a key has another length")
        return np.frombuffer(result, dtype=f"V{KEY_BYTES}")

    def add(self, results: Sequence[tuple[bytes, str]]) -> None:
        """Keep results; they are on the disk when this returns."""
        rows = [(key, text.startswith('{"failure":"'), text) for key, text in results]
        with self._state.transaction() as base:
            base.executemany("insert or replace into results values (?, ?, ?)", rows)

    def rows(self, keys: NDArray[np.void]) -> Iterator[dict[str, Any] | None]:
        """The row of each key, in the order of the keys; None for keys without a result."""
        for begin in range(0, len(keys), _AT_ONCE):
            wanted = [bytes(key) for key in keys[begin : begin + _AT_ONCE]]
            marks = ",".join("?" * len(wanted))
            with self._state.readable():
                query = f"select key, result from results where key in ({marks})"
                result = dict(self._state.base.execute(query, wanted))
            for key in wanted:
                try:
                    row = json.loads(result[key]) if key in result else None
                except (ValueError, TypeError, RecursionError):
                    raise self._state.damaged("a result is not JSON") from None
                if key in result and not isinstance(row, dict):
                    raise self._state.damaged("a result is not a row")
                yield row

    def note(self, name: str, value: str) -> None:
        """Keep a text under a name."""
        with self._state.transaction() as base:
            base.execute("insert or replace into about values (?, ?)", (name, value))

    def noted(self, name: str) -> str | None:
        """The text under a name."""
        with self._state.readable():
            row = self._state.base.execute("select value from about where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Release the folder."""
        self._state.close()
