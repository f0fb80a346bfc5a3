"""Megatron-LM: the argument list of ``pretrain_gpt.py`` for a layout, and the layout, model and recipe of a run.

Argument names are those of Megatron-LM's main branch of August 2026; most exist since Megatron-Core 0.8.
``read`` reads them back, from a shell script or from the arguments alone.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
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
from weft.interop.megatron_model import model_arguments, model_notes, model_reasons
from weft.interop.text.settings import Settings, share_of
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.stages import chunk_sizes
from weft.model.job import Job, Precision
from weft.model.megatron_args import (
    Arguments,
    Flag,
    attention_kernel,
    parse_arguments,
    read_megatron_args,
    read_numerics,
)
from weft.model.spec import LatentAttention, Model

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
    selected = ["core_attn"] if recipe.attention == "unfused" else _selected(moe, latent)
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


def _selected(moe: bool, latent: bool) -> list[str]:
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
    settings = Settings(dict(map(_torchrun, parsed.values.items())), where=where)
    flags, notes = Arguments(values=settings, where=where), list(parsed.notes)
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
    return RunConfiguration(
        tool=TOOL, layout=layout, world=count, ignored=settings.ignored, notes=tuple(notes), **stated
    )


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


def _layout(flags: Arguments, world: int, notes: list[str]) -> Layout:
    """The layout that arguments give ``world`` accelerators; ``notes`` takes what was assumed."""
    fields = flags.fields(DEGREES)
    x, pipeline, context = fields.values()
    data = share_of(world, {"tensor": x, "pipeline": pipeline, "context": context}, where=flags.where)
    virtual = _virtual_stages(flags, pipeline)
    if flags.has("--num-experts"):
        fields["expert"] = flags.integer("--expert-model-parallel-size", 1)
        fields["expert_tensor"] = flags.integer("--expert-tensor-parallel-size", x)
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
    """Selective recomputation as Weft means it (see ``_selected``)."""
    modules = set(flags.text("--recompute-modules", "core_attn").split())
    meant, words = ["core_attn"], "the attention core"
    if attention_kernel(flags) != "unfused":
        if not modules & {"layernorm", "moe_act", "mla_up_proj", "mlp", "moe"}:
            notes.append("recomputing the core of flash attention saves no memory; its small cost is left out")
            return Recompute.NONE
        meant = _selected(flags.has("--num-experts"), flags.has("--multi-latent-attention"))
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
