"""Megatron-Bridge and NeMo 2: recipes and YAML overrides, read as the Megatron-LM arguments that they stand for.

Field names are those of Megatron-Bridge's main branch of August 2026 and of NeMo 2.  A recipe is a function that
returns a ``ConfigContainer`` (Bridge) or a ``run.Partial`` (NeMo); it is read from its syntax tree and never
executed.  A YAML file holds the tables of a ``ConfigContainer``, as ``--config_file`` takes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import BadInput, UnknownName, Unsupported
from weft.interop.text import recipe as recipes
from weft.interop.text.settings import Settings, flatten
from weft.interop.training import megatron
from weft.interop.training.launchers import RunConfiguration
from weft.model import catalogue
from weft.model.megatron_args import Arguments
from weft.model.spec import Model

TOOL = "Megatron-Bridge"
NEMO = "NeMo"
TABLES = ("model", "train", "ddp", "mixed_precision", "comm_overlap", "optimizer", "dataset", "dist")

_NEMO_NAMES = (
    ("trainer.strategy.ddp.", "ddp."),
    ("trainer.strategy.", "model."),
    ("trainer.accumulate_grad_batches", ""),
    ("trainer.plugins.", "mixed_precision."),
    ("trainer.plugins", "mixed_precision"),
    ("data.", "train."),
    ("optim.config.", "optimizer."),
)
"""Fields of NeMo's recipes, and what Bridge calls them."""

_FLAGS = {
    "model.tensor_model_parallel_size": "--tensor-model-parallel-size",
    "model.pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "model.context_parallel_size": "--context-parallel-size",
    "model.expert_model_parallel_size": "--expert-model-parallel-size",
    "model.expert_tensor_parallel_size": "--expert-tensor-parallel-size",
    "model.virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "model.pipeline_model_parallel_layout": "--pipeline-model-parallel-layout",
    "model.sequence_parallel": "--sequence-parallel",
    "model.cp_comm_type": "--cp-comm-type",
    "model.attention_backend": "--attention-backend",
    "model.recompute_granularity": "--recompute-granularity",
    "model.recompute_method": "--recompute-method",
    "model.recompute_num_layers": "--recompute-num-layers",
    "model.recompute_modules": "--recompute-modules",
    "model.fine_grained_activation_offloading": "--fine-grained-activation-offloading",
    "model.cuda_graph_impl": "--cuda-graph-impl",
    "model.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "model.microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "model.moe_expert_capacity_factor": "--moe-expert-capacity-factor",
    "train.micro_batch_size": "--micro-batch-size",
    "train.global_batch_size": "--global-batch-size",
    "train.rampup_batch_size": "--rampup-batch-size",
    "ddp.use_distributed_optimizer": "--use-distributed-optimizer",
    "ddp.use_megatron_fsdp": "--use-megatron-fsdp",
    "ddp.data_parallel_sharding_strategy": "--data-parallel-sharding-strategy",
    "ddp.num_distributed_optimizer_instances": "--num-distributed-optimizer-instances",
    "ddp.outer_dp_sharding_strategy": "--outer-dp-sharding-strategy",
    "ddp.overlap_grad_reduce": "--overlap-grad-reduce",
    "ddp.overlap_param_gather": "--overlap-param-gather",
    "comm_overlap.overlap_grad_reduce": "--overlap-grad-reduce",
    "comm_overlap.overlap_param_gather": "--overlap-param-gather",
    "comm_overlap.tp_comm_overlap": "--tp-comm-overlap",
    "comm_overlap.delay_wgrad_compute": "--delay-wgrad-compute",
    "comm_overlap.overlap_moe_expert_parallel_comm": "--overlap-moe-expert-parallel-comm",
    "optimizer.use_distributed_optimizer": "--use-distributed-optimizer",
    "optimizer.optimizer_cpu_offload": "--optimizer-cpu-offload",
    "optimizer.overlap_param_gather_with_optimizer_step": "--overlap-param-gather-with-optimizer-step",
    "optimizer.exp_avg_dtype": "--exp-avg-dtype",
    "mixed_precision.fp8_param_gather": "--fp8-param-gather",
    "dist.use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping",
}
"""Later names count where both are set: Bridge applies its overlap settings on top of those of data parallelism."""
_HARMLESS = {"--cuda-graph-impl": ("none",), "--exp-avg-dtype": ("torch.float32", "fp32", "float32")}
_SHAPES = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_moe_experts", "kv_channels")
_SEQUENCES = ("model.seq_length", "dataset.seq_length", "dataset.sequence_length", "train.seq_length")
_OPAQUE = ("get_mixed_precision_config",)
_PRETRAINED = ("from_hf_pretrained", "from_hf_config")


def read_recipe(
    text: str,
    *,
    function: str | None = None,
    where: str = "recipe.py",
    path: Path | None = None,
    world: int | None = None,
) -> RunConfiguration:
    """What a recipe runs.

    ``function`` names it where the file has several; with ``path``, imports from the same package are followed.
    ``world`` counts accelerators; without it, the recipe's name must say it ("..._1024gpu_...") or its trainer.

    Raises:
        BadInput: no Python, no such recipe, a value that cannot be used, or the number of accelerators is unknown.
    """
    source = recipes.Source(text, path)
    recipe = recipes.read_recipe(source, function, where=where, include=recipes.package_files, opaque=_OPAQUE)
    settings = recipe.settings()
    nemo = "trainer" in settings
    if nemo:
        settings = _bridge_names(settings) | _overlaps(settings.get("trainer.callbacks"))
    notes = list(recipe.notes)
    if not recipe.root.name.endswith(("ConfigContainer", "Partial", "Config")):
        notes.append(f"what {recipe.root.name}() sets is not in the text")
    count = world or _stated_world(recipe, where)
    return _read(settings, NEMO if nemo else TOOL, where, count, notes)


def read_yaml(
    tables: Mapping[str, Any], *, where: str = "override.yaml", world: int | None = None
) -> RunConfiguration:
    """What the tables of a YAML file run; fields that they leave out have Bridge's defaults.

    Raises:
        BadInput: a value that cannot be used, or the number of accelerators is not given.
    """
    if world is None:
        raise BadInput("the number of accelerators is not in it", where=where, remedy="give it")
    return _read(flatten(tables), TOOL, where, world, [])


def _bridge_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        theirs = next((pair for pair in _NEMO_NAMES if name.startswith(pair[0])), None)
        found[name if theirs is None else theirs[1] + name.removeprefix(theirs[0])] = value
    return found


def _overlaps(callbacks: Any) -> dict[str, Any]:
    """Fields of NeMo's callback for overlap, under the names of Bridge's table."""
    found: dict[str, Any] = {}
    for callback in callbacks if isinstance(callbacks, list) else []:
        if isinstance(callback, recipes.Record) and "MegatronCommOverlapCallback" in repr(
            [callback, *callback.arguments]
        ):
            found |= {f"comm_overlap.{name}": value for name, value in callback.fields.items()}
    return found


def _stated_world(recipe: recipes.Recipe, where: str) -> int:
    settings = recipe.settings()
    nodes, each = settings.get("trainer.num_nodes"), settings.get("trainer.devices")
    if isinstance(nodes, int) and isinstance(each, int) and nodes > 0 and each > 0:
        return nodes * each
    named = re.search(r"(?:^|_)([0-9]{1,7})gpu(?:_|$)", recipe.name)
    if named is None or int(named[1]) < 1:
        raise BadInput("the number of accelerators is not in it", where=where, remedy="give it")
    return int(named[1])


def _read(settings: dict[str, Any], tool: str, where: str, world: int, notes: list[str]) -> RunConfiguration:
    used = Settings(settings, where=where)
    if isinstance(used.get("peft"), recipes.Record):
        remedy = "name a recipe that trains all weights"
        raise Unsupported("training of adapters is not modelled", where=f"{where}: peft", remedy=remedy)
    model, problem = _model(used, notes)
    flags = _arguments(used)
    if not isinstance(used.get("model.pipeline_model_parallel_layout", ""), str | None):
        del flags["--pipeline-model-parallel-layout"]
        notes.append("the pipeline's layout is not in the text: equal stages are assumed")
    if model is not None and any(kind.moe for kind in model.kinds):
        flags["--num-experts"] = str(max(kind.moe.experts for kind in model.kinds if kind.moe))
    arguments = Arguments(values=flags, where=where)
    layout = megatron.layout_of(arguments, world, notes)
    notes += megatron.not_modelled(arguments)
    stated = _numerics(used, notes) | {"sequence": _sequence(used)}
    tables = tuple(f"{name}." for name in TABLES)
    ignored = [name for name in used.ignored if name.startswith(tables) and _plain(used, name)]
    return RunConfiguration(
        tool=tool,
        layout=layout,
        world=world,
        model=model,
        problem=problem,
        global_batch=arguments.optional_integer("--global-batch-size"),
        ignored=tuple(ignored),
        notes=tuple(notes),
        **stated,
    )


def _plain(settings: Mapping[str, Any], name: str) -> bool:
    return isinstance(settings[name], str | int | float | bool | list)


def _arguments(settings: Settings) -> dict[str, str]:
    """The flags that the fields stand for."""
    found: dict[str, str] = {}
    for name, flag in _FLAGS.items():
        value = settings.get(name)
        text = _text(value)
        if value is None or text in _HARMLESS.get(flag, ()):
            continue
        if value is False:
            found.pop(flag, None)
        elif isinstance(value, recipes.Open | recipes.Record):
            found[flag] = f"${text}"
        else:
            found[flag] = "" if value is True else text
    made = settings.get("optim")
    if isinstance(made, recipes.Record) and made.name.startswith("distributed_fused_adam"):
        found["--use-distributed-optimizer"] = ""
    if settings.get("ddp.use_megatron_fsdp") is not True:
        found.pop("--data-parallel-sharding-strategy", None)
    return found


def _text(value: Any) -> str:
    return " ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _sequence(settings: Settings) -> int | None:
    stated = [name for name in _SEQUENCES if isinstance(settings.get(name), int)]
    return settings.integer(stated[0]) if stated else None


def _numerics(settings: Settings, notes: list[str]) -> dict[str, Any]:
    """Precision and the width of gradients."""
    mixed = settings.get("mixed_precision")
    named = mixed if isinstance(mixed, str) else ""
    named += f" {settings.get('mixed_precision.precision', '')}"
    for record in recipes.records_of(mixed):
        named += f" {record.name} {' '.join(one for one in record.arguments if isinstance(one, str))}"
    if settings.get("mixed_precision.fp4"):
        named += " nvfp4"
    if settings.get("mixed_precision.fp8"):
        named += f" fp8 {settings.get('mixed_precision.fp8_recipe', '')}"
    named += "".join(f" {kind}" for kind in ("fp16", "bf16") if settings.get(f"mixed_precision.{kind}") is True)
    precision = next((p for p in ("nvfp4", "mxfp8", "fp8", "fp16", "bf16") if p in named), None)
    if precision is None:
        notes.append("the precision is not in the text")
    wide = [settings.get("mixed_precision.grad_reduce_in_fp32"), settings.get("ddp.grad_reduce_in_fp32")]
    stated = next((value for value in wide if isinstance(value, bool)), True)
    return {"precision": precision, "gradient_bytes": 4 if stated else 2}


def _model(settings: Settings, notes: list[str]) -> tuple[Model | None, str]:
    """The model that the recipe takes by name, or what stands in the way."""
    name = _model_name(settings.get("model"), settings.get("model.config"))
    if name is None:
        return None, "does not state the model"
    try:
        model = _known(name)
    except UnknownName:
        problem = f"the model {name[:80]} is not in the catalogue (weft models)"
        notes.append(f"the model is not taken from it: {problem}")
        return None, problem
    changed = [field for field in _SHAPES if settings.get(f"model.{field}") is not None]
    if changed:
        problem = f"model.{changed[0]} changes the shape of {name}"
        notes.append(f"the model is not taken from it: {problem}")
        return None, problem
    extra = settings.get("model.mtp_num_layers", model.prediction_layers)
    if isinstance(extra, int) and 0 <= extra <= 64:
        model = replace(model, prediction_layers=extra)
    elif extra is None:
        model = replace(model, prediction_layers=0)
    return model, ""


def _model_name(made: Any, configuration: Any) -> str | None:
    """The Hugging Face name in AutoBridge.from_hf_pretrained(...), or NeMo's name of the configuration's class."""
    for record in recipes.records_of(made):
        if record.name.endswith(_PRETRAINED) and record.arguments and isinstance(record.arguments[0], str):
            return record.arguments[0]
    for value in (configuration, *([one.name for one in recipes.records_of(made)])):
        text = value.name if isinstance(value, recipes.Record) and not value.arguments else value
        text = repr(value.arguments[0]) if isinstance(value, recipes.Record) and value.arguments else text
        found = re.search(r"(\w+)Config(\w+)", str(text))
        if found:
            return f"{found[1]}{found[2]}"
    return None


def _known(name: str) -> Model:
    """A model of the catalogue, by a name that may lack dots and dashes.

    Raises:
        UnknownName: there is none.
    """
    try:
        return catalogue.load(name).model
    except UnknownName:
        plain = _letters(name)
        for known in catalogue.names():
            if plain in (_letters(known), f"meta{_letters(known)}"):
                return catalogue.load(known).model
        raise


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())
