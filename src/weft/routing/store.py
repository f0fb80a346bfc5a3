"""What a route controller holds, on disk."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import sqlite3
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from weft.codec import decode, number, table_of
from weft.errors import BadInput
from weft.fabric.spec import Fabric, Ints
from weft.routing.controller import Controller, Decision
from weft.routing.telemetry import Health, Telemetry
from weft.routing.traffic import JobTraffic, check_traffic
from weft.states import State

FILE = "controller.sqlite"
_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists decisions (number integer primary key, event text not null, decision text not null);
create table if not exists jobs (position integer primary key, name text unique not null, traffic text not null);
create table if not exists routes (job text primary key, links blob not null, width integer not null);
create table if not exists down (nodes text primary key);
create table if not exists health (source text, target text, known text not null, primary key (source, target));
"""
_ARRAYS = ("source", "target", "bytes", "cap_Bps", "queue_pair", "collective", "job", "rounds", "start_s", "pause_s")
_WHOLE = ("source", "target", "queue_pair", "collective", "job", "rounds")
_MOST_ROUNDS = 2**31


class Store(State):
    """A folder with the state of one controller and its decisions, each in one transaction with the state behind it.

    Raises:
        BadInput: the folder cannot be used, or holds the state of another fabric or router.
    """

    def __init__(self, folder: str | os.PathLike[str], controller: Controller) -> None:
        self.controller = controller
        self._saved: dict[str, JobTraffic] = {}
        self._routes: dict[str, Ints] = {}
        self._health: object = None
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
            BadInput: the file cannot be read, or holds what no controller of this fabric saves.
        """
        try:
            about = dict(self.base.execute("select name, value from about"))
            if "count" not in about:
                return 0
            if int(about["count"]) != self.base.execute("select count(*) from decisions").fetchone()[0]:
                raise ValueError("decisions are missing")
            state = self._state(about)
        except (sqlite3.Error, BadInput) as error:
            raise self.damaged(str(error)) from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            raise self.damaged(f"{type(error).__name__} {error}") from None
        self.controller.restore(**state)
        self._saved, self._routes = dict(self.controller.jobs), dict(self.controller.links)
        return int(state["count"])

    def _state(self, about: dict[str, str]) -> dict[str, Any]:
        """What ``Controller.restore`` takes, all of it checked: routes index arrays without bounds checks."""
        base, fabric = self.base, self.controller.whole
        rows = base.execute("select name, traffic from jobs order by position")
        jobs = {_word(name): _traffic(text, fabric) for name, text in rows}
        links = {
            _word(name): np.frombuffer(blob, dtype=np.int64).reshape(-1, width).copy()
            for name, blob, width in base.execute("select job, links, width from routes")
        }
        for name, paths in links.items():
            _check_paths(fabric, jobs[name], paths)
        down = frozenset(tuple(map(_word, json.loads(nodes))) for (nodes,) in base.execute("select nodes from down"))
        if any(len(nodes) not in (1, 2) or not set(nodes) <= set(fabric.names) for nodes in down):
            raise ValueError("a switch or link that is down is not in the fabric")
        now_s, planned_s = (number(float(about[name]), name) for name in ("now_s", "planned_s"))
        known = {"jobs": jobs, "links": links, "down": down, "telemetry": self._measured()}
        return known | {"count": int(about["count"]), "now_s": now_s, "planned_s": planned_s}

    def _measured(self) -> Telemetry:
        """What is known of links."""
        telemetry = self.controller.telemetry
        nodes = {name: node for node, name in enumerate(telemetry.whole.names)}
        joined = set(zip(telemetry.whole.source.tolist(), telemetry.whole.target.tolist(), strict=True))
        health = {}
        for source, target, text in self.base.execute("select * from health"):
            ends = nodes[_word(source)], nodes[_word(target)]
            if ends not in joined:
                raise ValueError(f"{reprlib.repr(source)} is not an end of a measured link")
            health[ends] = decode(Health, json.loads(text), "health")
        return replace(telemetry, health=health)

    def save(self, event: str, decision: Decision, text: str) -> None:
        """Keep the controller's state after a decision, whole or not at all; it is on disk when this returns.

        Args:
            event: as it was read.
            text: the decision as it is printed.
        """
        controller = self.controller
        about = {"now_s": repr(controller.now_s), "planned_s": repr(controller.planned_s)}
        about["count"] = str(decision.number)
        with self.transaction():
            self._save_jobs()
            self.base.execute("delete from down")
            self.base.executemany("insert into down values (?)", [(json.dumps(n),) for n in sorted(controller.down)])
            self._save_health()
            self.base.executemany("insert or replace into about values (?, ?)", about.items())
            self.base.execute("insert into decisions values (?, ?, ?)", (decision.number, event, text))

    def event(self, number: int) -> str:
        """The event behind a decision."""
        with self.readable():
            row = self.base.execute("select event from decisions where number = ?", (number,)).fetchone()
        return str(row[0]) if row else ""

    def _save_health(self) -> None:
        health, names = self.controller.telemetry.health, self.controller.whole.names
        if health is self._health:
            return
        self.base.execute("delete from health")
        self.base.executemany(
            "insert into health values (?, ?, ?)",
            [(names[a], names[b], json.dumps(asdict(state))) for (a, b), state in health.items()],
        )
        self._health = health

    def _save_jobs(self) -> None:
        jobs = self.controller.jobs
        for name in self._saved.keys() - jobs.keys():
            self.base.execute("delete from jobs where name = ?", (name,))
            self.base.execute("delete from routes where job = ?", (name,))
            self._routes.pop(name, None)
        for name, traffic in jobs.items():
            if self._saved.get(name) is not traffic:
                table: dict[str, Any] = {column: getattr(traffic, column).tolist() for column in _ARRAYS}
                table |= {"names": traffic.names, "jobs": traffic.jobs}
                self.base.execute(
                    "insert into jobs (name, traffic) values (?, ?)"
                    " on conflict (name) do update set traffic = excluded.traffic",
                    (name, json.dumps(table)),
                )
        for name, links in self.controller.links.items():
            if name in self._routes and np.array_equal(self._routes[name], links):
                continue
            self.base.execute(
                "insert or replace into routes values (?, ?, ?)",
                (name, np.ascontiguousarray(links, dtype=np.int64).tobytes(), links.shape[1]),
            )
        self._saved, self._routes = dict(jobs), dict(self.controller.links)


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{reprlib.repr(value)} is not a name")
    return value


def _traffic(text: str, fabric: Fabric) -> JobTraffic:
    """A job's traffic, which must fit the fabric.

    Raises:
        BadInput, ValueError, KeyError, TypeError, OverflowError, RecursionError: it does not, or is none.
    """
    table = table_of(json.loads(text), "traffic")
    arrays: dict[str, Any] = {
        name: np.array(table[name], dtype=np.int64 if name in _WHOLE else np.float64) for name in _ARRAYS
    }
    names, jobs = (tuple(map(_word, table[name])) for name in ("names", "jobs"))
    flows = len(arrays["source"])
    for name, array in arrays.items():
        count = len(names) if name in ("job", "rounds") else len(jobs) if name.endswith("_s") else flows
        if array.shape != (count,) or np.isnan(array).any():
            raise ValueError(f"{name} has not {count} numbers")
    for name, least, most in (("collective", 0, len(names)), ("job", 0, len(jobs)), ("rounds", 1, _MOST_ROUNDS)):
        if not np.all((arrays[name] >= least) & (arrays[name] < most)):
            raise ValueError(f"{name} is out of range")
    if not all(np.all(np.isfinite(arrays[name]) & (arrays[name] >= 0)) for name in ("start_s", "pause_s")):
        raise ValueError("a time is out of range")
    result = JobTraffic(**arrays, names=names, jobs=jobs)
    check_traffic(fabric, result, "traffic")
    return result


def _check_paths(fabric: Fabric, traffic: JobTraffic, links: Ints) -> None:
    """Refuse links that do not lead from a flow's source to its target, -1 behind; all -1: without a path."""
    flows, width = links.shape
    if flows > len(traffic) or not np.all((links >= -1) & (links < fabric.links)):
        raise ValueError("routes name flows or links that are not there")
    at = traffic.source[:flows]
    for column in range(width):
        on = links[:, column] >= 0
        skips = on & (links[:, column - 1] < 0) if column else ~on & (links >= 0).any(axis=1)
        if np.any(skips | (on & (fabric.source[links[:, column]] != at))):
            raise ValueError("a route is not a path")
        at = np.where(on, fabric.target[links[:, column]], at)
    if np.any((at != traffic.target[:flows]) & (links >= 0).any(axis=1)):
        raise ValueError("a route does not join its flow's ends")


def fingerprint(fabric: Fabric) -> str:
    """What tells fabrics apart: nodes, links and capacities."""
    digest = hashlib.sha256("\n".join(fabric.names).encode())
    for array in (fabric.source, fabric.target, fabric.capacity_Bps, fabric.up):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
