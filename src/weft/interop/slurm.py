"""SLURM: batch scripts that start one task a rank, of a layout or on arranged hosts; and jobs and nodes, read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.cluster.spec import Cluster
from weft.documents import parse_json
from weft.errors import BadInput
from weft.interop.launch import LaunchArguments, process_grid, refuse
from weft.interop.slurm_topology import MOST_NAMES, compress, expand
from weft.launched import PORT
from weft.layout.check import PRECISIONS, check_trainable
from weft.layout.spec import Layout
from weft.layout.text import format_layout
from weft.model.catalogue import names
from weft.model.job import Job

TOOL = "weft train"
NODE = re.compile(r"[\w.-]+")
"""Names that nodes of SLURM may have."""
WRITTEN_FOR = "Written for SLURM 20.11 and later, and this version of Weft."
_SCRIPT = """\
#!/bin/bash
# {written_for}
#SBATCH --job-name={name}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node={each}
#SBATCH --gpus-per-node={each}
#SBATCH --exclusive
#SBATCH --output=%x-%j.out
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${{hosts[0]}}" MASTER_PORT="${{MASTER_PORT:-{port}}}"
srun --kill-on-bad-exit=1 {command}
"""
_ARRANGED = """\
#!/bin/bash
# {written_for}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --nodelist={nodelist}
#SBATCH --ntasks={ranks}
#SBATCH --gpus-per-node={each}
#SBATCH --exclusive
#SBATCH --output=%x-%j.out
set -euo pipefail
export SLURM_HOSTFILE={hostfile}
{settings}export MASTER_ADDR={first} MASTER_PORT="${{MASTER_PORT:-{port}}}"
srun --kill-on-bad-exit=1 --distribution=arbitrary --nodes={nodes} --ntasks={ranks} {command}
"""
_PROGRAM = """\
bash -c \\
  'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$@"' rank "$@\""""
"""What follows the script, with the variables of torchrun."""


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """A script for ``sbatch``; time, partition and account are the site's."""
    reasons = []
    try:
        check_trainable(job, layout)
    except BadInput as error:
        reasons.append(str(error))
    if job.recipe.precision not in PRECISIONS:
        reasons.append(f"it trains in {', '.join(PRECISIONS)}, not in {job.recipe.precision}")
    if layout.world > cluster.count:
        reasons.append(f"it needs {layout.world} accelerators of {cluster.count}")
    refuse(TOOL, reasons)
    hosts, each = process_grid(cluster, layout)
    recipe, model = job.recipe, job.model.name
    options = {
        "--layout": format_layout(layout),
        "--batch": str(recipe.global_batch),
        "--sequence": str(recipe.sequence),
        "--precision": recipe.precision,
    }
    known = [] if model in names() else [f"replace {model} by the path of the model's config.json"]
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=_SCRIPT.format(
            written_for=WRITTEN_FOR,
            name=_job_name(f"weft-{model}"),
            hosts=hosts,
            each=each,
            port=PORT,
            command=training(shlex.quote(model), options),
        ),
        file="train.slurm",
        command="sbatch train.slurm",
        notes=(
            *known,
            "what follows the script goes to weft train: --data FILE, --resume to go on",
            "add what the site asks for: --time, --partition, --account",
        ),
    )


def training(job: str, options: Mapping[str, str], out: str = "run") -> str:
    """The words of ``weft train`` for a job; what follows the script goes to it, too."""
    options = {**options, "--device": "cuda", "--out": out, "--save-every": "100", "--steps": "1000"}
    words = [f"{flag} {shlex.quote(value)}" for flag, value in options.items()]
    return " \\\n  ".join([f"weft train {job}".rstrip(), *words, '"$@"'])


def arranged(
    name: str, hosts: Sequence[str], each: int, settings: Mapping[str, str], hostfile: str, command: str = _PROGRAM
) -> str:
    """A script that starts a command for each rank, on the host that an arrangement gives it.

    Args:
        hosts: of each rank.
        each: accelerators of a host.
        settings: variables of the ranks.
        hostfile: path of ``hosts``, one a line.
        command: words of a shell; by default those that follow the script, with the variables of torchrun.

    Raises:
        BadInput: a host has a name that no node of SLURM has.
    """
    nodes = list(dict.fromkeys(hosts))
    if wrong := [node for node in nodes if not NODE.fullmatch(node)]:
        raise BadInput(f"{wrong[0]!r} is not a name for hosts", where=name, remedy="rename it in the site")
    return _ARRANGED.format(
        written_for=WRITTEN_FOR,
        name=_job_name(name),
        nodes=len(nodes),
        nodelist=compress(sorted(nodes)),
        ranks=len(hosts),
        each=each,
        hostfile=shlex.quote(hostfile),
        settings="".join(f"export {key}={shlex.quote(value)}\n" for key, value in settings.items()),
        first=hosts[0],
        port=PORT,
        command=command,
    )


def _job_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)


# The queue and the nodes, read ---------------------------------------------------------------------------------
# SLURM's jobs and nodes as JSON: of `squeue` or `scontrol show job`, of `sinfo` or `scontrol show node`.
#
# From 22.05 on, versions differ: a state is a word, a word beside flags, or a list of words; a number is plain, or a
# table that says whether it is set; `sinfo` has a list of nodes, or of rows with several nodes each.

_WRITE = "write it with squeue --json, or sinfo --json"
_RUNS = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "STOPPED", "SIGNALING"})
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
_OUT = frozenset(
    {"DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVALID", "DRAIN", "FAIL", "NOT_RESPONDING", "MAINT", "MAINTENANCE"}
)
"""States of nodes that start no jobs."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job on ``nodes``, or one that waits (none) for ``count`` of them, 0 where SLURM does not say."""

    name: str
    number: int
    nodes: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs that run or wait, and whether each node may start jobs."""

    jobs: tuple[QueuedJob, ...]
    nodes: Mapping[str, bool]


def read_queue(text: str, *, where: str = "SLURM") -> Queue:
    """The jobs or the nodes of a document.

    Raises:
        BadInput: it is of another command, or a job or node lacks a name or a state.
    """
    document = parse_json(text, where, remedy=_WRITE)
    tables: dict[str, list[Any]] = {}
    if isinstance(document, dict):
        tables = {name: rows for name, rows in document.items() if isinstance(rows, list)}
    kind = next((name for name in ("jobs", "nodes", "sinfo") if name in tables), None)
    if kind is None:
        raise BadInput("has neither jobs nor nodes of SLURM", where=where, remedy=_WRITE)
    rows = [(row, f"{where}: {kind}[{number}]") for number, row in enumerate(tables[kind])]
    for row, place in rows:
        if not isinstance(row, dict):
            raise BadInput("is not a table", where=place, remedy=_WRITE)
    if kind == "jobs":
        jobs = (_job(row, place) for row, place in rows)
        return Queue(tuple(job for job in jobs if job is not None), {})
    nodes: dict[str, bool] = {}
    for row, place in rows:
        names, up = _nodes(row, place)
        nodes |= {name: up and nodes.get(name, True) for name in names}
    return Queue((), nodes)


def _job(row: Mapping[str, Any], place: str) -> QueuedJob | None:
    """A job that runs or waits; None where it has ended."""
    states, name, number = _states(row.get("job_state"), f"{place}: job_state"), row.get("name"), row.get("job_id")
    if not isinstance(name, str) or not isinstance(number, int):
        raise BadInput("has no name and number", where=place, remedy=_WRITE)
    if states & _WAITS:
        return QueuedJob(name, number, (), _count(row.get("node_count")))
    if not states & _RUNS:
        return None
    nodes = tuple(_expanded(row.get("nodes"), f"{place}: nodes"))
    return QueuedJob(name, number, nodes, len(nodes))


def _nodes(row: Mapping[str, Any], place: str) -> tuple[list[str], bool]:
    """The nodes of a row, and whether they may start jobs."""
    name, state, flags = row.get("name"), row.get("state"), row.get("state_flags", [])
    if name is None:  # sinfo since 23.02
        listed, node = row.get("nodes"), row.get("node")
        name = listed.get("nodes") if isinstance(listed, dict) else None
        state = node.get("state") if isinstance(node, dict) else None
        if name == []:  # a partition without nodes
            return [], False
        if isinstance(name, list):
            name = ",".join(item for item in name if isinstance(item, str))
    states = _states(state, f"{place}: state") | _states(flags, f"{place}: state_flags", least=0)
    return _expanded(name, f"{place}: name"), not states & _OUT


def _expanded(hostlist: object, place: str) -> list[str]:
    if not isinstance(hostlist, str) or not hostlist:
        raise BadInput("names no nodes", where=place, remedy=_WRITE)
    return expand(hostlist, where=place, most=MOST_NAMES)


def _states(value: object, place: str, *, least: int = 1) -> frozenset[str]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) < least or not all(isinstance(word, str) for word in words):
        raise BadInput("is not a state of SLURM's", where=place, remedy=_WRITE)
    return frozenset(word.upper() for word in words)


def _count(value: object) -> int:
    """A number, plain or as a table; 0 where it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") is True else 0
    return value if isinstance(value, int) and 0 < value <= MOST_NAMES else 0
