"""Networks for people: nodes and links, the bill of materials, and cables as built against a design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.fabric.spec import SCALE_UP
from weft.fabric.wiring_check import KINDS, Finding, named
from weft.units import counted, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.fabric.cost import Bill
    from weft.fabric.spec import Floats
    from weft.fabric.wiring_check import WiringReport

MOST_ROWS, MOST_NAMES = 40, 6
_MEANING = {
    "miscabled": "plugged into the wrong device",
    "wrong-rail": "an accelerator on a switch of another rail",
    "other-port": "the right devices by other ports: traffic is the same",
    "missing": "designed, and not there or down",
    "slow": "slower than designed",
    "asymmetric": "the two ends or directions differ",
    "unexpected": "not designed",
}


def wiring_view(found: WiringReport) -> Iterator[Block]:
    """What is not as designed, what mends it, and what it costs."""
    result = found.differences
    yield Paragraph(f"{found.as_built} against {found.design}")
    yield Paragraph(f"{result.right:,} of {result.designed:,} cables are between the ports of the design")
    counts = [(kind, found.counts[kind]) for kind in KINDS if found.counts[kind]]
    yield Grid(
        [
            Column(heading="finding", cells=[kind for kind, _ in counts] or ["none"], left=True),
            Column(heading="count", cells=[f"{count:,}" for _, count in counts] or ["0"]),
            Column(heading="meaning", cells=[_MEANING[kind] for kind, _ in counts] or [""], left=True, drop=1),
        ]
    )
    if result.findings:
        yield Heading("What to do (exchanges in this order)")
        yield from _findings(result.findings[:MOST_ROWS])
        if len(result.findings) > MOST_ROWS:
            yield Paragraph(f"and {len(result.findings) - MOST_ROWS:,} more: --format csv lists all")
    for title, names in (("Not there", result.only_designed), ("Not in the design", result.only_built)):
        if names:
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            yield Paragraph(f"{title}: {', '.join(names[:MOST_NAMES])}{more}")
    if result.only_designed and result.only_built:
        yield Paragraph("(--names FILE says which devices are the same under two names)")
    for note in result.notes:
        yield Paragraph(f"note: {note}")
    yield from _times(found)


def _findings(findings: Sequence[Finding]) -> Iterator[Block]:
    yield Grid(
        [
            Column(heading="finding", cells=[one.kind for one in findings], left=True),
            Column(heading="do", cells=[one.remedy for one in findings], left=True),
            Column(heading="leads to", cells=[_end(one.leads_to) for one in findings], left=True, drop=2),
            Column(heading="designed to", cells=[_end(one.designed_to) for one in findings], left=True, drop=1),
            Column(heading="speed", cells=[_speeds(one) for one in findings], drop=3),
        ]
    )


def _end(end: tuple[str, str] | None) -> str:
    return "" if end is None else named(end)


def _speeds(one: Finding) -> str:
    there, designed = (speed and f"{speed * 8 / 1e9:g}" for speed in (one.capacity_Bps, one.designed_Bps))
    return f"{there} of {designed} Gb/s" if there and designed else ""


def _times(found: WiringReport) -> Iterator[Block]:
    times = found.iteration
    if times is None:
        return
    if times.as_built_s is None:
        text = f"{format_seconds(times.designed_s)} as designed; it cannot run as built: {times.stuck}"
    else:
        change = times.as_built_s / times.designed_s - 1
        both = f"{format_seconds(times.designed_s)} as designed, {format_seconds(times.as_built_s)} as built"
        text = f"{both}: {change:+.1%}"
    yield Heading(f"Iteration of {times.job}")
    yield Paragraph(text)


def fabric_view(fabric: Fabric, price: Bill) -> Iterator[Block]:
    """The nodes by role, the links by tier, and the bill of one fabric."""
    yield Paragraph(f"{fabric.name}: {counted(fabric.accelerators, 'accelerator')}", style="bold")
    counts = [(role, len(fabric.nodes_of(role))) for role in fabric.roles]
    yield Grid(
        [
            Column(heading="nodes", cells=[role for role, _ in counts], left=True),
            Column(heading="count", cells=[f"{count:,}" for _, count in counts]),
        ]
    )
    tiers = sorted(set(fabric.tier.tolist()))
    rows = [fabric.tier == tier for tier in tiers]
    yield Grid(
        [
            Column(heading="links of tier", cells=[tier_name(tier) for tier in tiers], left=True),
            Column(heading="count", cells=[f"{int(row.sum()):,}" for row in rows]),
            Column(heading="each", cells=[_range(fabric.capacity_Bps[row], "B/s") for row in rows]),
            Column(heading="down", cells=[f"{int((row & ~fabric.up).sum()):,}" for row in rows]),
        ]
    )
    yield Paragraph(
        f"Scale-out network: {counted(price.switches, 'switch')} ({price.ports_used:,} of {price.switch_ports:,}"
        f" ports used), {counted(price.transceivers, 'transceiver')}, {counted(price.cables, 'cable')},"
        f" {counted(price.nics, 'NIC')}: ${price.usd:,.0f} for {price.prices.contents} with {price.prices.name}"
        f" prices, {price.watts / 1e3:,.1f} kW"
    )


def _range(values: Floats, unit: str) -> str:
    low, high = float(values.min()), float(values.max())
    return format_si(low, unit) if low == high else f"{format_si(low, unit)} to {format_si(high, unit)}"


def tier_name(tier: int) -> str:
    """A tier in words."""
    return "scale-up domain" if tier == SCALE_UP else f"scale-out {tier}"


def bill_view(bill: Bill) -> Iterator[Block]:
    """The parts, and what the network costs to buy and to power."""
    prices, rows = bill.prices, bill.to_dicts()
    yield Paragraph(f"{bill.fabric}: {counted(bill.accelerators, 'accelerator')}, {prices.name} prices", style="bold")
    yield Grid(
        [
            Column(heading="part", cells=[row["part"] for row in rows], left=True),
            Column(heading="count", cells=[f"{row['count']:,}" for row in rows]),
            Column(heading="spares", cells=[f"{row['spares']:,}" for row in rows]),
            Column(heading="$ each", cells=[_dollars(row["usd_each"]) for row in rows]),
            Column(heading="$", cells=[_dollars(row["usd"]) for row in rows]),
            Column(heading="kW", cells=[f"{row['watts'] / 1e3:,.1f}" for row in rows]),
            Column(heading="detail", cells=[row["detail"] for row in rows], left=True, drop=1),
        ]
    )
    yield Blank()
    yield Paragraph(
        f"${bill.usd:,.0f} for {prices.contents}, {bill.watts / 1e3:,.1f} kW; spares ${bill.spares_usd:,.0f} more"
    )
    yield Paragraph(f"Prices: {prices.source}{f' ({prices.date})' if prices.date else ''}", hang=2)


def _dollars(value: float) -> str:
    return f"{value:,.2f}" if value % 1 and value < 1000 else f"{value:,.0f}" if value else "-"
