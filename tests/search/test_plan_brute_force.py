"""The search against an enumeration of its own, layout by layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from weft.cluster.catalogue import accelerator, default_tiers
from weft.cluster.spec import Cluster
from weft.estimation.iteration import Estimator, estimate
from weft.estimation.result import Estimate
from weft.layout.check import explain, reject
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable, encode
from weft.model import Attention, Block, BlockRun, FeedForward, Job, MixtureOfExperts, Model, Recipe
from weft.search.enumeration import FOUR_D, STANDARD, WIDE, Batch, Enumeration, Space
from weft.search.ranking import plan
from weft.search.screen import Ease

GPT = Block(
    hidden=1024,
    attention=Attention(heads=16, kv_heads=16, head_dim=64),
    feed_forward=FeedForward(intermediate=4096, gated=False),
)
GQA = Block(
    hidden=1536, attention=Attention(heads=12, kv_heads=6, head_dim=128), feed_forward=FeedForward(intermediate=4608)
)
LARGE = replace(
    GPT,
    hidden=4096,
    attention=Attention(heads=32, kv_heads=32, head_dim=128),
    feed_forward=FeedForward(intermediate=16384, gated=False),
)
MOE = replace(GPT, feed_forward=MixtureOfExperts(experts=4, top_k=2, expert=FeedForward(intermediate=1024)))


@dataclass(frozen=True, slots=True)
class Case:
    """A small search; memory is set so that the given share of its sound layouts fits."""

    block: Block
    layers: int
    count: int
    batch: int
    space: Space
    share: float
    sequence: int = 768

    @property
    def job(self) -> Job:
        model = Model(
            name="m", hidden=self.block.hidden, vocab=8192, runs=(BlockRun(block=self.block, count=self.layers),)
        )
        return Job(model=model, recipe=Recipe(global_batch=self.batch, sequence=self.sequence))

    @property
    def cluster(self) -> Cluster:
        chip = replace(accelerator("h100"), scale_up_size=4 if self.count % 4 == 0 else 3)
        return Cluster(name="c", accelerator=chip, count=self.count, tiers=default_tiers(chip, self.count))


NARROW_WIDE = replace(
    WIDE,
    zero=(0, 1),
    recompute=("none", "full"),
    partial_recompute=False,
    overlap_gather=(True, False),
    overlap_reduce=(True,),
    offload_activations=(False,),
)
CASES = {
    "gpt-8": Case(GPT, 4, 8, 8, STANDARD, 0.5),
    "gpt-8-ample": Case(GPT, 3, 8, 4, STANDARD, 1.0),
    "large-8-tight": Case(LARGE, 4, 8, 8, STANDARD, 0.05),
    "gqa-6": Case(GQA, 6, 6, 12, STANDARD, 0.4),
    "gqa-12-odd-batch": Case(GQA, 4, 12, 6, STANDARD, 0.6),
    "gqa-4-with-y": Case(GQA, 4, 4, 4, FOUR_D, 0.5),
    "moe-8": Case(MOE, 2, 8, 8, STANDARD, 0.5),
    "moe-4": Case(MOE, 2, 4, 4, STANDARD, 0.5),
    "moe-4-with-y": Case(MOE, 2, 4, 4, FOUR_D, 0.5),
    "gpt-4-wide": Case(GPT, 4, 4, 8, NARROW_WIDE, 0.3),
    "fixed": Case(GPT, 4, 8, 8, STANDARD.constrained({"x": 2, "zero": 1, "micro_batch": 1}, {}), 1.0),
    "bounded": Case(GPT, 4, 8, 8, STANDARD.constrained({}, {"x": 2, "pipeline": 2, "micro_batch": 2}), 1.0),
    "data-parallel": Case(GPT, 4, 8, 8, STANDARD.constrained({"data_parallel": 4}, {"context": 1}), 1.0),
    "schedule": Case(GPT, 4, 8, 8, STANDARD.constrained({"schedule": "zb1p", "pipeline": 4}, {}), 1.0),
}
LONG = ("gqa-6", "gqa-12-odd-batch", "moe-8", "moe-4-with-y", "data-parallel")
cases = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CASES]
)


def meshes(case: Case) -> Iterator[dict[str, int]]:
    """Every way to write the count as a product, with every expert cut of the space."""
    axes = ("x", "y", "z", "data", "pipeline", "context")
    factors = [d for d in range(1, case.count + 1) if case.count % d == 0]
    experts = [(1, 1)]
    if case.block.moe is not None:
        experts = list(product(range(1, case.block.moe.experts + 1), range(1, case.count + 1)))
    for degrees in product(factors, repeat=6):
        if int(np.prod(degrees)) != case.count or (degrees[1] > 1 and not case.space.y):
            continue
        for expert, tensor in experts:
            if degrees[0] % tensor == 0 and (tensor in (1, degrees[0]) or case.space.any_expert_tensor):
                yield dict(zip(axes, degrees, strict=True)) | {"expert": expert, "expert_tensor": tensor}


def chunkings(case: Case, pipeline: int) -> list[int]:
    """Virtual stages: the ways to cut the blocks of the largest stage evenly, and the two of ZB-V."""
    blocks = -(-case.layers // pipeline)
    return sorted({1, 2} | {v for v in range(1, blocks + 1) if blocks % v == 0})


def recomputations(case: Case, pipeline: int) -> list[tuple[str, int]]:
    """Policies, with quarters of a stage's blocks."""
    blocks = -(-case.layers // pipeline)
    found: list[tuple[str, int]] = [(name, 0) for name in case.space.recompute]
    if case.space.partial_recompute and "full" in case.space.recompute:
        quarters = {round(share * blocks) for share in (0.25, 0.5, 0.75)}
        found += [("full", layers) for layers in sorted(quarters) if 0 < layers < blocks]
    return found


def admitted(case: Case, layout: Layout) -> bool:
    """Whether the constraints of the space hold, read off the layout's own fields."""
    for name, values in case.space.fixed.items():
        value = layout.dp if name == "data_parallel" else encode(name, getattr(layout, name))
        if value not in values:
            return False
    return all(getattr(layout, name) <= most for name, most in case.space.maximum.items())


def candidates(case: Case) -> Iterator[Layout]:
    """Every combination of fields in the space, sound or not."""
    space = case.space
    schedules = set(space.schedules) | ({"zb1p"} if "schedule" in space.fixed else set())
    for mesh in meshes(case):
        share = case.batch // (mesh["z"] * mesh["data"])
        for micro_batch, schedule, virtual, method in product(
            range(1, share + 1), schedules, chunkings(case, mesh["pipeline"]), ("ring", "ulysses")
        ):
            base = Layout(
                **mesh,
                micro_batch=micro_batch,
                schedule=schedule,  # type: ignore[arg-type]
                virtual_stages=virtual,
                context_method=method,  # type: ignore[arg-type]
                zero=0,
            )
            if schedule == "interleaved" and -(-case.layers // base.pipeline) % virtual:
                continue
            if not _may_run(case, base):
                continue
            for zero, (recompute, layers), sharded, tensor, reduce, gather, optimizer, activations in product(
                space.zero,
                recomputations(case, base.pipeline),
                space.sequence_parallel,
                space.overlap_tensor,
                space.overlap_reduce,
                space.overlap_gather,
                space.offload_optimizer,
                space.offload_activations,
            ):
                if zero and base.z > 1 and not space.zero_with_z and "zero" not in space.fixed:
                    continue
                yield replace(
                    base,
                    zero=zero,
                    recompute=recompute,  # type: ignore[arg-type]
                    recompute_layers=layers,
                    sequence_parallel=sharded,
                    overlap_tensor=tensor,  # type: ignore[arg-type]
                    overlap_reduce=reduce,
                    overlap_gather=gather,
                    offload_optimizer=optimizer,
                    offload_activations=activations,
                )


def _may_run(case: Case, base: Layout) -> bool:
    """With or without sequence parallelism."""
    return any(
        explain(case.job, case.count, replace(base, sequence_parallel=sharded)) is None for sharded in (False, True)
    )


@cache
def sound(name: str) -> tuple[tuple[Layout, float, float], ...]:
    """Every sound layout with its time and memory."""
    case = CASES[name]
    rows = [one for one in candidates(case) if admitted(case, one)]
    verdict = reject(case.job, case.count, LayoutTable.of(rows))
    rows = [one for one, broken in zip(rows, verdict, strict=True) if broken < 0]
    found = Estimator(case.job, case.cluster).evaluate(LayoutTable.of(rows))
    return tuple(zip(rows, found.iteration_s.tolist(), found.memory_bytes.tolist(), strict=True))


@cache
def cluster(name: str) -> Cluster:
    """The case's cluster with memory for its share of the sound layouts."""
    case = CASES[name]
    capacity = float(np.quantile([used for _, _, used in sound(name)], case.share, method="higher"))
    chip = replace(case.cluster.accelerator, memory_bytes=capacity)
    return replace(case.cluster, accelerator=chip)


def feasible(name: str) -> list[tuple[float, float]]:
    """Distinct (time, memory) of the layouts that fit, fastest first."""
    capacity = cluster(name).accelerator.memory_bytes
    return sorted({(seconds, used) for _, seconds, used in sound(name) if used <= capacity})


def batches(case: Case) -> Iterator[Batch]:
    """The whole space."""
    for part in Enumeration(case.job, case.count, case.space).parts():
        yield from part.batches(np.arange(len(part.frames)))


@pytest.mark.slow_but(1)
@cases
def test_enumerated_layouts_are_sound_unique_and_complete(name: str) -> None:
    """Each sound layout is there, or one with the same time and memory where a switch has no effect."""
    case = CASES[name]
    rows = [batch.table.row(i) for batch in batches(case) for i in range(len(batch.table))]
    known = {layout: (seconds, used) for layout, seconds, used in sound(name)}
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(known)
    assert {known[row] for row in rows} == set(known.values())


@pytest.mark.slow_but(1)
@cases
def test_plan_is_the_sorted_brute_force(name: str) -> None:
    case = CASES[name]
    found = plan(case.job, cluster(name), space=case.space, top=10**6, order="time")
    ranked = [(one.iteration_s, one.memory_bytes) for one in found.layouts]
    assert ranked == sorted(ranked)
    assert sorted(set(ranked)) == feasible(name)
    assert found.feasible == len(found.layouts)


@pytest.mark.slow_but(1)
@cases
def test_the_best_is_confirmed_by_single_estimates(name: str) -> None:
    case = CASES[name]
    found = plan(case.job, cluster(name), space=case.space, top=3, order="time")
    for one in found.layouts:
        assert explain(case.job, case.count, one.layout) is None
        assert estimate(case.job, cluster(name), [one.layout])[0] == one
    assert found.layouts[0].iteration_s == feasible(name)[0][0]


@pytest.mark.slow_but(1)
@cases
def test_ease_orders_by_time_and_effort(name: str) -> None:
    """The first has the least time with the price of what it does, of all that tie with the fastest."""
    case, where = CASES[name], cluster(name)
    capacity = where.accelerator.memory_bytes
    ease = Ease(case.job, where, "megatron-core", capacity)

    def score(one: Estimate) -> float:
        tight = min(max((one.memory_bytes / capacity - 0.8) / 0.2, 0.0), 1.0)
        return one.iteration_s * (1.0 + sum(habit.price for habit in ease.does(one.layout)) + 0.01 * tight)

    found = plan(case.job, where, space=case.space, top=10**6)
    tied = [score(row.estimate) for row in found.ranked if row.tied]
    assert tied[0] <= min(tied) * (1 + 1e-12)
    assert sorted({(one.iteration_s, one.memory_bytes) for one in found.layouts}) == feasible(name)
    assert found.choice is not None
    assert found.choice.fastest.iteration_s == feasible(name)[0][0]
    few = plan(case.job, where, space=case.space, top=5).layouts
    least = sorted(map(score, found.layouts))[: len(few)]
    assert sorted(map(score, few)) == pytest.approx(least, rel=1e-12)


@pytest.mark.slow_but(1)
@cases
def test_pareto_is_that_of_the_brute_force(name: str) -> None:
    case = CASES[name]
    least, front = np.inf, []
    for seconds, used in feasible(name):
        if used < least:
            least = used
            front.append((seconds, used))
    found = plan(case.job, cluster(name), space=case.space, top=1).pareto
    assert [(one.iteration_s, one.memory_bytes) for one in found] == front


@pytest.mark.slow_but(1)
@cases
def test_best_of_each_mesh(name: str) -> None:
    case = CASES[name]
    capacity = cluster(name).accelerator.memory_bytes
    axes = ("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor")
    best: dict[tuple[int, ...], tuple[float, float]] = {}
    for layout, seconds, used in sound(name):
        mesh = tuple(getattr(layout, axis) for axis in axes)
        if used <= capacity:
            best[mesh] = min(best.get(mesh, (np.inf, np.inf)), (seconds, used))
    found = plan(case.job, cluster(name), space=case.space, top=10**6, per_mesh=True, order="time").layouts
    got = {tuple(getattr(one.layout, axis) for axis in axes): (one.iteration_s, one.memory_bytes) for one in found}
    assert len(got) == len(found)
    assert got == best


@pytest.mark.slow_but(1)
@cases
def test_counts_add_up(name: str) -> None:
    case = CASES[name]
    found = plan(case.job, cluster(name), space=case.space, top=1)
    counts = {one.code: one.layouts for one in found.rejected}
    assert all(number > 0 for number in counts.values())
    assert found.considered == found.feasible + sum(counts.values())
    assert found.feasible <= found.evaluated <= found.feasible + counts.get("does-not-fit", 0)
    rows = sum(len(batch.table) for batch in batches(case))
    assert found.feasible + counts.get("does-not-fit", 0) == rows


@pytest.mark.slow
def test_hopeless_layouts_are_counted_but_not_timed() -> None:
    case = CASES["large-8-tight"]
    found = plan(case.job, cluster("large-8-tight"), space=case.space, top=1)
    unfit = {count.code: count.layouts for count in found.rejected}["does-not-fit"]
    assert found.feasible < found.evaluated < found.feasible + unfit
