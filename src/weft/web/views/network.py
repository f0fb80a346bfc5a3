"""Networks for a job as tables: side by side, with parts failed, and routed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.layout.text import format_degrees, format_layout
from weft.units import counted, format_bytes, format_seconds, format_si
from weft.views import words
from weft.views.design import rate_words, tier_name
from weft.web.views.parts import Cell, Column, Fact, Table

if TYPE_CHECKING:
    from weft.search.design import Design, DesignStudy
    from weft.web.fabrics import Degraded, Routed, Site

Link = Callable[[str], str]


def networks(study: DesignStudy, link: Callable[[Design], str]) -> Table:
    """The networks side by side; ``link`` makes the address of one."""
    columns = (
        Column(heading="network", meaning="leads to its picture", number=False),
        Column(heading="switches"),
        Column(heading="k$ out", meaning=f"{study.prices.contents} of the scale-out network"),
        Column(heading="k$ up", meaning="scale-up domains bought as networks; boards are in the accelerators' price"),
        Column(heading="kW", meaning="switches and transceivers of the scale-out network"),
        Column(heading="closed form", meaning="iteration by formula"),
        Column(heading="simulated", meaning="iteration flow by flow"),
        Column(heading="sprayed", meaning="the same with packet spraying in place of hashing"),
        Column(heading="tok/s/$", meaning="training speed for each of these dollars"),
        Column(heading="beyond leaf", meaning="bytes of an iteration between switches"),
        Column(heading="layout", number=False),
        Column(heading="best", meaning="no other is both cheaper and faster", number=False),
    )
    rows = [
        (
            Cell(text=one.kind, link=link(one)),
            Cell(text=f"{one.bill.switches:,}", key=one.bill.switches),
            Cell(text=f"{one.bill.usd / 1e3:,.0f}", key=one.bill.usd),
            Cell(text=f"{one.scale_up_usd / 1e3:,.0f}" if one.scale_up_usd else "-", key=one.scale_up_usd),
            Cell(text=f"{one.bill.watts / 1e3:,.1f}", key=one.bill.watts),
            _seconds(one.closed_form_s),
            _seconds(one.simulated_s),
            _seconds(one.sprayed_s),
            Cell(text=rate_words(one.tokens_per_s_usd), key=one.tokens_per_s_usd),
            Cell(text="-" if one.spine_bytes is None else format_si(one.spine_bytes, "B"), key=one.spine_bytes),
            Cell(text=format_degrees(one.layout)),
            Cell(text="yes" if i in study.pareto else "-"),
        )
        for i, one in enumerate(study.designs)
    ]
    routing = " or ".join(study.routings)
    caption = f"Networks with {study.radix}-port switches, {study.prices.name} prices, {routing} routing"
    return Table(name="networks", caption=caption, columns=columns, rows=tuple(rows))


def _seconds(value: float | None) -> Cell:
    return Cell(text="-" if value is None else format_seconds(value), key=value)


def failures(study: DesignStudy) -> Table:
    """What one failed part of each kind does to each network."""
    columns = (
        Column(heading="network", number=False),
        Column(heading="failed", meaning="one part of that kind", number=False),
        Column(heading="affected", meaning="accelerators or links at the part"),
        Column(heading="cut off", meaning="accelerators without any way to the others"),
        Column(heading="iteration", meaning="with traffic going around"),
        Column(heading="slowdown"),
    )
    rows = [
        (
            Cell(text=one.kind),
            Cell(text=failure.component),
            Cell(text=f"{failure.affected:,}", key=failure.affected),
            Cell(text=f"{failure.stranded:,}", key=failure.stranded),
            _seconds(failure.iteration_s),
            Cell(text="-" if failure.slowdown is None else f"x{failure.slowdown:.3f}", key=failure.slowdown),
        )
        for one in study.designs
        for failure in one.failures
    ]
    return Table(name="failures", caption="One part fails", columns=columns, rows=tuple(rows))


def site(found: Site) -> tuple[Fact, ...]:
    """The job, the cluster and the network."""
    fabric = found.fabric
    switches, cables = fabric.nodes - fabric.accelerators, int(fabric.cables.sum()) // 2
    return (
        Fact(name="Job", text=words.job_sentence(found.job)),
        Fact(name="Cluster", text=words.cluster_sentence(found.cluster)),
        Fact(name="Layout", text=format_layout(found.layout, whole=True)),
        Fact(
            name="Network",
            text=f"{found.kind}: {counted(switches, 'switch')}, {counted(cables, 'cable')}, scale-up ones counted",
        ),
    )


def outcome(found: Degraded) -> tuple[Fact, ...]:
    """Iteration times, as built and with parts failed."""
    before, after = found.before, found.after
    facts = [Fact(name="Iteration as built", text=format_seconds(before.iteration_s))]
    if after is not None:
        slower = after.iteration_s / before.iteration_s
        facts.append(
            Fact(name="With failures", text=f"{format_seconds(after.iteration_s)}, {slower:.3f} times as long")
        )
    shares = [max((getattr(one, name) or 0.0 for one in found.links), default=0.0) for name in ("before", "after")]
    busiest = f"{shares[0]:.1%} of the time as built"
    facts.append(
        Fact(name="Busiest link", text=busiest if after is None else f"{busiest}, {shares[1]:.1%} with failures")
    )
    return (
        *facts,
        Fact(name="Closed form", text=f"{format_seconds(before.closed_form_s)}; it knows nothing of failures"),
        Fact(name="Routing", text=before.routing),
    )


def links(found: Degraded, link: Link) -> Table:
    """The busiest links; ``link`` makes the address of a page on which one fails, or is whole again."""
    columns = [
        Column(heading="link", meaning="leads to the network without it", number=False),
        Column(heading="as built", meaning="share of the iteration in which its busier direction moves bytes"),
        Column(heading="with failures"),
    ]
    rows = []
    for one in found.links:
        name = one.name.replace(":", " - ")
        cells = [Cell(text=name, link=link(one.name)), Cell(text=f"{one.before:.1%}", key=one.before)]
        if one.after is not None:
            cells.append(Cell(text=f"{one.after:.1%}", key=one.after))
        rows.append(tuple(cells))
    shown = columns if found.after is not None else columns[:2]
    return Table(name="links", caption="Busiest scale-out links", columns=tuple(shown), rows=tuple(rows))


def collectives(found: Degraded) -> Table:
    """The job's collectives, with all groups of an axis at once."""
    columns = [
        Column(heading="axis", number=False),
        Column(heading="collective", number=False),
        Column(heading="bytes", meaning="of one call"),
        Column(heading="groups"),
        Column(heading="alone", meaning="one group with the network to itself"),
        Column(heading="together", meaning="with all groups of the axis"),
        Column(heading="with failures", meaning="together, with parts failed"),
    ]
    after = () if found.after is None else found.after.collectives
    failed = {(one.axes, one.kind, one.algorithm, one.bytes): one for one in after}
    rows = []
    for one in found.before.collectives:
        cells = [
            Cell(text=one.axes),
            Cell(text=f"{one.kind} ({one.algorithm})"),
            Cell(text=format_si(one.bytes, "B"), key=one.bytes),
            Cell(text=f"{one.groups:,} x {one.size:,}", key=one.groups),
            _seconds(one.alone_s),
            _seconds(one.everybody_s),
        ]
        if found.after is not None:
            other = failed.get((one.axes, one.kind, one.algorithm, one.bytes))
            cells.append(_seconds(None if other is None else other.everybody_s))
        rows.append(tuple(cells))
    shown = columns if found.after is not None else columns[:-1]
    return Table(name="collectives", caption="Collectives", columns=tuple(shown), rows=tuple(rows))


def tiers(found: Degraded) -> Table:
    """Bytes by tier."""
    columns = [
        Column(heading="tier", number=False),
        Column(heading="links"),
        Column(heading="carried", meaning="bytes of an iteration"),
        Column(heading="with failures"),
    ]
    after = () if found.after is None else found.after.tiers
    failed = {one.tier: one.bytes for one in after}
    rows = []
    for one in found.before.tiers:
        cells = [
            Cell(text=tier_name(one.tier)),
            Cell(text=f"{one.links:,}", key=one.links),
            Cell(text=format_si(one.bytes, "B"), key=one.bytes),
        ]
        if found.after is not None:
            cells.append(Cell(text=format_si(failed[one.tier], "B"), key=failed[one.tier]))
        rows.append(tuple(cells))
    shown = columns if found.after is not None else columns[:-1]
    return Table(name="tiers", caption="Bytes by tier", columns=tuple(shown), rows=tuple(rows))


def routers(found: Routed) -> Table:
    """What routes reach, by router and state."""
    columns = (
        Column(heading="routes", number=False),
        Column(heading="congestion", meaning="demand of the busiest link over its capacity"),
        Column(heading="at least", meaning="no routes have less"),
        Column(heading="slowdown", meaning="of the job's flows, against no collision"),
        Column(heading="all-reduce", meaning="the slowest of an iteration"),
        Column(heading="iteration", meaning="with the job's compute"),
    )
    rows = []
    for name, one in found.plans:
        (job,) = one["jobs"]
        rows.append(
            (
                Cell(text=name),
                Cell(text=f"{one['alpha']:.3g}", key=one["alpha"]),
                Cell(text=f"{one['alpha_bound']:.3g}", key=one["alpha_bound"]),
                Cell(text=f"{job['slowdown']:.3f}", key=job["slowdown"]),
                _seconds(job["all_reduce_s"]),
                _seconds(job["iteration_s"]),
            )
        )
    return Table(name="routers", caption="Routes", columns=columns, rows=tuple(rows))


def flows(found: Routed) -> Table:
    """The largest flows that take another path on either side."""
    left, right = (name for name, _ in found.sides)
    columns = (
        Column(heading="from", number=False),
        Column(heading="to", number=False),
        Column(heading="bytes", meaning="of an iteration"),
        Column(heading=left, meaning="what is between the two", number=False),
        Column(heading=right, meaning="what is between the two", number=False),
    )
    rows = [
        (
            Cell(text=source),
            Cell(text=target),
            Cell(text=format_bytes(bytes_), key=bytes_),
            Cell(text=before or "direct"),
            Cell(text=after or "direct"),
        )
        for source, target, bytes_, before, after in found.flows
    ]
    caption = f"{found.moved[0]:,} of {found.moved[1]:,} flows take another path; the largest of them"
    return Table(name="flows", caption=caption, columns=columns, rows=tuple(rows), head=False)
