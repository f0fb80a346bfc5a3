"""The one list of what a training step communicates, on one rank, over arrays of layouts.

A model has parts: its kinds of blocks, the embedding, the head.  A micro-batch repeats the collectives of each
part's operations (``weft.layout.operations``); around them weights that are cut at rest are gathered before
use and their gradients scattered; once per step gradients are summed over their copies (steps 1, 4, 6 and 7
of AxoNN's algorithm, arXiv 2305.13525).  How frameworks treat weights is a ``Software``, not
another list.  The estimator times this list, the simulator and the routers turn it into traffic, and the
runtime, which takes from it how matrices are padded and gradients bucketed, is checked against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from weft.errors import BadInput
from weft.layout.check import check_trainable
from weft.layout.mesh import EXPERT_GROUPS, degrees, real_axes
from weft.layout.operations import (
    AGAIN,
    Collective,
    CollectiveKind,
    Matrices,
    Operations,
    Parameters,
    Sizes,
    part_matrices,
    part_operations,
    part_parameters,
    routing,
    separate_outputs,
    stage_boundary,
)
from weft.layout.spec import AXES, Layout
from weft.layout.stages import HeldChunk, held_chunks
from weft.layout.table import Floats, Index, LayoutTable, Mask
from weft.model.job import Job, Recipe
from weft.model.spec import Model

BUCKET_ELEMENTS = 40e6
"""Gradients per bucket of the reduction over replicas, at least (Megatron-Core: max(40e6, 1e6 * ranks))."""
BUCKET_ELEMENTS_PER_RANK = 1e6
"""The same per rank of the reduction, which outgrows the former beyond 40 ranks."""
GATHERS_AHEAD = 4
"""Weights that ``weft.runtime`` gathers over z before they are asked for: a dense block has as many, so that a gather
has a block's products to hide behind, and memory of two blocks' gathered weights holds them."""
SCATTER_USES = 8
"""Uses of weights (gathers, and gradients' scatters) after which ``weft.runtime`` waits for a gradient's scatter over
z: those of a block are under way behind the products of the next; none is left two blocks into a forward pass."""
WIDENED_LOGITS = float(1 << 24)
"""Logits that the loss of ``weft.runtime`` widens to 32 bits at a time."""
SCALAR_BYTES = 4
"""Width of the loss and of the gradients' norm."""

Use = CollectiveKind | Literal["scalar"]
"""What a group of ranks is for."""

When = Literal["forward", "backward", "reduce", "gather", "tied", "scalar"]
"""In every micro-batch, forward or backward; or once per step: gradients reduced, weights gathered after the
update, a tied embedding's gradient summed over both ends of the pipeline, loss and norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """How a training framework treats weights.

    Attributes:
        name: for people.
        by_matrix: each weight matrix is gathered, and its gradient scattered, by itself; vectors are whole on
            every rank of z and summed in separate buffers; the vocabulary is padded until it divides.
            Otherwise a block's weights go together, vectors with them.
        pieces: in how many collectives a block's weights go, where they go together.
        replay_gathers: gathers of a block's weights for its recomputation.  FSDP keeps for backward what
            the recomputation gathered; Weft's runtime gathers again.
        embedding_gathers: gathers of the embedding in backward, which needs none of its values.
        scalars: whether loss and norm are listed; else they are part of an iteration's fixed time.
        root: embedding and head are one unit of sharding, gathered from the first forward to the last backward
            pass, and gradients are reduced from copies in the width of the weights.
        joined: queries, keys and values are one product, and so are both inputs of a gated layer.
        quantized: linear layers in 8 bits keep their inputs in 8 bits.
        by_product: selective recomputation keeps every second product of a block and attention's output, and
            repeats everything else.  Otherwise it repeats norms and activations, or the core of unfused attention.
        repeats_latents: selective recomputation also repeats the up-projections of latent attention, so that queries,
            keys and values are not kept.
        buffered: a stage's boundary tensors of all micro-batches are allocated at once, and the last one keeps
            all logits.
        keeps_ends: a stage keeps what it sent forward until the micro-batch comes back, and weight gradients of the
            head that are put off keep the logits' gradients.
        context_gather: context parallelism gathers all keys and values, for every head of a query.
        ring_outputs: ring attention keeps its output for its own backward pass, beside the projection's input.
        whole_logits: the loss works on the logits of the whole vocabulary, gathered over x.
        eager_activations: a gated activation is two kernels, and what is between them is kept.
        keeps_gathered: inputs of layers stay as sequence parallelism gathered them; otherwise backward gathers again.
        widened_logits: logits that the loss has in 32 bits at a time, beside those that ``loss_copies`` counts.
        whole_masters: ZeRO cuts optimizer states, and not the master weights that are updated.
        eager_norms: norms compute in 32 bits by separate kernels, and keep what is between them.
    """

    name: str
    by_matrix: bool
    pieces: float = 1.0
    replay_gathers: int
    embedding_gathers: int
    scalars: bool
    root: bool = False
    joined: bool = True
    quantized: bool = True
    by_product: bool = False
    repeats_latents: bool = False
    buffered: bool = False
    keeps_ends: bool = False
    context_gather: bool = False
    ring_outputs: bool = False
    whole_logits: bool = False
    eager_activations: bool = False
    whole_masters: bool = False
    widened_logits: float = 0.0
    eager_norms: bool = False
    keeps_gathered: bool = False


BLOCKWISE = Software(
    name="by block",
    by_matrix=False,
    replay_gathers=0,
    embedding_gathers=1,
    scalars=False,
    repeats_latents=True,
    ring_outputs=True,
)
"""Megatron-Core and DeepSpeed: a transformer block is the unit of sharding."""
FSDP2 = replace(
    BLOCKWISE,
    name="fsdp2",
    repeats_latents=False,
    root=True,
    joined=False,
    quantized=False,
    by_product=True,
    buffered=True,
    context_gather=True,
    ring_outputs=False,
)
"""PyTorch's fully_shard, pipelines and context parallelism, as torchtitan joins them."""
RUNTIME = Software(
    name="weft.runtime",
    by_matrix=True,
    replay_gathers=1,
    embedding_gathers=0,
    scalars=True,
    keeps_ends=True,
    whole_masters=True,
    widened_logits=WIDENED_LOGITS,
    ring_outputs=True,
)


EAGER = replace(
    BLOCKWISE, name="eager", whole_logits=True, eager_activations=True, eager_norms=True, keeps_gathered=True
)
"""Trainers of plain PyTorch modules around column and row parallel products, such as Aleph Alpha's."""


SOFTWARES = {software.name: software for software in (BLOCKWISE, EAGER, FSDP2, RUNTIME)}
"""By the name that ``weft.cluster.calibration.Calibration.software`` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How ``weft.runtime`` trains: ``clip`` bounds the norm of the gradients.  ``separate`` queries, keys and values,
    and inputs of gated layers, are separate products, as in the plain models that ``weft.runtime.convert`` cuts;
    ``loss`` is summed over all tokens."""

    clip: bool = True
    separate: bool = False
    loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Weights that are gathered over ``axes`` together: elements of each of ``calls`` collectives, and how often
    they are gathered forward, backward and to replay.  Their gradients are scattered once."""

    axes: tuple[str, ...]
    elements: Floats
    calls: float = 1.0
    forward: int = 1
    backward: int = 1
    replay: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Gradients of a stage that are summed over their copies once per step, in ``buckets``.

    ``elements`` are a rank's own; ``padded`` divide evenly by the copies, as the sharding of ``zero`` needs.
    ``by_zero`` says whether ``zero`` shards them.
    """

    axes: tuple[str, ...]
    elements: Floats
    padded: Floats
    buckets: Floats
    by_zero: bool = True

    @classmethod
    def largest(cls, stages: Sequence[Reduction]) -> Reduction:
        """The most that one of the stages reduces."""
        first = stages[0]
        elements, padded, buckets = (
            np.maximum.reduce([getattr(stage, name) for stage in stages]) for name in ("elements", "padded", "buckets")
        )
        return cls(axes=first.axes, elements=elements, padded=padded, buckets=buckets, by_zero=first.by_zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective over ``axes`` (mesh axes, or ``WEIGHT_GROUPS``), ``times`` in every micro-batch or step.

    ``elements`` is the full buffer of one call, as of ``Collective``; of buckets the mean, each then is a
    multiple of ``multiple``.
    """

    name: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    when: When
    elements: Floats
    element_bytes: float
    times: Floats
    multiple: int = 1

    @property
    def bytes(self) -> Floats:
        return self.elements * self.element_bytes


class TrainingStep:
    """One training step of every row of a table.

    Args:
        model: what is trained.
        recipe: how; ``element_bytes`` and ``gradient_bytes`` are the widths of weights and gradients.
        table: how it is cut.
        software: what trains.
        separate: as in ``StepOptions``, of software that gathers by matrix.
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        table: LayoutTable,
        software: Software = BLOCKWISE,
        *,
        separate: bool = False,
    ) -> None:
        self.model, self.recipe, self.table, self.software = model, recipe, table, software
        self.separate = separate
        self.sizes = Sizes.of(table, recipe)
        self.kinds = len(model.kinds)

    # Parts ----------------------------------------------------------------------------------------

    @cached_property
    def operations(self) -> tuple[Operations, ...]:
        """What each kind of block, the embedding and the head do in one micro-batch."""
        parts = part_operations(self.model, self.recipe, self.sizes, whole_logits=self.software.whole_logits)
        if self.software.keeps_gathered:
            first_time = [
                tuple(collective for collective in part.collectives if not collective.name.endswith(AGAIN))
                for part in parts
            ]
            parts = tuple(replace(part, collectives=some) for part, some in zip(parts, first_time, strict=True))
        if not self.software.by_matrix:
            return parts
        more = [tuple(routing(kind, self.sizes)) for kind in self.model.kinds]
        more += [()] * (len(parts) - len(more))
        return tuple(
            replace(part, collectives=(*_in_32_bits(part.collectives), *some))
            for part, some in zip(parts, more, strict=True)
        )

    @cached_property
    def collectives(self) -> tuple[tuple[Collective, ...], ...]:
        """The collectives of ``operations``; where products are separate, their outputs are summed separately."""
        result = [part.collectives for part in self.operations]
        for index, kind in enumerate(self.model.kinds if self.separate else ()):
            names = {f"{name}.output": outputs for name, outputs in separate_outputs(kind).items()}
            result[index] = tuple(
                replace(collective, elements=collective.elements * part / sum(names.get(collective.name, (1,))))
                for collective in result[index]
                for part in names.get(collective.name, (1,))
            )
        return tuple(result)

    @cached_property
    def boundary(self) -> tuple[Collective, ...]:
        """What one micro-batch passes from a stage to the next."""
        return stage_boundary(self.model, self.recipe, self.sizes).collectives

    @cached_property
    def parameters(self) -> tuple[Parameters, ...]:
        """All parameters of each part on a rank while computing."""
        return part_parameters(self.model, self.sizes)

    @cached_property
    def matrices(self) -> tuple[Matrices, ...]:
        """What software that gathers by matrix holds of each part; each matrix is padded to equal shards."""
        dense, routed = (degrees(self.table, group) for group in ("shard", "expert_shard"))
        return tuple(
            replace(
                part,
                weights=tuple((name, np.ceil(elements / dense) * dense) for name, elements in part.weights),
                experts=tuple((name, np.ceil(elements / routed) * routed) for name, elements in part.experts),
            )
            for part in part_matrices(self.model, self.sizes, separate=self.separate)
        )

    @cached_property
    def tied(self) -> Floats:
        """The copy of a tied embedding that a head on another stage holds, while computing."""
        model, sizes = self.model, self.sizes
        if self.software.by_matrix and model.tied_embeddings:
            return self.matrices[-1].weights[0][1]
        return (model.vocab * model.hidden if model.tied_embeddings else 0) / (sizes.x * sizes.y)

    @cached_property
    def units(self) -> tuple[tuple[Unit, ...], ...]:
        """What each part gathers over the shards of its weights; the head gathers a tied matrix for itself."""
        embedding = len(self.parameters) - 2
        again = [self.software.embedding_gathers if i == embedding else 1 for i in range(len(self.parameters))]
        replay = [self.software.replay_gathers if i < self.kinds else 0 for i in range(len(self.parameters))]
        if self.software.by_matrix:
            return tuple(
                tuple(
                    Unit(axes=(group,), elements=elements, backward=back, replay=more)
                    for group, weights in (("shard", part.weights), ("expert_shard", part.experts))
                    for _, elements in weights
                )
                for part, back, more in zip(self.matrices, again, replay, strict=True)
            )
        parts = [*self.parameters[:-1], self.parameters[-1] + Parameters(self.tied, np.zeros_like(self.tied))]
        pieces = self.software.pieces
        return tuple(
            tuple(
                Unit(axes=axes, elements=elements / pieces, calls=pieces, backward=back, replay=more)
                for axes, elements in ((("shard",), part.dense), (("expert_shard",), part.expert))
                if np.any(elements > 0)
            )
            for part, back, more in zip(parts, again, replay, strict=True)
        )

    # A stage's gradients --------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[tuple[Floats, ...], ...]:
        """Elements of each part by how their gradients are summed: dense and expert weights, or matrices,
        vectors of features, of outputs, of heads and of routers, and matrices of experts."""
        if not self.software.by_matrix:
            return tuple((part.dense, part.expert) for part in self.parameters)
        parts, nothing = self.matrices, np.zeros_like(self.sizes.x)
        matrices = [sum((elements for _, elements in part.weights), nothing) for part in parts]
        if self.model.tied_embeddings:
            matrices[-1] = nothing
        experts = [sum((elements for _, elements in part.experts), nothing) for part in parts]
        return tuple(
            (elements, part.features, part.outputs, nothing + part.heads, nothing + part.routers, routed)
            for elements, part, routed in zip(matrices, parts, experts, strict=True)
        )

    def stage_held(self, counts: Sequence[Floats | float], rows: Index | None = None) -> tuple[Floats, ...]:
        """``held`` of stages that have so many blocks of each kind, embeddings and heads, on the given rows."""
        at = np.arange(len(self.table)) if rows is None else rows
        totals = [
            sum((count * part[k][at] for count, part in zip(counts, self.held, strict=True)), np.zeros(len(at)))
            for k in range(len(self.held[0]))
        ]
        totals[0] = totals[0] + counts[-1] * (1 - counts[-2]) * self.tied[at]
        return tuple(totals)

    def reductions(self, elements: Sequence[Floats], rows: Index | None = None) -> tuple[Reduction, ...]:
        """Gradients of a stage that holds so much, on the given rows."""
        table = self.table if rows is None else self.table.take(rows)
        if not self.software.by_matrix:
            groups = ((("shard",), ("replica",)), (("expert_shard",), ("expert_replica",)))
            return tuple(
                self._reduction(table, elements / degrees(table, cut[0]), copies)
                for elements, (cut, copies) in zip(elements, groups, strict=True)
            )
        matrices, features, outputs, heads, routers, experts = elements
        joined = degrees(table, "token_copies") == degrees(table, "copies")
        apart = joined & (degrees(table, "head_copies") != degrees(table, "copies"))
        alone = degrees(table, "router_copies") != degrees(table, "token_copies")
        features = features + np.where(alone, 0.0, routers)
        vectors = {
            "token_copies": np.where(joined, features + outputs, features) + np.where(apart, 0.0, heads),
            "copies": np.where(joined, 0.0, outputs),
            "head_copies": np.where(apart, heads, 0.0),
            "router_copies": np.where(alone, routers, 0.0),
        }
        return (
            self._reduction(table, matrices / degrees(table, "shard"), ("replica",), padded=True),
            self._reduction(table, experts / degrees(table, "expert_shard"), ("expert_replica",), padded=True),
            *(
                Reduction(axes=(axis,), elements=some, padded=some, buckets=np.ones_like(some), by_zero=False)
                for axis, some in vectors.items()
            ),
        )

    @staticmethod
    def _reduction(
        table: LayoutTable, elements: Floats, copies: tuple[str, ...], *, padded: bool = False
    ) -> Reduction:
        members = degrees(table, copies[0]).astype(np.float64)
        even = np.ceil(elements / members) * members if padded else elements
        return Reduction(axes=copies, elements=elements, padded=even, buckets=bucket_count(elements, members))

    @cached_property
    def tied_at_rest(self) -> Floats:
        """Gradient of a tied embedding that both ends of the pipeline sum."""
        return self.tied / degrees(self.table, "shard")

    # One layout's calls ---------------------------------------------------------------------------

    def inside(self, chunk: HeldChunk) -> Iterator[Call]:
        """What a chunk of a stage communicates within its stage in one micro-batch."""
        again = (*chunk.replayed, 0.0, 0.0)
        for count, more, part, units in zip(chunk.counts, again, self.collectives, self.units, strict=True):
            for collective in part:
                steps = self.sizes.context - 1 if collective.kind == "exchange" else 1.0
                yield _call(collective, "forward" if collective.phase == "forward" else "backward", count * steps)
                if more and collective.phase == "forward":
                    yield _call(collective, "backward", more * steps)
            for unit in units:
                yield self._weights("all-gather", unit, "forward", count * unit.forward)
                yield self._weights("all-gather", unit, "backward", count * unit.backward + more * unit.replay)
                yield self._weights("reduce-scatter", unit, "backward", count)

    def between(self, chunk: HeldChunk) -> Iterator[Call]:
        """What a chunk passes to other stages in one micro-batch, activations forward and gradients backward,
        and what it makes of what arrives."""
        for collective in self.boundary:
            passes, receives = chunk.passes_on, chunk.receives
            ahead, back = (passes, receives) if collective.kind == "send" else (receives, passes)
            yield _call(collective, "forward", float(ahead))
            yield _call(collective, "backward", float(back))

    def crossing(self) -> Iterator[Call]:
        """What one message between stages asks."""
        for collective in self.boundary:
            yield _call(collective, "forward", 1.0)

    def groups(self) -> dict[tuple[Use, tuple[str, ...]], Mask]:
        """The rows on which a step has collectives of each kind over each axes; any software's sums of loss and
        norm are ``scalar``."""
        blocks, none = (1.0,) * self.kinds, (0.0,) * self.kinds
        first, last = (
            HeldChunk(stage=0, counts=(*blocks, *ends), replayed=none, passes_on=1, receives=1)
            for ends in ((1.0, 0.0), (0.0, 1.0))
        )
        result: dict[tuple[Use, tuple[str, ...]], Mask] = {}
        every = np.ones(len(self.table), dtype=bool)
        within = (*self.inside(first), *self.inside(last), *self.once(last))
        piped = self.table.pipeline > 1
        for call, rows in (
            *((collective, every) for collective in within),
            *((collective, piped) for collective in self.between(last)),
        ):
            if call.when != "scalar":
                present = rows & (call.elements > 0) & (call.times > 0)
                result[call.kind, call.axes] = result.get((call.kind, call.axes), ~every) | present
        return result | {("scalar", ("copies",)): every, ("scalar", AXES): every}

    def _weights(self, kind: CollectiveKind, unit: Unit, when: When, times: float) -> Call:
        width = self.recipe.element_bytes if kind == "all-gather" else self.recipe.gradient_bytes
        calls = times * unit.calls * np.ones_like(unit.elements)
        name = "weights" if kind == "all-gather" else "weight-gradients"
        return Call(
            name=name, kind=kind, axes=unit.axes, when=when, elements=unit.elements, element_bytes=width, times=calls
        )

    def once(self, stage: HeldChunk, *, clip: bool = True, loss: bool = True) -> Iterator[Call]:
        """What a stage communicates once per step (gradients in every micro-batch with ``zero`` = 2)."""
        recipe, table = self.recipe, self.table
        elements = self.stage_held(stage.counts)
        rounds = np.where(table.zero == 2, self.micro_batches, 1.0)
        for reduction in self.reductions(elements):
            sharded = reduction.by_zero & (table.zero > 0)
            wanted: tuple[tuple[CollectiveKind, When, Floats, float], ...] = (
                ("all-reduce", "reduce", np.where(sharded, 0.0, 1.0), recipe.gradient_bytes),
                ("reduce-scatter", "reduce", np.where(sharded, rounds, 0.0), recipe.gradient_bytes),
                ("all-gather", "gather", np.where(sharded, 1.0, 0.0), recipe.element_bytes),
            )
            for kind, when, times, width in wanted:
                cut = kind != "all-reduce"
                yield Call(
                    name="gradients" if when == "reduce" else "updated-weights",
                    kind=kind,
                    axes=reduction.axes,
                    when=when,
                    elements=(reduction.padded if cut else reduction.elements) / reduction.buckets,
                    element_bytes=width,
                    times=times * reduction.buckets,
                    multiple=int(degrees(table, reduction.axes[0]).max()) if cut and self.software.by_matrix else 1,
                )
        ends = float(stage.holds_embedding != stage.holds_head and self.model.tied_embeddings)
        yield self._scalar("tied", ("tied",), "tied", self.tied_at_rest, recipe.gradient_bytes, ends)
        if self.software.scalars:
            single = np.ones_like(self.sizes.x)
            yield self._scalar("loss", ("copies",), "scalar", single, SCALAR_BYTES, float(stage.holds_head and loss))
            yield self._scalar("norm", AXES, "scalar", single, SCALAR_BYTES, float(clip))

    @staticmethod
    def _scalar(name: str, axes: tuple[str, ...], when: When, elements: Floats, width: float, times: float) -> Call:
        calls = times * np.ones_like(elements)
        return Call(
            name=name, kind="all-reduce", axes=axes, when=when, elements=elements, element_bytes=width, times=calls
        )

    @cached_property
    def micro_batches(self) -> Floats:
        """Micro-batches of a rank."""
        table = self.table
        count: Floats = self.recipe.global_batch / (table.micro_batch * table.z * table.data)
        return count


def _in_32_bits(collectives: Iterable[Collective]) -> Iterator[Collective]:
    """The same, with sums of gradients that go round a ring as Weft's runtime sends them."""
    for collective in collectives:
        yield replace(collective, element_bytes=4.0) if collective.name == "keys-values.gradient" else collective


def _call(collective: Collective, when: When, times: Floats | float) -> Call:
    return Call(
        name=collective.name,
        kind=collective.kind,
        axes=collective.axes,
        when=when,
        elements=collective.elements,
        element_bytes=collective.element_bytes,
        times=times * np.ones_like(collective.elements),
    )


def bucket_count(elements: Floats, replicas: Floats) -> Floats:
    """Buckets in which ``elements`` gradients per rank are reduced over their replicas."""
    least = np.maximum(BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * replicas)
    return np.maximum(np.ceil(elements / least), 1.0)


def buckets(elements: int, copies: int, zero: int) -> list[int]:
    """Elements of each bucket of a stage's ``elements`` matrix gradients at rest, one after the other.

    With zero each is a multiple of the ranks that hold ``copies``, for which the last is padded.
    """
    count = int(bucket_count(np.array([float(elements)]), np.array([float(copies)]))[0])
    unit = copies if zero else 1
    return _evenly(-(-elements // unit) * unit, count, unit)


def _evenly(elements: int, count: int, multiple: int) -> list[int]:
    """Sizes of so many buckets, multiples that add up to ``elements``, larger ones first."""
    base, more = divmod(elements // multiple, count)
    return [(base + (i < more)) * multiple for i in range(count)]


# One rank's step in whole numbers ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Issue:
    """One collective of a rank.

    ``axes`` are in the order of ``weft.layout.spec.AXES`` and ``EXPERT_GROUPS``, without those of size 1;
    ``elements`` is the full buffer, as of ``weft.layout.operations.Collective``.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    elements: int
    element_bytes: int

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes


def step_collectives(
    model: Model, recipe: Recipe, layout: Layout, *, stage: int = 0, options: StepOptions = StepOptions()
) -> Counter[Issue]:
    """What each rank of a pipeline stage of ``weft.runtime`` issues in one step.

    Raises:
        Unsupported: the runtime does not train this.
        BadInput: the layout breaks a rule of ``weft.layout.check``, there is no such stage, or a size does not
            divide.
    """
    check_trainable(Job(model=model, recipe=recipe), layout)
    if not 0 <= stage < layout.pipeline:
        raise BadInput(f"stage {stage} of {layout.pipeline}", where="stage", remedy="count from 0")
    step = TrainingStep(model, recipe, LayoutTable.of([layout]), RUNTIME, separate=options.separate)
    chunks = [chunk for chunk in held_chunks(model, layout) if chunk.stage == stage]
    step_chunks = HeldChunk.together(chunks)
    rounds = int(step.micro_batches[0])
    result: Counter[Issue] = Counter()
    for chunk in chunks:
        for call in (*step.inside(chunk), *step.between(chunk)):
            _count(result, call, layout, rounds)
    for call in step.once(step_chunks, clip=options.clip, loss=options.loss):
        _count(result, call, layout)
    return result


def _count(result: Counter[Issue], call: Call, layout: Layout, rounds: int = 1) -> None:
    """Add a call's issues, except empty ones and those of a rank alone."""
    axes = ("pipeline",) if call.axes == ("tied",) else wide_axes(layout, real_axes(layout, call.axes))
    times, elements = float(np.max(call.times)), float(np.max(call.elements))
    if not axes or not times or not elements or (call.axes == ("tied",) and layout.pipeline == 1):
        return
    calls = round(times)
    if call.when in ("reduce", "gather"):
        for size in _evenly(round(elements * times), calls, call.multiple):
            result[Issue(call.kind, axes, size, int(call.element_bytes))] += 1
        return
    result[Issue(call.kind, axes, _whole(call.elements, call.name), int(call.element_bytes))] += calls * rounds


def wide_axes(layout: Layout, axes: Iterable[str]) -> tuple[str, ...]:
    """The given axes that have more than one rank, in the order of ``AXES`` and then of ``EXPERT_GROUPS``."""
    wanted = set(axes)
    result = tuple(axis for axis in AXES if axis in wanted and getattr(layout, axis) > 1)
    routed = [axis for axis in EXPERT_GROUPS if axis in wanted]
    if not routed:
        return result
    table = LayoutTable.of([layout])
    return (*result, *(axis for axis in routed if degrees(table, axis)[0] > 1))


def _whole(elements: Floats | float, noun: str) -> int:
    """The elements of a table of one layout, which must be a whole number."""
    value = float(np.max(elements))
    if not value.is_integer():
        raise BadInput(
            f"{noun} would be cut into {value:g} elements",
            where="layout",
            remedy="choose x, y and micro_batch that divide the features and tokens",
        )
    return int(value)
