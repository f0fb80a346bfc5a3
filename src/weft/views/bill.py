"""A bill of materials for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import counted, format_count, listed
from weft.views.blocks import Blank, Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.fabric.materials import BillOfMaterials


def bill_view(found: BillOfMaterials) -> Iterator[Block]:
    """The parts, the racks, and what the whole costs to buy and to run."""
    floor, prices = found.floor, found.counted.prices
    yield Paragraph(
        f"{found.fabric}: {counted(found.accelerators, 'accelerator')}, {prices.name} prices", style="bold"
    )
    yield Grid(
        [
            Column(heading="part", cells=[line.part for line in found.lines], left=True),
            Column(heading="count", cells=[f"{line.count:,}" for line in found.lines]),
            Column(heading="spares", cells=[f"{line.spares:,}" for line in found.lines]),
            Column(heading="$ each", cells=[_dollars(line.usd_each) for line in found.lines]),
            Column(heading="$", cells=[_dollars(line.usd) for line in found.lines]),
            Column(heading="kW", cells=[f"{line.watts / 1e3:,.1f}" for line in found.lines]),
            Column(heading="detail", cells=[line.detail for line in found.lines], left=True, drop=1),
        ]
    )
    if found.racks:
        yield Heading("Racks")
        yield Grid(
            [
                Column(heading="racks of", cells=[one.kind for one in found.racks], left=True),
                Column(heading="count", cells=[f"{one.count:,}" for one in found.racks]),
                Column(heading="kW", cells=[f"{one.kw:,.0f}" for one in found.racks]),
                Column(heading="fullest kW", cells=[f"{one.fullest_kw:,.1f}" for one in found.racks]),
                Column(heading=f"above {floor.kw_per_rack:g} kW", cells=[f"{one.over:,}" for one in found.racks]),
            ]
        )
    yield Blank()
    yield Paragraph(_sum(found))
    yield Paragraph(
        f"Energy: {found.watts / 1e3:,.1f} kW, {format_count(found.energy_kwh)} kWh in {floor.years:g} years at PUE"
        f" {floor.pue:g}: ${found.energy_usd:,.0f} at ${floor.usd_per_kwh:g} a kWh"
    )
    yield Paragraph(
        f"weft design counts ${found.counted.usd:,.0f} ({prices.contents}) and {found.counted.watts / 1e3:,.1f} kW: no"
        " floor, no spares, two transceivers on every cable"
    )
    reaches = ", ".join(f"{one.name} {one.reach_m:g} m" for one in found.media)
    yield Paragraph(f"Reaches: {reaches} (sources: --format json)", hang=2)
    yield Paragraph(f"Prices: {prices.source}{f' ({prices.date})' if prices.date else ''}", hang=2)
    yield Paragraph(f"Floor: {floor.name}: {floor.source}", hang=2)


def _sum(found: BillOfMaterials) -> str:
    text = f"Parts with a price: ${found.usd:,.0f}, ${found.spares_usd:,.0f} of it spares"
    if found.unpriced:
        text += f". Without {listed(found.unpriced)}: give prices in --prices FILE, under [usd], by name"
    return text


def _dollars(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
