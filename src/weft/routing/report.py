"""A route plan beside those of other routers, and its flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.codec import Document
from weft.fabric.spec import Fabric, Ints, ranks
from weft.fabric.traffic import Routes
from weft.results import Result
from weft.routing.choice import links_of, on_links
from weft.routing.demand import MeasuredDemand
from weft.routing.plan import Efficiency, RoutePlan, judged, plan
from weft.routing.problem import routing_problem
from weft.routing.routers import RouterResult, improve
from weft.routing.traffic import JobTraffic


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RouteReport(Result):
    """Routes of all flows, what other routers reach, and whether the document lists every path.

    ``hashed`` is what ECMP does with the same flows, where it can route them, ``demand`` what was recognised in
    measured flows.
    """

    SCHEMA = "weft.route/1"
    COLUMNS = ("source", "target", "job", "collective", "queue_pair", "bytes", "rate_Bps", "path", "links")

    DOCUMENT = "plan.* flows demand? compared?"

    plan: RoutePlan
    compared: tuple[RoutePlan, ...] = ()
    hashed: RoutePlan | None = None
    paths: bool = False
    demand: MeasuredDemand | None = None

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every flow, its path as names of nodes (``links``: as in ``flow_rows``) with spaces between."""
        rows = zip(self._flows(), self.plan.rates_Bps.tolist(), strict=True)
        merged = (
            row | {"rate_Bps": rate, "path": " ".join(row.get("path", ("sprayed",))), "links": cables_of(row)}
            for row, rate in rows
        )
        return [{name: row[name] for name in self.COLUMNS} for row in merged]

    @property
    def flows(self) -> int | list[dict[str, Any]]:
        """The flows with their paths, or their number."""
        return list(self._flows()) if self.paths else len(self.plan.traffic)

    def _flows(self) -> Iterator[dict[str, Any]]:
        return flow_rows(self.plan.fabric, self.plan.traffic, self.plan.routes)


def flow_rows(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Iterator[dict[str, Any]]:
    """Every flow with its path as names of nodes; a sprayed flow lists its links with their shares instead.

    ``links`` stands where several links join two nodes of a path: which of them each hop takes, from 0.
    ``cap_Bps`` stands where the flow has one.
    """
    names, beside, collectives = (
        fabric.names,
        ranks(fabric.source * fabric.nodes + fabric.target),
        _collectives(traffic),
    )
    for flow, group in enumerate(traffic.collective.tolist()):
        span = slice(int(routes.indptr[flow]), int(routes.indptr[flow + 1]))
        links = routes.links[span]
        row: dict[str, Any] = {
            "source": names[traffic.source[flow]],
            "target": names[traffic.target[flow]],
            "job": traffic.jobs[traffic.job[group]],
            "collective": collectives[group],
            "queue_pair": int(traffic.queue_pair[flow]),
            "bytes": float(traffic.bytes[flow]),
        }
        if np.isfinite(traffic.cap_Bps[flow]):
            row["cap_Bps"] = float(traffic.cap_Bps[flow])
        if np.all(routes.usage[span] == 1.0):
            row["path"] = [row["source"], *(names[node] for node in fabric.target[links])]
            if beside[links].any():
                row["links"] = beside[links].tolist()
        else:
            row["shares"] = [
                {"from": names[fabric.source[link]], "to": names[fabric.target[link]], "share": share}
                for link, share in zip(links.tolist(), routes.usage[span].tolist(), strict=True)
            ]
        yield row


def cables_of(row: dict[str, Any]) -> str:
    """Which of parallel links each hop of a row of ``flow_rows`` takes; empty where there are none."""
    return " ".join(map(str, row.get("links", ())))


def _collectives(traffic: JobTraffic) -> list[str]:
    """Names of the collectives, with a number behind where a job has the name already."""
    used: set[tuple[int, str]] = set()
    result = []
    for job, name in zip(traffic.job.tolist(), traffic.names, strict=True):
        number, unique = 1, name
        while (job, unique) in used:
            number += 1
            unique = f"{name} #{number}"
        used.add((job, unique))
        result.append(unique)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedJob:
    """A job and how much slower its slowest flow is than alone."""

    job: str
    flows: int
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditedEfficiency(Document):
    """What a plan reaches, with the mean over all groups."""

    DOCUMENT = "reached.* mean=reached.mean"

    reached: Efficiency


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditedPlan(Document):
    """Routes of all flows, and how many of them are not the installed ones."""

    DOCUMENT = """
        fabric=plan.fabric.name router=plan.router alpha=plan.alpha alpha_bound=plan.alpha_bound
        bound_by=plan.bound_by gap=plan.gap objective jobs moved"""

    plan: RoutePlan
    moved: int

    @property
    def objective(self) -> AuditedEfficiency:
        return AuditedEfficiency(reached=self.plan.efficiency)

    @property
    def jobs(self) -> tuple[AuditedJob, ...]:
        return tuple(AuditedJob(job=job.job, flows=job.flows, slowdown=job.slowdown) for job in self.plan.jobs)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RouteAudit(Result):
    """Installed routes, those after few moves, and those of a new plan: the same flows and bound."""

    SCHEMA = "weft.route-audit/1"
    DOCUMENT = "flows=installed.flows installed=installed_plan repaired=repaired_plan anew=new_plan moves demand?"
    COLUMNS = (*RouteReport.COLUMNS[:6], "path", "links", "new_path", "new_links")

    installed: RoutePlan
    repaired: RoutePlan
    replanned: RoutePlan
    demand: MeasuredDemand | None = None

    def moved(self, plan: RoutePlan) -> Ints:
        """The flows whose path differs from the installed one."""
        now, then = self.installed.routes, plan.routes
        width = int(max(np.diff(now.indptr).max(initial=0), np.diff(then.indptr).max(initial=0)))
        return np.flatnonzero((links_of(now, width) != links_of(then, width)).any(axis=1))

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every flow that the repair moves, its paths as names of nodes with spaces between; ``links`` and
        ``new_links`` say which of parallel links each hop takes, from 0."""
        moved = set(self.moved(self.repaired).tolist())
        rows = zip(*(self._flows(plan) for plan in (self.installed, self.repaired)), strict=True)
        merged = (
            old
            | {"path": " ".join(old["path"]), "links": cables_of(old)}
            | {"new_path": " ".join(new["path"]), "new_links": cables_of(new)}
            for flow, (old, new) in enumerate(rows)
            if flow in moved
        )
        return [{name: row[name] for name in self.COLUMNS} for row in merged]

    @property
    def installed_plan(self) -> AuditedPlan:
        return self._audited(self.installed)

    @property
    def repaired_plan(self) -> AuditedPlan:
        return self._audited(self.repaired)

    @property
    def new_plan(self) -> AuditedPlan:
        return self._audited(self.replanned)

    def _audited(self, plan: RoutePlan) -> AuditedPlan:
        return AuditedPlan(plan=plan, moved=len(self.moved(plan)))

    @property
    def moves(self) -> list[dict[str, Any]]:
        return self.to_dicts()

    def _flows(self, result: RoutePlan) -> list[dict[str, Any]]:
        return list(flow_rows(result.fabric, result.traffic, result.routes))


def audit(
    fabric: Fabric, traffic: JobTraffic, routes: Routes, *, seed: int = 0, demand: MeasuredDemand | None = None
) -> RouteAudit:
    """Judge installed routes, and what could be instead.

    The repair moves single flows, then short chains of flows, until no link has more load than the bound or no move
    helps; then every flow that can goes back to where it was.  Flows on paths that a router would not take are placed
    again first.

    Args:
        routes: one path of live links for each flow.
        demand: what was recognised in measured flows, for the report.

    Raises:
        BadInput: flows that cannot be routed.
        Unsupported: a router that does not apply, or a fabric with too many paths.
    """
    problem = routing_problem(fabric, traffic)
    installed = judged(problem, RouterResult(routes=routes), router="installed")
    replanned = plan(fabric, traffic, seed=seed)
    low = installed.alpha_bound
    # Step 1: flows on paths that a router would take stay there, the others go where they hurt least.
    choice = on_links(problem, links_of(routes, 2 * problem.ways.up.shape[1] + 2), np.arange(len(traffic)))
    former = choice.up.copy(), choice.down.copy()
    choice.place(np.flatnonzero(choice.up < 0), smooth=True)
    # Step 2: moves and chains down to the bound.  Step 3: whoever need not have moved goes back.
    improve(choice, low)
    choice.keep(*former, max(choice.congestion, low))
    result = RouterResult(routes=problem.routes(choice.up, choice.down), bound=low)
    repaired = judged(problem, result, router="repaired")
    # Placing flows off unusual paths may load links more than before; then nothing is repaired.
    if repaired.alpha > installed.alpha:
        repaired = installed
    return RouteAudit(installed=installed, repaired=repaired, replanned=replanned, demand=demand)
