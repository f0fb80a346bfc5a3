"""``weft fabric``: build, convert, price and draw a network."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import deliver
from weft.cli.outcome import FileOutput, RowsOutput, report
from weft.cli.outcome import show as render
from weft.verbs.bill import BillOptions, bill_of_materials
from weft.verbs.networks import FileOptions, PriceOptions, RadixOptions, network_of
from weft.verbs.options import option


class ShowByDefault(click.Group):
    """A group that takes anything but the name of a verb for arguments of ``show``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ShowByDefault)
def fabric() -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    \b
    weft fabric h100-1024 --kind rail-only           what it is made of, what it costs
    weft fabric bill h100-1024 --floor floor.toml    the bill of materials: cables by length, racks, spares

    Arguments without a verb are those of show: weft fabric show --help.
    """


@dataclass(frozen=True, kw_only=True)
class FabricOptions(FileOptions, RadixOptions, PriceOptions, FileOutput):
    """Which network, and what is made of it."""

    kind: str | None = option(None, "Network to build for CLUSTER, or a fabric file.", metavar="KIND|FILE")
    export: str | None = option(
        None, "Print the fabric in a format instead.", choices=("json", "graphml", "slurm", "containerlab")
    )
    picture: str | None = option(None, "Also draw it.", metavar="FILE.svg")


@fabric.command()
@click.argument("cluster")
@takes(options=FabricOptions)
def show(cluster: str, options: FabricOptions) -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    Reads weft JSON and TOML, NCCL topology XML, ibnetdiscover, SLURM topology, GraphML, node-link JSON, LLDP
    JSON, NetBox cables and containerlab.
    """
    built, kind = network_of(cluster, options.kind, options.radix, options)
    if options.export is not None:
        from weft.interop.fabrics.formats import write_fabric

        deliver(write_fabric(built, options.export), options.output)
    else:
        from weft.fabric.cost import bill_of_kind
        from weft.report.tables.design import fabric_table

        price = bill_of_kind(kind, built, options.price_list(), options.radix)
        render(lambda screen: fabric_table(built, price, screen), options.output)
    if options.picture is not None:
        from weft.report.pictures.fabric import fabric_svg
        from weft.report.pictures.palette import alone

        deliver(alone(fabric_svg(built)), options.picture)


@fabric.command()
@click.argument("network", metavar="CLUSTER|FABRIC")
@takes(options=BillOptions, out=RowsOutput)
def bill(network: str, options: BillOptions, out: RowsOutput) -> None:
    """Print the bill of materials of a network: what a vendor could quote.

    Switches by model, cables by length (copper, active optical, fiber with its transceivers, by what reaches), NICs,
    racks and their power, spares, and the energy of some years.  The floor plan says where racks and switches stand.
    Parts without a price are counted without dollars; --prices FILE takes yours by the names that the bill prints.
    """
    from weft.report.tables.bill import bill_table

    found = bill_of_materials(network, options)
    report(found, out, lambda screen: bill_table(found, screen))
