"""Predictions of prepared runs, and their errors: run by run, by family and over all families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.cluster.calibration import Calibration, calibration, with_constants
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.estimation.iteration import Estimator
from weft.estimation.result import EstimateTable
from weft.layout.table import Floats, Index, LayoutTable
from weft.layout.text import format_layout
from weft.model.job import Job, model_flops
from weft.results import Result
from weft.validation.inputs import Prepared
from weft.validation.runs import Skipped

Constants = Callable[[str, str], Calibration]
"""The constants for an accelerator and a software stack, by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Seconds of an iteration and bytes of the peak, in the order of the runs; bytes are of the kind that the
    run states (allocated, reserved or used)."""

    seconds: Floats
    memory_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of one job, cluster and stack: ``rows`` are their places, ``table`` their layouts, ``stated`` the constants
    that their words state."""

    job: Job
    cluster: Cluster
    stack: str
    stated: tuple[tuple[str, float], ...]
    rows: Index
    table: LayoutTable

    def estimated(self, constants: Calibration) -> EstimateTable:
        """The runs with the constants of accelerator and stack, except those that are stated."""
        return Estimator(self.job, self.cluster, with_stated(constants, self.stated)).evaluate(self.table)


def with_stated(constants: Calibration, stated: Iterable[tuple[str, float]]) -> Calibration:
    """``constants`` except those that the words of a run state."""
    return with_constants(constants, dict(stated), where="the words of a run")


class Predictor:
    """Predicts a fixed set of runs with any constants.

    Args:
        runs: the prepared runs.
    """

    def __init__(self, runs: Iterable[Prepared]) -> None:
        self.runs = tuple(runs)
        places: dict[tuple[Job, Cluster, str, tuple[tuple[str, float], ...]], list[int]] = {}
        for place, run in enumerate(self.runs):
            places.setdefault((run.job, run.cluster, run.stack.name, run.stack.stated), []).append(place)
        self.groups = tuple(
            RunGroup(
                job=job,
                cluster=cluster,
                stack=stack,
                stated=stated,
                rows=np.array(rows, dtype=np.intp),
                table=LayoutTable.of([self.runs[row].layout for row in rows]),
            )
            for (job, cluster, stack, stated), rows in places.items()
        )
        self.counted = np.array([run.counted for run in self.runs])

    def predict(self, constants: Constants = calibration) -> Predictions:
        """Time and memory of every run with the constants of its accelerator and stack."""
        seconds, memory_bytes = np.zeros(len(self.runs)), np.zeros(len(self.runs))
        for group in self.groups:
            chosen = constants(group.cluster.accelerator.name, group.stack)
            result, counted = group.estimated(chosen), self.counted[group.rows]
            seconds[group.rows] = result.iteration_s
            stage_bytes = result.memory_bytes - result.communicators_bytes
            kinds = [result.memory_bytes, stage_bytes - chosen.reserved_bytes]
            allocated = stage_bytes - result.reserve_bytes
            memory_bytes[group.rows] = np.select([counted == "used", counted == "reserved"], kinds, allocated)
        return Predictions(seconds=seconds, memory_bytes=memory_bytes)


APART = 0.05
"""Relative difference of two measured times from which their order counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyChoices:
    """The choices of a family: ``jobs`` were measured in several layouts (``layouts`` in all).

    Of layouts with the same predicted time any may be taken: losses are means over them, and half of their pairs count
    as ordered.

    Attributes:
        regret: mean over jobs of how much longer the layout with the least predicted time took than the best.
        worst: the largest of these.
        random: the mean of them for a layout picked at random.
        pairs: of layouts of one job whose measured times are more than ``APART`` apart.
        ordered: the share of these that the predictions put in the right order; None without pairs.
        level: the median of predicted / measured.
        ratio_error: mean over jobs of the mean error of how many times longer a layout takes than another.
        optimism: mean over jobs of the share by which predictions favour the layout with the least predicted time over
            the job's layouts on average: what being first of many costs a prediction.
    """

    family: str
    jobs: int
    layouts: int
    regret: float
    worst: float
    random: float
    pairs: int
    ordered: float | None
    level: float
    ratio_error: float
    optimism: float


Timed = tuple[Prepared, float]
"""A run and the seconds that are predicted of it."""


def choices(runs: Iterable[Timed]) -> tuple[FamilyChoices, ...]:
    """The choices of each family that measured some job in several layouts."""
    jobs: dict[str, dict[object, list[Timed]]] = {}
    for run, predicted_s in runs:
        jobs.setdefault(run.run.family, {}).setdefault(run.same_job, []).append((run, predicted_s))
    result = []
    for family, groups in sorted(jobs.items()):
        several = [group for group in groups.values() if len({run.layout for run, _ in group}) > 1]
        if several:
            result.append(_choice(family, several))
    return tuple(result)


def _choice(family: str, jobs: Sequence[Sequence[Timed]]) -> FamilyChoices:
    regrets, randoms, ratios, shares, gains, right, pairs = [], [], [], [], [], 0.0, 0
    for job in jobs:
        measured = np.array([run.measured_s for run, _ in job])
        predicted = np.array([seconds for _, seconds in job])
        loss = measured / measured.min() - 1.0
        first = predicted == predicted.min()
        regrets.append(float(loss[first].mean()))
        randoms.append(float(loss.mean()))
        slower = measured[:, None] > (1.0 + APART) * measured
        pairs += int(slower.sum())
        after = (1.0 + np.sign(predicted[:, None] - predicted)) / 2.0
        right += float(after[slower].sum())
        share = predicted / measured
        ratios.append(float(np.abs(share[:, None] / share - 1.0).sum() / (share.size * (share.size - 1))))
        shares.append(share)
        gains.append(float(np.log(share).mean() - np.log(share[first]).mean()))
    return FamilyChoices(
        family=family,
        jobs=len(jobs),
        layouts=sum(map(len, jobs)),
        regret=float(np.mean(regrets)),
        worst=max(regrets),
        random=float(np.mean(randoms)),
        pairs=pairs,
        ordered=right / pairs if pairs else None,
        level=float(np.median(np.concatenate(shares))),
        ratio_error=float(np.mean(ratios)),
        optimism=float(np.mean(gains)),
    )


INDENT = "  "
"""Before the name of a part of a family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """One run's prediction beside its measurement: seconds, TFLOP/s per accelerator (model FLOPs), bytes.

    ``error`` and ``memory_error`` are predicted / measured - 1.
    """

    prepared: Prepared
    predicted_s: float
    measured_tflops: float
    predicted_tflops: float
    predicted_bytes: float

    @property
    def family(self) -> str:
        return self.prepared.run.family

    @property
    def error(self) -> float:
        return self.predicted_s / self.prepared.measured_s - 1.0

    @property
    def memory_error(self) -> float | None:
        measured = self.prepared.measured_bytes
        return None if measured is None else self.predicted_bytes / measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Statistics of errors of time, as fractions of what was measured; None without a prediction.

    ``bias`` is the mean signed error, ``worst`` the id of the run with the largest; ``spearman`` the rank
    correlation of time (of TFLOP/s where a run's time was not stated), None below two runs or without spread;
    ``memory_runs`` state a peak and ``memory_mape`` is the mean absolute error of it.
    """

    family: str
    runs: int
    predicted: int
    mape: float | None
    median_ape: float | None
    bias: float | None
    max_ape: float | None
    worst: str | None
    spearman: float | None
    memory_runs: int
    memory_mape: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall(Document):
    """Errors of all runs, ``headline`` with every family counting alike."""

    DOCUMENT = """
        mape_over_families=headline runs=pooled.runs predicted=pooled.predicted mape=pooled.mape
        median_ape=pooled.median_ape bias=pooled.bias max_ape=pooled.max_ape worst=pooled.worst
        spearman=pooled.spearman memory_runs=pooled.memory_runs memory_mape=pooled.memory_mape"""

    headline: float | None
    pooled: Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why so many runs of a family were skipped, or are in doubt."""

    family: str
    reason: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Validation(Result):
    """Predictions against measured runs.

    ``headline`` is the mean over families of their mean absolute error; ``pooled`` counts every run alike;
    ``choices`` are those of the families that measured some job in several layouts; ``reasons`` say why rows were
    skipped, ``warnings`` which measured times are in doubt.
    """

    SCHEMA = "weft.validate/1"
    COLUMNS = (
        *("id", "family", "model", "accelerator", "gpus", "stack", "layout", "measured_s", "predicted_s"),
        *("error", "measured_tflops", "predicted_tflops", "measured_bytes", "predicted_bytes", "memory_error"),
        *("skipped", "assumptions"),
    )

    DOCUMENT = "overall families choices skipped=reasons warnings runs"

    headline: float | None
    pooled: Errors
    families: tuple[Errors, ...]
    choices: tuple[FamilyChoices, ...]
    rows: tuple[PredictedRun | Skipped, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]

    @property
    def outcomes(self) -> tuple[PredictedRun, ...]:
        return tuple(row for row in self.rows if isinstance(row, PredictedRun))

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a run, under ``COLUMNS``: times in seconds, memory in bytes, errors as fractions."""
        return [self._row(row) for row in self.rows]

    def _row(self, row: PredictedRun | Skipped) -> dict[str, Any]:
        if isinstance(row, Skipped):
            empty: dict[str, Any] = dict.fromkeys(self.COLUMNS)
            return empty | {"id": row.name, "family": row.family, "skipped": row.reason, "assumptions": []}
        prepared = row.prepared
        figures = (
            *(prepared.run.name, prepared.run.family, prepared.run.model, prepared.cluster.accelerator.name),
            *(prepared.cluster.count, prepared.stack.name, format_layout(prepared.layout)),
            *(prepared.measured_s, row.predicted_s, row.error, row.measured_tflops, row.predicted_tflops),
            *(prepared.measured_bytes, row.predicted_bytes, row.memory_error, None, list(prepared.assumptions)),
        )
        return dict(zip(self.COLUMNS, figures, strict=True))

    @property
    def overall(self) -> Overall:
        """The errors of all runs."""
        return Overall(headline=self.headline, pooled=self.pooled)

    @property
    def runs(self) -> list[dict[str, str | float | list[str] | None]]:
        """The rows of the runs."""
        return self.to_dicts()


def validation(rows: Sequence[Prepared | Skipped], predictions: Predictions) -> Validation:
    """The summary of rows and of the predictions of those that were prepared, in the same order."""
    numbers = iter(zip(predictions.seconds, predictions.memory_bytes, strict=True))

    def judge(row: Prepared) -> PredictedRun:
        seconds, peak_bytes = map(float, next(numbers))
        tflop = model_flops(row.job.model, row.job.recipe) / row.layout.world / 1e12
        return PredictedRun(
            prepared=row,
            predicted_s=seconds,
            measured_tflops=tflop / row.measured_s,
            predicted_tflops=tflop / seconds,
            predicted_bytes=peak_bytes,
        )

    judged = tuple(judge(row) if isinstance(row, Prepared) else row for row in rows)
    by_family: dict[str, list[PredictedRun | Skipped]] = {}
    for row in judged:
        by_family.setdefault(row.family, []).append(row)
    families = tuple(_errors(name, by_family[name]) for name in sorted(by_family))
    means = [family.mape for family in families if family.mape is not None]
    return Validation(
        headline=float(np.mean(means)) if means else None,
        pooled=_errors("all runs", judged),
        families=families,
        choices=choices(
            (outcome.prepared, outcome.predicted_s) for outcome in judged if isinstance(outcome, PredictedRun)
        ),
        rows=judged,
        reasons=_counted((row.family, row.reason) for row in judged if isinstance(row, Skipped)),
        warnings=_counted(
            (row.family, row.prepared.warning)
            for row in judged
            if isinstance(row, PredictedRun) and row.prepared.warning
        ),
    )


def spread_errors(rows: Sequence[Prepared | Skipped], seconds: Floats) -> tuple[Errors, ...]:
    """Errors by family of other predicted times of the prepared rows; behind a family that has models with
    experts and without, those of each kind."""
    unknown = np.zeros(len(seconds))
    judged = validation(rows, Predictions(seconds=seconds, memory_bytes=unknown))
    spread: list[Errors] = []
    for family in judged.families:
        kinds: dict[str, list[PredictedRun]] = {"dense": [], "experts": []}
        for row in judged.outcomes:
            if row.family == family.family:
                kinds["experts" if any(kind.moe for kind in row.prepared.job.model.kinds) else "dense"].append(row)
        spread.append(family)
        if all(kinds.values()):
            spread += [_errors(f"{INDENT}{name}", rows) for name, rows in kinds.items()]
    return tuple(spread)


def spearman(first: Floats, second: Floats) -> float | None:
    """Rank correlation with mean ranks of ties; None below two values or where one side is constant."""
    if len(first) < 2:
        return None
    a, b = _ranks(first), _ranks(second)
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks from 0, equal values at the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = last - (counts + 1) / 2.0
    return means[group]


def _errors(family: str, rows: Sequence[PredictedRun | Skipped]) -> Errors:
    result = [row for row in rows if isinstance(row, PredictedRun)]
    if not result:
        nothing = dict.fromkeys(("mape", "median_ape", "bias", "max_ape", "spearman", "memory_mape"))
        return Errors(family=family, runs=len(rows), predicted=0, worst=None, memory_runs=0, **nothing)
    pairs = [(outcome.prepared.measured_s, outcome.predicted_s) for outcome in result]
    if any(outcome.prepared.derived for outcome in result):
        pairs = [(outcome.measured_tflops, outcome.predicted_tflops) for outcome in result]
    signed = np.array([outcome.error for outcome in result])
    sizes = np.abs(signed)
    memory = [abs(outcome.memory_error) for outcome in result if outcome.memory_error is not None]
    return Errors(
        family=family,
        runs=len(rows),
        predicted=len(result),
        mape=float(sizes.mean()),
        median_ape=float(np.median(sizes)),
        bias=float(signed.mean()),
        max_ape=float(sizes.max()),
        worst=result[int(sizes.argmax())].prepared.run.name,
        spearman=spearman(*np.array(pairs).T),
        memory_runs=len(memory),
        memory_mape=float(np.mean(memory)) if memory else None,
    )


def _counted(pairs: Iterable[tuple[str, str]]) -> tuple[Reason, ...]:
    """How many rows of each family have which reason."""
    counts = Counter(pairs)
    return tuple(Reason(family=family, reason=why, runs=n) for (family, why), n in sorted(counts.items()))
