"""Site files (``weft.site/1``): a fabric, its hosts, what its switches can do, and the jobs that share it.

A site is TOML.  Hosts are scale-up domains; a job takes whole hosts.  SLURM may say which hosts are up, and where jobs
of the same names run.  Quantities and names are checked here, and what does not fit together is refused with the place
and what to change.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from weft.cluster import Cluster
from weft.cluster import load as named_cluster
from weft.cluster import resolve as resolve_cluster
from weft.codec import Count, Range, decode
from weft.documents import parse_json, parse_toml
from weft.errors import BadInput, NothingFeasible, UnknownName
from weft.fabric.catalogue import check_size, default_kind, for_cluster
from weft.fabric.placement import host_names
from weft.fabric.spec import Fabric, Ints
from weft.files import read_text
from weft.interop.slurm import read_queue
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.layout.text import layout_from_dict, parse_layout
from weft.model import Job, RecipeChanges, resolve_job
from weft.model.job import job_from_dict
from weft.model.resolve import named_job
from weft.search.enumeration import SPACES, STANDARD, Space
from weft.units import counted

SCHEMA = "weft.site/1"
MAX_FILE_BYTES = 4_000_000
MAX_PLAN_BYTES = 64_000_000
Router = Literal["ecmp", "planned", "spray"]
May = Literal["move", "reorder", "stay"]
Cut = Literal["keep", "change", "choose"]
Goal = Literal["slowdown", "worst", "makespan", "utilization", "dollars_per_token"]
_Name = Annotated[str, Range(1, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHostEntry:
    """A host of a site file."""

    name: _Name
    state: Literal["up", "drained"] = "up"
    domain: Annotated[int, Range(0, 10**9)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSwitches:
    """What the switches of a site can do."""

    routing: Annotated[tuple[Router, ...], Range(1, 3)] = ("ecmp",)
    classes: Annotated[int, Range(1, 8)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteJobEntry:
    """A job of a site file."""

    name: _Name
    model: _Name | None = None
    layout: _Name | None = None
    plan: _Name | None = None
    rank: Count = 1
    keep_layout: bool | None = None
    fix: _Name | None = None
    batch: Count | None = None
    accelerators: Annotated[int, Range(1, 10**7)] | None = None
    hosts: Annotated[tuple[_Name, ...], Range(1, 10**6)] | None = None
    may: May | None = None
    weight: Annotated[float, Range(0, 1e9, above=True)] = 1.0
    iterations: Annotated[int, Range(1, 10**12)] | None = None
    tokens: Annotated[float, Range(1, 1e18)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGoal:
    """What is to be best."""

    kind: Goal = "slowdown"
    usd_per_accelerator_hour: Annotated[float, Range(0, 1e6, above=True)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """What an arrangement must keep."""

    max_slowdown: Annotated[float, Range(1, 1e6)] | None = None
    spares: Annotated[int, Range(0, 10**6)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFile:
    """A site file."""

    schema: Literal["weft.site/1"]
    name: _Name
    cluster: _Name
    fabric: _Name | None = None
    radix: Annotated[int, Range(2, 4096)] = 64
    oversubscription: Annotated[tuple[float, ...], Range(1, 8)] | None = None
    hosts: tuple[SiteHostEntry, ...] = ()
    slurm: Annotated[tuple[_Name, ...], Range(0, 8)] = ()
    switches: SiteSwitches = SiteSwitches()
    jobs: Annotated[tuple[SiteJobEntry, ...], Range(0, 256)] = ()
    objective: SiteGoal = SiteGoal()
    limits: SiteLimits = SiteLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteJob:
    """A job of a site.

    ``hosts`` are its domains in rank order; empty where any will do.  ``may``: "move" (any hosts), "reorder" (its
    hosts in any order) or "stay".  ``cut``: whether its layout is kept, may be changed, or is chosen from ``space``
    (``layout`` is data parallelism alone until then).  ``iterations`` is the length of the job, None if unknown.
    """

    name: str
    model: str
    job: Job
    layout: Layout
    domains: int
    hosts: tuple[int, ...]
    may: May
    weight: float
    cut: Cut = "keep"
    space: Space = STANDARD
    iterations: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A fabric with its hosts, and jobs.

    Host ``h`` is scale-up domain ``h`` of the fabric; ``usable[h]`` says whether jobs may run there; ``spares`` hosts
    stay free.  ``usd_per_hour`` is the price of an accelerator, 0 if unknown.
    """

    name: str
    cluster: Cluster
    fabric: Fabric

    host_names: tuple[str, ...]
    usable: tuple[bool, ...]
    routers: tuple[Router, ...]
    classes: int
    jobs: tuple[SiteJob, ...]
    objective: Goal
    max_slowdown: float | None
    spares: int = 0
    usd_per_hour: float = 0.0

    @property
    def domain_size(self) -> int:
        """Accelerators of a host."""
        return self.fabric.accelerators // len(self.host_names)

    @property
    def members(self) -> Ints:
        """Accelerators of each host, a host a row."""
        order = np.argsort(self.fabric.domain, kind="stable")
        return order.reshape(len(self.host_names), -1)


def read_site(source: str | os.PathLike[str]) -> Site:
    """The site of a TOML file.  Files that it names are looked for beside it, too.

    Raises:
        BadInput: the file cannot be read, a field is unknown or wrong, or hosts and jobs do not fit together.
        NothingFeasible: a job needs more hosts than are free.
    """
    where = os.fspath(source)
    text = read_text(source, where=where, largest=MAX_FILE_BYTES, remedy="name a site file (TOML)")
    return site_of(parse_toml(text, where), where, Path(where).parent)


def site_of(table: Mapping[str, object], where: str, beside: Path | None) -> Site:
    """The site of such fields.

    Args:
        table: as a site file has them.
        where: names them in messages.
        beside: where files that it names are looked for, too; None: it may name none.

    Raises:
        BadInput: a field is unknown or wrong, or hosts and jobs do not fit together.
        NothingFeasible: a job needs more hosts than are free.
    """
    file = decode(SiteFile, table, where)
    if not file.jobs:
        raise BadInput("a site without jobs", where=f"{where}: jobs", remedy="add [[jobs]]")
    cluster = named_cluster(file.cluster) if beside is None else resolve_cluster(_beside(file.cluster, beside))
    fabric = _fabric(file, cluster, beside, where)
    names, usable = _hosts(file.hosts, fabric, cluster, where)
    entries, usable = _queued(file, names, usable, cluster, beside, where) if file.slurm else (file.jobs, usable)
    jobs = tuple(
        _job(entry, f"{where}: jobs[{number}]", cluster, names, beside) for number, entry in enumerate(entries)
    )
    site = Site(
        name=file.name,
        cluster=cluster,
        fabric=fabric,
        host_names=names,
        usable=usable,
        routers=tuple(dict.fromkeys(file.switches.routing)),
        classes=file.switches.classes,
        jobs=jobs,
        objective=file.objective.kind,
        max_slowdown=file.limits.max_slowdown,
        spares=file.limits.spares,
        usd_per_hour=file.objective.usd_per_accelerator_hour or cluster.accelerator.usd_per_hour,
    )
    _check(site, where)
    return site


def _beside(name: str, folder: Path) -> str:
    """A file's path where the name is that of a file beside the site, else the name."""
    return str(folder / name) if os.path.isfile(folder / name) else name


def _fabric(file: SiteFile, cluster: Cluster, beside: Path | None, where: str) -> Fabric:
    if len(cluster.tiers) < 2:
        problem = f"{cluster.name} is one scale-up domain without a network"
        raise BadInput(problem, where=f"{where}: cluster", remedy="name a cluster of several hosts")
    kind = file.fabric or default_kind(cluster)
    path = kind if beside is None else _beside(kind, beside)
    if path != kind or (beside is not None and Path(kind).suffix):
        from weft.interop.fabric_files import read_fabric

        fabric = read_fabric(path, cluster=cluster, oversubscription=file.oversubscription or ())
        check_size(fabric, cluster, f"{where}: fabric")
        return fabric
    return for_cluster(kind, cluster, radix=file.radix, oversubscription=file.oversubscription)


def _hosts(
    entries: tuple[SiteHostEntry, ...], fabric: Fabric, cluster: Cluster, where: str
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    sizes = np.bincount(fabric.domain)
    size = cluster.tiers[0].size
    if not (sizes == size).all():
        odd = int(np.argmax(sizes != size))
        raise BadInput(
            f"the fabric's domain {odd} has {counted(sizes[odd], 'accelerator')}, a host of {cluster.name} {size}",
            where=f"{where}: fabric",
            remedy="name a fabric and a cluster with hosts of one size",
        )
    first = np.unique(fabric.domain, return_index=True)[1]
    of_fabric = host_names(fabric)
    names = [of_fabric[int(at)] for at in first]
    usable = [True] * len(names)
    twice = [name for name, times in Counter(entry.name for entry in entries).items() if times > 1]
    if twice:
        raise BadInput(f"host {twice[0]} is given twice", where=f"{where}: hosts", remedy="give each host once")
    inventory = any(entry.domain is not None for entry in entries)
    if inventory:
        usable = [False] * len(names)
    owners: dict[int, str] = {}
    for number, entry in enumerate(entries):
        place = f"{where}: hosts[{number}]"
        if entry.domain is not None and entry.domain >= len(names):
            problem = f"{entry.name} is in domain {entry.domain}, but the fabric has {len(names)} domains"
            raise BadInput(problem, where=place, remedy=f"give 0 to {len(names) - 1}, or a larger fabric")
        if entry.domain is None and entry.name not in names:
            raise UnknownName("host", entry.name, names, where=place)
        at = names.index(entry.name) if entry.domain is None else entry.domain
        if at in owners:
            problem = f"{entry.name} and {owners[at]} are both domain {at}"
            raise BadInput(problem, where=place, remedy="give each host its own domain")
        owners[at], names[at], usable[at] = entry.name, entry.name, entry.state == "up"
    return tuple(names), tuple(usable)


def _queued(
    file: SiteFile, names: tuple[str, ...], usable: tuple[bool, ...], cluster: Cluster, beside: Path | None, where: str
) -> tuple[tuple[SiteJobEntry, ...], tuple[bool, ...]]:
    """The jobs, with the hosts or the size that SLURM's jobs of the same names have, and the hosts that are up and
    without other jobs.  A node that drains is still up for a job that stays on it."""
    place = f"{where}: slurm"
    if beside is None:
        raise BadInput("names files, but files are not read here", where=place, remedy="give hosts and jobs instead")
    paths = [_beside(path, beside) for path in file.slurm]
    parts = [read_queue(read_text(path, where=path), where=path) for path in paths]
    queue = [job for part in parts for job in part.jobs]
    nodes = {name: up for part in parts for name, up in part.nodes.items()}
    if nodes and nodes.keys().isdisjoint(names):
        raise UnknownName("host", next(iter(nodes)), names, where=place)
    entries = []
    for number, entry in enumerate(file.jobs):
        same = [job for job in queue if job.name == entry.name] if entry.hosts is None else []
        if len(same) > 1:
            problem = f"SLURM's jobs {same[0].number} and {same[1].number} are both called {entry.name}"
            raise BadInput(problem, where=place, remedy="rename one, or give the hosts of the one that is meant")
        if same:
            job, size = same[0], entry.accelerators or same[0].count * cluster.tiers[0].size
            if not size:
                problem = f"SLURM's job {job.number} ({job.name}) does not say how many nodes it needs"
                raise BadInput(problem, where=place, remedy=f"give accelerators in jobs[{number}]")
            may = entry.may if job.nodes else None  # what waits may go anywhere
            entry = replace(entry, hosts=job.nodes or None, accelerators=size, may=may)
        entries.append(entry)
    stay = {host for entry in entries if entry.may != "move" for host in entry.hosts or ()}
    known = {entry.name for entry in entries}
    given = {host for entry in file.jobs for host in entry.hosts or ()}
    several = {name for name, number in Counter(job.name for job in queue).items() if number > 1}
    other = [job for job in queue if job.name not in known or job.name in several]
    taken = {node for job in other for node in job.nodes} - given
    up = {name for name in names if nodes.get(name, not nodes)} - taken | stay
    return tuple(entries), tuple(of_site and name in up for name, of_site in zip(names, usable, strict=True))


def _job(entry: SiteJobEntry, where: str, cluster: Cluster, names: tuple[str, ...], beside: Path | None) -> SiteJob:
    size = cluster.tiers[0].size
    job, model, layout = _work(entry, where, cluster, beside)
    if entry.accelerators is not None and entry.accelerators != layout.world:
        problem = f"{entry.accelerators} accelerators wanted, but the layout has {layout.world} ranks"
        raise BadInput(problem, where=where, remedy="make them equal, or leave accelerators out")
    domains = -(-layout.world // size)
    hosts: tuple[int, ...] = ()
    if entry.hosts is not None:
        for name in entry.hosts:
            if name not in names:
                raise UnknownName("host", name, names, where=f"{where}.hosts")
        hosts = tuple(names.index(name) for name in entry.hosts)
        if len(set(hosts)) != len(hosts) or len(hosts) != domains:
            problem = f"{len(set(hosts))} different hosts for {layout.world} ranks"
            raise BadInput(problem, where=f"{where}.hosts", remedy=f"name {domains}, one for every {size} ranks")
    may = entry.may or ("stay" if hosts else "move")
    if may != "move" and not hosts:
        raise BadInput(f"may = {may!r} without hosts", where=where, remedy="name its hosts, or let it move")
    iterations = entry.iterations
    if entry.tokens is not None:
        if iterations is not None:
            raise BadInput("gives iterations and tokens", where=where, remedy="leave one of them out")
        iterations = math.ceil(entry.tokens / job.recipe.tokens)
    cut = _cut(entry, where)
    if cut != "keep" and layout.world > size and layout.world % size:
        problem = f"{layout.world} ranks do not fill hosts of {size}, so that no layout can be chosen"
        raise BadInput(problem, where=where, remedy=f"ask for a multiple of {size}, or keep the layout")
    return SiteJob(
        name=entry.name, model=model, job=job, layout=layout, domains=domains, hosts=hosts, may=may,
        weight=entry.weight, cut=cut, space=_space(entry, job, where), iterations=iterations,
    )  # fmt: skip


def _cut(entry: SiteJobEntry, where: str) -> Cut:
    """What may happen to the layout of a job."""
    if entry.plan is None and entry.layout is None:
        if entry.keep_layout:
            raise BadInput("needs a layout to keep", where=f"{where}.keep_layout", remedy="give the layout")
        return "choose"
    keep = entry.keep_layout is None or entry.keep_layout
    if keep and entry.fix is not None:
        problem = "fixes parts of a layout that is kept"
        raise BadInput(problem, where=f"{where}.fix", remedy="leave it out, or write keep_layout = false")
    return "keep" if keep else "change"


def _space(entry: SiteJobEntry, job: Job, where: str) -> Space:
    """The layouts that a job may have: those of its recipe's space, with what the site fixes."""
    space = SPACES[job.space or STANDARD.name]
    if entry.fix is None:
        return space
    part = parse_layout(entry.fix, where=f"{where}.fix")
    fixed = dict(part.values)
    if part.data_parallel is not None:
        fixed["data_parallel"] = part.data_parallel
    return space.constrained(fixed, {})


def _work(entry: SiteJobEntry, where: str, cluster: Cluster, beside: Path | None) -> tuple[Job, str, Layout]:
    """The job, the name of its model, and its layout, which is data parallelism alone where it is to be chosen."""
    if (entry.plan is None) == (entry.model is None):
        raise BadInput("names a model or a plan, not both", where=where, remedy="give model and layout, or plan")
    if entry.model is None:
        return _planned(entry, where, beside)
    changes = RecipeChanges(global_batch=entry.batch)
    job = named_job(entry.model, changes) if beside is None else resolve_job(_beside(entry.model, beside), changes)
    if entry.layout is None:
        named = len(entry.hosts or ()) * cluster.tiers[0].size
        if not (entry.accelerators or named):
            problem = "says neither its layout nor how many accelerators it wants"
            remedy = "give layout, like tp=8,dp=8, or accelerators, and Weft chooses the layout"
            raise BadInput(problem, where=where, remedy=remedy)
        return job, entry.model, Layout(data=entry.accelerators or named)
    layout = parse_layout(entry.layout, where=f"{where}.layout").complete(entry.accelerators)
    check_layout(job, layout.world, layout, where=f"{where}.layout")
    return job, entry.model, layout


def _planned(entry: SiteJobEntry, where: str, beside: Path | None) -> tuple[Job, str, Layout]:
    """The job, the plan's name and the layout of a rank (from 1) of a plan that ``weft plan`` wrote."""
    if entry.layout is not None or entry.batch is not None:
        raise BadInput("layout and batch are in the plan", where=where, remedy="leave them out")
    if beside is None:
        problem = "names a file, but files are not read here"
        raise BadInput(problem, where=f"{where}.plan", remedy="give model and layout instead")
    name = str(entry.plan)
    path, remedy = _beside(name, beside), "write one with weft plan --format json -o plan.json"
    plan = parse_json(read_text(path, where=path, largest=MAX_PLAN_BYTES, remedy=remedy), path)
    if not isinstance(plan, Mapping) or plan.get("schema") != "weft.plan/1":
        raise BadInput("is not a plan", where=path, remedy=remedy)
    rows = plan.get("layouts")
    if not isinstance(rows, list) or not entry.rank <= len(rows):
        raise BadInput(f"there is no rank {entry.rank}", where=path, remedy=remedy)
    row = rows[entry.rank - 1]
    if not isinstance(row, Mapping) or not isinstance(row.get("layout"), Mapping) or "job" not in plan:
        raise BadInput("has no job with a layout", where=path, remedy=remedy)
    job = job_from_dict(plan["job"], where=f"{where}.plan: job")
    layout = layout_from_dict(row["layout"], where=f"{where}.plan: layout")
    check_layout(job, layout.world, layout, where=f"{where}.plan")
    return job, name, layout


def _check(site: Site, where: str) -> None:
    """Refuse equal names, shared hosts, jobs on hosts that are down, and objectives that lack an input."""
    names = Counter(job.name for job in site.jobs)
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise BadInput(f"two jobs are called {twice[0]}", where=f"{where}: jobs", remedy="give each its own name")
    holder: dict[int, str] = {}
    for number, job in enumerate(site.jobs):
        place = f"{where}: jobs[{number}].hosts"
        for host in job.hosts:
            if host in holder:
                problem = f"{site.host_names[host]} is held by {holder[host]} and {job.name}"
                raise BadInput(problem, where=place, remedy="give each job its own hosts")
            if not site.usable[host] and job.may != "move":
                problem = f"{site.host_names[host]} is drained or missing, but {job.name} stays on it"
                raise BadInput(problem, where=place, remedy='let the job move (may = "move"), or bring the host up')
            holder[host] = job.name
    if site.objective == "makespan":
        for number, job in enumerate(site.jobs):
            if job.iterations is None:
                problem = f"{job.name} does not say how long it is, which makespan needs"
                remedy = "give iterations or tokens, or choose another objective"
                raise BadInput(problem, where=f"{where}: jobs[{number}]", remedy=remedy)
    if site.objective == "dollars_per_token" and not site.usd_per_hour:
        raise BadInput(
            f"{site.cluster.accelerator.name} has no price",
            where=f"{where}: objective",
            remedy="give usd_per_accelerator_hour",
        )
    _check_room(site, where)


def _check_room(site: Site, where: str) -> None:
    """Refuse jobs and spares that have no room."""
    fixed = sum(len(job.hosts) for job in site.jobs if job.may != "move")
    free = sum(site.usable) - fixed
    wanted = [job for job in site.jobs if job.may == "move"]
    for job in wanted:
        if job.domains > free:
            raise NothingFeasible(
                f"{where}: {job.name} needs {counted(job.domains, 'host')}, {free} are free"
                " -- give it fewer accelerators, or free hosts"
            )
    need = sum(job.domains for job in wanted)
    if need > free:
        raise NothingFeasible(f"{where}: the jobs need {need} free hosts, {free} are free -- take a job out")
    if need + site.spares > free:
        raise NothingFeasible(
            f"{where}: limits.spares {site.spares} cannot be kept: {free - need} hosts stay free"
            f" -- ask for {free - need} at most, or take a job out"
        )
