"""``weft.arrangement/1``: an arrangement for people and for the tools that start jobs, written and read back."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from weft.arrangement.certificate import Certificate, Proof, Verified
from weft.arrangement.clock import Assignment, Clock, Reference, Timed, levels, order_of
from weft.arrangement.collectives import JobCollective, job_collectives, own_cluster, tuner_text
from weft.arrangement.cuts import FabricCuts, cuts_of
from weft.arrangement.layouts import Layouts
from weft.arrangement.site import Cut, Goal, May, Router, Site, SiteJob
from weft.arrangement.template import MOST_RANKS, template
from weft.cluster import Cluster, WrittenCluster
from weft.cluster.calibration import calibration
from weft.codec import Coded, Document, Range, decode, encode
from weft.documents import parse_json
from weft.errors import BadInput, UnknownName
from weft.fabric.files import WrittenFabric
from weft.fabric.placement import Placement
from weft.fabric.traffic import Routes, joined
from weft.files import read_text
from weft.interop import nccl, routes_json
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.layout.text import WrittenLayout, format_layout, parse_layout
from weft.model.job import WrittenJob
from weft.results import Result
from weft.routing.report import flow_rows
from weft.routing.traffic import JobTraffic, merged
from weft.simulation.iteration.contention import FlowRoutes
from weft.units import counted

MAX_FILE_BYTES = 512_000_000
POLICIES = ("hashed", "routes", "packed", "offsets", "priorities", "kept", "arrange")
"""What an arrangement is compared with, and itself."""
_WRITE_ONE = "write one with weft arrange SITE.toml -o arranged.json"
Ended = Literal["complete", "budget", "interrupted"]
_CLASS_STEP = 32
"""Traffic class of class selector n (RFC 2474): DSCP 8 n, two bits up."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Arrangement(Result):
    """Hosts, start times, routes and classes of all jobs of a site, and the distance to the optimum.

    Attributes:
        clock: with the layouts of the best; ``began`` has the first layouts.
        policies: the best ("arrange") and what it is compared with, in order of ``POLICIES``.
        verified: None after an interrupt.
    """

    SCHEMA = "weft.arrangement/1"

    clock: Clock
    began: Clock
    cuts: FabricCuts
    policies: dict[str, Timed]
    certificate: Certificate
    search: ArrangedSearch
    first: tuple[Layout, ...]
    verified: Verified | None
    ended: Ended
    seed: int

    @property
    def site(self) -> Site:
        """The site, with the layouts of the best arrangement."""
        return self.clock.site

    @property
    def best(self) -> Timed:
        """The arrangement's times."""
        return self.policies["arrange"]

    @property
    def objective(self) -> float:
        """The value reached: a slowdown, seconds, a share of the site's peak, or dollars per token."""
        return self.clock.objective.shown(self.best.score)

    @property
    def bound(self) -> float:
        """The value that no arrangement can better, within the model."""
        return self.clock.objective.shown(self.certificate.objective)

    @property
    def gap(self) -> float:
        """How far the score is above its bound, as a share of the bound; 0 is optimal within the model."""
        return self.certificate.gap(self.best.score)

    def clock_of(self, policy: str) -> Clock:
        """The clock with the layouts of a policy."""
        return self.clock if policy == "arrange" else self.began

    def policy(self, name: str) -> float:
        """The objective's value of a policy."""
        return self.clock.objective.shown(self.policies[name].score)

    @property
    def verification(self) -> str:
        """How far the search's times are from those flow by flow, in sentences."""
        verified = self.verified
        if verified is None:
            return "Not verified: interrupted"
        jobs = len(self.site.jobs)
        which = "" if verified.jobs == jobs else f" for {verified.jobs} of {counted(jobs, 'job')}"
        apart = f"{verified.apart:.4%} apart" if (verified.apart or 0.0) >= 5e-7 else "exact"
        stepped = [f"Verified flow by flow{which}: {apart}"] if verified.jobs else []
        return ". ".join([*stepped, *(f"Not verified: {reason}" for reason in verified.left_out)])

    def assumptions(self) -> tuple[str, ...]:
        """The assumptions behind the times."""
        lines = [
            "links are shared max-min fairly; a higher class has 64 times the weight of the next",
            "iterations repeat without noise; the second half of the stepped ones counts",
            "a job takes whole hosts",
        ]
        if any(job.detail == "burst" for job in self.clock.templates):
            lines.append(f"jobs of more than {MOST_RANKS} ranks send all bytes of an iteration in one burst")
        if any(job.cut != "keep" for job in self.site.jobs):
            lines.append("slowdowns of jobs whose layout was free are against their fastest layout alone")
        if self.site.objective == "makespan":
            lines.append("a job that ends leaves its links to the others, whose times change with that alone")
        if max(self.best.choice.offset_s) > 0:
            lines.append("jobs begin at their offsets and nothing holds them there but the others")
        return tuple(lines)

    def classes(self) -> tuple[int, ...]:
        """Traffic class of each job; a higher number goes first, 0 where all are alike."""
        return levels(self.best.choice.order, self.site.classes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every job."""
        clock, certificate, choice = self.clock, self.certificate, self.best.choice
        rows = []
        for number, job in enumerate(self.site.jobs):
            rows.append(
                {
                    "name": job.name,
                    "model": job.model,
                    "layout_text": format_layout(job.layout),
                    "first_layout_text": format_layout(self.first[number]),
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
        document: dict[str, Any] = encode(self._file())
        return document

    def _file(self) -> ArrangementFile:
        """What the file says of it."""
        site, choice = self.site, self.best.choice
        flows, planned = self.clock.flows(choice.hosts, choice.router), None
        between = [job for job in flows if job is not None]
        if choice.router == "planned" and between:  # as ``weft route export json`` writes them
            planned = merged([traffic for traffic, _ in between]), joined([routes for _, routes in between])
        return ArrangementFile(
            site=site.name,
            seed=self.seed,
            ended=self.ended,
            objective=ArrangedGoal(
                kind=site.objective,
                value=self.objective,
                bound=self.bound,
                bound_by=self.certificate.proof,
                gap=self.gap,
                max_slowdown=site.max_slowdown,
                usd_per_accelerator_hour=site.usd_per_hour,
            ),
            search=self.search,
            policies={name: self._policy(name) for name in self.policies},
            verified=self.verified,
            router=choice.router,
            classes=site.classes,
            hosts=tuple(ArrangedHost(*pair) for pair in zip(site.host_names, site.usable, strict=True)),
            jobs=tuple(self._job(number, row, flows[number], planned) for number, row in enumerate(self.to_dicts())),
            assumptions=self.assumptions(),
            cluster=site.cluster,
            fabric=site.fabric,
            routes=None if planned is None else json.loads(routes_json.write(site.fabric, *planned)),
        )

    def _policy(self, name: str) -> ArrangedPolicy:
        timed = self.policies[name]
        return ArrangedPolicy(
            objective=self.policy(name),
            slowdown=tuple(timed.slowdown.tolist()),
            router=timed.choice.router,
            domains=timed.choice.hosts,
            offset_s=timed.choice.offset_s,
            levels=levels(timed.choice.order, self.site.classes),
        )

    def _job(
        self,
        number: int,
        row: dict[str, Any],
        flows: tuple[JobTraffic, Routes] | None,
        planned: tuple[JobTraffic, Routes] | None,
    ) -> ArrangedJob:
        job, choice = self.site.jobs[number], self.best.choice
        names = [self.site.host_names[host] for host in choice.hosts[number]]
        size, world = self.site.domain_size, job.layout.world
        lists = host_lists([names[rank // size] for rank in range(world)])
        placement = Placement(accelerators=self.clock.accelerators(choice.hosts[number], number))
        routes = None if planned is None else FlowRoutes(self.site.fabric, *planned, name="planned")
        collectives = job_collectives(self.site, number, placement, choice.router, routes)
        environment = "" if flows is None else nccl.write_environment(self.site.fabric, *flows)
        level = row.pop("class")
        if max(choice.order):
            environment += f"NCCL_IB_SL={level}\nNCCL_IB_TC={_CLASS_STEP * level}\n"
        return ArrangedJob(
            **row | {"hosts": tuple(names)},
            level=level,
            weight=job.weight,
            may=job.may,
            cut=job.cut,
            iterations=job.iterations,
            job=job.job,
            layout=job.layout,
            detail=self.clock.templates[number].detail,
            alone_here_s=self.clock.alone(choice.hosts, choice.router, number)[0],
            domains=choice.hosts[number],
            hostfile=lists["hostfile"],
            slurm=SlurmList(
                hosts=lists["SLURM_HOSTFILE"],
                command=f"srun --distribution=arbitrary --ntasks={world} --nodes={len(names)}",
            ),
            nccl_env=environment,
            nccl_tuner=tuner_text(collectives, calibration(self.site.cluster.accelerator.name)),
            collectives=collectives,
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
    """An arrangement read back to start its jobs, of which ``jobs`` has what the file says."""

    where: str
    site: Site
    choice: Assignment
    planned: tuple[JobTraffic, Routes] | None
    jobs: tuple[ArrangedJob, ...]

    @property
    def routes(self) -> FlowRoutes | None:
        """The planned routes of all jobs; None where switches choose."""
        if self.planned is None:
            return None
        return FlowRoutes(self.site.fabric, *self.planned, name=f"{self.where}: routes")

    def number(self, name: str | None, where: str = "--job") -> int:
        """The number of a job; of the only one without a name.

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
        accelerators = self.site.members[np.array(self.choice.hosts[number], dtype=np.int64)].ravel()
        return Placement(accelerators=accelerators[: self.site.jobs[number].layout.world])

    def subcluster(self, number: int) -> Cluster:
        """The hosts of a job as a cluster."""
        return own_cluster(self.site.cluster, self.site.jobs[number].domains)

    def classes(self) -> tuple[int, ...]:
        """Traffic class of each job, as ``Arrangement.classes``."""
        return levels(self.choice.order, self.site.classes)

    def host_names(self, number: int) -> tuple[str, ...]:
        """The host of each rank of a job."""
        size, hosts = self.site.domain_size, self.choice.hosts[number]
        return tuple(self.site.host_names[hosts[rank // size]] for rank in range(self.site.jobs[number].layout.world))

    def settings(self, number: int) -> dict[str, str]:
        """NCCL's settings of a job, by name."""
        lines = [line for line in self.jobs[number].nccl_env.splitlines() if "=" in line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)

    def paths(self, number: int) -> tuple[tuple[dict[str, Any], ...], ...]:
        """The flows of each rank of a job with their paths, as the file has them; none where switches choose."""
        if self.planned is None:
            return ()
        fabric, name = self.site.fabric, self.site.jobs[number].name
        by_source = defaultdict(list)
        for row in flow_rows(fabric, *self.planned):
            if row["job"] == name:
                by_source[row["source"]].append(row)
        return tuple(tuple(by_source[fabric.names[at]]) for at in self.placement(number).accelerators.tolist())

    def flows(self) -> JobTraffic:
        """The flows between hosts of all jobs, where they are."""
        templates = tuple(template(job, self.site.cluster) for job in self.site.jobs)
        flows = Clock(self.site, templates, planned_routes=self.routes).flows(self.choice.hosts, self.choice.router)
        return merged([job[0] for job in flows if job is not None])


_Above = Annotated[float, Range(1e-12, 1e12, above=True, below=True)]
_NotBelow = Annotated[float, Range(0, 1e12, below=True)]
_Number = Annotated[int, Range(0, 10**15, below=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedGoal:
    """The value reached, and the bound that no arrangement betters."""

    kind: Goal
    value: _Above
    bound: _Above
    bound_by: Proof
    gap: float
    max_slowdown: Annotated[float, Range(1, 1e12, below=True)] | None
    usd_per_accelerator_hour: _NotBelow


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedSearch:
    """How many arrangements were stepped, and how many placements and other layouts were tried."""

    arrangements: _Number
    placements: _Number
    layouts: _Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedPolicy(Document):
    """What a policy reaches, and where and when it puts the jobs."""

    DOCUMENT = "objective slowdown router domains offset_s class=levels"

    objective: _Above
    slowdown: tuple[_Above, ...]
    router: Router
    domains: tuple[tuple[int, ...], ...]
    offset_s: tuple[_NotBelow, ...]
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArrangedHost:
    """A host, and whether jobs may be put there."""

    name: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmList(Document):
    """SLURM's list of hosts, and how to start with it."""

    DOCUMENT = "SLURM_HOSTFILE=hosts command"

    hosts: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedJob(Document):
    """A job: where and when it runs, its times, and the texts that start it."""

    DOCUMENT = """
        name model layout_text first_layout_text hosts offset_s class=level iteration_s slowdown alone_s bound_s
        bound_by weight may cut iterations job layout detail alone_here_s domains hostfile slurm nccl_env nccl_tuner
        collectives"""

    name: str
    model: str
    layout_text: str
    first_layout_text: str
    hosts: tuple[str, ...]
    offset_s: _NotBelow
    level: int
    iteration_s: _Above
    slowdown: float
    alone_s: _Above
    bound_s: _Above
    bound_by: Proof
    weight: _Above
    may: May
    cut: Cut
    iterations: Annotated[int, Range(1, 10**12)] | None
    job: WrittenJob
    layout: WrittenLayout
    detail: str
    alone_here_s: _NotBelow
    domains: Annotated[tuple[int, ...], Range(1, 10**6)]
    hostfile: str
    slurm: SlurmList
    nccl_env: str
    nccl_tuner: str
    collectives: Annotated[tuple[JobCollective, ...], Coded(lambda raw: (), encode, tuple[JobCollective, ...])]
    """Read back as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangementFile(Document):
    """An arrangement as its file has it."""

    SCHEMA = Arrangement.SCHEMA

    site: str
    seed: _Number
    ended: Ended
    objective: ArrangedGoal
    search: ArrangedSearch
    policies: dict[str, ArrangedPolicy]
    verified: Verified | None
    router: Router
    classes: Annotated[int, Range(1, 8)]
    hosts: tuple[ArrangedHost, ...]
    jobs: Annotated[tuple[ArrangedJob, ...], Range(1, 256)]
    assumptions: tuple[str, ...]
    cluster: WrittenCluster
    fabric: WrittenFabric
    routes: Mapping[str, Any] | None = None


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a file that ``weft arrange -o`` wrote."""
    where = os.fspath(path)
    document = parse_json(
        read_text(path, where=where, largest=MAX_FILE_BYTES, remedy=_WRITE_ONE), where, remedy=_WRITE_ONE
    )
    if not isinstance(document, dict) or document.get("schema") != Arrangement.SCHEMA:
        raise BadInput(f"is not of schema {Arrangement.SCHEMA}", where=where, remedy=_WRITE_ONE)
    return document


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """The jobs of a file that ``weft arrange -o`` wrote, ready to start."""
    return _bundle(decode(ArrangementFile, read_document(path), os.fspath(path)), os.fspath(path))


def arrangement_of(document: Mapping[str, Any], where: str) -> Arrangement:
    """The arrangement of a document, with its policies and bounds; nothing is stepped again."""
    fields = decode(ArrangementFile, document, where)
    bundle = _bundle(fields, where)
    site = bundle.site
    first = []
    for number, (job, row) in enumerate(zip(site.jobs, fields.jobs, strict=True)):
        place = f"{where}: jobs[{number}]: first_layout_text"
        first.append(parse_layout(row.first_layout_text, where=place).complete(job.layout.world))
        check_layout(job.job, job.layout.world, first[-1], where=place)
    references = tuple(Reference(seconds=row.alone_s, bound_s=row.bound_s) for row in fields.jobs)
    known = Layouts(site, lambda: 0.0)
    clock = Clock(
        site, tuple(known.template(job, job.layout) for job in site.jobs), references, planned_routes=bundle.routes
    )
    jobs = tuple(replace(job, layout=layout) for job, layout in zip(site.jobs, first, strict=True))
    began = Clock(replace(site, jobs=jobs), tuple(known.template(job, job.layout) for job in jobs), references)
    policies = {name: _policy(clock, fields, name, where) for name in POLICIES if name in fields.policies}
    for name in ("hashed", "arrange"):
        if name not in policies:
            raise BadInput(f"holds no policy {name!r}", where=f"{where}: policies", remedy=_WRITE_ONE)
    policies["arrange"] = replace(policies["arrange"], iteration_s=np.array([row.iteration_s for row in fields.jobs]))
    if policies["arrange"].choice != bundle.choice:
        problem = "the policy and the jobs have not the same hosts, times and classes"
        raise BadInput(problem, where=f"{where}: policies.arrange", remedy=_WRITE_ONE)
    verified = fields.verified
    if verified is not None and len(verified.iteration_s) != len(jobs):
        raise BadInput("has not one value for each job", where=f"{where}: verified", remedy=_WRITE_ONE)
    return Arrangement(
        clock=clock,
        began=began,
        cuts=cuts_of(clock.fabric),
        policies=policies,
        certificate=Certificate(
            iteration_s=np.array([row.bound_s for row in fields.jobs]),
            proofs=tuple(row.bound_by for row in fields.jobs),
            objective=clock.objective.score_of(fields.objective.bound),
            proof=fields.objective.bound_by,
        ),
        search=fields.search,
        first=tuple(first),
        verified=verified,
        ended=fields.ended,
        seed=fields.seed,
    )


def _bundle(fields: ArrangementFile, where: str) -> Bundle:
    site = _site(fields, where)
    bundle = Bundle(
        where=where,
        site=site,
        choice=Assignment(
            hosts=tuple(job.hosts for job in site.jobs),
            router=fields.router,
            offset_s=tuple(row.offset_s for row in fields.jobs),
            order=order_of([row.level for row in fields.jobs], site.classes, f"{where}: jobs"),
        ),
        planned=_planned_routes(fields, site, where),
        jobs=fields.jobs,
    )
    for number, row in enumerate(fields.jobs):
        _check_texts(host_lists(bundle.host_names(number)), row, f"{where}: jobs[{number}]")
    return bundle


def _site(fields: ArrangementFile, where: str) -> Site:
    """The site, every job on its hosts."""
    cluster, fabric, goal = fields.cluster, fields.fabric, fields.objective
    size, sizes = cluster.tiers[0].size, np.bincount(fabric.domain)
    if len(cluster.tiers) < 2 or not (sizes == size).all():
        problem = f"its hosts are not those of {cluster.name}, of {size} accelerators"
        raise BadInput(problem, where=f"{where}: fabric", remedy=_WRITE_ONE)
    names = [host.name for host in fields.hosts]
    if len(names) != len(sizes) or len(set(names)) != len(names):
        problem = f"{len(set(names))} different names for the fabric's {len(sizes)} hosts"
        raise BadInput(problem, where=f"{where}: hosts", remedy=_WRITE_ONE)
    rows = enumerate(fields.jobs)
    jobs = tuple(_site_job(row, f"{where}: jobs[{number}]", names, size) for number, row in rows)
    hosts = [host for job in jobs for host in job.hosts]
    if len(set(hosts)) < len(hosts) or len({job.name for job in jobs}) < len(jobs):
        raise BadInput("two jobs share a host or a name", where=f"{where}: jobs", remedy=_WRITE_ONE)
    if goal.kind == "dollars_per_token" and not goal.usd_per_accelerator_hour:
        raise BadInput("holds no price", where=f"{where}: objective", remedy=_WRITE_ONE)
    return Site(
        name=fields.site,
        cluster=cluster,
        fabric=fabric,
        host_names=tuple(names),
        usable=tuple(host.up for host in fields.hosts),
        routers=(fields.router,),
        classes=fields.classes,
        jobs=jobs,
        objective=goal.kind,
        max_slowdown=goal.max_slowdown,
        usd_per_hour=goal.usd_per_accelerator_hour,
    )


def _site_job(row: ArrangedJob, where: str, names: list[str], size: int) -> SiteJob:
    job, layout = row.job, row.layout
    check_layout(job, layout.world, layout, where=where)
    if not all(0 <= host < len(names) for host in row.domains):
        raise BadInput(f"domains are not hosts below {len(names)}", where=where, remedy=_WRITE_ONE)
    if len(row.domains) != -(-layout.world // size):
        problem = f"{len(row.domains)} hosts of {size} for {layout.world} ranks"
        raise BadInput(problem, where=f"{where}: domains", remedy=_WRITE_ONE)
    if row.hosts != tuple(names[host] for host in row.domains):
        raise BadInput("are not the names of its domains", where=f"{where}: hosts", remedy=_WRITE_ONE)
    return SiteJob(
        name=row.name,
        model=row.model,
        job=job,
        layout=layout,
        domains=len(row.domains),
        hosts=row.domains,
        may=row.may,
        weight=row.weight,
        cut=row.cut,
        iterations=row.iterations,
    )


def _planned_routes(fields: ArrangementFile, site: Site, where: str) -> tuple[JobTraffic, Routes] | None:
    place, planned = f"{where}: routes", fields.router == "planned"
    if fields.routes is not None and not planned:
        raise BadInput(f"are given, but the router is {fields.router}", where=place, remedy=_WRITE_ONE)
    if fields.routes is None and planned and max(job.domains for job in site.jobs) > 1:
        raise BadInput("are missing", where=place, remedy=_WRITE_ONE)
    if fields.routes is None:
        return None
    return routes_json.read(json.dumps(fields.routes), site.fabric, where=place)


def _check_texts(lists: Mapping[str, str], row: ArrangedJob, place: str) -> None:
    """Refuse texts for launchers that contradict the fields, and settings that NCCL does not take."""
    for name, text in (("hostfile", row.hostfile), ("SLURM_HOSTFILE", row.slurm.hosts)):
        if text != lists[name]:
            raise BadInput("does not list the job's hosts in order", where=f"{place}: {name}", remedy=_WRITE_ONE)
    for wrong in nccl.lint_environment(row.nccl_env):
        raise BadInput(wrong, where=f"{place}: nccl_env", remedy=_WRITE_ONE)
    for line in row.nccl_tuner.splitlines():
        if not line.startswith("#") and line.count(",") != 7:
            problem = f"{line[:60]!r} is not a line of a tuner file"
            raise BadInput(problem, where=f"{place}: nccl_tuner", remedy=_WRITE_ONE)


def _policy(clock: Clock, fields: ArrangementFile, name: str, where: str) -> Timed:
    """A policy's assignment, with the times of the file."""
    policy, site, place = fields.policies[name], clock.site, f"{where}: policies.{name}"
    hosts = [host for domains in policy.domains for host in domains]
    sizes = tuple(len(domains) for domains in policy.domains)
    lengths = {len(policy.slowdown), len(policy.offset_s), len(policy.levels)}
    if sizes != tuple(job.domains for job in site.jobs) or lengths != {len(site.jobs)}:
        raise BadInput("has not one value for each job or host", where=place, remedy=_WRITE_ONE)
    if len(set(hosts)) != len(hosts) or not all(0 <= host < len(site.host_names) for host in hosts):
        raise BadInput("two places are one host, or none", where=f"{place}.domains", remedy=_WRITE_ONE)
    slowdown, score = np.array(policy.slowdown), clock.objective.score_of(policy.objective)
    return Timed(
        choice=Assignment(
            hosts=policy.domains,
            router=policy.router,
            offset_s=policy.offset_s,
            order=order_of(policy.levels, site.classes, place),
        ),
        iteration_s=slowdown * clock.objective.against_s,
        slowdown=slowdown,
        score=score,
        cost=score + clock.objective.over(slowdown),
    )
