"""DeepSpeed: the JSON configuration of a layout, written and read.

Setting names are those of DeepSpeed's documentation of August 2026.  Tensor parallelism is AutoTP's, expert
parallelism AutoEP's, and sharding over z beside copies over ``data`` is MiCS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.cluster.spec import Cluster
from weft.documents import parse_json
from weft.errors import BadInput, Unsupported
from weft.interop.launch import (
    LaunchArguments,
    RunConfiguration,
    common_reasons,
    micro_batches,
    placed_like,
    process_grid,
    refuse,
)
from weft.layout.spec import AXES, ContextMethod, Layout, Recompute, TensorOverlap
from weft.model.job import Job, Precision
from weft.model.settings import Settings, flatten, share_of

TOOL = "DeepSpeed"
WRITTEN_FOR = "Written for the settings that DeepSpeed documents in August 2026."
MICRO, STEPS, BATCH = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
_TYPICAL = (BATCH, MICRO, "zero_optimization")


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """The configuration file, and the ``deepspeed`` command with a training script of the user."""
    refuse(TOOL, [*common_reasons(job, cluster, layout), *_reasons(job, layout), *_combinations(job, layout)])
    hosts, each = process_grid(cluster, layout)
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=json.dumps(_configuration(job, layout), indent=2) + "\n",
        file="planned.json",
        command=f"deepspeed --num_nodes {hosts} --num_gpus {each} train.py --deepspeed_config planned.json",
        notes=tuple(_notes(job, layout)),
    )


def _reasons(job: Job, layout: Layout) -> Iterator[str]:
    if not placed_like(layout, *AXES):
        yield f"it cannot place ranks in the order {'/'.join(layout.order)}"
    if layout.pipeline > 1 and (layout.schedule != "1f1b" or layout.virtual_stages > 1):
        yield "its pipeline has the 1f1b schedule only, without virtual stages"
    if layout.context > 1 and layout.context_method == "ring":
        yield "its sequence parallelism exchanges heads (ulysses), not keys and values (ring)"
    if layout.x > 1 and layout.sequence_parallel:
        yield "AutoTP keeps norms and dropout whole: no sequence_parallel"
    if layout.recompute == "selective" or layout.recompute_layers:
        yield "it recomputes whole layers, all of them"
    if layout.offload_activations and layout.recompute != "full":
        yield "it offloads recomputation checkpoints only (recompute=full)"
    if layout.z > 1 and layout.data > 1 and layout.zero:
        yield "beside z, data replicates the optimizer too (MiCS; use zero=0)"
    if layout.offload_optimizer and not _stage(layout):
        yield "offload_optimizer needs zero of at least 1"
    if job.recipe.precision not in ("fp32", "fp16", "bf16"):
        yield f"it does not train in {job.recipe.precision}"


def _combinations(job: Job, layout: Layout) -> Iterator[str]:
    """Axes that DeepSpeed has, but not together."""
    beside = [name for name in ("x", "context") if getattr(layout, name) > 1]
    if layout.pipeline > 1 and beside:
        yield f"its pipeline does not combine with {' or '.join(beside)} in a configuration"
    elif len(beside) > 1:
        yield "AutoTP (x) does not combine with sequence parallelism (context)"
    if layout.pipeline > 1 and _stage(layout) > 1:
        yield "its pipeline does not combine with zero 2 or z"
    if not any(block.moe for block in job.model.kinds):
        return
    if layout.expert == 1 and layout.expert_tensor != layout.x:
        yield "AutoTP cuts the experts too (expert_tensor = x)"
    if layout.expert > 1 and (layout.x > 1 or layout.pipeline > 1 or layout.expert_tensor > 1):
        yield "AutoEP (expert) does not combine with x, pipeline or expert_tensor"
    if layout.expert > 1 and layout.z > 1 and (layout.data > 1 or layout.context > 1):
        yield "AutoEP with z does not combine with copies over data or with context"


def _stage(layout: Layout) -> int:
    """DeepSpeed's ZeRO stage."""
    return 3 if layout.z > 1 else layout.zero


def _configuration(job: Job, layout: Layout) -> dict[str, Any]:
    recipe = job.recipe
    zero: dict[str, Any] = {"stage": _stage(layout), "overlap_comm": layout.overlap_reduce}
    if layout.z > 1 and layout.data > 1:
        zero["mics_shard_size"] = layout.z
    if layout.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    values: dict[str, Any] = {
        BATCH: recipe.global_batch,
        MICRO: layout.micro_batch,
        STEPS: micro_batches(job, layout),
        "zero_optimization": zero,
    }
    if recipe.precision != "fp32":
        values[recipe.precision] = {"enabled": True}
        values["data_types"] = {"grad_accum_dtype": "fp32" if recipe.gradient_bytes == 4 else recipe.precision}
    if layout.x > 1:
        overlap = layout.overlap_tensor != "none"
        values["tensor_parallel"] = {"autotp_size": layout.x, "tp_overlap_comm": overlap}
    if layout.context > 1:
        values |= {"sequence_parallel_size": layout.context, "data_parallel_size": layout.dp}
    if layout.pipeline > 1:
        values["pipeline"] = {"stages": layout.pipeline, "partition": "uniform"}
    if layout.expert > 1:
        values["expert_parallel"] = {"enabled": True, "autoep_size": layout.expert}
    if layout.recompute == "full":
        values["activation_checkpointing"] = {"cpu_checkpointing": layout.offload_activations}
    return values


def _notes(job: Job, layout: Layout) -> Iterator[str]:
    stage = _stage(layout)
    yield f"the training script sets the sequence length ({job.recipe.sequence}) and the model"
    if layout.pipeline > 1:
        yield f"build the model as PipelineModule(..., num_stages={layout.pipeline})"
    if layout.recompute == "full":
        yield "switch recomputation on in the model (gradient_checkpointing_enable())"
    if layout.z > 1 and layout.data > 1:
        yield "create the model under deepspeed.zero.MiCS_Init"
    if layout.x > 1 and layout.overlap_tensor == "full":
        yield "tensor-parallel collectives overlap in backward only"
    if stage in (1, 2) and layout.overlap_gather:
        yield "updated weights are gathered after the optimizer step, not behind compute"
    if stage == 3 and layout.overlap_gather != layout.overlap_reduce:
        yield "overlap_comm switches gradient reduction and weight gathering together"
    if stage == 0 and layout.overlap_reduce:
        yield "gradients are reduced after backward, not behind it"


def read(text: str, *, where: str = "config.json", world: int | None = None) -> RunConfiguration:
    """What a configuration file runs; defaults are DeepSpeed's.

    ``world`` counts accelerators; without it, the batch sizes must give the number of data-parallel ranks.

    Raises:
        Unsupported: a ZeRO setting that is not modelled.
    """
    tables = parse_json(text, where, remedy="correct the file")
    if not isinstance(tables, dict):
        raise BadInput("a DeepSpeed configuration is an object", where=where, remedy="give the run's JSON file")
    if not any(name in tables for name in _TYPICAL):
        raise BadInput(
            "not a DeepSpeed configuration: it has no batch size and no zero_optimization",
            where=where,
            remedy="give the file that the run passes as --deepspeed_config",
        )
    s = Settings(data=flatten(tables), where=where)
    degrees = {
        "tensor": max(s.integer("tensor_parallel.autotp_size", default=1, least=0), 1),
        "pipeline": s.count("pipeline.stages"),
        "sequence": s.count("sequence_parallel_size"),
    }
    ranks = share_of(world, degrees, where=where) if world is not None else _ranks(s)
    micro, batch = _batches(s, ranks)
    layout = _layout(s, degrees, ranks, micro)
    notes = ["DeepSpeed's configuration states neither the model nor the sequence length"]
    names = (MICRO, STEPS, BATCH, "bf16.enabled", "fp16.enabled")
    if left := [name for name in names if not s.has(name) and name in s.data]:  # as Hugging Face's trainer has it
        notes.append(f"left to the training script (auto): {', '.join(left)}")
    told = "full, from activation_checkpointing" if layout.recompute == "full" else "none"
    notes.append(f"recomputation {told} (the model decides)")
    return RunConfiguration(
        tool=TOOL,
        layout=layout,
        world=layout.world,
        global_batch=batch,
        precision=_precision(s),
        gradient_bytes={"fp32": 4, "fp16": 2, "bf16": 2}.get(s.word("data_types.grad_accum_dtype", "")),
        problem="DeepSpeed's configuration does not state the model",
        ignored=s.ignored,
        notes=tuple(notes),
    )


def _ranks(s: Settings) -> int:
    """Data-parallel ranks from the batch sizes."""
    if not all(map(s.has, (BATCH, MICRO, STEPS))):  # DeepSpeed derives the steps from the ranks
        raise BadInput(
            "the number of accelerators is not in it", where=s.where, remedy="give it, or all three batch settings"
        )
    return _share_of_batch(s, {name: s.count(name) for name in (MICRO, STEPS)})


def _batches(s: Settings, ranks: int) -> tuple[int, int]:
    """Micro-batch and global batch; the one that is missing follows from the other."""
    if not s.has(BATCH):
        micro = s.count(MICRO)
        return micro, micro * s.count(STEPS) * ranks
    stated = MICRO if s.has(MICRO) else STEPS
    batches = _share_of_batch(s, {stated: s.count(stated), "data-parallel ranks": ranks})
    return s.count(MICRO) if stated == MICRO else batches, s.count(BATCH)


def _share_of_batch(s: Settings, degrees: dict[str, int]) -> int:
    return share_of(s.count(BATCH), degrees, where=f"{s.where}: {BATCH}", unit="sequences")


def _layout(s: Settings, degrees: dict[str, int], ranks: int, micro: int) -> Layout:
    stage = s.integer("zero_optimization.stage", default=0, least=0, most=3)
    if s.count("zero_optimization.zero_hpz_partition_size") > 1:
        raise Unsupported(
            "a second copy of the weights within a host (hpZ) is not modelled",
            where=f"{s.where}: zero_optimization.zero_hpz_partition_size",
            remedy="estimate it as mics_shard_size, or without",
        )
    z = 1
    if stage == 3:  # the weights are shared by all data-parallel ranks, or by MiCS's groups
        size = s.integer("zero_optimization.mics_shard_size", default=-1, least=-1)
        z = size if size > 0 else ranks
        if ranks % z:
            problem = f"groups of {z} do not divide {ranks} data-parallel ranks"
            raise s.bad("zero_optimization.mics_shard_size", problem)
    overlap = s.flag("zero_optimization.overlap_comm", stage == 3)
    expert = s.count("expert_parallel.autoep_size") if s.flag("expert_parallel.enabled") else 1
    recompute = any(name.startswith("activation_checkpointing.") for name in s.data)
    x, context = degrees["tensor"], degrees["sequence"]
    overlaps_tensor = x > 1 and s.flag("tensor_parallel.tp_overlap_comm")
    return Layout(
        x=x,
        z=z,
        data=ranks // z,
        zero=0 if stage == 3 else stage,
        pipeline=degrees["pipeline"],
        context=context,
        context_method=ContextMethod.ULYSSES if context > 1 else ContextMethod.RING,
        expert=expert,
        micro_batch=micro,
        recompute=Recompute.FULL if recompute else Recompute.NONE,
        overlap_tensor=TensorOverlap.BACKWARD if overlaps_tensor else TensorOverlap.NONE,
        overlap_reduce=overlap and stage > 0,
        overlap_gather=overlap and stage == 3,
        offload_optimizer=s.word("zero_optimization.offload_optimizer.device", "none") in ("cpu", "nvme"),
        offload_activations=recompute and s.flag("activation_checkpointing.cpu_checkpointing"),
    )


def _precision(s: Settings) -> Precision | None:
    """None where the training script decides."""
    if s.flag("bf16.enabled") or s.flag("bfloat16.enabled"):
        return "bf16"
    if s.flag("fp16.enabled"):
        return "fp16"
    return None if "auto" in (s.data.get("bf16.enabled"), s.data.get("fp16.enabled")) else "fp32"
