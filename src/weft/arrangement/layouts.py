"""Layouts that a job of a site may have: which are worth a try, and what no layout undercuts.

Alone on a 1:1 network, layouts are stepped in the order of their floors (``weft.search.network_plan``) by the clock
that arrangements are judged by.  On a site, they are tried in the order that the closed form gives them when its
network is as slow as the job found it beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import process_time

import numpy as np

from weft.arrangement.clock import Clock, Reference, Timed
from weft.arrangement.site import Site, SiteJob
from weft.arrangement.template import MOST_RANKS, Template, bare, template
from weft.cluster.calibration import calibration
from weft.cluster.spec import Cluster
from weft.errors import NothingFeasible
from weft.estimation.iteration import Estimator
from weft.fabric.placement import Placement
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.search.network_plan import search_on_fabric
from weft.search.ranking import Plan, plan
from weft.simulation.iteration.evaluator import Evaluator, LayoutSlice
from weft.simulation.iteration.stepping import Stepped
from weft.units import counted

KEPT = 8
"""Layouts that are tried from each source, each of another mesh."""
MARGIN = 0.05
"""Share of memory that stays free, as ``weft plan`` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Layouts of a job by their seconds alone on a 1:1 network, fastest first, and what no layout undercuts."""

    layouts: tuple[Layout, ...]
    reference: Reference


@dataclass(slots=True, eq=False)
class Layouts:
    """The layouts of the jobs of a site.  ``left_s`` says how many seconds there are for the search."""

    site: Site
    left_s: Callable[[], float]
    _templates: dict[tuple[object, Layout], Template] = field(default_factory=dict)
    _made_s: float = 0.0
    _ranked: dict[tuple[object, ...], Ranked] = field(default_factory=dict)

    def template(self, job: SiteJob, layout: Layout) -> Template:
        """The iteration of a job in a layout, made once for equal ones."""
        key = (job.job, layout)
        if key not in self._templates:
            begun_s = process_time()
            self._templates[key] = template(replace(job, layout=layout), self.site.cluster)
            self._made_s += process_time() - begun_s
        known = self._templates[key]
        traffic = None if known.traffic is None else replace(known.traffic, jobs=(job.name,))
        return replace(known, name=job.name, traffic=traffic)

    @property
    def each_s(self) -> float:
        """Processor seconds that one template took, on average."""
        return self._made_s / max(1, len(self._templates))

    def begun(self) -> tuple[Site, tuple[Reference, ...]]:
        """The site with a layout for every job, the fastest alone where one is to be chosen, and what slowdowns are
        measured against.

        Raises:
            NothingFeasible: no layout of a job fits.
        """
        jobs, references = [], []
        for job in self.site.jobs:
            if job.cut == "keep":
                alone_s = self.template(job, job.layout).alone_s
                jobs.append(job)
                references.append(Reference(seconds=alone_s, bound_s=alone_s))
                continue
            known = self.ranked(job)
            best = known.reference
            if job.cut == "choose":
                jobs.append(replace(job, layout=known.layouts[0]))
            else:
                jobs.append(job)
                given_s = self.template(job, job.layout).alone_s
                best = Reference(seconds=min(given_s, best.seconds), bound_s=min(given_s, best.bound_s))
            references.append(best)
        return replace(self.site, jobs=tuple(jobs)), tuple(references)

    def ranked(self, job: SiteJob) -> Ranked:
        """The layouts of a job alone on a 1:1 network.

        Raises:
            NothingFeasible: none fits.
        """
        key = (job.job, job.layout.world, job.space.name, tuple(sorted(job.space.fixed.items())))
        if key not in self._ranked:
            self._ranked[key] = self._alone(job)
        return self._ranked[key]

    def candidates(self, clock: Clock, now: Timed, number: int) -> Iterator[Layout]:
        """Other layouts of a job that may be faster where it is, beside the others, most promising first.

        They are the fastest alone on a 1:1 network, the fastest alone on its hosts, and the fastest of the closed
        form on a network as slow as the job found it; the last also orders them.
        """
        job = clock.site.jobs[number]
        # Three sources, as each misses what another sees: alone, on its hosts, and as slow as it is beside the others.
        cluster = _own(job, self.site.cluster)
        pace, (inner, *outer) = self.pace(clock, now, number), cluster.tiers
        slower = (inner, *(replace(tier, oversubscription=pace) for tier in outer))
        felt = self._planned(job, replace(cluster, tiers=slower))
        result = [
            *self.ranked(job).layouts,
            *self._here(clock, now, number),
            *(estimate.layout for estimate in felt.layouts),
        ]
        candidates = [layout for layout in dict.fromkeys(result) if layout != job.layout]
        closed = Estimator(job.job, felt.cluster, felt.constants)
        seconds = [float(closed.evaluate(LayoutTable.of([layout])).iteration_s[0]) for layout in candidates]
        yield from (candidates[at] for at in np.argsort(seconds, kind="stable").tolist())

    def pace(self, clock: Clock, now: Timed, number: int) -> float:
        """Seconds per byte that a job found between hosts beside the others, over those alone on a 1:1 network."""
        template = clock.templates[number]
        if template.network_s <= 0:
            return 1.0
        # What others add to the iteration, spread over the seconds in which the job sends.
        return 1.0 + max(0.0, float(now.iteration_s[number]) - template.alone_s) / template.network_s

    def _planned(self, job: SiteJob, cluster: Cluster) -> Plan:
        result = plan(
            job.job,
            cluster,
            space=job.space,
            top=KEPT,
            per_mesh=True,
            memory_margin=MARGIN,
            constants=calibration(cluster.accelerator.name),
            order="time",
        )
        if not result.layouts:
            raise NothingFeasible(
                f"{job.name} on {counted(job.layout.world, 'accelerator')}: {result.shortage}"
                " -- give it more accelerators, or loosen what is fixed"
            )
        return result

    def _capacity(self) -> float:
        return (1 - MARGIN) * self.site.cluster.accelerator.memory_bytes

    def _alone(self, job: SiteJob) -> Ranked:
        cluster = _own(job, self.site.cluster)
        closed = self._planned(job, cluster)
        first = [estimate.layout for estimate in closed.layouts]
        if job.layout.world > MOST_RANKS:
            # A burst and its pause last no less than the closed form's iteration.
            seconds = [self.template(job, layout).alone_s for layout in first]
            order = np.argsort(seconds, kind="stable").tolist()
            bound_s = min(seconds[order[0]], closed.layouts[0].iteration_s)
            layouts = tuple(first[at] for at in order)
            return Ranked(layouts=layouts, reference=Reference(seconds=seconds[order[0]], bound_s=bound_s))
        # Branch and bound by the clock of arrangements, so that references and steps are of one model; where time runs
        # out, the proof's bound still holds for every layout.
        result = search_on_fabric(
            _AloneEvaluator(job, cluster, self),
            job.space,
            capacity_bytes=self._capacity(),
            first=first,
            orders=False,
            top=KEPT,
            per_mesh=True,
            budget_s=self.left_s(),
            clock=process_time,
        )
        best = Reference(seconds=result.layouts[0][1], bound_s=result.proof.bound_s)
        return Ranked(layouts=tuple(layout for layout, _ in result.layouts), reference=best)

    def _here(self, clock: Clock, now: Timed, number: int) -> list[Layout]:
        """The layouts that ``weft plan --fabric`` finds fastest on the hosts of a job."""
        job, choice = clock.site.jobs[number], now.choice
        result = search_on_fabric(
            Evaluator(
                job.job,
                _own(job, self.site.cluster),
                self.site.fabric,
                routing="ecmp" if choice.router == "ecmp" else "spray",
                placement=Placement(accelerators=clock.accelerators(choice.hosts[number], number)),
            ),
            job.space,
            capacity_bytes=self._capacity(),
            first=[clock.site.jobs[number].layout, *self.ranked(job).layouts],
            orders=False,
            top=KEPT,
            per_mesh=True,
            budget_s=self.left_s(),
            clock=process_time,
        )
        return [layout for layout, _ in result.layouts]


def _own(job: SiteJob, cluster: Cluster) -> Cluster:
    """The accelerators of a job as a separate cluster, 1:1."""
    inner, outer = cluster.tiers[:2]
    world = job.layout.world
    several = (inner, replace(outer, size=job.domains, oversubscription=1.0))
    tiers = several if job.domains > 1 else (replace(inner, size=world),)
    return replace(cluster, name=f"{cluster.name}: {job.name}", count=world, tiers=tiers)


class _AloneEvaluator(Evaluator):
    """Seconds of layouts of a job alone on a 1:1 network, as the clock of arrangements steps them.

    Its floors are below those of ``Evaluator``: there every stage of a pipeline takes as long to reduce its gradients
    as the stage with most of them, here each takes what it has.
    """

    def __init__(self, job: SiteJob, cluster: Cluster, layouts: Layouts) -> None:
        super().__init__(job.job, cluster, bare(job, layouts.site.cluster), routing="spray")
        self.site_job, self.layouts = job, layouts
        self.planned = True
        """Each layout is stepped by itself."""
        if len(cluster.tiers) == 1:
            # Nothing leaves the host, whatever its NICs could carry.
            self.sound, self.bounding = True, Estimator(job.job, cluster, self.closed.constants)

    def _slices(self, estimator: Estimator, table: LayoutTable) -> Iterator[LayoutSlice]:
        for rows, frame in estimator.slices(table):
            yield _Uneven(rows, frame)

    def seconds(self, layout: Layout) -> float:
        """The iteration of a layout alone."""
        return self.layouts.template(self.site_job, layout).alone_s


class _Uneven(LayoutSlice):
    """Rows whose stages may take no time to reduce and to gather, in pipelines."""

    uneven = True

    def stepped_s(self, at: int) -> float:
        """What no iteration of a row undercuts."""
        layout = self.frame.table.row(at)
        clock = self.clocks.of(at, layout, float(self.estimates.offload_s[at]))
        if layout.pipeline > 1:
            clock = replace(clock, step=replace(clock.step, reduce_s=0.0, gather_s=0.0))
        return Stepped(layout, clock).seconds
