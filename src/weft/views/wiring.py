"""Cables as built against a design, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.fabric.wiring_check import KINDS, Finding, named
from weft.units import format_seconds
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
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
