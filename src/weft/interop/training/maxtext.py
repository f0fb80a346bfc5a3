"""MaxText: YAML configurations, on top of the defaults of its ``base.yml``.

Names and defaults are those of MaxText's main branch of August 2026.  The mesh is the product of what lies within a
slice (``ici_``) and across slices (``dcn_``); -1 takes what remains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import Any

from weft.errors import BadInput, UnknownName, Unsupported
from weft.interop.text.settings import Settings, share_of
from weft.interop.training.launchers import RunConfiguration
from weft.layout.spec import ContextMethod, Layout, PipelineSchedule, Recompute
from weft.model import catalogue
from weft.model.huggingface import read_config
from weft.model.job import Precision
from weft.model.spec import Model

TOOL = "MaxText"
TYPICAL = frozenset(
    (
        "base_emb_dim",
        "base_config",
        "per_device_batch_size",
        "remat_policy",
        "ici_fsdp_parallelism",
        "max_target_length",
    )
)
"""Settings by which a file is known as MaxText's."""

AXES = (
    *("data", "fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "sequence", "tensor", "tensor_transpose"),
    *("tensor_sequence", "expert", "pipeline"),
)
_UNUSED = ("diloco", "autoregressive", "context_autoregressive")
_POLICIES = {
    "full": (Recompute.FULL, False),
    "minimal": (Recompute.SELECTIVE, False),
    "minimal_flash": (Recompute.SELECTIVE, False),
    "minimal_with_context": (Recompute.SELECTIVE, False),
    "minimal_with_quantization": (Recompute.SELECTIVE, False),
    "minimal_with_context_and_quantization": (Recompute.SELECTIVE, False),
    "minimal_offloaded": (Recompute.SELECTIVE, True),
    "save_dot_with_context_except_mlp": (Recompute.FULL, False),
    "save_dot_except_mlp": (Recompute.FULL, False),
    "save_dot_except_mlpwi": (Recompute.FULL, False),
    "save_qkv_proj": (Recompute.FULL, False),
    "qkv_proj_offloaded": (Recompute.FULL, False),
    "save_out_proj": (Recompute.FULL, False),
    "custom": (Recompute.FULL, False),
    "none": (Recompute.NONE, False),
}
"""What a policy recomputes, as far as layouts say it, and whether the rest is offloaded."""
_EXACT = ("full", "none", "minimal_with_context", "minimal_offloaded")
_FAMILIES = {
    "llama2": "llama",
    "mistral": "llama",
    "mixtral": "mixtral",
    "gemma": "gemma",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "deepseek": "deepseek_v3",
    "gpt_oss": "gpt_oss",
}
"""``decoder_block``, and the Hugging Face family of the same blocks."""


_NOT_MODELLED: Mapping[str, tuple[Any, ...]] = {
    "capacity_factor": (-1, -1.0),
    "mu_dtype": ("", None, "float32"),
    "num_vocab_tiling": (1,),
    "opt_type": ("adamw", "adam_pax"),
    "parameter_memory_host_offload": (False,),
    "pipeline_fsdp_ag_once": (False,),
    "pipeline_fsdp_ag_per_repeat": (False,),
    "te_comm_gemm_overlap": ("disabled", ""),
    "use_batch_split_schedule": (False,),
    "use_ring_of_experts": (False,),
    "weight_dtype": ("float32",),
}
"""Settings that a reader should hear of, and the values at which they change nothing."""
_SHAPES = ("base_emb_dim", "base_mlp_dim", "base_moe_mlp_dim", "base_num_decoder_layers", "base_num_query_heads")
_REFUSED = ("use_indexer", "moba", "share_kv_projections", "hidden_size_per_layer_input", "num_kv_shared_layers")
"""Settings that change shape or cost in a way that is not modelled."""


def read(tables: Mapping[str, Any], *, where: str = "config.yml", world: int | None = None) -> RunConfiguration:
    """What a configuration runs.

    ``world`` counts devices; it is needed where an axis is -1, as in the defaults.

    Raises:
        BadInput: a value that cannot be used, or the number of devices is unknown.
        Unsupported: an axis or a schedule that is not modelled.
    """
    s = Settings(dict(tables), where=where)
    notes: list[str] = []
    if str(s.get("base_config", "base.yml")).rpartition("/")[2] != "base.yml":
        notes.append(f"{s.get('base_config')} is not read: MaxText's own defaults hold where nothing is set")
    degrees, count = _mesh(s, world)
    model, problem = _model(s, notes)
    layout, batch = _layout(s, degrees, count, model, notes)
    notes += _not_modelled(s)
    return RunConfiguration(
        tool=TOOL,
        layout=layout,
        world=count,
        model=model,
        problem=problem,
        global_batch=batch,
        sequence=s.integer("max_target_length", 2048),
        precision=_precision(s, notes),
        attention="unfused" if s.word("attention", "autoselected") == "dot_product" else "flash",
        dropout=s.flag("enable_dropout", True) and _number(s, "dropout_rate", 0.0) > 0,
        gradient_bytes=2 if s.word("grad_dtype", "float32") == "bfloat16" else 4,
        ignored=s.ignored,
        notes=tuple(notes),
    )


def _mesh(s: Settings, world: int | None) -> tuple[dict[str, int], int]:
    """The degree of each axis over slices and within them, and the number of devices."""
    for axis in _UNUSED:
        for kind in ("ici", "dcn"):
            if s.integer(f"{kind}_{axis}_parallelism", 1, least=-1) > 1:
                raise Unsupported(f"the axis {axis} is not modelled", where=f"{s.where}: {kind}_{axis}_parallelism")
    outer = {axis: s.integer(f"dcn_{axis}_parallelism", -1 if axis == "data" else 1, least=-1) for axis in AXES}
    inner = {axis: s.integer(f"ici_{axis}_parallelism", -1 if axis == "fsdp" else 1, least=-1) for axis in AXES}
    stated = prod(max(degree, 1) for degree in outer.values())
    slices = s.integer("num_slices", -1, least=-1)
    slices = slices if slices > 0 else stated
    _fill(s, "dcn", outer, slices)
    if world is None:
        if -1 in inner.values():
            raise BadInput("the number of devices is not in it (an axis is -1)", where=s.where, remedy="give it")
        world = slices * prod(inner.values())
    _fill(s, "ici", inner, share_of(world, {"slices": slices}, where=s.where, unit="devices"))
    return {axis: outer[axis] * inner[axis] for axis in AXES}, world


def _fill(s: Settings, kind: str, degrees: dict[str, int], whole: int) -> None:
    """Give the axis that is -1 what the others leave of ``whole``."""
    opened = [axis for axis, degree in degrees.items() if degree < 1]
    if len(opened) > 1:
        raise s.bad(f"{kind}_{opened[1]}_parallelism", "two axes are -1", "state one of them")
    known = {axis: degree for axis, degree in degrees.items() if degree > 1}
    rest = share_of(whole, known, where=f"{s.where}: {kind}_*_parallelism", unit="devices")
    if opened:
        degrees[opened[0]] = rest
    elif rest != 1:
        product = prod(known.values())
        problem = f"the {kind} axes make {product} devices of {whole}"
        raise BadInput(problem, where=s.where, remedy=f"set one {kind} axis to -1, or correct the others")


def _layout(
    s: Settings, degrees: Mapping[str, int], world: int, model: Model | None, notes: list[str]
) -> tuple[Layout, int]:
    moe = model is not None and any(kind.moe for kind in model.kinds)
    pipeline, x = degrees["pipeline"], degrees["tensor"] * degrees["tensor_transpose"] * degrees["tensor_sequence"]
    context = degrees["context"] * degrees["context_usp_ulysses"] * degrees["sequence"]
    z = degrees["fsdp"] * degrees["fsdp_transpose"] * degrees["expert"]
    if degrees["expert"] > 1:
        notes.append("the expert axis shards the dense weights and the batch too, as MaxText's rules have it")
    if context > 1 and z > 1:
        notes.append("MaxText shards weights over context ranks too")
    ranks = z * degrees["data"]
    steps = s.integer("gradient_accumulation_steps")
    local = Fraction(_number(s, "per_device_batch_size", 12.0)).limit_denominator(10**6) * world / ranks
    micro, stages = local, s.integer("num_pipeline_microbatches", -1, least=-1)
    if pipeline > 1:
        micro = local / (stages if stages > 0 else pipeline)
    batch = local * ranks * steps
    if micro.denominator != 1 or batch.denominator != 1 or micro < 1:
        problem = f"{float(local):g} sequences on a data-parallel rank do not make whole micro-batches"
        raise s.bad("per_device_batch_size", problem, "make it a multiple of 1 / (tensor * context * pipeline)")
    recompute, offload = _recompute(s, notes)
    virtual = _repeats(s, pipeline, model, notes) if pipeline > 1 else 1
    if pipeline > 1:
        notes.append(
            "its pipeline is taken as 1F1B" if virtual == 1 else "its circular pipeline is taken as interleaved 1F1B"
        )
    ulysses = s.word("context_parallel_strategy", "all_gather") == "ulysses" or degrees["context_usp_ulysses"] > 1
    if context > 1 and not ulysses:
        notes.append("context parallelism is taken as ring attention")
    layout = Layout(
        x=x,
        z=z,
        data=degrees["data"],
        zero=1 if s.flag("shard_optimizer_over_data") and degrees["data"] > 1 else 0,
        pipeline=pipeline,
        context=context,
        context_method=ContextMethod.ULYSSES if context > 1 and ulysses else ContextMethod.RING,
        expert=degrees["expert"] if moe else 1,
        expert_tensor=x if moe else 1,
        micro_batch=int(micro),
        virtual_stages=virtual,
        schedule=PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.PLAIN,
        recompute=recompute,
        sequence_parallel=x > 1,
        offload_optimizer=s.flag("optimizer_memory_host_offload"),
        offload_activations=offload,
    )
    return layout, int(batch)


def _repeats(s: Settings, stages: int, model: Model | None, notes: list[str]) -> int:
    """Times that a micro-batch goes round the stages: as stated, or as the layers of a stage make it."""
    stated = s.integer("num_pipeline_repeats", -1, least=-1)
    if stated > 0:
        return stated
    each = s.integer("num_layers_per_pipeline_stage")
    if model is None:
        notes.append("the model's layers are unknown: its pipeline is taken to go round once")
        return 1
    layers = s.integer("pipeline_parallel_layers", -1, least=-1)
    layers = layers if layers > 0 else model.layers
    if layers % (stages * each):
        problem = f"{layers} layers do not make whole rounds of {stages} stages of {each}"
        raise s.bad("num_layers_per_pipeline_stage", problem, "choose another number")
    return layers // (stages * each)


def _not_modelled(s: Settings) -> list[str]:
    """Settings that change time or memory and that the estimate does not count."""
    found = [name for name, harmless in _NOT_MODELLED.items() if s.get(name, harmless[0]) not in harmless]
    return [f"change time or memory, and are not modelled: {', '.join(found)}"] if found else []


def _recompute(s: Settings, notes: list[str]) -> tuple[Recompute, bool]:
    policy = s.word("remat_policy", "full", *_POLICIES)
    found = _POLICIES[policy]
    if policy not in _EXACT:
        notes.append(f"remat_policy {policy} is taken as recompute={found[0]}")
    return found


def _precision(s: Settings, notes: list[str]) -> Precision:
    quantization = s.get("quantization") or ""
    if quantization:
        if "fp8" in str(quantization):
            return "fp8"
        notes.append(f"quantization {str(quantization)[:40]} is not modelled: taken as bf16")
    return "fp32" if s.word("dtype", "bfloat16") == "float32" else "bf16"


def _number(s: Settings, name: str, default: float) -> float:
    value = s.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**9:
        raise s.bad(name, f"{value!r:.40} is not a number from 0 on")
    return float(value)


def _model(s: Settings, notes: list[str]) -> tuple[Model | None, str]:
    """The model that the file shapes or names, or why there is none."""
    refused = next((name for name in _REFUSED if s.get(name)), None)
    scaled = s.integer("global_parameter_scale", 1, least=-100) != 1
    if refused or scaled:
        problem = f"{refused or 'global_parameter_scale'} changes the shape in a way that is not modelled"
    elif "base_emb_dim" in s and "decoder_block" in s:
        family = _FAMILIES.get(s.word("decoder_block", ""))
        if family is not None:
            return _shaped(s, family), ""
        problem = f"decoder_block {s.word('decoder_block', '')} is not read"
    else:
        name = s.word("model_name", "default")
        known, changed = _named(name), next((key for key in _SHAPES if key in s), None)
        if known is not None and changed is None:
            return known, ""
        if known is not None:
            problem = f"{changed} changes the shape of {name[:80]}"
        elif name == "default":
            problem = "does not state the model"
        else:
            problem = f"model_name {name[:80]} is not in the catalogue"
    notes.append(f"the model is not taken from it: {problem}")
    return None, problem


def _named(name: str) -> Model | None:
    """The catalogue's model of a MaxText name, which lacks some dashes: deepseek3-671b, gpt3-175b."""
    family = re.fullmatch(r"([a-z]+?)(\d(?:\.\d)?)?-(.+)", name)
    spellings = (
        [name] if family is None else [name, f"{family[1]}-{family[2]}-{family[3]}", f"{family[1]}-v{family[2]}"]
    )
    for spelling in spellings:
        try:
            return catalogue.load(spelling).model
        except UnknownName:
            continue
    return None


def _shaped(s: Settings, family: str) -> Model:
    """The model of the base_ settings, by the reader of the same family's config.json."""
    experts = s.integer("num_experts")
    heads = s.integer("base_num_query_heads", 16)
    values: dict[str, Any] = {
        "model_type": family,
        "hidden_size": s.integer("base_emb_dim", 2048),
        "num_hidden_layers": s.integer("base_num_decoder_layers", 16),
        "num_attention_heads": heads,
        "num_key_value_heads": s.integer("base_num_kv_heads", 16),
        "intermediate_size": s.integer("base_mlp_dim", 7168),
        "vocab_size": s.integer("vocab_size", 32_000),
        "tie_word_embeddings": s.flag("logits_via_embedding"),
        "max_position_embeddings": s.integer("max_target_length", 2048),
    }
    if family != "deepseek_v3":
        values["head_dim"] = s.integer("head_dim", 128)
    else:
        rank = s.integer("q_lora_rank", 0, least=0)
        values |= {"q_lora_rank": rank} if rank else {}
        values |= {
            "kv_lora_rank": s.integer("kv_lora_rank", 512),
            "qk_nope_head_dim": s.integer("qk_nope_head_dim", 128),
            "qk_rope_head_dim": s.integer("qk_rope_head_dim", 64),
            "v_head_dim": s.integer("v_head_dim", 128),
            "n_shared_experts": s.integer("shared_experts", 0, least=0),
            "first_k_dense_replace": s.integer("first_num_dense_layers", 0, least=0),
            "num_nextn_predict_layers": s.integer("mtp_num_layers", 0, least=0),
        }
    if family == "gpt_oss":
        values["sliding_window"] = s.integer("sliding_window_size", 128)
    if experts > 1:
        width = s.integer("base_moe_mlp_dim", -1, least=-1)
        width = width if width > 0 else values["intermediate_size"]
        active = s.integer("num_experts_per_tok")
        values |= {"num_experts_per_tok": active, "moe_intermediate_size": width}
        values |= {"num_local_experts": experts} if family in ("mixtral", "gpt_oss") else {}
        values |= {"n_routed_experts": experts} if family == "deepseek_v3" else {}
        values |= {"num_experts": experts} if family == "qwen3_moe" else {}
    return read_config(values, name=s.word("model_name", "maxtext"), where=s.where)
