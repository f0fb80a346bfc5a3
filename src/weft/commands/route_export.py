"""``weft route export``: routes for real networks, and events for the controller."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.commands.command_line import takes
from weft.commands.networks import SubnetOptions
from weft.commands.options import option
from weft.commands.output import deliver
from weft.commands.route import PATH_BITS, PINNED, installed
from weft.commands.traffic import TrafficOptions, traffic_of
from weft.errors import BadInput
from weft.files import write_folder
from weft.units import counted

if TYPE_CHECKING:
    from weft.routing.plan import RoutePlan

KINDS = ("events", "frr", "jobs", "json", "nccl", "opensm", "roce-csv")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TrafficOptions, SubnetOptions):
    """Who routes which flows, and how ports are known to take a path."""

    routes: str | None = option(
        None, "Write these routes (as weft route audit reads them; WEFT_ROUTES of watch --apply).", metavar="PATH"
    )
    router: str = option("auto", "Who chooses the paths, without --routes.", choices=(*PINNED, "split", "rail"))
    at: float | None = option(None, "events: time of the arrivals in s (default 0).", metavar="TIME", least=0)
    switch_hash: str | None = option(None, "roce: what switches hash flows with.", choices=("crc32",))
    probes: str | None = option(None, "roce: measured paths of source ports.", metavar="FILE.csv")
    output: str | None = option(None, "Write the files as this folder.", "-o", "--output", metavar="DIR")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@takes(options=ExportOptions)
def export(kind: str, options: ExportOptions) -> None:
    """Route all flows and write what a real network takes.

    \b
    opensm        forwarding tables for opensm -R file -U (--fabric: ibnetdiscover's output)
    frr           FRR configurations of switches: static routes by destination, BGP
    roce-csv      RoCEv2 UDP source ports by queue pair
    nccl          /etc/nccl.conf
    json          every flow's path
    events        the arrival of every job, for weft route watch
    jobs          the traffic itself, as job files of the paper's code

    One file is printed; several need -o DIR.
    """
    if options.at is not None and kind != "events":
        raise BadInput(f"says nothing about {kind}", where="--at", remedy="use events, or drop it")
    if kind == "events":
        files = _events(options)
    elif kind == "jobs":
        files = _job_files(options)
    else:
        found = _routed(options)
        files = _opensm(found, options) if kind == "opensm" else _files(kind, found, options)
    if options.output is not None:
        write_folder(options.output, {name: text.encode() for name, text in files.items()})
        click.echo(f"{len(files)} file{'s' if len(files) > 1 else ''} written to {options.output}", err=True)
        return
    if len(files) > 1:
        some = f"{', '.join(sorted(files)[:4])}{', ...' if len(files) > 4 else ''}"
        raise BadInput(f"{counted(len(files), 'file')}: {some}", where="weft route export", remedy="add -o DIR")
    deliver(next(iter(files.values())), None)


def _events(options: ExportOptions) -> dict[str, str]:
    from weft.interop.traffic.events import arrival_line

    if options.failed:
        raise BadInput(
            "says nothing of events", where="--failed", remedy="drop it; weft route watch has events for it"
        )
    fabric, traffic = traffic_of(options)
    jobs = range(len(traffic.jobs))
    lines = [arrival_line(traffic.only([job]), fabric, options.at or 0.0) for job in jobs]
    return {"events.jsonl": "\n".join(lines) + "\n"}


def _routed(options: ExportOptions) -> RoutePlan:
    """The routes of a file, or those of a plan."""
    from weft.routing.plan import judged, plan
    from weft.routing.problem import problem
    from weft.routing.routers import Found

    if options.routes is None:
        fabric, traffic = traffic_of(options)
        return plan(fabric, traffic, router=options.router, seed=options.seed)
    fabric, traffic, routes = installed(options, options.routes)
    return judged(problem(fabric, traffic), Found(routes=routes), router="installed", bound="cuts")


def _files(kind: str, found: RoutePlan, options: ExportOptions) -> dict[str, str]:
    from weft.interop import route_formats

    if options.switch_hash is None and options.probes is None:
        return route_formats.export(kind, found.fabric, found.traffic, found.routes)
    if kind != "roce-csv":
        raise BadInput(f"says nothing about {kind}", where="--switch-hash, --probes", remedy="use roce-csv")
    from weft.files import read_text
    from weft.interop.netops import roce

    path = options.probes
    probes = None if path is None else read_text(path, where=path)
    ports = roce.source_ports(
        found.fabric, found.traffic, found.routes, switch_hash=options.switch_hash, probes=probes
    )
    return route_formats.checked(kind, {"roce-ports.csv": roce.write_csv(ports)})


def _job_files(options: ExportOptions) -> dict[str, str]:
    from weft.interop.traffic.routing_jobs import numbering, write_job

    fabric, traffic = traffic_of(options)
    numbers, files = numbering(fabric), {}
    for job, name in enumerate(traffic.jobs):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        title = plain if re.fullmatch(r"job_\d+-.+", plain) else f"job_{job}-{plain}"
        if f"{title}.txt" in files:
            raise BadInput(f"two jobs would be written to {title}.txt", where="jobs", remedy="rename one of them")
        files[f"{title}.txt"] = write_job(traffic, job, numbers)
    return files


def _opensm(found: RoutePlan, options: ExportOptions) -> dict[str, str]:
    from weft.files import read_text
    from weft.interop.fabrics import ibnetdiscover
    from weft.interop.netops import opensm

    path = options.fabric
    if not isinstance(path, str) or options.cluster is not None:
        raise BadInput(
            "forwarding tables need GUIDs and ports",
            where="--fabric",
            remedy="give the output of ibnetdiscover as --fabric FILE",
        )
    subnet = ibnetdiscover.read_subnet(read_text(path, where=path), where=path, exclude=options.exclude)
    tables = opensm.tables(subnet, found.fabric, found.traffic, found.routes)
    files = {
        "opensm.conf": opensm.configuration(tables),
        "opensm.lfts": opensm.write(tables),
        PATH_BITS: opensm.path_bits(tables),
    }
    return files | ({"guid2lid": opensm.guid2lid(tables)} if tables.reassigned else {})
