"""How far estimates are off: one against what was measured, and two layouts of one job against each other.

The first is the cross-validated error of similar runs.  Of the second: what two layouts share, errors share, so that
only mechanisms in which they differ count.  The variance of the difference of two logarithmic errors grows with the
steps between the layouts,

    Var(e_i - e_j) = v_other + sum over traits t of v_t |step_t(i) - step_t(j)|,

which is that of a random walk along each trait.  The ``v`` are fitted to the measured jobs that ran in several
layouts, every source weighing the same, every job of one too, and outliers less; a trait in which hardly any pair
differs has about the mean of the others, and none less than ``v_other``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from weft.cluster.calibration import shipped_tables
from weft.cluster.spec import Cluster
from weft.layout.spec import Layout
from weft.layout.table import Floats, Mask
from weft.layout.text import parse_layout
from weft.model.job import Job
from weft.model.spec import Model
from weft.units import format_count, format_si

FEWEST = 8
"""Runs from which an error is stated."""
NEAR = 4
"""Models whose parameters differ by at most this factor are of one size."""
COVERED = 0.8
"""Share of a source's runs whose error is at most the source's own, and of sources whose own is at most the stated
one."""
GROWTH = 0.05
"""By which share 1 + error grows with every doubling or halving beyond what was measured, those of all figures added
up.  Range: 0 to 0.07.  Source: of the shipped runs, 262 lie outside what the other sources measured, by up to 9
doublings; 88 % of them are within the other sources' bar as it is, 92 % if it grows by 0.015, 96 % by 0.05 (each
source weighing as the square root of its runs)."""
MEASURED_WITHIN = 0.25
"""Doublings beyond the measured range within which a figure counts as measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What makes runs alike.

    Attributes:
        accelerator: its table in the calibration.
        kind: dense, experts, or state-space (with or without experts).
    """

    accelerator: str
    kind: str

    @classmethod
    def of(cls, job: Job, cluster: Cluster) -> Traits:
        """The traits of an estimate."""
        tables = shipped_tables().used(cluster.accelerator.name)
        routed = any(kind.moe for kind in job.model.kinds)
        kind = "state-space" if job.model.state_spaces else "experts" if routed else "dense"
        return cls(accelerator=tables[-1] if tables else cluster.accelerator.name, kind=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A measured run and how far predictions of it were from the measurement.

    Attributes:
        run: its id in the table of runs.
        family: its source.
        job: a number that runs of one job, in different layouts, share.
        layout: as ``weft.layout.text`` writes it.
        precision: of the linear layers.
        world: accelerators.
        parameters: of the model.
        sequence: tokens of a sequence.
        head_dim: features of a query head (None: there is no attention).
        expert_width: features within a routed expert (None: there are no experts).
        scale_up_Bps: of an accelerator within its domain.
        scale_out_Bps: of an accelerator beyond it (None: there is one domain only).
        mfu: measured, of the dense peak of the precision; attention counted as a whole square.
        traits: what makes it like others.
        error: predicted / measured - 1 by constants that had not seen its family.
        without_kind: the same by constants that had seen no run of its kind either (``weft.validation.fit.kind_of``).
        unfitted: the same by the constants before any run.
    """

    run: str
    family: str
    job: int
    layout: str
    precision: str
    world: int
    parameters: int
    sequence: int
    head_dim: int | None
    expert_width: int | None
    scale_up_Bps: float
    scale_out_Bps: float | None
    mfu: float
    traits: Traits
    error: float
    without_kind: float
    unfitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """``COVERED`` of a new source's runs are expected within the share ``error``, for ``COVERED`` of such sources: by
    ``runs`` similar runs of so many ``sources``, predicted by constants that had not seen their source.

    ``alike`` says in what they are similar; ``error`` is None where no run is known.  ``outside`` names the figures
    that lie outside those of the similar runs, by which ``error`` is wider (``GROWTH``).
    """

    error: float | None
    runs: int
    sources: int
    alike: str
    outside: tuple[str, ...] = ()


def figures_of(job: Job, cluster: Cluster) -> dict[str, Any]:
    """Those figures of a job on a cluster that decide whether its like was measured, by their names in ``Known``."""
    attentions, tiers = job.model.attentions, cluster.tiers
    return {
        "world": cluster.count,
        "parameters": job.model.parameters,
        "sequence": job.recipe.sequence,
        "head_dim": attentions[0].qk_dim if attentions else None,
        "scale_up_Bps": tiers[0].bandwidth_Bps,
        "scale_out_Bps": tiers[1].bandwidth_Bps if len(tiers) > 1 else None,
    }


def widened_bar(job: Job, cluster: Cluster) -> ErrorBar:
    """The error bar of an estimate, wider by how far it lies outside what was measured."""
    bar, similar = _shipped_bar(Traits.of(job, cluster))
    if bar.error is None:
        return bar
    words, doublings = [], 0.0
    for name, value, least, most, beyond in outside(figures_of(job, cluster), similar):
        title, form = FIGURES[name]
        limit = f"most {form(most)}" if value > most else f"least {form(least)}"
        words.append(f"{title} {form(value)} (at {limit} measured)")
        doublings += beyond
    return replace(bar, error=grown(bar.error, doublings), outside=tuple(words)) if words else bar


def outside(figures: Mapping[str, Any], similar: Sequence[Known]) -> list[tuple[str, float, float, float, float]]:
    """The figures outside those of similar runs: name, value, their least and most, doublings or halvings beyond."""
    beyond = []
    for name, value in figures.items():
        measured = [known for run in similar if (known := getattr(run, name)) is not None]
        if value is not None and measured:
            least, most = min(measured), max(measured)
            doublings = math.log2(max(value / most, least / value))
            if doublings > MEASURED_WITHIN:
                beyond.append((name, value, least, most, doublings))
    return beyond


def grown(error: float, doublings: float) -> float:
    """An error so many doublings beyond what was measured."""
    return float((1.0 + error) * (1.0 + GROWTH) ** doublings - 1.0)


def error_bar(traits: Traits, known: Sequence[Known] | None = None) -> ErrorBar:
    """The error of the runs that are most like these traits and at least ``FEWEST``, of two sources or more.

    Without runs on the accelerator, or of the kind of model, its constants are guesses: a run's error is then the
    larger of those by constants fitted to other sources and by constants before any run, and no accelerator with runs
    has a larger one.
    """
    return (_shipped_bar(traits) if known is None else _bar(traits, known))[0]


@cache
def _shipped_bar(traits: Traits) -> tuple[ErrorBar, list[Known]]:
    return _bar(traits, shipped_runs())


def _bar(traits: Traits, runs: Sequence[Known]) -> tuple[ErrorBar, list[Known]]:
    """The error bar, and the runs that it is of."""
    accelerators = {run.traits.accelerator for run in runs}
    kind = [run for run in runs if run.traits.kind == traits.kind]
    machine = [run for run in kind if run.traits.accelerator == traits.accelerator]
    measured = traits.accelerator in accelerators
    # Similar runs, from the most to the least similar, until there are enough of them.
    subject = f"{traits.kind} models on"
    circles = [
        (f"{subject} {traits.accelerator}", machine),
        (f"{subject} any accelerator" + ("" if machine else f", none of them on {traits.accelerator}"), kind),
    ]
    if not kind:
        circles.append((f"models of any kind, none of them {traits.kind}", list(runs)))
    bar, similar = ErrorBar(error=None, runs=0, sources=0, alike=""), list[Known]()
    for alike, some in circles:
        if some:
            similar, families = some, {run.family for run in some}
            # Where accelerator or kind was not measured, the larger error of both sorts of constants counts.
            sorts = [(run.error, run.error if measured and kind else run.unfitted) for run in some]
            error = _quantile(np.abs(sorts).max(axis=1), [run.family for run in some])
            bar = ErrorBar(error=error, runs=len(some), sources=len(families), alike=alike)
        if len(some) >= FEWEST and bar.sources > 1:
            break
    if bar.error is not None and not measured:
        elsewhere = [_bar(replace(traits, accelerator=name), runs)[0].error or 0.0 for name in accelerators]
        bar = replace(bar, error=max(bar.error, *elsewhere))
    return bar, similar


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The runs of the highest MFU in one precision on one accelerator, by one convention (``Known.mfu``).

    Attributes:
        alike: of the same kind: parameters and sequence within a factor of ``NEAR``, the features within an expert
            within 2, accelerators within ``NEAR**2``; None without one.
        highest: of all kinds and sizes; None without one.
    """

    alike: Known | None
    highest: Known | None


def best_published(job: Job, cluster: Cluster, known: Sequence[Known] | None = None) -> Published:
    """The runs that an estimate's MFU is compared with."""
    traits, width = Traits.of(job, cluster), expert_width(job.model)

    def near(value: float, measured: float, factor: float) -> bool:
        return value / factor <= measured <= factor * value

    machine = [
        run
        for run in (shipped_runs() if known is None else known)
        if (run.traits.accelerator, run.precision) == (traits.accelerator, job.recipe.precision)
    ]
    alike = [
        run
        for run in machine
        if run.traits == traits
        and near(job.model.parameters, run.parameters, NEAR)
        and near(job.recipe.sequence, run.sequence, NEAR)
        and near(cluster.count, run.world, NEAR**2)
        and (width is None or run.expert_width is None or near(width, run.expert_width, 2))
    ]

    def highest(runs: Sequence[Known]) -> Known | None:
        return max(runs, key=lambda run: (run.mfu, run.run), default=None)

    return Published(alike=highest(alike), highest=highest(machine))


def expert_width(model: Model) -> int | None:
    """Features within a routed expert, the least of all blocks; None where there are no experts."""
    return min((kind.moe.expert.intermediate for kind in model.kinds if kind.moe), default=None)


def _quantile(errors: Floats, families: Sequence[str]) -> float:
    """The error that covers ``COVERED`` of the runs of ``COVERED`` of new sources, if sources are exchangeable: that
    of rank (n + 1) COVERED, rounded up, among the n sources' own (split conformal prediction: Lei et al. 2018,
    doi:10.1080/01621459.2017.1307116), which is the largest of up to eight; of fewer than four it covers less."""
    # First the error that covers a source's own runs, then, as runs of a source are alike, the rank among sources.
    named = np.array(families)
    ranked = sorted([_ranked(np.sort(errors[named == name]), 0) for name in set(families)])
    return _ranked(np.array(ranked), 1)


def _ranked(values: Floats, more: int) -> float:
    """Of sorted values the one below or at which ``COVERED`` of them, and of so many ``more``, lie."""
    return float(values[min(math.ceil((len(values) + more) * COVERED - 1e-9), len(values)) - 1])


def equal_shares(families: np.ndarray) -> Floats:
    """Weights of runs that add up to 1, every family's alike."""
    _, group, counts = np.unique(families, return_inverse=True, return_counts=True)
    shares: Floats = 1.0 / (counts[group] * len(counts))
    return shares


def covered(known: Sequence[Known]) -> dict[str, float]:
    """The share of each family's runs that lie within the bar which the other families alone would give them."""
    inside: dict[str, list[bool]] = {}
    bars: dict[tuple[str, Traits], float] = {}
    for run in known:
        key = run.family, run.traits
        if key not in bars:
            bars[key] = (
                error_bar(run.traits, [known_run for known_run in known if known_run.family != run.family]).error
                or 0.0
            )
        inside.setdefault(run.family, []).append(abs(run.error) <= bars[key])
    return {family: float(np.mean(each)) for family, each in sorted(inside.items())}


@cache
def _shipped() -> tuple[tuple[Known, ...], Contrast | None]:
    return runs_from_json(files("weft.estimation").joinpath("data", "errors.json").read_text(encoding="utf-8"))


def shipped_runs() -> tuple[Known, ...]:
    """The runs with which the shipped constants were set (``weft validate --fit --errors``)."""
    return _shipped()[0]


def shipped_contrast() -> Contrast | None:
    """The error between layouts by the runs with which the shipped constants were set."""
    return _shipped()[1]


def runs_to_json(runs: Sequence[Known]) -> str:
    """As columns, one line each, and behind them the error between layouts, whose fit takes seconds."""
    runs = [replace(run, **{name: round(getattr(run, name), 4) for name in _ERRORS}) for run in runs]
    columns: dict[str, Any] = {name: [getattr(run, name) for run in runs] for name in _NAMES}
    columns |= {name: [getattr(run.traits, name) for run in runs] for name in Traits.__slots__}
    columns |= {name: [getattr(run, name) for run in runs] for name in _ERRORS}
    fitted = contrast(runs)
    columns["contrast"] = None if fitted is None else asdict(fitted)
    lines = [f" {json.dumps(name)}: {json.dumps(values)}" for name, values in columns.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def runs_from_json(text: str) -> tuple[tuple[Known, ...], Contrast | None]:
    """What ``runs_to_json`` wrote: the runs, and the error between layouts."""
    columns = json.loads(text)
    fitted = columns.pop("contrast")
    runs = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        traits = Traits(accelerator=row.pop("accelerator"), kind=row.pop("kind"))
        runs.append(Known(**row, traits=traits))
    return tuple(runs), None if fitted is None else Contrast(**fitted)


FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "world": ("accelerators", "{:,.0f}".format),
    "parameters": ("parameters", format_count),
    "sequence": ("sequence", "{:,.0f}".format),
    "head_dim": ("head dimension", "{:,.0f}".format),
    "scale_up_Bps": ("scale-up bandwidth", partial(format_si, unit="B/s")),
    "scale_out_Bps": ("NIC bandwidth", partial(format_si, unit="B/s")),
}
"""What decides whether the like of an estimate was measured, what it is called, and how it is written."""
_NAMES = ("run", "family", "job", "layout", "precision", "expert_width", *FIGURES)
_ERRORS = ("mfu", "error", "without_kind", "unfitted")


# Layouts of one job against each other ---------------------------------------------------------

OUTLIER = 2.0
"""Standard deviations from which a pair counts by its size, not by its square."""
USUAL = 0.08
"""Standard deviation, of a step of a trait, from which the fit begins."""
PULL = 2.0
"""Jobs that a trait's pull towards the mean of all traits is worth."""
LEAST = 0.005
"""Least standard deviation of a step during the fit."""
ROUNDS = 20
NORMAL = 1.2815515655446004
"""Standard deviations within which ``COVERED`` of a normal distribution lie."""
OTHER = "other"
"""What layouts that differ at all differ in besides the traits."""


def steps(layout: Layout) -> dict[str, float]:
    """Where a layout stands along each trait; degrees count by doublings."""
    share = {"none": 0.0, "selective": 0.5, "full": 1.0}[layout.recompute]
    overlaps = {"none": 0.0, "backward": 0.5, "full": 1.0}[layout.overlap_tensor]
    switched = (layout.overlap_reduce, layout.overlap_gather, layout.offload_optimizer, layout.offload_activations)
    return {
        "tensor": float(np.log2(layout.x * layout.y)),
        "pipeline": float(np.log2(layout.pipeline)),
        "context": float(np.log2(layout.context)),
        "expert": float(np.log2(layout.expert * layout.expert_tensor)),
        "sharding": float(np.log2(layout.z)),
        "micro-batch": float(np.log2(layout.micro_batch)),
        "schedule": float(np.log2(layout.virtual_stages)) + layout.schedule.splits_backward,
        "recompute": share,
        "switches": overlaps + sum(switched),
    }


TRAITS = tuple(steps(Layout()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The error between layouts of one job, from ``pairs`` of ``jobs`` of ``sources``.

    ``variances`` are those of a step of each trait, and of ``OTHER``, scaled so that ``COVERED`` of the pairs lie
    within ``NORMAL`` standard deviations.
    """

    variances: Mapping[str, float]
    pairs: int
    jobs: int
    sources: int

    def variances_between(self, layouts: Sequence[Layout], others: Sequence[Layout]) -> Floats:
        """Variances of the logarithmic errors of layouts against those of others, shape (n, m)."""
        places = np.array([list(steps(layout).values()) for layout in (*layouts, *others)]).reshape(-1, len(TRAITS))
        apart = np.abs(places[: len(layouts), None] - places[None, len(layouts) :])
        unlike = np.not_equal.outer(np.array(layouts, dtype=object), np.array(others, dtype=object)).astype(bool)
        variances: Floats = (
            apart @ np.array([self.variances[name] for name in TRAITS]) + self.variances[OTHER] * unlike
        )
        return variances

    def between(self, layouts: Sequence[Layout]) -> Floats:
        """Standard deviations of the logarithmic errors of layouts against each other, shape (n, n)."""
        deviations: Floats = np.sqrt(self.variances_between(layouts, layouts))
        return deviations

    def covered(self, layouts: Sequence[Layout]) -> Floats:
        """Shares within which ``COVERED`` of such pairs had the ratio of their times predicted, shape (n, n)."""
        shares: Floats = np.expm1(NORMAL * self.between(layouts))
        return shares


def contrast(known: Sequence[Known]) -> Contrast | None:
    """The error between layouts, fitted to runs; None where no job is known in several layouts."""
    jobs: dict[tuple[str, int], list[Known]] = {}
    for run in known:
        jobs.setdefault((run.family, run.job), []).append(run)
    # Pairs of runs of one job in different layouts: the difference of their logarithmic errors, and the steps between
    # them; a weight for every job's pairs alike.
    errors, apart, shares, families = [], [], [], []
    for (family, _), runs in jobs.items():
        layouts = [run.layout for run in runs]
        first, second = np.triu_indices(len(runs), 1)
        unlike: Mask = np.array([layouts[i] != layouts[j] for i, j in zip(first, second, strict=True)], dtype=bool)
        if not unlike.any():
            continue
        first, second = first[unlike], second[unlike]
        places = np.array([list(steps(layout_of(text)).values()) for text in layouts])
        logs = np.log1p([run.error for run in runs])
        errors.append(logs[first] - logs[second])
        apart.append(np.abs(places[first] - places[second]))
        shares.append(np.full(len(first), 1.0 / len(first)))
        families.append(family)
    if not errors:
        return None
    # Weights add up to 1: every source's alike, and every job's of one.
    shares = [job / families.count(family) for job, family in zip(shares, families, strict=True)]
    differences, weights = np.concatenate(errors), np.concatenate(shares) / len(set(families))
    columns = np.column_stack([np.ones(len(differences)), np.concatenate(apart)])
    variances = _fitted(columns, differences, weights, len(families))
    sizes = np.abs(differences) / np.sqrt(columns @ variances)
    order = np.argsort(sizes, kind="stable")
    # The least size at or below which ``COVERED`` of the weights lies.
    place = int(np.searchsorted(np.cumsum(weights[order]), COVERED - 1e-9))
    scale = float(sizes[order][min(place, len(order) - 1)]) / NORMAL
    return Contrast(
        variances=dict(zip((OTHER, *TRAITS), (scale**2 * variances).tolist(), strict=True)),
        pairs=len(differences),
        jobs=len(families),
        sources=len(set(families)),
    )


@cache
def layout_of(text: str) -> Layout:
    """The layout of a run."""
    return parse_layout(text).complete()


def _fitted(columns: Floats, errors: Floats, shares: Floats, jobs: int) -> Floats:
    """Variances by least squares of squared errors, each weighed by what the last round expects of it."""
    variances = np.full(columns.shape[1], USUAL**2)
    for _ in range(ROUNDS):
        expected = columns @ variances
        # Beyond ``OUTLIER`` standard deviations an error counts by its size, not by its square.
        squares = np.minimum(errors**2, OUTLIER * np.sqrt(expected) * np.abs(errors))
        weights = shares * jobs / expected**2
        mean = variances.mean()
        pull = PULL / mean**2
        # Normal equations, with a pull of each variance towards their mean that counts as much as ``PULL`` jobs.
        weighed = (columns * weights[:, None]).T
        matrix = weighed @ columns + pull * np.eye(len(variances))
        vector = weighed @ squares + pull * mean
        # The solution without negative values, by coordinate descent.
        for _ in range(200):
            for i in range(len(variances)):
                residual = vector[i] - matrix[i] @ variances + matrix[i, i] * variances[i]
                variances[i] = max(residual / matrix[i, i], 0.0)
        variances = np.maximum(variances, LEAST**2)
    least: Floats = np.maximum(variances, variances[0])
    return least
