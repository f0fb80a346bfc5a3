"""``weft fabric``: build, convert, price and draw a network, and hold cables as built against it."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.commands.bill import BillOptions, bill_of_materials
from weft.commands.check_fabric import CheckOptions, check_fabric
from weft.commands.command_line import takes
from weft.commands.networks import FileOptions, PriceOptions, RadixOptions, network_of
from weft.commands.options import option
from weft.commands.output import FileOutput, RowsOutput, check_picture, deliver, report, show
from weft.interop.formats import FABRICS, WIRINGS


class ShowByDefault(click.Group):
    """A group that takes anything but the name of a verb for arguments of ``show``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ShowByDefault)
def fabric_command() -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    \b
    weft fabric h100-1024 --kind rail-only                what it is made of, what it costs; or of a file
    weft fabric h100-1024 --kind rail-only --export p2p   its cabling plan
    weft fabric check lldp.json --against plan.csv        cables as built against it
    weft fabric bill h100-1024 --spares 3%                the bill of materials, with spares

    Arguments without a verb are those of show: weft fabric show --help.
    """


_WRITTEN = {form.name: form for form in (*FABRICS, *WIRINGS) if form.writer}


@dataclass(frozen=True, kw_only=True)
class FabricOptions(FileOptions, RadixOptions, PriceOptions, FileOutput):
    """Which network, and what is made of it."""

    kind: str | None = option(None, "Network to build for CLUSTER, or a fabric file.", metavar="KIND|FILE")
    export: str | None = option(None, "Print the fabric in a format instead.", choices=tuple(_WRITTEN))
    picture: str | None = option(None, "Also draw it.", metavar="FILE.svg")


@fabric_command.command("show")
@click.argument("cluster")
@takes(options=FabricOptions)
def network(cluster: str, options: FabricOptions) -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    Reads weft JSON and TOML, cabling plans (CSV), LLDP JSON, ibnetdiscover, SLURM topology, and NCCL topology
    XML.
    """
    check_picture(options.picture)
    built, kind = network_of(cluster, options.kind, options.radix, options, spares=options.export is None)
    if options.export is not None:
        deliver(_WRITTEN[options.export].write(built), options.output)
    else:
        from weft.fabric.cost import bill
        from weft.views.fabric import fabric_view

        price = bill(built, options.price_list(), radix=options.radix, kind=kind)
        show(fabric_view(built, price), options.output)
    if options.picture is not None:
        from weft.views.charts.fabric import fabric_svg
        from weft.views.charts.palette import alone

        deliver(alone(fabric_svg(built)), options.picture)


@fabric_command.command("bill")
@click.argument("network", metavar="CLUSTER|FABRIC")
@takes(options=BillOptions, out=RowsOutput)
def materials(network: str, options: BillOptions, out: RowsOutput) -> None:
    """Print the bill of materials of a network: switches by model, cables, transceivers and NICs, with spares.

    Its sums are those of weft fabric and weft design: every cable is a fiber with two transceivers.
    """
    from weft.views.fabric import bill_view

    found = bill_of_materials(network, options)
    report(found, out, bill_view(found))


@fabric_command.command()
@click.argument("as_built", metavar="AS-BUILT")
@takes(options=CheckOptions, out=RowsOutput)
@click.pass_context
def check(ctx: click.Context, as_built: str, options: CheckOptions, out: RowsOutput) -> None:
    """Hold cables AS-BUILT against a design: what is miscabled, missing or slow, and which plugs to exchange.

    AS-BUILT and the design are files in any format that weft fabric reads, or the design is a kind of --cluster.
    Devices match by name (--names maps them), ports by name where both sides name them, else any port of the
    device counts.  With --model, --cluster and --layout: what it costs in time per iteration.  The exit code is 1
    where something is not as designed.
    """
    from weft.views.fabric import wiring_view

    found = check_fabric(as_built, options)
    report(found, out, wiring_view(found))
    ctx.exit(1 if found.differences.findings else 0)
