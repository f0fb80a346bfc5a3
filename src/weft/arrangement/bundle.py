"""``weft.arrangement/1``: what was arranged, for people and for the tools that start jobs; written, and read back."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.arrangement.clock import Choice, Clock, Timed, levels
from weft.arrangement.collectives import JobSchedules, job_collectives, own_cluster, tuner_text
from weft.arrangement.search import Found
from weft.arrangement.site import Site, SiteJob
from weft.arrangement.template import MOST_RANKS, template
from weft.cluster import Cluster
from weft.cluster.calibration import calibration
from weft.cluster.files import cluster_from_dict, cluster_to_dict
from weft.documents import parse_json
from weft.errors import BadInput, UnknownName
from weft.fabric.files import fabric_from_json, fabric_to_json
from weft.fabric.placement import Placement
from weft.fabric.traffic import Routes, joined
from weft.files import read_text
from weft.interop.netops import nccl_env, routes_json
from weft.layout.check import check_layout
from weft.layout.text import format_layout, layout_from_dict, layout_to_dict
from weft.model.text import job_from_dict, job_to_dict
from weft.results import Result
from weft.routing.report import flow_rows
from weft.routing.traffic import JobTraffic, merged
from weft.simulation.iteration.routed import FlowRoutes
from weft.units import counted

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
        """What it reaches: a slowdown, seconds, a share of the site's peak, or dollars per token."""
        return self.found.clock.objective.shown(self.best.score)

    @property
    def bound(self) -> float:
        """What no arrangement can better, within the model."""
        return self.found.clock.objective.shown(self.found.certificate.objective)

    @property
    def gap(self) -> float:
        """How far the score is above its bound, as a share of the bound; 0 is optimal within the model."""
        return self.found.certificate.gap(self.best.score)

    def policy(self, name: str) -> float:
        """What a policy reaches."""
        return self.found.clock.objective.shown(self.found.policies[name].score)

    @property
    def verification(self) -> str:
        """What stepping the winner flow by flow gave, in a sentence."""
        verified = self.found.verified
        if verified is None:
            return "Not verified: interrupted"
        which = (
            ""
            if verified.jobs == len(self.site.jobs)
            else f" of {verified.jobs} of {counted(len(self.site.jobs), 'job')}"
        )
        said = [f"Verified: every flow{which}, {verified.apart:.4%} apart"] if verified.jobs else []
        return "; ".join([*said, *(f"not verified: {one}" for one in verified.left_out)])

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
        if any(job.cut != "keep" for job in self.site.jobs):
            said.append("slowdowns of jobs whose layout was free are against their fastest layout alone")
        if self.site.objective == "makespan":
            said.append("a job that ends leaves its links to the others, whose times change with that alone")
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
                    "first_layout_text": format_layout(self.found.first[number]),
                    "hosts": " ".join(self.site.host_names[host] for host in choice.hosts[number]),
                    "offset_s": choice.offset_s[number],
                    "class": self.classes()[number],
                    "iteration_s": float(self.best.iteration_s[number]),
                    "slowdown": float(self.best.slowdown[number]),
                    "alone_s": clock.references[number].seconds,
                    "bound_s": float(certificate.iteration_s[number]),
                    "bound_by": certificate.proofs[number],
                }
            )
        return rows

    def _document(self) -> dict[str, Any]:
        found, choice = self.found, self.best.choice
        flows = found.clock.flows(choice.hosts, choice.router)
        planned = self._planned([one for one in flows if one is not None])
        jobs = [self._job(number, row, flows[number], planned) for number, row in enumerate(self.to_dicts())]
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
                "max_slowdown": self.site.max_slowdown,
                "usd_per_accelerator_hour": self.site.usd_per_hour,
            },
            "search": {"arrangements": found.evaluations, "placements": found.placements, "layouts": found.layouts},
            "policies": {name: self._policy(name) for name in found.policies},
            "verified": self._verified(),
            "router": choice.router,
            "classes": self.site.classes,
            "hosts": [
                {"name": name, "up": up} for name, up in zip(self.site.host_names, self.site.usable, strict=True)
            ],
            "jobs": jobs,
            "assumptions": list(self.assumptions()),
            "cluster": cluster_to_dict(self.site.cluster),
            "fabric": json.loads(fabric_to_json(self.site.fabric)),
            "routes": None if planned is None else json.loads(routes_json.write(self.site.fabric, *planned)),
        }

    def _policy(self, name: str) -> dict[str, Any]:
        """What a policy chose, and what that comes to."""
        timed = self.found.policies[name]
        return {
            "objective": self.policy(name),
            "slowdown": timed.slowdown.tolist(),
            "router": timed.choice.router,
            "domains": [list(held) for held in timed.choice.hosts],
            "offset_s": list(timed.choice.offset_s),
            "class": list(levels(timed.choice.order, self.site.classes)),
        }

    def _verified(self) -> dict[str, Any] | None:
        verified = self.found.verified
        if verified is None:
            return None
        seconds = [None if np.isnan(one) else one for one in verified.iteration_s.tolist()]
        apart = verified.apart if verified.jobs else None
        return {"iteration_s": seconds, "apart": apart, "left_out": list(verified.left_out)}

    def _planned(self, flows: list[Any]) -> tuple[JobTraffic, Routes] | None:
        """Every flow with its path, as ``weft route export json`` writes them; None where switches choose."""
        if self.best.choice.router != "planned" or not flows:
            return None
        return merged([one for one, _ in flows]), joined([one for _, one in flows])

    def _job(
        self, number: int, row: dict[str, Any], flows: Any, planned: tuple[JobTraffic, Routes] | None
    ) -> dict[str, Any]:
        job, choice = self.site.jobs[number], self.best.choice
        names = [self.site.host_names[host] for host in choice.hosts[number]]
        size, world = self.site.domain_size, job.layout.world
        lists = host_lists([names[rank // size] for rank in range(world)])
        alone, _ = self.found.clock.alone(choice.hosts, choice.router, number)
        placement = Placement(accelerators=self.found.clock.accelerators(choice.hosts[number], number))
        routes = None if planned is None else FlowRoutes(self.site.fabric, *planned, name="planned")
        collectives = job_collectives(self.site, number, placement, choice.router, routes)
        return row | {
            "weight": job.weight,
            "may": job.may,
            "cut": job.cut,
            "iterations": job.iterations,
            "job": job_to_dict(job.job),
            "layout": layout_to_dict(job.layout),
            "detail": self.found.clock.templates[number].detail,
            "alone_here_s": alone,
            "hosts": names,
            "domains": list(choice.hosts[number]),
            "hostfile": lists["hostfile"],
            "slurm": {
                "SLURM_HOSTFILE": lists["SLURM_HOSTFILE"],
                "command": f"srun --distribution=arbitrary --ntasks={world} --nodes={len(names)}",
            },
            "nccl_env": self._environment(number, flows),
            "nccl_tuner": tuner_text(collectives, calibration(self.site.cluster.accelerator.name)),
            "schedules": [one.to_dict() for one in collectives],
        }

    def _environment(self, number: int, flows: Any) -> str:
        text = "" if flows is None else nccl_env.write(self.site.fabric, *flows)
        if max(self.best.choice.order):
            level = self.classes()[number]
            text += f"NCCL_IB_SL={level}\nNCCL_IB_TC={_CLASS_STEP * level}\n"
        return text

    def _facts(self) -> Sequence[str]:
        text = self.found.clock.objective.text
        return (
            f"{counted(len(self.site.jobs), 'job')} on {self.site.name}",
            f"objective {text(self.best.score)}",
            f"bound {text(self.found.certificate.objective)}",
            f"gap {self.gap:.2%}",
        )


def host_lists(hosts: Sequence[str]) -> dict[str, str]:
    """The host of each rank as a hostfile, and as SLURM's list for ``--distribution=arbitrary``."""
    slots = Counter(hosts)
    return {
        "hostfile": "".join(f"{name} slots={count}\n" for name, count in slots.items()),
        "SLURM_HOSTFILE": "".join(f"{name}\n" for name in hosts),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """An arrangement read back: a site whose jobs stay, what was chosen, and what was promised.

    ``environments`` are NCCL's settings, and ``tuners`` the text of its tuner file, by job; ``promised_s`` are the
    seconds of each job's iteration with all jobs, ``alone_here_s`` those alone on its hosts.
    """

    where: str
    site: Site
    choice: Choice
    planned: tuple[JobTraffic, Routes] | None
    promised_s: tuple[float, ...]
    alone_here_s: tuple[float, ...]
    environments: tuple[str, ...]
    tuners: tuple[str, ...]

    @property
    def routes(self) -> FlowRoutes | None:
        """The routes of all jobs, to be found again; None where switches choose."""
        if self.planned is None:
            return None
        return FlowRoutes(self.site.fabric, *self.planned, name=f"{self.where}: routes")

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
        return own_cluster(self.site.cluster, self.site.jobs[number].domains)

    def classes(self) -> tuple[int, ...]:
        """Traffic class of each job, as ``Arrangement.classes``."""
        return levels(self.choice.order, self.site.classes)

    def host_names(self, number: int) -> tuple[str, ...]:
        """The host of each rank of a job."""
        size, names = self.site.domain_size, self.site.host_names
        held = self.choice.hosts[number]
        return tuple(names[held[rank // size]] for rank in range(self.site.jobs[number].layout.world))

    def settings(self, number: int) -> dict[str, str]:
        """NCCL's settings of a job, by name."""
        lines = [line for line in self.environments[number].splitlines() if "=" in line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)

    def paths(self, number: int) -> tuple[tuple[dict[str, Any], ...], ...]:
        """The flows of each rank of a job with their paths, as the file has them; none where switches choose."""
        if self.planned is None:
            return ()
        fabric, name = self.site.fabric, self.site.jobs[number].name
        found = defaultdict(list)
        for row in flow_rows(fabric, *self.planned):
            if row["job"] == name:
                found[row["source"]].append(row)
        held = [fabric.names[at] for at in self.placement(number).accelerators.tolist()]
        return tuple(tuple(found[one]) for one in held)

    def schedules(self, number: int) -> JobSchedules:
        """The collectives of a job with their best algorithms, as ``weft arrange`` found them."""
        found = job_collectives(self.site, number, self.placement(number), self.choice.router, self.routes)
        return JobSchedules(job=self.site.jobs[number].name, collectives=found)

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
    return bundle_of(read_document(path), os.fspath(path))


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a file that ``weft arrange -o`` wrote, as they stand there.

    Raises:
        BadInput: the file is no such document.
    """
    where = os.fspath(path)
    text = read_text(path, where=where, largest=MAX_FILE_BYTES, remedy=_WRITE_ONE)
    document = parse_json(text, where, remedy=_WRITE_ONE)
    if not isinstance(document, dict) or document.get("schema") != Arrangement.SCHEMA:
        raise BadInput(f"is not of schema {Arrangement.SCHEMA}", where=where, remedy=_WRITE_ONE)
    return document


def bundle_of(document: Mapping[str, Any], where: str) -> Bundle:
    """The arrangement of such fields; ``where`` names them in messages.

    Raises:
        BadInput: they mean nothing.
    """
    site = _site(document, where)
    rows = document["jobs"]
    given = [_field(row, "class", int, where) for row in rows]
    choice = Choice(
        hosts=tuple(job.hosts for job in site.jobs),
        router=site.routers[0],
        offset_s=tuple(_seconds(row, "offset_s", where) for row in rows),
        order=order_of(given, site.classes, f"{where}: jobs"),
    )
    bundle = Bundle(
        where=where,
        site=site,
        choice=choice,
        planned=_routes(document.get("routes"), site, where),
        promised_s=tuple(_seconds(row, "iteration_s", where, above=True) for row in rows),
        alone_here_s=tuple(_seconds(row, "alone_here_s", where) for row in rows),
        environments=tuple(_field(row, "nccl_env", str, where) for row in rows),
        tuners=tuple(_field(row, "nccl_tuner", str, where) for row in rows),
    )
    for number, row in enumerate(rows):
        _check_texts(bundle, number, row)
    return bundle


def order_of(given: Sequence[int], classes: int, where: str) -> tuple[int, ...]:
    """The order of jobs whose traffic classes are given.

    Raises:
        BadInput: no order has these classes.
    """
    order = tuple(classes - 1 - level if max(given) else 0 for level in given)
    if min(given) < 0 or min(order) < 0 or levels(order, classes) != tuple(given):
        problem = f"{tuple(given)} are no classes of jobs where there are {classes}"
        raise BadInput(problem, where=f"{where}: class", remedy=_WRITE_ONE)
    return order


def _site(document: Mapping[str, Any], where: str) -> Site:
    """The site, every job on its hosts."""
    cluster = cluster_from_dict(_field(document, "cluster", dict, where), where=f"{where}: cluster")
    fabric = fabric_from_json(json.dumps(_field(document, "fabric", dict, where)), where=f"{where}: fabric")
    size = cluster.tiers[0].size
    sizes = np.bincount(fabric.domain)
    if len(cluster.tiers) < 2 or not (sizes == size).all():
        problem = f"its hosts are not those of {cluster.name}, of {size} accelerators"
        raise BadInput(problem, where=f"{where}: fabric", remedy=_WRITE_ONE)
    rows, hosts = _field(document, "jobs", list, where), len(sizes)
    jobs = tuple(_site_job(row, f"{where}: jobs[{number}]", hosts, size) for number, row in enumerate(rows))
    if not jobs:
        raise BadInput("holds no job", where=f"{where}: jobs", remedy=_WRITE_ONE)
    names = [f"host-{number}" for number in range(hosts)]
    given = [name for row in rows for name in _field(row, "hosts", list, where)]
    held = [host for job in jobs for host in job.hosts]
    alone = all(isinstance(name, str) for name in given) and all(
        len(set(one)) == len(one) for one in (given, held, [job.name for job in jobs])
    )
    if not alone or len(given) != len(held):
        problem = "hosts and domains do not fit together, or two jobs share a host or a name"
        raise BadInput(problem, where=f"{where}: jobs", remedy=_WRITE_ONE)
    for host, name in zip(held, given, strict=True):
        names[host] = name
    classes, router = _field(document, "classes", int, where), _field(document, "router", str, where)
    if router not in ("ecmp", "planned", "spray") or not 1 <= classes <= 8:
        raise BadInput("router or classes mean nothing", where=where, remedy=_WRITE_ONE)
    objective = _field(_field(document, "objective", dict, where), "kind", str, where)
    return Site(
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


def _routes(raw: object, site: Site, where: str) -> tuple[JobTraffic, Routes] | None:
    place, planned = f"{where}: routes", site.routers == ("planned",)
    if (raw is not None) > planned or (raw is None and planned and max(job.domains for job in site.jobs) > 1):
        problem = "are missing" if planned else f"are there, but the router is {site.routers[0]}"
        raise BadInput(problem, where=place, remedy=_WRITE_ONE)
    if raw is None:
        return None
    return routes_json.read(json.dumps(raw), site.fabric, where=place)


def _check_texts(bundle: Bundle, number: int, row: Mapping[str, Any]) -> None:
    """Refuse texts for launchers that do not say what the fields say.

    Raises:
        BadInput: a host list that is not that of the job's hosts, or settings that NCCL does not take.
    """
    place = f"{bundle.where}: jobs[{number}]"
    texts = host_lists(bundle.host_names(number))
    lists = {"hostfile": _field(row, "hostfile", str, place)}
    lists["SLURM_HOSTFILE"] = _field(_field(row, "slurm", dict, place), "SLURM_HOSTFILE", str, place)
    for name, text in lists.items():
        if text != texts[name]:
            raise BadInput("does not list the job's hosts in order", where=f"{place}: {name}", remedy=_WRITE_ONE)
    for wrong in nccl_env.lint(bundle.environments[number]):
        raise BadInput(wrong, where=f"{place}: nccl_env", remedy=_WRITE_ONE)
    for line in bundle.tuners[number].splitlines():
        if not line.startswith("#") and line.count(",") != 7:
            problem = f"{line[:60]!r} is no line of a tuner file"
            raise BadInput(problem, where=f"{place}: nccl_tuner", remedy=_WRITE_ONE)


def _site_job(row: object, where: str, hosts: int, size: int) -> SiteJob:
    job = job_from_dict(_field(row, "job", dict, where), where=f"{where}: job")
    layout = layout_from_dict(_field(row, "layout", dict, where), where=f"{where}: layout")
    check_layout(job, layout.world, layout, where=where)
    held = _field(row, "domains", list, where)
    if not held or not all(type(host) is int and 0 <= host < hosts for host in held):
        raise BadInput(f"domains are no hosts below {hosts}", where=where, remedy=_WRITE_ONE)
    if len(held) != -(-layout.world // size):
        problem = f"{len(held)} hosts of {size} for {layout.world} ranks"
        raise BadInput(problem, where=f"{where}: domains", remedy=_WRITE_ONE)
    return SiteJob(
        name=_field(row, "name", str, where),
        model=_field(row, "model", str, where),
        job=job,
        layout=layout,
        domains=len(held),
        hosts=tuple(held),
        may="stay",
        weight=_seconds(row, "weight", where, above=True),
    )


def _field(table: object, name: str, kind: type, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise BadInput("is not a table of fields", where=where, remedy=_WRITE_ONE)
    value = table.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadInput(f"{name} is missing, or no {kind.__name__}", where=where, remedy=_WRITE_ONE)
    return value


def _seconds(row: object, name: str, where: str, *, above: bool = False) -> float:
    """A number of at least 0, or ``above`` it."""
    value = row.get(name) if isinstance(row, Mapping) else None
    known = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if known and abs(value) < 1e12 else -1.0  # type: ignore[arg-type]
    if number < 0 or (above and number == 0):
        raise BadInput(f"{name} is missing, or out of range", where=where, remedy=_WRITE_ONE)
    return number
