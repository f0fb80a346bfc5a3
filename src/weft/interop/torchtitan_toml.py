"""torchtitan's job files (TOML) up to version 0.2.2, written and read; ``torchtitan`` writes those of later versions.

Setting names are those of torchtitan's tag v0.2.2.
"""

from __future__ import annotations

import json

from weft.cluster.spec import Cluster
from weft.documents import parse_toml
from weft.errors import BadInput
from weft.interop.launch import LaunchArguments, RunConfiguration, common_reasons, micro_batches, refuse, torchrun
from weft.interop.torchtitan import (
    CONVERTERS,
    DEGREES,
    FLAVORS,
    SCHEDULES,
    Flavor,
    Written,
    find_flavor,
    layout_notes,
    parallelism,
    reasons,
)
from weft.layout.spec import Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.model import catalogue
from weft.model.job import Job, Precision
from weft.model.settings import Settings, flatten, share_of
from weft.model.spec import Model

TOML = "torchtitan (TOML)"
WRITTEN_FOR = "Written for torchtitan v0.2.2."


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """A job file for torchtitan up to version 0.2.2."""
    refuse(TOML, [*common_reasons(job, cluster, layout), *reasons(job, layout, "toml")])
    flavor = find_flavor(job.model)
    tables = [
        "\n".join([f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())])
        for table, settings in _tables(job, layout, flavor).items()
    ]
    return LaunchArguments(
        tool=TOML,
        written_for=WRITTEN_FOR,
        text="\n\n".join([f"# {WRITTEN_FOR}", *tables]) + "\n",
        file="planned.toml",
        command=f"{torchrun(cluster, layout)} -m torchtitan.train --job.config_file planned.toml",
        notes=tuple(layout_notes(job, layout, flavor)),
    )


def _tables(job: Job, layout: Layout, flavor: Flavor | None) -> dict[str, Written]:
    recipe, piped = job.recipe, layout.pipeline > 1
    converter = CONVERTERS.get(recipe.precision)
    return {
        "model": {
            "name": flavor.module if flavor else "llama3",
            "flavor": flavor.name if flavor else "debugmodel",
            "converters": [converter] if converter else [],
        },
        "training": {
            "local_batch_size": layout.micro_batch * (micro_batches(job, layout) if piped else 1),
            "global_batch_size": recipe.global_batch,
            "seq_len": recipe.sequence,
            "mixed_precision_param": "float32" if recipe.precision == "fp32" else "bfloat16",
            "enable_cpu_offload": layout.offload_optimizer,
        },
        "parallelism": {
            **parallelism(job.model, layout),
            **({"pipeline_parallel_microbatch_size": layout.micro_batch} if piped else {}),
            "enable_async_tensor_parallel": layout.x > 1 and layout.overlap_tensor == "full",
            "expert_tensor_parallel_degree": layout.expert_tensor if layout.expert > 1 else 1,
            "context_parallel_rotate_method": "alltoall",
        },
        "activation_checkpoint": {"mode": layout.recompute, "selective_ac_option": "op"},
        "compile": {"enable": True},
    }


def read(text: str, *, where: str = "job.toml", world: int | None = None) -> RunConfiguration:
    """What a job file runs; defaults are torchtitan's.

    ``world`` counts accelerators; it is needed where the sharding degree is left out or -1 (all that remain).
    """
    s = Settings(data=flatten(parse_toml(text, where, remedy="correct the file")), where=where)
    notes: list[str] = []
    model, problem = _model(s, notes)
    layout = _layout(s, model, world, notes)
    local = s.integer("training.local_batch_size", default=8)
    batch = s.integer("training.global_batch_size", default=-1, least=-1)
    return RunConfiguration(
        tool=TOML,
        layout=layout,
        world=layout.world,
        model=model,
        problem=problem,
        global_batch=batch if batch > 0 else local * layout.dp,
        sequence=s.integer("training.seq_len", default=2048),
        precision=_precision(s),
        ignored=s.ignored,
        notes=tuple(notes),
    )


def _model(s: Settings, notes: list[str]) -> tuple[Model | None, str]:
    """The model, or why it is not taken from the configuration."""
    module, flavor = s.word("model.name", "llama3"), s.word("model.flavor", "debugmodel")
    for known in FLAVORS:
        if (known.module, known.name.lower()) == (module, flavor.lower()):
            return catalogue.load(known.model).model, ""
    problem = f"torchtitan's {module} {flavor} is not known" if flavor else "no flavor of a model is stated"
    notes.append(f"the model is not taken from it: {problem}")
    return None, problem


def _layout(s: Settings, model: Model | None, world: int | None, notes: list[str]) -> Layout:
    names = {field: f"parallelism.{name}_degree" for name, field in DEGREES.items()}
    x, pipeline, context = (s.count(names[field]) for field in ("x", "pipeline", "context"))
    replicas = s.count("parallelism.data_parallel_replicate_degree")
    degrees = {"tensor": x, "pipeline": pipeline, "context": context, "replicate": replicas}
    shard = s.integer("parallelism.data_parallel_shard_degree", default=-1, least=-1)
    if shard == 0:
        raise s.bad("parallelism.data_parallel_shard_degree", "0 is not a degree", "write -1 for all that remain")
    if shard < 0 and world is None:
        raise BadInput(
            "the number of accelerators is not in it (data_parallel_shard_degree takes what remains)",
            where=s.where,
            remedy="give the number of accelerators, or the degree",
        )
    if shard < 0:
        shard = share_of(world or 0, degrees, where=s.where)
    elif world is not None and share_of(world, degrees | {"shard": shard}, where=s.where) != 1:
        raise BadInput(
            f"its degrees make {x * pipeline * context * replicas * shard} accelerators, not {world}",
            where=s.where,
            remedy="correct a degree, or leave the number of accelerators out",
        )
    schedule, virtual = _schedule_read(s, model, pipeline, notes)
    # Sharded weights are freed after forward by default, except in a pipeline.
    policy = s.word("parallelism.fsdp_reshard_after_forward", "default", "default", "always", "never")
    reshards = policy == "always" or (policy == "default" and pipeline == 1)
    moe = model is not None and any(block.moe for block in model.kinds)
    expert = s.count(names["expert"]) if moe else 1
    expert_tensor = s.count("parallelism.expert_tensor_parallel_degree") if expert > 1 else x
    recompute, local = _recompute(s, notes), s.integer("training.local_batch_size", default=8)
    weights_stay = shard > 1 and replicas == 1 and not reshards
    chunked = x > 1 and s.flag("parallelism.enable_async_tensor_parallel")
    return Layout(
        x=x,
        z=1 if weights_stay else shard,
        data=shard if weights_stay else replicas,
        zero=2 if weights_stay else 0,
        pipeline=pipeline,
        context=context,
        expert=expert,
        expert_tensor=expert_tensor if moe else 1,
        micro_batch=s.count("parallelism.pipeline_parallel_microbatch_size") if pipeline > 1 else local,
        virtual_stages=virtual,
        schedule=schedule,
        recompute=recompute,
        sequence_parallel=x > 1,
        overlap_tensor=TensorOverlap.FULL if chunked else TensorOverlap.NONE,
        offload_optimizer=s.flag("training.enable_cpu_offload"),
    )


def _schedule_read(s: Settings, model: Model | None, pipeline: int, notes: list[str]) -> tuple[PipelineSchedule, int]:
    """The schedule and the virtual stages of a rank."""
    if pipeline == 1:
        return PipelineSchedule.PLAIN, 1
    given = s.word("parallelism.pipeline_parallel_schedule", "1F1B", *SCHEDULES.values())
    schedule = next(name for name, theirs in SCHEDULES.items() if theirs == given)
    if schedule.chunks == 1:
        return schedule, 1
    if not s.has("parallelism.pipeline_parallel_layers_per_stage"):
        return schedule, 2
    each = s.count("parallelism.pipeline_parallel_layers_per_stage")
    if model is None:
        notes.append("the model's layers are unknown: two virtual stages a rank are assumed")
        return schedule, 2
    ends = ("first", "last")
    fewer = sum(
        s.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", default=1, least=0) for end in ends
    )
    chunks = -(-(model.layers + fewer) // each)
    if chunks % pipeline:
        problem = f"{chunks} chunks of {each} layers do not spread evenly over {pipeline} ranks"
        raise s.bad("parallelism.pipeline_parallel_layers_per_stage", problem)
    return schedule, chunks // pipeline


def _recompute(s: Settings, notes: list[str]) -> Recompute:
    mode = s.word("activation_checkpoint.mode", "selective", "selective", "full", "none", "memory_budget")
    if mode in ("selective", "memory_budget"):
        notes.append(f"{mode} recomputation is taken as recomputing the attention core")
        return Recompute.SELECTIVE
    return Recompute.FULL if mode == "full" else Recompute.NONE


def _precision(s: Settings) -> Precision:
    converters = s.typed("model.converters", list, [], "is not a list of names")
    for precision, known in CONVERTERS.items():
        if known in converters or known.rpartition(".")[2] in converters:
            return precision
    width = s.word("training.mixed_precision_param", "bfloat16", "bfloat16", "float32")
    return "bf16" if "bfloat16" in (width, s.word("training.dtype", "float32")) else "fp32"
