"""Changes that would make a measured run faster: single ones, pairs of them, and the best layout of all.

MeasuredLayout steps correct the estimates of other layouts.  Logarithmic errors of a job's layouts have the covariance

    SPREAD**2 exp(-v / SPREAD**2),

v the variance between two layouts of ``weft.estimation.trust.Contrast``; those of measured layouts tell those of
others by Gaussian process regression (Rasmussen and Williams 2006, equations 2.25 and 2.26).  What lies beyond
``USUAL`` of the spread does not come from the layout: a slow network slows all layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from math import fsum
from statistics import median_low
from typing import Any, cast

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.collectives.cost import Network, collective_s
from weft.errors import BadInput
from weft.estimation.iteration import Estimator
from weft.estimation.result import Estimate
from weft.estimation.trust import NORMAL, shipped_contrast
from weft.interop.step_trace import StepTrace, TracedGroup
from weft.layout.check import reject
from weft.layout.mesh import degrees, rank_groups, spread
from weft.layout.operations import CollectiveKind
from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap
from weft.layout.table import Floats, LayoutTable
from weft.layout.text import WrittenLayout
from weft.model.job import Job
from weft.results import Result
from weft.search.enumeration import Space
from weft.search.ranking import plan
from weft.search.screen import Ease
from weft.solvers import divisors
from weft.units import counted, format_si

# The gap -------------------------------------------------------------------------------------------------------

LOST = 0.02
"""Share of the step that a part must lose before its cause is named."""
SLOW = 0.7
"""Share of the expected bandwidth below which a group's links are the cause."""
SKEW = 0.03
"""By how much longer a rank must compute than the median to be called slow."""
UNLIKE = 0.2
"""Share by which steps of one job differ at most."""
_COMPUTATION, _COPIES, _HOST, _GAPS, _OTHER = "computation", "copies", "host gaps", "other gaps", "other groups"
EXPECTED: Mapping[str, tuple[str, ...]] = {
    _COMPUTATION: ("forward_s", "backward_s", "recompute_s", "optimizer_s"),
    "tp": ("tensor_s",),
    "cp": ("context_s",),
    "pp": ("stage_send_s", "bubble_s"),
    "ep": ("expert_s",),
    "fsdp": ("weights_s",),
    "dp": ("data_s",),
    _OTHER: (),
    _COPIES: ("offload_s",),
    _HOST: ("host_s",),
    _GAPS: (),
}
"""Parts of a traced step, and the parts of an estimate that they come to; pp holds the waits for other stages."""
_CAUSES = {
    _COMPUTATION: "kernels are slower: clocks or power, unfused kernels, small matrices, or a slow rank",
    "tp": "not hidden: --tp-comm-overlap with sequence parallelism, or a smaller tp",
    "cp": "not hidden: a smaller cp, or Ulysses instead of a ring",
    "pp": "stages wait: more micro-batches, more virtual stages, or stages of equal work",
    "ep": "experts wait: unequal loads of experts, or a slow dispatcher (DeepEP)",
    "fsdp": "gathers are late: prefetch them, larger micro-batches, or fewer ranks that share weights",
    "dp": "not hidden: --overlap-grad-reduce and --overlap-param-gather",
    _OTHER: "collectives of no axis of the layout: metrics, checks of gradients, checkpoints",
    _COPIES: "copies wait: pinned memory and asynchronous loading",
    _HOST: "launch-bound: CUDA graphs, larger micro-batches, fewer small kernels",
    _GAPS: "streams wait: synchronizing calls such as .item(), or CUDA_DEVICE_MAX_CONNECTIONS=1 with FSDP",
}
_AXES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "tp": (("x",), ("x", "y"), ("y",)),
    "cp": (("context",),),
    "pp": (("pipeline",),),
    "ep": (("expert",), ("expert_tensor",)),
    "fsdp": (("z",), ("shard",), ("context", "z"), ("expert_shard",)),
    "dp": (("replica",), ("data",), ("context", "data"), ("expert_replica",)),
}
"""Axes of the mesh whose groups count for a part."""
_WORDS = (
    ("dp", r"expert_?data"),
    ("ep", r"expert|\bep\b|deep_ep"),
    ("tp", r"tensor|\btp\b"),
    ("pp", r"pipe|\bpp\b|embd|embed"),
    ("fsdp", r"shard|fsdp"),
    ("dp", r"data|\bdp\b|replica"),
    ("cp", r"context|\bcp\b"),
)
"""Words of frameworks for groups (Megatron-LM's descriptions, torch's device meshes), the most special first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapPart(Document):
    """A part of the step: seconds as traced and as expected, and the likely cause where it loses time."""

    name: str
    measured_s: float
    expected_s: float
    cause: str = ""

    @property
    def lost_s(self) -> float:
        return self.measured_s - self.expected_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGap(Document):
    """The step of the traced ranks (their mean), in parts that add up to it, the largest loss first.

    Attributes:
        kinds: seconds of computation by ``COMPUTATIONS``.
        slow_rank, slower: the rank that computes longest, and by what share longer than the median; None where no
            rank stands out.
    """

    sources: tuple[str, ...]
    step_s: float
    parts: tuple[GapPart, ...]
    kinds: tuple[float, ...]
    slow_rank: int | None = None
    slower: float | None = None


def step_gap(
    traces: Sequence[StepTrace], expected: Estimate, layout: Layout, cluster: Cluster, constants: Calibration
) -> StepGap:
    """The parts of a traced step beside those of the estimate ``expected`` of its ``layout``.

    Raises:
        BadInput: the traces are not of this layout, or not of one job.
    """
    _check(traces, layout)
    measured = dict.fromkeys(EXPECTED, 0.0)
    slow_links: dict[str, str] = {}
    network = Network.of(cluster, constants)
    for trace in traces:
        # 1. The parts that need no layout.
        ways = (sum(trace.computation_s), trace.copies_s, trace.host_gaps_s, trace.gaps_s)
        for name, seconds in zip((_COMPUTATION, _COPIES, _HOST, _GAPS), ways, strict=True):
            measured[name] += seconds / len(traces)
        # 2. Exposed communication, by the axis whose group it is.
        for group in trace.groups:
            name = axis_of(group, layout) or _OTHER
            measured[name] += group.exposed_s / len(traces)
            if words := _slow_links(group, name, layout, cluster, network):
                slow_links[name] = words
    parts, step_s = [], fsum(measured.values())
    for name, seconds in measured.items():
        expected_s = fsum(part.value for part in expected.time if part.name in EXPECTED[name])
        if max(seconds, expected_s) > 0:
            cause = slow_links.get(name, _CAUSES[name]) if seconds - expected_s > LOST * step_s else ""
            parts.append(GapPart(name=name, measured_s=seconds, expected_s=expected_s, cause=cause))
    computed = [sum(trace.computation_s) for trace in traces]
    slowest = int(np.argmax(computed))
    slower = computed[slowest] / median_low(computed) - 1.0 if min(computed) > 0 else 0.0
    return StepGap(
        sources=tuple(trace.source for trace in traces),
        step_s=step_s,
        parts=tuple(sorted(parts, key=lambda part: -part.lost_s)),
        kinds=tuple(np.mean([trace.computation_s for trace in traces], axis=0).tolist()),
        slow_rank=(traces[slowest].rank if traces[slowest].rank is not None else slowest) if slower > SKEW else None,
        slower=slower if slower > SKEW else None,
    )


def _check(traces: Sequence[StepTrace], layout: Layout) -> None:
    """Refuses traces of other jobs than that of the layout."""
    for trace in traces:
        if trace.world not in (None, layout.world):
            problem = f"is of a job on {counted(trace.world or 0, 'rank')}, the layout has {layout.world:,}"
            raise BadInput(problem, where=trace.source, remedy="give the trace and the layout of one run")
        if layout.world > 1 and not trace.groups:
            problem = f"has no communication, and the layout has {layout.world:,} ranks"
            raise BadInput(problem, where=trace.source, remedy="profile a rank of the run itself")
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    if len(set(ranks)) < len(ranks):
        raise BadInput("two traces are of the same rank", where="--trace", remedy="give each rank once")
    steps = [trace.step_s for trace in traces]
    if max(steps) > (1 + UNLIKE) * min(steps):
        slow, fast = traces[int(np.argmax(steps))], traces[int(np.argmin(steps))]
        problem = f"a step takes {slow.step_s:.3g} s in {slow.source} and {fast.step_s:.3g} s in {fast.source}"
        raise BadInput(problem, where="--trace", remedy="give traces of one job, each of whole steps")


def axis_of(group: TracedGroup, layout: Layout) -> str | None:
    """The part of ``EXPECTED`` that a group's communication counts for: by its name, else by its ranks, else by its
    kind; None where nothing tells."""
    words = group.group.lower().replace("model_parallel", "").replace("_", " ").replace("-", " ")
    for name, pattern in _WORDS:
        if re.search(pattern.replace("_?", " ?"), words):
            return name
    if group.ranks is not None:
        for name, axes in _matching(group, layout):
            if list(group.ranks) in np.sort(rank_groups(layout, axes), axis=1).tolist():
                return name
    if group.kind == "send":
        return "pp" if layout.pipeline > 1 else "cp" if layout.context > 1 else None
    return "ep" if group.kind == "all-to-all" and layout.expert > 1 else None


def _matching(group: TracedGroup, layout: Layout) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The axes whose groups have as many ranks as this one."""
    table = LayoutTable.of([layout])
    for name, choices in _AXES.items():
        for axes in choices:
            if np.prod([degrees(table, axis)[0] for axis in axes]) == group.size > 1:
                yield name, axes


def _slow_links(group: TracedGroup, name: str, layout: Layout, cluster: Cluster, network: Network) -> str:
    """What a group's bandwidth says of its links; empty where it is as expected, or nothing is known."""
    axes = next((axes for part, axes in _matching(group, layout) if part == name), None)
    if not group.large_Bps or axes is None:
        return ""
    spanned = spread(LayoutTable.of([layout]), axes, cluster.spans)
    seconds = float(
        collective_s(cast("CollectiveKind", group.kind), np.array([group.large_bytes]), spanned, network)[0]
    )
    expected_Bps = group.bus_bytes / seconds
    if group.large_Bps >= SLOW * expected_Bps:
        return ""
    reached, could = format_si(group.large_Bps, "B/s"), format_si(expected_Bps, "B/s")
    return f"{group.kind} over {name} reaches {reached} of {could}: a link or NIC is slow or unused (weft bench)"


# Tuning --------------------------------------------------------------------------------------------------------

SPREAD = 0.1
"""Standard deviation of logarithmic errors.  Range: 0.08 to 0.12.  Source: benchmarks/tuning.py, in which it covers
82 % of 967 measured runs of 148 jobs with intervals for 80 %, and the mean error is 7.7 % (9.3 % by the ratio of two
estimates, 8.2 % without a measured run)."""
USUAL = 2.0
"""Spreads beyond which a run's error is not one of its layout."""
UNKNOWN = 1.0
"""Share of what is beyond the usual error by which that deviates elsewhere.  Range: 0 to 1.5.  Source: as before."""
WORTHWHILE = 0.01
"""Share of the step that a change must gain."""
TRIED = 40
"""Layouts of the whole search that are held against the measured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A field of the layout that a change sets, with its values before and after."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout(Document):
    """A layout of the job, and seconds of its measured step."""

    DOCUMENT = "layout measured_s"

    layout: WrittenLayout
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareChange:
    """A setting of the software that the layout does not have, the constants that it leads to, and how it is set."""

    setting: SettingChange
    constants: Calibration
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange(Document):
    """A layout to change to, or a setting of the software.

    Attributes:
        settings: what is different, data parallelism left out where it takes what remains.
        estimate: of the new layout, not corrected.
        iteration_s: seconds of its step, corrected by the measured run.
        speedup: the measured step over it, expected and within ``interval`` for four of five such changes.
        flags: what to change in the run's own file.
    """

    DOCUMENT = """layout=estimate.layout layout_text=estimate.layout_text settings iteration_s speedup interval
        memory_bytes=estimate.memory_bytes fits=estimate.fits flags"""

    settings: tuple[SettingChange, ...]
    estimate: Estimate
    iteration_s: float
    speedup: float
    interval: tuple[float, float]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A change of the recipe, which may want other learning rates, and what it gains in tokens per second."""

    name: str
    before: str | int
    after: str | int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tuning(Result):
    """A measured run, what its layout should reach, and the changes that gain most, best first.

    ``expected`` is the estimate of the run's own layout; ``slower`` the measured step over the expected one, less 1.
    ``others`` are more measured layouts of the job, ``unknown`` sentences on settings that the estimate leaves out;
    ``gap`` has the parts of a traced step, None where there is no trace; ``network`` what logs of NCCL say is wrong.
    """

    SCHEMA = "weft.tune/1"
    COLUMNS = ("layout_text", "iteration_s", "speedup", "low", "high", "memory_bytes", "flags")
    DOCUMENT = """job cluster stack layout keep measured_s measured_mfu others expected slower changes recipe
        unknown gap network"""

    job: Job
    cluster: Cluster
    stack: str
    layout: Layout
    keep: tuple[str, ...]
    measured_s: float
    expected: Estimate
    changes: tuple[LayoutChange, ...]
    recipe: tuple[RecipeChange, ...] = ()
    others: tuple[MeasuredLayout, ...] = ()
    unknown: tuple[str, ...] = ()
    gap: StepGap | None = None
    network: tuple[str, ...] = ()

    @property
    def measured_mfu(self) -> float:
        """Share of the dense peak, attention counted as a whole square, as ``Estimate.mfu``."""
        return self.expected.mfu * self.expected.iteration_s / self.measured_s

    @property
    def slower(self) -> float:
        return self.measured_s / self.expected.iteration_s - 1.0

    def to_dicts(self) -> list[dict[str, Any]]:
        """The changes, best first, under ``COLUMNS``."""
        return [
            {
                "layout_text": change.estimate.layout_text,
                "iteration_s": change.iteration_s,
                "speedup": change.speedup,
                "low": change.interval[0],
                "high": change.interval[1],
                "memory_bytes": change.estimate.memory_bytes,
                "flags": " ".join(change.flags),
            }
            for change in self.changes
        ]


@dataclass(frozen=True, slots=True)
class Anchors:
    """MeasuredLayout steps of a job's layouts, at least one, which correct estimates of its other layouts."""

    layouts: Sequence[Layout]
    measured_s: Sequence[float]
    estimated_s: Sequence[float]

    def corrected(self, layouts: Sequence[Layout], estimated_s: Floats) -> tuple[Floats, Floats]:
        """Expected seconds of layouts, and the standard deviations of their logarithms."""
        errors = np.log(np.asarray(self.measured_s) / np.asarray(self.estimated_s))
        # 1. What is beyond the usual error has a cause that all layouts share.
        shared = float(np.mean(errors - np.clip(errors, -USUAL * SPREAD, USUAL * SPREAD)))
        # 2. Of the rest, as much as the errors have in common.  Of a layout measured twice the mean counts.
        common = _correlations(layouts, self.layouts)
        weights = common @ np.linalg.pinv(_correlations(self.layouts, self.layouts), rcond=1e-9, hermitian=True)
        seconds = estimated_s * np.exp(shared + weights @ (errors - shared))
        left = np.maximum(1.0 - np.sum(weights * common, axis=1), 0.0)
        # 3. A cause that is not known may weigh on another layout more or less.
        unlike = UNKNOWN * abs(shared) / len(errors) ** 0.5 * (common.max(axis=1) < 1.0)
        return seconds, np.hypot(SPREAD * np.sqrt(left), unlike)


def _correlations(layouts: Sequence[Layout], others: Sequence[Layout]) -> Floats:
    """Of the errors of layouts with those of others, shape (n, m)."""
    contrast = shipped_contrast()
    if contrast is None:
        return np.array([[float(a == b) for b in others] for a in layouts])
    correlations: Floats = np.exp(-contrast.variances_between(layouts, others) / SPREAD**2)
    return correlations


def tune(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    measured_s: float,
    *,
    space: Space,
    stack: str,
    others: Sequence[MeasuredLayout] = (),
    software: Sequence[SoftwareChange] = (),
    unknown: Sequence[str] = (),
    keep: Sequence[str] = (),
    constants: Calibration | None = None,
    memory_margin: float = 0.05,
    top: int = 5,
    flags: Callable[[Layout], tuple[str, ...] | None] | None = None,
) -> Tuning:
    """The changes of a run's layout that gain most.

    Args:
        layout, measured_s: the run's own layout, and seconds of its step.
        space: layouts that the framework runs.
        others: more measured layouts of the job, which correct the predictions too.
        software: settings of the software to try, each with the run's own layout.
        unknown: sentences on settings that the estimate leaves out.
        keep: attributes of ``Layout`` and ``Recipe`` that stay as they are, ``dp`` among them.
        memory_margin: share of the memory to leave free; a run that does without proves that it can.
        top: single changes to return, at most.
        flags: says what to change in the run's file for a layout; None where the framework cannot run it.

    Raises:
        BadInput: the measured step is shorter than any machine's could be.
    """
    # 1. The run as it is, and others.
    estimator = Estimator(job, cluster, constants)
    runs = (MeasuredLayout(layout=layout, measured_s=measured_s), *others)
    anchors, expected = _anchors(estimator, runs)
    # A run that needs the margin itself may go on without it.
    room_bytes = free_bytes = (1 - memory_margin) * cluster.accelerator.memory_bytes
    if expected.memory_bytes > free_bytes:
        room_bytes = cluster.accelerator.memory_bytes
    # 2. What may be changed to.
    fixed = {name: getattr(layout, name) for name in keep if hasattr(layout, name)}
    free = space.constrained({"data_parallel" if name == "dp" else name: fixed[name] for name in fixed}, {})
    whole = plan(
        job,
        cluster,
        space=_as_the_run(free, layout),
        top=TRIED,
        per_mesh=True,
        memory_margin=memory_margin,
        constants=constants,
        stack=stack,
    )
    every = _candidates(layout, job, [*anchors.layouts, *(estimate.layout for estimate in whole.layouts)])
    # 3. Those that run, fit and gain.
    ease, written = Ease(job, cluster, stack, room_bytes), None if flags is None else cache(flags)
    gaining = _reached(estimator, ease, anchors, fixed, every, written)
    # 4. Of each number of settings the best, and what the software has beside.
    chosen = [
        *_software_changes(estimator, anchors, software, keep),
        *_best_of_each(estimator, anchors, gaining, top, written),
    ]
    changes = tuple(sorted(chosen, key=lambda change: (change.interval[0] < 1.0, -change.speedup)))
    return Tuning(
        job=job,
        cluster=cluster,
        stack=stack,
        layout=layout,
        keep=tuple(keep),
        measured_s=measured_s,
        expected=expected,
        changes=changes,
        recipe=tuple(_recipe_changes(estimator, expected, keep)),
        others=tuple(others),
        unknown=tuple(unknown),
    )


def _anchors(estimator: Estimator, runs: Sequence[MeasuredLayout]) -> tuple[Anchors, Estimate]:
    """What corrects estimates, and that of the first run."""
    estimates = estimator.estimates([run.layout for run in runs])
    for run, estimate in zip(runs, estimates, strict=True):
        if run.measured_s < estimate.lower_bound_s:
            times = estimate.lower_bound_s / run.measured_s
            problem = (
                f"a step of {run.measured_s:.3g} s is {times:.2f} times as fast as this machine's peaks allow"
                f" ({estimate.lower_bound_s:.3g} s)"
            )
            raise BadInput(problem, where="--measured", remedy="check the value, its unit, the model and the batch")
    layouts, measured_s = [run.layout for run in runs], [run.measured_s for run in runs]
    return Anchors(layouts, measured_s, [estimate.iteration_s for estimate in estimates]), estimates[0]


def _as_the_run(space: Space, layout: Layout) -> Space:
    """A space whose layouts all overlap, and place their axes, as the run does."""
    return replace(
        space,
        overlap_tensor=(layout.overlap_tensor,),
        overlap_reduce=(layout.overlap_reduce,),
        overlap_gather=(layout.overlap_gather,),
        order=layout.order,
    )


def _software_changes(
    estimator: Estimator, anchors: Anchors, software: Sequence[SoftwareChange], keep: Sequence[str]
) -> Iterator[LayoutChange]:
    """Settings of the software that gain with the run's own layout."""
    layout, own_s = anchors.layouts[0], anchors.estimated_s[0]
    # Errors of a run with and without a setting are as far apart as those of layouts that differ in one switch.
    stand_in = replace(layout, overlap_reduce=not layout.overlap_reduce)
    for tried in software:
        other = Estimator(estimator.job, estimator.cluster, tried.constants)
        change = _change(other, anchors, layout, (tried.setting,), tried.flags, alike=stand_in)
        if change.estimate.iteration_s < (1.0 - WORTHWHILE) * own_s and tried.setting.name not in keep:
            yield change


def _recipe_changes(estimator: Estimator, expected: Estimate, keep: Sequence[str]) -> Iterator[RecipeChange]:
    """Narrower products and a larger batch, with the layout as it is."""
    job, recipe, chip = estimator.job, estimator.job.recipe, estimator.cluster.accelerator
    tried: list[tuple[str, Any, Any]] = [("global_batch", recipe.global_batch, 2 * recipe.global_batch)]
    if recipe.precision in ("bf16", "fp16") and chip.fp8_flops:
        tried.append(("precision", recipe.precision, "fp8"))
    for name, before, after in tried:
        if name in keep:
            continue
        changed = replace(job, recipe=replace(recipe, **{name: after}))
        changed_estimator = Estimator(changed, estimator.cluster, estimator.constants)
        estimate = changed_estimator.estimates([expected.layout])[0]
        speedup = estimate.tokens_per_s / expected.tokens_per_s
        if speedup > 1.0 + WORTHWHILE and estimate.memory_bytes <= estimate.capacity_bytes:
            yield RecipeChange(name=name, before=before, after=after, speedup=speedup)


def _candidates(layout: Layout, job: Job, best: Sequence[Layout]) -> dict[Layout, None]:
    """All layouts one or two changes away, and the best of the whole space with more overlap."""
    singles = list(neighbours(layout, job))
    pairs = (second for first in singles for second in neighbours(first, job))
    return dict.fromkeys((*singles, *pairs, *(overlapped for each in best for overlapped in _overlapped(each))))


def _reached(
    estimator: Estimator,
    ease: Ease,
    anchors: Anchors,
    fixed: dict[str, Any],
    every: dict[Layout, None],
    written: Callable[[Layout], tuple[str, ...] | None] | None,
) -> list[Layout]:
    """Those of candidates that gain, and of what is a change away from the best that the framework runs."""
    reached = None
    # The framework may run none of the best of the space: go on from the best that it runs, as long as that gets
    # better.
    while True:
        kept = (each for each in every if all(getattr(each, name) == value for name, value in fixed.items()))
        gaining = _gaining(estimator, ease, anchors, [anchors.layouts[0], *kept])
        best = next((each for each in gaining if written and written(each)), None)
        if best in (None, reached):
            return gaining
        reached, every = best, every | dict.fromkeys(neighbours(best, estimator.job))


def _gaining(estimator: Estimator, ease: Ease, anchors: Anchors, candidates: Sequence[Layout]) -> list[Layout]:
    """Those that run, fit and gain on the first, by expected time and by what each needs to run."""
    table = LayoutTable.of(candidates)
    numbers = np.flatnonzero(reject(estimator.job, estimator.cluster.count, table) < 0)
    table = table.take(numbers)
    results = estimator.evaluate(table)
    efforts = 1.0 + ease.efforts(table, results.memory_bytes)
    keys = results.iteration_s * efforts
    gains = (results.memory_bytes <= ease.capacity_bytes) & (keys < (1.0 - WORTHWHILE) * keys[0])
    # Other measured layouts may turn what the estimates say.
    if len(anchors.layouts) > 1:
        gains = results.memory_bytes <= ease.capacity_bytes
    rows = np.flatnonzero(gains)
    layouts = [candidates[number] for number in numbers[rows].tolist()]
    seconds, _ = anchors.corrected(layouts, results.iteration_s[rows])
    keys = seconds * efforts[rows]
    order = np.argsort(keys, kind="stable").tolist()
    return [layouts[row] for row in order if keys[row] < (1.0 - WORTHWHILE) * anchors.measured_s[0] * efforts[0]]


def _best_of_each(
    estimator: Estimator,
    anchors: Anchors,
    layouts: Sequence[Layout],
    top: int,
    flags: Callable[[Layout], tuple[str, ...] | None] | None,
) -> Iterator[LayoutChange]:
    """Of layouts, best first: the best change of each setting, the best pair, and the best of all.

    A change of more settings must gain ``WORTHWHILE`` on every one of fewer.
    """
    best, names = 1.0 + WORTHWHILE, set[tuple[str, ...]]()
    groups: dict[int, list[tuple[Layout, tuple[SettingChange, ...]]]] = {1: [], 2: [], 3: []}
    for layout in layouts:
        if settings := differences(anchors.layouts[0], layout):
            groups[min(len(settings), 3)].append((layout, settings))
    for count, group in groups.items():
        chosen: list[LayoutChange] = []
        for layout, settings in group:
            key = tuple(setting.name for setting in settings)
            if len(chosen) == (top if count == 1 else 1):
                break
            if count == 1 and key in names:
                continue
            written = () if flags is None else flags(layout)
            if written is None or (flags is not None and not written):
                continue
            names.add(key)
            change = _change(estimator, anchors, layout, settings, written)
            if change.speedup > best:
                chosen.append(change)
        best = max([best, *(change.speedup * (1.0 + WORTHWHILE) for change in chosen)])
        yield from chosen


def _change(
    estimator: Estimator,
    anchors: Anchors,
    layout: Layout,
    settings: tuple[SettingChange, ...],
    flags: tuple[str, ...],
    *,
    alike: Layout | None = None,
) -> LayoutChange:
    """A change to a layout; ``alike`` has the errors that this one is expected to have, if it is not the layout."""
    estimate = estimator.estimates([layout])[0]
    seconds, deviations = anchors.corrected([alike or layout], np.array([estimate.iteration_s]))
    speedup, spread = anchors.measured_s[0] / float(seconds[0]), float(np.exp(NORMAL * deviations[0]))
    return LayoutChange(
        settings=settings,
        estimate=estimate,
        iteration_s=float(seconds[0]),
        speedup=speedup,
        interval=(speedup / spread, speedup * spread),
        flags=flags,
    )


def _overlapped(layout: Layout) -> Iterator[Layout]:
    """A layout as the run overlaps, and with more of its communication hidden."""
    tensor = [layout.overlap_tensor, *(TensorOverlap if layout.x > 1 else ())]
    for reduce, gather, overlap in product((layout.overlap_reduce, True), (layout.overlap_gather, True), tensor):
        yield replace(layout, overlap_reduce=reduce, overlap_gather=gather, overlap_tensor=overlap)


# Changes -------------------------------------------------------------------------------------------


def differences(before: Layout, after: Layout) -> tuple[SettingChange, ...]:
    """What a person changes: data parallelism, which takes what remains, and what follows of itself are left out."""
    follows = {"data", "order"}
    if 1 in (before.x, after.x):
        follows.add("sequence_parallel")
    if 1 in (before.context, after.context):
        follows.add("context_method")
    if after.pipeline == 1:
        follows |= {"schedule", "virtual_stages"}
    usual = (PipelineSchedule.PLAIN, PipelineSchedule.INTERLEAVED)
    if before.virtual_stages != after.virtual_stages and before.schedule in usual and after.schedule in usual:
        follows.add("schedule")
    if before.data == after.data == 1 and min(before.z, after.z) > 1:
        follows.add("z")  # all data-parallel ranks share the weights, before and after
    if before.z > 1 or after.z > 1:
        follows.add("zero")
    if before.recompute != after.recompute and not after.recompute_layers:
        follows.add("recompute_layers")
    return tuple(
        SettingChange(name=field.name, before=getattr(before, field.name), after=getattr(after, field.name))
        for field in fields(Layout)
        if field.name not in follows and getattr(before, field.name) != getattr(after, field.name)
    )


def neighbours(layout: Layout, job: Job) -> Iterator[Layout]:
    """Layouts that differ in one setting, among them some that cannot run the job."""
    # 1. Ranks from one axis to another; data parallelism takes or gives those of a single change.
    for source in AXES:
        for target in AXES:
            if source == target or "y" in (source, target):
                continue
            for factor in divisors(getattr(layout, source))[1:]:
                degrees = {source: getattr(layout, source) // factor, target: getattr(layout, target) * factor}
                yield from _with_forms(layout, replace(layout, **_with_consequences(layout, degrees)))
    # 2. Every other value of a setting.
    per_rank = max(job.recipe.global_batch // layout.dp, 1)
    stages = max(job.model.layers // layout.pipeline, 1)
    experts = max((kind.moe.experts for kind in job.model.kinds if kind.moe), default=1)
    values: dict[str, Sequence[Any]] = {
        "micro_batch": divisors(per_rank),
        "virtual_stages": divisors(stages) if layout.pipeline > 1 else (1,),
        "expert": divisors(experts),
        "zero": (0, 1, 2) if layout.z == 1 else (0,),
        "recompute": tuple(Recompute),
        "sequence_parallel": (False, True),
        "overlap_tensor": tuple(TensorOverlap) if layout.x > 1 else (layout.overlap_tensor,),
        "overlap_reduce": (False, True),
        "overlap_gather": (False, True),
        "context_method": tuple(ContextMethod) if layout.context > 1 else (layout.context_method,),
    }
    for name, choices in values.items():
        for value in choices:
            if value != getattr(layout, name):
                yield from _with_forms(layout, replace(layout, **_with_consequences(layout, {name: value})))


def _with_consequences(layout: Layout, changes: dict[str, Any]) -> dict[str, Any]:
    """Changes with what follows of them."""
    after = {name: changes.get(name, getattr(layout, name)) for name in ("x", "pipeline", "context", "z")}
    virtual = changes.get("virtual_stages", layout.virtual_stages) if after["pipeline"] > 1 else 1
    result = changes | {"virtual_stages": virtual}
    if virtual > 1 and layout.schedule == PipelineSchedule.PLAIN:
        result["schedule"] = PipelineSchedule.INTERLEAVED
    if virtual == 1 and (layout.schedule.rounds or after["pipeline"] == 1):
        result["schedule"] = PipelineSchedule.PLAIN
    if after["z"] > 1:
        result["zero"] = 0
    if "recompute" in changes:
        result["recompute_layers"] = 0
    return result


def _with_forms(before: Layout, after: Layout) -> Iterator[Layout]:
    """A layout, in all forms of what began with the change: tensor or context parallelism, replicated weights."""
    if after.x == 1:
        after = replace(after, sequence_parallel=False)
    began: dict[str, Sequence[Any]] = {}
    if before.x == 1 < after.x:
        began["sequence_parallel"] = (False, True)
    if before.z > 1 == after.z:
        began["zero"] = (0, 1, 2)
    if before.context == 1 < after.context:
        began["context_method"] = tuple(ContextMethod)
    for values in product(*began.values()):
        changes: dict[str, Any] = dict(zip(began, values, strict=True))
        yield replace(after, **changes) if changes else after
