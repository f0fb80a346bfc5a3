"""SLURM: batch scripts that start one task a rank: ``weft train`` of a layout, or a job on arranged hosts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.interop.launch import LaunchArguments, process_grid, refuse
from weft.interop.slurm_topology import compress
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
