"""Megatron-LM: the argument list of ``pretrain_gpt.py`` for a layout.

Argument names are those of Megatron-LM's main branch of August 2026; most exist since Megatron-Core 0.8.
``megatron_run`` reads them back.
"""

from __future__ import annotations

from itertools import groupby

from weft.cluster.spec import Cluster
from weft.interop.training.launchers import LaunchArguments, NotExpressible, common_reasons, placed_like, torchrun
from weft.layout.spec import AXES, Layout
from weft.layout.stages import chunk_sizes
from weft.model.job import Job, Precision
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, MixtureOfExperts, Model

TOOL = "Megatron-LM"
PIPELINE_BEFORE_DATA = ("x", "y", "context", "pipeline", "z", "data")
"""The placement that --use-tp-pp-dp-mapping selects; without it, it is that of ``AXES``."""

PRECISION_FLAGS: dict[Precision, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("--fp16",),
    "bf16": ("--bf16",),
    "fp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
CONTEXT_FLAGS = {"ring": "p2p", "ulysses": "a2a"}
OFFLOADED = "attn_norm core_attn attn_proj mlp_norm"


def launch_arguments(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments | NotExpressible:
    """A torchrun command with every argument that fixes shape, layout and memory.

    Data, learning rate and checkpoints get placeholders for the user to replace.
    """
    reasons = common_reasons(job, cluster, layout) + _reasons(job.model, layout)
    if reasons:
        return NotExpressible(tool=TOOL, reasons=tuple(reasons))
    groups = (
        *_shape(job.model),
        _attention(job.model),
        _experts(job.model),
        _training(job, layout),
        [*PRECISION_FLAGS[job.recipe.precision], *_gradients(job)],
        _parallel(job.model, layout),
        _pipeline(job.model, layout),
        _data_parallel(layout),
        _memory(job, layout),
    )
    command = f"{torchrun(cluster, layout)} pretrain_gpt.py"
    text = " \\\n  ".join([command, *(" ".join(group) for group in groups if group)])
    notes = (*_layout_notes(layout), *_model_notes(job.model))
    text = f"#!/bin/bash\n{_environment(layout)}{text}\n"
    return LaunchArguments(tool=TOOL, text=text, file="megatron.sh", command="bash megatron.sh", notes=notes)


def sharded_data(layout: Layout) -> bool:
    """Whether Megatron-FSDP is needed: weights (z) or gradients (zero 2) are sharded."""
    return layout.z > 1 or layout.zero == 2


def _reasons(model: Model, layout: Layout) -> list[str]:
    found = []
    if layout.schedule not in ("1f1b", "interleaved"):
        found.append(f"it has no schedule {layout.schedule}, only 1f1b and interleaved")
    if layout.virtual_stages > 1 and (layout.schedule != "interleaved" or layout.pipeline == 1):
        found.append("virtual_stages > 1 needs the interleaved schedule and a pipeline")
    if not placed_like(layout, *AXES) and not placed_like(layout, *PIPELINE_BEFORE_DATA):
        found.append(f"it cannot place ranks in the order {'/'.join(layout.order)}")
    if layout.z > 1 and layout.data > 1 and layout.zero == 2:
        found.append("zero 2 over data is not available beside z (fully sharded groups)")
    split_tensors = layout.x > 1 and not layout.sequence_parallel
    if split_tensors and layout.overlap_tensor == "full":
        found.append("--tp-comm-overlap needs sequence_parallel")
    if split_tensors and any(block.moe for block in model.kinds):
        found.append("experts beside tensor parallelism need sequence_parallel")
    if _gathers(layout) and layout.overlap_gather and not layout.overlap_reduce:
        found.append("--overlap-param-gather needs overlap_reduce")
    if layout.offload_optimizer and not _gathers(layout):
        found.append("offload_optimizer needs a distributed optimizer (zero 1)")
    if layout.recompute == "full" and layout.recompute_layers % layout.virtual_stages:
        found.append("recompute_layers counts whole layers per virtual stage: make it a multiple of virtual_stages")
    return found


def _gathers(layout: Layout) -> bool:
    """Whether updated or sharded weights are gathered at all."""
    return layout.zero > 0 or layout.z > 1


def _environment(layout: Layout) -> str:
    lines = []
    if (layout.x > 1 or layout.context > 1) and not sharded_data(layout):
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1  # required with tensor or context parallelism\n")
    if layout.offload_activations:
        lines.append("export NVTE_CPU_OFFLOAD_V1=1\n")
    return "".join(lines)


def _layout_notes(layout: Layout) -> list[str]:
    notes = []
    if layout.x > 1 and layout.overlap_tensor == "none":
        notes.append("Megatron-LM overlaps the input-gradient collective of tensor parallelism anyway")
    if layout.context > 1 and _gathers(layout):
        notes.append("Megatron-LM shards over data and context ranks together")
    if sharded_data(layout):
        notes.append("leave CUDA_DEVICE_MAX_CONNECTIONS unset or above 1 with Megatron-FSDP")
    return notes


def _shape(model: Model) -> list[list[str]]:
    block = model.kinds[0]
    size = [f"--num-layers {model.layers}", f"--hidden-size {model.hidden}"]
    size.append(f"--ffn-hidden-size {_dense_width(model)}")
    size += [f"--vocab-size {model.vocab}", "--tokenizer-type NullTokenizer", "--mock-data"]
    style = [f"--normalization {'LayerNorm' if block.norm_bias else 'RMSNorm'}"]
    if any(_gated(kind) for kind in model.kinds):
        style.append("--swiglu")
    if not model.tied_embeddings:
        style.append("--untie-embeddings-and-output-weights")
    if not any(linear.bias for linear in block.linears() if linear.part != "attention"):
        style.append("--disable-bias-linear")
        if any(linear.bias for linear in block.linears()):
            style.append("--add-qkv-bias")
    if model.prediction_layers:
        style.append(f"--mtp-num-layers {model.prediction_layers}")
    return [size, style]


def _dense_width(model: Model) -> int:
    """Width of the dense feed-forward layers, or of an expert where there are none."""
    for block in model.kinds:
        if isinstance(block.feed_forward, FeedForward):
            return block.feed_forward.intermediate
    return _expert(model.kinds[0])


def _expert(block: Block) -> int:
    return block.moe.expert.intermediate if block.moe else 0


def _gated(block: Block) -> bool:
    return (
        block.moe.expert.gated
        if block.moe
        else isinstance(block.feed_forward, FeedForward) and block.feed_forward.gated
    )


def _attention(model: Model) -> list[str]:
    attention = model.kinds[0].attention
    flags = [f"--num-attention-heads {attention.heads}"]
    if isinstance(attention, LatentAttention):
        flags.append("--multi-latent-attention")
        flags += [f"--q-lora-rank {attention.q_rank}"] if attention.q_rank else []
        flags += [f"--kv-lora-rank {attention.kv_rank}", f"--qk-head-dim {attention.nope_dim}"]
        flags += [f"--qk-pos-emb-head-dim {attention.rope_dim}", f"--v-head-dim {attention.value_dim}"]
        flags += ["--qk-layernorm"] if attention.extra_parameters else []
    else:
        flags += _grouped(model, attention)
    flags.append(_positions(model))
    return flags + _windows(model)


def _grouped(model: Model, attention: Attention) -> list[str]:
    flags = []
    if attention.kv_heads != attention.heads:
        flags.append(f"--group-query-attention --num-query-groups {attention.kv_heads}")
    if attention.heads * attention.head_dim != model.hidden:
        flags.append(f"--kv-channels {attention.head_dim}")
    norms = 2 * attention.head_dim * (2 if model.kinds[0].norm_bias else 1)
    if attention.extra_parameters >= norms:
        flags.append("--qk-layernorm")
    if attention.extra_parameters % norms == attention.heads:
        flags.append("--softmax-type learnable")
    return flags


def _positions(model: Model) -> str:
    if model.positions:
        return "--position-embedding-type learned_absolute"
    return f"--position-embedding-type {'rope' if model.kinds[0].attention.rotary else 'none'}"


def _windows(model: Model) -> list[str]:
    windows = [model.kinds[kind].attention.window for kind in model.block_sequence()]
    widest = max((window for window in windows if window is not None), default=None)
    if widest is None:
        return []
    flags = [f"--window-size {widest - 1},0"]
    if None in windows:
        flags.append(f'--window-attn-skip-freq "{pattern([int(window is not None) for window in windows])}"')
    return flags


def _experts(model: Model) -> list[str]:
    moe = next((block.moe for block in model.kinds if block.moe), None)
    if moe is None:
        return []
    flags = [f"--num-experts {moe.experts}", f"--moe-router-topk {moe.top_k}"]
    flags += [f"--moe-ffn-hidden-size {moe.expert.intermediate}", "--moe-grouped-gemm"]
    flags.append("--moe-token-dispatcher-type alltoall")
    if moe.shared is not None:
        flags.append(f"--moe-shared-expert-intermediate-size {moe.shared.intermediate}")
        if moe.extra_parameters >= model.hidden:
            flags.append("--moe-shared-expert-gate")
    if moe.extra_parameters % model.hidden == moe.experts:
        flags.append("--moe-router-enable-expert-bias")
    placed = [int(model.kinds[kind].moe is not None) for kind in model.block_sequence()]
    if not all(placed):
        flags.append(f'--moe-layer-freq "{pattern(placed)}"')
    return flags


def pattern(values: list[int]) -> str:
    """A list of 0 and 1 as the shortest repeated expression: [1, 0, 1, 0, 1] is "([1]*1+[0]*1)*2+[1]*1".

    The result is a Python list expression without blanks, the form that Megatron-LM evaluates.
    """
    size = len(values)
    period = next(p for p in range(1, size + 1) if all(values[i] == values[i % p] for i in range(size)))
    whole, rest = divmod(size, period)
    unit = _runs(values[:period])
    if whole > 1 and "+" in unit:
        unit = f"({unit})*{whole}"
    elif whole > 1:
        unit = f"[{values[0]}]*{size}"
    return f"{unit}+{_runs(values[:rest])}" if rest else unit


def _runs(values: list[int]) -> str:
    return "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(values))


def _model_notes(model: Model) -> list[str]:
    notes = []
    blocks = model.kinds
    if any(block.parallel for block in blocks):
        notes.append("parallel attention and feed-forward blocks need an own layer spec (--spec)")
    if any(block.norms != 2 for block in blocks):
        notes.append("blocks with other than two norms need an own layer spec (--spec)")
    if model.embedding_norm or model.embedding_features:
        notes.append("a normed or narrower embedding has no argument")
    if len({block.attention.window for block in blocks} - {None}) > 1:
        notes.append("only one window size can be given; the largest is used")
    if not model.positions and not blocks[0].attention.rotary:
        notes.append("positions other than learned or rotary (ALiBi) have no argument")
    widths = {_expert(block) if block.moe else _dense_width(model) for block in blocks if block.moe}
    if len(widths) > 1:
        notes.append("layers with experts of different widths need --heterogeneous-layers-config-path")
    return notes


def _training(job: Job, layout: Layout) -> list[str]:
    recipe = job.recipe
    rows = job.model.positions or recipe.sequence
    flags = [f"--seq-length {recipe.sequence}", f"--max-position-embeddings {rows}"]
    flags += [f"--micro-batch-size {layout.micro_batch}", f"--global-batch-size {recipe.global_batch}"]
    flags += ["--train-iters 100", "--lr 1e-4"]
    if not recipe.dropout:
        flags.append("--attention-dropout 0 --hidden-dropout 0")
    if recipe.attention == "unfused":
        flags.append("--attention-backend unfused")
    return flags


def _gradients(job: Job) -> list[str]:
    if job.recipe.gradient_bytes == 2:
        return ["--grad-reduce-in-bf16"]
    return ["--accumulate-allreduce-grads-in-fp32"] if job.recipe.precision == "fp16" else []


def _parallel(model: Model, layout: Layout) -> list[str]:
    flags = [f"--tensor-model-parallel-size {layout.x}", f"--pipeline-model-parallel-size {layout.pipeline}"]
    if layout.x > 1 and layout.sequence_parallel:
        flags.append("--sequence-parallel")
    if layout.x > 1 and layout.overlap_tensor == "full":
        flags.append("--tp-comm-overlap")
    if layout.context > 1:
        flags.append(f"--context-parallel-size {layout.context}")
        flags.append(f"--cp-comm-type {CONTEXT_FLAGS[layout.context_method]}")
    if any(block.moe for block in model.kinds):
        flags.append(f"--expert-model-parallel-size {layout.expert}")
        flags.append(f"--expert-tensor-parallel-size {layout.expert_tensor}")
    if not placed_like(layout, *AXES):
        flags.append("--use-tp-pp-dp-mapping")
    return flags


def _pipeline(model: Model, layout: Layout) -> list[str]:
    """Virtual stages and, where layers do not divide evenly, the split that the plan assumes."""
    if layout.pipeline == 1:
        return []
    behind = model.prediction_layers
    counts = chunk_sizes(model.layers, layout.pipeline * layout.virtual_stages, behind)
    flags = []
    if behind and len(set(counts)) > 1:
        return [f'--pipeline-model-parallel-layout "{stage_layout(counts, behind)}"']
    if counts[0] == counts[-1] and len(set(counts[1:-1])) <= 1 and counts[0] == counts[1] - 1:
        flags = ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    elif len(set(counts[:-1])) == 1 and counts[-1] == counts[0] - 1:
        flags = ["--account-for-loss-in-pipeline-split"]
    elif len(set(counts)) > 1:
        return [f'--pipeline-model-parallel-layout "{stage_layout(counts, behind)}"']
    if layout.virtual_stages > 1:
        flags.append(f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}")
    return flags


def stage_layout(counts: tuple[int, ...], prediction_layers: int = 0) -> str:
    """Megatron's string for model chunks: embedding E, layers t, prediction layers m, loss L, | between."""
    chunks = [f"t*{count}" for count in counts]
    chunks[0] = f"E{chunks[0]}"
    chunks[-1] += ("m" * prediction_layers) + "L"
    runs = [(chunk, len(list(run))) for chunk, run in groupby(chunks)]
    text = "".join(f"({chunk}|)*{many}" if many > 1 else f"{chunk}|" for chunk, many in runs)
    return text.removesuffix("|")


def _data_parallel(layout: Layout) -> list[str]:
    flags = []
    if layout.z > 1:
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"]
        if layout.data > 1:
            flags.append(f"--num-distributed-optimizer-instances {layout.data}")
            flags.append(f"--outer-dp-sharding-strategy {'optim' if layout.zero else 'no_shard'}")
    elif layout.zero == 2:
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads"]
    if sharded_data(layout):
        flags.append("--ckpt-format fsdp_dtensor")
    if _gathers(layout):
        flags.append("--use-distributed-optimizer")
    if layout.overlap_reduce:
        flags.append("--overlap-grad-reduce")
    if _gathers(layout) and layout.overlap_gather:
        flags.append("--overlap-param-gather")
    return flags


def _selective_modules(job: Job) -> str:
    """What selective recomputation repeats: the core of unfused attention, else norms and the experts'
    activation."""
    if job.recipe.attention == "unfused":
        return "core_attn"
    return "layernorm moe_act" if any(kind.moe for kind in job.model.kinds) else "layernorm"


def _memory(job: Job, layout: Layout) -> list[str]:
    model, flags = job.model, []
    if layout.recompute == "selective":
        modules = _selective_modules(job)
        flags.append(f"--recompute-granularity selective --recompute-modules {modules}")
    elif layout.recompute == "full":
        flags.append("--recompute-granularity full")
        layers = layout.recompute_layers // layout.virtual_stages
        method = "block" if layers else "uniform"
        flags.append(f"--recompute-method {method} --recompute-num-layers {layers or 1}")
    if layout.offload_optimizer:
        flags.append("--optimizer-cpu-offload --use-precision-aware-optimizer")
    if layout.offload_activations:
        moe = any(isinstance(block.feed_forward, MixtureOfExperts) for block in model.kinds)
        modules = OFFLOADED + (" expert_fc1 moe_act" if moe else "")
        flags.append(f"--fine-grained-activation-offloading --offload-modules {modules}")
    return flags
