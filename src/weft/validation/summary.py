"""Errors of predictions, run by run, by family and over all families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from weft.layout.table import Floats
from weft.layout.text import format_layout
from weft.model.flops import model_flops
from weft.results import Result
from weft.units import counted
from weft.validation.causes import Cause, causes
from weft.validation.choice import Choice, choices
from weft.validation.inputs import Prepared, Skipped
from weft.validation.predict import Predictions

INDENT = "  "
"""Before the name of a part of a family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run's prediction beside its measurement: seconds, TFLOP/s per accelerator (model FLOPs), bytes.

    ``error`` and ``memory_error`` are predicted / measured - 1.
    """

    prepared: Prepared
    predicted_s: float
    measured_tflops: float
    predicted_tflops: float
    predicted_bytes: float

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
class Reason:
    """Why so many runs of a family were skipped, or are in doubt."""

    family: str
    reason: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Validation(Result):
    """Predictions against measured runs.

    ``headline`` is the mean over families of their mean absolute error; ``pooled`` counts every run alike;
    ``choices`` are those of the families that measured some job in several layouts; ``causes`` are errors by what
    runs have in common; ``reasons`` say why rows were skipped, ``warnings`` which measured times are in doubt.
    """

    SCHEMA = "weft.validate/1"
    COLUMNS = (
        *("id", "family", "model", "accelerator", "gpus", "stack", "layout", "measured_s", "predicted_s"),
        *("error", "measured_tflops", "predicted_tflops", "measured_bytes", "predicted_bytes", "memory_error"),
        *("skipped", "assumptions"),
    )

    headline: float | None
    pooled: Errors
    families: tuple[Errors, ...]
    choices: tuple[Choice, ...]
    causes: tuple[Cause, ...]
    rows: tuple[Outcome | Skipped, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(row for row in self.rows if isinstance(row, Outcome))

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a run, under ``COLUMNS``: times in seconds, memory in bytes, errors as fractions."""
        return [self._row(row) for row in self.rows]

    def _row(self, row: Outcome | Skipped) -> dict[str, Any]:
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

    def _document(self) -> dict[str, Any]:
        overall = {"mape_over_families": self.headline} | asdict(self.pooled)
        del overall["family"]
        return {
            "overall": overall,
            "families": [asdict(one) for one in self.families],
            "choices": [asdict(one) for one in self.choices],
            "causes": [asdict(one) for one in self.causes],
            "skipped": [asdict(one) for one in self.reasons],
            "warnings": [asdict(one) for one in self.warnings],
            "runs": self.to_dicts(),
        }

    def _facts(self) -> Sequence[str]:
        mean = "no run predicted" if self.headline is None else f"mean error over families {self.headline:.1%}"
        return (f"{self.pooled.predicted} of {counted(self.pooled.runs, 'run')} predicted", mean)

    def _shown(self) -> list[dict[str, Any]]:
        return [{name: row[name] for name in _SHOWN} for row in self.to_dicts()]


_SHOWN = ("id", "family", "measured_s", "predicted_s", "error", "skipped")


def validation(rows: Sequence[Prepared | Skipped], predictions: Predictions) -> Validation:
    """The summary of rows and of the predictions of those that were prepared, in the same order."""
    numbers = iter(zip(predictions.seconds, predictions.memory_bytes, strict=True))
    judged = tuple(_outcome(row, *next(numbers)) if isinstance(row, Prepared) else row for row in rows)
    by_family: dict[str, list[Outcome | Skipped]] = {}
    for row in judged:
        by_family.setdefault(_family(row), []).append(row)
    families = tuple(_errors(name, by_family[name]) for name in sorted(by_family))
    means = [one.mape for one in families if one.mape is not None]
    return Validation(
        headline=float(np.mean(means)) if means else None,
        pooled=_errors("all runs", judged),
        families=families,
        choices=choices((one.prepared, one.predicted_s) for one in judged if isinstance(one, Outcome)),
        causes=causes((one.prepared, one.error) for one in judged if isinstance(one, Outcome)),
        rows=judged,
        reasons=_counted((row.family, row.reason) for row in judged if isinstance(row, Skipped)),
        warnings=_counted(
            (row.prepared.run.family, row.prepared.warning)
            for row in judged
            if isinstance(row, Outcome) and row.prepared.warning
        ),
    )


def spread_errors(rows: Sequence[Prepared | Skipped], seconds: Floats) -> tuple[Errors, ...]:
    """Errors by family of other predicted times of the prepared rows; behind a family that has models with
    experts and without, those of each kind."""
    unknown = np.zeros(len(seconds))
    found = validation(rows, Predictions(seconds=seconds, memory_bytes=unknown))
    return tuple(one for family in found.families for one in (family, *_by_kind(family.family, found)))


def _by_kind(family: str, found: Validation) -> Iterator[Errors]:
    own = [one for one in found.outcomes if _family(one) == family]
    routed = [any(kind.moe for kind in one.prepared.job.model.kinds) for one in own]
    if len(set(routed)) < 2:
        return
    for name, wanted in (("dense", False), ("experts", True)):
        chosen = [one for one, experts in zip(own, routed, strict=True) if experts == wanted]
        yield _errors(f"{INDENT}{name}", chosen)


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


def _outcome(prepared: Prepared, seconds: float, held: float) -> Outcome:
    flops = model_flops(prepared.job.model, prepared.job.recipe) / prepared.layout.world / 1e12
    return Outcome(
        prepared=prepared,
        predicted_s=float(seconds),
        measured_tflops=flops / prepared.measured_s,
        predicted_tflops=flops / float(seconds),
        predicted_bytes=float(held),
    )


def _family(row: Outcome | Skipped) -> str:
    return row.family if isinstance(row, Skipped) else row.prepared.run.family


def _errors(family: str, rows: Sequence[Outcome | Skipped]) -> Errors:
    found = [row for row in rows if isinstance(row, Outcome)]
    if not found:
        nothing = dict.fromkeys(("mape", "median_ape", "bias", "max_ape", "spearman", "memory_mape"))
        return Errors(family=family, runs=len(rows), predicted=0, worst=None, memory_runs=0, **nothing)
    signed = np.array([one.error for one in found])
    sizes = np.abs(signed)
    memory = [abs(one.memory_error) for one in found if one.memory_error is not None]
    return Errors(
        family=family,
        runs=len(rows),
        predicted=len(found),
        mape=float(sizes.mean()),
        median_ape=float(np.median(sizes)),
        bias=float(signed.mean()),
        max_ape=float(sizes.max()),
        worst=found[int(sizes.argmax())].prepared.run.name,
        spearman=_order(found),
        memory_runs=len(memory),
        memory_mape=float(np.mean(memory)) if memory else None,
    )


def _order(found: Sequence[Outcome]) -> float | None:
    if any(one.prepared.derived for one in found):
        pairs = [(one.measured_tflops, one.predicted_tflops) for one in found]
    else:
        pairs = [(one.prepared.measured_s, one.predicted_s) for one in found]
    measured, predicted = np.array(pairs).T
    return spearman(measured, predicted)


def _counted(told: Iterable[tuple[str, str]]) -> tuple[Reason, ...]:
    """How many rows of each family have which reason."""
    counts = Counter(told)
    return tuple(Reason(family=family, reason=why, runs=n) for (family, why), n in sorted(counts.items()))
