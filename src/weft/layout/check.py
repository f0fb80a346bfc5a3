"""Which layouts make sense: each rejection has a code and a reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import BadInput, Unsupported
from weft.layout.spec import ContextMethod, Layout, PipelineSchedule, Recompute, word_of
from weft.layout.table import LayoutTable, Mask
from weft.layout.text import product
from weft.model.job import Job
from weft.model.spec import Attention, LatentAttention, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a layout cannot run; ``code`` is stable, ``reason`` carries the numbers."""

    code: str
    reason: str


REASONS = {
    "world-mismatch": "the degrees do not multiply to the accelerators of the cluster",
    "batch-not-divisible": "the global batch is not a multiple of micro-batch x data-parallel ranks",
    "heads-not-divisible": "attention heads (or key-value heads) do not divide by tp",
    "features-not-divisible": "hidden or feed-forward features do not divide by tp or y",
    "sequence-not-divisible": "the sequence does not divide by 2 * cp, or by tp (and y)",
    "ulysses-heads": "Ulysses needs the heads of a tensor-parallel rank to divide by cp",
    "state-heads": "heads or groups of a state-space layer do not divide by tp, or its heads by tp * cp",
    "too-many-stages": "more pipeline chunks than layers",
    "schedule-mismatch": "virtual stages and schedule contradict each other",
    "interleaving-rounds": "interleaved 1F1B needs micro-batches in multiples of pp",
    "pipeline-starved": "zero-bubble schedules need at least one micro-batch per stage",
    "experts-not-divisible": "experts do not divide by ep, their features by etp, or a stage's ranks by ep * etp",
    "experts-need-sequence-parallel": "experts with tp > 1 and y = 1 need sp, else tokens are routed twice",
    "sequence-parallel-misused": "sequence parallelism (sp) needs tp > 1 and y = 1",
    "recompute-layers": "more recomputed layers than a stage holds, or without full recomputation",
    "does-not-fit": "the fullest stage needs more memory than an accelerator has",
    "host-memory": "what is offloaded needs more pinned host memory than an accelerator's share",
}
"""Every rejection code and what it means."""

REMEDIES = {
    "world-mismatch": "leave dp out to let it take what remains",
    "batch-not-divisible": "choose another --batch, or a smaller dp",
    "heads-not-divisible": "choose tp that divides both numbers of heads",
    "features-not-divisible": "choose tp and y that divide the features",
    "sequence-not-divisible": "choose a sequence that is a multiple, or a smaller cp",
    "ulysses-heads": "use context_method=ring",
    "state-heads": "choose tp and cp that divide the heads and groups of the state-space layers",
    "too-many-stages": "use a smaller pp or vpp",
    "schedule-mismatch": "interleaved needs pp > 1 and vpp > 1, zbv needs vpp=2, the others vpp=1",
    "interleaving-rounds": "use smaller micro-batches, fewer stages, or plain 1f1b",
    "pipeline-starved": "use smaller micro-batches, fewer stages, or 1f1b",
    "experts-not-divisible": "choose ep and etp that divide the experts, their features and the ranks of a stage",
    "experts-need-sequence-parallel": "add sp",
    "sequence-parallel-misused": "drop sp, or use tp > 1 with y = 1",
    "recompute-layers": "set recompute=full, with no more layers than a stage holds",
    "host-memory": "offload less, or shard the optimizer: zero, fsdp",
    "does-not-fit": "shard or recompute more: fsdp, zero, recompute, sp, smaller micro-batches, offload",
}
"""What to change, for every code."""

CODES = tuple(REASONS)


def reject(job: Job, count: int, table: LayoutTable, *, mesh_alone: bool = False) -> npt.NDArray[np.int8]:
    """For each row the index in ``CODES`` of the first rule that it breaks, or -1; ``mesh_alone``: of the rules that
    do not depend on micro-batch and options."""
    verdict = np.full(len(table), -1, dtype=np.int8)
    for code, broken in (*_mesh_rules(job, count, table), *(() if mesh_alone else _row_rules(job, table))):
        verdict[(verdict < 0) & broken] = CODES.index(code)
    return verdict


def explain(job: Job, count: int, layout: Layout) -> Rejection | None:
    """The first rule that a layout breaks, with its numbers."""
    verdict = int(reject(job, count, LayoutTable.of([layout]))[0])
    if verdict < 0:
        return None
    code = CODES[verdict]
    return Rejection(code=code, reason=f"{REASONS[code]}: {_numbers(code, job, count, layout)}")


def check_layout(job: Job, count: int, layout: Layout, *, where: str = "layout") -> None:
    """Refuse a layout that cannot run a job on ``count`` accelerators.

    Raises:
        BadInput: the first rule that it breaks, with its code, numbers and remedy.
    """
    broken = explain(job, count, layout)
    if broken is not None:
        raise BadInput(broken.reason, where=f"{where} ({broken.code})", remedy=REMEDIES[broken.code])


def _mesh_rules(job: Job, count: int, table: LayoutTable) -> Iterator[tuple[str, Mask]]:
    model, recipe = job.model, job.recipe
    yield "world-mismatch", table.world != count
    yield "batch-not-divisible", recipe.global_batch % (table.z * table.data) != 0
    heads = np.zeros(len(table), dtype=bool)
    features = model.hidden % table.y != 0
    for attention in model.attentions:
        heads |= attention.heads % table.x != 0
        if attention.kv_heads > 1:
            heads |= attention.kv_heads % table.x != 0
    for kind in model.kinds:
        for linear in kind.linears():
            if linear.part in ("expert", "router"):
                continue
            cut = table.x if linear.kind != "replicated" else 1
            features |= (linear.outputs if linear.kind == "normal" else linear.inputs) % cut != 0
            features |= (linear.inputs if linear.kind != "transposed" else linear.outputs) % table.y != 0
    yield "heads-not-divisible", heads
    # Heads and groups are cut over x; context parallelism deals a rank's heads on, and copies groups if need be.
    broken = np.zeros(len(table), dtype=bool)
    for state in model.state_spaces:
        broken |= (state.heads % (table.x * table.context) != 0) | (state.groups % table.x != 0)
        groups = np.maximum(state.groups // table.x, 1)
        broken |= (groups % table.context != 0) & (table.context % groups != 0)
    yield "state-heads", broken
    yield "features-not-divisible", features
    halves = np.where(table.context > 1, 2 * table.context, 1)
    yield "sequence-not-divisible", recipe.sequence % halves != 0
    yield "too-many-stages", table.pipeline > model.layers


def _row_rules(job: Job, table: LayoutTable) -> Iterator[tuple[str, Mask]]:
    model, recipe = job.model, job.recipe
    ranks = table.micro_batch * table.z * table.data
    yield "batch-not-divisible", recipe.global_batch % ranks != 0
    micro_batches = recipe.global_batch // ranks
    ulysses = (table.context_method == ContextMethod.ULYSSES.code) & (table.context > 1)
    starved = np.zeros(len(table), dtype=bool)
    for attention in model.attentions:
        heads = np.gcd(attention.heads, attention.kv_heads)
        starved |= ulysses & (heads % (table.x * table.context) != 0)
    yield "ulysses-heads", starved
    sharded = table.sequence_parallel > 0
    yield "sequence-parallel-misused", sharded & ((table.x == 1) | (table.y > 1))
    dealt = sharded | ((table.y > 1) & any(kind.moe for kind in model.kinds))
    yield "sequence-not-divisible", dealt & (recipe.sequence // table.context % (table.x * table.y) != 0)
    yield "too-many-stages", table.pipeline * table.virtual_stages > model.layers
    virtual = table.virtual_stages
    wrong = (table.schedule != PipelineSchedule.PLAIN.code) & (table.pipeline == 1)
    for schedule in PipelineSchedule:
        wrong |= (table.schedule == schedule.code) & (
            virtual < 2 if schedule.chunks is None else virtual != schedule.chunks
        )
    yield "schedule-mismatch", wrong
    yield "interleaving-rounds", table.scheduled("rounds") & (micro_batches % table.pipeline != 0)
    yield "pipeline-starved", table.scheduled("splits_backward") & (micro_batches < table.pipeline)
    yield from _expert_rules(job, table)
    layers = -(-model.layers // table.pipeline)
    misused = (table.recompute_layers > 0) & (table.recompute != Recompute.FULL.code)
    yield "recompute-layers", misused | (table.recompute_layers > layers)


def _expert_rules(job: Job, table: LayoutTable) -> Iterator[tuple[str, Mask]]:
    routed = [kind.moe for kind in job.model.kinds if kind.moe]
    ranks = table.expert * table.expert_tensor
    if not routed:
        yield "experts-not-divisible", ranks > 1
        return
    broken = table.stage_ranks % ranks != 0
    for moe in routed:
        broken |= moe.experts % table.expert != 0
        broken |= moe.expert.intermediate % table.expert_tensor != 0
    yield "experts-not-divisible", broken
    yield "experts-need-sequence-parallel", (table.x > 1) & (table.y == 1) & (table.sequence_parallel == 0)


def _numbers(code: str, job: Job, count: int, layout: Layout) -> str:
    """The figures behind a rejection."""
    recipe, model = job.recipe, job.model
    if code == "world-mismatch":
        return f"{product(layout)}, cluster has {count}"
    if code == "batch-not-divisible":
        unit = layout.micro_batch * layout.dp
        return (
            f"global batch {recipe.global_batch}, micro-batch {layout.micro_batch} * dp {layout.dp}"
            f" = {unit}; {max(round(recipe.global_batch / unit), 1) * unit} is the nearest"
        )
    heads = ", ".join(
        f"{attention.heads} heads, {attention.kv_heads} key-value heads"
        for attention in dict.fromkeys(model.attentions[:1])
    )
    cuts = f"cp = {layout.cp}, tp = {layout.tp}" + (f", y = {layout.y}" if layout.y > 1 else "")
    states = ", ".join(f"{state.heads} heads in {state.groups} groups" for state in dict.fromkeys(model.state_spaces))
    experts = f"ep {layout.ep} * etp {layout.expert_tensor}"
    schedule = f"{layout.schedule} with vpp = {layout.virtual_stages}"
    micro_batches = recipe.global_batch // (layout.micro_batch * layout.dp)
    rounds = f"{micro_batches} micro-batches, pp = {layout.pp}"
    facts = {
        "interleaving-rounds": rounds,
        "pipeline-starved": rounds,
        "heads-not-divisible": f"{heads}, tp = {layout.tp}",
        "ulysses-heads": f"{heads}, tp * cp = {layout.tp * layout.cp}",
        "state-heads": f"{states}, tp = {layout.tp}, cp = {layout.cp}",
        "features-not-divisible": f"hidden {model.hidden}, tp = {layout.tp}, y = {layout.y}",
        "sequence-not-divisible": f"{recipe.sequence} tokens, {cuts}",
        "too-many-stages": f"{layout.pipeline} * {layout.virtual_stages} chunks, {model.layers} layers",
        "schedule-mismatch": f"{schedule}, pp = {layout.pp}",
        "experts-not-divisible": f"{experts} on {layout.stage_ranks} ranks of a stage",
        "recompute-layers": f"recompute = {layout.recompute}, recompute_layers = {layout.recompute_layers}",
    }
    return facts.get(code, f"tp = {layout.tp}, y = {layout.y}")


NORMS = (2, 4)
"""Norms of a block that the runtime builds: before attention and before the feed-forward part; also behind each."""


PRECISIONS = ("fp32", "tf32", "bf16")
"""What the runtime computes in."""


def check_trainable(job: Job, layout: Layout) -> None:
    """Refuse what cannot be trained, before anything is built.

    Raises:
        Unsupported: the runtime lacks something that the model or the layout asks for.
        BadInput: the layout breaks a rule of ``weft.layout.check``.
    """
    check_runnable(job.model, layout)
    check_layout(job, layout.world, layout)


def check_runnable(model: Model, layout: Layout) -> None:
    """Refuse what the runtime does not train.

    Raises:
        Unsupported: a field of the model or of the layout asks for something that the runtime lacks.
        BadInput: key-value heads do not divide by x.
    """
    for wanted, field, feature, remedy in (*_model_limits(model), *_layout_limits(model, layout)):
        if wanted:
            raise Unsupported(f"the runtime does not support {feature}", where=field, remedy=remedy)
    for attention in model.attentions:
        if attention.kv_heads % layout.x:
            raise BadInput(
                f"{attention.kv_heads} key-value heads do not divide by tp = {layout.tp}",
                where="--layout",
                remedy="choose tp that divides them",
            )


_Limit = tuple[bool, str, str, str]
"""Whether it is asked for, by which field, what it is, what to change."""


def _model_limits(model: Model) -> Iterator[_Limit]:
    for block in model.kinds:
        attention = block.attention
        recurrent, choose = block.state_space is not None, "choose a model whose blocks all have attention"
        yield recurrent, "block.state_space", "state-space blocks", choose
        alone = "blocks of one part alone"
        yield block.branches < 2, "block", alone, "choose a model of attention and feed-forward blocks"
        if attention is None:
            continue
        if (moe := block.moe) is not None:
            field, dense = "block.feed_forward", "choose a model without it"
            yield moe.latent is not None, f"{field}.latent", "experts of projected tokens", dense
            yield moe.router_bias or moe.expert.bias, field, "biases of routers or experts", dense
            yield moe.balance_bias, f"{field}.balance_bias", "balancing biases of routers", dense
            yield moe.shared_gate, f"{field}.shared_gate", "gates of shared experts", dense
        latent = isinstance(attention, LatentAttention)
        yield latent, "block.attention", "latent attention", "choose a model with grouped-query attention"
        yield block.parallel, "block.parallel", "parallel attention and feed-forward", "set parallel=False"
        norms = f"{block.norms} norms in a block"
        yield block.norms not in NORMS, "block.norms", norms, "set norms=2, before each half, or 4, also behind it"
        if isinstance(attention, Attention):
            field, vectors = "block.attention", "learned biases or norms over all heads"
            biased, unbias = attention.head_norms and block.norm_bias, "set head_norms=False or norm_bias=False"
            yield attention.sinks, f"{field}.sinks", "sinks", "set sinks=False"
            yield attention.extra_parameters > 0, f"{field}.extra_parameters", vectors, "set extra_parameters=0"
            yield biased, f"{field}.head_norms", "norms of heads with biases", unbias
            yield attention.chunked, f"{field}.chunked", "attention in chunks", "set chunked=False"
            yield attention.gated, f"{field}.gated", "gated attention", "set gated=False"
    ahead = model.prediction_layers > 0
    yield ahead, "model.prediction_layers", "prediction layers", "set prediction_layers=0"
    narrow = model.embedding_features is not None
    yield narrow, "model.embedding_features", "a narrower embedding", "set embedding_features=None"
    normed = "a norm after the embedding"
    yield model.embedding_norm, "model.embedding_norm", normed, "set embedding_norm=False"
    placed = model.positions > 0 or any(attention.rotary for attention in model.attentions)
    yield not placed, "model.positions", "models without positions", "set positions, or rotary=True"


def _layout_limits(model: Model, layout: Layout) -> Iterator[_Limit]:
    ring = layout.context > 1 and layout.context_method == "ring"
    slides = any(attention.window is not None for attention in model.attentions)
    yield ring and slides, "layout.context_method", "sliding windows in a ring", "set context_method=ulysses"
    routed = any(kind.moe for kind in model.kinds)
    for name in ("expert", "expert_tensor"):
        degree = getattr(layout, name)
        word = word_of(name)
        alone = f"{word} = {degree} without experts"
        yield degree > 1 and not routed, f"layout.{word}", alone, f"set {word}=1"
    cut = routed and layout.x > 1 and layout.y == 1 and not layout.sequence_parallel
    yield cut, "layout.sequence_parallel", "experts with tp > 1 and whole tokens on each rank", "add sp"
    for name in ("offload_optimizer", "offload_activations"):
        yield getattr(layout, name), f"layout.{name}", "offloading", f"set {name}=false"
    twice = layout.schedule.wraps and model.tied_embeddings
    yield twice, "layout.schedule", f"tied embeddings with schedule = {layout.schedule}", "set schedule=zb1p"
