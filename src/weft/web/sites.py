"""Sites as pages ask for them: jobs put on hosts by hand, and what the search finds, worked out in a worker.

A worker keeps the last sites with all that is there before anything is searched, so that a job that is moved costs
one step of the clock.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.layout.text import format_layout
from weft.web.texts import Text

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement
    from weft.arrangement.clock import Assignment, Clock, Timed
    from weft.arrangement.search import StartingPoint
    from weft.arrangement.site import Site
    from weft.layout.spec import Layout
    from weft.web.views.parts import Fact, Picture, Table

_EXAMPLES = Path(__file__).parent / "examples"
_WHERE = "the site"
_KEPT_SITES = 4
_CHOOSING_S = 10.0
"""Processor seconds for the layouts of jobs that come without one."""
MOST_HOSTS = 1024
"""Hosts that a page shows."""
BUSIEST = 3
"""Links that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A site as it is asked for.

    Attributes:
        site: name of an example, or a pasted text.
        objective: in place of the text's; empty: the text's.
        oversubscription: of the leaves, in place of the text's.
    """

    site: Text
    objective: str = ""
    oversubscription: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Where jobs were put by hand; what is empty is as the site has it.

    Attributes:
        hosts: of each job, in rank order.
        router: how routes are chosen.
        offset_s: when each job begins.
        classes: traffic class of each job.
        layouts: of each job, as text.
    """

    hosts: tuple[tuple[int, ...], ...] = ()
    router: str = ""
    offset_s: tuple[float, ...] = ()
    classes: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A job where it was put; ``before`` is its slowdown with the hosts as given and hashed routes."""

    name: str
    may: str
    layout: str
    iteration_s: float
    slowdown: float
    before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeen:
    """A busy link: the mean share of what it can carry, and how many jobs use it."""

    name: str
    share: float
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Jobs where they were put, and what that comes to.

    Attributes:
        put: all of it; layouts only where they are not those that jobs begin with.
        hosts: names of the site's hosts.
        usable: whether each may hold a job.
        units: the unit of each host in each tier, the inner first.
        routers: what its switches can do.
        classes: traffic classes that they serve.
        objective: its name; then what is reached, what hashed routes on the hosts as given reach, and the bound.
    """

    name: str
    put: Put
    hosts: tuple[str, ...]
    usable: tuple[bool, ...]
    units: tuple[tuple[int, ...], ...]
    routers: tuple[str, ...]
    classes: int
    jobs: tuple[JobSeen, ...]
    links: tuple[LinkSeen, ...]
    objective: str
    reached: str
    before: str
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the search found: where it put the jobs, words and tables of its report, and its document, compressed."""

    seen: Seen
    summary: tuple[str, ...]
    jobs: Table
    policies: Table
    reasons: tuple[Fact, ...]
    pictures: tuple[Picture, ...]
    packed: bytes


_kept: dict[Asked, StartingPoint] = {}


@cache
def examples() -> dict[str, str]:
    """Sites to begin with, as TOML by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(_EXAMPLES.glob("*.toml"))}


def site_of_text(asked: Asked) -> Site:
    """The site of an example or of a pasted text; it names no file.

    Raises:
        BadInput: no such example, or a text that cannot be used.
        NothingFeasible: the jobs have no room.
    """
    from weft.arrangement.site import site_of
    from weft.documents import parse_toml
    from weft.errors import UnknownName

    text = examples().get(asked.site.name) if asked.site.pasted is None else asked.site.pasted
    if text is None:
        raise UnknownName("site", asked.site.name, tuple(examples()), where="site")
    table = parse_toml(text, _WHERE)
    if asked.objective:
        goal = table.get("objective")
        table["objective"] = (goal if isinstance(goal, dict) else {}) | {"kind": asked.objective}
    if asked.oversubscription is not None:
        table["oversubscription"] = [asked.oversubscription]
    site = site_of(table, _WHERE, None)
    if len(site.host_names) > MOST_HOSTS:
        problem = f"has {len(site.host_names):,} hosts; the page shows {MOST_HOSTS:,}"
        raise BadInput(problem, where=_WHERE, remedy="use weft arrange SITE.toml")
    return site


def _begun(asked: Asked) -> StartingPoint:
    """What there is of a site before anything is moved."""
    from weft.arrangement.search import StartingPoint

    if asked not in _kept:
        found = StartingPoint.of(site_of_text(asked), lambda: _CHOOSING_S)
        while len(_kept) >= _KEPT_SITES:
            del _kept[next(iter(_kept))]
        _kept[asked] = found
    return _kept[asked]


def seen(asked: Asked, put: Put) -> Seen:
    """Jobs where they were put, and what that comes to.

    Raises:
        BadInput: a site or a place that cannot be used.
        NothingFeasible: the jobs have no room.
    """
    from weft.arrangement.loads import link_loads
    from weft.report.tables.arrangement import KINDS

    begun = _begun(asked)
    clock, timed = _timed(begun, put)
    site, objective, text = clock.site, clock.objective, clock.objective.text
    before = begun.clock.timed(begun.clock.plain(begun.given))
    loads = link_loads(clock, timed)
    links = [
        LinkSeen(
            name=clock.fabric.link_name(link),
            share=float(loads.share[link]),
            jobs=int((loads.of_job[:, link] > 0).sum()),
        )
        for link in loads.busiest(BUSIEST).tolist()
    ]
    return Seen(
        name=site.name,
        put=_put(timed.choice, site, layouts=clock is not begun.clock),
        hosts=site.host_names,
        usable=site.usable,
        units=tuple(tuple(one.tolist()) for one in begun.cuts.unit),
        routers=tuple(dict.fromkeys(("ecmp", *site.routers))),
        classes=site.classes,
        jobs=tuple(
            JobSeen(
                name=job.name,
                may=job.may,
                layout=format_layout(job.layout),
                iteration_s=float(timed.iteration_s[number]),
                slowdown=float(timed.slowdown[number]),
                before=float(before.slowdown[number]),
            )
            for number, job in enumerate(site.jobs)
        ),
        links=tuple(links),
        objective=KINDS[objective.kind],
        reached=text(timed.score),
        before=text(before.score),
        bound=text(begun.certificate.objective),
    )


def _put(choice: Assignment, site: Site, *, layouts: bool) -> Put:
    """A choice as it is put by hand; with layouts, where they are not those that jobs begin with."""
    from weft.arrangement.clock import levels

    return Put(
        hosts=choice.hosts,
        router=choice.router,
        offset_s=choice.offset_s,
        classes=levels(choice.order, site.classes),
        layouts=tuple(format_layout(job.layout) for job in site.jobs) if layouts else (),
    )


def _timed(begun: StartingPoint, put: Put) -> tuple[Clock, Timed]:
    """The clock with the layouts that were put, and what was put, stepped."""
    from weft.arrangement.clock import Assignment, order_of

    clock, jobs = begun.clock, len(begun.clock.site.jobs)
    for name in ("hosts", "offset_s", "classes", "layouts"):
        if len(getattr(put, name)) not in (0, jobs):
            raise BadInput("has not one value for each job", where=name, remedy=f"give {jobs}, or none")
    hosts = put.hosts or begun.given
    _check_hosts(hosts, begun)
    for number, text in enumerate(put.layouts):
        layout = _layout(text, clock, number)
        job = clock.site.jobs[number]
        if layout != job.layout:
            clock = clock.recut(number, layout, begun.layouts.template(job, layout))
    router = put.router or "ecmp"
    if router not in ("ecmp", *clock.site.routers):
        known = ", ".join(dict.fromkeys(("ecmp", *clock.site.routers)))
        raise BadInput(f"{router[:40]!r} is not what its switches can do", where="router", remedy=f"choose {known}")
    choice = Assignment(
        hosts=hosts,
        router=router,
        offset_s=put.offset_s or (0.0,) * jobs,
        order=order_of(put.classes or (0,) * jobs, clock.site.classes, _WHERE),
    )
    return clock, clock.timed(choice)


def _layout(text: str, clock: Clock, number: int) -> Layout:
    from weft.layout.check import check_layout
    from weft.layout.text import parse_layout

    job = clock.site.jobs[number]
    layout = parse_layout(text, where=f"layout of {job.name}").complete(job.layout.world)
    check_layout(job.job, layout.world, layout, where=f"layout of {job.name}")
    return layout


def _check_hosts(hosts: tuple[tuple[int, ...], ...], begun: StartingPoint) -> None:
    """Refuse places that a site does not have, or that its jobs may not take.

    Raises:
        BadInput: says which.
    """
    site = begun.clock.site
    held = [host for one in hosts for host in one]
    if not all(0 <= host < len(site.host_names) and site.usable[host] for host in held):
        raise BadInput("a host is none of those that are up", where="hosts", remedy="move the jobs anew")
    if len(set(held)) != len(held):
        raise BadInput("two places are one host", where="hosts", remedy="move the jobs anew")
    for job, one, given in zip(site.jobs, hosts, begun.given, strict=True):
        if len(one) != job.domains:
            raise BadInput(f"{job.name} has {len(one)} hosts, not {job.domains}", where="hosts", remedy="move it anew")
        if (job.may == "stay" and one != given) or (job.may == "reorder" and set(one) != set(given)):
            may = "keeps its hosts and their order" if job.may == "stay" else "keeps its hosts"
            raise BadInput(f"{job.name} {may}", where="hosts", remedy='let it: may = "move" in its [[jobs]]')


def moved(asked: Asked, put: Put, kind: str, number: int, onto: int) -> Put:
    """What was put, after one move.

    Args:
        asked: the site.
        put: what was put before.
        kind: "host": two hosts exchange what they hold; "job": a job takes the hosts from ``onto`` on, in the order
            of leaves, and what was there takes the hosts that it leaves.
        number: of the host or of the job.
        onto: a host.

    Raises:
        BadInput: a place that there is not, or that a job may not take.
    """
    begun = _begun(asked)
    site = begun.clock.site
    hosts = [list(one) for one in put.hosts or begun.given]
    _check_hosts(tuple(tuple(one) for one in hosts), begun)
    most = len(site.host_names) if kind == "host" else len(site.jobs)
    if not (0 <= number < most and 0 <= onto < len(site.host_names)):
        raise BadInput("there is no such job or host", where="move", remedy="choose one that is shown")
    if kind == "host":
        exchanged = {number: onto, onto: number}
    else:
        exchanged = _packed(begun, hosts, number, onto)
    after = tuple(tuple(exchanged.get(host, host) for host in one) for one in hosts)
    _check_hosts(after, begun)
    return replace(put, hosts=after)


def _packed(begun: StartingPoint, hosts: list[list[int]], job: int, onto: int) -> dict[int, int]:
    """What each host's holder gets in its place when a job takes the hosts from one on."""
    site = begun.clock.site
    kept = {host for one, held in zip(site.jobs, hosts, strict=True) if one.may != "move" for host in held}
    order = sorted(
        (host for host, up in enumerate(site.usable) if up and host not in kept - set(hosts[job])),
        key=lambda host: (*(int(unit[host]) for unit in reversed(begun.cuts.unit)), host),
    )
    first = order.index(onto) if onto in order else 0
    taken = list(islice(islice(cycle(order), first, None), len(hosts[job])))
    left = [host for host in hosts[job] if host not in taken]
    fresh = [host for host in taken if host not in hosts[job]]
    return dict(zip(hosts[job], taken, strict=True)) | dict(zip(fresh, left, strict=True))


def answered(asked: Asked, budget_s: float, *, progress: Callable[[int, int], None] | None = None) -> Answer:
    """What the search finds for a site.

    Args:
        asked: the site.
        budget_s: processor seconds.
        progress: called with the processor seconds spent and those of the budget.

    Raises:
        BadInput: a site that cannot be used.
        NothingFeasible: the jobs have no room, or the limit cannot be kept.
    """
    from weft.verbs.arrange import arrange
    from weft.web.views.arrangement import jobs_table, pictures, policies_table, reasons, summary

    def spent(used_s: float, most_s: float) -> None:
        if progress is not None:
            progress(min(round(used_s), round(most_s)), round(most_s))

    found = arrange(site_of_text(asked), budget=budget_s, spent=spent)
    layouts = any(job.cut != "keep" for job in found.site.jobs)
    return Answer(
        seen=seen(asked, _put(found.best.choice, found.site, layouts=layouts)),
        summary=summary(found),
        jobs=jobs_table(found),
        policies=policies_table(found),
        reasons=reasons(found),
        pictures=pictures(found)[0],
        packed=zlib.compress(found.to_json().encode()),
    )


def document(packed: bytes) -> str:
    """The file of an answer."""
    return zlib.decompress(packed).decode()


def reported(packed: bytes) -> str:
    """The report of an answer."""
    from weft.arrangement.bundle import arrangement_of
    from weft.web.report import arrangement_page

    text: dict[str, Any] = json.loads(document(packed))
    found: Arrangement = arrangement_of(text, _WHERE)
    return arrangement_page(found, text, "arranged.json", "html")
