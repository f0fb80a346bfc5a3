"""How far estimates of such runs have been from measured ones: cross-validated errors of similar runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np

from weft.cluster.calibration import shipped_tables
from weft.cluster.spec import Cluster
from weft.layout.table import Floats
from weft.model.job import Job

FEWEST = 8
"""Runs from which an error is stated."""
COVERED = 0.8
"""Share of similar runs whose error is at most the stated one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What makes runs alike.

    Attributes:
        accelerator: its table in the calibration.
        kind: dense, or experts.
    """

    accelerator: str
    kind: str

    @classmethod
    def of(cls, job: Job, cluster: Cluster) -> Traits:
        """The traits of an estimate."""
        tables = shipped_tables().used(cluster.accelerator.name)
        return cls(
            accelerator=tables[-1] if tables else cluster.accelerator.name,
            kind="experts" if any(kind.moe for kind in job.model.kinds) else "dense",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A measured run and how far predictions of it were from the measurement.

    Attributes:
        run: its id in the table of runs.
        family: its source.
        job: a number that runs of one job, in different layouts, share.
        traits: what makes it like others.
        error: predicted / measured - 1 by constants that had not seen its family.
        unfitted: the same by the constants before any run.
    """

    run: str
    family: str
    job: int
    traits: Traits
    error: float
    unfitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """``COVERED`` of ``runs`` similar runs of so many ``sources``, each source weighing the same, were predicted
    within the share ``error``, by constants that had not seen their source.

    ``alike`` says in what they are similar; ``error`` is None where no run is known.
    """

    error: float | None
    runs: int
    sources: int
    alike: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceError:
    """``COVERED`` of ``pairs`` of layouts of one job, of so many ``sources`` that weigh the same, had their times'
    ratio predicted within the share ``error``; None where no job is known in several layouts."""

    error: float | None
    pairs: int
    sources: int


def choice_error(known: Sequence[Known] | None = None) -> ChoiceError:
    """How far predictions of two layouts of one job are off against each other."""
    jobs: dict[tuple[str, int], list[float]] = {}
    for one in shipped_runs() if known is None else known:
        jobs.setdefault((one.family, one.job), []).append(float(np.log1p(one.error)))
    pairs = [(abs(a - b), family) for (family, _), logs in jobs.items() for a, b in combinations(logs, 2)]
    if not pairs:
        return ChoiceError(error=None, pairs=0, sources=0)
    sizes, families = zip(*pairs, strict=True)
    error = float(np.expm1(_quantile(np.array(sizes), families)))
    return ChoiceError(error=error, pairs=len(pairs), sources=len(set(families)))


def error_bar(traits: Traits, known: Sequence[Known] | None = None) -> ErrorBar:
    """The error of the runs that are most like these traits and at least ``FEWEST``, of two sources or more.

    Without runs on the accelerator its constants are guesses: a run's error is then the larger of those by constants
    fitted to other sources and by constants before any run, and no accelerator with runs has a larger one.
    """
    runs = shipped_runs() if known is None else known
    accelerators = {one.traits.accelerator for one in runs}
    seen = traits.accelerator in accelerators
    found = ErrorBar(error=None, runs=0, sources=0, alike="")
    for alike, similar in _circles(traits, runs):
        sources = {one.family for one in similar}
        if similar:
            errors = np.abs([(one.error, one.error if seen else one.unfitted) for one in similar]).max(axis=1)
            bar = _quantile(errors, [one.family for one in similar])
            found = ErrorBar(error=bar, runs=len(similar), sources=len(sources), alike=alike)
        if len(similar) >= FEWEST and len(sources) > 1:
            break
    if found.error is not None and not seen:
        others = (error_bar(replace(traits, accelerator=name), runs).error or 0.0 for name in accelerators)
        found = replace(found, error=max(found.error, *others))
    return found


def _quantile(errors: Floats, families: Sequence[str]) -> float:
    """The least error that covers ``COVERED`` of the runs, every family weighing the same."""
    order = np.argsort(errors, kind="stable")
    shares = np.cumsum(equal_shares(np.array(families))[order])
    return float(errors[order][min(int(np.searchsorted(shares, COVERED - 1e-9)), len(order) - 1)])


def equal_shares(families: np.ndarray) -> Floats:
    """Weights of runs that add up to 1, every family's alike."""
    _, group, counts = np.unique(families, return_inverse=True, return_counts=True)
    shares: Floats = 1.0 / (counts[group] * len(counts))
    return shares


def covered(known: Sequence[Known]) -> dict[str, float]:
    """The share of each family's runs that lie within the bar which the other families alone would give them."""
    inside: dict[str, list[bool]] = {}
    bars: dict[tuple[str, Traits], float] = {}
    for one in known:
        key = one.family, one.traits
        if key not in bars:
            bars[key] = error_bar(one.traits, [other for other in known if other.family != one.family]).error or 0.0
        inside.setdefault(one.family, []).append(abs(one.error) <= bars[key])
    return {family: float(np.mean(each)) for family, each in sorted(inside.items())}


def _circles(traits: Traits, runs: Sequence[Known]) -> Iterator[tuple[str, list[Known]]]:
    """Similar runs, from the most to the least similar."""
    kind = [one for one in runs if one.traits.kind == traits.kind]
    machine = [one for one in kind if one.traits.accelerator == traits.accelerator]
    what = f"{traits.kind} models on"
    yield f"{what} {traits.accelerator}", machine
    yield f"{what} any accelerator" + ("" if machine else f", none of them on {traits.accelerator}"), kind


@cache
def shipped_runs() -> tuple[Known, ...]:
    """The runs with which the shipped constants were set (``weft calibrate --errors``)."""
    text = files("weft.estimation").joinpath("data", "errors.json").read_text(encoding="utf-8")
    return runs_from_json(text)


def runs_to_json(runs: Sequence[Known]) -> str:
    """As columns, one line each."""
    columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in runs] for name in _NAMES}
    columns |= {name: [getattr(one.traits, name) for one in runs] for name in Traits.__slots__}
    columns |= {name: [round(getattr(one, name), 4) for one in runs] for name in _ERRORS}
    lines = [f" {json.dumps(name)}: {json.dumps(values)}" for name, values in columns.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def runs_from_json(text: str) -> tuple[Known, ...]:
    """What ``runs_to_json`` wrote."""
    columns = json.loads(text)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return tuple(
        Known(
            **{name: row[name] for name in (*_NAMES, *_ERRORS)},
            traits=Traits(**{name: row[name] for name in Traits.__slots__}),
        )
        for row in rows
    )


_NAMES, _ERRORS = ("run", "family", "job"), ("error", "unfitted")
