"""Megatron-LM: the argument list of ``pretrain_gpt.py`` for a layout, and what a command or script runs.

Argument names are those of Megatron-LM's main branch of August 2026; most exist since Megatron-Core 0.8.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from weft.cluster.spec import Cluster
from weft.errors import BadInput, Unsupported
from weft.interop.launch import (
    LaunchArguments,
    RunConfiguration,
    common_reasons,
    placed_like,
    refuse,
    torchrun,
    true_of,
)
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.stages import chunk_sizes
from weft.model.job import Job, Precision
from weft.model.megatron_args import (
    LATENT,
    MIXTURE,
    Arguments,
    Flag,
    attention_kernel,
    parse_arguments,
    read_megatron_args,
    read_numerics,
)
from weft.model.settings import share_of
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


# Scripts, read -------------------------------------------------------------------------------------------------

DEGREES = (
    Flag("--tensor-model-parallel-size", "x", 1),
    Flag("--pipeline-model-parallel-size", "pipeline", 1),
    Flag("--context-parallel-size", "context", 1),
)
SWITCHES = (
    Flag("--micro-batch-size", "micro_batch", 1),
    Flag("--overlap-grad-reduce", "overlap_reduce", False),
    Flag("--optimizer-cpu-offload", "offload_optimizer", False),
    Flag("--fine-grained-activation-offloading", "offload_activations", False),
)
"""Arguments that are one field of ``Layout``."""
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
        Unsupported: it trains something else than a decoder.
    """
    parsed = parse_arguments(text, where=where)
    if program := _OTHER_PROGRAM.search(parsed.program):
        raise Unsupported(
            f"{parsed.program} trains something else than a decoder ({program[1]})",
            where=where,
            remedy="give a script that starts pretrain_gpt.py",
        )
    flags, notes = replace(parsed, data=dict(map(_torchrun, parsed.data.items()))), list(parsed.notes)
    count = world or _world(flags)
    layout = _layout(flags, count, notes)
    stated: dict[str, Any] = read_numerics(flags) if flags.has("--num-layers") else {}
    for name, flag in (("global_batch", "--global-batch-size"), ("sequence", "--seq-length")):
        if "$" in flags.text(flag):
            notes.append(f"{flag} is not stated ({flags.text(flag)} has no value in the text)")
        else:
            stated[name] = flags.optional_integer(flag)
    try:
        stated["model"] = read_megatron_args(flags, vocab=vocab)
    except BadInput as error:
        stated["problem"] = f"{error.where}: {error.what}".removeprefix(f"{where}: ")
        notes.append(f"the model is not taken from it: {stated['problem']}")
    if uncounted := ", ".join(filter(flags.has, NOT_MODELLED)):
        notes.append(f"change time or memory, and are not modelled: {uncounted}")
    return RunConfiguration(tool=TOOL, layout=layout, world=count, ignored=flags.ignored, notes=tuple(notes), **stated)


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
    return flags.count("--nnodes") * flags.count("--nproc-per-node")


def _layout(flags: Arguments, world: int, notes: list[str]) -> Layout:
    """The layout that arguments give ``world`` accelerators; ``notes`` takes what was assumed."""
    fields = flags.fields(DEGREES)
    x, pipeline, context = fields.values()
    data = share_of(world, {"tensor": x, "pipeline": pipeline, "context": context}, where=flags.where)
    virtual = _virtual_stages(flags, pipeline)
    if flags.has("--num-experts"):
        fields["expert"] = flags.count("--expert-model-parallel-size")
        fields["expert_tensor"] = flags.integer("--expert-tensor-parallel-size", default=x)
    recompute, layers = _recompute(flags, virtual, notes)
    layout = Layout(
        **fields,
        **flags.fields(SWITCHES),
        data=data,
        virtual_stages=virtual,
        schedule=PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.PLAIN,
        recompute=recompute,
        recompute_layers=layers,
        sequence_parallel=x > 1 and flags.has("--sequence-parallel"),
        context_method=_context_method(flags, notes),
        overlap_tensor=TensorOverlap.FULL if x > 1 and flags.has("--tp-comm-overlap") else TensorOverlap.BACKWARD,
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
    return flags.count("--num-virtual-stages-per-pipeline-rank")


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
    layers = flags.integer("--recompute-num-layers", default=flags.count("--activations-checkpoint-num-layers"))
    if flags.text("--recompute-method", before_2022) == "block":
        return Recompute.FULL, layers * virtual
    if layers > 1:
        notes.append(f"recomputing {layers} layers at a time is taken as one at a time")
    return Recompute.FULL, 0


def _selective(flags: Arguments, notes: list[str]) -> Recompute:
    """Selective recomputation as Weft means it (see ``selected_modules``)."""
    modules = set(flags.text("--recompute-modules", "core_attn").split())
    heavy = "moe" if flags.has("--num-experts") else "mlp"
    if heavy in modules:
        notes.append(f"recomputing {heavy}, most of a layer's products, is taken as whole layers")
        return Recompute.FULL
    meant, words = ["core_attn"], "the attention core"
    if attention_kernel(flags) != "unfused":
        if not modules & {"layernorm", "moe_act", "mla_up_proj", "mlp", "moe"}:
            notes.append("recomputing the core of flash attention saves no memory; its small cost is left out")
            return Recompute.NONE
        meant = selected_modules(flags.has("--num-experts"), flags.has("--multi-latent-attention"))
        words = " ".join(meant)
    if modules != set(meant):
        notes.append(f"recomputing {' '.join(sorted(modules))} is taken as {words}")
    return Recompute.SELECTIVE


def _context_method(flags: Arguments, notes: list[str]) -> ContextMethod:
    kind = flags.text("--cp-comm-type", "p2p").split()[0]
    if kind not in CONTEXT_FLAGS.values():
        notes.append(f"context parallelism by {kind} is taken as ring attention")
    return ContextMethod.ULYSSES if kind == "a2a" else ContextMethod.RING


def _sharded(flags: Arguments, layout: Layout) -> Layout:
    """The layout with its data-parallel ranks split into z and data, and what is sharded over data."""
    strategy = _strategy(flags)
    gather = flags.has("--overlap-param-gather") if strategy != "no_shard" else True
    if strategy != "optim_grads_params":
        return replace(layout, zero=_STRATEGIES.index(strategy), overlap_gather=gather)
    copies = flags.count("--num-distributed-optimizer-instances")
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
