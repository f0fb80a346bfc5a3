"""Megatron-LM: the argument list of ``pretrain_gpt.py`` for a layout.

Argument names are those of Megatron-LM's main branch of August 2026; most exist since Megatron-Core 0.8.
``megatron_script`` reads them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from weft.cluster.spec import Cluster
from weft.interop.launch import LaunchArguments, common_reasons, placed_like, refuse, torchrun, true_of
from weft.layout.spec import AXES, Layout
from weft.layout.stages import chunk_sizes
from weft.model.job import Job, Precision
from weft.model.megatron_args import LATENT, MIXTURE, Flag
from weft.model.spec import Attention, FeedForward, LatentAttention, MixtureOfExperts, Model

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


def write(job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """A torchrun command with every argument that fixes shape, layout and memory.

    Data, learning rate and checkpoints get placeholders for the user to replace.
    """
    refuse(TOOL, [*common_reasons(job, cluster, layout), *model_reasons(job.model), *_reasons(job, layout)])
    groups = map(true_of, (*model_arguments(job.model), *_arguments(job, layout)))
    text = " \\\n  ".join(
        [f"{torchrun(cluster, layout)} pretrain_gpt.py", *(" ".join(group) for group in groups if group)]
    )
    environment = {
        "export CUDA_DEVICE_MAX_CONNECTIONS=1  # required with tensor or context parallelism\n": (
            (layout.x > 1 or layout.context > 1) and not sharded_data(layout)
        ),
        "export NVTE_CPU_OFFLOAD_V1=1\n": layout.offload_activations,
    }
    return LaunchArguments(
        tool=TOOL,
        written_for=WRITTEN_FOR,
        text=f"#!/bin/bash\n# {WRITTEN_FOR}\n{''.join(true_of(environment))}{text}\n",
        file="megatron.sh",
        command="bash megatron.sh",
        notes=tuple(_notes(job.model, layout)),
    )


def sharded_data(layout: Layout) -> bool:
    """Whether Megatron-FSDP is needed: weights (z) or gradients (zero 2) are sharded."""
    return layout.z > 1 or layout.zero == 2


def _gathers(layout: Layout) -> bool:
    """Whether updated or sharded weights are gathered at all."""
    return layout.zero > 0 or layout.z > 1


def _reasons(job: Job, layout: Layout) -> Iterator[str]:
    if layout.schedule not in ("1f1b", "interleaved"):
        yield f"it has no schedule {layout.schedule}, only 1f1b and interleaved"
    if layout.virtual_stages > 1 and (layout.schedule != "interleaved" or layout.pipeline == 1):
        yield "virtual_stages > 1 needs the interleaved schedule and a pipeline"
    if not placed_like(layout, *AXES) and not placed_like(layout, *PIPELINE_BEFORE_DATA):
        yield f"it cannot place ranks in the order {'/'.join(layout.order)}"
    if layout.z > 1 and layout.data > 1 and layout.zero == 2:
        yield "zero 2 over data is not available beside z (fully sharded groups)"
    split_tensors = layout.x > 1 and not layout.sequence_parallel
    if split_tensors and layout.overlap_tensor == "full":
        yield "--tp-comm-overlap needs sequence_parallel"
    if split_tensors and any(block.moe for block in job.model.kinds):
        yield "experts beside tensor parallelism need sequence_parallel"
    if _gathers(layout) and layout.overlap_gather and not layout.overlap_reduce:
        yield "--overlap-param-gather needs overlap_reduce"
    if layout.offload_optimizer and not _gathers(layout):
        yield "offload_optimizer needs a distributed optimizer (zero 1)"
    if layout.recompute == "full" and layout.recompute_layers % layout.virtual_stages:
        yield "recompute_layers counts whole layers per virtual stage: make it a multiple of virtual_stages"
    if job.recipe.precision not in PRECISION_FLAGS:
        yield f"it has no argument for {job.recipe.precision}"


def _notes(model: Model, layout: Layout) -> Iterator[str]:
    if layout.x > 1 and layout.overlap_tensor == "none":
        yield "Megatron-LM overlaps the input-gradient collective of tensor parallelism anyway"
    if layout.context > 1 and _gathers(layout):
        yield "Megatron-LM shards over data and context ranks together"
    if sharded_data(layout):
        yield "leave CUDA_DEVICE_MAX_CONNECTIONS unset or above 1 with Megatron-FSDP"
    yield from model_notes(model)
    padded = -(-model.vocab // (128 * layout.x)) * 128 * layout.x
    if padded != model.vocab:
        yield f"Megatron-LM pads the vocabulary of {model.vocab} to {padded}"


def _arguments(job: Job, layout: Layout) -> list[Mapping[str, object]]:
    """Groups of the arguments of recipe and layout, each with whether it is written."""
    model, recipe = job.model, job.recipe
    x, context, moe = layout.x > 1, layout.context > 1, any(block.moe for block in model.kinds)
    shards, gathers, copies = sharded_data(layout), _gathers(layout), layout.z > 1 and layout.data > 1
    training = {
        f"--seq-length {recipe.sequence}": True,
        f"--max-position-embeddings {model.positions or recipe.sequence}": True,
        f"--micro-batch-size {layout.micro_batch}": True,
        f"--global-batch-size {recipe.global_batch}": True,
        "--train-iters 100 --lr 1e-4": True,
        "--attention-dropout 0 --hidden-dropout 0": not recipe.dropout,
        "--attention-backend unfused": recipe.attention == "unfused",
    }
    numerics = dict.fromkeys(PRECISION_FLAGS[recipe.precision], True) | {
        "--grad-reduce-in-bf16": recipe.gradient_bytes == 2,
        "--accumulate-allreduce-grads-in-fp32": recipe.precision == "fp16" and recipe.gradient_bytes != 2,
    }
    parallel = {
        f"--tensor-model-parallel-size {layout.x}": True,
        f"--pipeline-model-parallel-size {layout.pipeline}": True,
        "--sequence-parallel": x and layout.sequence_parallel,
        "--tp-comm-overlap": x and layout.overlap_tensor == "full",
        f"--context-parallel-size {layout.context}": context,
        f"--cp-comm-type {CONTEXT_FLAGS[layout.context_method]}": context,
        f"--expert-model-parallel-size {layout.expert}": moe,
        f"--expert-tensor-parallel-size {layout.expert_tensor}": moe,
        "--use-tp-pp-dp-mapping": not placed_like(layout, *AXES),
    }
    data = {
        "--use-megatron-fsdp": shards,
        f"--data-parallel-sharding-strategy optim_grads{'_params' if layout.z > 1 else ''}": shards,
        f"--num-distributed-optimizer-instances {layout.data}": copies,
        f"--outer-dp-sharding-strategy {'optim' if layout.zero else 'no_shard'}": copies,
        "--ckpt-format fsdp_dtensor": shards,
        "--use-distributed-optimizer": gathers,
        "--overlap-grad-reduce": layout.overlap_reduce,
        "--overlap-param-gather": gathers and layout.overlap_gather,
    }
    latent = any(isinstance(attention, LatentAttention) for attention in model.attentions)
    selected = ["core_attn"] if recipe.attention == "unfused" else selected_modules(moe, latent)
    full, layers = layout.recompute == "full", layout.recompute_layers // layout.virtual_stages
    offloaded = OFFLOADED + (" expert_fc1 moe_act" if moe else "")
    memory = {
        f"--recompute-granularity selective --recompute-modules {' '.join(selected)}": layout.recompute == "selective",
        "--recompute-granularity full": full,
        f"--recompute-method {'block' if layers else 'uniform'} --recompute-num-layers {layers or 1}": full,
        "--optimizer-cpu-offload --use-precision-aware-optimizer": layout.offload_optimizer,
        f"--fine-grained-activation-offloading --offload-modules {offloaded}": layout.offload_activations,
    }
    return [training, numerics, parallel, _pipeline(model, layout) if layout.pipeline > 1 else {}, data, memory]


def selected_modules(moe: bool, latent: bool) -> list[str]:
    """What selective recomputation repeats beside flash attention: norms, the experts' activation and the
    up-projections of latent attention."""
    return ["layernorm", *["moe_act"] * moe, *["mla_up_proj"] * latent]


def _pipeline(model: Model, layout: Layout) -> Mapping[str, object]:
    """Virtual stages and, where layers do not divide evenly, the split that the plan assumes."""
    behind = model.prediction_layers
    counts = chunk_sizes(model.layers, layout.pipeline * layout.virtual_stages, behind)
    uneven = len(set(counts)) > 1
    # Megatron-LM can count the embedding and the loss as a layer each: then the ends have one fewer.
    both_ends = counts[0] == counts[-1] == counts[1] - 1 and len(set(counts[1:-1])) == 1
    last = len(set(counts[:-1])) == 1 and counts[-1] == counts[0] - 1
    if uneven and (behind or not (both_ends or last)):
        return {f'--pipeline-model-parallel-layout "{stage_layout(counts, behind)}"': True}
    return {
        "--account-for-embedding-in-pipeline-split": both_ends,
        "--account-for-loss-in-pipeline-split": uneven,
        f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}": layout.virtual_stages > 1,
    }


def stage_layout(counts: tuple[int, ...], prediction_layers: int = 0) -> str:
    """Megatron's string for model chunks: embedding E, layers t, prediction layers m, loss L, | between."""
    chunks = [f"t*{count}" for count in counts]
    chunks[0] = f"E{chunks[0]}"
    chunks[-1] += ("m" * prediction_layers) + "L"
    runs = [(chunk, len(list(run))) for chunk, run in groupby(chunks)]
    text = "".join(f"({chunk}|)*{many}" if many > 1 else f"{chunk}|" for chunk, many in runs)
    return text.removesuffix("|")


# The model ------------------------------------------------------------------------------------------


def model_reasons(model: Model) -> Iterator[str]:
    """Why a model has no arguments."""
    if any(block.state_space or block.branches < 2 for block in model.kinds):
        yield "Weft does not write --hybrid-layer-pattern (state-space blocks, blocks of one part)"
    if any(block.moe and block.moe.latent for block in model.kinds):
        yield "Weft does not write --moe-latent-size (experts of projected tokens)"
    if any(
        isinstance(attention, Attention) and (attention.gated or attention.chunked) for attention in model.attentions
    ):
        yield "Weft does not write gated or chunked attention"


def model_notes(model: Model) -> Iterator[str]:
    """What the arguments say otherwise than the model."""
    attentions = model.attentions
    if any(block.parallel for block in model.kinds):
        yield "parallel attention and feed-forward blocks need an own layer spec (--spec)"
    if any(block.norms != 2 for block in model.kinds):
        yield "blocks with other than two norms need an own layer spec (--spec)"
    if any(isinstance(attention, Attention) and attention.extra_parameters for attention in attentions):
        yield "norms over all heads and learned relative biases have no argument"
    if model.embedding_norm or model.embedding_features:
        yield "a normed or narrower embedding has no argument"
    if len({attention.window for attention in attentions} - {None}) > 1:
        yield "only one window size can be given; the largest is used"
    if attentions[0].rotary and model.rope is None:
        yield "the base of the rotary positions is not known: set --rotary-base (Megatron-LM's is 10000)"
    if not model.positions and not attentions[0].rotary:
        yield "positions other than learned or rotary (ALiBi) have no argument"
    if len({block.moe.expert.intermediate for block in model.kinds if block.moe}) > 1:
        yield "layers with experts of different widths need --heterogeneous-layers-config-path"


def model_arguments(model: Model) -> list[Mapping[str, object]]:
    """Groups of a model's arguments, each with whether it is written."""
    block = model.kinds[0]
    experts = next((kind.moe for kind in model.kinds if kind.moe), None)
    dense = next((kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, FeedForward)), None)
    widest = dense or (experts.expert if experts else None)
    layers = [kind.moe.expert if kind.moe else dense for kind in model.kinds]
    biased = {linear.part == "attention" for linear in block.linears() if linear.bias}
    size = {
        f"--num-layers {model.layers}": True,
        f"--hidden-size {model.hidden}": True,
        f"--ffn-hidden-size {widest.intermediate if widest else 0}": True,
        f"--vocab-size {model.vocab} --tokenizer-type NullTokenizer --mock-data": True,
    }
    style = {
        f"--normalization {'LayerNorm' if block.norm_bias else 'RMSNorm'}": True,
        "--swiglu": any(layer and layer.gated for layer in layers),
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--disable-bias-linear": False not in biased,
        "--add-qkv-bias": biased == {True},
        f"--mtp-num-layers {model.prediction_layers}": model.prediction_layers,
    }
    return [size, style, _attention(model), _positions(model), _experts(model, experts) if experts else {}]


def _options(table: Sequence[Flag], record: object) -> dict[str, object]:
    """The flags of a record's fields: a number with its value, a switch alone."""
    values = {flag: getattr(record, field) for flag, field, _ in table}
    return {flag if value is True else f"{flag} {value}": value not in (None, False) for flag, value in values.items()}


def _attention(model: Model) -> dict[str, object]:
    attention = model.attentions[0]
    flags: dict[str, object] = {f"--num-attention-heads {attention.heads}": True}
    if isinstance(attention, LatentAttention):
        return flags | {"--multi-latent-attention": True} | _options(LATENT, attention)
    return flags | {
        f"--group-query-attention --num-query-groups {attention.kv_heads}": attention.kv_heads != attention.heads,
        f"--kv-channels {attention.head_dim}": attention.heads * attention.head_dim != model.hidden,
        "--qk-layernorm": attention.head_norms,
        "--softmax-type learnable": attention.sinks,
    }


def _positions(model: Model) -> dict[str, object]:
    """How positions are told, and which layers see a window only."""
    windows = [model.attentions[kind].window for kind in model.block_sequence()]
    widest = max((window for window in windows if window is not None), default=None)
    kind = "learned_absolute" if model.positions else "rope" if model.attentions[0].rotary else "none"
    window: dict[str, object] = {}
    if widest is not None:
        placed = pattern([int(window is not None) for window in windows])
        window = {f"--window-size {widest - 1},0": True, f'--window-attn-skip-freq "{placed}"': None in windows}
    rope = model.rope
    if kind != "rope" or rope is None:
        return {f"--position-embedding-type {kind}": True, **window}
    yarn, latent = rope.scaling == "yarn", isinstance(model.attentions[0], LatentAttention)
    return {
        f"--position-embedding-type {'yarn' if yarn and not latent else 'rope'}": True,
        f"--rotary-base {round(rope.base)}": True,
        f"--rotary-percent {rope.share:g}": rope.share != 1,
        f"--rope-type {'yarn' if yarn else 'rope'}": latent,
        f"--rotary-scaling-factor {rope.factor:g}": yarn,
        f"--use-rope-scaling --rope-scaling-factor {rope.factor:g}": rope.scaling == "llama3",
        f"--rotary-seq-len-interpolation-factor {round(rope.factor)}": rope.scaling == "linear",
        **window,
    }


def _experts(model: Model, experts: MixtureOfExperts) -> dict[str, object]:
    shared, placed = experts.shared, [int(model.kinds[kind].moe is not None) for kind in model.block_sequence()]
    return _options(MIXTURE, experts) | {
        f"--moe-ffn-hidden-size {experts.expert.intermediate}": True,
        "--moe-grouped-gemm --moe-token-dispatcher-type alltoall": True,
        f"--moe-shared-expert-intermediate-size {shared.intermediate if shared else 0}": shared,
        "--moe-shared-expert-gate": shared and experts.shared_gate,
        f'--moe-layer-freq "{pattern(placed)}"': not all(placed),
    }


def pattern(values: list[int]) -> str:
    """A list of 0 and 1 as the shortest repeated expression: [1, 0, 1, 0, 1] is "([1]*1+[0]*1)*2+[1]*1".

    The result is a Python list expression without blanks, the form that Megatron-LM evaluates.
    """
    size = len(values)
    period = next(p for p in range(1, size + 1) if all(values[i] == values[i % p] for i in range(size)))
    periods, remainder = divmod(size, period)
    unit = _runs(values[:period])
    if periods > 1 and "+" in unit:
        unit = f"({unit})*{periods}"
    elif periods > 1:
        unit = f"[{values[0]}]*{size}"
    return f"{unit}+{_runs(values[:remainder])}" if remainder else unit


def _runs(values: list[int]) -> str:
    return "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(values))
