"""Networks for people: nodes and links, the bill of materials, and cables as built against a design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.fabric.catalogue import TREES
from weft.fabric.spec import SCALE_UP
from weft.fabric.wiring_check import KINDS
from weft.units import counted, format_count, format_si
from weft.views.blocks import Blank, Block, Column, Heading, Paragraph, Table, headline, rows_grid

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.fabric.cost import Bill
    from weft.fabric.spec import Floats
    from weft.fabric.wiring_check import Finding, WiringReport

MOST_ROWS, MOST_NAMES = 40, 6
_MEANING = {
    "miscabled": "plugged into the wrong device",
    "wrong-rail": "an accelerator on a switch of another rail",
    "other-port": "the right devices by other ports: traffic is the same",
    "missing": "designed, but absent or down",
    "slow": "slower than designed",
    "asymmetric": "the two ends or directions differ",
    "unexpected": "not designed",
}


def wiring_verdict(report: WiringReport) -> str:
    """How many cables differ from the design."""
    counts, result = report.counts, report.differences
    differing = result.designed - result.right + counts["slow"] + counts["asymmetric"]
    cables = counted(result.designed, "cable")
    if not result.findings:
        return f"Wiring: all {cables} are as designed"
    extra = f"; {counts['unexpected']:,} more not in the design" if counts["unexpected"] else ""
    return f"Wiring: {differing:,} of {cables} {'differs' if differing == 1 else 'differ'} from the design{extra}"


def wiring_view(report: WiringReport) -> Iterator[Block]:
    """How many cables differ, and what mends each."""
    result = report.differences
    yield Paragraph(wiring_verdict(report), style="bold")
    if result.findings:
        counts = [(kind, report.counts[kind]) for kind in KINDS if report.counts[kind]]
        yield Blank()
        yield Table(
            Column("finding", [kind for kind, _ in counts], left=True),
            Column("count", [f"{count:,}" for _, count in counts]),
            Column("meaning", [_MEANING[kind] for kind, _ in counts], left=True, drop=1),
        )
        yield Heading("Repairs (make the exchanges in this order)")
        yield _repairs(result.findings[:MOST_ROWS])
        if len(result.findings) > MOST_ROWS:
            yield Paragraph(f"and {len(result.findings) - MOST_ROWS:,} more: --format csv lists all", indent=2)
    for title, names in (("Missing devices", result.only_designed), ("Not in the design", result.only_built)):
        if names:
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            yield Paragraph(f"{title}: {', '.join(names[:MOST_NAMES])}{more}", indent=2)
    if result.only_designed and result.only_built:
        yield Paragraph("If these are the same devices under two names, map them with --names FILE", indent=2)
    for note in result.notes:
        yield Paragraph(f"Note: {note}", indent=2, hang=2)
    yield Paragraph(f"Compared: {report.as_built} with {report.design}", indent=2, style="dim")


def _repairs(findings: Sequence[Finding]) -> Table:
    return Table(
        Column("finding", [finding.kind for finding in findings], left=True),
        Column("repair", [finding.remedy for finding in findings], left=True),
        Column("leads to", [finding.leads_to_end or "" for finding in findings], left=True, drop=2),
        Column("designed", [finding.designed_end or "" for finding in findings], left=True, drop=1),
        Column("speed", [_speeds(finding) for finding in findings], drop=3),
    )


def _speeds(finding: Finding) -> str:
    built, designed = (speed and f"{speed * 8 / 1e9:g}" for speed in (finding.capacity_Bps, finding.designed_Bps))
    return f"{built} of {designed} Gb/s" if built and designed else ""


def network_verdict(fabric: Fabric, bill: Bill, kind: str) -> str:
    """The size of a network, whether it blocks, and what it costs."""
    if not bill.switches and not bill.cables:
        return f"{counted(fabric.accelerators, 'GPU')} in scale-up domains alone: no network between them to buy"
    ratio = oversubscription(fabric) if kind.partition(" ")[0] in TREES else None
    blocking = "" if ratio is None else "non-blocking" if ratio <= 1 else f"oversubscribed {ratio:.3g}:1"
    within = " within rails" if kind.startswith("rail-only") else ""
    price = f"${format_count(bill.usd)} {_contents(bill)}, {bill.watts / 1e3:,.1f} kW"
    return f"{_subject(bill)}: {blocking and f'{blocking}{within}, '}{price}"


def _subject(bill: Bill) -> str:
    switches = f"{counted(bill.switches, 'switch')} for " if bill.switches else ""
    return f"{bill.fabric}, {switches}{counted(bill.accelerators, 'GPU')}"


def _contents(bill: Bill) -> str:
    prices = bill.prices
    complete = prices.usd_per_nic and prices.usd_per_cable and prices.usd_per_transceiver
    return "with NICs and cables" if complete else f"for {prices.contents}"


def oversubscription(fabric: Fabric) -> float | None:
    """The largest ratio of a switch's bandwidth down to its bandwidth up in a tree; None without upper switches."""
    outward = (fabric.tier != SCALE_UP) & (fabric.source < fabric.target)
    up_Bps = np.bincount(fabric.source[outward], fabric.capacity_Bps[outward], fabric.nodes)
    down_Bps = np.bincount(fabric.target[outward], fabric.capacity_Bps[outward], fabric.nodes)
    middle = (up_Bps > 0) & (down_Bps > 0)
    return float((down_Bps[middle] / up_Bps[middle]).max()) if middle.any() else None


def fabric_view(fabric: Fabric, bill: Bill, kind: str) -> Iterator[Block]:
    """What a network is and costs, its nodes by role, and its links by tier.

    Args:
        kind: of the network where it was built for a cluster, else "".
    """
    yield from headline(network_verdict(fabric, bill, kind))
    counts = [(role, f"{len(fabric.nodes_of(role)):,}") for role in fabric.roles]
    yield rows_grid(("nodes", "count"), counts, left=("nodes",))
    yield Blank()
    yield _links(fabric)
    if bill.lines:
        parts = [counted(bill.transceivers, "transceiver"), counted(bill.cables, "cable")]
        if bill.nics:
            parts.append(counted(bill.nics, "NIC"))
        if bill.switches:
            parts.insert(0, f"{bill.ports_used:,} of {bill.switch_ports:,} switch ports used")
        yield Paragraph(f"{', '.join(parts)} (each part: weft fabric bill)", indent=2)
        yield Paragraph(f"Prices: {bill.prices.name}, for {bill.prices.contents} (--prices)", indent=2, style="dim")


def _links(fabric: Fabric) -> Table:
    tiers = sorted(set(fabric.tier.tolist()))
    rows = [fabric.tier == tier for tier in tiers]
    columns = [
        Column("links of tier", [tier_name(tier) for tier in tiers], left=True),
        Column("count", [f"{int(row.sum()):,}" for row in rows]),
        Column("each", [_range(fabric.capacity_Bps[row], "B/s") for row in rows]),
    ]
    if not fabric.up.all():
        columns.append(Column("down", [f"{int((row & ~fabric.up).sum()):,}" for row in rows]))
    return Table(*columns)


def _range(values: Floats, unit: str) -> str:
    low, high = float(values.min()), float(values.max())
    return format_si(low, unit) if low == high else f"{format_si(low, unit)} to {format_si(high, unit)}"


def tier_name(tier: int) -> str:
    """A tier in words."""
    return "scale-up domain" if tier == SCALE_UP else f"scale-out {tier}"


def bill_view(bill: Bill) -> Iterator[Block]:
    """What the network costs to buy and to power, and its parts."""
    prices, rows = bill.prices, bill.to_dicts()
    totals = f"${bill.usd:,.0f} {_contents(bill)}, {bill.watts / 1e3:,.1f} kW"
    yield from headline(f"{_subject(bill)}: {totals}; spares ${bill.spares_usd:,.0f} more")
    yield Table(
        Column("part", [row["part"] for row in rows], left=True),
        Column("count", [f"{row['count']:,}" for row in rows]),
        Column("spares", [f"{row['spares']:,}" for row in rows]),
        Column("$ each", [_dollars(row["usd_each"]) for row in rows]),
        Column("$ with spares", [_dollars(row["usd"]) for row in rows]),
        Column("kW", [f"{row['watts'] / 1e3:,.1f}" for row in rows]),
        Column("detail", [row["detail"] for row in rows], left=True, drop=1),
    )
    date = f" ({prices.date})" if prices.date else ""
    yield Paragraph(f"Prices at any speed: {prices.name}, {prices.source}{date}", indent=2, hang=2, style="dim")


def _dollars(value: float) -> str:
    return f"{value:,.2f}" if value % 1 and value < 1000 else f"{value:,.0f}" if value else "-"
