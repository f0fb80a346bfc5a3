"""A bill of materials for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import counted
from weft.views.blocks import Blank, Block, Column, Grid, Paragraph

if TYPE_CHECKING:
    from weft.fabric.cost import Bill


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
