"""What a Megatron-LM command or script runs: its layout, model and recipe; ``megatron`` writes one."""

from __future__ import annotations

import re
import reprlib
from dataclasses import replace
from typing import Any

from weft.errors import BadInput, Unsupported
from weft.interop.launch import RunConfiguration
from weft.interop.megatron import CONTEXT_FLAGS, PIPELINE_BEFORE_DATA, TOOL, selected_modules
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.model.megatron_args import (
    Arguments,
    Flag,
    attention_kernel,
    parse_arguments,
    read_megatron_args,
    read_numerics,
)
from weft.model.settings import share_of

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
