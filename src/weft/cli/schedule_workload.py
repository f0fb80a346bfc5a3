"""``weft schedule --workload``: whole iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.options import constants, deliver, recipe_changes
from weft.cli.outcome import show
from weft.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.cluster import Cluster
    from weft.collectives.schedules.timing import Active
    from weft.fabric.dimension import Dimension
    from weft.model.workload import Workload

RECIPE = ("batch", "sequence", "precision", "attention", "calibration")
ONLY_COLLECTIVE = ("independent", "late", "slow", "fabric", "export", "chart", "compare")


def run(
    dimensions: Sequence[Dimension],
    cluster: Cluster | None,
    notes: tuple[str, ...],
    active: Active,
    values: dict[str, Any],
) -> None:
    """Print one iteration of ``--workload`` under every policy."""
    given = [f"--{name}" for name in ONLY_COLLECTIVE if values[name]]
    if given:
        raise BadInput(f"{', '.join(given)} goes with one collective", where="--workload", remedy="drop it")
    from weft.collectives.dimensions import parse_algorithms
    from weft.collectives.schedules.chunks import check_accelerators
    from weft.report.tables.workload import workload_table, workload_to_json, write_workload_timeline
    from weft.simulation.workload.run import run_policies

    check_accelerators(dimensions, values["npus"])
    algorithms = None if values["algorithms"] is None else parse_algorithms(values["algorithms"])
    workload = _workload(dimensions, cluster, values)
    runs = run_policies(
        workload,
        dimensions,
        order=values["order"],
        chunks=64 if values["chunks"] is None else values["chunks"],
        active=active,
        algorithms=algorithms,
    )
    if values["form"] == "json":
        deliver(workload_to_json(runs, dimensions, notes), values["output"])
    else:
        show(lambda screen: workload_table(runs, dimensions, notes, screen), values["output"])
    if values["timeline"] is not None:
        chosen = "baseline" if values["policy"] == "blueconnect" else values["policy"]
        write_workload_timeline(values["timeline"], runs[chosen])


def _workload(dimensions: Sequence[Dimension], cluster: Cluster | None, values: dict[str, Any]) -> Workload:
    name = values["workload"]
    if values["groups"] is not None and not name.endswith(".et"):
        raise BadInput("goes with a Chakra trace", where="--groups", remedy="drop it")
    recipe = [option for option in RECIPE if values[option] is not None]
    if recipe and values["layout"] is None:
        raise BadInput("goes with a planned job", where=f"--{recipe[0]}", remedy="add --layout, or drop it")
    if values["layout"] is not None:
        return _job(name, cluster, values)
    path = Path(name)
    if path.suffix == ".et":
        from weft.interop.traces.chakra import read_groups, read_trace

        peak_flops, memory_Bps = _roofline(cluster, values)
        return read_trace(
            path,
            sizes=[one.size for one in dimensions],
            peak_flops=peak_flops,
            memory_Bps=memory_Bps,
            groups=None if values["groups"] is None else read_groups(values["groups"]),
        )
    if path.name.endswith((".json", ".json.gz")):
        from weft.interop.traces.torch_traces import read_torch_trace

        return read_torch_trace(path)
    from weft.model import names
    from weft.model.workloads import workload

    if name in names() or path.exists():
        remedy = "add --layout and --cluster, or give a trace (.et, .json, .json.gz)"
        raise BadInput(f"{name} is a model or a file", where="--workload", remedy=remedy)
    return workload(name)


def _roofline(cluster: Cluster | None, values: dict[str, Any]) -> tuple[float | None, float | None]:
    """FLOP/s and bytes/s of computations that a trace gives as work: of ``--system``, or the cluster's."""
    if values["system"] is not None:
        from weft.interop.simulators.astra_system import read_system

        system = read_system(values["system"])
        return system.peak_flops, system.local_memory_Bps
    if cluster is None:
        return None, None
    return cluster.accelerator.bf16_flops or cluster.accelerator.fp16_flops, cluster.accelerator.memory_Bps


def _job(name: str, cluster: Cluster | None, values: dict[str, Any]) -> Workload:
    from weft.layout.text import parse_layout
    from weft.model import resolve_job
    from weft.simulation.workload.planned import job_workload

    if cluster is None:
        raise BadInput("a planned job needs --cluster", where="--layout")
    job = resolve_job(name, recipe_changes(values))
    layout = parse_layout(values["layout"]).complete(cluster.count)
    return job_workload(job, cluster, layout, constants=constants(values["calibration"], cluster))
