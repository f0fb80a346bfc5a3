"""``weft fabric``: build, convert, price and draw a network."""

from __future__ import annotations

from typing import Any

import click

from weft.cli.options import deliver, file_options, is_file, load_fabric, load_file, load_prices
from weft.cli.outcome import show


@click.command()
@click.argument("cluster")
@click.option("--kind", "kind", metavar="KIND|FILE", help="Network to build for CLUSTER, or a fabric file.")
@file_options
@click.option("--radix", type=click.IntRange(2, 4096), default=64, show_default=True, help="Switch ports.")
@click.option("--prices", default="rail-only-v5", show_default=True, help="Price preset or TOML file.")
@click.option(
    "--export",
    type=click.Choice(["json", "graphml", "slurm", "containerlab"]),
    help="Print the fabric in a format instead.",
)
@click.option("--picture", metavar="FILE.svg", help="Also draw it.")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
def fabric(cluster: str, **values: Any) -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    Reads weft JSON and TOML, NCCL topology XML, ibnetdiscover, SLURM topology, GraphML, node-link JSON, LLDP
    JSON, NetBox cables and containerlab.
    """
    from weft.cluster import resolve

    kind = values["kind"]
    if kind is not None and is_file(kind):
        built = load_file(kind, values)
    else:
        built = load_fabric(kind, resolve(cluster), values["radix"])
    if values["export"] is not None:
        from weft.interop.fabrics.formats import write_fabric

        deliver(write_fabric(built, values["export"]), values["output"])
    else:
        from weft.fabric.cost import bill_of_kind
        from weft.report.tables.design import fabric_table

        price = bill_of_kind(values["kind"] or "", built, load_prices(values["prices"]), values["radix"])
        show(lambda screen: fabric_table(built, price, screen), values["output"])
    if values["picture"] is not None:
        from weft.report.pictures.fabric import fabric_svg

        deliver(fabric_svg(built), values["picture"])
