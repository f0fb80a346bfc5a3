"""How far estimates of such runs have been from measured ones: cross-validated errors of similar runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from weft.cluster.calibration import shipped_tables
from weft.cluster.spec import Cluster
from weft.layout.table import Floats
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
WITHIN = 0.25
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
        return cls(accelerator=tables[-1] if tables else cluster.accelerator.name, kind=_kind(job.model))


def _kind(model: Model) -> str:
    if model.state_spaces:
        return "state-space"
    return "experts" if any(kind.moe for kind in model.kinds) else "dense"


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
    bar, ranges = _shipped_bar(Traits.of(job, cluster))
    beyond = _beyond(figures_of(job, cluster), ranges)
    if bar.error is None or not beyond:
        return bar
    outside = []
    for name, value, _ in beyond:
        (words, form), (least, most) = FIGURES[name], ranges[name]
        limit = f"most {form(most)}" if value > most else f"least {form(least)}"
        outside.append(f"{words} {form(value)} (at {limit} measured)")
    error = grown(bar.error, sum(doublings for *_, doublings in beyond))
    return replace(bar, error=error, outside=tuple(outside))


def grown(error: float, doublings: float) -> float:
    """An error so many doublings beyond what was measured."""
    return float((1.0 + error) * (1.0 + GROWTH) ** doublings - 1.0)


def _beyond(figures: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]]) -> list[tuple[str, float, float]]:
    """The figures outside their ranges: name, value, and doublings or halvings beyond."""
    values = [(name, figures[name], *ranges[name]) for name in ranges if figures[name] is not None]
    found = [(name, value, math.log2(max(value / most, least / value))) for name, value, least, most in values]
    return [each for each in found if each[2] > WITHIN]


def _ranges(runs: Sequence[Known]) -> dict[str, tuple[float, float]]:
    """The least and the largest value of each figure of some runs."""
    values = {name: [value for one in runs if (value := getattr(one, name)) is not None] for name in FIGURES}
    return {name: (min(some), max(some)) for name, some in values.items() if some}


@cache
def _shipped_bar(traits: Traits) -> tuple[ErrorBar, dict[str, tuple[float, float]]]:
    return _bar(traits, shipped_runs())


def error_bar(traits: Traits, known: Sequence[Known] | None = None) -> ErrorBar:
    """The error of the runs that are most like these traits and at least ``FEWEST``, of two sources or more.

    Without runs on the accelerator, or of the kind of model, its constants are guesses: a run's error is then the
    larger of those by constants fitted to other sources and by constants before any run, and no accelerator with runs
    has a larger one.
    """
    return _bar(traits, shipped_runs() if known is None else known)[0]


def _bar(traits: Traits, runs: Sequence[Known]) -> tuple[ErrorBar, dict[str, tuple[float, float]]]:
    """The error bar, and the ranges of the figures of the runs that it is of."""
    accelerators = {one.traits.accelerator for one in runs}
    measured = traits.accelerator in accelerators
    seen = measured and any(one.traits.kind == traits.kind for one in runs)
    found, ranges = ErrorBar(error=None, runs=0, sources=0, alike=""), {}
    for alike, similar in _circles(traits, runs):
        sources = {one.family for one in similar}
        if similar:
            errors = np.abs([(one.error, one.error if seen else one.unfitted) for one in similar]).max(axis=1)
            bar = _quantile(errors, [one.family for one in similar])
            found = ErrorBar(error=bar, runs=len(similar), sources=len(sources), alike=alike)
            ranges = _ranges(similar)
        if len(similar) >= FEWEST and len(sources) > 1:
            break
    if found.error is not None and not measured:
        others = (error_bar(replace(traits, accelerator=name), runs).error or 0.0 for name in accelerators)
        found = replace(found, error=max(found.error, *others))
    return found, ranges


def best_published(job: Job, cluster: Cluster, known: Sequence[Known] | None = None) -> Known | None:
    """The run of the highest MFU among those alike in accelerator, kind and precision, of a model of up to ``NEAR``
    times fewer or more parameters, on up to ``NEAR**2`` times fewer or more accelerators; None without one."""
    traits, precision, parameters = Traits.of(job, cluster), job.recipe.precision, job.model.parameters
    alike = [
        one
        for one in (shipped_runs() if known is None else known)
        if (one.traits, one.precision) == (traits, precision)
        and _near(one.parameters, parameters, NEAR)
        and _near(one.world, cluster.count, NEAR**2)
    ]
    return max(alike, key=lambda one: (one.mfu, one.run), default=None)


def _near(one: int, other: int, factor: int) -> bool:
    return one <= factor * other and other <= factor * one


def _quantile(errors: Floats, families: Sequence[str]) -> float:
    """The error that covers ``COVERED`` of the runs of ``COVERED`` of new sources, if sources are exchangeable: that
    of rank (n + 1) COVERED, rounded up, among the n sources' own (split conformal prediction: Lei et al. 2018,
    doi:10.1080/01621459.2017.1307116), which is the largest of up to eight; of fewer than four it covers less."""
    named = np.array(families)
    own = sorted(_ranked(np.sort(errors[named == name]), 0) for name in set(families))
    return _ranked(np.array(own), 1)


def _ranked(values: Floats, more: int) -> float:
    """Of sorted values the one below or at which ``COVERED`` of them, and of so many ``more``, lie."""
    return float(values[min(math.ceil((len(values) + more) * COVERED - 1e-9), len(values)) - 1])


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """The least value at or below which the share of the weights, which add up to 1, lies."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(shares, share - 1e-9)), len(order) - 1)])


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
    if not kind:
        yield f"models of any kind, none of them {traits.kind}", list(runs)


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


FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "world": ("accelerators", "{:,.0f}".format),
    "parameters": ("parameters", format_count),
    "sequence": ("sequence", "{:,.0f}".format),
    "head_dim": ("head dimension", "{:,.0f}".format),
    "scale_up_Bps": ("scale-up bandwidth", partial(format_si, unit="B/s")),
    "scale_out_Bps": ("NIC bandwidth", partial(format_si, unit="B/s")),
}
"""What decides whether the like of an estimate was measured, what it is called, and how it is written."""
_NAMES = ("run", "family", "job", "layout", "precision", *FIGURES)
_ERRORS = ("mfu", "error", "without_kind", "unfitted")
