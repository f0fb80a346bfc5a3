"""``weft fabric``: build, convert, price and draw a network, and check its cables."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import DefaultGroup, command
from weft.commands.networks import FileOptions, PriceOptions, RadixOptions, fabric_of, is_file, left_out, network_of
from weft.commands.options import given_options, option, verb
from weft.commands.output import RowsOutput, TableOutput, check_picture, deliver, report, show
from weft.commands.shared import cluster_of, path_of, share_of
from weft.errors import BadInput
from weft.files import read_text
from weft.interop.formats import FABRICS, WIRINGS

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.fabric.cost import Bill
    from weft.fabric.wiring import Wiring
    from weft.fabric.wiring_check import WiringReport


KIND = "Network to build, as fat-tree or 'rail-only 2:1', or a fabric file."


class BillOptions(RadixOptions, PriceOptions):
    """Which network, and what parts cost."""

    kind: str | None = option(None, KIND, metavar="KIND|FILE")
    spares: str | float = option("2%", "Spares to buy, as a share of every part.", metavar="SHARE")


@verb(BillOptions)
def bill_of_materials(
    network: str | os.PathLike[str] | Cluster | Fabric, options: BillOptions | None = None, **given: Any
) -> Bill:
    """The bill of materials of a network: switches, cables, transceivers and NICs, with spares.

    >>> import weft
    >>> bill = weft.bill_of_materials("h100-256", kind="rail-optimized", spares="0%")
    >>> [(line.count, line.part) for line in bill.lines if line.category == "switch"]
    [(12, '64 x 400G switch')]

    Args:
        network: a cluster, whose network ``kind`` names, or a fabric or a file of one.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or no network to buy.
    """
    options = given_options(BillOptions, options, given)
    from weft.fabric.cost import bill

    share = share_of(options.spares, "--spares")
    fabric, kind = network_of(network, options.kind, options.radix, spares=True)
    result = bill(fabric, options.price_list(), radix=options.radix, kind=kind, spares_share=share)
    if not result.lines:
        problem = "is one scale-up domain: there is no network outside it to buy"
        raise BadInput(problem, where=fabric.name, remedy="give more accelerators")
    return result


class CheckOptions(FileOptions, RadixOptions):
    """The design."""

    against: str | Fabric | None = option(None, "Design: a file, or a kind with --cluster.", metavar="KIND|FILE")
    cluster: str | Cluster | None = option(None, "Cluster to build the kind of --against for.", metavar="NAME|FILE")
    names: str | None = option(None, "Renamed devices, one per line: built,designed.", metavar="FILE")


@verb(CheckOptions)
def check_fabric(as_built: str | os.PathLike[str], options: CheckOptions | None = None, **given: Any) -> WiringReport:
    """Compare cables as built with a design: which are misplugged, missing or slow, and how to repair them.

    >>> import tempfile, weft
    >>> from weft.interop.cabling import HEADINGS
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan, there = (f"{folder}/{name}.csv" for name in ("plan", "there"))
    ...     rows = ["gpu1,eth0,leaf1,1,400G", "gpu2,eth0,leaf2,1,400G"]
    ...     for file, built in ((plan, rows), (there, ["gpu1,eth0,leaf2,1,400G", "gpu2,eth0,leaf1,1,100G"])):
    ...         with open(file, "w") as text:
    ...             print(",".join(HEADINGS), *built, sep="\\n", file=text)
    ...     found = weft.check_fabric(there, against=plan)
    >>> [row["remedy"] for row in found.to_dicts()]
    ['exchange the plugs of leaf1 1 and leaf2 1']

    Args:
        as_built: a file in any format of fabrics; those that name ports tell most.

    Raises:
        BadInput: a file or an option that cannot be used, or no device of the design is in the file.
    """
    options = given_options(CheckOptions, options, given)
    if options.against is None:
        raise BadInput("is missing", where="--against", remedy="give the design: a file, or a kind with --cluster")
    from weft.fabric.wiring import ends_of_accelerators
    from weft.fabric.wiring_check import WiringReport, differences
    from weft.interop.cabling import read_names
    from weft.interop.fabric_files import FabricFileHints, read_wiring

    where = path_of(as_built, "AS-BUILT")
    built, _ = read_wiring(FabricFileHints(where=where, **left_out(options)))
    design, fabric = _design(options)
    rails = None
    if fabric is not None:
        rails = dict(zip(ends_of_accelerators(fabric), fabric.rail.tolist(), strict=True))
    names = {}
    if options.names is not None:
        names = read_names(read_text(options.names, where=options.names), where=options.names)
    result = differences(built, design, names=names, rails=rails)
    title = options.against if isinstance(options.against, str) else design.name
    return WiringReport(as_built=where, design=title, differences=result)


def _design(options: CheckOptions) -> tuple[Wiring, Fabric | None]:
    from weft.fabric.wiring import wiring_of_fabric
    from weft.interop.fabric_files import FabricFileHints, read_wiring

    if isinstance(options.against, str) and is_file(options.against):
        told = left_out(options.changed(host_map=None, exclude=()))
        result, fabric = read_wiring(FabricFileHints(where=options.against, **told))
        speed = told["capacity_Bps"]
        cables = tuple(replace(cable, capacity_Bps=cable.capacity_Bps or speed) for cable in result.cables)
        return replace(result, cables=cables), fabric
    if isinstance(options.against, str) and options.cluster is None:
        problem = f"{options.against!r} is not a file, and a kind of network needs --cluster"
        raise BadInput(problem, where="--against", remedy="add --cluster, or give a fabric file")
    cluster = None if options.cluster is None else cluster_of(options.cluster)
    fabric = fabric_of(options.against, cluster, options.radix)
    return wiring_of_fabric(fabric), fabric


@click.group(cls=DefaultGroup, default="show")
def fabric_command() -> None:
    """Show, price, draw or check the network of a cluster.

    \b
    weft fabric h100-1024 --kind rail-only                size, cost and power
    weft fabric h100-1024 --kind rail-only --export p2p   cabling plan (CSV)
    weft fabric check lldp.json --against plan.csv        cables that differ from the plan
    weft fabric bill h100-1024 --spares 3%                bill of materials

    Without a subcommand: show (weft fabric show --help).
    """


_WRITTEN = {form.name: form for form in (*FABRICS, *WIRINGS) if form.writer}


class FabricOptions(FileOptions, RadixOptions, PriceOptions):
    """Which network, and its prices."""

    kind: str | None = option(None, KIND, metavar="KIND|FILE")


class FabricOutput(TableOutput):
    """Output options of ``weft fabric show``."""

    export: str | None = option(None, "Print the fabric in this format instead.", choices=tuple(_WRITTEN))
    picture: str | None = option(None, "Also draw the network.", metavar="FILE.svg", check=check_picture)


@command(into=fabric_command, options=FabricOptions, out=FabricOutput)
def show_command(cluster: str, options: FabricOptions, out: FabricOutput) -> None:
    """Show the network of CLUSTER: switches, links, cost and power.

    CLUSTER is a name (weft info clusters), a cluster file, or a fabric file: Weft's JSON or TOML, a cabling plan
    (CSV), LLDP JSON, ibnetdiscover output, SLURM topology or NCCL topology XML.
    """
    built, kind = network_of(cluster, options.kind, options.radix, options, spares=out.export is None)
    if out.export is not None:
        deliver(_WRITTEN[out.export].write(built), out.output)
    else:
        from weft.fabric.cost import bill
        from weft.views.fabric import fabric_view

        price = bill(built, options.price_list(), radix=options.radix, kind=kind)
        show(fabric_view(built, price, kind), out.output, wide=out.wide)
    if out.picture is not None:
        from weft.views.charts import alone
        from weft.views.fabric import fabric_svg

        deliver(alone(fabric_svg(built)), out.picture)


@command("CLUSTER|FABRIC", into=fabric_command, options=BillOptions, out=RowsOutput)
def bill_command(network: str, options: BillOptions, out: RowsOutput) -> None:
    """Print the bill of materials: switches, cables, transceivers and NICs, with spares.

    Every cable is a fiber with two transceivers. Totals equal those of weft fabric and weft design.

    \b
    weft fabric bill h100-1024 --spares 3%
    """
    report(bill_of_materials(network, options), out)


@command("AS-BUILT", into=fabric_command, options=CheckOptions, out=RowsOutput)
def check_command(as_built: str, options: CheckOptions, out: RowsOutput) -> None:
    """Compare cables AS-BUILT with a design: which are misplugged, missing or slow, and how to repair them.

    AS-BUILT is a file in any format that weft fabric reads; so is the design, or it is a kind with --cluster.
    Devices match by name (--names maps them). Ports match by name where both files name them; otherwise any port of
    the device counts. Exit code 1 if anything differs.

    \b
    weft fabric check lldp.json --against plan.csv
    """
    result = check_fabric(as_built, options)
    report(result, out)
    if result.differences.findings:
        raise click.exceptions.Exit(1)
