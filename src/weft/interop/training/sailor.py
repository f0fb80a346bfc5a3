"""Sailor (SOSP '25, eth-easl/sailor): a layout as a plan of its simulator and controller.

The form is that of ``simulations/validation/*/plan_config_*.json`` in its repository: layers are numbered with the
embedding first and the head last; every replica of a stage names its accelerators and their tensor parallelism.
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

from weft.cluster.spec import Accelerator, Cluster
from weft.interop.training.launchers import LaunchArguments, NotExpressible, common_reasons
from weft.layout.spec import Layout
from weft.layout.stages import held_chunks
from weft.model.job import Job

TOOL = "sailor"
WRITTEN_FOR = "Written for Sailor of August 2025 (commit cf2c8e3)."
ZONE = "us-central1-a"
"""Sailor's plans name a cloud's zone; Weft knows none."""
FILE = "plan.json"


def launch_arguments(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments | NotExpressible:
    """The plan of a layout whose ranks are tensor, data and pipeline parallel."""
    reasons = common_reasons(job, cluster, layout) + _reasons(job, layout)
    if reasons:
        return NotExpressible(tool=TOOL, reasons=tuple(reasons))
    gpu = _gpu(cluster.accelerator)
    replica = [[[gpu, layout.x, ZONE]], layout.x]
    document = {
        "zone": ZONE,
        "pipeline_list": [
            {
                "num_stages": layout.pipeline,
                "layers_per_stage": _layers(job, layout),
                "tmp_per_stage": [[replica] * layout.data] * layout.pipeline,
                "dp": [layout.data] * layout.pipeline,
            }
        ],
        "mbs": layout.micro_batch,
        "gbs": job.recipe.global_batch,
        "used_gpus": {gpu: layout.world},
    }
    notes = (
        f"zone {ZONE} and GPU {gpu} are names that Sailor's profiles must have; change them where they differ",
        "a plan holds degrees, layers and micro-batch; ZeRO, recomputation and sequence parallelism are set elsewhere",
    )
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=json.dumps(document, indent=1) + "\n",
        file=FILE,
        command=f"python sailor/Planner/simulations/runtime_simulator.py  # on {FILE}",
        notes=notes,
    )


def _reasons(job: Job, layout: Layout) -> list[str]:
    found = [
        f"{name} is {getattr(layout, axis)}: its plans have tensor, data and pipeline parallelism"
        for axis, name in (("z", "fsdp"), ("context", "cp"), ("expert", "ep"), ("expert_tensor", "etp"))
        if getattr(layout, axis) > 1
    ]
    if layout.virtual_stages > 1 or layout.schedule != "1f1b":
        found.append("its pipelines are plain 1F1B")
    if job.model.prediction_layers:
        found.append("its models predict one token")
    return found


def _layers(job: Job, layout: Layout) -> list[list[int]]:
    """Numbers of each stage's layers: the embedding is 0, the head the last."""
    counts = [int(sum(chunk.counts)) for chunk in held_chunks(job.model, layout)]
    return [list(range(first, end)) for first, end in pairwise(accumulate(counts, initial=0))]


def _gpu(chip: Accelerator) -> str:
    """Sailor's names are those of GPUs with their memory: A100-40, V100-16, GH-96."""
    family = chip.name.split("-")[0].upper().replace("GH200", "GH")
    return f"{family}-{round(chip.memory_bytes / 2**30 / 8) * 8}"
