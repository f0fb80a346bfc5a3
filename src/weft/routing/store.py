"""What a route controller holds, on disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.routing.controller import Controller, Decision
from weft.routing.telemetry import Health
from weft.routing.traffic import JobTraffic
from weft.states import State

FILE = "controller.sqlite"
_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists decisions (number integer primary key, event text not null, decision text not null);
create table if not exists parts (name text primary key, value blob not null, digest text not null);
"""
_WHOLE = ("source", "target", "queue_pair", "collective", "job", "rounds")
_REAL = ("bytes", "cap_Bps", "start_s", "pause_s")


class Store(State):
    """A folder with the state of one controller and its decisions, each in one transaction with the state behind it.

    The state is in parts, each with its digest: routes index arrays without bounds checks, so that only what a
    controller wrote may be read back.

    Raises:
        BadInput: the folder cannot be used, or holds the state of another fabric or router.
    """

    def __init__(self, folder: str | os.PathLike[str], controller: Controller) -> None:
        self.controller = controller
        self._saved: dict[str, object] = {}
        mine = {"fabric": fingerprint(controller.whole), "router": controller.router}
        mine |= {"seed": str(controller.seed), "replan_s": repr(controller.replan_s)}
        super().__init__(folder, file=FILE, schema=_SCHEMA, user="controller")
        try:
            self.claim(mine)
        except BadInput:
            self.close()
            raise

    def load(self) -> int:
        """Give the controller what was saved; the number of decisions so far.

        Raises:
            BadInput: the file cannot be read, or is not what a controller saved.
        """
        try:
            parts = {}
            for name, value, digest in self.base.execute("select name, value, digest from parts"):
                if hashlib.sha256(value).hexdigest() != digest:
                    raise ValueError(f"{name} is not what was saved")
                parts[name] = value
            clock = json.loads(parts["clock"]) if parts else {"count": 0}
            if clock["count"] != self.base.execute("select count(*) from decisions").fetchone()[0]:
                raise ValueError("decisions are missing")
            if clock["count"]:
                self._restore(clock, parts)
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise self.damaged(f"{type(error).__name__} {error}") from None
        return int(clock["count"])

    def _restore(self, clock: dict[str, Any], parts: dict[str, bytes]) -> None:
        controller = self.controller
        names = clock.pop("jobs")
        health = {(a, b): Health(**known) for a, b, known in json.loads(parts["health"])}
        controller.restore(
            jobs={name: _traffic(json.loads(parts[f"traffic {name}"])) for name in names},
            links={name: np.load(io.BytesIO(parts[f"links {name}"]), allow_pickle=False) for name in names},
            telemetry=replace(controller.telemetry, health=health),
            down=frozenset(map(tuple, clock.pop("down"))),
            **clock,
        )
        self._saved = dict(self._now())

    def save(self, event: str, decision: Decision, text: str) -> None:
        """Keep the controller's state after a decision, whole or not at all; it is on disk when this returns.

        Args:
            event: as it was read.
            text: the decision as it is printed.
        """
        controller = self.controller
        clock: dict[str, Any] = {"count": decision.number, "jobs": list(controller.jobs)}
        clock |= {"now_s": controller.now_s, "planned_s": controller.planned_s, "down": sorted(controller.down)}
        clock |= {"missed": controller.missed, "pace": controller.pace}
        now = dict(self._now())
        with self.transaction():
            self._put("clock", json.dumps(clock).encode())
            for name, value in now.items():
                old = self._saved.get(name)
                if old is not value and not (isinstance(old, np.ndarray) and np.array_equal(old, value)):  # type: ignore[arg-type]
                    self._put(name, _written(value))
            gone = [(name,) for name in self._saved.keys() - now.keys()]
            self.base.executemany("delete from parts where name = ?", gone)
            self.base.execute("insert into decisions values (?, ?, ?)", (decision.number, event, text))
        self._saved = now

    def decisions(self) -> list[str]:
        """All decisions, as they were printed."""
        with self.readable():
            return [text for (text,) in self.base.execute("select decision from decisions order by number")]

    def event(self, number: int) -> str:
        """The event behind a decision."""
        with self.readable():
            row = self.base.execute("select event from decisions where number = ?", (number,)).fetchone()
        return str(row[0]) if row else ""

    def _now(self) -> Iterator[tuple[str, object]]:
        """The parts of the state that seldom change."""
        yield "health", self.controller.telemetry.health
        yield from ((f"traffic {name}", traffic) for name, traffic in self.controller.jobs.items())
        yield from ((f"links {name}", links) for name, links in self.controller.links.items())

    def _put(self, name: str, value: bytes) -> None:
        digest = hashlib.sha256(value).hexdigest()
        self.base.execute("insert or replace into parts values (?, ?, ?)", (name, value, digest))


def _written(value: Any) -> bytes:
    """A part as bytes: an array of links, or health or traffic as JSON."""
    if isinstance(value, np.ndarray):
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        return buffer.getvalue()
    if isinstance(value, JobTraffic):
        table = {column: getattr(value, column).tolist() for column in (*_WHOLE, *_REAL)}
        return json.dumps(table | {"names": value.names, "jobs": value.jobs}).encode()
    return json.dumps([(*ends, asdict(known)) for ends, known in value.items()]).encode()


def _traffic(table: dict[str, Any]) -> JobTraffic:
    arrays: dict[str, Any] = {name: np.array(table[name], dtype=np.int64) for name in _WHOLE}
    arrays |= {name: np.array(table[name], dtype=np.float64) for name in _REAL}
    return JobTraffic(**arrays, names=tuple(table["names"]), jobs=tuple(table["jobs"]))


def fingerprint(fabric: Fabric) -> str:
    """What tells fabrics apart: nodes, links and capacities."""
    digest = hashlib.sha256("\n".join(fabric.names).encode())
    for array in (fabric.source, fabric.target, fabric.capacity_Bps, fabric.up):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
