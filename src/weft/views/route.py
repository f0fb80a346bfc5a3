"""Route plans and audits for people, and decisions of the route controller, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weft.codec import Document, encode
from weft.errors import BadInput, printable
from weft.fabric.spec import Fabric, ranks
from weft.routing.controller import GAIN, Decision, Move
from weft.routing.telemetry import Kind
from weft.units import counted, format_bytes, format_seconds, format_si, listed
from weft.views.blocks import Block, Column, Heading, Paragraph, Table, cell, headline, notes
from weft.views.charts import MUTED, Chart, alt, colours, data, finished, linear, tooltip

if TYPE_CHECKING:
    from weft.fabric.spec import Ints
    from weft.routing.demand import MeasuredDemand
    from weft.routing.plan import RoutePlan
    from weft.routing.report import RouteAudit, RouteReport


SHOWN = 8
"""Jobs and links that a table shows."""
NOTICEABLE = 0.005
"""Shares of time below this are not worth a word."""
_PROOFS = {"cuts": "cuts of the network", "lp": "the fractional optimum (LP)", "ilp": "the integer program"}
_NAMES = {"auto": "Planned routes", "ecmp": "Hashed ECMP", "spray": "Packet spraying"}


def plan_view(report: RouteReport, *, verbose: bool = False) -> Iterator[Block]:
    """How good the routes are, what they mean for the jobs, and with ``verbose`` the proof and the busiest links."""
    plan = report.plan
    yield from headline(plan_verdict(report))
    if report.compared:
        yield Table(*_routers([*report.compared, plan]))
        yield Heading("Jobs")
    yield Table(*_jobs(plan, _worst_jobs(plan, verbose=verbose)))
    yield from _rest(plan, verbose=verbose)
    if plan.alpha > 1 + NOTICEABLE:
        busiest = int(np.argmax(plan.load))
        yield Paragraph(f"Busiest link: {plan.fabric.link_name(busiest)}, congestion {plan.alpha:g}", indent=2)
    yield _setting(plan)
    yield from _measured(report.demand, verbose=verbose)
    if verbose:
        yield Heading("Bound")
        yield Paragraph(
            f"Congestion (demand / capacity of the busiest link) {plan.alpha:g}; no routes are below"
            f" {plan.alpha_bound:g}, by {_PROOFS[plan.bound_by]}",
            indent=2,
        )
        best = plan.efficiency
        yield Paragraph(f"Slowest collective: {best.value:.1%} of its pace alone, at most {best.bound:.1%}", indent=2)
        yield from _links(plan)


def plan_verdict(report: RouteReport) -> str:
    """How much jobs slow each other down, how little is possible, and what hashing would do."""
    plan = report.plan
    verdict = f"{_NAMES.get(plan.router, f'Routes by {plan.router}')}: {_slowdown(plan)}"
    if report.hashed is None:
        return f"{verdict}."
    hashed = _slowest(report.hashed)
    same = abs(hashed / _slowest(plan) - 1) < NOTICEABLE
    return f"{verdict}; hashed ECMP {'is as good' if same else f'would take {hashed:.2f}x as long'}."


def _slowest(plan: RoutePlan) -> float:
    """The largest slowdown of a job, at least 1."""
    return max((job.slowdown for job in plan.jobs), default=1.0)


def _slowdown(plan: RoutePlan) -> str:
    """The largest slowdown of a job beside its lower bound."""
    slowest, bound = _slowest(plan), max(1.0, plan.alpha_bound)
    if slowest < 1 + NOTICEABLE:
        return "no job's communication is slowed down by collisions"
    least = (
        "the least possible with whole flows"
        if slowest < bound * (1 + NOTICEABLE)
        else f"at least {bound:.2f}x on any routes"
    )
    return f"collisions make communication of the slowest job take {slowest:.2f}x as long ({least})"


def audit_view(result: RouteAudit, *, verbose: bool = False) -> Iterator[Block]:
    """How good installed routes are, beside those after few moves and those of a new plan."""
    installed = result.installed
    yield from headline(audit_verdict(result))
    replanned, best = result.replanned, installed.efficiency
    kinds = (("installed", installed), ("repaired", result.repaired), (f"new plan ({replanned.router})", replanned))
    plans = [plan for _, plan in kinds]
    yield Table(
        Column("routes", [name for name, _ in kinds] + ["best possible"], left=True),
        Column("flows that move", [f"{len(result.moved(plan)):,}" for plan in plans] + [""]),
        Column("congestion", [f"{plan.alpha:g}" for plan in plans] + [f"{installed.alpha_bound:g}"]),
        Column(
            "slowest collective",
            [f"{plan.efficiency.value:.1%}" for plan in plans] + [f"{best.bound:.1%}"],
            meaning="share of its pace alone",
        ),
        Column("mean collective", [f"{plan.efficiency.mean:.1%}" for plan in plans] + [""]),
    )
    yield Heading("Slowdown of jobs")
    shown = _worst_jobs(installed, verbose=verbose)
    yield Table(
        Column("job", [installed.jobs[job].job for job in shown], left=True),
        *(Column(name, [f"{plan.jobs[job].slowdown:.3f}" for job in shown]) for name, plan in kinds),
    )
    yield from _rest(installed, verbose=verbose)
    yield _setting(installed)
    yield from _measured(result.demand, verbose=verbose)
    if verbose:
        yield Paragraph(f"Best possible: by {_PROOFS[installed.bound_by]}", indent=2)
        yield from _links(installed)


def audit_verdict(result: RouteAudit) -> str:
    """How much the installed routes slow jobs down, and what moving few flows would change."""
    moved, flows = len(result.moved(result.repaired)), len(result.installed.traffic)
    verdict = f"Installed routes: {_slowdown(result.installed)}"
    if not moved:
        return f"{verdict}; moving flows would not help."
    return f"{verdict}; moving {moved:,} of {counted(flows, 'flow')} makes it {_slowest(result.repaired):.2f}x."


def _worst_jobs(plan: RoutePlan, *, verbose: bool) -> list[int]:
    """The jobs that are slowed down most (``verbose``: all), in their order."""
    worst = sorted(range(len(plan.jobs)), key=lambda job: -plan.jobs[job].slowdown)
    return sorted(worst if verbose else worst[:SHOWN])


def _rest(plan: RoutePlan, *, verbose: bool) -> Iterator[Block]:
    """How many jobs the table leaves out."""
    if not verbose and len(plan.jobs) > SHOWN:
        left_out = counted(len(plan.jobs) - SHOWN, "job")
        yield Paragraph(f"... and {left_out} with smaller slowdowns (use --verbose)", indent=2, style="dim")


def _measured(demand: MeasuredDemand | None, *, verbose: bool) -> Iterator[Block]:
    """What was recognised in measurements, and how sure that is."""
    if demand is None:
        return
    jobs = demand.jobs if verbose else demand.jobs[:SHOWN]
    yield Heading(f"Recognised {counted(len(demand.jobs), 'job')} in {counted(demand.records, demand.unit)}")
    yield Table(
        Column("job", [job.job for job in jobs], left=True),
        Column("accelerators", [f"{len(job.accelerators):,}" for job in jobs]),
        Column("period", [cell(job.period_s, format_seconds) for job in jobs]),
        Column("+-", [cell(job.spread, ".2%") for job in jobs], drop=1),
        Column("bytes a period", [format_bytes(job.bytes) for job in jobs]),
        Column("sure", [f"{job.confidence:.0%}" for job in jobs], meaning=demand.sure),
        Column("collectives", [_kinds(job.collectives, verbose=verbose) for job in jobs], left=True),
    )
    if len(jobs) < len(demand.jobs):
        yield Paragraph(
            f"... and {counted(len(demand.jobs) - SHOWN, 'job')} more (use --verbose)", indent=2, style="dim"
        )
    assumed = [f"Assumed: {text}" for text in demand.assumptions]
    left_out = [f"Left out: {demand.background:.2%} of the bytes, which belong to no job"] if demand.background else []
    yield from notes([*left_out, *assumed], "dim")


def _kinds(collectives: dict[str, int], *, verbose: bool) -> str:
    """The most frequent patterns with their number."""
    ordered = sorted(collectives.items(), key=lambda item: -item[1])
    words = [f"{number} x {name}" for name, number in (ordered if verbose else ordered[:2])]
    return ", ".join(words + (["..."] if len(words) < len(ordered) else []))


def _setting(plan: RoutePlan) -> Paragraph:
    """What was routed."""
    flows, jobs = counted(len(plan.traffic), "flow"), counted(len(plan.jobs), "job")
    return Paragraph(f"{flows} of {jobs} on {plan.fabric.name}, all sending at once", indent=2, hang=2, style="dim")


def _routers(plans: Sequence[RoutePlan]) -> list[Column]:
    mean = [float(np.mean([job.slowdown for job in plan.jobs])) for plan in plans]
    return [
        Column("router", [plan.router for plan in plans], left=True),
        Column(
            "congestion", [f"{plan.alpha:g}" for plan in plans], meaning="demand over capacity of the busiest link"
        ),
        Column("mean slowdown", [f"{value:.3f}" for value in mean]),
        Column("worst", [f"{_slowest(plan):.3f}" for plan in plans]),
        Column("slowest all-reduce", [format_seconds(max(job.all_reduce_s for job in plan.jobs)) for plan in plans]),
    ]


def _jobs(plan: RoutePlan, shown: Sequence[int]) -> list[Column]:
    jobs = [plan.jobs[job] for job in shown]
    return [
        Column("job", [job.job for job in jobs], left=True),
        Column("flows", [f"{job.flows:,}" for job in jobs], drop=1),
        Column(
            "slowdown",
            [f"{job.slowdown:.3f}" for job in jobs],
            meaning="time of communication over that without collisions (alone)",
        ),
        Column("all-reduce", [format_seconds(job.all_reduce_s) for job in jobs]),
        Column("alone", [format_seconds(job.alone_s) for job in jobs]),
        Column("iteration", [format_seconds(job.iteration_s) for job in jobs]),
        Column("alone", [format_seconds(job.alone_iteration_s) for job in jobs]),
    ]


def _links(plan: RoutePlan) -> Iterator[Block]:
    """The busiest links with what they carry."""
    fabric = plan.fabric
    flow = np.repeat(np.arange(len(plan.traffic)), np.diff(plan.routes.indptr))
    flows = np.bincount(plan.routes.links, minlength=fabric.links)
    carried = np.bincount(plan.routes.links, plan.traffic.bytes[flow] * plan.routes.usage, fabric.links)
    order: Ints = np.argsort(-plan.load, kind="stable")[:SHOWN]
    order = order[plan.load[order] > 0]
    yield Heading("Busiest links")
    yield Table(
        Column("link", [fabric.link_name(i) for i in order], left=True),
        Column("load", [f"{plan.load[i]:.3g}" for i in order]),
        Column("flows", [f"{flows[i]:,}" for i in order]),
        Column("bytes a round", [format_bytes(float(carried[i])) for i in order]),
        Column("reaches", [format_si(8 * fabric.capacity_Bps[i], "b/s") for i in order]),
    )


_COLUMNS = ("#", "time", "event", "of", "placed", "moved", "before", "after", "best", "reason")
_WIDTHS = (3, 8, 12, 20, 6, 5, 6, 6, 6, 0)
_LEFT = ("event", "of", "reason")
PACE = "Pace of the slowest collective (share of its pace alone) before a decision, after it, and the best possible"


def heading_line() -> str:
    """The names of the columns, below what the paces are."""
    return f"{PACE}:\n{_line(list(_COLUMNS))}"


def decision_line(decision: Decision) -> str:
    """A decision under those names."""
    gain = decision.gain
    return _line(
        [
            str(decision.number),
            format_seconds(decision.time_s) if decision.time_s else "0 s",
            decision.kind,
            printable(decision.about)[: _WIDTHS[3]],
            f"{decision.placed:,}",
            f"{decision.moved:,}",
            cell(gain.before),
            f"{gain.after:.1%}",
            f"{gain.bound:.1%}",
            reason(decision),
        ]
    )


def reason(decision: Decision) -> str:
    """Why flows moved, or why none did."""
    above = decision.alpha > decision.alpha_bound * (1 + NOTICEABLE)
    if decision.how == "rolled-back":
        return "the network did not take the change"
    parts = []
    if decision.placed:
        lost = decision.kind.endswith("-down")
        flows = counted(decision.placed, "flow" if lost else "new flow")
        parts.append(f"{flows} lost {'its' if decision.placed == 1 else 'their'} path" if lost else flows)
    if decision.moved:
        how = "all planned again: " if decision.how == "replanned" else ""
        parts.append(f"{how}{counted(decision.moved, 'flow')} moved against collisions")
    if decision.cut:
        parts.append(_cut_off(decision))
    if decision.withheld:
        parts.append(f"moves would gain less than {GAIN:.0%}")
    elif above:
        parts.append("no better routes yet")
    return "; ".join(parts) or "at the best possible"


def _cut_off(decision: Decision) -> str:
    more = len(decision.cut_jobs) - SHOWN
    names = [printable(job)[: _WIDTHS[3]] for job in decision.cut_jobs[:SHOWN]]
    names += [f"{more:,} more"] if more > 0 else []
    return f"{counted(decision.cut, 'flow')} of {listed(names)} cut off"


def summary_line(decision: Decision, placed: int, moved: int) -> str:
    """Where things stand after the last event."""
    stopped = f"{_cut_off(decision)}; " if decision.cut else ""
    return (
        f"{counted(decision.number, 'decision')}: {placed:,} flows placed, {moved:,} moved; {stopped}the slowest"
        f" collective has {decision.gain.after:.1%} of its pace alone, at best {decision.gain.bound:.1%}."
    )


def change_lines(decision: Decision, fabric: Fabric) -> list[str]:
    """Links that measurements changed, a line each."""
    words = {
        "avoided": "{ends} loses {value:.2g} of its packets: avoided",
        "kept": "{ends} loses {value:.2g} of its packets: kept, because no other path leads there",
        "back": "{ends} no longer loses packets: used again",
        "beyond": "{ends} carries unknown traffic of {value:.1%} of its capacity: left to it",
        "released": "{ends} no longer carries unknown traffic",
    }
    result = []
    for change in decision.changes:
        arrow = " -> " if change.kind in ("beyond", "released") else " - "
        ends = arrow.join(fabric.names[node] for node in change.ends)
        result.append(words[change.kind].format(ends=ends, value=change.value))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLink:
    """A change of a link between two nodes, from measurements."""

    ends: tuple[str, ...]
    kind: Kind
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFlow:
    """A flow's path and its path before, by the names of nodes and the number of each hop among parallel links."""

    job: str
    collective: str
    source: str
    target: str
    queue_pair: int
    path: tuple[str, ...]
    old_path: tuple[str, ...]
    links: tuple[int, ...]
    old_links: tuple[int, ...]
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine(Document):
    """A decision with names of nodes; ``push`` is the outcome of carrying it out."""

    SCHEMA = "weft.route-decision/1"
    DOCUMENT = """
        number=decision.number time_s=decision.time_s event=decision.kind routes=decision.how flows=decision.flows
        placed=decision.placed moved=decision.moved cut=decision.cut alpha=decision.alpha
        alpha_bound=decision.alpha_bound efficiency=decision.gain about=decision.about reason changes push? moves"""

    decision: Decision
    fabric: Fabric
    push: Literal["none", "dry-run", "applied", "rolled-back"] | None = None

    @property
    def reason(self) -> str:
        return reason(self.decision)

    @property
    def changes(self) -> tuple[ChangedLink, ...]:
        names = self.fabric.names
        return tuple(
            ChangedLink(ends=tuple(names[node] for node in change.ends), kind=change.kind, value=change.value)
            for change in self.decision.changes
        )

    @property
    def moves(self) -> tuple[MovedFlow, ...]:
        fabric = self.fabric
        names, beside = fabric.names, ranks(fabric.source * fabric.nodes + fabric.target)

        def path(move: Move, links: Sequence[int]) -> tuple[str, ...]:
            return (names[move.flow[2]], *(names[fabric.target[link]] for link in links))

        return tuple(
            MovedFlow(
                job=move.flow[0],
                collective=move.flow[1],
                source=names[move.flow[2]],
                target=names[move.flow[3]],
                queue_pair=move.flow[4],
                path=path(move, move.path),
                old_path=path(move, move.old) if move.old else (),
                links=tuple(beside[list(move.path)].tolist()),
                old_links=tuple(beside[list(move.old)].tolist()),
                new=move.new,
            )
            for move in self.decision.moves
        )


def decision_to_json(decision: Decision, fabric: Fabric, *, push: Any = None) -> str:
    """A decision as one line of JSON of schema ``weft.route-decision/1``, with the outcome of its ``push``."""
    line = DecisionLine(decision=decision, fabric=fabric, push=push)
    return json.dumps({"schema": line.SCHEMA} | encode(line), allow_nan=False)


def _line(cells: list[str]) -> str:
    padded = [
        cell.ljust(width) if name in _LEFT else cell.rjust(width)
        for name, cell, width in zip(_COLUMNS, cells, _WIDTHS, strict=True)
    ]
    return "  ".join(padded).rstrip()


# Chart ---------------------------------------------------------------------------------------------------------

_SIDE = 640, 260
_LINES = ("best possible", "after the decision")
_SHADES = ("#59636e", "#0072b2", "#009e73", "#d55e00", "#e69f00")
_KINDS = ("jobs", "failures and repairs", "measurements")


def efficiency_chart(decisions: Sequence[dict[str, Any]]) -> Chart:
    """One chart of decisions as ``weft.route-decision/1`` has them.

    Lines say how things stand between events; a point is the efficiency that an event left before its decision, with
    its kind as colour.
    """
    if not decisions:
        raise BadInput("there is no decision to draw", where="--chart", remedy="give events")
    first_s = decisions[0]["time_s"]  # clocks may start anywhere
    unit, name = next(
        (seconds, word)
        for seconds, word in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
        if decisions[-1]["time_s"] - first_s > 5 * seconds or seconds == 1.0
    )
    lines, points = [], []
    for each in decisions:
        at, gain = (each["time_s"] - first_s) / unit, each["efficiency"]
        lines += [
            {"time": at, "pace": gain[key], "line": line} for key, line in zip(("bound", "after"), _LINES, strict=True)
        ]
        if gain["before"] is not None:
            more = {
                "pace": gain["before"],
                "event": f"{each['event']} {each.get('about', '')}",
                "reason": each.get("reason", ""),
            }
            points.append({"time": at, "line": f"before: {_kind(each['event'])}"} | more)
    x = alt.X("time:Q", title=f"time since the first decision ({name})", axis=alt.Axis(grid=False))
    y = alt.Y("pace:Q", title="pace of the slowest collective", scale=linear(0, 1.05), axis=alt.Axis(format=".0%"))
    names = [*_LINES, *(f"before: {kind}" for kind in _KINDS)]
    look = {"x": x, "y": y, "color": colours("line", names, _SHADES, orient="bottom", columns=5, symbolOpacity=1)}
    # The best possible lies as a wide band below what was reached, which mostly hides a thin line.
    wide, thin = (
        alt.Chart(data(row for row in lines if row["line"] == line))
        .mark_line(interpolate="step-after", strokeWidth=width, opacity=opacity)
        .encode(**look)
        for line, width, opacity in zip(_LINES, (8, 2), (0.4, 1), strict=True)
    )
    told = tooltip(event="event", reason="decision", pace="before")
    marks = alt.Chart(data(points)).mark_point(filled=True, size=45, opacity=1).encode(tooltip=told, **look)
    rules = alt.Chart(data(points)).mark_rule(color=MUTED, opacity=0.25, strokeWidth=1).encode(x=x)
    plot = alt.layer(rules, wide, thin, marks).properties(width=_SIDE[0], height=_SIDE[1])
    last = decisions[-1]["efficiency"]
    words = (
        f"{len(decisions):,} decisions; at the end {last['after']:.1%} of the pace alone, at best {last['bound']:.1%}"
    )
    return finished(plot, "Efficiency of the routes over time", words)


def _kind(event: str) -> str:
    """The colour of an event."""
    if event.startswith(("link", "switch")):
        return _KINDS[1]
    return _KINDS[0] if event.startswith("job") or event == "installed" else _KINDS[2]
