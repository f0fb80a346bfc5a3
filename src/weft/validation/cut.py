"""The layout of a run: how its columns and its software cut the job.

Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import gcd
from typing import Any, Literal

from weft.cluster.spec import Cluster
from weft.errors import BadInput, UnknownName
from weft.estimation.iteration import Estimator
from weft.layout.check import explain
from weft.layout.spec import Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.table import LayoutTable
from weft.model import catalogue
from weft.model.job import Job
from weft.model.spec import Attention, Block, BlockRun, FeedForward, MixtureOfExperts, Model
from weft.solvers import divisors, largest_divisor
from weft.validation.runs import Run, Stack

LARGEST_MICRO_BATCH = 4
MOST_VIRTUAL_STAGES = 3
"""Chunks a stage of interleaved pipelines where their number is not stated, as in arXiv 2205.05198."""
_ASYNC_TP = re.compile(r"async[ -]?tp|tp[ -]?(comm)?[ -]?overlap|userbuffers|TP/PP overlap on", re.I)
_KEPT = re.compile(r"without reshard|no reshard|SHARD_GRAD_OP|zero[ -]?2\b", re.I)
_HYBRID = re.compile(r"\bHSDP\b|HYBRID_SHARD|over DCN by data parallelism", re.I)
_OTHER_POLICY = re.compile(r"remat_policy\W+(?!full\b)\w", re.I)
"""MaxText keeps, or moves to the host, what another policy names."""
_WAVE = re.compile(r"dualpipe|zb-?v\b", re.I)
_ZERO_BUBBLE = re.compile(r"zero[ -]?bubble|zb-?(1p|h1)\b", re.I)
_INTERLEAVED = re.compile(r"interleaved|PP overlap on", re.I)
"""Megatron-LM overlaps pipeline sends in interleaved schedules only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The mesh of a run: tensor, pipeline, context and data parallelism."""

    tensor: int
    pipeline: int
    context: int
    data: int


def degrees(run: Run, model: Model, cluster: Cluster, assumed: list[str]) -> Degrees:
    """The mesh that the columns state, or a documented choice where they do not.

    Without tensor or pipeline parallelism: the first of tensor parallelism up to a node of 8, then pipelines
    whose stages divide the layers, that leaves at most 70 % of the memory to weights, gradients and states.
    """
    context = run.cp or 1
    if run.tp is None and run.pp is None and run.dp is not None:
        model_ranks = max(cluster.count // (run.dp * context), 1)
        tensor = gcd(model_ranks, cluster.tiers[0].size)
        pipeline = model_ranks // tensor
        assumed.append(f"tensor parallelism {tensor} and {pipeline} stages (from the data parallelism)")
    elif run.tp is None and run.pp is None and run.zero != 3:
        room_bytes = 0.7 * cluster.accelerator.memory_bytes
        choices = list(_model_parallel(model, cluster, context))
        fitting = (pair for pair in choices if 18.0 * model.parameters / (pair[0] * pair[1]) <= room_bytes)
        tensor, pipeline = next(fitting, choices[-1])
        assumed.append(f"tensor parallelism {tensor} and {pipeline} stages, the least that fits (not stated)")
    else:
        tensor, pipeline = run.tp or 1, run.pp or 1
        if run.tp is not None and run.pp is None and run.dp is not None:
            pipeline = max(cluster.count // (run.dp * tensor * context), 1)
            if model.layers < pipeline:
                pipeline = 1
    ranks = tensor * pipeline * context
    data, remainder = divmod(cluster.count, ranks)
    if remainder:
        raise BadInput(f"{tensor} x {pipeline} x {context} ranks do not divide {cluster.count} accelerators")
    if run.dp not in (None, data):
        assumed.append(f"data parallelism {data} = GPUs / (TP PP CP), not the {run.dp} stated")
    return Degrees(tensor=tensor, pipeline=pipeline, context=context, data=data)


def _model_parallel(model: Model, cluster: Cluster, context: int) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline degrees by their product."""
    heads = gcd(
        *(gcd(attention.heads, attention.kv_heads) for attention in model.attentions),
        *(state.groups for state in model.state_spaces),
    )
    ranks = cluster.count // context
    node = gcd(cluster.tiers[0].size, 8)
    tensors = [n for n in (1, 2, 4, 8) if node % n == 0 and heads % n == 0 and ranks % n == 0]
    yield from ((n, 1) for n in tensors)
    widest = tensors[-1]
    yield from ((widest, n) for n in divisors(model.layers)[1:] if ranks // widest % n == 0)


def cut(run: Run, stack: Stack, job: Job, cluster: Cluster, mesh: Degrees, assumed: list[str]) -> Layout:
    """The layout of a run."""
    layout = Layout(
        x=mesh.tensor,
        data=mesh.data,
        pipeline=mesh.pipeline,
        context=mesh.context,
        overlap_tensor=TensorOverlap.FULL if _ASYNC_TP.search(run.remarks) else stack.overlap_tensor,
        overlap_reduce=stack.overlap_reduce,
        overlap_gather=stack.overlap_gather,
    )
    layout = _sequence_parallel(run, stack, job.model, layout, assumed)
    layout = _experts(run, stack, job.model, layout, assumed)
    layout = _sharded(run, stack, layout, assumed)
    layout = _scheduled(run, stack, job.model, layout, assumed)
    layout = _micro_batched(run, stack, job, layout, assumed)
    layout = _rounds(job, layout, assumed)
    layout = _recomputing(run, stack, job, cluster, layout, assumed)
    rejection = explain(job, cluster.count, layout)
    if rejection is not None:
        raise BadInput(f"{rejection.code}: {rejection.reason}")
    return layout


def _sequence_parallel(run: Run, stack: Stack, model: Model, layout: Layout, assumed: list[str]) -> Layout:
    if layout.x == 1:
        return layout
    on = run.sequence_parallel
    if on is None:
        on = stack.sequence_parallel
        assumed.append(f"{'with' if on else 'without'} sequence parallelism (not stated)")
    if not on and any(kind.moe for kind in model.kinds):
        on = True
        assumed.append("sequence parallelism, which experts need")
    return replace(layout, sequence_parallel=on)


def _experts(run: Run, stack: Stack, model: Model, layout: Layout, assumed: list[str]) -> Layout:
    counts = [kind.moe.experts for kind in model.kinds if kind.moe]
    if not counts:
        return layout
    experts, ranks = gcd(*counts), layout.stage_ranks
    tensor = run.etp or (layout.x if stack.expert_tensor else 1)
    if run.ep is not None:
        return replace(layout, expert=run.ep, expert_tensor=tensor if ranks % (run.ep * tensor) == 0 else 1)
    expert = gcd(experts, ranks // tensor)
    assumed.append(f"expert parallelism {expert} (not stated)")
    return replace(layout, expert=expert, expert_tensor=tensor)


def _sharded(run: Run, stack: Stack, layout: Layout, assumed: list[str]) -> Layout:
    zero = 2 if _KEPT.search(run.remarks) else run.zero
    if zero is None:
        zero = stack.zero
        assumed.append(f"ZeRO {zero} ({stack.title}; not stated)")
    gathered_once = zero == 3 and not stack.reshard
    if layout.pipeline > 1 and (gathered_once or zero == 2):
        assumed.append("weights are gathered and gradients scattered once a step, since stages keep them")
        return replace(layout, zero=1)
    if zero < 3:
        return replace(layout, zero=zero)
    if _HYBRID.search(run.remarks) and run.nodes_gpus:
        shard = gcd(layout.data, run.nodes_gpus)
        assumed.append(f"sharded over {shard} ranks, replicated over the others")
        return replace(layout, z=shard, data=layout.data // shard)
    return replace(layout, z=layout.data, data=1)


def _scheduled(run: Run, stack: Stack, model: Model, layout: Layout, assumed: list[str]) -> Layout:
    if layout.pipeline == 1:
        return layout
    if _WAVE.search(run.remarks) and 2 * layout.pipeline <= model.layers:
        assumed.append("schedule ZB-V, for DualPipe or its like")
        return replace(layout, schedule=PipelineSchedule.ZBV, virtual_stages=2)
    if _ZERO_BUBBLE.search(run.remarks):
        return replace(layout, schedule=PipelineSchedule.ZB1P)
    virtual = run.vpp or 1
    if run.vpp is None and (stack.interleaved or _INTERLEAVED.search(run.notes)):
        virtual = largest_divisor(-(-model.layers // layout.pipeline), MOST_VIRTUAL_STAGES)
        assumed.append(f"{virtual} chunks a stage, interleaved ({stack.title}; not stated)")
    if virtual * layout.pipeline > model.layers:
        fewer = largest_divisor(virtual, max(model.layers // layout.pipeline, 1))
        assumed.append(f"{fewer} chunks a stage, not {virtual}, which would be more than layers")
        virtual = fewer
    schedule = PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.PLAIN
    return replace(layout, virtual_stages=virtual, schedule=schedule)


def _micro_batched(run: Run, stack: Stack, job: Job, layout: Layout, assumed: list[str]) -> Layout:
    """The stated micro-batch; else 1 in pipelines, and else the largest power of two up to 4 that divides."""
    share, remainder = divmod(job.recipe.global_batch, layout.dp)
    if remainder or not share:
        problem = f"global batch {job.recipe.global_batch} on {layout.dp} data-parallel ranks"
        raise BadInput(f"{problem} leaves a remainder")
    wanted = run.micro_batch
    if wanted is None:
        wanted = 1 if layout.pipeline > 1 else gcd(share, LARGEST_MICRO_BATCH)
        assumed.append(f"micro-batch {wanted} (not stated)")
    if stack.micro_batch == "stages" and layout.pipeline > 1 and wanted == share:
        wanted = max(share // (layout.pipeline * layout.virtual_stages), 1)
        assumed.append(f"a rank's batch in micro-batches of {wanted}, as many as chunks ({stack.title})")
    size = largest_divisor(share, wanted)
    if size != wanted:
        assumed.append(f"micro-batch {size}, since {wanted} does not divide a rank's {share} sequences")
    return replace(layout, micro_batch=size)


def _rounds(job: Job, layout: Layout, assumed: list[str]) -> Layout:
    """Plain 1F1B where micro-batches do not come in rounds of the stages."""
    steps = job.recipe.global_batch // (layout.micro_batch * layout.dp)
    if layout.schedule.rounds and steps % layout.pipeline:
        assumed.append(f"plain 1F1B, since {steps} micro-batches are not a multiple of {layout.pipeline} stages")
        return replace(layout, schedule=PipelineSchedule.PLAIN, virtual_stages=1)
    if layout.schedule.splits_backward and steps < layout.pipeline:
        assumed.append(f"plain 1F1B, since there are fewer micro-batches than {layout.pipeline} stages")
        return replace(layout, schedule=PipelineSchedule.PLAIN, virtual_stages=1)
    return layout


def _recomputing(run: Run, stack: Stack, job: Job, cluster: Cluster, layout: Layout, assumed: list[str]) -> Layout:
    stated = run.recompute.lower()
    for choice in (Recompute.SELECTIVE, Recompute.FULL, Recompute.NONE):
        if choice in stated:
            return replace(layout, recompute=choice)
    if stack.recompute != "fit" and not _OTHER_POLICY.search(run.notes):
        assumed.append(f"recomputation {stack.recompute} ({stack.title}; not stated)")
        return replace(layout, recompute=Recompute(stack.recompute))
    if explain(job, cluster.count, layout) is not None:
        return layout
    choices = [replace(layout, recompute=choice) for choice in Recompute]
    needed = Estimator(job, cluster).memory_bytes(LayoutTable.of(choices))
    fits = [choice for choice, needs in zip(choices, needed, strict=True) if needs <= cluster.accelerator.memory_bytes]
    chosen = (fits or choices[-1:])[0]
    assumed.append(f"recomputation {chosen.recompute}, the least that fits (not stated)")
    return chosen


Style = Literal["plain", "unbiased", "gated"]

_ASIDE = re.compile(
    r"\([^()]*\)|\[[^\[\]]*\]|\b(cut|reduced) to .*|\b(instruct|base|chat|hf|pretrain|dense|moe)\b", re.I
)
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*b\b", re.I)
_NO_PREDICTION = re.compile(r"(w/o|without|no)\s+mtp", re.I)
HEAD_FEATURES = 128
"""Features of a head where heads are not stated."""


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files("weft.validation").joinpath("data", "models.toml").read_text(encoding="utf-8"))


def shape(run: Run, assumed: list[str], *, prediction: bool) -> Model:
    """The model of a run; ``prediction``: the software trains multi-token-prediction modules."""
    known = _catalogued(run.model)
    if known is not None and _agrees(run, known):
        return _from_catalogue(run, known, assumed, prediction=prediction)
    for pattern, reason in _data()["unsupported"].items():
        if re.search(pattern, run.model, re.I):
            raise BadInput(f"{run.model}: {reason}")
    if run.layers is None or run.hidden is None:
        raise BadInput(f"{run.model or 'model'}: neither its shape nor a model of the catalogue")
    return _from_columns(run, run.layers, run.hidden, assumed)


@cache
def _catalogued(model: str) -> Model | None:
    for name in _spellings(model):
        try:
            return catalogue.load(name).model
        except UnknownName:
            continue
    return None


def _spellings(name: str) -> Iterator[str]:
    """The name as catalogues may write it: without remarks, points or the publisher."""
    bare = _ASIDE.sub(" ", name).strip(" -_,;:")
    yield bare
    yield bare.replace(".", "")
    yield re.sub(r"(?<=\d)\.0\b", "", bare)
    yield re.sub(r"^(meta|nvidia|mistralai|google|openai)[\s_/-]+", "", bare, flags=re.I)


def _agrees(run: Run, model: Model) -> bool:
    """Whether the columns state the same width and heads as the model."""
    pairs = [(run.hidden, model.hidden)]
    for attention in model.attentions[:1]:
        pairs += [(run.heads, attention.heads), (run.kv_heads, attention.kv_heads)]
    return all(stated in (None, value) for stated, value in pairs)


def _from_catalogue(run: Run, known: Model, assumed: list[str], *, prediction: bool) -> Model:
    model = known
    assumed.append(f"what the columns leave out of the shape as {known.name} in the catalogue")
    if run.layers is not None and run.layers != known.layers:
        model = replace(_with_layers(known, run.layers), prediction_layers=0)
        assumed.append(f"{run.layers} layers in the proportions of the {known.layers} of {known.name}")
    if run.vocab is not None:
        model = replace(model, vocab=run.vocab)
    if run.experts:
        model = _with_experts(model, run.experts, run.topk)
    if model.prediction_layers and (not prediction or _NO_PREDICTION.search(run.remarks)):
        model = replace(model, prediction_layers=0)
        assumed.append("no multi-token-prediction module trained")
    if model.positions and run.seq:
        model = replace(model, positions=max(model.positions, run.seq))
    return model


def _with_layers(model: Model, layers: int) -> Model:
    """Another number of layers, at least one of each kind, else in the model's proportions."""
    counts = {kind: sum(run.count for run in model.runs if run.block == kind) for kind in model.kinds}
    least = min(len(counts), layers)
    shares = [max(1, round(layers * count / model.layers)) for count in counts.values()][:least]
    shares[shares.index(max(shares))] += layers - sum(shares)
    runs = tuple(BlockRun(block=kind, count=count) for kind, count in zip(list(counts)[:least], shares, strict=True))
    return replace(model, runs=runs)


def _with_experts(model: Model, experts: int, top_k: int | None) -> Model:
    runs = []
    for run in model.runs:
        moe = run.block.moe
        changed = moe and replace(moe, experts=experts, top_k=min(top_k or moe.top_k, experts))
        block = replace(run.block, feed_forward=changed) if changed else run.block
        runs.append(replace(run, block=block))
    return replace(model, runs=tuple(runs))


def _from_columns(run: Run, layers: int, hidden: int, assumed: list[str]) -> Model:
    heads = run.heads or max(hidden // HEAD_FEATURES, 1)
    if run.heads is None:
        assumed.append(f"{heads} heads of {HEAD_FEATURES} features")
    kv_heads = run.kv_heads or heads
    if run.kv_heads is None:
        assumed.append("as many key-value heads as heads")
    if heads % kv_heads or hidden < heads:
        raise BadInput(f"{heads} heads, {kv_heads} key-value heads and {hidden} features contradict each other")
    style, why = _style(run, layers, hidden, heads, kv_heads)
    assumed.append(f"{style} block ({why})")
    if run.vocab is None:
        default = _data()["vocabulary"][style]
        assumed.append(f"vocabulary {default['tokens']:,} ({default['source']}; not stated)")
    # Four times the width; gated, a multiple of 256 that holds as many parameters.
    ffn = run.ffn or (4 * hidden if style != "gated" else -(-8 * hidden // 3 // 256) * 256)
    if run.ffn is None:
        assumed.append(f"feed-forward width {ffn:,}")
    model = _build(run, style, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn)
    if run.experts and run.experts > 1 and run.topk is None:
        assumed.append("2 experts a token")
    if run.params_b is not None and model.tied_embeddings:
        untied = replace(model, tied_embeddings=False)
        if abs(untied.parameters / 1e9 - run.params_b) < abs(model.parameters / 1e9 - run.params_b):
            assumed.append("embeddings not tied (by the number of parameters)")
            model = untied
    return model


def _style(run: Run, layers: int, hidden: int, heads: int, kv_heads: int) -> tuple[Style, str]:
    """The family of the block: by name, else by the number of parameters, else by its proportions."""
    for style, pattern in _data()["families"].items():
        if re.search(pattern, run.model, re.I):
            return style, "by the model's name"
    named = _SIZE.findall(run.model)
    stated = run.params_b or (float(named[0]) if len(named) == 1 else None)
    if stated is not None and run.ffn is not None and not run.experts:
        sizes = {
            style: _build(
                run, style, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=run.ffn
            ).parameters
            for style in ("gated", "plain")
        }
        best = min(sizes, key=lambda style: abs(sizes[style] / 1e9 / stated - 1))
        return ("plain" if best == "plain" else "gated"), "by the number of parameters"
    if run.ffn in (None, 4 * hidden) and kv_heads == heads:
        return "plain", "by its proportions"
    return "gated", "by its proportions"


def _build(run: Run, style: Style, *, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> Model:
    plain, gated = style == "plain", style == "gated"
    attention = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, qkv_bias=plain, out_bias=plain, rotary=gated
    )
    layer = FeedForward(intermediate=ffn, gated=gated, bias=plain)
    feed: FeedForward | MixtureOfExperts = layer
    if run.experts and run.experts > 1:
        feed = MixtureOfExperts(experts=run.experts, top_k=min(run.topk or 2, run.experts), expert=layer)
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=plain)
    return Model(
        name=run.model or "unnamed",
        hidden=hidden,
        vocab=run.vocab or _data()["vocabulary"][style]["tokens"],
        runs=(BlockRun(block=block, count=layers),),
        tied_embeddings=not gated,
        positions=0 if gated else run.seq or 2048,
        norm_bias=plain,
    )
