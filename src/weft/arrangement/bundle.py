"""``weft.arrangement/1``: what was arranged, for people and for the tools that start jobs; written, and read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.arrangement.clock import Choice, Clock, Timed, levels
from weft.arrangement.search import Found
from weft.arrangement.site import Site, SiteJob
from weft.arrangement.template import MOST_RANKS, template
from weft.cluster import Cluster
from weft.cluster.files import cluster_from_dict, cluster_to_dict
from weft.documents import parse_json
from weft.errors import BadInput, UnknownName
from weft.fabric.files import fabric_from_json, fabric_to_json
from weft.fabric.placement import Placement
from weft.fabric.traffic import joined
from weft.files import read_text
from weft.interop.netops import nccl_env, routes_json
from weft.layout.check import check_layout
from weft.layout.text import format_layout, layout_from_dict, layout_to_dict
from weft.model.text import job_from_dict, job_to_dict
from weft.results import Result
from weft.routing.traffic import JobTraffic, merged
from weft.simulation.iteration.routed import FlowRoutes

MAX_FILE_BYTES = 512_000_000
_WRITE_ONE = "write one with weft arrange SITE.toml -o arranged.json"
_CLASS_STEP = 32
"""Traffic class of class selector n (RFC 2474): DSCP 8 n, two bits up."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Arrangement(Result):
    """Where every job of a site runs, when it sends, by which routes and class, and how far from optimal that is."""

    SCHEMA = "weft.arrangement/1"

    found: Found
    seed: int

    @property
    def site(self) -> Site:
        """What was arranged."""
        return self.found.clock.site

    @property
    def best(self) -> Timed:
        """The arrangement's times."""
        return self.found.best

    @property
    def objective(self) -> float:
        """What it reaches."""
        return self.found.clock.objective(self.best.slowdown)

    @property
    def bound(self) -> float:
        """What no arrangement can undercut, within the model."""
        return self.found.certificate.objective

    @property
    def gap(self) -> float:
        """How far the objective is above its bound, as a share of the bound; 0 is optimal within the model."""
        return self.found.certificate.gap(self.objective)

    def policy(self, name: str) -> float:
        """What a policy reaches."""
        return self.found.clock.objective(self.found.policies[name].slowdown)

    def assumptions(self) -> tuple[str, ...]:
        """What the times rest on."""
        details = {one.detail for one in self.found.clock.templates}
        said = [
            "links are shared max-min fairly; a higher class has 64 times the weight of the next",
            "iterations repeat without noise; the second half of the stepped ones counts",
            "a job takes whole hosts",
        ]
        if "burst" in details:
            said.append(f"jobs of more than {MOST_RANKS} ranks send all bytes of an iteration in one burst")
        if max(self.best.choice.offset_s) > 0:
            said.append("jobs begin at their offsets and nothing holds them there but the others")
        return tuple(said)

    def classes(self) -> tuple[int, ...]:
        """Traffic class of each job; a higher number goes first, 0 where all are alike."""
        return levels(self.best.choice.order, self.site.classes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every job."""
        clock, certificate, choice = self.found.clock, self.found.certificate, self.best.choice
        rows = []
        for number, job in enumerate(self.site.jobs):
            rows.append(
                {
                    "name": job.name,
                    "model": job.model,
                    "layout_text": format_layout(job.layout),
                    "hosts": " ".join(self.site.host_names[host] for host in choice.hosts[number]),
                    "offset_s": choice.offset_s[number],
                    "class": self.classes()[number],
                    "iteration_s": float(self.best.iteration_s[number]),
                    "slowdown": float(self.best.slowdown[number]),
                    "alone_s": clock.templates[number].alone_s,
                    "bound_s": float(certificate.iteration_s[number]),
                    "bound_by": certificate.proofs[number],
                }
            )
        return rows

    def _document(self) -> dict[str, Any]:
        found, choice = self.found, self.best.choice
        flows = found.clock.flows(choice.hosts, choice.router)
        jobs = [self._job(number, row, flows[number]) for number, row in enumerate(self.to_dicts())]
        return {
            "site": self.site.name,
            "seed": self.seed,
            "ended": found.ended,
            "objective": {
                "kind": self.site.objective,
                "value": self.objective,
                "bound": self.bound,
                "bound_by": found.certificate.proof,
                "gap": self.gap,
            },
            "policies": {
                name: {"objective": self.policy(name), "slowdown": timed.slowdown.tolist()}
                for name, timed in found.policies.items()
            },
            "router": choice.router,
            "classes": self.site.classes,
            "jobs": jobs,
            "assumptions": list(self.assumptions()),
            "cluster": cluster_to_dict(self.site.cluster),
            "fabric": json.loads(fabric_to_json(self.site.fabric)),
            "routes": self._routes([one for one in flows if one is not None]),
        }

    def _routes(self, flows: list[Any]) -> dict[str, Any] | None:
        """Every flow's path as ``weft route export json`` writes it; None where switches choose."""
        if self.best.choice.router != "planned" or not flows:
            return None
        traffic, routes = merged([one for one, _ in flows]), joined([one for _, one in flows])
        return json.loads(routes_json.write(self.site.fabric, traffic, routes))  # type: ignore[no-any-return]

    def _job(self, number: int, row: dict[str, Any], flows: Any) -> dict[str, Any]:
        job, choice = self.site.jobs[number], self.best.choice
        names = [self.site.host_names[host] for host in choice.hosts[number]]
        size, world = self.site.domain_size, job.layout.world
        slots = [min(size, world - at * size) for at in range(len(names))]
        alone, _ = self.found.clock.alone(choice.hosts, choice.router, number)
        return row | {
            "weight": job.weight,
            "job": job_to_dict(job.job),
            "layout": layout_to_dict(job.layout),
            "detail": self.found.clock.templates[number].detail,
            "alone_here_s": alone,
            "hosts": names,
            "domains": list(choice.hosts[number]),
            "hostfile": "".join(f"{name} slots={count}\n" for name, count in zip(names, slots, strict=True)),
            "slurm": {
                "SLURM_HOSTFILE": "".join(f"{name}\n" * count for name, count in zip(names, slots, strict=True)),
                "command": f"srun --distribution=arbitrary --ntasks={world} --nodes={len(names)}",
            },
            "nccl_env": self._environment(number, flows),
        }

    def _environment(self, number: int, flows: Any) -> str:
        text = "" if flows is None else nccl_env.write(self.site.fabric, *flows)
        if max(self.best.choice.order):
            level = self.classes()[number]
            text += f"NCCL_IB_SL={level}\nNCCL_IB_TC={_CLASS_STEP * level}\n"
        return text

    def _facts(self) -> Sequence[str]:
        return (
            f"{len(self.site.jobs)} jobs on {self.site.name}",
            f"objective {self.objective:.4f}",
            f"at least {self.bound:.4f}",
            f"gap {self.gap:.2%}",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """An arrangement read back: a site whose jobs stay, what was chosen, and what was promised.

    ``environments`` are NCCL's settings; ``promised_s`` are the seconds of each job's iteration with all jobs,
    ``alone_here_s`` those alone on its hosts.
    """

    where: str
    site: Site
    choice: Choice
    routes: FlowRoutes | None
    promised_s: tuple[float, ...]
    alone_here_s: tuple[float, ...]
    environments: tuple[str, ...]

    def number(self, name: str | None, where: str = "--job") -> int:
        """Which job a name means; the only one without a name.

        Raises:
            BadInput: none is named, and there are several.
            UnknownName: there is no such job.
        """
        names = [job.name for job in self.site.jobs]
        if name is None:
            if len(names) > 1:
                raise BadInput(f"{len(names)} jobs are arranged", where=where, remedy=f"name one: {', '.join(names)}")
            return 0
        if name not in names:
            raise UnknownName("job", name, names, where=where)
        return names.index(name)

    def placement(self, number: int) -> Placement:
        """The accelerators of a job's ranks."""
        held = self.site.members[np.array(self.choice.hosts[number], dtype=np.int64)].ravel()
        return Placement(accelerators=held[: self.site.jobs[number].layout.world])

    def subcluster(self, number: int) -> Cluster:
        """The hosts of a job as a cluster of its own."""
        cluster, domains = self.site.cluster, self.site.jobs[number].domains
        first, second = cluster.tiers[:2]
        tiers = (first, replace(second, size=domains)) if domains > 1 else (first,)
        return replace(cluster, name=f"{cluster.name}: {domains} hosts", count=first.size * domains, tiers=tiers)

    def flows(self) -> JobTraffic:
        """The flows between hosts of all jobs, where they are.

        Raises:
            BadInput: nothing leaves any host.
        """
        templates = tuple(template(job, self.site.cluster) for job in self.site.jobs)
        found = Clock(self.site, templates, given=self.routes).flows(self.choice.hosts, self.choice.router)
        return merged([one[0] for one in found if one is not None])

    def stepped(self) -> Timed:
        """All jobs stepped together again, as ``weft arrange`` did."""
        templates = tuple(template(job, self.site.cluster) for job in self.site.jobs)
        return Clock(self.site, templates, given=self.routes).timed(self.choice)


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """The arrangement of a file that ``weft arrange -o`` wrote.

    Raises:
        BadInput: the file is no such document, or was changed into one that means nothing.
    """
    where = os.fspath(path)
    text = read_text(path, where=where, largest=MAX_FILE_BYTES, remedy=_WRITE_ONE)
    document = parse_json(text, where, remedy=_WRITE_ONE)
    if not isinstance(document, Mapping) or document.get("schema") != Arrangement.SCHEMA:
        raise BadInput(f"is not of schema {Arrangement.SCHEMA}", where=where, remedy=_WRITE_ONE)
    cluster = cluster_from_dict(_field(document, "cluster", dict, where), where=f"{where}: cluster")
    fabric = fabric_from_json(json.dumps(_field(document, "fabric", dict, where)), where=f"{where}: fabric")
    rows = _field(document, "jobs", list, where)
    hosts = len(np.bincount(fabric.domain))
    jobs = tuple(_site_job(row, f"{where}: jobs[{number}]", hosts) for number, row in enumerate(rows))
    if not jobs:
        raise BadInput("holds no job", where=f"{where}: jobs", remedy=_WRITE_ONE)
    held = [host for job in jobs for host in job.hosts]
    if len(set(held)) < len(held):
        raise BadInput("two jobs share a host", where=f"{where}: jobs", remedy=_WRITE_ONE)
    names = [f"host-{number}" for number in range(hosts)]
    for row, job in zip(rows, jobs, strict=True):
        for host, name in zip(job.hosts, _field(row, "hosts", list, where), strict=False):
            names[host] = str(name)
    classes = _field(document, "classes", int, where)
    router = _field(document, "router", str, where)
    if router not in ("ecmp", "planned", "spray") or not 1 <= classes <= 8:
        raise BadInput("router or classes mean nothing", where=where, remedy=_WRITE_ONE)
    objective = _field(_field(document, "objective", dict, where), "kind", str, where)
    site = Site(
        name=_field(document, "site", str, where),
        cluster=cluster,
        fabric=fabric,
        fabric_source=where,
        host_names=tuple(names),
        usable=(True,) * hosts,
        routers=(router,),
        classes=classes,
        jobs=jobs,
        objective="worst" if objective == "worst" else "slowdown",
        max_slowdown=None,
    )
    levels = [_field(row, "class", int, where) for row in rows]
    order = tuple(classes - 1 - level if max(levels) else 0 for level in levels)
    choice = Choice(
        hosts=tuple(job.hosts for job in jobs),
        router=router,
        offset_s=tuple(_seconds(row, "offset_s", where) for row in rows),
        order=order,
    )
    raw = document.get("routes")
    routes = None
    if raw is not None:
        place = f"{where}: routes"
        routes = FlowRoutes(fabric, *routes_json.read(json.dumps(raw), fabric, where=place), name=place)
    return Bundle(
        where=where,
        site=site,
        choice=choice,
        routes=routes,
        promised_s=tuple(_seconds(row, "iteration_s", where) for row in rows),
        alone_here_s=tuple(_seconds(row, "alone_here_s", where) for row in rows),
        environments=tuple(_field(row, "nccl_env", str, where) for row in rows),
    )


def _site_job(row: object, where: str, hosts: int) -> SiteJob:
    job = job_from_dict(_field(row, "job", dict, where), where=f"{where}: job")
    layout = layout_from_dict(_field(row, "layout", dict, where), where=f"{where}: layout")
    check_layout(job, layout.world, layout, where=where)
    held = _field(row, "domains", list, where)
    if not held or not all(type(host) is int and 0 <= host < hosts for host in held):
        raise BadInput(f"domains are no hosts below {hosts}", where=where, remedy=_WRITE_ONE)
    return SiteJob(
        name=_field(row, "name", str, where),
        model=_field(row, "model", str, where),
        job=job,
        layout=layout,
        domains=len(held),
        hosts=tuple(held),
        may="stay",
        weight=_seconds(row, "weight", where),
    )


def _field(table: object, name: str, kind: type, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise BadInput("is not a table of fields", where=where, remedy=_WRITE_ONE)
    value = table.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadInput(f"{name} is missing, or no {kind.__name__}", where=where, remedy=_WRITE_ONE)
    return value


def _seconds(row: object, name: str, where: str) -> float:
    value = row.get(name) if isinstance(row, Mapping) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise BadInput(f"{name} is missing, or out of range", where=where, remedy=_WRITE_ONE)
    return float(value)
