"""The collectives of an arranged job for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import format_seconds, format_si
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.arrangement.collectives import JobSchedules


def schedules_view(found: JobSchedules) -> Iterator[Block]:
    """Every collective: what the prediction takes for a call, and the best that is known, with its bound."""
    rows = found.collectives
    yield Heading(f"Collectives of {found.job}, most bytes first (seconds of one call)")
    between = ["-" if one.reached_Bps is None else f"{one.reached_Bps / 1e9:.3g} GB/s" for one in rows]
    yield Grid(
        [
            Column(heading="collective", cells=[one.name for one in rows], left=True),
            Column(heading="ranks", cells=[f"{one.ranks:,}" for one in rows]),
            Column(heading="hosts", cells=[f"{one.hosts:,}" for one in rows]),
            Column(heading="size", cells=[format_si(one.bytes, "B") for one in rows]),
            Column(heading="calls", cells=[f"{one.calls:,.0f}" for one in rows], drop=1),
            Column(heading="between hosts", cells=between, drop=2),
            Column(heading="predicted", cells=[format_seconds(one.assumed[1]) for one in rows]),
            Column(heading="best", cells=[format_seconds(one.best[1]) for one in rows]),
            Column(heading="by", cells=[one.best[0] for one in rows], left=True),
            Column(heading="bound", cells=[format_seconds(one.bound_s) for one in rows]),
        ]
    )
    yield Paragraph(
        "predicted: what the iteration is predicted with; best: the fastest of NCCL's algorithms, or a schedule over"
        " hosts and network that beats them all; bound: bytes over the ports' peak bandwidth.",
        indent=2,
    )
