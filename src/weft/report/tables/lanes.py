"""Lanes of routes for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.report.tables.grid import Column, paragraph, print_grid
from weft.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from weft.fabric.lanes import LanesReport

SHOWN = 8
"""Channels of a circle that are named."""


def lanes_table(found: LanesReport, console: Console) -> None:
    """Print what routes need and whether they are free, and a circle where they are not."""
    pairs = "all pairs" if found.every else counted(found.pairs, "pair")
    paragraph(
        console,
        f"{found.fabric.name}, {found.routing}: {pairs} of {counted(found.fabric.accelerators, 'accelerator')}",
    )
    rows = found.to_dicts()
    print_grid(
        console,
        [
            Column(heading="routes on", cells=[row["on"] for row in rows], left=True),
            Column(heading="lanes", cells=[f"{row['lanes']:,}" for row in rows]),
            Column(heading="channels", cells=[f"{row['channels']:,}" for row in rows]),
            Column(heading="waits", cells=[f"{row['waits']:,}" for row in rows]),
            Column(heading="free of deadlock", cells=["yes" if row["free"] else "no" for row in rows]),
            Column(
                heading="longest chain", cells=["-" if row["free"] is False else f"{row['longest']:,}" for row in rows]
            ),
        ],
    )
    if not found.bare.free:
        turn = found.words(found.bare)
        shown = ", ".join(turn[:SHOWN]) + (f" and {len(turn) - SHOWN:,} more" if len(turn) > SHOWN else "")
        paragraph(console, f"A circle on one lane: {shown}", hang=2)
    if found.laned is None:
        paragraph(console, "Flows split over several paths have no lanes; what is shown holds for one lane.")
