"""Two or more ways to train, side by side: what differs, why, how sure that is, and where the order turns.

The first side is the one that the others are held against.  Parts are seconds for the tokens of the first side's
iteration, so that sides with other batches compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.estimation.contrast import NORMAL, shipped_contrast
from weft.estimation.result import Estimate
from weft.estimation.single import estimate
from weft.estimation.training import TrainingRun, training_run
from weft.layout.text import format_layout
from weft.model.job import Job
from weft.model.text import job_to_dict
from weft.results import Result
from weft.search.why import Traced, causes
from weft.units import format_count, format_seconds

CONTENTION = "network_s"
"""The part by which the flow-level clock differs from the closed form."""
DOUBLINGS = 5
"""Doublings and halvings of a figure within which the order may turn."""
HALVINGS = 20
"""Bisections of the interval in which the order turns."""
SAME = 1e-9
"""Relative difference below which times are equal."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way to train: an estimated layout of a job on a cluster.

    ``simulated_s`` is the iteration at flow level on ``fabric``; None where the closed form speaks.  ``run`` is
    what training costs.
    """

    label: str
    job: Job
    cluster: Cluster
    estimate: Estimate
    constants: Calibration | None
    stack: str
    usd_per_hour: float | None = None
    fabric: str | None = None
    simulated_s: float | None = None

    @property
    def iteration_s(self) -> float:
        """By the flow-level clock where there is a fabric, else by the closed form."""
        return self.estimate.iteration_s if self.simulated_s is None else self.simulated_s

    @property
    def tokens_per_s(self) -> float:
        return self.job.recipe.tokens / self.iteration_s

    def run(self, tokens: float) -> TrainingRun:
        """What training on so many tokens costs."""
        timed = replace(self.estimate, iteration_s=self.iteration_s)
        return training_run(timed, self.job, self.cluster, tokens=tokens, usd_per_accelerator_hour=self.usd_per_hour)

    @cached_property
    def traced(self) -> Traced:
        return Traced.of(self.job, self.cluster, self.estimate.layout, self.constants, self.stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A part of the time (for as many tokens) or of the memory on both sides, and what changed that it depends on."""

    part: str
    before: float
    after: float
    why: tuple[str, ...]

    @property
    def difference(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where the order of two sides turns when one figure changes: by ``factor`` of what it is now, to ``value``.

    ``factor`` is None where it does not turn ``within``.
    """

    figure: str
    factor: float | None
    value: str
    within: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A side held against the first.

    ``ratio`` is its time for as many tokens over the first side's; ``error`` the share within which four of five
    such ratios were predicted (None: not known), ``chance`` the probability that it is the faster one.
    """

    label: str
    ratio: float
    error: float | None
    chance: float | None
    time: tuple[Change, ...]
    memory: tuple[Change, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """Sides, and what differs between each and the first."""

    SCHEMA = "weft.comparison/1"
    COLUMNS = (
        *("label", "model", "cluster", "accelerators", "stack", "fabric", "layout", "iteration_s", "tokens_per_s"),
        *("mfu", "memory_bytes", "fits", "ratio", "error", "chance", "expected_s", "usd", "energy_mwh"),
    )

    sides: tuple[Side, ...]
    tokens: float
    differences: tuple[Difference, ...]

    @cached_property
    def runs(self) -> tuple[TrainingRun, ...]:
        """The whole run of each side."""
        return tuple(one.run(self.tokens) for one in self.sides)

    @property
    def fastest(self) -> Side:
        """The side of the most tokens per second."""
        return max(self.sides, key=lambda one: one.tokens_per_s)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each side."""
        against: list[Difference | None] = [None, *self.differences]
        return [
            {
                "label": one.label,
                "model": one.job.model.name,
                "cluster": one.cluster.name,
                "accelerators": one.cluster.count,
                "stack": one.stack,
                "fabric": one.fabric,
                "layout": format_layout(one.estimate.layout),
                "iteration_s": one.iteration_s,
                "tokens_per_s": one.tokens_per_s,
                "mfu": one.estimate.mfu * one.estimate.iteration_s / one.iteration_s,
                "memory_bytes": one.estimate.memory_bytes,
                "fits": one.estimate.fits,
                "ratio": 1.0 if other is None else other.ratio,
                "error": None if other is None else other.error,
                "chance": None if other is None else other.chance,
                "expected_s": run.expected_s,
                "usd": run.usd,
                "energy_mwh": run.energy_mwh,
            }
            for one, other, run in zip(self.sides, against, self.runs, strict=True)
        ]

    def _document(self) -> dict[str, Any]:
        from weft.cluster.files import cluster_to_dict  # pydantic loads only for files

        return {
            "tokens": self.tokens,
            "sides": [
                {
                    "label": one.label,
                    "job": job_to_dict(one.job),
                    "cluster": cluster_to_dict(one.cluster),
                    "stack": one.stack,
                    "fabric": one.fabric,
                    "simulated_s": one.simulated_s,
                    "estimate": one.estimate.to_dict(),
                    "run": run.to_dict(),
                }
                for one, run in zip(self.sides, self.runs, strict=True)
            ],
            "differences": [asdict(one) for one in self.differences],
        }

    def _facts(self) -> Sequence[str]:
        return [f"{one.label} {format_seconds(one.iteration_s)}" for one in self.sides]


def compare(sides: Sequence[Side], tokens: float) -> Comparison:
    """Hold every side against the first.

    Raises:
        BadInput: there are fewer than two sides, or ``tokens`` is not positive.
    """
    if len(sides) < 2:
        raise BadInput("there is one side only", where="compare", remedy="name two clusters, layouts or plans")
    first = sides[0]
    found = tuple(_difference(first, other, tokens) for other in sides[1:])
    return Comparison(sides=tuple(sides), tokens=tokens, differences=found)


def _difference(one: Side, other: Side, tokens: float) -> Difference:
    ratio = one.tokens_per_s / other.tokens_per_s
    error = _error(one, other)
    return Difference(
        label=other.label,
        ratio=ratio,
        error=error,
        chance=None if error is None else _chance(ratio, error),
        time=_time(one, other),
        memory=tuple(
            Change(part=a.name, before=a.value, after=b.value, why=causes(a.name, one.traced, other.traced))
            for a, b in zip(one.estimate.memory, other.estimate.memory, strict=True)
        ),
        turns=_turns(one, other, tokens),
    )


def _time(one: Side, other: Side) -> tuple[Change, ...]:
    """The parts of both sides, for the tokens of the first one's iteration."""
    scale = one.job.recipe.tokens / other.job.recipe.tokens
    changes = [
        Change(part=a.name, before=a.value, after=b.value * scale, why=causes(a.name, one.traced, other.traced))
        for a, b in zip(one.estimate.time, other.estimate.time, strict=True)
    ]
    if one.simulated_s is not None or other.simulated_s is not None:
        before, after = (each.iteration_s - each.estimate.iteration_s for each in (one, other))
        why = (
            ()
            if one.fabric == other.fabric
            else (f"{one.fabric or 'closed form'} -> {other.fabric or 'closed form'}",)
        )
        changes.append(Change(part=CONTENTION, before=before, after=after * scale, why=why))
    return tuple(changes)


def _error(one: Side, other: Side) -> float | None:
    """The share within which four of five ratios of such times were predicted.

    Layouts of one job on one cluster share errors but for the steps between them; else the errors of the two sides
    are taken as independent.  How far contention on one network is off against another, was never measured.
    """
    if None in (one.estimate.error, other.estimate.error) or one.fabric != other.fabric:
        return None
    alike = one.cluster == other.cluster and one.stack == other.stack
    known = shipped_contrast()
    if alike and (one.job.model, one.job.recipe) == (other.job.model, other.job.recipe) and known is not None:
        return float(known.covered([one.estimate.layout, other.estimate.layout])[0, 1])
    errors = [bar.error for each in (one, other) if (bar := each.estimate.error) is not None]
    if errors[0] is None or errors[1] is None:
        return None
    return math.hypot(errors[0], errors[1])


def _chance(ratio: float, error: float) -> float:
    """The probability that the other side is faster, by a normal error of the logarithm."""
    deviation = math.log1p(error) / NORMAL
    if deviation == 0.0:
        return 0.5 if abs(ratio - 1) <= SAME else float(ratio < 1)
    return 0.5 * math.erfc(math.log(ratio) / deviation / math.sqrt(2.0))


def _turns(one: Side, other: Side, tokens: float) -> tuple[Turn, ...]:
    """Where the order turns, the layouts held: in batch, NIC bandwidth, and price."""
    found = []
    if one.simulated_s is None and other.simulated_s is None:
        found.append(_batch_turn(one, other))
        if any(len(each.cluster.tiers) > 1 for each in (one, other)):
            found.append(_network_turn(one, other))
    prices = [each.run(tokens) for each in (one, other)]
    if all(run.usd for run in prices):
        paid = prices[1].usd_per_accelerator_hour or 0.0
        equal = (prices[0].usd or 0.0) / prices[1].accelerator_hours
        if abs(equal / paid - 1) <= SAME:
            return tuple(found)
        found.append(
            Turn(
                figure=f"price of {other.label}",
                factor=equal / paid,
                value=f"${equal:.2f} per accelerator-hour (now ${paid:.2f}): as dear as {one.label}",
                within="",
            )
        )
    return tuple(found)


def _batch_turn(one: Side, other: Side) -> Turn:
    """The first batch, by doublings and halvings, at which the other side is first."""
    now = one.job.recipe.global_batch

    def margin(doublings: float) -> float | None:
        factor = 2.0**doublings
        return _margin(one, other, lambda side: _with_batch(side, factor))

    begin = margin(0)
    for step in sorted((k for k in range(-DOUBLINGS, DOUBLINGS + 1) if k), key=abs):
        there = margin(step)
        if begin is not None and there is not None and begin * there < 0:
            batch = f"{now * 2**step if step > 0 else now // 2**-step:,} sequences"
            return Turn(figure="batch", factor=2.0**step, value=batch, within="")
    return Turn(figure="batch", factor=None, value="", within=f"x1/{2**DOUBLINGS} to x{2**DOUBLINGS}")


def _network_turn(one: Side, other: Side) -> Turn:
    """The bandwidth beyond the scale-up domain, as a share of each side's own, at which the order turns."""

    def margin(doublings: float) -> float:
        found = _margin(one, other, lambda side: _with_network(side, 2.0**doublings))
        assert found is not None
        return found

    begin, steps = margin(0), [k / 2 for k in range(-2 * DOUBLINGS, 2 * DOUBLINGS + 1) if k]
    for step in sorted(steps, key=abs):
        if begin * margin(step) < 0:
            near, far = step - math.copysign(0.5, step), step
            for _ in range(HALVINGS):
                middle = (near + far) / 2
                near, far = (middle, far) if begin * margin(middle) > 0 else (near, middle)
            sides = [each for each in (one, other) if len(each.cluster.tiers) > 1]
            speeds = dict.fromkeys(each.cluster.tiers[1].bandwidth_Bps * 2.0**far / 1e9 for each in sides)
            value = f"{' and '.join(f'{speed:.3g}' for speed in speeds)} GB/s per accelerator"
            return Turn(figure="NIC bandwidth", factor=2.0**far, value=value, within="")
    return Turn(figure="NIC bandwidth", factor=None, value="", within=f"x1/{2**DOUBLINGS} to x{2**DOUBLINGS}")


def _margin(one: Side, other: Side, changed: Callable[[Side], tuple[Job, Cluster]]) -> float | None:
    """By how much the other is slower per token, as a logarithm; None where a layout cannot run the changed job."""
    try:
        first, second = changed(one), changed(other)
        layouts = [side.estimate.layout for side in (one, other)]
        if first == second and one.constants is other.constants:
            found = estimate(*first, layouts, one.constants)
        else:
            held = estimate(*first, layouts[:1], one.constants)
            found = held + estimate(*second, layouts[1:], other.constants)
    except BadInput:
        return None
    margin = math.log(found[0].tokens_per_s / found[1].tokens_per_s)
    return margin if abs(margin) > SAME else 0.0


def _with_batch(side: Side, factor: float) -> tuple[Job, Cluster]:
    """The side's job with a larger or smaller batch."""
    batch = side.job.recipe.global_batch * factor
    if batch != int(batch):
        raise BadInput(f"a batch of {format_count(batch)} sequences is not whole", where="batch")
    return replace(side.job, recipe=replace(side.job.recipe, global_batch=int(batch))), side.cluster


def _with_network(side: Side, factor: float) -> tuple[Job, Cluster]:
    """The side's cluster with a faster or slower network beyond its scale-up domains."""
    first, *outer = side.cluster.tiers
    tiers = tuple(replace(tier, bandwidth_Bps=factor * tier.bandwidth_Bps) for tier in outer)
    return side.job, replace(side.cluster, tiers=(first, *tiers))
