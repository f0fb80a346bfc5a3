"""Constants fitted to measured runs: one set for all, held near what was known before.

Least squares of logarithmic errors, in which every family weighs the same (one of dense models and mixtures as
two) and outliers less (Huber), with a pull of every constant towards its prior value.  Beside the error of each run
stands how far it is from the mean error of its job's layouts, which decides the choice of a layout.  What the fit is
worth is told by leaving sources (families), and kinds of runs, out: one Gauss-Newton step from the fitted constants
without their runs, and the full prediction of them with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from multiprocessing import get_context
from typing import Any

import numpy as np

from weft.cluster.calibration import Calibration, Tables, calibration_from, constants, parse_tables, tables_to_toml
from weft.codec import encode
from weft.estimation.trust import Known, Traits, equal_shares, expert_width, figures_of
from weft.layout.spec import Layout
from weft.layout.table import Floats, Index, Mask
from weft.layout.text import format_layout
from weft.model.job import model_flops
from weft.results import Result
from weft.validation.inputs import Prepared
from weft.validation.runs import Skipped
from weft.validation.summary import Errors, Predictor, RunGroup, spread_errors

STEP = 0.04
"""Relative change of a constant for its derivative."""
LONGEST = 0.5
"""Most that the logarithm of a constant changes in one round."""
OUTLIER = 0.1
"""Logarithmic error from which a run counts by its size, not by its square."""
BETWEEN = 10.0
"""Weight of all differences between layouts of one job, beside a weight of 10 of all errors."""
FAVOUR, WORSE = 1.5, 0.05
"""How much more a family counts that constants predict worse than those of the prior did, by more than a share."""
PULL = 0.1
"""Weight of a constant's distance from its prior, in its spreads, beside a weight of 10 of all errors."""
SPREADS = {
    "gemm_efficiency": 0.06,
    "gemm_share": 0.1,
    "low_precision_efficiency": 0.15,
    "attention_efficiency": 0.25,
    "attention_softmax": 0.7,
    "memory_efficiency": 0.05,
    "scale_up_efficiency": 0.08,
    "scale_out_efficiency": 0.08,
    "gemm_depth": 0.5,
    "kernel_s": 0.2,
    "collective_s": 0.5,
    "pass_overhead": 0.5,
    "routing_overhead": 0.5,
    "launches_per_step": 0.7,
    "attention_share": 0.3,
    "scan_share": 0.7,
    "recompute_share": 0.1,
    "expert_share": 0.2,
    "expert_overlap": 0.7,
    "norm_overhead": 0.5,
    "shard_collectives": 0.5,
    "power_exponent": 0.3,
    "clock_spread": 0.5,
    "iteration_s": 1.0,
}
"""How far a constant may well be from its prior: a standard deviation of its logarithm."""
LONG = 32768
"""Tokens of a sequence from which attention, not the model's kind, decides what a run is like."""
ROUNDS = 8
MANY_GROUPS, PIECES = 100, 16
"""Groups of runs from which all cores time them, in so many pieces."""
ENOUGH = 0.003
"""A round that lowers the cost by a smaller share is the last."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Parameter:
    """A constant of a table of the calibration: of accelerators by the beginning of their name, or of a stack
    (``stack.NAME``)."""

    table: str
    constant: str


Values = Mapping[Parameter, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted constants, with what cross-validation needs.

    Attributes:
        values: of each parameter.
        unfitted: seconds of each run with the constants that the fit began with.
        seconds: predicted with them, by run.
        without_family: predicted by run with constants that had not seen its family, the source.
        without_kind: the same, of all runs of its kind (``kind_of``) besides.
    """

    values: Values
    unfitted: Floats
    seconds: Floats
    without_family: Floats
    without_kind: Floats

    def entries(self) -> list[tuple[str, str, float]]:
        """Table, constant and value of each."""
        return [(parameter.table, parameter.constant, value) for parameter, value in self.values.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant of a table before and after a fit, in its unit."""

    table: str
    constant: str
    before: float
    fitted: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fitted(Result):
    """Constants fitted to measured runs, and what they are worth.

    Attributes:
        source: the name of the runs.
        rows: all of them, prepared or skipped.
        before: the calibration that the fit began with.
        fit: the constants and the predictions with them.
    """

    SCHEMA = "weft.calibrate/1"
    DOCUMENT = "source constants=changes errors=every_error"

    source: str
    rows: tuple[Prepared | Skipped, ...]
    before: Tables
    fit: Fit

    @property
    def tables(self) -> Tables:
        """The calibration with the fitted constants, marked as calibrated."""
        changed = sorted({parameter.table for parameter in self.fit.values})
        filled = self.before.replaced(self.fit.entries())
        return filled.replaced((name, "provenance", "calibrated") for name in changed)

    def to_toml(self) -> str:
        """The constants as a file that ``calibration`` of other verbs takes."""
        comment = f"Constants by accelerator and training software, fitted by weft validate --fit to {self.source}"
        return tables_to_toml(self.tables, comment=comment)

    def errors(self) -> tuple[Known, ...]:
        """Each run's error as predicted by constants that had not seen its family, or its kind."""
        prepared = [row for row in self.rows if isinstance(row, Prepared)]
        predicted = zip(self.fit.without_family, self.fit.without_kind, self.fit.unfitted, strict=True)
        jobs: dict[object, int] = {}
        peaks = (row.cluster.accelerator.peak_flops(row.job.recipe.precision) * row.layout.world for row in prepared)
        return tuple(
            Known(
                run=row.run.name,
                family=row.run.family,
                job=jobs.setdefault(row.same_job, len(jobs)),
                layout=format_layout(row.layout),
                precision=row.job.recipe.precision,
                expert_width=expert_width(row.job.model),
                **figures_of(row.job, row.cluster),
                mfu=model_flops(row.job.model, row.job.recipe) / row.measured_s / peak,
                traits=Traits.of(row.job, row.cluster),
                error=float(seconds / row.measured_s - 1.0),
                without_kind=float(by_kind / row.measured_s - 1.0),
                unfitted=float(before / row.measured_s - 1.0),
            )
            for row, peak, (seconds, by_kind, before) in zip(prepared, peaks, predicted, strict=True)
        )

    @property
    def changes(self) -> tuple[FittedConstant, ...]:
        """The fitted constants, by table."""
        units = {name: unit for name, unit, *_ in constants()}
        return tuple(
            FittedConstant(
                table=table,
                constant=constant,
                before=self.before.value(table, constant),
                fitted=value,
                unit=units[constant],
            )
            for table, constant, value in sorted(self.fit.entries())
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a constant: its table, what it was and what was fitted, in its unit."""
        return [encode(change) for change in self.changes]

    def by_family(self) -> tuple[tuple[Errors, ...], tuple[Errors, ...], tuple[Errors, ...]]:
        """Errors as fitted, by constants that had not seen a run's family, and nor any of its kind."""
        seconds = (self.fit.seconds, self.fit.without_family, self.fit.without_kind)
        fitted, by_family, by_kind = (spread_errors(self.rows, row) for row in seconds)
        return fitted, by_family, by_kind

    @property
    def every_error(self) -> dict[str, tuple[Errors, ...]]:
        """The errors by what the constants had seen."""
        return dict(zip(("fitted", "source_left_out", "kind_left_out"), self.by_family(), strict=True))


def kind_of(run: Prepared) -> str:
    """The accelerator's generation, the framework's family, and dense, experts, state-space or long context."""
    generation = (prior_tables().used(run.cluster.accelerator.name) or (run.cluster.accelerator.name,))[0]
    kind = "long" if run.job.recipe.sequence >= LONG else Traits.of(run.job, run.cluster).kind
    return f"{generation} {run.stack.name.split('-')[0]} {kind}"


def fit(predictor: Predictor, prior: Tables, parameters: Sequence[Parameter], progress: Callable[[str], None]) -> Fit:
    """Fit parameters to the runs of a predictor.

    Args:
        prior: the calibration to begin with, to which parameters are pulled.
        progress: told each round.
    """
    groups = predictor.groups
    met = tuple(parameter for parameter in parameters if any(_meets(prior, parameter, group) for group in groups))
    clock = _Clock(groups=groups, prior=prior, parameters=met, runs=len(predictor.runs))
    with _workers(clock) as timed:
        problem = _Problem(predictor, clock, timed)
        log_values, seconds, slopes = problem.solve(progress)
        progress("cross-validating")
        families = np.array([run.run.family for run in predictor.runs])
        kinds = np.array([kind_of(run) for run in predictor.runs])
        return Fit(
            values=clock.values(log_values),
            unfitted=problem.seconds(problem.start),
            seconds=seconds,
            without_family=problem.held_out(log_values, seconds, slopes, families),
            without_kind=problem.held_out(log_values, seconds, slopes, families, kinds),
        )


def _meets(tables: Tables, parameter: Parameter, group: RunGroup) -> bool:
    return parameter.table in tables.used(group.cluster.accelerator.name, group.stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """Times groups of runs with given logarithms of the parameters."""

    groups: tuple[RunGroup, ...]
    prior: Tables
    parameters: tuple[Parameter, ...]
    runs: int

    def values(self, log_values: Floats) -> dict[Parameter, float]:
        ranges = {name: (low, high) for name, _, low, high, _ in constants()}
        return {
            parameter: float(np.clip(np.exp(x), *ranges[parameter.constant]))
            for parameter, x in zip(self.parameters, log_values, strict=True)
        }

    def seconds(self, task: tuple[Floats, Sequence[int]]) -> Floats:
        """Times of the runs of some groups, by number; those of the others are 1 s."""
        log_values, chosen = task
        result = np.ones(self.runs)
        values = self.values(log_values).items()
        tables = self.prior.replaced((parameter.table, parameter.constant, value) for parameter, value in values)
        known: dict[tuple[str, str], Calibration] = {}
        for group in (self.groups[number] for number in chosen):
            key = (group.cluster.accelerator.name, group.stack)
            if key not in known:
                known[key] = calibration_from(tables, *key)
            result[group.rows] = group.estimated(known[key]).iteration_s
        return result


_Task = tuple[Floats, Sequence[int]]
_Timed = Callable[[Sequence[_Task]], list[Floats]]


@contextmanager
def _workers(clock: _Clock) -> Iterator[_Timed]:
    """Time tasks in order, on all cores where there are many groups."""
    if len(clock.groups) < MANY_GROUPS:
        yield lambda tasks: [clock.seconds(task) for task in tasks]
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_begin, initargs=(clock,)) as pool:
        yield lambda tasks: list(pool.map(_timed, tasks))


_begun: list[_Clock] = []
"""The clock of a worker."""


def _begin(clock: _Clock) -> None:
    _begun[:] = [clock]


def _timed(task: _Task) -> Floats:
    return _begun[0].seconds(task)


class _Problem:
    def __init__(self, predictor: Predictor, clock: _Clock, timed: _Timed) -> None:
        self.clock, self.timed = clock, timed
        self.parameters = clock.parameters
        self.measured = np.array([run.measured_s for run in predictor.runs])
        self.start = np.log(np.array([max(self._now(parameter), 1e-12) for parameter in self.parameters]))
        known = {name: (low, high) for name, _, low, high, _ in constants()}
        ranges = np.array([known[parameter.constant] for parameter in self.parameters])
        self.low, self.high = np.log(np.maximum(ranges, 1e-12)).T
        self.pull = (PULL / np.array([SPREADS[parameter.constant] for parameter in self.parameters])) ** 2
        families = np.array([f"{run.run.family} {Traits.of(run.job, run.cluster).kind}" for run in predictor.runs])
        self.family = np.unique(families, return_inverse=True)[1]
        self.weights = 10.0 * np.sqrt(equal_shares(families))
        self.job, self.between = _jobs(predictor.runs, families)

    def _now(self, parameter: Parameter) -> float:
        """The prior's value as of the parameter's table: later tables may have their own."""
        tables = self.clock.prior
        group = next(g for g in self.clock.groups if _meets(tables, parameter, g))
        used = tables.used(group.cluster.accelerator.name, group.stack)
        return tables.last(used[: used.index(parameter.table) + 1], parameter.constant)

    def solve(self, progress: Callable[[str], None]) -> tuple[Floats, Floats, Floats]:
        """Levenberg-Marquardt from the prior; the logarithms of the constants, seconds of the runs, and their slopes.

        Families that come out worse than with the prior count for more in the next round.  Slopes are differences
        at the prior and where half of the rounds are over, or have settled; else they follow from the steps taken.
        """
        log_values, seconds = self.start, self.seconds(self.start)
        damping, unfitted = 1e-2, self._by_family(seconds)
        slopes, again = self.slopes(log_values, seconds), False
        for turn in range(ROUNDS):
            cost = self._cost(log_values, seconds)
            progress(f"round {turn + 1}: cost {cost:.4f}")
            result = self._better(log_values, seconds, slopes, cost, damping)
            settled = result is None
            if result is not None:
                ahead, reached, better, damping = result
                slopes = _secant(slopes, ahead - log_values, np.log(reached / seconds))
                log_values, seconds = ahead, reached
                worse = self._by_family(seconds) > (1.0 + WORSE) * unfitted
                settled = better > (1.0 - ENOUGH) * cost and not worse.any()
                self.weights = self.weights * np.where(worse[self.family], np.sqrt(FAVOUR), 1.0)
            if settled and again:
                break
            if not again and (settled or turn + 1 == ROUNDS // 2):
                slopes, again = self.slopes(log_values, seconds), True
        return log_values, seconds, slopes

    def _by_family(self, seconds: Floats) -> Floats:
        """Mean absolute error of each family."""
        sizes = np.abs(seconds / self.measured - 1.0)
        return np.bincount(self.family, weights=sizes) / np.bincount(self.family)

    def _better(
        self, log_values: Floats, seconds: Floats, slopes: Floats, cost: float, damping: float
    ) -> tuple[Floats, Floats, float, float] | None:
        matrix, vector = self._normal(log_values, seconds, slopes, np.ones(len(seconds), dtype=bool))
        for tried in (damping, 10 * damping, 100 * damping, 1000 * damping):
            step = np.linalg.solve(matrix + tried * np.diag(np.diag(matrix)), vector)
            candidate = np.clip(log_values + np.clip(step, -LONGEST, LONGEST), self.low, self.high)
            reached = self.seconds(candidate)
            lower = self._cost(candidate, reached)
            if lower < cost:
                return candidate, reached, lower, max(tried / 10.0, 1e-4)
        return None

    def held_out(self, log_values: Floats, seconds: Floats, slopes: Floats, *labels: np.ndarray) -> Floats:
        """The runs of each combination of labels predicted by constants that were fitted to runs which share none of
        them."""
        owners: list[Mask] = []
        tasks = []
        for names in sorted(set(zip(*labels, strict=True))):
            same = np.array([label == name for label, name in zip(labels, names, strict=True)])
            unseen, seen = np.all(same, axis=0), ~np.any(same, axis=0)
            matrix, vector = self._normal(log_values, seconds, slopes, seen)
            step = np.clip(np.linalg.solve(matrix, vector), -LONGEST, LONGEST)
            holding = [i for i, group in enumerate(self.clock.groups) if unseen[group.rows].any()]
            owners.append(unseen)
            tasks.append((np.clip(log_values + step, self.low, self.high), holding))
        result = np.zeros(len(seconds))
        for unseen, predicted in zip(owners, self.timed(tasks), strict=True):
            result = np.where(unseen, predicted, result)
        return result

    def _beside_job(self, values: Floats) -> Floats:
        """Values of runs less the mean over the runs of their job."""
        means = np.zeros((int(self.job.max()) + 1, *values.shape[1:]))
        np.add.at(means, self.job, values)
        means /= np.bincount(self.job).reshape(-1, *[1] * (values.ndim - 1))
        beside: Floats = values - means[self.job]
        return beside

    def _cost(self, log_values: Floats, seconds: Floats) -> float:
        """Huber's cost of the errors and of their differences between layouts, and the pull to the prior."""
        errors = np.log(seconds / self.measured)
        total = 0.0
        for each, weights in ((errors, self.weights), (self._beside_job(errors), self.between)):
            size = np.abs(each)
            huber = np.where(size < OUTLIER, size**2, OUTLIER * (2.0 * size - OUTLIER))
            total += float(np.sum(weights**2 * huber))
        return total + float(np.sum(self.pull * (log_values - self.start) ** 2))

    def _normal(self, log_values: Floats, seconds: Floats, slopes: Floats, used: np.ndarray) -> tuple[Floats, Floats]:
        """The matrix and right side of one Gauss-Newton step to the runs that are ``used``: whole jobs, since runs of
        a job share family and kind."""
        errors = np.log(seconds / self.measured)
        matrix, vector = np.diag(self.pull), -self.pull * (log_values - self.start)
        beside = (self._beside_job(errors), self._beside_job(slopes), self.between)
        for each, turned, weights in ((errors, slopes, self.weights), beside):
            importance = weights**2 * np.minimum(1.0, OUTLIER / np.maximum(np.abs(each), 1e-12)) * used
            matrix = matrix + turned.T @ (turned * importance[:, None])
            vector = vector - turned.T @ (importance * each)
        return matrix, vector

    def slopes(self, log_values: Floats, seconds: Floats) -> Floats:
        """Derivatives of the logarithms of times by those of constants, shape (runs, parameters)."""
        signs = np.where(log_values + np.log1p(STEP) <= self.high, 1.0, -1.0)
        steps = np.diag(signs * np.log1p(STEP))
        tables, groups = self.clock.prior, self.clock.groups
        met = [
            [i for i, group in enumerate(groups) if _meets(tables, parameter, group)] for parameter in self.parameters
        ]
        tasks = [(log_values + step, chosen) for step, chosen in zip(steps, met, strict=True)]
        result = np.zeros((len(seconds), len(self.parameters)))
        for column, (chosen, changed) in enumerate(zip(met, self.timed(tasks), strict=True)):
            rows = np.concatenate([groups[number].rows for number in chosen])
            result[rows, column] = signs[column] * np.log(changed[rows] / seconds[rows]) / np.log1p(STEP)
        return result

    def seconds(self, log_values: Floats) -> Floats:
        """Times of all runs."""
        numbers = range(len(self.clock.groups))
        tasks = [(log_values, numbers[first::PIECES]) for first in range(PIECES)]
        product: Floats = np.prod(self.timed(tasks), axis=0)
        return product


def _jobs(runs: Sequence[Prepared], families: np.ndarray) -> tuple[Index, Floats]:
    """The number of each run's job, and its weight between the layouts of that job: every family of jobs in several
    layouts weighs the same, and every job in it."""
    numbers: dict[object, int] = {}
    job = np.array([numbers.setdefault((run.run.family, run.same_job), len(numbers)) for run in runs])
    layouts: list[set[Layout]] = [set() for _ in numbers]
    for number, run in zip(job, runs, strict=True):
        layouts[number].add(run.layout)
    several = np.array([len(each) for each in layouts])[job] > 1
    weights = np.zeros(len(runs))
    if several.any():
        chosen, whose = job[several], families[several]
        within = 1.0 / np.bincount(job)[chosen]
        jobs_of = {family: len(set(chosen[whose == family])) for family in set(whose)}
        weights[several] = within / np.array([jobs_of[family] for family in whose]) / len(jobs_of)
    return job, BETWEEN * np.sqrt(weights)


def _secant(slopes: Floats, step: Floats, change: Floats) -> Floats:
    """Slopes that also explain the ``change`` of each run's time by the last step, otherwise as near as can be, and
    zero where they were (Schubert's form of Broyden's update, doi:10.1090/S0025-5718-1970-0258276-9)."""
    steps = np.where(slopes != 0.0, step, 0.0)
    length = (steps**2).sum(axis=1)
    missing = np.where(length > 0.0, (change - slopes @ step) / np.maximum(length, 1e-300), 0.0)
    updated: Floats = slopes + missing[:, None] * steps
    return updated


@cache
def prior_tables() -> Tables:
    """What was known before, with the constants to fit under ``fitted``."""
    return parse_tables(files("weft.validation").joinpath("data", "prior.toml").read_text(encoding="utf-8"))


def fitted_parameters(prior: Tables) -> Iterator[Parameter]:
    """The constants that tables list under ``fitted``."""
    for name, table in prior.tables.items():
        for constant in table.get("fitted", ()):
            yield Parameter(table=name, constant=constant)
