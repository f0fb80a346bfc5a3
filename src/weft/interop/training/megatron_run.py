"""Megatron-LM: the layout, model and recipe of a run, from its shell script or argument text."""

from __future__ import annotations

import re
import reprlib
from dataclasses import replace
from typing import Any

from weft.errors import BadInput
from weft.interop.text.settings import Settings, share_of
from weft.interop.training.launchers import RunConfiguration
from weft.interop.training.megatron import PIPELINE_BEFORE_DATA, TOOL
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.model.megatron_args import (
    Arguments,
    attention_kernel,
    parse_arguments,
    read_megatron_args,
    read_megatron_job,
)

_QUOTED_DEFAULT = re.compile(r"""\$\{(\w+):?-["']([^"'${}]*)["']\}""")
"""A variable with a quoted default, whose quotes would end the text around it."""
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
    """
    parsed = parse_arguments(_QUOTED_DEFAULT.sub(r"${\1:-\2}", text), where=where)
    settings = Settings(dict(map(_torchrun, parsed.values.items())), where=where)
    flags = Arguments(values=settings, where=where)
    notes: list[str] = []
    count = world or _world(flags)
    layout = _layout(flags, count, notes)
    found = _model(flags, vocab, notes)
    return RunConfiguration(
        tool=TOOL,
        layout=layout,
        world=count,
        global_batch=flags.optional_integer("--global-batch-size"),
        sequence=flags.optional_integer("--seq-length"),
        ignored=settings.ignored,
        notes=tuple(notes),
        **found,
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


def _model(flags: Arguments, vocab: int | None, notes: list[str]) -> dict[str, Any]:
    """Model and precision, where the command states them; only the model needs the vocabulary."""
    if not flags.has("--num-layers"):
        return {}
    found: dict[str, Any] = {}
    try:
        if flags.has("--global-batch-size") and flags.has("--seq-length"):
            found["precision"] = read_megatron_job(flags, vocab=vocab or 1).recipe.precision
        found["model"] = read_megatron_args(flags, vocab=vocab)
    except BadInput as error:
        notes.append(f"the model is not taken from it: {error}")
    return found


def _layout(flags: Arguments, world: int, notes: list[str]) -> Layout:
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
    if granularity != "full" and not flags.has("--checkpoint-activations"):
        return Recompute.NONE, 0
    layers = flags.integer("--recompute-num-layers", 1)
    if flags.text("--recompute-method") == "block":
        return Recompute.FULL, layers * virtual
    if layers > 1:
        notes.append(f"recomputing {layers} layers at a time is taken as one at a time")
    return Recompute.FULL, 0


def _selective(flags: Arguments, notes: list[str]) -> Recompute:
    """Selective recomputation as Weft means it: the core of unfused attention, norms (and experts'
    activation) with flash."""
    modules = set(flags.text("--recompute-modules", "core_attn").split())
    if attention_kernel(flags) == "unfused":
        if modules != {"core_attn"}:
            notes.append(f"recomputing {' '.join(sorted(modules))} is taken as the attention core")
        return Recompute.SELECTIVE
    if not modules & {"layernorm", "moe_act", "mlp", "moe"}:
        notes.append("recomputing the core of flash attention saves no memory; its small cost is left out")
        return Recompute.NONE
    if modules - {"layernorm", "moe_act"}:
        notes.append(f"recomputing {' '.join(sorted(modules))} is taken as layernorm and moe_act")
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
