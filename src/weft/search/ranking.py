"""The search: every layout of a space, ranked among those that fit by iteration time and by what it is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Self

import numpy as np

from weft.cluster import WrittenCluster
from weft.cluster.calibration import USUAL_STACK, Calibration
from weft.cluster.spec import Cluster
from weft.codec import Coded, Document, decode
from weft.errors import NothingFeasible
from weft.estimation.frame import pinned_capacity
from weft.estimation.iteration import Estimator
from weft.estimation.result import COLUMNS, Estimate, TrainingRun
from weft.estimation.trust import shipped_contrast
from weft.layout.check import CODES, REMEDIES, explain
from weft.layout.spec import Layout, Recompute
from weft.model.job import Job, WrittenJob
from weft.model.resolve import even_batch
from weft.results import Result
from weft.search.enumeration import STANDARD, Enumeration, Space, named_space
from weft.search.screen import UNUSUAL, Ease, Fold, Recommendation, Scale, Screening
from weft.units import counted, format_bytes

ALIKE = 0.03
"""Layouts closer than this in time are alike."""
MOST_CHANGES = 3
"""Changes of a layout that does not fit, of which those that let it fit are searched."""
DEALT_ALIKE = attrgetter("x", "y", "pipeline", "expert", "expert_tensor")
"""The degrees that layouts share which only deal the other ranks differently."""
ORDERS = ("ease", "time")
"""How layouts are ranked: by time and what each is to run (``weft.search.screen``), or by time alone."""
TIE = ("tied", "slower", "layout_error")
"""How a layout compares with the fastest."""
DOES_NOT_FIT, HOST_MEMORY = CODES.index("does-not-fit"), CODES.index("host-memory")
NOT_DIVISIBLE = CODES.index("batch-not-divisible")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many layouts a rejection code took."""

    code: str
    layouts: int


def _counted(raw: object) -> tuple[Count, ...]:
    counts = decode(Mapping[str, int], raw, "")  # type: ignore[type-abstract]
    return tuple(Count(code=code, layouts=layouts) for code, layouts in counts.items())


_CODES = Coded(_counted, lambda counts: {count.code: count.layouts for count in counts}, Mapping[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBounds:
    """What a search was told beside the name of its space; ``order`` is one of ``ORDERS``."""

    fixed: Mapping[str, tuple[str | int | bool, ...]]
    maximum: Mapping[str, int]
    memory_margin: float
    per_mesh: bool
    order: str = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLayout(Document):
    """A layout of a plan; None is what is not known, or was not asked for.

    Attributes:
        tied: whether ``slower`` is at most ``layout_error``.
        slower: share of the time of the fastest layout that fits that it takes longer.
        layout_error: share within which the ratio of their times is predicted for four of five such pairs.
        run: the whole training run with it.
        simulated_s: seconds of an iteration on a network.
    """

    DOCUMENT = "rank estimate.* tied slower layout_error run? simulated_s?"

    rank: int
    estimate: Estimate
    tied: bool | None = None
    slower: float | None = None
    layout_error: float | None = None
    run: TrainingRun | None = None
    simulated_s: float | None = None

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration, simulated where they are, by which layouts are ranked."""
        return self.estimate.iteration_s if self.simulated_s is None else self.simulated_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The layout that lacks least memory of those that would be faster than all that fit.

    ``change`` is the single change that lets it fit at the least cost in time; ``accepted`` is the changed layout,
    None where no switch suffices.
    """

    change: str
    rejected: Estimate
    accepted: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Result):
    """Ranked layouts of a job on a cluster.

    ``considered`` counts feasible and rejected layouts; ``evaluated`` those that were compared, without those
    that lack so much memory that no option helps: of each the memory, and the time unless a bound on it rules it out
    (``weft.search.screen``).  ``ranked`` are feasible ones, the best of ``search.order``: first the one to use, then
    the others by time and memory; ``layouts`` are their estimates.  ``choice`` says why the first is first (None where
    no error between layouts is known, as with a user's constants).  ``pareto`` are the feasible ones that no other
    beats in both time and memory, by time.  ``stack`` is the software that trains.  ``batch_that_runs`` is the global
    batch nearest to the job's that divides well among the accelerators, where no layout runs the job's and some run
    that.
    """

    SCHEMA = "weft.plan/1"
    COLUMNS = ("rank", "model", "cluster", *COLUMNS, *TIE)
    DOCUMENT = """
        considered evaluated feasible rejected job cluster space search stack calibration=constants defaults
        advice choice batch_that_runs layouts=ranked pareto"""

    job: WrittenJob
    cluster: WrittenCluster
    space: Annotated[Space, Coded(named_space, attrgetter("name"), str)]
    search: SearchBounds
    constants: Calibration
    stack: str
    considered: int
    evaluated: int
    feasible: int
    rejected: Annotated[tuple[Count, ...], _CODES]
    ranked: tuple[RankedLayout, ...]
    pareto: tuple[Estimate, ...]
    advice: Advice | None
    choice: Recommendation | None
    batch_that_runs: int | None = None

    @property
    def layouts(self) -> tuple[Estimate, ...]:
        return tuple(row.estimate for row in self.ranked)

    @property
    def best(self) -> Estimate:
        """The first layout.

        Raises:
            NothingFeasible: none fits; says how many fell to which rule.
        """
        if not self.ranked:
            raise NothingFeasible(f"{self.shortage} -- {REMEDIES[self.obstacle]}")
        return self.ranked[0].estimate

    @property
    def shortage(self) -> str:
        """How many layouts fell to which rule, and which batch would do."""
        counts = ", ".join(f"{each.code} {each.layouts:,}" for each in self.rejected)
        batch = f"; --batch {self.batch_that_runs} would work" if self.batch_that_runs else ""
        return f"none of {counted(self.considered, 'layout')} is feasible ({counts}){batch}"

    @property
    def obstacle(self) -> str:
        """The code of the rule that rejects most layouts."""
        return max(self.rejected, key=lambda count: count.layouts).code

    @property
    def capacity_bytes(self) -> float:
        """Memory of an accelerator that layouts may use."""
        return (1 - self.search.memory_margin) * self.cluster.accelerator.memory_bytes

    def to_dicts(self) -> list[dict[str, Any]]:
        """The ranked layouts, a row each, under ``COLUMNS``: degrees, options, totals in SI units, parts, ties."""
        named = {"model": self.job.model.name, "cluster": self.cluster.name}
        figures = [{name: getattr(row, name) for name in ("rank", *TIE, "simulated_s")} for row in self.ranked]
        rows = [figure | named | row.estimate.row() for figure, row in zip(figures, self.ranked, strict=True)]
        return [{name: row[name] for name in self.COLUMNS} for row in rows]

    @property
    def defaults(self) -> tuple[str, ...]:
        """What was assumed of job and cluster."""
        return (*self.job.defaults, *self.cluster.defaults)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, where: str = "plan") -> Self:
        """The plan that ``to_dict`` wrote.

        Raises:
            BadInput: a field is missing, of the wrong kind, or no layout of the plan's job and cluster.
        """
        result = decode(cls, document, where)
        space = result.space.bounded(result.search.fixed, result.search.maximum, where=f"{where}: search")
        estimates = {f"layouts[{i}]": estimate for i, estimate in enumerate(result.layouts)}
        estimates |= {f"pareto[{i}]": estimate for i, estimate in enumerate(result.pareto)}
        if result.advice is not None:
            estimates |= {"advice": result.advice.rejected}
            estimates |= {"advice.accepted": result.advice.accepted} if result.advice.accepted else {}
        estimates |= {"choice": result.choice.fastest} if result.choice else {}
        for name, estimate in estimates.items():
            estimate.check_world(result.cluster.count, f"{where}: {name}")
        return replace(result, space=space)


def plan(
    job: Job,
    cluster: Cluster,
    *,
    space: Space = STANDARD,
    top: int = 10,
    per_mesh: bool = False,
    memory_margin: float = 0.0,
    constants: Calibration | None = None,
    stack: str = USUAL_STACK,
    order: str = "ease",
    progress: Progress | None = None,
) -> Plan:
    """Search a space exhaustively.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers.
        space: degrees and switches to try.
        top: how many layouts to return.
        per_mesh: keep only the best layout of each mesh.
        memory_margin: share of the accelerator's memory to leave free.
        constants: calibration; the shipped one by default.
        stack: the software that trains, which decides what is usual.
        order: one of ``ORDERS``.
        progress: called with meshes done and meshes in all.

    Raises:
        Unsupported: the accelerator lacks the recipe's precision.
    """
    # 1. What decides: the clock, the space, and the efforts that count beside time.
    estimator = Estimator(job, cluster, constants)
    enumeration = Enumeration(job, cluster.count, space)
    ease = Ease(job, cluster, stack, (1 - memory_margin) * cluster.accelerator.memory_bytes)
    pinned_bytes = pinned_capacity(cluster.accelerator)
    scale = Scale(top, per_mesh, ease.capacity_bytes, pinned_bytes, ease if order == "ease" else None)
    screen = Screening(estimator, scale)
    # 2. A few meshes first, whose best layouts rule out most others by their bounds.
    screen.sample(enumeration)
    # 3. All parts of the space. Each layout is counted once: by the code of the rule that it breaks, or in the screen.
    rejected = np.zeros(len(CODES), dtype=np.int64)
    for part in enumeration.parts():
        screen.add(part)
        rejected += part.rejected()
        if progress is not None and len(part.mesh):
            progress(int(part.mesh[-1]) + 1, len(enumeration.meshes))
    # 4. Of those compared, what neither fits nor lacks host memory alone lacks memory of the accelerator.
    rejected += enumeration.rejected
    rejected[DOES_NOT_FIT] += screen.hopeless + screen.compared - screen.feasible - screen.unpinned
    rejected[HOST_MEMORY] += screen.unpinned
    counts = sorted(zip((-rejected).tolist(), CODES, strict=True))
    bounds = SearchBounds(**space.bounds(), memory_margin=memory_margin, per_mesh=per_mesh, order=order)
    result = Plan(
        job=job,
        cluster=cluster,
        space=space,
        search=bounds,
        constants=estimator.constants,
        stack=stack,
        considered=screen.feasible + int(rejected.sum()),
        evaluated=screen.compared,
        feasible=screen.feasible,
        rejected=tuple(Count(code=code, layouts=-number) for number, code in counts if number),
        ranked=(),
        pareto=estimator.estimates([kept.layout for kept in screen.fold.front]),
        advice=_advice(estimator, screen.fold),
        choice=None,
    )
    best = estimator.estimates([kept.layout for kept in screen.fold.best])
    # 5. Where the batch kept all layouts from running, say which batch near it would run.
    batch = even_batch(job.recipe.global_batch, cluster.count)
    if not best and rejected[NOT_DIVISIBLE] and batch != job.recipe.global_batch:
        even = replace(job, recipe=replace(job.recipe, global_batch=batch))
        if plan(even, cluster, space=space, top=1, memory_margin=memory_margin, constants=constants).ranked:
            result = replace(result, batch_that_runs=batch)
    return _judged(result, best)


def _judged(result: Plan, layouts: Sequence[Estimate]) -> Plan:
    """A plan with layouts: the simplest that ties with the fastest comes first, then the others by time."""
    if not layouts:
        return result
    fastest, known = result.pareto[0], shipped_contrast() if result.constants.shipped else None
    ranked = [RankedLayout(rank=rank, estimate=estimate) for rank, estimate in enumerate(layouts, 1)]
    if known is not None:
        errors = [float(known.covered([fastest.layout, estimate.layout])[0, 1]) for estimate in layouts]
        slower = [estimate.iteration_s / fastest.iteration_s - 1.0 for estimate in layouts]
        ranked = [
            replace(row, tied=longer <= error, slower=longer, layout_error=error)
            for row, longer, error in zip(ranked, slower, errors, strict=True)
        ]
    if result.search.order == "ease":
        first = next((row for row in ranked if row.tied), ranked[0])
        others = sorted((row for row in ranked if row is not first), key=attrgetter("iteration_s"))
        ranked = [replace(row, rank=rank) for rank, row in enumerate((first, *others), 1)]
    if known is None:
        return replace(result, ranked=tuple(ranked))
    ease = Ease(result.job, result.cluster, result.stack, result.capacity_bytes)
    habits = ease.does(ranked[0].estimate.layout)
    spared = [habit for habit in ease.does(fastest.layout) if habit not in habits and habit.price]
    choice = Recommendation(
        fastest=fastest,
        pairs=known.pairs,
        jobs=known.jobs,
        sources=known.sources,
        reasons=tuple(habit.words for habit in sorted(spared, key=lambda habit: -habit.price)),
        unusual=tuple(habit.words for habit in habits if habit.price >= UNUSUAL),
    )
    return replace(result, ranked=tuple(ranked), choice=choice)


def distinct(result: Plan, top: int) -> Plan:
    """A plan with at most ``top`` layouts, without those that only deal the same ranks differently.

    A layout is left out that shares tensor, pipeline and expert degrees with one ahead of it, differs in how the
    other ranks are divided among context, z and data, and takes less than ``ALIKE`` more time.
    """
    # Greedy in order of rank: each layout is held against those kept ahead of it.
    picked: list[Estimate] = []
    for estimate in result.layouts:
        alike = (
            DEALT_ALIKE(ahead.layout) == DEALT_ALIKE(estimate.layout)
            and estimate.iteration_s < (1 + ALIKE) * ahead.iteration_s
            for ahead in picked
        )
        if len(picked) < top and not any(alike):
            picked.append(estimate)
    return _judged(result, picked)


def _advice(estimator: Estimator, fold: Fold) -> Advice | None:
    """What would let a faster layout fit: of those that lack memory the one that lacks least."""
    capacity_bytes, faster = fold.scale.capacity_bytes, [kept for kept in fold.misfits if kept.key < fold.limit_s]
    if not faster:
        return None
    # The misfits are a frontier by time, along which memory falls: the last of the faster ones lacks least.
    layout = faster[-1].layout
    rejected = estimator.estimates([layout])[0]
    changes = dict(single_changes(layout))
    runs = [name for name in changes if explain(estimator.job, estimator.cluster.count, changes[name]) is None]
    fitting = [
        (estimate.iteration_s, change, estimate)
        for change, estimate in zip(runs, estimator.estimates([changes[name] for name in runs]), strict=True)
        if estimate.memory_bytes <= capacity_bytes and estimate.fits_host and estimate.iteration_s < fold.limit_s
    ]
    if fitting:
        _, change, accepted = min(fitting, key=itemgetter(0, 1))
        return Advice(rejected=rejected, change=change, accepted=accepted)
    missing = f"{format_bytes(rejected.memory_bytes - capacity_bytes)} more memory per accelerator"
    return Advice(rejected=rejected, change=missing, accepted=None)


def single_changes(layout: Layout) -> list[tuple[str, Layout]]:
    """Layouts that differ in one switch or one halved micro-batch and may need less memory."""
    changes: list[tuple[str, Layout]] = []
    for recompute in (Recompute.SELECTIVE, Recompute.FULL):
        if layout.recompute != recompute:
            changed = replace(layout, recompute=recompute, recompute_layers=0)
            changes.append((f"recompute = {recompute}", changed))
    changes += [(f"zero = {zero}", replace(layout, zero=zero)) for zero in range(layout.zero + 1, 3)]
    if layout.micro_batch % 2 == 0:
        halved = layout.micro_batch // 2
        changes.append((f"micro_batch = {halved}", replace(layout, micro_batch=halved)))
    if not layout.sequence_parallel:
        changes.append(("sequence_parallel = true", replace(layout, sequence_parallel=True)))
    if not layout.offload_optimizer:
        changes.append(("offload_optimizer = true", replace(layout, offload_optimizer=True)))
    if not layout.offload_activations:
        changes.append(("offload_activations = true", replace(layout, offload_activations=True)))
    return changes


def fitting_layout(job: Job, cluster: Cluster, layout: Layout, constants: Calibration | None) -> Estimate | None:
    """The fastest layout that fits after the fewest changes that save memory, of at most ``MOST_CHANGES``."""
    estimator, layouts = Estimator(job, cluster, constants), [layout]
    for _ in range(MOST_CHANGES):
        changed = [each for before in layouts for _, each in single_changes(before)]
        changed += [replace(each, z=each.z * each.data, data=1, zero=0) for each in layouts if each.data > 1]
        layouts = [each for each in dict.fromkeys(changed) if explain(job, cluster.count, each) is None]
        if fitting := [estimate for estimate in estimator.estimates(layouts) if estimate.fits]:
            return min(fitting, key=attrgetter("iteration_s"))
    return None
