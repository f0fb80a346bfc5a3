"""An arrangement read back whole, with its policies, bounds and what was searched: for reports and pictures.

What starts jobs needs less and takes a ``Bundle``.  Times are those of the file; nothing is stepped anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from weft.arrangement.bundle import Arrangement, Bundle, bundle_of, order_of, read_document
from weft.arrangement.certificate import Certificate
from weft.arrangement.clock import Choice, Clock, Reference, Timed
from weft.arrangement.cuts import cuts_of
from weft.arrangement.layouts import Layouts
from weft.arrangement.search import POLICIES, Found
from weft.arrangement.site import Cut, Goal, May, Router, Site
from weft.arrangement.verify import Verified
from weft.documents import validate
from weft.errors import BadInput
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.layout.text import parse_layout

_REMEDY = "write it with weft arrange SITE.toml -o arranged.json"
_Positive = Annotated[float, Field(gt=1e-12, lt=1e12)]
_Share = Annotated[float, Field(ge=0.0, lt=1e12)]
_Count = Annotated[int, Field(ge=0, lt=10**15)]
_Proof = Literal["alone", "cuts", "phases", "time-sharing"]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Goal(_Fields):
    kind: Goal
    value: _Positive
    bound: _Positive
    bound_by: _Proof
    max_slowdown: Annotated[float, Field(ge=1.0, lt=1e12)] | None
    usd_per_accelerator_hour: _Share


class _Search(_Fields):
    arrangements: _Count
    placements: _Count
    layouts: _Count


class _Policy(_Fields):
    objective: _Positive
    slowdown: list[_Positive]
    router: Router
    domains: list[list[int]]
    offset_s: list[_Share]
    classes: list[int] = Field(alias="class")


class _Verified(_Fields):
    iteration_s: list[_Positive | None]
    apart: _Share | None
    left_out: list[str]


class _Host(_Fields):
    name: str
    up: bool


class _Job(_Fields):
    first_layout_text: str
    alone_s: _Positive
    bound_s: _Positive
    bound_by: _Proof
    may: May
    cut: Cut
    iterations: Annotated[int, Field(ge=1, le=10**12)] | None


class _Arranged(_Fields):
    seed: _Count
    ended: Literal["complete", "budget", "interrupted"]
    objective: _Goal
    search: _Search
    policies: dict[str, _Policy]
    verified: _Verified | None
    hosts: list[_Host]
    jobs: list[_Job]


def read_arrangement(path: str | os.PathLike[str]) -> Arrangement:
    """The arrangement of a file that ``weft arrange -o`` wrote.

    Raises:
        BadInput: the file is no such document, or was changed into one that means nothing.
    """
    return arrangement_of(read_document(path), os.fspath(path))


def arrangement_of(document: Mapping[str, Any], where: str) -> Arrangement:
    """The arrangement of such a document; ``where`` names it in messages.

    Raises:
        BadInput: its fields mean nothing.
    """
    bundle, given = bundle_of(document, where), validate(_Arranged, document, where)
    site = _site(bundle, given, where)
    first = tuple(_first(bundle, number, one.first_layout_text) for number, one in enumerate(given.jobs))
    references = tuple(Reference(seconds=one.alone_s, bound_s=one.bound_s) for one in given.jobs)
    known = Layouts(site, lambda: 0.0)
    clock = Clock(site, tuple(known.template(job, job.layout) for job in site.jobs), references, given=bundle.routes)
    jobs = tuple(replace(job, layout=layout) for job, layout in zip(site.jobs, first, strict=True))
    began = Clock(replace(site, jobs=jobs), tuple(known.template(job, job.layout) for job in jobs), references)
    policies = {name: _timed(clock, given, name, where) for name in POLICIES if name in given.policies}
    for name in ("hashed", "arrange"):
        if name not in policies:
            raise BadInput(f"holds no policy {name!r}", where=f"{where}: policies", remedy=_REMEDY)
    policies["arrange"] = replace(policies["arrange"], iteration_s=np.array(bundle.promised_s))
    if policies["arrange"].choice != bundle.choice:
        problem = "the policy and the jobs have not the same hosts, times and classes"
        raise BadInput(problem, where=f"{where}: policies.arrange", remedy=_REMEDY)
    certificate = Certificate(
        iteration_s=np.array([one.bound_s for one in given.jobs]),
        proofs=tuple(one.bound_by for one in given.jobs),
        objective=clock.objective.score_of(given.objective.bound),
        proof=given.objective.bound_by,
    )
    found = Found(
        clock=clock,
        began=began,
        cuts=cuts_of(clock.fabric),
        given=policies["hashed"].choice.hosts,
        policies=policies,
        certificate=certificate,
        evaluations=given.search.arrangements,
        placements=given.search.placements,
        first=first,
        layouts=given.search.layouts,
        verified=_verified(given, where),
        ended=given.ended,
    )
    return Arrangement(found=found, seed=given.seed)


def _site(bundle: Bundle, given: _Arranged, where: str) -> Site:
    """The site of a bundle, with what it needs no more to start jobs."""
    site, names = bundle.site, [one.name for one in given.hosts]
    if len(names) != len(site.host_names) or len(set(names)) != len(names):
        problem = f"{len(set(names))} different names for the fabric's {len(site.host_names)} hosts"
        raise BadInput(problem, where=f"{where}: hosts", remedy=_REMEDY)
    for job in site.jobs:
        for host in job.hosts:
            if names[host] != site.host_names[host]:
                problem = f"{names[host]!r} is called {site.host_names[host]!r} in {job.name}"
                raise BadInput(problem, where=f"{where}: hosts[{host}]", remedy=_REMEDY)
    goal = given.objective
    if goal.kind == "dollars_per_token" and not goal.usd_per_accelerator_hour:
        raise BadInput("holds no price", where=f"{where}: objective", remedy=_REMEDY)
    jobs = tuple(
        replace(job, may=one.may, cut=one.cut, iterations=one.iterations)
        for job, one in zip(site.jobs, given.jobs, strict=True)
    )
    return replace(
        site,
        host_names=tuple(names),
        usable=tuple(one.up for one in given.hosts),
        jobs=jobs,
        objective=goal.kind,
        max_slowdown=goal.max_slowdown,
        usd_per_hour=goal.usd_per_accelerator_hour,
    )


def _first(bundle: Bundle, number: int, text: str) -> Layout:
    """The layout that a job began with."""
    job, where = bundle.site.jobs[number], f"{bundle.where}: jobs[{number}]: first_layout_text"
    layout = parse_layout(text, where=where).complete(job.layout.world)
    check_layout(job.job, job.layout.world, layout, where=where)
    return layout


def _timed(clock: Clock, given: _Arranged, name: str, where: str) -> Timed:
    """What a policy chose, with the times of the file."""
    one, site, place = given.policies[name], clock.site, f"{where}: policies.{name}"
    held = [host for hosts in one.domains for host in hosts]
    sizes = tuple(len(hosts) for hosts in one.domains)
    lengths = (len(one.slowdown), len(one.offset_s), len(one.classes))
    if sizes != tuple(job.domains for job in site.jobs) or set(lengths) != {len(site.jobs)}:
        raise BadInput("has not one value for each job or host", where=place, remedy=_REMEDY)
    if len(set(held)) != len(held) or not all(0 <= host < len(site.host_names) for host in held):
        raise BadInput("two places are one host, or none", where=f"{place}.domains", remedy=_REMEDY)
    slowdown, score = np.array(one.slowdown), clock.objective.score_of(one.objective)
    return Timed(
        choice=Choice(
            hosts=tuple(tuple(hosts) for hosts in one.domains),
            router=one.router,
            offset_s=tuple(one.offset_s),
            order=order_of(one.classes, site.classes, place),
        ),
        iteration_s=slowdown * clock.objective.against_s,
        slowdown=slowdown,
        score=score,
        cost=score + clock.objective.over(slowdown),
    )


def _verified(given: _Arranged, where: str) -> Verified | None:
    one = given.verified
    if one is None:
        return None
    if len(one.iteration_s) != len(given.jobs):
        raise BadInput("has not one value for each job", where=f"{where}: verified", remedy=_REMEDY)
    seconds = np.array([np.nan if value is None else value for value in one.iteration_s])
    return Verified(iteration_s=seconds, apart=one.apart or 0.0, left_out=tuple(one.left_out))
