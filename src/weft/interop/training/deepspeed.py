"""DeepSpeed: the JSON configuration of a layout, written and read.

Setting names are those of DeepSpeed's documentation of August 2026.  Tensor parallelism is AutoTP's, expert
parallelism AutoEP's, and sharding over z beside copies over ``data`` is MiCS.
"""

from __future__ import annotations

import json
from typing import Any

from weft.cluster.spec import Cluster
from weft.documents import parse_json
from weft.errors import BadInput, Unsupported
from weft.interop.text.settings import Settings, flatten, share_of
from weft.interop.training.launchers import (
    LaunchArguments,
    NotExpressible,
    RunConfiguration,
    common_reasons,
    micro_batches,
    placed_like,
    process_grid,
)
from weft.layout.spec import AXES, ContextMethod, Layout, Recompute, TensorOverlap
from weft.model.job import Job, Precision

TOOL = "DeepSpeed"
WRITTEN_FOR = "Written for the settings that DeepSpeed documents in August 2026."


def launch_arguments(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments | NotExpressible:
    """The configuration file, and the ``deepspeed`` command with a training script of the user."""
    reasons = common_reasons(job, cluster, layout) + _reasons(job, layout) + _combinations(job, layout)
    if reasons:
        return NotExpressible(tool=TOOL, reasons=tuple(reasons))
    hosts, each = process_grid(cluster, layout)
    command = f"deepspeed --num_nodes {hosts} --num_gpus {each} train.py --deepspeed_config planned.json"
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=json.dumps(_configuration(job, layout), indent=2) + "\n",
        file="planned.json",
        command=command,
        notes=tuple(_notes(job, layout)),
    )


def _reasons(job: Job, layout: Layout) -> list[str]:
    found = []
    if not placed_like(layout, *AXES):
        found.append(f"it cannot place ranks in the order {'/'.join(layout.order)}")
    if layout.pipeline > 1 and (layout.schedule != "1f1b" or layout.virtual_stages > 1):
        found.append("its pipeline has the 1f1b schedule only, without virtual stages")
    if layout.context > 1 and layout.context_method == "ring":
        found.append("its sequence parallelism exchanges heads (ulysses), not keys and values (ring)")
    if layout.x > 1 and layout.sequence_parallel:
        found.append("AutoTP keeps norms and dropout whole: no sequence_parallel")
    if layout.recompute == "selective" or layout.recompute_layers:
        found.append("it recomputes whole layers, all of them")
    if layout.offload_activations and layout.recompute != "full":
        found.append("it offloads recomputation checkpoints only (recompute=full)")
    if layout.z > 1 and layout.data > 1 and layout.zero:
        found.append("beside z, data replicates the optimizer too (MiCS; use zero=0)")
    if layout.offload_optimizer and not _stage(layout):
        found.append("offload_optimizer needs zero of at least 1")
    if job.recipe.precision not in ("fp32", "fp16", "bf16"):
        found.append(f"it does not train in {job.recipe.precision}")
    return found


def _combinations(job: Job, layout: Layout) -> list[str]:
    """Axes that DeepSpeed has, but not together."""
    found = []
    beside = [name for name in ("x", "context") if getattr(layout, name) > 1]
    if layout.pipeline > 1 and beside:
        found.append(f"its pipeline does not combine with {' or '.join(beside)} in a configuration")
    elif len(beside) > 1:
        found.append("AutoTP (x) does not combine with sequence parallelism (context)")
    if layout.pipeline > 1 and _stage(layout) > 1:
        found.append("its pipeline does not combine with zero 2 or z")
    if not any(block.moe for block in job.model.kinds):
        return found
    if layout.expert > 1 and (layout.x > 1 or layout.pipeline > 1 or layout.expert_tensor > 1):
        found.append("AutoEP (expert) does not combine with x, pipeline or expert_tensor")
    elif layout.expert == 1 and layout.expert_tensor != layout.x:
        found.append("AutoTP cuts the experts too (expert_tensor = x)")
    if layout.expert > 1 and layout.z > 1 and (layout.data > 1 or layout.context > 1):
        found.append("AutoEP with z does not combine with copies over data or with context")
    return found


def _stage(layout: Layout) -> int:
    """DeepSpeed's ZeRO stage."""
    return 3 if layout.z > 1 else layout.zero


def _configuration(job: Job, layout: Layout) -> dict[str, Any]:
    recipe = job.recipe
    values: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": micro_batches(job, layout),
        "zero_optimization": _zero(layout),
    }
    if recipe.precision != "fp32":
        values[recipe.precision] = {"enabled": True}
        values["data_types"] = {"grad_accum_dtype": "fp32" if recipe.gradient_bytes == 4 else recipe.precision}
    if layout.x > 1:
        overlap = layout.overlap_tensor != "none"
        values["tensor_parallel"] = {"autotp_size": layout.x, "tp_overlap_comm": overlap}
    if layout.context > 1:
        values["sequence_parallel_size"] = layout.context
        values["data_parallel_size"] = layout.data_parallel
    if layout.pipeline > 1:
        values["pipeline"] = {"stages": layout.pipeline, "partition": "uniform"}
    if layout.expert > 1:
        values["expert_parallel"] = {"enabled": True, "autoep_size": layout.expert}
    if layout.recompute == "full":
        values["activation_checkpointing"] = {"cpu_checkpointing": layout.offload_activations}
    return values


def _zero(layout: Layout) -> dict[str, Any]:
    values: dict[str, Any] = {"stage": _stage(layout), "overlap_comm": layout.overlap_reduce}
    if layout.z > 1 and layout.data > 1:
        values["mics_shard_size"] = layout.z
    if layout.offload_optimizer:
        values["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return values


def _notes(job: Job, layout: Layout) -> list[str]:
    notes = [f"the training script sets the sequence length ({job.recipe.sequence}) and the model"]
    if layout.pipeline > 1:
        notes.append(f"build the model as PipelineModule(..., num_stages={layout.pipeline})")
    if layout.recompute == "full":
        notes.append("switch recomputation on in the model (gradient_checkpointing_enable())")
    if layout.z > 1 and layout.data > 1:
        notes.append("create the model under deepspeed.zero.MiCS_Init")
    if layout.x > 1 and layout.overlap_tensor == "full":
        notes.append("tensor-parallel collectives overlap in backward only")
    if _stage(layout) in (1, 2) and layout.overlap_gather:
        notes.append("updated weights are gathered after the optimizer step, not behind compute")
    if _stage(layout) == 3 and layout.overlap_gather != layout.overlap_reduce:
        notes.append("overlap_comm switches gradient reduction and weight gathering together")
    if _stage(layout) == 0 and layout.overlap_reduce:
        notes.append("gradients are reduced after backward, not behind it")
    return notes


def read(text: str, *, where: str = "config.json", world: int | None = None) -> RunConfiguration:
    """What a configuration file runs; defaults are DeepSpeed's.

    ``world`` counts accelerators; without it, the batch sizes must give the number of data-parallel ranks.

    Raises:
        BadInput: malformed JSON, a value that cannot be used, or the number of accelerators is unknown.
        Unsupported: a ZeRO setting that is not modelled.
    """
    s = Settings(_tables(text, where), where=where)
    degrees = {
        "tensor": max(s.integer("tensor_parallel.autotp_size", least=0), 1),
        "pipeline": s.integer("pipeline.stages"),
        "sequence": s.integer("sequence_parallel_size"),
    }
    ranks = share_of(world, degrees, where=where) if world is not None else _ranks(s)
    micro, batch = _batches(s, ranks)
    layout = _layout(s, degrees, ranks, micro)
    notes = ["DeepSpeed's configuration states neither the model nor the sequence length", *_automatic(s)]
    return RunConfiguration(
        tool=TOOL,
        layout=layout,
        world=layout.world,
        global_batch=batch,
        precision=_precision(s),
        gradient_bytes=_gradient_bytes(s),
        problem="DeepSpeed's configuration does not state the model",
        ignored=s.ignored,
        notes=tuple(notes),
    )


def _tables(text: str, where: str) -> dict[str, Any]:
    tables = parse_json(text, where, remedy="correct the file")
    if not isinstance(tables, dict):
        raise BadInput("a DeepSpeed configuration is an object", where=where, remedy="give the run's JSON file")
    if not any(name in tables for name in _TYPICAL):
        raise BadInput(
            "not a DeepSpeed configuration: it has no batch size and no zero_optimization",
            where=where,
            remedy="give the file that the run passes as --deepspeed_config",
        )
    return flatten(tables)


_TYPICAL = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")


def _stated(s: Settings, name: str) -> bool:
    return bool(s.get(name, "auto") != "auto")


def _ranks(s: Settings) -> int:
    """Data-parallel ranks from the batch sizes."""
    if not (_stated(s, "train_batch_size") and _stated(s, "train_micro_batch_size_per_gpu")):
        raise BadInput(
            "the number of accelerators is not in it", where=s.where, remedy="give it, or all three batch settings"
        )
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return _share_of_batch(s, {name: s.integer(name) for name in names})


def _batches(s: Settings, ranks: int) -> tuple[int, int]:
    """Micro-batch and global batch; the one that is missing follows from the other."""
    micro_name, steps_name = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    if not _stated(s, "train_batch_size"):
        micro = s.integer(micro_name)
        return micro, micro * s.integer(steps_name) * ranks
    given = micro_name if _stated(s, micro_name) else steps_name
    rest = _share_of_batch(s, {given: s.integer(given), "data-parallel ranks": ranks})
    return s.integer(micro_name) if given == micro_name else rest, s.integer("train_batch_size")


def _share_of_batch(s: Settings, degrees: dict[str, int]) -> int:
    where = f"{s.where}: train_batch_size"
    return share_of(s.integer("train_batch_size"), degrees, where=where, unit="sequences")


def _layout(s: Settings, degrees: dict[str, int], ranks: int, micro: int) -> Layout:
    stage = s.integer("zero_optimization.stage", 0, least=0)
    if stage > 3:
        raise s.bad("zero_optimization.stage", f"{stage} is not between 0 and 3")
    if s.integer("zero_optimization.zero_hpz_partition_size") > 1:
        raise Unsupported(
            "a second copy of the weights within a host (hpZ) is not modelled",
            where=f"{s.where}: zero_optimization.zero_hpz_partition_size",
            remedy="estimate it as mics_shard_size, or without",
        )
    z = _shard(s, ranks) if stage == 3 else 1
    overlap = s.flag("zero_optimization.overlap_comm", stage == 3)
    expert = s.integer("expert_parallel.autoep_size") if s.flag("expert_parallel.enabled") else 1
    recompute = any(name.startswith("activation_checkpointing.") for name in s)
    x = degrees["tensor"]
    overlaps_tensor = x > 1 and s.flag("tensor_parallel.tp_overlap_comm")
    return Layout(
        x=x,
        z=z,
        data=ranks // z,
        zero=0 if stage == 3 else stage,
        pipeline=degrees["pipeline"],
        context=degrees["sequence"],
        context_method=ContextMethod.ULYSSES if degrees["sequence"] > 1 else ContextMethod.RING,
        expert=expert,
        micro_batch=micro,
        recompute=Recompute.FULL if recompute else Recompute.NONE,
        overlap_tensor=TensorOverlap.BACKWARD if overlaps_tensor else TensorOverlap.NONE,
        overlap_reduce=overlap and stage > 0,
        overlap_gather=overlap and stage == 3,
        offload_optimizer=s.word("zero_optimization.offload_optimizer.device", "none") in ("cpu", "nvme"),
        offload_activations=recompute and s.flag("activation_checkpointing.cpu_checkpointing"),
    )


def _shard(s: Settings, ranks: int) -> int:
    """Ranks that share the weights in stage 3: all data-parallel ones, or MiCS's groups."""
    size = s.integer("zero_optimization.mics_shard_size", -1, least=-1)
    size = size if size > 0 else ranks
    if ranks % size:
        problem = f"groups of {size} do not divide {ranks} data-parallel ranks"
        raise s.bad("zero_optimization.mics_shard_size", problem)
    return size


def _automatic(s: Settings) -> list[str]:
    """What "auto" leaves to the training script, as Hugging Face's trainer has it."""
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    left = [name for name in (*names, "bf16.enabled", "fp16.enabled") if s.get(name) == "auto"]
    return [f"left to the training script (auto): {', '.join(left)}"] if left else []


def _gradient_bytes(s: Settings) -> int | None:
    """Width of accumulated gradients, where it is stated."""
    return {"fp32": 4, "fp16": 2, "bf16": 2}.get(s.word("data_types.grad_accum_dtype", ""))


def _precision(s: Settings) -> Precision | None:
    """None where the training script decides."""
    if s.flag("bf16.enabled") or s.flag("bfloat16.enabled"):
        return "bf16"
    if s.flag("fp16.enabled"):
        return "fp16"
    automatic = any(s.get(name) == "auto" for name in ("bf16.enabled", "fp16.enabled"))
    return None if automatic else "fp32"
