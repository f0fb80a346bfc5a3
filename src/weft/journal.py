"""Decisions of a controller on disk: each is one transaction with the state behind it, so nothing is lost when the
process is killed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from weft.errors import BadInput

_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists decisions (number integer primary key, event text not null, decision text not null);
"""
_TABLES = ("about", "decisions")


class Journal:
    """A folder with the state of one controller: its decisions, facts about it, and tables of its own.

    Args:
        file: name of the file in the folder.
        mine: facts that stay, such as a seed; the folder becomes that of these facts.
        schema: statements that make the controller's own tables.
        tables: names of these.

    Raises:
        BadInput: the folder cannot be used, or holds the state of a controller with other facts.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        file: str,
        mine: Mapping[str, str],
        *,
        schema: str,
        tables: tuple[str, ...],
    ) -> None:
        self.where, self._file = os.fspath(folder), file
        with self._readable():
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(Path(folder, file), isolation_level=None, timeout=0.0)
        try:
            self._open(_SCHEMA + schema, (*_TABLES, *tables))
            self._claim(mine)
        except BadInput:
            self.close()
            raise

    def _open(self, schema: str, tables: tuple[str, ...]) -> None:
        with self._readable():
            self._base.execute("pragma locking_mode = exclusive")
            self._base.execute("pragma journal_mode = wal")
            self._base.execute("pragma synchronous = full")
            there = {name for (name,) in self._base.execute("select name from sqlite_master where type = 'table'")}
        if there and (missing := [name for name in tables if name not in there]):
            raise self._damaged(f"it has no table {missing[0]}")
        with self._readable():
            self._base.executescript(schema)

    def _damaged(self, why: str) -> BadInput:
        remedy = "restore a copy of the folder, or give an empty one to begin anew"
        return BadInput(f"the state in {self._file} is damaged: {why}", where=self.where, remedy=remedy)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            busy = "locked" in str(error)
            what = "is in use by another controller" if busy else f"cannot be used: {error}"
            raise BadInput(what, where=self.where, remedy="give a folder of its own") from None

    def _claim(self, mine: Mapping[str, str]) -> None:
        with self._readable():
            there = dict(self._base.execute("select name, value from about"))
        for name, value in mine.items():
            if there.get(name, value) != value:
                raise BadInput(
                    f"holds the state of another {name}", where=self.where, remedy="give the same, or an empty folder"
                )
        with self._readable(), self._base:
            self._base.executemany("insert or ignore into about values (?, ?)", mine.items())

    @contextmanager
    def _loading(self) -> Iterator[dict[str, str]]:
        """The facts, while a controller's state is read; what is wrong with it is named.

        Raises:
            BadInput: the file cannot be read, holds what no controller saves, or decisions are missing.
        """
        try:
            about = dict(self._base.execute("select name, value from about"))
            if "count" in about:
                held = self._base.execute("select count(*) from decisions").fetchone()[0]
                if int(about["count"]) != held:
                    raise ValueError("decisions are missing")
            yield about
        except (sqlite3.Error, BadInput) as error:
            raise self._damaged(str(error)) from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            raise self._damaged(f"{type(error).__name__} {error}") from None

    @contextmanager
    def _saving(self, number: int, event: str, text: str, about: Mapping[str, str]) -> Iterator[None]:
        """Keep a decision with what is executed meanwhile, whole or not at all; it is on disk afterwards."""
        with self._readable():
            self._base.execute("begin immediate")
            try:
                yield
                facts = {**about, "count": str(number)}
                self._base.executemany("insert or replace into about values (?, ?)", facts.items())
                self._base.execute("insert into decisions values (?, ?, ?)", (number, event, text))
                self._base.execute("commit")
            except BaseException:
                self._base.execute("rollback")
                raise

    def decisions(self) -> list[str]:
        """All decisions so far, as they were printed."""
        with self._readable():
            return [str(text) for (text,) in self._base.execute("select decision from decisions order by number")]

    def event(self, number: int) -> str:
        """The event behind a decision."""
        with self._readable():
            row = self._base.execute("select event from decisions where number = ?", (number,)).fetchone()
        return str(row[0]) if row else ""

    def close(self) -> None:
        """Let others have the folder."""
        self._base.close()
