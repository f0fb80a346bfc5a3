"""``weft fabric``: build, convert, price and draw a network."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import deliver
from weft.cli.outcome import FileOutput, show
from weft.verbs.networks import FileOptions, PriceOptions, RadixOptions, fabric_file, fabric_of, is_file
from weft.verbs.options import option
from weft.verbs.shared import cluster_of


@dataclass(frozen=True, kw_only=True)
class FabricOptions(FileOptions, RadixOptions, PriceOptions, FileOutput):
    """Which network, and what is made of it."""

    kind: str | None = option(None, "Network to build for CLUSTER, or a fabric file.", metavar="KIND|FILE")
    export: str | None = option(
        None, "Print the fabric in a format instead.", choices=("json", "graphml", "slurm", "containerlab")
    )
    picture: str | None = option(None, "Also draw it.", metavar="FILE.svg")


@click.command()
@click.argument("cluster")
@takes(options=FabricOptions)
def fabric(cluster: str, options: FabricOptions) -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    Reads weft JSON and TOML, NCCL topology XML, ibnetdiscover, SLURM topology, GraphML, node-link JSON, LLDP
    JSON, NetBox cables and containerlab.
    """
    kind = options.kind
    if kind is not None and is_file(kind):
        built = fabric_file(kind, options)
    else:
        built = fabric_of(kind, cluster_of(cluster), options.radix)
    if options.export is not None:
        from weft.interop.fabrics.formats import write_fabric

        deliver(write_fabric(built, options.export), options.output)
    else:
        from weft.fabric.cost import bill_of_kind
        from weft.report.tables.design import fabric_table

        price = bill_of_kind(kind or "", built, options.price_list(), options.radix)
        show(lambda screen: fabric_table(built, price, screen), options.output)
    if options.picture is not None:
        from weft.report.pictures.fabric import fabric_svg
        from weft.report.pictures.palette import alone

        deliver(alone(fabric_svg(built)), options.picture)
