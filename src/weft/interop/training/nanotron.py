"""nanotron: the YAML configuration of a layout.

Setting names are those of nanotron's main branch of April 2026 (``nanotron/config``).
"""

from __future__ import annotations

from typing import Any, cast

from weft.cluster.spec import Cluster
from weft.interop.text.yaml import write_yaml
from weft.interop.training.launchers import (
    LaunchArguments,
    NotExpressible,
    common_reasons,
    micro_batches,
    placed_like,
    torchrun,
)
from weft.layout.spec import AXES, Layout
from weft.model.job import Job
from weft.model.spec import Attention, FeedForward, Model

TOOL = "nanotron"
WRITTEN_FOR = "Written for nanotron's main branch of April 2026 (commit 2411b022)."
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def launch_arguments(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments | NotExpressible:
    """A complete configuration with placeholders for data, tokenizer and learning rate."""
    reasons = common_reasons(job, cluster, layout) + _reasons(job, layout) + _shape_reasons(job.model, layout)
    if reasons:
        return NotExpressible(tool=TOOL, reasons=tuple(reasons))
    start = torchrun(cluster, layout)
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=f"# {WRITTEN_FOR}\n{write_yaml(_configuration(job, layout))}",
        file="planned.yaml",
        command=f"CUDA_DEVICE_MAX_CONNECTIONS=1 {start} run_train.py --config-file planned.yaml",
        notes=tuple(_notes(job, layout)),
    )


def _reasons(job: Job, layout: Layout) -> list[str]:
    found = []
    if not placed_like(layout, *AXES):
        found.append(f"it cannot place ranks in the order {'/'.join(layout.order)}")
    if layout.z > 1 or layout.zero == 2:
        found.append("it shards the optimizer only (zero 1), not gradients or weights")
    if layout.pipeline > 1 and (layout.schedule != "1f1b" or layout.virtual_stages > 1):
        found.append("its pipeline has the 1f1b schedule only, without virtual stages")
    if layout.context > 1 and layout.context_method == "ulysses":
        found.append("its context parallelism passes keys and values (ring), not heads (ulysses)")
    if layout.recompute == "selective" or layout.recompute_layers:
        found.append("it recomputes whole layers, all of them")
    if layout.offload_optimizer or layout.offload_activations:
        found.append("it does not offload")
    if job.recipe.precision not in _TYPES:
        found.append(f"it does not train in {job.recipe.precision}")
    return found


def _shape_reasons(model: Model, layout: Layout) -> list[str]:
    """nanotron's Qwen2 model covers Llama's shape: one kind of dense, gated block."""
    if len(model.kinds) > 1:
        return ["its models have one kind of block"]
    block = model.kinds[0]
    attention, feed_forward = block.attention, block.feed_forward
    if not isinstance(attention, Attention) or not isinstance(feed_forward, FeedForward):
        return ["state-space blocks, latent attention, and experts cut as planned, are not in its models"]
    found = []
    if model.rope is not None and model.rope.share != 1:
        found.append("its heads rotate all of their features")
    if not (feed_forward.gated and attention.rotary) or block.parallel or block.norms != 2 or block.norm_bias:
        found.append("its models are like Llama: RMSNorm, rotary positions and SwiGLU")
    if attention.gated or attention.chunked or block.state_space:
        found.append("its attention is neither gated nor chunked, with no state space beside it")
    if attention.heads * attention.head_dim != model.hidden or attention.vector_parameters(bias=block.norm_bias):
        found.append("its heads share the hidden size without query and key norms")
    if attention.kv_heads < layout.x:
        found.append(f"{attention.kv_heads} key-value heads cannot be split {layout.x} ways")
    return found


def _configuration(job: Job, layout: Layout) -> dict[str, Any]:
    recipe = job.recipe
    return {
        "general": {"project": "weft", "run": "planned", "seed": 42},
        "model": {
            "dtype": _TYPES[recipe.precision],
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": _model(job, layout),
        },
        "optimizer": _optimizer(job, layout),
        "parallelism": {
            "dp": layout.data,
            "pp": layout.pipeline,
            "tp": layout.x,
            "context_parallel_size": layout.context,
            "expert_parallel_size": 1,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": layout.sequence_parallel and layout.overlap_tensor != "none",
            "recompute_layer": layout.recompute == "full",
        },
        "tokenizer": {"tokenizer_name_or_path": "gpt2"},
        "tokens": {
            "sequence_length": recipe.sequence,
            "micro_batch_size": layout.micro_batch,
            "batch_accumulation_per_replica": micro_batches(job, layout),
            "train_steps": 100,
            "val_check_interval": -1,
        },
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000},
        "data_stages": [{"name": "planned", "start_training_step": 1, "data": {"dataset": None, "seed": 42}}],
    }


def _model(job: Job, layout: Layout) -> dict[str, Any]:
    model = job.model
    block = model.kinds[0]
    attention, feed_forward = cast(Attention, block.attention), cast(FeedForward, block.feed_forward)
    return {
        "is_qwen2_config": True,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "intermediate_size": feed_forward.intermediate,
        "vocab_size": model.vocab,
        "max_position_embeddings": job.recipe.sequence,
        "rope_theta": model.rope.base if model.rope else 10_000.0,
        "attention_bias": attention.qkv_bias,
        "sliding_window_size": attention.window,
        "tie_word_embeddings": model.tied_embeddings,
        "_attn_implementation": "ring" if layout.context > 1 else "flash_attention_2",
    }


def _optimizer(job: Job, layout: Layout) -> dict[str, Any]:
    return {
        "accumulate_grad_in_fp32": job.recipe.gradient_bytes == 4,
        "clip_grad": 1.0,
        "zero_stage": layout.zero,
        "weight_decay": 0.1,
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1.0e-8,
            "torch_adam_is_fused": True,
        },
        "learning_rate_scheduler": {
            "learning_rate": 1.0e-4,
            "lr_warmup_steps": 1,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": 1.0e-5,
        },
    }


def _notes(job: Job, layout: Layout) -> list[str]:
    notes = []
    if job.model.rope is None:
        notes.append("the base of the rotary positions is not known: set rope_theta (10000 is written)")
    elif job.model.rope.scaling != "none":
        notes.append(f"rotary positions scaled by {job.model.rope.scaling} have no setting")
    if layout.pipeline > 1 and job.model.layers % layout.pipeline:
        notes.append("its stages are balanced by its own cost model of the blocks")
    if layout.x > 1 and layout.overlap_tensor == "full":
        notes.append("tensor-parallel collectives are asynchronous, not chunked with their GEMM")
    if layout.x > 1 and not layout.sequence_parallel and layout.overlap_tensor != "none":
        notes.append("tensor-parallel collectives overlap only with sequence_parallel")
    if layout.zero and layout.overlap_gather:
        notes.append("updated weights are gathered after the optimizer step, not behind compute")
    return notes
