"""Where the verbs of ``weft route`` take their fabric and traffic from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import Command, add_options, file_options, is_file, load_fabric, load_file
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.fabric import Fabric
    from weft.routing import JobTraffic

_NUMBERED = re.compile(r"\s*\S+\s+\S+(\s+[0-9]{1,9})?\s*")
SOURCES = "--jobs DIR, --generate BLOOM:4,GPT_3:2, --flows FILE.csv, --matrix FILE.cm or --job 'MODEL LAYOUT'"


def network_options(command: Command) -> Command:
    """The fabric."""
    options = (
        click.option("--cluster", metavar="CLUSTER", help="A cluster by name or TOML file, for its network."),
        click.option(
            "--fabric",
            "fabric_name",
            metavar="KIND|FILE",
            help="Network of --cluster, or a fabric file (default: the paper's 64 ToRs x 32 spines).",
        ),
        click.option("--radix", type=click.IntRange(2, 4096), default=64, show_default=True, help="Ports."),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of hashes, draws and searches."
        ),
    )
    return add_options(options, file_options(command))


def traffic_options(command: Command) -> Command:
    """The fabric, what is down, and whose flows cross it."""
    options = (
        click.option("--jobs", metavar="DIR", multiple=True, help="Job files of the routing paper's code."),
        click.option(
            "--generate",
            metavar="MODEL:RING,...",
            multiple=True,
            help="The paper's workloads made anew (BLOOM, GPT_3, LLaMA2_70B), placed by --seed.",
        ),
        click.option("--flows", metavar="FILE.csv", multiple=True, help="Flows: source,target,bytes,..."),
        click.option("--matrix", metavar="FILE.cm", multiple=True, help="Connection matrix of htsim, SimAI."),
        click.option(
            "--job",
            "planned",
            metavar="'MODEL LAYOUT [FIRST]'",
            multiple=True,
            help="A planned job of --cluster, rank 0 on accelerator FIRST, as 'llama-3.1-8b tp=8,dp=4 0'.",
        ),
        click.option("--failed-spines", type=click.IntRange(0), default=0, metavar="N", help="The last N are down."),
        click.option("--failed", metavar="NODE|A:B", multiple=True, help="A switch or a link that is down, by names."),
    )
    return add_options(options, network_options(command))


def load_source(values: dict[str, Any]) -> tuple[Fabric, JobTraffic]:
    """The fabric with what is down, and all traffic asked for.

    Raises:
        BadInput: no traffic, options that do not go together, or unknown names.
    """
    from weft.routing.traffic import merged

    cluster = _cluster(values)
    if values["planned"] and cluster is None:
        raise BadInput("--job needs a cluster", where="weft route", remedy="add --cluster, as h100-1024")
    whole = _fabric(values, cluster)
    parts = [*_files(values, whole), *planned_jobs(values, whole)]
    if not parts:
        raise BadInput("no traffic is given", where="weft route", remedy=f"add {SOURCES}")
    return failed(whole, values["failed_spines"], values["failed"]), merged(parts)


def load_network(values: dict[str, Any]) -> Fabric:
    """The fabric alone."""
    return _fabric(values, _cluster(values))


def failed(fabric: Fabric, spines: int, names: tuple[str, ...]) -> Fabric:
    """The fabric with its last ``spines`` spines and the named switches and links down.

    Raises:
        BadInput: more spines than there are, or an unknown name.
    """
    import numpy as np

    from weft.simulation.routes.evaluation import with_spines_down

    fabric = with_spines_down(fabric, spines)
    number = {name: node for node, name in enumerate(fabric.names)} if names else {}
    for name in names:
        if name in number:
            fabric = fabric.failed(nodes=np.array([number[name]]))
            continue
        ends = [number.get(end, -1) for end in name.split(":")]
        joined = (fabric.source == ends[0]) & (fabric.target == ends[-1])
        if len(ends) != 2 or not joined.any():
            raise BadInput(
                f"{name!r} is no switch and no link of {fabric.name}",
                where="--failed",
                remedy=f"use names like {fabric.names[-1]}, or two joined nodes as A:B",
            )
        fabric = fabric.failed(links=np.flatnonzero(joined))
    return fabric


def _cluster(values: dict[str, Any]) -> Cluster | None:
    from weft.cluster import resolve

    return None if values["cluster"] is None else resolve(values["cluster"])


def _fabric(values: dict[str, Any], cluster: Cluster | None) -> Fabric:
    from weft.interop.traffic.routing_jobs import paper_fabric

    name = values["fabric_name"]
    if name is not None and is_file(name):
        return load_file(name, values)
    if cluster is not None:
        return load_fabric(name, cluster, values["radix"])
    if name is not None:
        what = f"{name!r} is built for a cluster"
        raise BadInput(what, where="--fabric", remedy="add --cluster, or give a fabric file")
    return paper_fabric()


def _files(values: dict[str, Any], fabric: Fabric) -> list[JobTraffic]:
    from weft.interop.traffic import flow_tables as traffic_files
    from weft.interop.traffic import routing_jobs
    from weft.routing.generate import generate

    found = [routing_jobs.read_jobs(folder, routing_jobs.numbering(fabric)) for folder in values["jobs"]]
    found += [traffic_files.read_csv(path, fabric) for path in values["flows"]]
    found += [traffic_files.read_matrix(path) for path in values["matrix"]]
    if values["generate"]:
        found.append(generate(fabric, asked_jobs(",".join(values["generate"])), seed=values["seed"]))
    return found


def asked_jobs(text: str) -> list[tuple[str, int]]:
    """Models and ring sizes of ``--generate``."""
    jobs = []
    for word in text.split(","):
        name, _, ring = word.strip().partition(":")
        if not (ring.isascii() and ring.isdigit() and len(ring) < 7):
            raise BadInput(f"{word!r} has no ring size", where="--generate", remedy="write BLOOM:4,GPT_3:2")
        jobs.append((name, int(ring)))
    return jobs


def planned_jobs(values: dict[str, Any], fabric: Fabric) -> list[JobTraffic]:
    """The jobs of ``--job``, one after the other on the accelerators where nothing else is said."""
    cluster = _cluster(values)
    from weft.layout.text import parse_layout
    from weft.model import resolve_job
    from weft.simulation.routes.traffic import planned_traffic

    found: list[JobTraffic] = []
    free = 0
    for number, text in enumerate(values["planned"]):
        if cluster is None or not _NUMBERED.fullmatch(text):
            raise BadInput(
                f"{text!r} is no planned job",
                where="--job",
                remedy="write 'llama-3.1-8b tp=8,dp=4 0' and give --cluster",
            )
        words = text.split()
        first = int(words[2]) if len(words) == 3 else free
        layout, name = parse_layout(words[1]).complete(), f"job {number}: {words[0]}"
        found.append(planned_traffic(resolve_job(words[0]), cluster, layout, fabric, first=first, name=name))
        free = first + layout.world
    return found
