"""States of long runs: a SQLite file in a folder, which survives being killed at any instant and which one process
uses at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from weft.errors import BadInput


class State:
    """The state of one run in a folder; a transaction is on the disk when its block ends, whole or not at all.

    Attributes:
        where: the folder, as messages name it.
        base: the connection.

    Args:
        file: the file's name in the folder.
        schema: SQL that makes the tables; one of them is ``about (name, value)``.
        user: what uses such a state, as messages name it.

    Raises:
        BadInput: the folder cannot be used, is in use, or the file is none of this kind.
    """

    def __init__(self, folder: str | os.PathLike[str], *, file: str, schema: str, user: str) -> None:
        self.where = os.fspath(folder)
        self._file, self._user = file, user
        with self.readable():
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.base = sqlite3.connect(Path(folder, file), isolation_level=None, timeout=_PATIENCE_S)
        try:
            self._open(schema)
        except BadInput:
            self.close()
            raise

    def _open(self, schema: str) -> None:
        with closing(sqlite3.connect(":memory:")) as wanted:
            wanted.executescript(schema)
            tables = [name for (name,) in wanted.execute(_TABLES)]
        with self.readable():
            self.base.execute("pragma locking_mode = exclusive")
            self.base.execute("pragma journal_mode = wal")
            self.base.execute("pragma synchronous = full")
            there = {name for (name,) in self.base.execute(_TABLES)}
        if there and (missing := [name for name in tables if name not in there]):
            raise self.damaged(f"it has no table {missing[0]}")
        with self.readable():  # whole or not at all: a file with some of the tables would count as damaged
            self.base.executescript(f"begin immediate;{schema};commit;")

    def damaged(self, why: str) -> BadInput:
        """The error of a file that holds what Weft does not write."""
        remedy = "restore a copy of the folder, or give an empty one to start from the beginning"
        return BadInput(f"the state in {self._file} is damaged: {why}", where=self.where, remedy=remedy)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Turn what SQLite and the file system refuse into an error for people."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                problem, remedy = f"is in use by another {self._user}", "give it its own folder"
            elif "full" in str(error):
                problem, remedy = "there is no space left", "make room; what was kept before is kept"
            else:
                problem, remedy = f"cannot be used: {error}", "give it its own folder"
            raise BadInput(problem, where=self.where, remedy=remedy) from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A block whose changes are on the disk when it ends, or none of them where it raises."""
        with self.readable():
            self.base.execute("begin immediate")
            try:
                yield self.base
                self.base.execute("commit")
            except BaseException:
                if self.base.in_transaction:
                    self.base.execute("rollback")
                raise

    def claim(self, mine: Mapping[str, str]) -> None:
        """Make the folder that of the run with these properties, or check that it is.

        Raises:
            BadInput: it is that of another one.
        """
        with self.readable():
            facts = dict(self.base.execute("select name, value from about"))
        for name, value in mine.items():
            if facts.get(name, value) != value:
                raise BadInput(
                    f"holds the state of another {name}", where=self.where, remedy="give the same, or an empty folder"
                )
        with self.transaction() as base:
            base.executemany("insert or ignore into about values (?, ?)", mine.items())

    def close(self) -> None:
        """Let others have the folder."""
        self.base.close()


_PATIENCE_S = 0.5
"""How long a state is waited for."""
_TABLES = "select name from sqlite_master where type = 'table'"
