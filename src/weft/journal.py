"""Decisions of a controller on disk: each is one transaction with the state behind it, so nothing is lost when the
process is killed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from weft.errors import BadInput
from weft.states import State

_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists decisions (number integer primary key, event text not null, decision text not null);
"""


class Journal(State):
    """A folder with the state of one controller: its decisions, facts about it, and its tables.

    Args:
        file: name of the file in the folder.
        mine: facts that stay, such as a seed; the folder becomes that of these facts.
        schema: statements that make the controller's own tables.

    Raises:
        BadInput: the folder cannot be used, or holds the state of a controller with other facts.
    """

    def __init__(self, folder: str | os.PathLike[str], file: str, mine: Mapping[str, str], *, schema: str) -> None:
        super().__init__(folder, file=file, schema=_SCHEMA + schema, user="controller")
        try:
            self.claim(mine)
        except BadInput:
            self.close()
            raise

    @contextmanager
    def _loading(self) -> Iterator[dict[str, str]]:
        """The facts, while a controller's state is read; what is wrong with it is named."""
        try:
            about = dict(self.base.execute("select name, value from about"))
            if "count" in about:
                count = self.base.execute("select count(*) from decisions").fetchone()[0]
                if int(about["count"]) != count:
                    raise ValueError("decisions are missing")
            yield about
        except (sqlite3.Error, BadInput) as error:
            raise self.damaged(str(error)) from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            raise self.damaged(f"{type(error).__name__} {error}") from None

    @contextmanager
    def _saving(self, number: int, event: str, text: str, about: Mapping[str, str]) -> Iterator[None]:
        """Keep a decision with what is executed meanwhile, whole or not at all; it is on disk afterwards."""
        with self.transaction() as base:
            yield
            facts = {**about, "count": str(number)}
            base.executemany("insert or replace into about values (?, ?)", facts.items())
            base.execute("insert into decisions values (?, ?, ?)", (number, event, text))

    def decisions(self) -> list[str]:
        """All decisions so far, as they were printed."""
        with self.readable():
            return [str(text) for (text,) in self.base.execute("select decision from decisions order by number")]

    def event(self, number: int) -> str:
        """The event behind a decision."""
        with self.readable():
            row = self.base.execute("select event from decisions where number = ?", (number,)).fetchone()
        return str(row[0]) if row else ""
