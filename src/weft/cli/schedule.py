"""``weft schedule``: a collective over the dimensions of a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import schedule_workload
from weft.cli.options import check_chart, check_folder, deliver, deliver_chart, load_fabric, recipe_options
from weft.cli.outcome import show
from weft.cli.schedule_export import FORMATS, exported, write_chakra
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.collectives.schedules.chunks import Request
    from weft.collectives.schedules.timing import Active, Timed
    from weft.fabric.dimension import Dimension
    from weft.fabric.spec import Floats

USAGE = "weft schedule all-reduce 1GiB --dims switch:16:150GiB/s:1ns,switch:64:100GiB/s:1ns"
POLICIES = ("baseline", "blueconnect", "themis", "weft")
ORDERS = ("fifo", "scf", "astra-fifo", "astra-scf")
EXPORTED_CHUNKS = 4
"""Where nobody says how many: MSCCL's executors take few steps a rank."""
ROUTINGS = ("ecmp", "spray", "random")


@click.command()
@click.argument("names", nargs=-1, metavar="COLLECTIVE SIZE")
@click.option("--cluster", metavar="CLUSTER", help="A cluster by name, or its TOML file.")
@click.option(
    "--dims",
    metavar="KIND:SIZE:BANDWIDTH:LATENCY,...",
    help="Dimensions, inner to outer: ring, line, fully-connected or switch (add :reduce where it can);"
    " bandwidth of all of an accelerator's links there, per direction (of a ring both neighbours');"
    " latency of one step.",
)
@click.option("--network", metavar="FILE", help="Dimensions of an ASTRA-sim network.yml.")
@click.option("--npus", type=int, metavar="N", help="Accelerators that the dimensions must make.")
@click.option("--algorithms", metavar="A,A,...", help="Algorithm of each dimension (- for the usual one).")
@click.option("--system", metavar="FILE", help="Algorithms, chunks and policy of an ASTRA-sim system file.")
@click.option("--policy", type=click.Choice(POLICIES), help="Scheduler (default weft, or that of --system).")
@click.option("--order", type=click.Choice(ORDERS), help="Order within a dimension (themis: scf).")
@click.option("--chunks", type=int, metavar="N", help="Chunks (64; weft chooses).")
@click.option("--active", metavar="N|overlap", help="Chunks that a dimension works on at a time.")
@click.option("--independent", is_flag=True, help="weft: all-gather orders need not mirror reduce-scatter's.")
@click.option("--compare", is_flag=True, help="Every policy in one table, with bound and ideal.")
@click.option("--late", metavar="RANK:TIME,...", help="Ranks that begin later, as 17:50us.")
@click.option("--slow", metavar="RANK:DIM:SHARE,...", help="Slow links, as 17:2:0.5 (rank, dimension).")
@click.option("--fabric", metavar="KIND|FILE", help="Let the stages contend on a network.")
@click.option("--radix", type=click.IntRange(2, 4096), default=64, show_default=True, help="Switch ports.")
@click.option("--routing", type=click.Choice(ROUTINGS), default="ecmp", show_default=True, help="Of --fabric.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of hashed and random paths.")
@click.option("--workload", metavar="NAME|FILE", help="A whole iteration instead: see above.")
@click.option("--groups", metavar="FILE", help="Process groups of a Chakra trace, as ASTRA-sim takes them.")
@click.option("--layout", metavar="TEXT", help="Layout of a planned job, with --workload MODEL --cluster.")
@click.option("--calibration", metavar="FILE", help="TOML file of constants for this machine.")
@click.option("--export", type=click.Choice(FORMATS), help="Print in a format instead (chakra: -o PREFIX).")
@click.option("--timeline", metavar="FILE", help="Also write a timeline for ui.perfetto.dev.")
@click.option("--chart", metavar="FILE", help="Also draw how busy the dimensions are (.svg, .png, .html).")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output."
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
@recipe_options
def schedule(names: tuple[str, ...], **values: Any) -> None:
    """Schedule COLLECTIVE of SIZE bytes over every dimension of a network.

    COLLECTIVE is all-reduce, reduce-scatter, all-gather, all-to-all, broadcast or reduce; SIZE is the full
    buffer (reduced, gathered, before scattering), as 1GiB.

    With --workload a whole iteration instead, under every policy: resnet-152, gnmt, dlrm or transformer-1t
    (Themis' four), a Chakra trace (.et), a PyTorch profile or execution trace (.json, .json.gz), or MODEL
    with --layout and --cluster.
    """
    check_chart(values["chart"])
    _check_together(values)
    values = _with_system(names[0] if names else "", values)
    if values["workload"] is not None:
        if names:
            raise BadInput(f"{' '.join(names)} beside --workload", where="schedule", remedy="drop one of them")
        dimensions, cluster, notes = _dimensions(values)
        schedule_workload.run(dimensions, cluster, notes, _active(values["active"]), values)
        return
    if len(names) != 2:
        problem = f"a collective and a size are needed, not {len(names)} words"
        raise BadInput(problem, where="schedule", remedy=USAGE)
    from weft.collectives.schedules.bound import best_shares, ideal_s
    from weft.collectives.schedules.provision import provision
    from weft.report.tables.collective import Outcome, schedule_table, schedule_to_json

    asked, cluster, assumptions = _request(names, values)
    timed = _timed(asked, values)
    if values["export"] is not None:
        _export(timed, cluster, values)
        _extras(timed, values)
        return
    others = _others(asked, timed, values) if values["compare"] else None
    outcome = Outcome(
        timed=timed,
        shares=best_shares(asked),
        ideal_s=ideal_s(asked),
        provision=provision(asked),
        assumptions=assumptions,
        ranks=_per_rank(timed, cluster, values),
        others=others,
    )
    if values["form"] == "json":
        deliver(schedule_to_json(outcome), values["output"])
    else:
        show(lambda screen: schedule_table(outcome, screen), values["output"])
    _extras(timed, values)


def _with_system(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The options, those that were not given as ``--system`` has them."""
    settings: dict[str, Any] = {"policy": "weft"}
    if values["system"] is not None:
        from weft.interop.simulators.astra_system import read_system

        system = read_system(values["system"])
        settings = {"policy": system.policy, "chunks": system.chunks, "active": str(system.active)}
        if (values["policy"] or system.policy) == "themis":
            settings["order"] = system.order
        if kind in system.algorithms:
            settings["algorithms"] = ",".join(system.algorithms[kind])
    if values["export"] in ("msccl", "mscclpp"):
        settings.setdefault("chunks", EXPORTED_CHUNKS)
    return {name: settings.get(name) if value is None else value for name, value in values.items()}


def _others(asked: Request, timed: Timed, values: dict[str, Any]) -> dict[str, Timed]:
    """Every policy on the machine that the schedule was made for."""
    from weft.collectives.schedules.policies import compare

    return compare(asked, chunks=values["chunks"], active=timed.active, independent=values["independent"])


def _request(names: tuple[str, ...], values: dict[str, Any]) -> tuple[Request, Cluster | None, tuple[str, ...]]:
    from weft.collectives.schedules.chunks import request
    from weft.collectives.stages import BALANCED_KINDS
    from weft.units import parse_bytes

    dimensions, cluster, notes = _dimensions(values)
    algorithms = _algorithms(values["algorithms"])
    size = parse_bytes(names[1], "size")
    if values["export"] in ("msccl", "mscclpp") and algorithms is None:
        dimensions = tuple(replace(one, reduces=False) for one in dimensions)
    asked = request(names[0], size, dimensions, algorithms=algorithms, accelerators=values["npus"])
    if values["policy"] == "themis" and asked.kind not in BALANCED_KINDS:
        notes = (*notes, f"Themis leaves {asked.kind} to the baseline")
    return asked, cluster, notes


def _dimensions(values: dict[str, Any]) -> tuple[tuple[Dimension, ...], Cluster | None, tuple[str, ...]]:
    given = [name for name in ("cluster", "dims", "network") if values[name] is not None]
    if len(given) != 1:
        problem = "give one of --cluster, --dims and --network"
        raise BadInput(problem, where="schedule", remedy=USAGE)
    if values["cluster"] is not None:
        from weft.cluster import resolve
        from weft.collectives.dimensions import dimensions_of

        cluster = resolve(values["cluster"])
        return dimensions_of(cluster)[0], cluster, dimensions_of(cluster)[1]
    if values["network"] is not None:
        from weft.interop.simulators.astra_network import read_network

        return read_network(values["network"]), None, ()
    from weft.collectives.dimensions import parse_dimensions

    return parse_dimensions(values["dims"]), None, ()


def _algorithms(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    from weft.collectives.dimensions import parse_algorithms

    return parse_algorithms(text)


def _timed(asked: Request, values: dict[str, Any]) -> Timed:
    from weft.collectives.schedules.policies import schedule as scheduled

    return scheduled(
        asked,
        values["policy"],
        order=values["order"],
        chunks=values["chunks"],
        active=_active(values["active"]),
        independent=values["independent"],
    )


def _active(text: str | None) -> Active:
    if text is None or text == "auto":
        return "auto"
    if text == "overlap":
        return None
    if not text.isdecimal():
        raise BadInput(f"{text[:40]!r} is no number", where="--active", remedy="give 1, 2, ... or overlap")
    return min(int(text[:40]), 10**9)


def _per_rank(timed: Timed, cluster: Cluster | None, values: dict[str, Any]) -> Any:
    if values["late"] is None and values["slow"] is None and values["fabric"] is None:
        return None
    from weft.collectives.dimensions import parse_late, parse_slow
    from weft.collectives.schedules.per_rank import play_ranks

    asked = timed.schedule.request
    speeds = _rates(timed, cluster, values)
    if values["slow"] is not None:
        for rank, dimension, share in parse_slow(values["slow"], asked):
            speeds[dimension, rank] *= share
    starts = None if values["late"] is None else parse_late(values["late"], asked)
    return play_ranks(timed, start_s=starts, bandwidth_Bps=speeds)


def _rates(timed: Timed, cluster: Cluster | None, values: dict[str, Any]) -> Floats:
    from weft.collectives.schedules.per_rank import rank_bandwidths

    if values["fabric"] is None:
        return rank_bandwidths(timed)
    from weft.simulation.workload.dimension_rates import dimension_rates

    is_file = Path(values["fabric"]).suffix or Path(values["fabric"]).exists()
    if cluster is None and not is_file:
        raise BadInput("a kind of network needs --cluster", where="--fabric", remedy="or give a fabric file")
    fabric = load_fabric(values["fabric"], cluster, values["radix"])  # type: ignore[arg-type]
    return dimension_rates(timed.schedule.request, fabric, routing=values["routing"], seed=values["seed"])


def _check_together(values: dict[str, Any]) -> None:
    """Refuse options that would say nothing.

    Raises:
        BadInput: one would.
    """
    if values["export"] is not None:
        beside = [name for name in ("compare", "late", "slow", "fabric") if values[name]]
        if beside or values["form"] == "json":
            shown = f"--{beside[0]}" if beside else "--format json"
            raise BadInput("says nothing beside --export", where=shown, remedy="drop one of them")
    if values["workload"] is None:
        for name in ("layout", "groups", "calibration", "batch", "sequence", "precision", "attention"):
            if values[name] is not None and (name, values["export"]) != ("calibration", "nccl-tuner"):
                raise BadInput("goes with --workload", where=f"--{name}", remedy="add --workload, or drop it")
    if values["independent"] and values["policy"] not in (None, "weft"):
        raise BadInput("goes with --policy weft", where="--independent", remedy="drop one of them")
    check_folder(values["timeline"], "--timeline")


def _export(timed: Timed, cluster: Cluster | None, values: dict[str, Any]) -> None:
    if values["export"] != "chakra":
        deliver(exported(timed, cluster, values), values["output"])
        return
    if values["output"] is None:
        raise BadInput("writes a file a rank", where="--export chakra", remedy="give their prefix with -o")
    click.echo(f"{write_chakra(timed, values['output']):,} traces: {values['output']}.<rank>.et", err=True)


def _extras(timed: Timed, values: dict[str, Any]) -> None:
    if values["timeline"] is not None:
        from weft.report.pictures.activity import write_schedule_timeline

        write_schedule_timeline(values["timeline"], timed)
    if values["chart"] is not None:
        from weft.report.pictures.activity import activity_chart

        deliver_chart(activity_chart(timed), values["chart"])
