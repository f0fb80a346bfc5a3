"""Megatron-LM: the argument list of ``pretrain_gpt.py`` for a layout, and the layout, model and recipe of a run.

Argument names are those of Megatron-LM's main branch of August 2026; most exist since Megatron-Core 0.8.
``read`` reads them back, from a shell script or from the arguments alone.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import replace
from itertools import groupby
from typing import Any

from weft.cluster.spec import Cluster
from weft.errors import BadInput, Unsupported
from weft.interop.text.settings import Settings, share_of
from weft.interop.training.launchers import (
    LaunchArguments,
    NotExpressible,
    RunConfiguration,
    common_reasons,
    placed_like,
    torchrun,
)
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.stages import chunk_sizes
from weft.model.job import Job, Precision
from weft.model.megatron_args import Arguments, attention_kernel, parse_arguments, read_megatron_args, read_numerics
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, MixtureOfExperts, Model

TOOL = "Megatron-LM"
WRITTEN_FOR = "Written for Megatron-LM's main branch of August 2026 (commit d98e8a64, Megatron-Core 0.20)."
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
    if job.recipe.precision not in PRECISION_FLAGS:
        reasons.append(f"it has no argument for {job.recipe.precision}")
    if reasons:
        return NotExpressible(tool=TOOL, reasons=tuple(reasons))
    groups = (
        *_shape(job.model),
        _attention(job.model),
        [*_positions(job.model), *_windows(job.model)],
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
    notes = (*_layout_notes(layout), *_model_notes(job.model), *_padding(job.model, layout))
    text = f"#!/bin/bash\n# {WRITTEN_FOR}\n{_environment(layout)}{text}\n"
    return LaunchArguments(
        tool=TOOL, written_for=WRITTEN_FOR, text=text, file="megatron.sh", command="bash megatron.sh", notes=notes
    )


def _padding(model: Model, layout: Layout) -> list[str]:
    padded = -(-model.vocab // (128 * layout.x)) * 128 * layout.x
    return [f"Megatron-LM pads the vocabulary of {model.vocab} to {padded}"] if padded != model.vocab else []


def sharded_data(layout: Layout) -> bool:
    """Whether Megatron-FSDP is needed: weights (z) or gradients (zero 2) are sharded."""
    return layout.z > 1 or layout.zero == 2


def _reasons(model: Model, layout: Layout) -> list[str]:
    found = []
    if any(block.state_space or block.branches < 2 for block in model.kinds):
        found.append("Weft does not write --hybrid-layer-pattern (state-space blocks, blocks of one part)")
    if any(block.moe and block.moe.latent for block in model.kinds):
        found.append("Weft does not write --moe-latent-size (experts of projected tokens)")
    if any(isinstance(one, Attention) and (one.gated or one.chunked) for one in model.attentions):
        found.append("Weft does not write gated or chunked attention")
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
    attention = model.attentions[0]
    flags = [f"--num-attention-heads {attention.heads}"]
    if isinstance(attention, LatentAttention):
        flags.append("--multi-latent-attention")
        flags += [f"--q-lora-rank {attention.q_rank}"] if attention.q_rank else []
        flags += [f"--kv-lora-rank {attention.kv_rank}", f"--qk-head-dim {attention.nope_dim}"]
        flags += [f"--qk-pos-emb-head-dim {attention.rope_dim}", f"--v-head-dim {attention.value_dim}"]
        flags += ["--qk-layernorm"] if attention.latent_norms else []
    else:
        flags += _grouped(model, attention)
    return flags


def _grouped(model: Model, attention: Attention) -> list[str]:
    flags = []
    if attention.kv_heads != attention.heads:
        flags.append(f"--group-query-attention --num-query-groups {attention.kv_heads}")
    if attention.heads * attention.head_dim != model.hidden:
        flags.append(f"--kv-channels {attention.head_dim}")
    if attention.head_norms:
        flags.append("--qk-layernorm")
    if attention.sinks:
        flags.append("--softmax-type learnable")
    return flags


def _positions(model: Model) -> list[str]:
    if model.positions:
        return ["--position-embedding-type learned_absolute"]
    if not model.attentions[0].rotary:
        return ["--position-embedding-type none"]
    rope = model.rope
    if rope is None:
        return ["--position-embedding-type rope"]
    latent = isinstance(model.attentions[0], LatentAttention)
    kind = "yarn" if rope.scaling == "yarn" and not latent else "rope"
    flags = [f"--position-embedding-type {kind}", f"--rotary-base {round(rope.base)}"]
    flags += [f"--rotary-percent {rope.share:g}"] if rope.share != 1 else []
    if latent:
        flags.append(f"--rope-type {'yarn' if rope.scaling == 'yarn' else 'rope'}")
    if rope.scaling == "yarn":
        flags.append(f"--rotary-scaling-factor {rope.factor:g}")
    elif rope.scaling == "llama3":
        flags.append(f"--use-rope-scaling --rope-scaling-factor {rope.factor:g}")
    elif rope.scaling == "linear":
        flags.append(f"--rotary-seq-len-interpolation-factor {round(rope.factor)}")
    return flags


def _windows(model: Model) -> list[str]:
    windows = [model.attentions[kind].window for kind in model.block_sequence()]
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
        if moe.shared_gate:
            flags.append("--moe-shared-expert-gate")
    if moe.balance_bias:
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
    if any(isinstance(attention, Attention) and attention.extra_parameters for attention in model.attentions):
        notes.append("norms over all heads and learned relative biases have no argument")
    if model.embedding_norm or model.embedding_features:
        notes.append("a normed or narrower embedding has no argument")
    if len({attention.window for attention in model.attentions} - {None}) > 1:
        notes.append("only one window size can be given; the largest is used")
    if model.attentions[0].rotary and model.rope is None:
        notes.append("the base of the rotary positions is not known: set --rotary-base (Megatron-LM's is 10000)")
    if not model.positions and not model.attentions[0].rotary:
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
    """What selective recomputation repeats: the core of unfused attention, else norms, the experts' activation and
    the up-projections of latent attention."""
    if job.recipe.attention == "unfused":
        return "core_attn"
    modules = "layernorm moe_act" if any(kind.moe for kind in job.model.kinds) else "layernorm"
    latent = any(isinstance(one, LatentAttention) for one in job.model.attentions)
    return f"{modules} mla_up_proj" if latent else modules


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


_OTHER_PROGRAM = re.compile(r"(bert|t5|biencoder|ict|vision|retro|vlm|mimo|multimodal)[^/]*(?:/[^/]*)?\.py\Z")
NOT_MODELLED = (
    "--cpu-offloading-num-layers",
    "--cuda-graph-impl",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--defer-embedding-wgrad-compute",
    "--delay-wgrad-compute",
    "--distribute-saved-activations",
    "--enable-cuda-graph",
    "--exp-avg-dtype",
    "--exp-avg-sq-dtype",
    "--external-cuda-graph",
    "--fp8-param-gather",
    "--hierarchical-context-parallel-sizes",
    "--main-params-dtype",
    "--microbatch-group-size-per-virtual-pipeline-stage",
    "--moe-expert-capacity-factor",
    "--moe-pad-expert-input-to-capacity",
    "--no-overlap-p2p-communication",
    "--optimizer-offload-fraction",
    "--overlap-moe-expert-parallel-comm",
    "--overlap-param-gather-with-optimizer-step",
    "--rampup-batch-size",
    "--step-batch-size-schedule",
)
"""Flags that a reader should hear of, though no number of the estimate follows them."""
_TORCHRUN = ("--nnodes", "--nproc-per-node")
_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")


def read(
    text: str, *, where: str = "arguments", world: int | None = None, vocab: int | None = None
) -> RunConfiguration:
    """What a Megatron-LM command runs.

    ``world`` counts accelerators; without it, torchrun's --nnodes and --nproc-per-node must be in the text.
    ``vocab`` is the tokenizer's vocabulary, where the command leaves it to the tokenizer.

    Raises:
        BadInput: a value that cannot be used, or the number of accelerators is unknown.
        Unsupported: it trains something else than a decoder.
    """
    parsed = parse_arguments(text, where=where)
    if other := _OTHER_PROGRAM.search(parsed.program):
        raise Unsupported(
            f"{parsed.program} trains something else than a decoder ({other[1]})",
            where=where,
            remedy="give a script that starts pretrain_gpt.py",
        )
    settings = Settings(dict(map(_torchrun, parsed.values.items())), where=where)
    flags = Arguments(values=settings, where=where)
    notes = list(parsed.notes)
    count = world or _world(flags)
    layout = _layout(flags, count, notes)
    found = _recipe(flags, notes) | _model(flags, vocab, notes)
    notes += _not_modelled(flags)
    return RunConfiguration(
        tool=TOOL, layout=layout, world=count, ignored=settings.ignored, notes=tuple(notes), **found
    )


def _recipe(flags: Arguments, notes: list[str]) -> dict[str, Any]:
    """The recipe's fields that the command states; what it leaves to a variable is noted."""
    found: dict[str, Any] = read_numerics(flags) if flags.has("--num-layers") else {}
    for name, flag in (("global_batch", "--global-batch-size"), ("sequence", "--seq-length")):
        if "$" in flags.text(flag):
            notes.append(f"{flag} is not stated ({flags.text(flag)} has no value in the text)")
        else:
            found[name] = flags.optional_integer(flag)
    return found


def _not_modelled(flags: Arguments) -> list[str]:
    """Flags that change time or memory in ways that the estimate does not count."""
    found = [flag for flag in NOT_MODELLED if flags.has(flag)]
    return [f"change time or memory, and are not modelled: {', '.join(found)}"] if found else []


def _torchrun(item: tuple[str, str]) -> tuple[str, str]:
    """torchrun takes its arguments with either dash, and a script's name follows the last one's value."""
    name = item[0].replace("_", "-")
    return (name, item[1].split(" ")[0]) if name in _TORCHRUN else item


def _world(flags: Arguments) -> int:
    stated = [flags.text(name) for name in _TORCHRUN if flags.has(name)]
    if not stated or any("$" in value for value in stated):
        raise BadInput(
            "the number of accelerators is not in the text",
            where=flags.where,
            remedy="give it, or the torchrun line with --nnodes and --nproc-per-node",
        )
    return flags.integer("--nnodes", 1) * flags.integer("--nproc-per-node", 1)


def _model(flags: Arguments, vocab: int | None, notes: list[str]) -> dict[str, Any]:
    """The model, or the problem where the command does not state all of it."""
    try:
        return {"model": read_megatron_args(flags, vocab=vocab)}
    except BadInput as error:
        problem = f"{error.where}: {error.what}".removeprefix(f"{flags.where}: ")
        notes.append(f"the model is not taken from it: {problem}")
        return {"problem": problem}


def _layout(flags: Arguments, world: int, notes: list[str]) -> Layout:
    """The layout that arguments give ``world`` accelerators; ``notes`` takes what was assumed.

    Raises:
        BadInput: a value that cannot be used, or degrees that do not divide the accelerators.
    """
    degrees = {
        "tensor": flags.integer("--tensor-model-parallel-size", 1),
        "pipeline": flags.integer("--pipeline-model-parallel-size", 1),
        "context": flags.integer("--context-parallel-size", 1),
    }
    data = share_of(world, degrees, where=flags.where)
    x = degrees["tensor"]
    virtual = _virtual_stages(flags, degrees["pipeline"])
    moe = flags.has("--num-experts")
    recompute, layers = _recompute(flags, virtual, notes)
    layout = Layout(
        x=x,
        data=data,
        pipeline=degrees["pipeline"],
        context=degrees["context"],
        expert=flags.integer("--expert-model-parallel-size", 1) if moe else 1,
        expert_tensor=flags.integer("--expert-tensor-parallel-size", x) if moe else 1,
        micro_batch=flags.integer("--micro-batch-size", 1),
        virtual_stages=virtual,
        schedule=PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.PLAIN,
        recompute=recompute,
        recompute_layers=layers,
        sequence_parallel=x > 1 and flags.has("--sequence-parallel"),
        context_method=_context_method(flags, notes),
        overlap_tensor=TensorOverlap.FULL if x > 1 and flags.has("--tp-comm-overlap") else TensorOverlap.BACKWARD,
        overlap_reduce=flags.has("--overlap-grad-reduce"),
        offload_optimizer=flags.has("--optimizer-cpu-offload"),
        offload_activations=flags.has("--fine-grained-activation-offloading"),
        order=PIPELINE_BEFORE_DATA if flags.has("--use-tp-pp-dp-mapping") else AXES,
    )
    return _sharded(flags, layout)


def _virtual_stages(flags: Arguments, pipeline: int) -> int:
    layout = flags.text("--pipeline-model-parallel-layout")
    if layout:
        return _layout_stages(flags, layout, pipeline)
    if flags.has("--num-layers-per-virtual-pipeline-stage"):
        ends = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
        layers = flags.integer("--num-layers") + sum(flags.has(flag) for flag in ends)
        each = flags.integer("--num-layers-per-virtual-pipeline-stage")
        if layers % (pipeline * each):
            problem = f"{layers} layers on {pipeline} stages do not split into virtual stages of {each}"
            raise flags.bad("--num-layers-per-virtual-pipeline-stage", problem)
        return layers // (pipeline * each)
    return flags.integer("--num-virtual-stages-per-pipeline-rank", 1)


def _layout_stages(flags: Arguments, layout: str, pipeline: int) -> int:
    """Virtual stages of a layout string such as "Et|(tt|)*29m|L": its chunks are one more than its bars."""
    name = "--pipeline-model-parallel-layout"
    if "|*" in layout or not re.fullmatch(r"(?:[EtmL|,*0-9]|\([EtmL|,*0-9]*\))*", layout):
        raise flags.bad(name, f"{reprlib.repr(layout)} cannot be read", 'write it like "Et|(tt|)*6tL"')
    repeated = re.findall(r"\(([^()]*)\)(?:\*([0-9]{1,4}))?", layout)
    chunks: int = 1 + re.sub(r"\([^()]*\)", "", layout).count("|")
    chunks += sum(group.count("|") * int(times or 1) for group, times in repeated)
    if chunks % pipeline:
        raise flags.bad(name, f"{chunks} chunks do not spread evenly over {pipeline} stages")
    return chunks // pipeline


def _recompute(flags: Arguments, virtual: int, notes: list[str]) -> tuple[Recompute, int]:
    """Recomputation and, for the block method, how many layers of a stage it covers."""
    granularity = flags.text("--recompute-granularity")
    if flags.has("--recompute-activations") or granularity == "selective":
        return _selective(flags, notes), 0
    before_2022 = flags.text("--activations-checkpoint-method")
    if granularity != "full" and not flags.has("--checkpoint-activations") and not before_2022:
        return Recompute.NONE, 0
    layers = flags.integer("--recompute-num-layers", flags.integer("--activations-checkpoint-num-layers", 1))
    if flags.text("--recompute-method", before_2022) == "block":
        return Recompute.FULL, layers * virtual
    if layers > 1:
        notes.append(f"recomputing {layers} layers at a time is taken as one at a time")
    return Recompute.FULL, 0


def _selective(flags: Arguments, notes: list[str]) -> Recompute:
    """Selective recomputation as Weft means it: the core of unfused attention, norms (experts' activation, latent
    attention's up-projections) with flash."""
    modules = set(flags.text("--recompute-modules", "core_attn").split())
    if attention_kernel(flags) == "unfused":
        if modules != {"core_attn"}:
            notes.append(f"recomputing {' '.join(sorted(modules))} is taken as the attention core")
        return Recompute.SELECTIVE
    if not modules & {"layernorm", "moe_act", "mla_up_proj", "mlp", "moe"}:
        notes.append("recomputing the core of flash attention saves no memory; its small cost is left out")
        return Recompute.NONE
    experts, latent = flags.has("--num-experts"), flags.has("--multi-latent-attention")
    meant = ["layernorm", *["moe_act"] * experts, *["mla_up_proj"] * latent]
    if modules != set(meant):
        notes.append(f"recomputing {' '.join(sorted(modules))} is taken as {' '.join(meant)}")
    return Recompute.SELECTIVE


def _context_method(flags: Arguments, notes: list[str]) -> ContextMethod:
    kind = flags.text("--cp-comm-type", "p2p").split()[0]
    if kind not in ("p2p", "a2a"):
        notes.append(f"context parallelism by {kind} is taken as ring attention")
    return ContextMethod.ULYSSES if kind == "a2a" else ContextMethod.RING


def _sharded(flags: Arguments, layout: Layout) -> Layout:
    """The layout with its data-parallel ranks split into z and data, and what is sharded over data."""
    strategy = _strategy(flags)
    gather = flags.has("--overlap-param-gather") if strategy != "no_shard" else True
    if strategy != "optim_grads_params":
        return replace(layout, zero=_STRATEGIES.index(strategy), overlap_gather=gather)
    copies = flags.integer("--num-distributed-optimizer-instances", 1)
    if layout.data % copies:
        problem = f"{copies} instances do not divide {layout.data} data-parallel ranks"
        raise flags.bad("--num-distributed-optimizer-instances", problem)
    outer = flags.text("--outer-dp-sharding-strategy", "no_shard")
    return replace(layout, z=layout.data // copies, data=copies, zero=int(outer == "optim"), overlap_gather=gather)


def _strategy(flags: Arguments) -> str:
    """What is sharded over the data-parallel ranks, in Megatron's words."""
    if flags.has("--use-torch-fsdp2"):
        return "optim_grads" if flags.has("--torch-fsdp2-no-reshard-after-forward") else "optim_grads_params"
    if flags.has("--use-megatron-fsdp") or flags.has("--use-custom-fsdp"):
        strategy = flags.text("--data-parallel-sharding-strategy", "optim_grads_params")
        if strategy not in _STRATEGIES:
            problem = f"{reprlib.repr(strategy)} is not known"
            raise flags.bad("--data-parallel-sharding-strategy", problem, f"use {', '.join(_STRATEGIES)}")
        return strategy
    return "optim" if flags.has("--use-distributed-optimizer") else "no_shard"
