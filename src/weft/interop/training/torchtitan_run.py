"""torchtitan: the layout, model and recipe of a run, from its job file (TOML, up to version 0.2.2)."""

from __future__ import annotations

import tomllib

from weft.errors import BadInput
from weft.interop.text.settings import Settings, flatten, share_of
from weft.interop.training.launchers import RunConfiguration
from weft.interop.training.torchtitan import CONVERTERS, FLAVORS, SCHEDULES
from weft.layout.spec import Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.model import catalogue
from weft.model.job import Precision
from weft.model.spec import Model

TOOL = "torchtitan (TOML)"


def read(text: str, *, where: str = "job.toml", world: int | None = None) -> RunConfiguration:
    """What a job file runs; defaults are torchtitan's.

    ``world`` counts accelerators; it is needed where the sharding degree is left out or -1 (all that remain).

    Raises:
        BadInput: malformed TOML, a value that cannot be used, or the number of accelerators is unknown.
    """
    s = Settings(_tables(text, where), where=where)
    notes: list[str] = []
    model = _model(s, notes)
    layout = _layout(s, model, world, notes)
    local = s.integer("training.local_batch_size", 8)
    batch = s.integer("training.global_batch_size", -1, least=-1)
    return RunConfiguration(
        tool=TOOL,
        layout=layout,
        world=layout.world,
        model=model,
        global_batch=batch if batch > 0 else local * layout.data_parallel,
        sequence=s.integer("training.seq_len", 2048),
        precision=_precision(s),
        ignored=s.ignored,
        notes=tuple(notes),
    )


def _tables(text: str, where: str) -> dict[str, object]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else f"malformed TOML: {error}"
        raise BadInput(problem, where=where, remedy="correct the file") from None
    return flatten(tables)


def _model(s: Settings, notes: list[str]) -> Model | None:
    module, flavor = s.word("model.name", "llama3"), s.word("model.flavor", "debugmodel")
    for known in FLAVORS:
        if (known.module, known.name.lower()) == (module, flavor.lower()):
            return catalogue.load(known.model).model
    notes.append(f"the model is not taken from it: torchtitan's {module} {flavor} is not known")
    return None


def _layout(s: Settings, model: Model | None, world: int | None, notes: list[str]) -> Layout:
    x = s.integer("parallelism.tensor_parallel_degree")
    pipeline = s.integer("parallelism.pipeline_parallel_degree")
    context = s.integer("parallelism.context_parallel_degree")
    replicas = s.integer("parallelism.data_parallel_replicate_degree")
    shard = s.integer("parallelism.data_parallel_shard_degree", -1, least=-1)
    degrees = {"tensor": x, "pipeline": pipeline, "context": context, "replicate": replicas}
    if shard == 0:
        raise s.bad("parallelism.data_parallel_shard_degree", "0 is no degree", "write -1 for all that remain")
    if shard < 0:
        shard = share_of(_known(world, s), degrees, where=s.where)
    elif world is not None and share_of(world, degrees | {"shard": shard}, where=s.where) != 1:
        raise BadInput(
            f"its degrees make {x * pipeline * context * replicas * shard} accelerators, not {world}",
            where=s.where,
            remedy="correct a degree, or leave the number of accelerators out",
        )
    schedule, virtual = _pipeline(s, model, pipeline, notes)
    reshards = _reshards(s, pipeline)
    moe = model is not None and any(block.moe for block in model.kinds)
    expert = s.integer("parallelism.expert_parallel_degree") if moe else 1
    expert_tensor = s.integer("parallelism.expert_tensor_parallel_degree") if expert > 1 else x
    recompute, local = _recompute(s, notes), s.integer("training.local_batch_size", 8)
    weights_stay = shard > 1 and replicas == 1 and not reshards
    return Layout(
        x=x,
        z=1 if weights_stay else shard,
        data=shard if weights_stay else replicas,
        zero=2 if weights_stay else 0,
        pipeline=pipeline,
        context=context,
        expert=expert,
        expert_tensor=expert_tensor if moe else 1,
        micro_batch=s.integer("parallelism.pipeline_parallel_microbatch_size") if pipeline > 1 else local,
        virtual_stages=virtual,
        schedule=schedule,
        recompute=recompute,
        sequence_parallel=x > 1,
        overlap_tensor=_overlap_tensor(s, x),
        offload_optimizer=s.flag("training.enable_cpu_offload"),
    )


def _known(world: int | None, s: Settings) -> int:
    if world is None:
        raise BadInput(
            "the number of accelerators is not in it (data_parallel_shard_degree takes what remains)",
            where=s.where,
            remedy="give the number of accelerators, or the degree",
        )
    return world


def _reshards(s: Settings, pipeline: int) -> bool:
    """Whether sharded weights are freed after forward; by default they are, but in a pipeline."""
    policy = s.word("parallelism.fsdp_reshard_after_forward", "default", "default", "always", "never")
    return policy == "always" or (policy == "default" and pipeline == 1)


def _overlap_tensor(s: Settings, x: int) -> TensorOverlap:
    chunked = x > 1 and s.flag("parallelism.enable_async_tensor_parallel")
    return TensorOverlap.FULL if chunked else TensorOverlap.NONE


def _pipeline(s: Settings, model: Model | None, pipeline: int, notes: list[str]) -> tuple[PipelineSchedule, int]:
    """The schedule and the virtual stages of a rank."""
    if pipeline == 1:
        return PipelineSchedule.PLAIN, 1
    given = s.word("parallelism.pipeline_parallel_schedule", "1F1B", *SCHEDULES.values())
    schedule = next(name for name, theirs in SCHEDULES.items() if theirs == given)
    if schedule.chunks == 1:
        return schedule, 1
    if "parallelism.pipeline_parallel_layers_per_stage" not in s:
        return schedule, 2
    each = s.integer("parallelism.pipeline_parallel_layers_per_stage")
    if model is None:
        notes.append("the model's layers are unknown: two virtual stages a rank are assumed")
        return schedule, 2
    ends = ("first", "last")
    fewer = sum(s.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0) for end in ends)
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
    converters = s.get("model.converters", [])
    if not isinstance(converters, list) or not all(isinstance(name, str) for name in converters):
        raise s.bad("model.converters", "not a list of names")
    for precision, converter in CONVERTERS.items():
        if any(name in (converter, converter.rpartition(".")[2]) for name in converters):
            return precision
    width = s.word("training.mixed_precision_param", "bfloat16", "bfloat16", "float32")
    return "bf16" if "bfloat16" in (width, s.word("training.dtype", "float32")) else "fp32"
