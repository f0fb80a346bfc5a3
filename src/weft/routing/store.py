"""What a controller holds, on disk: every decision is one transaction, so nothing is lost when it is
killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Fabric, Ints
from weft.routing.controller import Controller, Decision
from weft.routing.forecast import Seen
from weft.routing.traffic import JobTraffic

FILE = "controller.sqlite"
_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists jobs (position integer primary key, name text unique not null, traffic text not
null); create table if not exists routes (job text primary key, links blob not null, width integer not null);
create table if not exists down (nodes text primary key);
create table if not exists seen (job text, collective text, times text, bytes real, primary key (job,
collective)); create table if not exists decisions (number integer primary key, event text not null, decision
text not null);
"""
_ARRAYS = ("source", "target", "bytes", "cap_Bps", "queue_pair", "collective", "job", "rounds", "start_s", "pause_s")


class Store:
    """A folder with the state of one controller.

    Raises:
        BadInput: the folder cannot be used, or holds the state of another fabric or router.
    """

    def __init__(self, folder: str | os.PathLike[str], controller: Controller) -> None:
        self.where = os.fspath(folder)
        self.controller = controller
        with self._readable():
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(Path(folder, FILE), isolation_level=None, timeout=0.0)
        self._saved: dict[str, JobTraffic] = {}
        self._routes: dict[str, Ints] = {}
        try:
            self._open()
            self._claim()
        except BadInput:
            self.close()
            raise

    def _open(self) -> None:
        with self._readable():
            self._base.execute("pragma locking_mode = exclusive")
            self._base.execute("pragma journal_mode = wal")
            self._base.execute("pragma synchronous = full")
            self._base.executescript(_SCHEMA)

    @contextmanager
    def _readable(self, *beside: type[Exception]) -> Iterator[None]:
        errors: tuple[type[Exception], ...] = (OSError, sqlite3.Error, *beside)
        try:
            yield
        except errors as error:
            busy = "locked" in str(error)
            what = "is in use by another controller" if busy else f"cannot be used: {error}"
            raise BadInput(what, where=self.where, remedy="give a folder of its own") from None

    def _claim(self) -> None:
        """Make the folder that of this fabric and router, or check that it is."""
        mine = {"fabric": _fingerprint(self.controller.whole), "router": self.controller.router}
        mine |= {"seed": str(self.controller.seed), "replan_s": repr(self.controller.replan_s)}
        with self._readable():
            there = dict(self._base.execute("select name, value from about"))
        for name, value in mine.items():
            if there.get(name, value) != value:
                raise BadInput(
                    f"holds the state of another {name}", where=self.where, remedy="give the same, or an empty folder"
                )
        with self._readable(), self._base:
            self._base.executemany("insert or ignore into about values (?, ?)", mine.items())

    def load(self) -> int:
        """Give the controller what was saved; the number of decisions so far."""
        with self._readable(ValueError, KeyError, TypeError):
            about = dict(self._base.execute("select name, value from about"))
            if "count" not in about:
                return 0
            jobs = list(self._base.execute("select name, traffic from jobs order by position"))
            routes = {
                name: np.frombuffer(blob, dtype=np.int64).reshape(-1, width).copy()
                for name, blob, width in self._base.execute("select job, links, width from routes")
            }
            seen = {
                (job, collective): Seen(times_s=tuple(json.loads(times)), bytes=bytes_)
                for job, collective, times, bytes_ in self._base.execute("select * from seen")
            }
            down = {tuple(json.loads(nodes)) for (nodes,) in self._base.execute("select nodes from down")}
            self.controller.restore(
                jobs={name: _traffic(text) for name, text in jobs},
                links=routes,
                down=down,
                seen=seen,
                count=int(about["count"]),
                now_s=float(about["now_s"]),
                planned_s=float(about["planned_s"]),
            )
        self._saved, self._routes = dict(self.controller.jobs), dict(self.controller.links)
        return int(about["count"])

    def save(self, event: str, decision: Decision, text: str) -> None:
        """Keep the controller's state after a decision, whole or not at all; it is on disk when this returns.

        Args:
            event: as it was read.
            text: the decision as it is printed.
        """
        one = self.controller
        about = {"count": str(one.count), "now_s": repr(one.now_s), "planned_s": repr(one.planned_s)}
        with self._readable():
            self._base.execute("begin immediate")
            try:
                self._save_jobs()
                self._base.execute("delete from down")
                self._base.executemany("insert into down values (?)", [(json.dumps(n),) for n in sorted(one.down)])
                self._base.execute("delete from seen")
                self._base.executemany(
                    "insert into seen values (?, ?, ?, ?)",
                    [(*key, json.dumps(seen.times_s), seen.bytes) for key, seen in one.seen.items()],
                )
                self._base.executemany("insert or replace into about values (?, ?)", about.items())
                self._base.execute("insert into decisions values (?, ?, ?)", (decision.number, event, text))
                self._base.execute("commit")
            except BaseException:
                self._base.execute("rollback")
                raise

    def _save_jobs(self) -> None:
        jobs = self.controller.jobs
        for name in self._saved.keys() - jobs.keys():
            self._base.execute("delete from jobs where name = ?", (name,))
            self._base.execute("delete from routes where job = ?", (name,))
            self._routes.pop(name, None)
        for name, traffic in jobs.items():
            if self._saved.get(name) is not traffic:
                self._base.execute(
                    "insert into jobs (name, traffic) values (?, ?)"
                    " on conflict (name) do update set traffic = excluded.traffic",
                    (name, _text(traffic)),
                )
        for name, links in self.controller.links.items():
            if name in self._routes and np.array_equal(self._routes[name], links):
                continue
            self._base.execute(
                "insert or replace into routes values (?, ?, ?)",
                (name, np.ascontiguousarray(links, dtype=np.int64).tobytes(), links.shape[1]),
            )
        self._saved, self._routes = dict(jobs), dict(self.controller.links)

    def decisions(self) -> list[str]:
        """All decisions so far, as they were printed."""
        with self._readable():
            return [text for (text,) in self._base.execute("select decision from decisions order by number")]

    def event(self, number: int) -> str:
        """The event behind a decision."""
        with self._readable():
            row = self._base.execute("select event from decisions where number = ?", (number,)).fetchone()
        return str(row[0]) if row else ""

    def close(self) -> None:
        """Let others have the folder."""
        self._base.close()


def _text(traffic: JobTraffic) -> str:
    """A job's traffic as text that reads back the same."""
    table: dict[str, Any] = {name: getattr(traffic, name).tolist() for name in _ARRAYS}
    return json.dumps(table | {"names": traffic.names, "jobs": traffic.jobs})


def _traffic(text: str) -> JobTraffic:
    table = json.loads(text)
    whole = ("source", "target", "queue_pair", "collective", "job", "rounds")
    arrays: dict[str, Any] = {
        name: np.array(table[name], dtype=np.int64 if name in whole else np.float64) for name in _ARRAYS
    }
    return JobTraffic(**arrays, names=tuple(table["names"]), jobs=tuple(table["jobs"]))


def _fingerprint(fabric: Fabric) -> str:
    """What tells fabrics apart: nodes, links and capacities."""
    digest = hashlib.sha256("\n".join(fabric.names).encode())
    for array in (fabric.source, fabric.target, fabric.capacity_Bps, fabric.up):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
