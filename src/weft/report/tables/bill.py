"""A bill of materials for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.report.tables.grid import Column, paragraph, print_grid
from weft.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from weft.fabric.cost import Bill


def bill_table(bill: Bill, console: Console) -> None:
    """Print the parts and what the network costs to buy and to power."""
    prices, rows = bill.prices, bill.to_dicts()
    paragraph(
        console, f"{bill.fabric}: {counted(bill.accelerators, 'accelerator')}, {prices.name} prices", style="bold"
    )
    print_grid(
        console,
        [
            Column(heading="part", cells=[row["part"] for row in rows], left=True),
            Column(heading="count", cells=[f"{row['count']:,}" for row in rows]),
            Column(heading="spares", cells=[f"{row['spares']:,}" for row in rows]),
            Column(heading="$ each", cells=[_dollars(row["usd_each"]) for row in rows]),
            Column(heading="$", cells=[_dollars(row["usd"]) for row in rows]),
            Column(heading="kW", cells=[f"{row['watts'] / 1e3:,.1f}" for row in rows]),
            Column(heading="detail", cells=[row["detail"] for row in rows], left=True, drop=1),
        ],
    )
    console.print()
    paragraph(
        console,
        f"${bill.usd:,.0f} for {prices.contents}, {bill.watts / 1e3:,.1f} kW; spares ${bill.spares_usd:,.0f} more",
    )
    paragraph(console, f"Prices: {prices.source}{f' ({prices.date})' if prices.date else ''}", hang=2)


def _dollars(value: float) -> str:
    return f"{value:,.2f}" if value % 1 and value < 1000 else f"{value:,.0f}" if value else "-"
