"""All jobs of a site stepped together: every flow between hosts, every phase, for many iterations.

Times are those of the flow-level engine: max-min fair sharing, weighted by traffic class.  A class above another has
``CLASS_WEIGHT`` times its weight, so that it nearly has the link for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b

import numpy as np

from weft.arrangement.site import Goal, Router, Site
from weft.arrangement.template import Template, merged_traffic
from weft.cluster.calibration import calibration
from weft.errors import BadInput
from weft.fabric.checks import components
from weft.fabric.paths import Mode, Paths
from weft.fabric.spec import Fabric, Floats, Ints, Mask
from weft.fabric.traffic import Phases, Routes, Traffic, joined, phases, spans, uncapped
from weft.layout.spec import Layout
from weft.model import model_flops
from weft.routing.plan import route
from weft.routing.traffic import JobTraffic
from weft.simulation.flows.engine import run
from weft.simulation.iteration.contention import FlowRoutes, reached

# The objective -------------------------------------------------------------------------------------------------
# What is wanted of a site, as one number to minimise, and as people read it.
#
# Inside, every objective is a score: its value over the value with every job alone on a 1:1 network. Less is better,
# and 1 is as if no job met another.

TIE = 1e-6
"""Weight of the mean where the worst counts."""
OVER = 10.0
"""What exceeding a limit costs."""
HOUR_S = 3600.0
RATES: tuple[Goal, ...] = ("utilization", "dollars_per_token")
"""Objectives that follow from how much all jobs do in a second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """The objective of a site.

    ``weights`` add up to 1; ``against_s`` are the seconds of each job's iteration alone on a 1:1 network.  ``worth``
    is what one iteration of each job adds: to the seconds of the longest job (iterations to do), or to what is done
    in a second (share of the site's peak, or tokens).  ``scale`` is what the objective comes to at ``against_s``.
    """

    kind: Goal
    weights: Floats
    against_s: Floats
    worth: Floats
    scale: float
    max_slowdown: float

    @classmethod
    def of(cls, site: Site, against_s: Floats) -> Objective:
        """The objective of a site whose jobs take ``against_s`` alone."""
        weights = np.array([job.weight for job in site.jobs])
        worth, scale = np.ones(len(weights)), 1.0
        if site.objective == "makespan":
            worth = np.array([float(job.iterations or 1) for job in site.jobs])
            scale = float((worth * against_s).max())
        elif site.objective == "utilization":
            peak = site.cluster.accelerator.peak_flops
            flops = [model_flops(job.job.model, job.job.recipe) / peak(job.job.recipe.precision) for job in site.jobs]
            worth = np.array(flops) / (sum(site.usable) * site.domain_size)
            scale = float((worth / against_s).sum())
        elif site.objective == "dollars_per_token":
            worth = np.array([float(job.job.recipe.tokens) for job in site.jobs])
            bought = sum(job.domains for job in site.jobs) * (site.domain_size + site.cluster.spares_per_domain)
            scale = bought * site.usd_per_hour / HOUR_S / float((worth / against_s).sum())
        return cls(
            kind=site.objective,
            weights=weights / weights.sum(),
            against_s=against_s,
            worth=worth,
            scale=scale,
            max_slowdown=np.inf if site.max_slowdown is None else site.max_slowdown,
        )

    def score(self, seconds: Floats) -> float:
        """The objective, when each job's iteration takes so many seconds on average."""
        slowdown = seconds / self.against_s
        mean = float(slowdown @ self.weights)
        if self.kind == "slowdown":
            return mean
        if self.kind == "worst":
            return float(slowdown.max()) + TIE * mean
        if self.kind == "makespan":
            return float((self.worth * seconds).max()) / self.scale + TIE * mean
        # Rates: what is done in a second alone, over what is done in a second together.
        return float((self.worth / self.against_s).sum() / (self.worth / seconds).sum())

    def cost(self, seconds: Floats, slowdown: Floats) -> float:
        """What is minimised: the score, and what the worst slowdown is beyond the limit."""
        return self.score(seconds) + self.over(slowdown)

    def over(self, slowdown: Floats) -> float:
        """``OVER`` times what the worst slowdown is beyond the limit."""
        return OVER * max(0.0, float(slowdown.max()) - self.max_slowdown)

    def shown(self, score: float) -> float:
        """What a score means: a slowdown, seconds, a share of the peak, or dollars per token."""
        return self.scale / score if self.kind == "utilization" else self.scale * score

    def score_of(self, value: float) -> float:
        """The score that is shown as ``value``."""
        return self.scale / value if self.kind == "utilization" else value / self.scale

    def text(self, score: float) -> str:
        """What a score means, for people."""
        value = self.shown(score)
        if self.kind == "makespan":
            from weft.units import format_seconds

            return format_seconds(value)
        if self.kind == "utilization":
            return f"{value:.2%}"
        if self.kind == "dollars_per_token":
            return f"${value * 1e6:.4g} per million tokens"
        return f"{value:.4f}"


# The clock -----------------------------------------------------------------------------------------------------

EPOCHS = 12
"""Iterations of the longest job that are stepped; the second half counts."""
MOST_EPOCHS = 240
"""Iterations of any job, unless they end before another job's first two."""
MOST_STEPPED = 2_000_000
"""Flows and phases up to which more iterations of jobs that share links are stepped."""
MOST_PAIRS = 3_000
"""Pairs of accelerators up to which routes are searched by chains of moves."""
CLASS_WEIGHT = 64.0
"""Weight of a traffic class over that of the next lower one."""
Hosts = tuple[tuple[int, ...], ...]
"""Hosts of each job, in rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Hosts of each job in rank order, the router, offsets in seconds, and the place of each job in the order of
    classes (0 is served first; all 0 without classes)."""

    hosts: Hosts
    router: Router
    offset_s: tuple[float, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timed:
    """Times of an assignment: steady seconds of an iteration of each job, over those alone on a 1:1 network, the
    score of the objective, and the cost that is minimised, which is the score where limits are kept."""

    choice: Assignment
    iteration_s: Floats
    slowdown: Floats
    score: float
    cost: float


def levels(order: Sequence[int], classes: int) -> tuple[int, ...]:
    """Traffic class of each job of an order; a higher number goes first, 0 where all are alike."""
    if not max(order):
        return (0,) * len(order)
    return tuple(classes - 1 - min(place, classes - 1) for place in order)


def order_of(classes_of_jobs: Sequence[int], classes: int, where: str) -> tuple[int, ...]:
    """The order of jobs that has these traffic classes."""
    order = tuple(classes - 1 - level if max(classes_of_jobs) else 0 for level in classes_of_jobs)
    if min(classes_of_jobs) < 0 or min(order) < 0 or levels(order, classes) != tuple(classes_of_jobs):
        problem = f"{tuple(classes_of_jobs)} are not classes of jobs where there are {classes}"
        raise BadInput(
            problem, where=f"{where}: class", remedy="write one with weft arrange SITE.toml -o arranged.json"
        )
    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Seconds of a job's iteration alone on a 1:1 network, of its fastest known layout where it may have any, and
    what no layout that it may have can undercut."""

    seconds: float
    bound_s: float


@dataclass(slots=True, eq=False)
class Clock:
    """Times assignments of one site."""

    site: Site
    templates: tuple[Template, ...]
    references: tuple[Reference, ...] = ()
    """What slowdowns are measured against; the templates' own by default."""
    planned_routes: FlowRoutes | None = None
    """Routes to take where "planned" is chosen; those of ``weft.routing.plan.route`` by default."""
    fabric: Fabric = field(init=False)
    paths: Paths = field(init=False)
    members: Ints = field(init=False)
    objective: Objective = field(init=False)
    _count: list[int] = field(default_factory=lambda: [0])
    _routes: dict[tuple[Hosts, Router], list[Routes]] = field(default_factory=dict)
    _planned: dict[Hosts, FlowRoutes | None] = field(default_factory=dict)
    _uses: dict[tuple[Hosts, Router], tuple[list[bytes], Mask]] = field(default_factory=dict)
    _ends: dict[tuple[object, ...], list[Floats]] = field(default_factory=dict)
    _known: dict[tuple[Assignment, tuple[int, ...]], Timed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fabric = reached(self.site.fabric, calibration(self.site.cluster.accelerator.name))
        self.paths = Paths(self.fabric)
        self.members = self.site.members
        self.references = self.references or tuple(
            Reference(seconds=template.alone_s, bound_s=template.alone_s) for template in self.templates
        )
        self.objective = Objective.of(self.site, np.array([reference.seconds for reference in self.references]))

    @property
    def evaluations(self) -> int:
        """Arrangements that were stepped, by this clock and those of the same site with other layouts."""
        return self._count[0]

    def recut(self, job: int, layout: Layout, its: Template) -> Clock:
        """The clock of the same site with another layout of a job."""
        recut = copy(self)
        changed = replace(self.site.jobs[job], layout=layout)
        recut.site = replace(self.site, jobs=(*self.site.jobs[:job], changed, *self.site.jobs[job + 1 :]))
        recut.templates = (*self.templates[:job], its, *self.templates[job + 1 :])
        recut._routes, recut._planned, recut._uses, recut._ends, recut._known = {}, {}, {}, {}, {}
        return recut

    def plain(self, hosts: Hosts, router: Router = "ecmp") -> Assignment:
        """A choice without offsets and classes."""
        none = len(self.templates)
        return Assignment(hosts=hosts, router=router, offset_s=(0.0,) * none, order=(0,) * none)

    def accelerators(self, hosts: Sequence[int], job: int) -> Ints:
        """The accelerator of every rank of a job."""
        return np.asarray(self.members[np.array(hosts, dtype=np.int64)].ravel()[: self.templates[job].ranks])

    def routes(self, hosts: Hosts, router: Router) -> list[Routes]:
        """The routes of the messages of each job."""
        if (hosts, router) not in self._routes:
            self._routes[hosts, router] = self._routed(hosts, router)
        return self._routes[hosts, router]

    def timed(self, choice: Assignment, jobs: Sequence[int] | None = None) -> Timed:
        """Times of an assignment with all jobs, or some of them (the others take what they take alone)."""
        chosen = tuple(range(len(self.templates))) if jobs is None else tuple(jobs)
        key = (choice, chosen)
        # Equal choices take equal times: each is stepped once.
        if key not in self._known:
            self._known[key] = self._stepped(choice, chosen)
        return self._known[key]

    def lives(self, choice: Assignment, first: Floats) -> Floats:
        """Seconds of an iteration of each job on average, until each has done all: jobs that end make room.

        Args:
            first: seconds of an iteration of each while all run.
        """
        # Event by event: the jobs that are left run at the pace that they have together until the next one ends.
        left = np.array([float(job.iterations or 1) for job in self.site.jobs])
        total, ends, now = left.copy(), np.zeros(len(left)), np.zeros(len(left))
        running, seconds = list(range(len(left))), first
        while True:
            # The next event: the job that ends first. Jobs that end with it, within rounding, end together.
            until = left[running] * seconds[running]
            soonest = float(until.min())
            if not np.isfinite(soonest):
                return np.full(len(left), np.inf)
            ended = [
                job
                for job, seconds_left in zip(running, until.tolist(), strict=True)
                if seconds_left <= soonest * (1 + 1e-12)
            ]
            now[running] += soonest
            left[running] -= soonest / seconds[running]
            ends[ended] = now[ended]
            running = [job for job in running if job not in ended]
            if not running:
                return np.asarray((ends + np.array(choice.offset_s)) / total)
            seconds = self.timed(choice, running).iteration_s

    def alone(self, hosts: Hosts, router: Router, job: int, *, sample: bool = False) -> tuple[float, object]:
        """Seconds of one iteration of a job alone on its hosts, and the rates of its links where they are asked
        for."""
        iteration = repeated(self.templates[job], 1)
        routes = self.routes(hosts, router)[job].of(iteration.message)
        result = run(self.fabric.capacity_Bps, iteration.traffic(0.0, 1.0), routes, sample=sample)
        return float(result.phase_end_s[iteration.ends[0]]), result.rates

    def _routed(self, hosts: Hosts, router: Router) -> list[Routes]:
        planned, mode = self._ways(hosts, router)
        routed = []
        for job, template in enumerate(self.templates):
            where = self.accelerators(hosts[job], job)
            source, target = where[template.source], where[template.target]
            # Messages inside hosts have no planned route and take the usual one.
            if planned is None:
                routes = self.paths.routes(source, target, mode=mode)
            else:
                routes = planned.completed(
                    template.titles, template.group, source, target, partial(self.paths.routes, mode="ecmp")
                )
            routed.append(routes.without_latency())
        return routed

    def planned(self, hosts: Hosts) -> FlowRoutes | None:
        """Routes for the exact traffic of all jobs, or those that were given; None where nothing leaves hosts.

        All that one accelerator of a job sends to another takes one path: routed apart, collectives that never run
        together would fill a cable, and those that do would collide on it.
        """
        if self.planned_routes is not None:
            return self.planned_routes
        if hosts not in self._planned:
            self._planned[hosts] = self._plan(hosts)
        return self._planned[hosts]

    def _plan(self, hosts: Hosts) -> FlowRoutes | None:
        parts = [
            (template.traffic, self.accelerators(hosts[job], job))
            for job, template in enumerate(self.templates)
            if template.traffic is not None
        ]
        if not parts:
            return None
        every = merged_traffic(parts)
        # Step 1: add up all bytes of a pair of accelerators.  Step 2: route these sums; step 3: every collective of
        # the pair takes their path.
        pair = every.source * self.fabric.accelerators + every.target
        _, first, pair = np.unique(pair, return_index=True, return_inverse=True)
        traffic = replace(every.select(first), bytes=np.bincount(pair.reshape(-1), every.bytes).astype(np.float64))
        # Of many pairs chains of moves may take minutes: the greedy router has to do.
        router = "auto" if len(traffic) <= MOST_PAIRS else "greedy"
        return FlowRoutes(self.fabric, traffic, route(self.fabric, traffic, router=router), name="planned")

    def flows(self, hosts: Hosts, router: Router) -> list[tuple[JobTraffic, Routes] | None]:
        """The flows between hosts of each job by accelerator, and their routes; None where nothing leaves."""
        planned, mode = self._ways(hosts, router)
        flows: list[tuple[JobTraffic, Routes] | None] = [None] * len(hosts)
        for job, template in enumerate(self.templates):
            if template.traffic is not None:
                traffic = merged_traffic([(template.traffic, self.accelerators(hosts[job], job))])
                if planned is not None:
                    routes, _ = planned.of(traffic.names, traffic.collective, traffic.source, traffic.target)
                else:
                    routes = self.paths.routes(traffic.source, traffic.target, mode=mode)
                flows[job] = traffic, routes
        return flows

    def _ways(self, hosts: Hosts, router: Router) -> tuple[FlowRoutes | None, Mode]:
        """The planned routes, if the router plans, and how flows without one go."""
        return self.planned(hosts) if router == "planned" else None, "spray" if router == "spray" else "ecmp"

    def weight(self, choice: Assignment, job: int) -> float:
        """Weight of a job's flows, by its class."""
        return float(CLASS_WEIGHT ** levels(choice.order, self.site.classes)[job])

    def carried(self, hosts: Hosts, router: Router, job: int) -> Floats:
        """Bytes of one iteration of a job on every link."""
        template = self.templates[job]
        routes = self.routes(hosts, router)[job].of(template.message)
        loads = np.repeat(template.bytes, np.diff(routes.indptr)) * routes.usage
        return np.bincount(routes.links, loads, self.fabric.links).astype(np.float64)

    def _stepped(self, choice: Assignment, jobs: tuple[int, ...]) -> Timed:
        self._count[0] += 1
        # Jobs that are not stepped are taken to be alone: the bounds of a search use that.
        iteration = np.array([template.alone_s for template in self.templates])
        complete = len(jobs) == len(self.templates)
        groups = self.meetings(choice, jobs)
        # A job that meets no other is not stepped for longer.
        sizes = np.ones(len(iteration), dtype=np.int64)
        for job in [job for group in groups if len(group) > 1 for job in group]:
            sizes[job] = len(self.templates[job].phase) + len(self.templates[job].phases)
        stepped = settled(partial(self._ended, choice), groups, epochs(iteration), sizes)
        iteration[list(jobs)] = stepped[list(jobs)]
        slowdown = iteration / self.objective.against_s
        mean = self.lives(choice, iteration) if complete and self.objective.kind == "makespan" else iteration
        return Timed(
            choice=choice,
            iteration_s=iteration,
            slowdown=slowdown,
            score=self.objective.score(mean),
            cost=self.objective.cost(mean, slowdown) if np.isfinite(iteration).all() else np.inf,
        )

    def _used(self, hosts: Hosts, router: Router) -> tuple[list[bytes], Mask]:
        """What tells the routes of each job apart, and which links each job (row) uses."""
        key = (hosts, router)
        if key not in self._uses:
            digests, used = list[bytes](), np.zeros((len(hosts), self.fabric.links), dtype=bool)
            for job, routes in enumerate(self.routes(hosts, router)):
                text = b"".join(part.tobytes() for part in (routes.indptr, routes.links, routes.usage))
                digests.append(blake2b(text, digest_size=16).digest())
                used[job, routes.links] = True
            self._uses[key] = digests, used
        return self._uses[key]

    def meetings(self, choice: Assignment, jobs: Sequence[int]) -> list[list[int]]:
        """Some jobs in groups: only jobs of a group share links, straight or by others of the group."""
        used = self._used(choice.hosts, choice.router)[1][list(jobs)]
        shared = used[:, used.sum(axis=0) > 1].astype(np.float32)
        label = components(len(jobs), *np.nonzero(shared @ shared.T))
        return [[jobs[at] for at in np.flatnonzero(label == first).tolist()] for first in np.unique(label).tolist()]

    def _ended(self, choice: Assignment, jobs: list[int], counts: Ints) -> list[Floats]:
        """When so many iterations end of each job of a group, which meets no other."""
        # Step 1: what decides it. Only differences of offsets and ratios of weights count.
        digests, _ = self._used(choice.hosts, choice.router)
        offset_s, weights = [choice.offset_s[job] for job in jobs], [self.weight(choice, job) for job in jobs]
        begin_s, least = min(offset_s), min(weights)
        key = tuple(
            (job, count, digests[job], offset - begin_s, weight / least)
            for job, count, offset, weight in zip(jobs, counts.tolist(), offset_s, weights, strict=True)
        )
        # Step 2: what is not known is stepped. A job that meets no other takes equally long each time.
        if key not in self._ends and len(jobs) == 1:
            seconds = self.alone(choice.hosts, choice.router, jobs[0])[0]
            self._ends[key] = [seconds * np.arange(1, counts[0] + 1, dtype=np.float64)]
        elif key not in self._ends:
            routes = self.routes(choice.hosts, choice.router)
            parts = [(self.templates[job], routes[job]) for job in jobs]
            shifted = [offset - begin_s for offset in offset_s]
            self._ends[key] = ended_s(self.fabric.capacity_Bps, parts, counts, shifted, weights)
        return [ends + begin_s for ends in self._ends[key]]


def ended_s(
    capacity_Bps: Floats,
    parts: Sequence[tuple[Template, Routes]],
    counts: Ints,
    offset_s: Sequence[float],
    weights: Sequence[float],
) -> list[Floats]:
    """When so many iterations end of each of some jobs that run together, by their iteration and the routes of its
    messages, when they begin, and the weights of their flows."""
    repeats = [repeated(template, count) for (template, _), count in zip(parts, counts.tolist(), strict=True)]
    traffic = together([repeat.traffic(*begins) for repeat, *begins in zip(repeats, offset_s, weights, strict=True)])
    known = joined([routes.of(repeat.message) for repeat, (_, routes) in zip(repeats, parts, strict=True)])
    phase_end_s = run(capacity_Bps, traffic, known).phase_end_s
    of_jobs = np.split(phase_end_s, np.cumsum([len(repeat.phases) for repeat in repeats])[:-1])
    return [of_job[repeat.ends] for of_job, repeat in zip(of_jobs, repeats, strict=True)]


def settled(
    ended: Callable[[list[int], Ints], list[Floats]], groups: list[list[int]], counts: Ints, sizes: Ints
) -> Floats:
    """Steady seconds of an iteration of each job; infinite for those in no group, and where ``MOST_STEPPED`` flows and
    phases do not show them.

    Args:
        ended: when iterations of the jobs of a group end, if it steps so many of each.
        counts: iterations of each job at first.
        sizes: flows and phases of one.
    """
    seconds = np.full(len(counts), np.inf)
    while True:
        ends = dict[int, Floats]()
        for group in groups:
            ends |= zip(group, ended(group, counts[group]), strict=True)
        # Once the first job has done all its iterations, the others have less beside them: that time does not count.
        until = min(float(end_s[-1]) for end_s in ends.values())
        done = {job: int(np.searchsorted(end_s, until * (1 + 1e-12), side="right")) for job, end_s in ends.items()}
        if min(done.values()) > 1:
            for job, end_s in ends.items():
                seconds[job] = steady(end_s[: done[job]])
            return seconds
        # A job that has done all before another has done two goes on for longer.
        counts = counts * [1 + (done.get(job) == count) for job, count in enumerate(counts.tolist())]
        if sizes @ counts > MOST_STEPPED:
            return seconds


def epochs(alone_s: Floats) -> Ints:
    """Iterations of each of some jobs that are stepped at first: enough to last as long as ``EPOCHS`` of the longest,
    so that none runs out while others count."""
    return np.asarray(np.clip(np.ceil(EPOCHS * alone_s.max() / alone_s), EPOCHS, MOST_EPOCHS), dtype=np.int64)


def steady(ends: Floats) -> float:
    """Mean seconds of the second half of at least two iterations, by their ends."""
    # The first half is left out: offsets and queues settle there.
    half = len(ends) // 2
    return float((ends[-1] - ends[half - 1]) / (len(ends) - half))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repeated:
    """Iterations of a job behind each other; ``ends`` are the phases that end them, ``roots`` those that begin the
    first."""

    phases: Phases
    phase: Ints
    bytes: Floats
    message: Ints
    ends: Ints
    roots: Ints

    def traffic(self, offset_s: float, weight: float) -> Traffic:
        """As traffic that begins at an offset; the engine is not told who talks to whom."""
        start = self.phases.start_s.copy()
        start[self.roots] = offset_s + self.phases.delay_s[self.roots] if offset_s > 0 else 0.0
        return uncapped(replace(self.phases, start_s=start), self.phase, self.bytes, weight=weight)


def repeated(template: Template, count: int) -> Repeated:
    """``count`` iterations; each begins when the one before has ended."""
    size = len(template.phases)
    # One copy of the phases an iteration, numbered `size` apart.
    lengths = np.diff(template.phases.indptr)
    roots = np.flatnonzero(lengths == 0)
    # From the second iteration on, phases that wait for nothing wait for the end of the one before.
    later = np.where(lengths == 0, 1, lengths)
    waits = np.empty(int(later.sum()), dtype=np.int64)
    begin = np.cumsum(later) - later
    waits[begin[roots]] = template.last - size
    waiting = np.flatnonzero(lengths > 0)
    waits[spans(begin[waiting], lengths[waiting])] = template.phases.waits
    shift = size * np.arange(count)
    per = np.concatenate([lengths, np.tile(later, count - 1)])
    of_all = phases(
        np.tile(template.phases.delay_s, count),
        np.concatenate([[0], np.cumsum(per)]),
        np.concatenate([template.phases.waits, (waits[None, :] + shift[1:, None]).ravel()]),
    )
    return Repeated(
        phases=of_all,
        phase=(template.phase[None, :] + shift[:, None]).ravel(),
        bytes=np.tile(template.bytes, count),
        message=np.tile(template.message, count),
        ends=template.last + shift,
        roots=roots,
    )


def together(parts: Sequence[Traffic]) -> Traffic:
    """Jobs side by side as one traffic."""
    # Phases of a part keep their order and are numbered behind those of the parts before.
    shift = np.cumsum([0] + [len(part.phases) for part in parts])

    def of(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def of_phases(name: str) -> np.ndarray:
        return np.concatenate([getattr(part.phases, name) for part in parts])

    waits = np.concatenate([part.phases.waits + by for part, by in zip(parts, shift, strict=False)])
    lengths = np.concatenate([np.diff(part.phases.indptr) for part in parts])
    return Traffic(
        source=of("source"),
        target=of("target"),
        bytes=of("bytes"),
        phase=np.concatenate([part.phase + by for part, by in zip(parts, shift, strict=False)]),
        weight=of("weight"),
        cap_Bps=of("cap_Bps"),
        phases=phases(
            of_phases("delay_s"),
            np.concatenate([[0], np.cumsum(lengths)]),
            waits,
            start_s=of_phases("start_s"),
            job=np.repeat(np.arange(len(parts)), [len(part.phases) for part in parts]),
        ),
    )
