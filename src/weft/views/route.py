"""Route plans for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.units import counted, format_bytes, format_seconds, format_si
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.routing.audit import RouteAudit
    from weft.routing.plan import RoutePlan
    from weft.routing.report import RouteReport

SHOWN = 8
"""Jobs and links that a table shows."""
_PROOFS = {
    "cuts": "what leaves and enters its parts",
    "lp": "the fractional optimum (LP)",
    "ilp": "the integer program",
}


def plan_view(report: RouteReport) -> Iterator[Block]:
    """How good the routes are, what they mean for the jobs, and the busiest links."""
    plan, compared = report.plan, report.compared
    yield from _summary(plan)
    if compared:
        yield Heading("Against other routers")
        yield from _routers([*compared, plan])
    yield Heading("Jobs (all sending at once, against no collision)")
    yield from _jobs(plan)
    yield from _links(plan)


def audit_view(result: RouteAudit) -> Iterator[Block]:
    """How good installed routes are, beside those after few moves and those of a new plan."""
    installed = result.installed
    flows, best = len(installed.traffic), installed.efficiency
    yield Paragraph(f"{counted(flows, 'flow')} of {counted(len(installed.jobs), 'job')} on {installed.fabric.name}")
    repaired, replanned = result.repaired, result.replanned
    kinds = (("installed", installed), ("repaired", repaired), (f"anew by {replanned.router}", replanned))
    yield Grid(
        [
            Column(heading="routes", cells=[name for name, _ in kinds] + ["best possible"], left=True),
            Column(heading="flows that move", cells=[f"{len(result.moved(one)):,}" for _, one in kinds] + [""]),
            Column(
                heading="congestion", cells=[f"{one.alpha:g}" for _, one in kinds] + [f"{installed.alpha_bound:g}"]
            ),
            Column(
                heading=f"slowest {best.objective}",
                cells=[f"{one.efficiency.value:.1%}" for _, one in kinds] + [f"{best.bound:.1%}"],
            ),
            Column(heading=f"mean {best.objective}", cells=[f"{one.efficiency.mean:.1%}" for _, one in kinds] + [""]),
        ]
    )
    yield Paragraph(f"Paces against those alone; best possible by {_PROOFS[installed.bound_by]}.")
    yield Heading("Jobs: slowdown (all sending at once, against no collision)")
    worst = sorted(range(len(installed.jobs)), key=lambda job: -installed.jobs[job].slowdown)[:20]
    shown = sorted(worst)
    yield Grid(
        [
            Column(heading="job", cells=[installed.jobs[job].job for job in shown], left=True),
            *(Column(heading=name, cells=[f"{one.jobs[job].slowdown:.3f}" for job in shown]) for name, one in kinds),
        ]
    )
    yield from _links(installed)


def _summary(plan: RoutePlan) -> Iterator[Block]:
    jobs, flows = len(plan.jobs), len(plan.traffic)
    what = f"{flows:,} flow{'s' if flows > 1 else ''} of {jobs:,} job{'s' if jobs > 1 else ''}"
    yield Paragraph(f"{what} on {plan.fabric.name}, routed by {plan.router}")
    proof = _PROOFS[plan.bound_by]
    verdict = "the congestion is optimal" if plan.gap < 5e-7 else f"{plan.gap:.1%} above the bound"
    yield Paragraph(
        f"Congestion (demand / capacity of the busiest link) {plan.alpha:g}, no routes below"
        f" {plan.alpha_bound:g} (by {proof}): {verdict}"
    )
    best = plan.efficiency
    yield Paragraph(f"Slowest {best.objective}: {best.value:.1%} of its pace alone, at most {best.bound:.1%}")


def _routers(plans: Sequence[RoutePlan]) -> Iterator[Block]:
    mean = [float(np.mean([job.slowdown for job in one.jobs])) for one in plans]
    worst = [max(job.slowdown for job in one.jobs) for one in plans]
    yield Grid(
        [
            Column(heading="router", cells=[one.router for one in plans], left=True),
            Column(heading="congestion", cells=[f"{one.alpha:g}" for one in plans]),
            Column(heading="mean slowdown", cells=[f"{value:.3f}" for value in mean]),
            Column(heading="worst", cells=[f"{value:.3f}" for value in worst]),
            Column(
                heading="slowest all-reduce",
                cells=[format_seconds(max(job.all_reduce_s for job in one.jobs)) for one in plans],
            ),
        ]
    )


def _jobs(plan: RoutePlan) -> Iterator[Block]:
    worst = sorted(plan.jobs, key=lambda one: -one.slowdown)[: max(SHOWN, 20)]
    shown = [one for one in plan.jobs if one in worst]
    yield Grid(
        [
            Column(heading="job", cells=[one.job for one in shown], left=True),
            Column(heading="flows", cells=[f"{one.flows:,}" for one in shown]),
            Column(heading="slowdown", cells=[f"{one.slowdown:.3f}" for one in shown]),
            Column(heading="all-reduce", cells=[format_seconds(one.all_reduce_s) for one in shown]),
            Column(heading="alone", cells=[format_seconds(one.alone_s) for one in shown]),
            Column(heading="iteration", cells=[format_seconds(one.iteration_s) for one in shown]),
            Column(heading="alone", cells=[format_seconds(one.alone_iteration_s) for one in shown]),
        ]
    )
    if len(shown) < len(plan.jobs):
        yield Paragraph(f"... and {len(plan.jobs) - len(shown):,} jobs that are slowed down less")


def _links(plan: RoutePlan) -> Iterator[Block]:
    fabric = plan.fabric
    flow = np.repeat(np.arange(len(plan.traffic)), np.diff(plan.routes.indptr))
    flows = np.bincount(plan.routes.links, minlength=fabric.links)
    carried = np.bincount(plan.routes.links, plan.traffic.bytes[flow] * plan.routes.usage, fabric.links)
    order = np.argsort(-plan.load, kind="stable")[:SHOWN]
    order = order[plan.load[order] > 0]
    yield Heading("Busiest links")
    yield Grid(
        [
            Column(heading="link", cells=[fabric.link_name(i) for i in order], left=True),
            Column(heading="load", cells=[f"{plan.load[i]:.3g}" for i in order]),
            Column(heading="flows", cells=[f"{flows[i]:,}" for i in order]),
            Column(heading="bytes a round", cells=[format_bytes(float(carried[i])) for i in order]),
            Column(heading="reaches", cells=[format_si(8 * fabric.capacity_Bps[i], "b/s") for i in order]),
        ]
    )
