"""The exact multiset of collectives that one rank issues in one training step of ``weft.runtime``.

Every micro-batch repeats the collectives of ``weft.layout.operations``; around them each weight matrix is
gathered over z before use and its gradient scattered, and once per step gradients are reduced (steps 1, 4, 6
and 7 of AxoNN's algorithm, arXiv 2305.13525).  The runtime is checked against this list, and takes from it
how matrices are padded and gradients bucketed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.layout.check import check_layout
from weft.layout.operations import (
    Collective,
    CollectiveKind,
    Sizes,
    block_operations,
    embedding_operations,
    head_operations,
    local_parameters,
    split,
    stage_boundary,
)
from weft.layout.spec import AXES, Layout
from weft.layout.stages import model_chunks
from weft.layout.table import Floats, LayoutTable
from weft.model.job import Job, Recipe
from weft.model.spec import Block, LatentAttention, Model

BUCKET_ELEMENTS = 40e6
"""Gradients per bucket of the reduction over replicas, at least (Megatron-Core: max(40e6, 1e6 * ranks))."""
BUCKET_ELEMENTS_PER_RANK = 1e6
"""The same per rank of the reduction, which outgrows the former beyond 40 ranks."""
NORMS = 2
"""Norms of a block that the runtime builds: before attention and before the feed-forward part."""
SCATTERS_IN_FLIGHT = 8
"""Weight gradients that may be under way over z at once: each holds a whole block of gradients."""
SCALAR_BYTES = 4
"""Width of the loss and of the gradients' norm."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One collective of a rank.

    ``axes`` are in the order of ``weft.layout.spec.AXES``, without those of size 1; ``elements`` is the full
    buffer, as of ``weft.layout.operations.Collective``.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    elements: int
    element_bytes: int

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How the runtime trains: ``weight_cache`` keeps matrices gathered over z for the whole step, ``clip``
    bounds the norm of the gradients."""

    weight_cache: bool = False
    clip: bool = True


def step_collectives(
    model: Model, recipe: Recipe, layout: Layout, *, stage: int = 0, options: StepOptions = StepOptions()
) -> Counter[Issue]:
    """What each rank of a pipeline stage issues in one step.

    Args:
        model: what is trained.
        recipe: how; ``element_bytes`` and ``gradient_bytes`` are the widths of weights and gradients.
        layout: how it is cut.
        stage: index of the pipeline stage.
        options: how the runtime trains.

    Raises:
        Unsupported: the runtime does not train this.
        BadInput: the layout breaks a rule of ``weft.layout.check``, or a size does not divide.
    """
    step = _checked(model, recipe, layout, stage)
    step.activations()
    step.boundaries()
    step.weights(cached=options.weight_cache)
    step.matrix_gradients()
    step.vector_gradients()
    step.scalars(clip=options.clip)
    return step.tally.issues


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix: elements of a rank's block while computing, and how often a micro-batch gathers it and
    scatters its gradient."""

    elements: int
    gathers: int
    scatters: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """What a rank holds: the matrices of its blocks in order of use, then of embedding and head (one where
    they are tied); elements of the vectors by the axes over which their gradients are summed."""

    matrices: tuple[Matrix, ...]
    vectors: Mapping[tuple[str, ...], int]


def stage_weights(model: Model, recipe: Recipe, layout: Layout, *, stage: int = 0) -> StageWeights:
    """What each rank of a pipeline stage holds.

    Raises:
        Unsupported, BadInput: as ``step_collectives``.
    """
    step = _checked(model, recipe, layout, stage)
    return StageWeights(matrices=tuple(step.matrices()), vectors=step.vectors())


def wide_axes(layout: Layout, axes: Iterable[str]) -> tuple[str, ...]:
    """The given axes that have more than one rank, in the order of ``AXES``."""
    wanted = set(axes)
    return tuple(axis for axis in AXES if axis in wanted and getattr(layout, axis) > 1)


def padded_rows(vocab: int, hidden: int, layout: Layout) -> int:
    """Rows of the embedding on one rank: the vocabulary over x and y, rounded up until the rank's block
    divides over z."""
    step = layout.z // gcd(hidden, layout.z)
    return -(-vocab // (layout.x * layout.y * step)) * step


def bucket_count(elements: Floats, replicas: Floats) -> Floats:
    """Buckets in which ``elements`` gradients per rank are reduced over their replicas."""
    least = np.maximum(BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * replicas)
    return np.maximum(np.ceil(elements / least), 1.0)


def buckets(elements: int, layout: Layout) -> list[int]:
    """Elements of each bucket of a stage's ``elements`` matrix gradients at rest, one after the other.

    With zero = 1 each is a multiple of data, for which the last is padded.
    """
    count = int(bucket_count(np.array([float(elements)]), np.array([float(layout.data)]))[0])
    unit = layout.data if layout.zero else 1
    base, more = divmod(-(-elements // unit), count)
    return [(base + (i < more)) * unit for i in range(count)]


# What a step consists of ------------------------------------------------------------------------


def _checked(model: Model, recipe: Recipe, layout: Layout, stage: int) -> _Step:
    check_trainable(Job(model=model, recipe=recipe), layout)
    if not 0 <= stage < layout.pipeline:
        raise BadInput(f"stage {stage} of {layout.pipeline}", where="stage", remedy="count from 0")
    return _Step(model, recipe, layout, stage)


class _Tally:
    """Counts collectives, but those of nothing and those of a rank alone."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.issues: Counter[Issue] = Counter()

    def add(
        self, kind: CollectiveKind, axes: Iterable[str], elements: int, element_bytes: float, times: int = 1
    ) -> None:
        wide = wide_axes(self.layout, axes)
        if wide and elements and times:
            self.issues[Issue(kind, wide, elements, int(element_bytes))] += times

    def add_all(self, collectives: Iterable[Collective], times: int) -> None:
        """Those of a list of operations."""
        for one in collectives:
            if not times or not wide_axes(self.layout, one.axes):
                continue
            self.add(one.kind, one.axes, _whole(one.elements, one.name), one.element_bytes, times)


class _Step:
    """The collectives of one stage's step."""

    def __init__(self, model: Model, recipe: Recipe, layout: Layout, stage: int) -> None:
        self.model, self.recipe, self.layout = model, recipe, layout
        self.sizes = Sizes.of(LayoutTable.of([layout]), recipe)
        self.micro_batches = recipe.global_batch // (layout.micro_batch * layout.data_parallel)
        chunks = model_chunks(model.block_sequence(), layout.pipeline, layout.virtual_stages)
        self.chunks = [chunk for chunk in chunks if chunk.stage == stage]
        self.blocks = [model.kinds[kind] for chunk in self.chunks for kind in chunk.blocks]
        self.embedding = any(chunk.embedding for chunk in self.chunks)
        self.head = any(chunk.head for chunk in self.chunks)
        self.rows = padded_rows(model.vocab, model.hidden, layout)
        self.tally = _Tally(layout)

    @property
    def replayed(self) -> int:
        """Blocks that are computed again before their backward, from the stage's first."""
        if self.layout.recompute != "full":
            return 0
        return self.layout.recompute_layers or len(self.blocks)

    def activations(self) -> None:
        """Those of every micro-batch's operations; forward ones once more where blocks are recomputed."""
        again = Counter(self.blocks[: self.replayed])
        for block, count in Counter(self.blocks).items():
            listed = block_operations(block, self.recipe, self.sizes).collectives
            forward = [one for one in listed if one.phase == "forward"]
            self.tally.add_all(listed, count * self.micro_batches)
            self.tally.add_all(forward, again[block] * self.micro_batches)
        for present, operations in ((self.embedding, embedding_operations), (self.head, head_operations)):
            if present:
                listed = operations(self.model, self.recipe, self.sizes).collectives
                self.tally.add_all(listed, self.micro_batches)

    def boundaries(self) -> None:
        """A chunk that is not the last sends activations and receives their gradient; one that is not the
        first the other way round."""
        crossed = sum((not chunk.embedding) + (not chunk.head) for chunk in self.chunks)
        passed = stage_boundary(self.model, self.recipe, self.sizes).collectives
        self.tally.add_all(passed, crossed * self.micro_batches)

    def weights(self, *, cached: bool) -> None:
        """Matrices gathered over z forward, backward and for recomputation, and their gradients scattered."""
        for matrix in self.matrices():
            gathers = 1 if cached else matrix.gathers * self.micro_batches
            scatters = matrix.scatters * self.micro_batches
            self.tally.add("all-gather", ("z",), matrix.elements, self.recipe.element_bytes, gathers)
            self.tally.add("reduce-scatter", ("z",), matrix.elements, self.recipe.gradient_bytes, scatters)

    def matrix_gradients(self) -> None:
        """A tied matrix is summed over both ends of the pipeline, then all are reduced over data in buckets;
        with zero = 1 each rank gets, updates and gathers its share."""
        at_rest = sum(matrix.elements // self.layout.z for matrix in self.matrices())
        if self.model.tied_embeddings and self.embedding != self.head:
            copy = self.rows * self.model.hidden // self.layout.z
            self.tally.add("all-reduce", ("pipeline",), copy, self.recipe.gradient_bytes)
        for elements in buckets(at_rest, self.layout):
            if self.layout.zero:
                self.tally.add("reduce-scatter", ("data",), elements, self.recipe.gradient_bytes)
                self.tally.add("all-gather", ("data",), elements, self.recipe.element_bytes)
            else:
                self.tally.add("all-reduce", ("data",), elements, self.recipe.gradient_bytes)

    def vector_gradients(self) -> None:
        """What is summed over the same axes is one buffer."""
        for axes, elements in self.vectors().items():
            self.tally.add("all-reduce", axes, elements, self.recipe.gradient_bytes)

    def vectors(self) -> Counter[tuple[str, ...]]:
        """Elements of the vectors by the axes over which gradients are summed: vectors are whole on every z
        rank, and with sequence parallelism some meet a rank's own tokens alone and are summed over x too."""
        per_token = ("x", "z", "data") if self.layout.sequence_parallel else ("z", "data")
        joined: Counter[tuple[str, ...]] = Counter()
        joined[wide_axes(self.layout, per_token)] += self._feature_vectors()
        joined[wide_axes(self.layout, ("z", "data"))] += self._output_vectors()
        return joined

    def scalars(self, *, clip: bool) -> None:
        """The loss, and the norm of the gradients."""
        if self.head:
            self.tally.add("all-reduce", ("z", "data"), 1, SCALAR_BYTES)
        if clip:
            self.tally.add("all-reduce", AXES, 1, SCALAR_BYTES)

    def matrices(self) -> Iterator[Matrix]:
        """The weight matrices that the stage holds."""
        for i, block in enumerate(self.blocks):
            gathers = 3 if i < self.replayed else 2
            for linear in block.linears():
                elements = _whole(local_parameters(replace(linear, bias=False), self.sizes), linear.name)
                if elements % self.layout.z:
                    raise BadInput(
                        f"the {elements} weights of {linear.name} on a rank do not divide over z = {self.layout.z}",
                        where="layout",
                        remedy="choose z that divides them",
                    )
                yield Matrix(elements=elements, gathers=gathers)
        vocabulary = self.rows * self.model.hidden
        if self.embedding and self.head and self.model.tied_embeddings:
            yield Matrix(elements=vocabulary, gathers=3, scatters=2)
            return
        if self.embedding:
            yield Matrix(elements=vocabulary, gathers=1)
        if self.head:
            yield Matrix(elements=vocabulary, gathers=2)

    def _output_vectors(self) -> int:
        """Biases of the outputs that are cut over x."""
        biases = sum(self._biases(block, "normal") for block in self.blocks)
        return biases + (self.rows if self.head and self.model.head_bias else 0)

    def _feature_vectors(self) -> int:
        """Vectors of the hidden features, cut over y: norms, biases and positions."""
        found = sum(self._biases(block, "transposed") for block in self.blocks)
        whole = sum(block.vector_parameters for block in self.blocks)
        if self.embedding:
            whole += self.model.positions * self.model.hidden
        if self.head and self.model.final_norm:
            whole += self.model.norm_parameters
        return found + whole // self.layout.y

    def _biases(self, block: Block, kind: str) -> int:
        """Elements on one rank of the biases of a block's linear layers of a kind."""
        wanted = [linear for linear in block.linears() if linear.bias and linear.kind == kind]
        return sum(_whole(linear.outputs / split(linear, self.sizes)[1], linear.name) for linear in wanted)


def _whole(elements: Floats | float, what: str) -> int:
    """The elements of a table of one layout, which must be a whole number."""
    value = float(np.max(elements))
    if not value.is_integer():
        raise BadInput(
            f"{what} would be cut into {value:g} elements",
            where="layout",
            remedy="choose x, y and micro_batch that divide the features and tokens",
        )
    return int(value)


# What the runtime trains ------------------------------------------------------------------------


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
        BadInput: key-value heads do not divide over x.
    """
    for wanted, field, what, remedy in (*_model_limits(model), *_layout_limits(model, layout)):
        if wanted:
            raise Unsupported(f"the runtime does not support {what}", where=field, remedy=remedy)
    for block in model.kinds:
        if block.attention.kv_heads % layout.x:
            raise BadInput(
                f"{block.attention.kv_heads} key-value heads (kv_heads) do not divide over x = {layout.x}",
                where="layout",
                remedy="choose x that divides kv_heads",
            )


_Limit = tuple[bool, str, str, str]
"""Whether it is asked for, by which field, what it is, what to change."""


def _model_limits(model: Model) -> Iterator[_Limit]:
    for block in model.kinds:
        attention = block.attention
        latent, extra = isinstance(attention, LatentAttention), attention.extra_parameters > 0
        yield block.moe is not None, "block.feed_forward", "experts", "choose a dense model"
        yield latent, "block.attention", "latent attention", "choose a model with grouped-query attention"
        yield block.parallel, "block.parallel", "parallel attention and feed-forward", "set parallel=False"
        norms = f"{block.norms} norms in a block"
        yield block.norms != NORMS, "block.norms", norms, f"set norms={NORMS}, before each half"
        vectors = "query and key norms, sinks or learned biases"
        yield extra, "block.attention.extra_parameters", vectors, "set extra_parameters=0"
        yield attention.window is not None, "block.attention.window", "sliding windows", "set window=None"
    ahead = model.prediction_layers > 0
    yield ahead, "model.prediction_layers", "prediction layers", "set prediction_layers=0"
    narrow = model.embedding_features is not None
    yield narrow, "model.embedding_features", "a narrower embedding", "set embedding_features=None"
    normed = "a norm after the embedding"
    yield model.embedding_norm, "model.embedding_norm", normed, "set embedding_norm=False"
    placed = model.positions > 0 or any(block.attention.rotary for block in model.kinds)
    yield not placed, "model.positions", "models without positions", "set positions, or rotary=True"


def _layout_limits(model: Model, layout: Layout) -> Iterator[_Limit]:
    for axis in ("context", "expert", "expert_tensor"):
        degree = getattr(layout, axis)
        yield degree > 1, f"layout.{axis}", f"{axis} = {degree}", f"set {axis}=1"
    yield layout.zero > 1, "layout.zero", f"zero = {layout.zero}", "set zero=1, or shard over z"
    for name in ("offload_optimizer", "offload_activations"):
        yield getattr(layout, name), f"layout.{name}", "offloading", f"set {name}=false"
    bubbles = layout.schedule in ("zb1p", "zbv")
    schedule = f"schedule = {layout.schedule}"
    yield bubbles, "layout.schedule", schedule, "set schedule=1f1b or interleaved"
