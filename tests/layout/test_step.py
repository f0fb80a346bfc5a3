"""A step's collectives: against AxoNN's reference counts, a walk over a GPT's layers, and the estimator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.axonn import REFERENCE_COUNTS

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.collectives.cost import collective_s
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import Estimator
from weft.estimation.kernels import KernelModel
from weft.layout import check
from weft.layout.check import check_runnable, explain
from weft.layout.mesh import rank_groups, real_axes, spread
from weft.layout.operations import padded_rows
from weft.layout.spec import AXES, Layout
from weft.layout.stages import HeldChunk, held_chunks
from weft.layout.step import (
    BLOCKWISE,
    BUCKET_ELEMENTS,
    BUCKET_ELEMENTS_PER_RANK,
    RUNTIME,
    Call,
    Issue,
    Software,
    StepOptions,
    TrainingStep,
    buckets,
    step_collectives,
    wide_axes,
)
from weft.layout.table import LayoutTable
from weft.model import (
    Attention,
    Block,
    BlockRun,
    FeedForward,
    Job,
    LatentAttention,
    MixtureOfExperts,
    Model,
    Recipe,
    RecipeChanges,
    resolve_job,
)
from weft.simulation.iteration.demand import demand, totals

GPT_BLOCK = Block(
    hidden=48,
    attention=Attention(heads=8, kv_heads=8, head_dim=6, qkv_bias=True, out_bias=True, rotary=False),
    feed_forward=FeedForward(intermediate=192, gated=False, bias=True),
    norm_bias=True,
)
GPT = Model(
    name="gpt",
    hidden=48,
    vocab=101,
    runs=(BlockRun(block=GPT_BLOCK, count=4),),
    tied_embeddings=True,
    positions=16,
    norm_bias=True,
)
UNTIED = replace(GPT, tied_embeddings=False, head_bias=True)
LLAMA_BLOCK = Block(
    hidden=48, attention=Attention(heads=8, kv_heads=4, head_dim=6), feed_forward=FeedForward(intermediate=96)
)
WIDE_BLOCK = replace(LLAMA_BLOCK, feed_forward=FeedForward(intermediate=144))
LLAMA = Model(
    name="llama",
    hidden=48,
    vocab=96,
    runs=(BlockRun(block=LLAMA_BLOCK, count=1), BlockRun(block=WIDE_BLOCK, count=1)) * 2,
)
RECIPE = Recipe(global_batch=24, sequence=16)


# AxoNN's reference --------------------------------------------------------------------------------

REFERENCE = Block(
    hidden=64,
    attention=Attention(heads=8, kv_heads=8, head_dim=8),
    feed_forward=FeedForward(intermediate=256, gated=False),
    norms=0,
)
LINEARS = 4


@pytest.fixture
def bare_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks without norms through, which the reference leaves out and the estimator cuts over z."""
    monkeypatch.setattr(check, "NORMS", (0,))


def of_one_block(layout: Layout) -> tuple[Counter[Issue], int]:
    """What a second block adds to a model of one, as the rest cancels: collectives, and elements of the
    reduction over data."""
    steps = []
    for count in (1, 2):
        runs = (BlockRun(block=REFERENCE, count=count),)
        model = Model(name="m", hidden=64, vocab=64, runs=runs, final_norm=False)
        steps.append(step_collectives(model, Recipe(global_batch=8, sequence=16), layout))
    reduced = [sum(issue.elements for issue in step if issue.axes == ("data",)) for step in steps]
    for step in steps:
        for issue in [issue for issue in step if issue.axes == ("data",)]:
            del step[issue]
    return steps[1] - steps[0], reduced[1] - reduced[0]


@pytest.mark.usefixtures("bare_blocks")
@pytest.mark.parametrize("grid", REFERENCE_COUNTS)
def test_reference_counts_of_the_4d_algorithm(grid: tuple[int, int, int, int]) -> None:
    """The reference counts the input of gathers, and a reduction over data per linear layer, where we reduce
    a stage's gradients in one buffer."""
    x, y, z, data = grid
    layout = Layout(x=x, y=y, z=z, data=data, micro_batch=8 // (z * data), zero=0)
    found, elements = of_one_block(layout)
    count = found.total() + (LINEARS if data > 1 else 0)
    for issue, times in found.items():
        elements += times * issue.elements // (z if issue.kind == "all-gather" else 1)
    assert (count, elements) == REFERENCE_COUNTS[grid]


def gathered(count: int, layout: Layout) -> Counter[Issue]:
    """Every matrix of the block gathered ``count`` times over z."""
    found: Counter[Issue] = Counter()
    for linear in REFERENCE.linears():
        block = linear.inputs * linear.outputs // (layout.x * layout.y)
        found[Issue("all-gather", ("z",), block, 2)] += count
    return found


@pytest.mark.usefixtures("bare_blocks")
@pytest.mark.parametrize(
    "layout", [Layout(x=2, y=2, z=2, micro_batch=4), Layout(y=4, z=2, micro_batch=2), Layout(x=2, z=2, micro_batch=4)]
)
def test_recomputation_changes_what_the_reference_says(layout: Layout) -> None:
    """axonn.md 5.7 and 1.4: recomputation gathers and reduces (over the contracted axis) every linear layer
    once more."""
    micro_batches = 8 // (layout.z * layout.micro_batch)
    plain, recomputed = of_one_block(layout)[0], of_one_block(replace(layout, recompute="full"))[0]
    rows = layout.micro_batch * 16
    reduced: Counter[Issue] = Counter()
    for linear in REFERENCE.linears():
        contracted, out = ("y", layout.x) if linear.kind == "normal" else ("x", layout.y)
        if getattr(layout, contracted) > 1:
            reduced[Issue("all-reduce", (contracted,), rows * linear.outputs // out, 2)] += micro_batches
    assert recomputed - plain == reduced + gathered(micro_batches, layout)
    assert not plain - recomputed


# A walk over the layers ---------------------------------------------------------------------------


@dataclass
class Walk:
    """One rank's step, layer after layer, from the local shapes of axonn.md 1.2: an independent count."""

    model: Model
    recipe: Recipe
    layout: Layout
    found: Counter[Issue] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tokens = self.layout.micro_batch * self.recipe.sequence
        self.sharded = self.layout.sequence_parallel
        self.own = self.tokens // self.layout.x if self.sharded else self.tokens
        self.width = self.model.hidden // self.layout.y
        self.matrices: dict[str, int] = {}

    def issue(self, kind: str, axes: str, elements: int, element_bytes: int = 2) -> None:
        named = [name for name in ("x", "y", "z", "data", "pipeline") if name in axes.split()]
        wide = tuple(name for name in named if getattr(self.layout, name) > 1)
        if wide:
            self.found[Issue(kind, wide, elements, element_bytes)] += 1  # type: ignore[arg-type]

    def gather(self, name: str) -> None:
        self.issue("all-gather", "z", self.matrices[name])

    def scatter(self, name: str) -> None:
        self.issue("reduce-scatter", "z", self.matrices[name], self.recipe.gradient_bytes)

    def norm(self, bias: bool, *, backward: bool = False) -> None:
        self.issue("all-reduce", "y", 2 * self.own if bias else self.own, 8 if bias and not backward else 4)

    def block_forward(self, name: str, block: Block) -> None:
        for _, n, layer, turned in shapes(block):
            if not turned:
                self.norm(block.norm_bias)
                if self.sharded:
                    self.issue("all-gather", "x", self.tokens * self.width)
            self.gather(f"{name}.{layer}")
            if not turned:
                self.issue("all-reduce", "y", self.tokens * n // self.layout.x)
            elif self.sharded:
                self.issue("reduce-scatter", "x", self.tokens * self.width)
            else:
                self.issue("all-reduce", "x", self.tokens * self.width)

    def block_backward(self, name: str, block: Block) -> None:
        for k, _, layer, turned in reversed(shapes(block)):
            if self.sharded:  # the gradient of the output, or the input again
                self.issue("all-gather", "x", self.tokens * self.width)
            self.gather(f"{name}.{layer}")
            if turned:
                self.issue("all-reduce", "y", self.tokens * k // self.layout.x)
            elif self.sharded:
                self.issue("reduce-scatter", "x", self.tokens * self.width)
            else:
                self.issue("all-reduce", "x", self.tokens * self.width)
            self.scatter(f"{name}.{layer}")
            if not turned:
                self.norm(block.norm_bias, backward=True)

    def embed(self, *, backward: bool) -> None:
        whole = self.tokens * self.model.hidden
        if not backward:
            self.gather("vocabulary")
            self.issue("reduce-scatter" if self.sharded else "all-reduce", "x y", whole)
        else:
            self.issue("all-gather", "x y" if self.sharded else "y", whole)
            self.scatter("vocabulary")

    def head(self, *, backward: bool) -> None:
        whole = self.tokens * self.model.hidden
        matrix = "vocabulary" if self.model.tied_embeddings else "head"
        if not backward:
            if self.model.final_norm:
                self.norm(self.model.norm_bias)
            self.issue("all-gather", "x y" if self.sharded else "y", whole)
            self.gather(matrix)
            for _ in ("max", "target", "sum"):
                self.issue("all-reduce", "x y", self.tokens, 4)
        else:
            self.gather(matrix)
            if self.sharded:
                self.issue("all-gather", "x y", whole)
            self.issue("reduce-scatter" if self.sharded else "all-reduce", "x y", whole)
            self.scatter(matrix)
            if self.model.final_norm:
                self.norm(self.model.norm_bias, backward=True)

    def leave(self) -> None:
        self.issue("send", "pipeline", self.tokens * self.width // self.layout.x)

    def arrive(self) -> None:
        if not self.sharded:
            self.issue("all-gather", "x", self.tokens * self.width)


def shapes(block: Block) -> list[tuple[int, int, str, bool]]:
    """Inputs, outputs, name and whether transposed, of the four linear layers."""
    attention, feed = block.attention, block.feed_forward
    assert isinstance(attention, Attention)
    assert isinstance(feed, FeedForward)
    inner = attention.heads * attention.head_dim
    fused = inner + 2 * attention.kv_heads * attention.head_dim
    up = feed.intermediate * (2 if feed.gated else 1)
    return [
        (block.hidden, fused, "qkv", False),
        (inner, block.hidden, "proj", True),
        (block.hidden, up, "fc1", False),
        (feed.intermediate, block.hidden, "fc2", True),
    ]


def walked(model: Model, recipe: Recipe, layout: Layout, stage: int, options: StepOptions) -> Counter[Issue]:
    """A step of an evenly divided model."""
    walk = Walk(model, recipe, layout)
    whole = [run.block for run in model.runs for _ in range(run.count)]
    per = len(whole) // (layout.pipeline * layout.virtual_stages)
    last = layout.pipeline * layout.virtual_stages - 1
    chunks = range(stage, last + 1, layout.pipeline)
    names = [index for chunk in chunks for index in range(chunk * per, chunk * per + per)]
    count = layout.recompute_layers or len(names)
    replayed = set(names[:count]) if layout.recompute == "full" else set()
    tile = layout.x * layout.y
    for index in names:
        for k, n, layer, _ in shapes(whole[index]):
            walk.matrices[f"{index}.{layer}"] = k * n // tile
    rows = next(r for r in range(-(-model.vocab // tile), 10**6) if r * model.hidden % layout.z == 0)
    if stage == 0:
        walk.matrices["vocabulary"] = rows * model.hidden
    if last in chunks and not model.tied_embeddings:
        walk.matrices["head"] = rows * model.hidden
    for _ in range(recipe.global_batch // (layout.micro_batch * layout.z * layout.data)):
        for chunk in chunks:
            walk.embed(backward=False) if chunk == 0 else walk.arrive()
            for index in range(chunk * per, chunk * per + per):
                walk.block_forward(str(index), whole[index])
            walk.head(backward=False) if chunk == last else walk.leave()
        for chunk in reversed(chunks):
            walk.head(backward=True) if chunk == last else walk.arrive()
            for index in reversed(range(chunk * per, chunk * per + per)):
                if index in replayed:
                    walk.block_forward(str(index), whole[index])
                walk.block_backward(str(index), whole[index])
            walk.embed(backward=True) if chunk == 0 else walk.leave()
    synchronise(walk, [whole[index] for index in names], stage == 0, last in chunks, rows)
    if last in chunks:
        walk.issue("all-reduce", "z data", 1, 4)
    if options.clip:
        walk.issue("all-reduce", "x y z data pipeline", 1, 4)
    return walk.found


def synchronise(walk: Walk, blocks: list[Block], first: bool, last: bool, rows: int) -> None:
    """Once per step: matrices over data (one bucket: the models are small), vectors over all copies."""
    model, layout, gradient = walk.model, walk.layout, walk.recipe.gradient_bytes
    at_rest = sum(elements // layout.z for elements in walk.matrices.values())
    if layout.zero == 1:
        at_rest += -at_rest % layout.data
        walk.issue("reduce-scatter", "data", at_rest, gradient)
        walk.issue("all-gather", "data", at_rest)
    else:
        walk.issue("all-reduce", "data", at_rest, gradient)
    outputs, features = (rows if last and model.head_bias else 0), 0
    for block in blocks:
        features += 2 * walk.width * (2 if block.norm_bias else 1)
        for _, n, layer, turned in shapes(block):
            part = block.attention if layer in ("qkv", "proj") else block.feed_forward
            biased = part.bias if isinstance(part, FeedForward) else getattr(part, BIASES[layer])
            outputs += n // layout.x if biased and not turned else 0
            features += n // layout.y if biased and turned else 0
    features += model.positions * walk.width if first else 0
    features += walk.width * (2 if model.norm_bias else 1) if last and model.final_norm else 0
    if walk.sharded:
        walk.issue("all-reduce", "x z data", features, gradient)
        if outputs:
            walk.issue("all-reduce", "z data", outputs, gradient)
    else:
        walk.issue("all-reduce", "z data", outputs + features, gradient)


BIASES = {"qkv": "qkv_bias", "proj": "out_bias"}


@st.composite
def steps(draw: st.DrawFn) -> tuple[Model, Layout, int, StepOptions]:
    """A model, a layout that it can take, a stage and options."""
    x, y = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    z, data = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 4), (2, 2), (4, 2)]))
    pipeline, virtual = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (4, 1), (2, 2)]))
    batch = RECIPE.global_batch // (z * data)
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    rounds = [size for size in sizes if batch // size % pipeline == 0]
    if virtual > 1 and not rounds:
        virtual = 1
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    layout = Layout(
        x=x,
        y=y,
        z=z,
        data=data,
        pipeline=pipeline,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        micro_batch=draw(st.sampled_from(rounds if virtual > 1 else sizes)),
        zero=draw(st.sampled_from([0, 1])),
        sequence_parallel=x > 1 and y == 1 and draw(st.booleans()),
        recompute=recompute,
        recompute_layers=draw(st.integers(0, 4 // pipeline)) if recompute == "full" else 0,
    )
    model = draw(st.sampled_from([GPT, UNTIED, LLAMA] if pipeline == 1 else [UNTIED, LLAMA]))
    options = StepOptions(clip=draw(st.booleans()))
    return model, layout, draw(st.integers(0, pipeline - 1)), options


@given(steps())
def test_steps_are_those_of_a_walk_over_the_layers(step: tuple[Model, Layout, int, StepOptions]) -> None:
    model, layout, stage, options = step
    found = step_collectives(model, RECIPE, layout, stage=stage, options=options)
    assert found == walked(model, RECIPE, layout, stage, options)
    assert all(times > 0 for times in found.values())


@given(steps())
def test_groups_are_those_of_the_collectives(step: tuple[Model, Layout, int, StepOptions]) -> None:
    """All stages together use the groups that memory of communicators is counted for."""
    model, layout, _, options = step
    stages = [
        step_collectives(model, RECIPE, layout, stage=stage, options=options) for stage in range(layout.pipeline)
    ]
    issued = {(one.kind, one.axes) for stage in stages for one in stage if one.elements > 1}
    listed = TrainingStep(model, RECIPE, LayoutTable.of([layout]), RUNTIME).groups()
    wanted = {
        (use, wide_axes(layout, ("pipeline",) if axes == ("tied",) else real_axes(layout, axes)))
        for (use, axes), there in listed.items()
        if there[0] and use != "scalar"
    }
    assert issued == {(use, axes) for use, axes in wanted if axes}
    assert ("scalar", AXES) in listed


# Properties ---------------------------------------------------------------------------------------


@given(st.integers(1, 10**10), st.sampled_from([1, 2, 3, 64, 100]), st.sampled_from([0, 1]))
def test_buckets_are_near_equal_and_hold_everything(elements: int, data: int, zero: int) -> None:
    found = buckets(elements, data, zero)
    unit = data if zero else 1
    least = max(BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * data)
    assert len(found) == -(-elements // int(least))
    assert 0 <= sum(found) - elements < unit
    assert max(found) - min(found) <= unit
    assert all(size % unit == 0 for size in found)


@given(st.integers(1, 10**6), st.integers(1, 10**4), *(st.integers(1, 64) for _ in range(3)))
def test_padded_rows_are_the_fewest_that_divide(vocab: int, hidden: int, x: int, y: int, z: int) -> None:
    rows = padded_rows(vocab, hidden, x, y, z)
    assert rows * x * y >= vocab
    assert rows * hidden % z == 0
    fewer = rows - z // gcd(hidden, z)
    assert fewer * x * y < vocab


# One list ------------------------------------------------------------------------------------------

EXPERTS = MixtureOfExperts(
    experts=4, top_k=2, expert=FeedForward(intermediate=32), shared=FeedForward(intermediate=16)
)
LATENT = LatentAttention(heads=8, q_rank=32, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8)
ROUTED_BLOCK = replace(LLAMA_BLOCK, attention=LATENT, feed_forward=EXPERTS)
ROUTED = Model(
    name="routed",
    hidden=48,
    vocab=96,
    runs=(BlockRun(block=LLAMA_BLOCK, count=1), BlockRun(block=ROUTED_BLOCK, count=3)),
    prediction_layers=1,
)
WORLD = 16
CLUSTER = load_cluster("h100-16")
NO_LAUNCH = replace(calibration("h100"), launch_s=0.0, overlap_cost=0.0, expert_overlap=0.0, dispatch_once=0.0)
Sums = dict[tuple[str, tuple[str, ...]], tuple[float, float]]
"""Bytes and calls by kind and axes of more than one rank."""


def factorings(world: int, axes: int) -> Iterator[tuple[int, ...]]:
    if axes == 1:
        yield (world,)
        return
    for first in (d for d in (1, 2, 4, 8, 16) if world % d == 0):
        for rest in factorings(world // first, axes - 1):
            yield (first, *rest)


MESHES = [dict(zip(AXES, degrees, strict=True)) for degrees in factorings(WORLD, len(AXES))]


@st.composite
def cut_jobs(draw: st.DrawFn, models: tuple[Model, ...] = (GPT, UNTIED, LLAMA, ROUTED)) -> tuple[Job, Layout]:
    """A job and a layout of it that breaks no rule, without overlaps."""
    model = draw(st.sampled_from(models))
    schedule = draw(st.sampled_from(["1f1b", "1f1b", "interleaved", "zb1p", "zbv"]))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    layout = Layout(
        **draw(st.sampled_from(MESHES)),
        expert=draw(st.sampled_from([1, 2, 4])) if model is ROUTED else 1,
        expert_tensor=draw(st.sampled_from([1, 2])) if model is ROUTED else 1,
        micro_batch=draw(st.sampled_from([1, 2])),
        schedule=schedule,
        virtual_stages=2 if schedule in ("interleaved", "zbv") else 1,
        zero=draw(st.sampled_from([0, 1, 2])),
        recompute=recompute,
        recompute_layers=draw(st.integers(0, 2)) if recompute == "full" else 0,
        sequence_parallel=draw(st.booleans()),
        context_method=draw(st.sampled_from(["ring", "ulysses"])),
        overlap_tensor="none",
        overlap_reduce=False,
        overlap_gather=False,
    )
    recipe = Recipe(global_batch=32, sequence=64, gradient_bytes=draw(st.sampled_from([2, 4])))
    job = Job(model=model, recipe=recipe)
    assume(explain(job, WORLD, layout) is None)
    return job, layout


def listed(step: TrainingStep, job: Job, layout: Layout, stage: int) -> Iterator[tuple[Call, float]]:
    """Every call of a stage in one step, and how often."""
    chunks = [chunk for chunk in held_chunks(job.model, layout) if chunk.stage == stage]
    for chunk in chunks:
        for call in (*step.inside(chunk), *step.between(chunk)):
            yield call, float(call.times[0] * step.micro_batches[0])
    for call in step.once(HeldChunk.together(chunks)):
        yield call, float(call.times[0])


def summed(step: TrainingStep, job: Job, layout: Layout, stage: int) -> Sums:
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for call, times in listed(step, job, layout, stage):
        axes = real_axes(layout, call.axes)
        if times and call.bytes[0] and axes and rank_groups(layout, axes).shape[1] > 1:
            wide = tuple(axis for axis in axes if getattr(layout, axis, 2) > 1)
            total = found.setdefault((call.kind, wide), [0.0, 0.0])
            total[0] += times * float(call.bytes[0])
            total[1] += times
    return {key: (bytes_, calls) for key, (bytes_, calls) in found.items()}


def drawn_by_the_simulator(estimator: Estimator, layout: Layout, stage: int) -> Sums:
    wanted = demand(layout, next(iter(estimator.frames(LayoutTable.of([layout])))))
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for (kind, axes), total in totals(layout, wanted).items():
        wide = tuple(axis for axis in axes if getattr(layout, axis, 2) > 1)
        both = found.setdefault((kind, wide), [0.0, 0.0])
        both[0] += float(total.bytes[stage])
        both[1] += float(total.calls[stage])
    return {key: (bytes_, calls) for key, (bytes_, calls) in found.items() if bytes_}


def close(found: Sums, wanted: Sums) -> bool:
    assert set(found) == set(wanted)
    for key in wanted:
        assert found[key] == pytest.approx(wanted[key], rel=1e-9), key
    return True


SOFTWARES_DRAWN = pytest.mark.parametrize(
    "software", [BLOCKWISE, replace(BLOCKWISE, pieces=3.0), RUNTIME], ids=["block", "pieces", "weft"]
)
RARE = [HealthCheck.filter_too_much, HealthCheck.too_slow]
"""Most random layouts break a rule."""
FEW = settings(max_examples=5, suppress_health_check=RARE)
MANY = settings(max_examples=150, suppress_health_check=RARE)


@pytest.mark.slow_but(1)
@SOFTWARES_DRAWN
@given(cut=cut_jobs())
@FEW
def test_estimator_simulator_and_step_are_one_list(software: Software, cut: tuple[Job, Layout]) -> None:
    check_one_list(software, cut)


@pytest.mark.slow
@SOFTWARES_DRAWN
@given(cut=cut_jobs())
@MANY
def test_many_layouts_have_one_list(software: Software, cut: tuple[Job, Layout]) -> None:
    check_one_list(software, cut)


def check_one_list(software: Software, cut: tuple[Job, Layout]) -> None:
    """Bytes and calls of every group that the simulator draws, and the seconds that the estimator prices, are
    the sum over the step: the estimator's with kernels of no time and no overlap, in which the slowest stage is
    the one that communicates longest."""
    job, layout = cut
    assume(software is not RUNTIME or job.model is not ROUTED)
    constants = replace(NO_LAUNCH, shard_collectives=software.pieces, software=software.name)
    estimator = Estimator(job, CLUSTER, constants)
    table = LayoutTable.of([layout])
    step = TrainingStep(job.model, job.recipe, table, estimator.software)
    stages = range(layout.pipeline)
    for stage in stages:
        assert close(drawn_by_the_simulator(estimator, layout, stage), summed(step, job, layout, stage))

    def seconds(call: Call) -> float:
        group = spread(table, call.axes, estimator.network.spans)
        return float(collective_s(call.kind, call.bytes, group, estimator.network)[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelModel, "seconds", lambda self, operation: np.zeros(len(table)))
        # An estimator remembers costs of meshes, so that one with real kernels would answer with these.
        time = Estimator(job, CLUSTER, constants).evaluate(table)
    every = [list(listed(step, job, layout, stage)) for stage in stages]
    inside = [
        sum(times * seconds(call) for call, times in calls if call.when in ("forward", "backward") and not sent(call))
        for calls in every
    ]
    shown = (time.tensor_s, time.context_s, time.expert_s, time.weights_s)
    assert float(sum(part[0] for part in shown)) == pytest.approx(max(inside), rel=1e-9, abs=1e-15)
    once = [Counter[tuple[str, ...]]() for _ in stages]
    for total, calls in zip(once, every, strict=True):
        for call, times in calls:
            if call.when in ("reduce", "gather", "tied", "scalar"):
                total[call.name, *call.axes] += times * seconds(call)
    most = sum(max(total[key] for total in once) for key in set().union(*once))
    assert float(time.data_s[0]) == pytest.approx(most, rel=1e-9, abs=1e-15)


def sent(call: Call) -> bool:
    return call.name == "stage-boundary"


@pytest.mark.parametrize("model", [GPT, UNTIED, LLAMA], ids=["tied", "untied", "llama"])
@given(data=st.data())
@FEW
def test_the_runtime_issues_what_the_simulator_draws(model: Model, data: st.DataObject) -> None:
    check_issues(model, data)


@pytest.mark.slow
@pytest.mark.parametrize("model", [GPT, UNTIED, LLAMA], ids=["tied", "untied", "llama"])
@given(data=st.data())
@MANY
def test_the_runtime_issues_what_the_simulator_draws_of_many(model: Model, data: st.DataObject) -> None:
    check_issues(model, data)


def check_issues(model: Model, data: st.DataObject) -> None:
    """``step_collectives``, which traces of the runtime equal (tests/runtime/measure/test_trace.py), adds up to
    the bytes and calls that the simulator draws of the same software."""
    job, layout = data.draw(cut_jobs((model,)))
    try:
        stages = [step_collectives(model, job.recipe, layout, stage=stage) for stage in range(layout.pipeline)]
    except BadInput:
        assume(False)
    estimator = Estimator(job, CLUSTER, replace(NO_LAUNCH, software=RUNTIME.name))
    for stage, issued in enumerate(stages):
        found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
        for issue, times in issued.items():
            axes = (
                ("tied",)
                if issue.kind == "all-reduce" and issue.axes == ("pipeline",) and issue.elements > 1
                else issue.axes
            )
            total = found.setdefault((issue.kind, axes), [0.0, 0.0])
            total[0] += times * issue.bytes
            total[1] += times
        wanted = {key: (bytes_, calls) for key, (bytes_, calls) in found.items()}
        assert close(drawn_by_the_simulator(estimator, layout, stage), wanted)


@pytest.mark.parametrize(("software", "gathered_bytes"), [(BLOCKWISE, 215.6e9), (RUNTIME, 266.4e9)])
def test_bytes_over_z_of_both_softwares(software: Software, gathered_bytes: float) -> None:
    """Llama 2 7B, fully sharded over 64 ranks, all blocks recomputed, four micro-batches of 4,096 tokens: FSDP
    keeps for backward what recomputation gathered, Weft's runtime gathers again, but not the embedding."""
    job = resolve_job("llama-2-7b", RecipeChanges(global_batch=256, sequence=4096))
    layout = Layout(z=64, recompute="full", micro_batch=1)
    estimator = Estimator(job, load_cluster("h100-64"), replace(NO_LAUNCH, software=software.name))
    found = drawn_by_the_simulator(estimator, layout, 0)
    moved = sum(bytes_ for (kind, axes), (bytes_, _) in found.items() if axes == ("z",) and kind != "all-reduce")
    assert moved == pytest.approx(gathered_bytes, rel=0.0005)


# Refusals -----------------------------------------------------------------------------------------


def with_block(change: Callable[[Block], Block]) -> Model:
    return replace(LLAMA, runs=(BlockRun(block=change(LLAMA_BLOCK), count=4),))


def with_norms(block: Block) -> Block:
    return replace(block, attention=replace(block.attention, head_norms=True))  # type: ignore[arg-type,type-var]


def with_attention(**changes: object) -> Model:
    return with_block(lambda block: replace(block, attention=replace(block.attention, **changes)))  # type: ignore[arg-type]


WAVE = {"virtual_stages": 2, "schedule": "zbv"}


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        (
            with_block(lambda block: replace(block, feed_forward=replace(EXPERTS, latent=8))),
            Layout(),
            "experts of projected tokens",
        ),
        (with_block(lambda block: replace(block, attention=LATENT)), Layout(), "attention.*grouped-query"),
        (with_block(lambda block: replace(block, parallel=True)), Layout(), "parallel=False"),
        (with_block(lambda block: replace(block, norms=3)), Layout(), "3 norms.*norms=2"),
        (with_attention(extra_parameters=13), Layout(), "extra_parameters=0"),
        (with_attention(sinks=True), Layout(), "sinks=False"),
        (with_block(lambda block: replace(with_norms(block), norm_bias=True)), Layout(), "biases.*norm_bias=False"),
        (with_attention(window=8, chunked=True), Layout(), "chunked=False"),
        (with_attention(rotary=False), Layout(), "positions.*rotary=True"),
        (replace(LLAMA, prediction_layers=1), Layout(), "prediction_layers=0"),
        (replace(LLAMA, embedding_features=24), Layout(), "embedding_features=None"),
        (replace(LLAMA, embedding_norm=True), Layout(), "embedding_norm=False"),
        (LLAMA, Layout(data=2, expert=2), "ep = 2 without experts -- set ep=1"),
        (LLAMA, Layout(x=2, expert_tensor=2), "etp=1"),
        (LLAMA, Layout(offload_optimizer=True), "offload_optimizer=false"),
        (LLAMA, Layout(offload_activations=True), "offload_activations=false"),
        (replace(LLAMA, tied_embeddings=True), Layout(pipeline=2, **WAVE), "tied .* schedule=zb1p"),
    ],
)
def test_what_the_runtime_lacks_is_refused_with_what_to_change(model: Model, layout: Layout, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        check_runnable(model, layout)
    with pytest.raises(Unsupported, match=words):
        step_collectives(model, RECIPE, layout)


def test_every_rank_needs_a_key_value_head() -> None:
    """The rules of layouts let one key-value head be copied."""
    with pytest.raises(BadInput, match=r"1 key-value heads do not divide by tp = 2"):
        check_runnable(with_attention(kv_heads=1), Layout(x=2))


@pytest.mark.parametrize(
    ("layout", "stage", "words"),
    [
        (Layout(z=16, micro_batch=5), 0, "24.*micro-batch 5"),
        (Layout(x=4, y=2, z=3, data=5), 0, "24.*dp 15"),
        (Layout(y=5), 0, "y = 5"),
        (Layout(x=2, y=2, sequence_parallel=True), 0, "y = 1"),
        (Layout(pipeline=2), 2, "stage 2 of 2"),
        (Layout(pipeline=8), 0, "8 .* chunks, 4 layers"),
    ],
)
def test_what_does_not_divide_is_refused(layout: Layout, stage: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        step_collectives(LLAMA, RECIPE, layout, stage=stage)
