"""SLURM: a batch script that trains a layout with ``weft train``, one task a rank."""

from __future__ import annotations

import re
import shlex

from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.interop.launch import LaunchArguments, process_grid, refuse
from weft.launched import PORT
from weft.layout.check import PRECISIONS, check_trainable
from weft.layout.spec import Layout
from weft.layout.text import format_layout
from weft.model.catalogue import names
from weft.model.job import Job

TOOL = "weft train"
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
srun --kill-on-bad-exit=1 weft train {command}
"""


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
    command = {
        "--layout": format_layout(layout),
        "--batch": str(recipe.global_batch),
        "--sequence": str(recipe.sequence),
        "--precision": recipe.precision,
        "--device": "cuda",
        "--out": "run",
        "--save-every": "100",
        "--steps": "1000",
    }
    words = [shlex.quote(model), *(f"{flag} {shlex.quote(value)}" for flag, value in command.items())]
    known = [] if model in names() else [f"replace {model} by the path of the model's config.json"]
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=_SCRIPT.format(
            written_for=WRITTEN_FOR,
            name=re.sub(r"[^\w.-]", "-", f"weft-{model}"),
            hosts=hosts,
            each=each,
            port=PORT,
            command=" \\\n  ".join([*words, '"$@"']),
        ),
        file="train.slurm",
        command="sbatch train.slurm",
        notes=(
            *known,
            "what follows the script goes to weft train: --data FILE, --resume to go on",
            "add what the site asks for: --time, --partition, --account",
        ),
    )
