"""``weft route export``: routes for real networks, and events for the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.commands.command_line import GroupedCommand, takes
from weft.commands.networks import SubnetOptions
from weft.commands.options import Options, option
from weft.commands.output import deliver
from weft.commands.route import PINNED, installed
from weft.commands.traffic import TrafficOptions, traffic_of
from weft.errors import BadInput
from weft.files import read_text, write_folder
from weft.interop.formats import formats_of
from weft.units import counted

if TYPE_CHECKING:
    from weft.routing.plan import RoutePlan

KINDS = formats_of("routes") | {"events": formats_of("traffic")["events"]}
"""The formats of routes, and that of the traffic itself."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TrafficOptions, SubnetOptions):
    """Where the routes come from, and details of the formats."""

    group = "Search"
    routes: str | None = option(None, "Write these routes, as weft route audit reads them.", metavar="FILE")
    router: str = option("auto", "Without --routes: method that chooses the paths.", choices=(*PINNED, "split"))


@dataclass(frozen=True, kw_only=True)
class ExportOutput(Options):
    """What is written, and where."""

    group = "Output"
    at: float | None = option(None, "events: time of the arrivals in s (default 0).", metavar="TIME", least=0)
    probes: str | None = option(None, "roce-csv: measured paths of source ports.", metavar="FILE.csv")
    output: str | None = option(None, "Folder to write to.", "-o", "--output", metavar="DIR")


@click.command(
    "export",
    cls=GroupedCommand,
    help="\n\n".join(
        [
            "Write routes in the format of a network.",
            "\b\n" + "\n".join(f"{name:<14}{form.title}" for name, form in KINDS.items()),
            "One file is printed; several need -o DIR.",
        ]
    ),
)
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@takes(options=ExportOptions, out=ExportOutput)
def export_command(kind: str, options: ExportOptions, out: ExportOutput) -> None:
    if out.at is not None and kind != "events":
        raise BadInput(f"does not apply to {kind}", where="--at", remedy="use events, or drop it")
    if kind == "events":
        files = _events(options, out.at or 0.0)
    else:
        files = _route_files(kind, _routed(options), options, out)
    if out.output is not None:
        write_folder(out.output, {name: text.encode() for name, text in files.items()})
        click.echo(f"{counted(len(files), 'file')} written to {out.output}", err=True)
        return
    if len(files) > 1:
        names = f"{', '.join(sorted(files)[:4])}{', ...' if len(files) > 4 else ''}"
        raise BadInput(f"{counted(len(files), 'file')}: {names}", where="weft route export", remedy="add -o DIR")
    deliver(next(iter(files.values())), None)


def _events(options: ExportOptions, time_s: float) -> dict[str, str]:
    from weft.interop.events import arrival_line

    if options.failed:
        raise BadInput(
            "does not apply to events", where="--failed", remedy="drop it; weft route watch has events for it"
        )
    fabric, traffic = traffic_of(options)
    jobs = range(len(traffic.jobs))
    lines = [arrival_line(traffic.only([job]), fabric, time_s) for job in jobs]
    return {"events.jsonl": "\n".join(lines) + "\n"}


def _routed(options: ExportOptions) -> RoutePlan:
    """The routes of a file, or those of a plan."""
    from weft.routing.plan import judged, plan
    from weft.routing.problem import routing_problem
    from weft.routing.routers import RouterResult

    if options.routes is None:
        fabric, traffic = traffic_of(options)
        return plan(fabric, traffic, router=options.router, seed=options.seed)
    fabric, traffic, routes = installed(options, options.routes)
    return judged(routing_problem(fabric, traffic), RouterResult(routes=routes), router="installed", bound="cuts")


def _route_files(kind: str, result: RoutePlan, options: ExportOptions, out: ExportOutput) -> dict[str, str]:
    """The texts of a plan in a format, by file name."""
    more: dict[str, object] = {}
    if out.probes is not None:
        if kind != "roce-csv":
            raise BadInput(f"does not apply to {kind}", where="--probes", remedy="use roce-csv")
        more = {"probes": read_text(out.probes, where=out.probes)}
    if kind == "opensm":
        from weft.interop.subnet import read_subnet

        discovered = options.fabric
        if not isinstance(discovered, str) or options.cluster is not None:
            raise BadInput(
                "forwarding tables need GUIDs and ports",
                where="--fabric",
                remedy="give the output of ibnetdiscover as --fabric FILE",
            )
        more = {
            "subnet": read_subnet(read_text(discovered, where=discovered), where=discovered, exclude=options.exclude)
        }
    form = KINDS[kind]
    written = form.write(result.fabric, result.traffic, result.routes, **more)
    return {form.file: written} if isinstance(written, str) else written
