"""torchtitan: recipes of its current main branch (Python functions), and job files (TOML) up to version 0.2.2.

Setting names are those of torchtitan's main branch of August 2026, those of job files are of tag v0.2.2.  z becomes
the sharding degree and data the replication degree; sharding over ``data`` alone (zero 1 and 2) becomes sharding whose
weights stay gathered between forward and backward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple

from weft.cluster.spec import Cluster
from weft.documents import parse_toml
from weft.errors import BadInput
from weft.interop.launch import (
    LaunchArguments,
    RunConfiguration,
    common_reasons,
    micro_batches,
    placed_like,
    refuse,
    torchrun,
    true_of,
)
from weft.layout.spec import AXES, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.stages import split_layers
from weft.model import catalogue
from weft.model.job import Job, Precision
from weft.model.settings import Settings, flatten, share_of
from weft.model.spec import Model

TOOL = "torchtitan"
WRITTEN_FOR = "Written for torchtitan's main branch of August 2026 (commit b5bcd76c, after v0.2.2)."
Form = Literal["recipe", "toml"]
Value = bool | int | str | list[str]
Written = dict[str, Value]

SCHEDULES = {
    PipelineSchedule.PLAIN: "1F1B",
    PipelineSchedule.INTERLEAVED: "Interleaved1F1B",
    PipelineSchedule.ZBV: "ZBVZeroBubble",
}


DEGREES = {
    "tensor_parallel": "x",
    "context_parallel": "context",
    "pipeline_parallel": "pipeline",
    "expert_parallel": "expert",
}
"""Settings that are one field of ``Layout``."""

_CONVERTERS: dict[Precision, tuple[str, str]] = {
    "fp8": ("Float8LinearConverter", "filter_fqns=['lm_head', 'router.gate']"),
    "mxfp8": ("MXFP8LinearConverter", "fqns=['layers']"),
    "nvfp4": ("NVFP4LinearConverter", "fqns=['layers']"),
}
"""Model converters in recipes, with their arguments."""
CONVERTERS: dict[Precision, str] = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
"""Names of model converters in job files."""


class Flavor(NamedTuple):
    """A model that torchtitan defines: module and flavor, the recipe to start from, and our name for it."""

    module: str
    name: str
    recipe: str
    model: str


FLAVORS = (
    Flavor("llama3", "1B", "llama3_8b", "llama-3.2-1b"),
    Flavor("llama3", "3B", "llama3_8b", "llama-3.2-3b"),
    Flavor("llama3", "8B", "llama3_8b", "llama-3.1-8b"),
    Flavor("llama3", "70B", "llama3_70b", "llama-3.1-70b"),
    Flavor("llama3", "405B", "llama3_405b", "llama-3.1-405b"),
    Flavor("deepseek_v3", "16B", "deepseek_v3_16b", "deepseek-v2-lite"),
    Flavor("deepseek_v3", "236B", "deepseek_v3_671b", "deepseek-v2"),
    Flavor("deepseek_v3", "671B", "deepseek_v3_671b", "deepseek-v3"),
    Flavor("qwen3", "0.6B", "qwen3_0_6b", "qwen3-0.6b"),
    Flavor("qwen3", "1.7B", "qwen3_1_7b", "qwen3-1.7b"),
    Flavor("qwen3", "4B", "qwen3_1_7b", "qwen3-4b"),
    Flavor("qwen3", "8B", "qwen3_14b", "qwen3-8b"),
    Flavor("qwen3", "14B", "qwen3_14b", "qwen3-14b"),
    Flavor("qwen3", "32B", "qwen3_32b", "qwen3-32b"),
    Flavor("qwen3", "30B-A3B", "qwen3_30b_a3b", "qwen3-30b-a3b"),
    Flavor("qwen3", "235B-A22B", "qwen3_30b_a3b", "qwen3-235b-a22b"),
    Flavor("gpt_oss", "20b", "gpt_oss_20b", "gpt-oss-20b"),
    Flavor("gpt_oss", "120b", "gpt_oss_120b", "gpt-oss-120b"),
)


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """A Python recipe (current main): save it as planned.py beside where torchrun starts."""
    refuse(TOOL, [*common_reasons(job, cluster, layout), *reasons(job, layout, "recipe")])
    flavor, precision = find_flavor(job.model), job.recipe.precision
    module, recipe = (flavor.module, flavor.recipe) if flavor else ("llama3", "llama3_debugmodel")
    ac = {"full": "FullAC", "selective": "SelectiveAC"}.get(layout.recompute)
    converter, arguments = _CONVERTERS.get(precision, ("", ""))
    imports = {
        f"from torchtitan.models.{module} import model_registry": flavor,
        f"from torchtitan.models.{module}.config_registry import {recipe}": True,
        "from torchtitan.trainer import Trainer": True,
        f"from torchtitan.distributed.activation_checkpoint import {ac}": ac,
        f"from torchtitan.components.quantization import {converter}": converter,
    }
    body = [f"config = {recipe}()"]
    body += [f"config.{name} = {value!r}" for name, value in _recipe_settings(job, layout).items()]
    body.append(f"config.activation_checkpoint = {ac}.Config()" if ac else "config.activation_checkpoint = None")
    if flavor:
        converters = f", converters=[{converter}.Config({arguments}, model_compile_enabled=True)]" if converter else ""
        body.append(f"config.model_spec = model_registry({flavor.name!r}{converters})")
    lines = [f"# {WRITTEN_FOR}", *sorted(true_of(imports)), "", "", "def planned() -> Trainer.Config:"]
    lines += [*(f"    {line}" for line in (*body, "return config")), ""]
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text="\n".join(lines),
        file="planned.py",
        command=f"{torchrun(cluster, layout)} -m torchtitan.train --module planned --config planned",
        notes=tuple(layout_notes(job, layout, flavor)),
    )


def find_flavor(model: Model) -> Flavor | None:
    """torchtitan's flavor with the shape of a model, if it has one."""
    for flavor in FLAVORS:
        known = catalogue.load(flavor.model).model
        if (known.runs, known.vocab) == (model.runs, model.vocab):
            return flavor
    return None


def reasons(job: Job, layout: Layout, form: Form) -> Iterator[str]:
    if not placed_like(layout, *AXES):
        yield f"it cannot place ranks in the order {'/'.join(layout.order)}"
    if layout.z > 1 and layout.data > 1 and layout.zero:
        yield "beside z, data replicates the optimizer too (use zero=0)"
    if layout.context_method == "ulysses" and layout.context > 1:
        yield "its context parallelism passes keys and values (ring), not heads (ulysses)"
    if layout.x > 1 and not layout.sequence_parallel and form == "toml":
        yield "tensor parallelism always comes with sequence_parallel up to version 0.2.2"
    if layout.recompute == "full" and layout.recompute_layers:
        yield "full recomputation covers all layers: no recompute_layers"
    if layout.offload_activations:
        yield "it has no offload_activations"
    yield from filter(None, (_pipeline_reason(job.model, layout), _expert_reason(job.model, layout, form)))
    known = ("fp32", "bf16", *(CONVERTERS if form == "toml" else _CONVERTERS))
    if job.recipe.precision not in known:
        yield f"it does not train in {job.recipe.precision} (has {', '.join(known)})"


def _pipeline_reason(model: Model, layout: Layout) -> str:
    single, virtual = layout.schedule == "1f1b", layout.virtual_stages
    if layout.pipeline == 1:
        return "virtual_stages > 1 needs a pipeline" if virtual > 1 else ""
    if layout.schedule not in SCHEDULES:
        return f"it has no schedule {layout.schedule}, only {', '.join(SCHEDULES)}"
    if single and virtual > 1:
        return "1f1b has one stage a rank; interleaved has more"
    if not single and virtual == 1:
        return f"{SCHEDULES[layout.schedule]} needs virtual_stages of at least 2"
    if layout.schedule == "zbv" and virtual != 2:
        return "ZBVZeroBubble has exactly 2 virtual_stages"
    chunks = layout.pipeline * virtual
    first, last, each = stage_weights(model.layers, chunks)
    if virtual > 2 and -(-(model.layers + first + last) // each) != chunks:
        return f"its layers per stage cannot split {model.layers} layers into {chunks} chunks"
    return ""


def _expert_reason(model: Model, layout: Layout, form: Form) -> str:
    expert, tensor, x = layout.expert, layout.expert_tensor, layout.x
    if not any(block.moe for block in model.kinds):
        return ""
    if expert == 1:
        return "" if tensor == x else "tensor parallelism cuts the experts too where expert is 1"
    if tensor != 1 and (form == "recipe" or tensor != x):
        return f"expert_tensor {tensor} is not available beside expert parallelism"
    borrowed = _shard(layout) * layout.context * (x if tensor == 1 else 1)
    return f"expert {expert} must divide the sharded ranks of a replica, {borrowed}" if borrowed % expert else ""


def _shard(layout: Layout) -> int:
    """Degree of weight sharding: z, or all of data where the optimizer is sharded over it."""
    return layout.z if layout.z > 1 or not layout.zero else layout.data


def stage_weights(layers: int, chunks: int) -> tuple[int, int, int]:
    """Layers fewer in the first and in the last chunk, and layers per chunk, as torchtitan counts them."""
    fewer = (-layers) % chunks
    first, last = (1, 1) if fewer == 2 and chunks > 2 else (0, 1) if fewer == 1 else (0, 0)
    return first, last, max(split_layers(layers, chunks))


def parallelism(model: Model, layout: Layout) -> Written:
    """The settings of both forms."""
    shard = _shard(layout)
    settings: Written = {
        "data_parallel_replicate_degree": layout.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if layout.z > 1 else "never" if shard > 1 else "default",
        **{f"{name}_degree": getattr(layout, field) for name, field in DEGREES.items()},
    }
    if layout.pipeline > 1:
        first, last, each = stage_weights(model.layers, layout.pipeline * layout.virtual_stages)
        settings |= {
            "pipeline_parallel_schedule": SCHEDULES[layout.schedule],
            "pipeline_parallel_first_stage_less_layers": first,
            "pipeline_parallel_last_stage_less_layers": last,
            **({"pipeline_parallel_layers_per_stage": each} if layout.virtual_stages > 2 else {}),
        }
    return settings


def _recipe_settings(job: Job, layout: Layout) -> Written:
    recipe = job.recipe
    split = parallelism(job.model, layout)
    split["enable_sequence_parallel"] = layout.sequence_parallel
    if layout.pipeline > 1:
        split["num_pp_microbatches"] = micro_batches(job, layout)
    settings: Written = {
        "training.num_tokens_per_microbatch_per_dp_rank": layout.micro_batch * recipe.sequence,
        "training.num_tokens_per_train_step": recipe.tokens,
        "training.max_context_length": recipe.sequence,
        "training.mixed_precision_param": "float32" if recipe.precision == "fp32" else "bfloat16",
        "training.enable_cpu_offload": layout.offload_optimizer,
        "compile.enable": True,
        "compile.enable_async_tensor_parallel": layout.x > 1 and layout.overlap_tensor == "full",
    }
    return settings | {f"parallelism.{name}": value for name, value in split.items()}


def layout_notes(job: Job, layout: Layout, flavor: Flavor | None) -> Iterator[str]:
    if flavor is None:
        yield f"no flavor has the shape of {job.model.name}: add it to a model's registry"
    elif job.model.rope not in (None, catalogue.load(flavor.model).model.rope):
        yield f"the flavor {flavor.name} has its own rotary positions; set the model's in its registry"
    if layout.zero == 1 and layout.z == 1 and layout.data > 1:
        yield "gradients are sharded too (zero 2); there is no zero 1"
    if layout.context > 1 and _shard(layout) > 1:
        yield "weights are sharded over context ranks too"
    if layout.recompute == "selective":
        yield "selective recomputation saves by operation, more than the attention core is recomputed"
    if layout.x > 1 and layout.overlap_tensor == "backward":
        yield "tensor-parallel collectives overlap only with overlap_tensor=full (async TP)"
    if _shard(layout) > 1 and not (layout.overlap_reduce and layout.overlap_gather):
        yield "sharded gradients and weights always overlap with compute"
    if layout.offload_optimizer:
        yield "CPU offloading takes weights and gradients along with the optimizer"
    if layout.pipeline > 1 and (-job.model.layers) % (layout.pipeline * layout.virtual_stages) > 2:
        yield "the stages with one layer fewer are the last ones"


# Job files -----------------------------------------------------------------------------------------------------

TOML = "torchtitan (TOML)"
WRITTEN_FOR_TOML = "Written for torchtitan v0.2.2."


def write_toml(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """A job file for torchtitan up to version 0.2.2."""
    refuse(TOML, [*common_reasons(job, cluster, layout), *reasons(job, layout, "toml")])
    flavor = find_flavor(job.model)
    tables = [
        "\n".join([f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())])
        for table, settings in _tables(job, layout, flavor).items()
    ]
    return LaunchArguments(
        tool=TOML,
        written_for=WRITTEN_FOR_TOML,
        text="\n\n".join([f"# {WRITTEN_FOR_TOML}", *tables]) + "\n",
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
