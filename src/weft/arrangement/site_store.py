"""What a site's controller holds, on disk."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from weft.arrangement.online import Decision, Seat, SiteController
from weft.arrangement.site import Site, SiteJob
from weft.cluster.files import cluster_to_dict
from weft.documents import parse_json, validate
from weft.journal import Journal
from weft.layout.check import check_layout
from weft.layout.text import layout_from_dict, layout_to_dict
from weft.model.text import job_from_dict, job_to_dict
from weft.routing.store import fingerprint

FILE = "site.sqlite"
_SCHEMA = (
    "create table if not exists jobs (position integer primary key, name text unique not null, job text not null);"
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Job(_Strict):
    model: str
    job: dict[str, Any]
    layout: dict[str, Any]
    domains: int = Field(ge=1)
    hosts: list[int]
    may: str = Field(pattern="^(move|reorder|stay)$")
    weight: float = Field(gt=0, le=1e9)


class _Seat(_Strict):
    hosts: list[int] = Field(min_length=1)
    router: str = Field(pattern="^(ecmp|planned|spray)$")
    offset_s: float = Field(ge=0, le=1e9)
    order: int = Field(ge=0, le=10**6)


class _State(_Strict):
    now_s: float = Field(ge=0, lt=1e18)
    seats: dict[str, _Seat]
    down: list[list[str]]
    down_hosts: list[int]


class SiteStore(Journal):
    """A folder with the state of one site's controller.

    Raises:
        BadInput: the folder cannot be used, or holds the state of another site.
    """

    def __init__(self, folder: str | os.PathLike[str], controller: SiteController) -> None:
        self.controller = controller
        held = controller.held
        mine = {"site": _of_site(controller.site), "steps": str(held.steps), "seed": str(held.seed)}
        super().__init__(folder, FILE, mine, schema=_SCHEMA)

    def load(self) -> int:
        """Give the controller what was saved; the number of decisions so far.

        Raises:
            BadInput: the file cannot be read, or holds what no controller of this site saves.
        """
        with self._loading() as about:
            if "count" not in about:
                return 0
            site = self.controller.site
            state = validate(_State, parse_json(about["state"], "state"), "state")
            rows = self.base.execute("select name, job from jobs order by position")
            jobs = {str(name): _job(str(name), text, site) for name, text in rows}
            seats = {name: _seat(jobs[name], one, site) for name, one in state.seats.items()}
            taken = [host for seat in seats.values() for host in seat.hosts]
            if len(set(taken)) != len(taken):
                raise ValueError("two jobs hold a host")
            down = frozenset(tuple(nodes) for nodes in state.down)
            if any(len(nodes) not in (1, 2) or not set(nodes) <= set(site.fabric.names) for nodes in down):
                raise ValueError("a switch or link that is down is not in the fabric")
            self.controller.held.restore(
                jobs=jobs, seats=seats, down=down, down_hosts=frozenset(_hosts(state.down_hosts, site))
            )
            self.controller.count, self.controller.now_s = int(about["count"]), state.now_s
        return self.controller.count

    def save(self, event: str, decision: Decision, text: str) -> None:
        """Keep the controller's state after a decision, whole or not at all; it is on disk when this returns.

        Args:
            event: as it was read.
            text: the decision as it is printed.
        """
        held = self.controller.held
        state = {
            "now_s": self.controller.now_s,
            "seats": {
                name: {"hosts": seat.hosts, "router": seat.router, "offset_s": seat.offset_s, "order": seat.order}
                for name, seat in held.seats.items()
            },
            "down": sorted(held.down),
            "down_hosts": sorted(held.down_hosts),
        }
        with self._saving(decision.number, event, text, {"state": json.dumps(state)}):
            there = {name for (name,) in self.base.execute("select name from jobs")}
            self.base.executemany("delete from jobs where name = ?", [(name,) for name in there - held.jobs.keys()])
            for name, job in held.jobs.items():
                if name not in there:
                    self.base.execute("insert into jobs (name, job) values (?, ?)", (name, _text(job)))


def _of_site(site: Site) -> str:
    """What tells sites apart."""
    facts = [
        cluster_to_dict(site.cluster), site.host_names, site.usable, site.routers, site.classes, site.objective,
        site.max_slowdown, site.spares, [[job.name, _text(job)] for job in site.jobs],
    ]  # fmt: skip
    return hashlib.sha256((fingerprint(site.fabric) + json.dumps(facts)).encode()).hexdigest()


def _text(job: SiteJob) -> str:
    """A job as text that reads back the same."""
    return json.dumps(
        {
            "model": job.model,
            "job": job_to_dict(job.job),
            "layout": layout_to_dict(job.layout),
            "domains": job.domains,
            "hosts": job.hosts,
            "may": job.may,
            "weight": job.weight,
        }
    )


def _job(name: str, text: str, site: Site) -> SiteJob:
    """A job that was saved.

    Raises:
        BadInput, ValueError: it is none, or does not fit the site.
    """
    row = validate(_Job, parse_json(text, name), name)
    job = job_from_dict(row.job, where=f"{name}: job")
    layout = layout_from_dict(row.layout, where=f"{name}: layout")
    check_layout(job, layout.world, layout, where=name)
    if row.domains != -(-layout.world // site.domain_size):
        raise ValueError(f"{name} has not the hosts of its layout")
    may: Any = row.may
    return SiteJob(
        name=name, model=row.model, job=job, layout=layout, domains=row.domains, hosts=_hosts(row.hosts, site),
        may=may, weight=row.weight,
    )  # fmt: skip


def _seat(job: SiteJob, one: _Seat, site: Site) -> Seat:
    hosts = _hosts(one.hosts, site)
    if len(set(hosts)) != job.domains:
        raise ValueError(f"{job.name} has not the hosts of its layout")
    router: Any = one.router
    return Seat(hosts=hosts, router=router, offset_s=one.offset_s, order=one.order)


def _hosts(numbers: list[int], site: Site) -> tuple[int, ...]:
    if not all(0 <= host < len(site.host_names) for host in numbers):
        raise ValueError("a host is not in the site")
    return tuple(numbers)
