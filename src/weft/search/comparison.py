"""Ways to train, side by side: what differs, why, how sure that is, and the price at which costs are equal.

The first side is the one that the others are held against.  Parts are seconds for the tokens of the first side's
iteration, so that sides with other batches compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.errors import BadInput
from weft.estimation.iteration import Estimator
from weft.estimation.result import Estimate, TrainingRun
from weft.estimation.training import training_run
from weft.estimation.trust import shipped_contrast
from weft.layout.mesh import spread
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.layout.text import format_layout
from weft.model.job import Job
from weft.results import Result
from weft.units import counted, format_si

if TYPE_CHECKING:
    from weft.search.ranking import Plan

SMALL = 0.01
"""Relative changes of FLOPs and of their rate that are not worth a word."""
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "compute": ("tp", "y", "cp", "pp", "mbs", "ep"),
    "recompute_s": ("recompute", "layers recomputed"),
    "tensor_s": ("tp", "y", "mbs", "sp", "overlap of tp", "order"),
    "context_s": ("cp", "tp", "cp by", "order"),
    "expert_s": ("ep", "etp", "tp", "mbs", "order"),
    "weights_s": ("fsdp", "cp", "tp", "pp", "micro-batches", "gathering overlapped", "order"),
    "stage_send_s": ("pp", "virtual stages", "schedule", "micro-batches", "tp"),
    "bubble_s": ("pp", "virtual stages", "schedule", "micro-batches"),
    "data_s": ("dp", "fsdp", "tp", "pp", "ep", "ZeRO", "reducing overlapped", "order"),
    "optimizer_s": ("tp", "pp", "fsdp", "dp", "ep", "ZeRO", "optimizer offloaded"),
    "offload_s": ("optimizer offloaded", "activations offloaded"),
    "host_s": ("micro-batches",),
    "weights_bytes": ("tp", "y", "pp", "fsdp", "ep", "etp"),
    "gradients_bytes": ("tp", "y", "pp", "fsdp", "ep", "etp", "ZeRO"),
    "optimizer_bytes": ("tp", "y", "pp", "dp", "fsdp", "ep", "ZeRO", "optimizer offloaded"),
    "activations_bytes": (
        *("tp", "sp", "cp", "pp", "mbs", "virtual stages", "schedule"),
        *("recompute", "layers recomputed", "activations offloaded"),
    ),
    "buffers_bytes": ("tp", "cp", "fsdp", "pp", "ep", "mbs"),
    "communicators_bytes": ("tp", "sp", "y", "cp", "fsdp", "dp", "pp", "ep", "etp", "ZeRO", "order"),
    "reserve_bytes": (),
}
"""What each part depends on, by the words of ``settings``."""
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tensor_s": ("x", "y"),
    "context_s": ("context",),
    "expert_s": ("expert",),
    "weights_s": ("shard",),
    "stage_send_s": ("pipeline",),
    "data_s": ("replica",),
}
"""The axes over which each kind of communication goes."""
_COMPUTE = ("forward_s", "backward_s", "recompute_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLayout:
    """An estimated layout with the figures that its parts follow from."""

    job: Job
    cluster: Cluster
    layout: Layout
    stack: str
    flops: float
    """That an accelerator executes for a token of the batch, recomputation included."""
    rate_flops: float
    """FLOP/s of an accelerator while it computes."""

    @classmethod
    def of(
        cls, job: Job, cluster: Cluster, layout: Layout, constants: Calibration | None, stack: str
    ) -> ExplainedLayout:
        """The figures of one layout."""
        table = Estimator(job, cluster, constants).evaluate(LayoutTable.of([layout]))
        each = float(table.executed_flops[0]) / layout.world
        rate_flops = each / fsum(float(getattr(table, name)[0]) for name in _COMPUTE)
        flops = each / job.recipe.tokens
        return cls(job=job, cluster=cluster, layout=layout, stack=stack, flops=flops, rate_flops=rate_flops)

    @property
    def settings(self) -> dict[str, object]:
        """What a part may depend on, in the field's words."""
        layout = self.layout
        return {
            "tp": layout.x,
            "y": layout.y,
            "cp": layout.context,
            "pp": layout.pipeline,
            "dp": layout.dp,
            "fsdp": layout.z,
            "ep": layout.expert,
            "etp": layout.expert_tensor,
            "mbs": layout.micro_batch,
            "sp": "on" if layout.sequence_parallel else "off",
            "virtual stages": layout.virtual_stages,
            "schedule": str(layout.schedule),
            "micro-batches": self.job.recipe.global_batch // (layout.micro_batch * layout.dp),
            "ZeRO": layout.zero,
            "recompute": str(layout.recompute),
            "layers recomputed": layout.recompute_layers,
            "cp by": str(layout.context_method),
            "overlap of tp": str(layout.overlap_tensor),
            "reducing overlapped": "yes" if layout.overlap_reduce else "no",
            "gathering overlapped": "yes" if layout.overlap_gather else "no",
            "optimizer offloaded": "yes" if layout.offload_optimizer else "no",
            "activations offloaded": "yes" if layout.offload_activations else "no",
            "order": "/".join(layout.order),
        }

    def reach(self, axes: tuple[str, ...]) -> tuple[str, float] | None:
        """The tier that the groups of some axes reach, and its bytes/s per accelerator; None for groups of one."""
        spans = np.cumprod([tier.size for tier in self.cluster.tiers]).tolist()
        result = spread(LayoutTable.of([self.layout]), axes, spans)
        size = float(result.size[0])
        if size <= 1:
            return None
        reached = zip(self.cluster.tiers, result.members, strict=True)
        tier = next((tier for tier, members in reached if float(members[0]) >= size), self.cluster.tiers[-1])
        return tier.name, tier.effective_Bps


def causes(part: str, base: ExplainedLayout, rival: ExplainedLayout) -> tuple[str, ...]:
    """What differs between two layouts that a part of the time or memory depends on, weightiest first."""
    result = []
    if part in _COMPUTE:
        result += _computing(base, rival)
    if part in _GROUPS:
        a, b = (each.reach(_GROUPS[part]) for each in (base, rival))
        ends = ["no group" if each is None else f"{each[0]} {each[1] / 1e9:g} GB/s" for each in (a, b)]
        result += [" -> ".join(ends)] if a != b else []
    if part == "optimizer_s" or part in _COMPUTE:
        slow, fast = (each.cluster.accelerator.memory_Bps for each in (base, rival))
        result += [] if slow == fast else [f"HBM {format_si(slow, 'B/s')} -> {format_si(fast, 'B/s')}"]
    before, after = base.settings, rival.settings
    names = _FIELDS["recompute_s"] if part == "recompute_s" else ()
    names += _FIELDS["compute" if part in _COMPUTE else part]
    result += [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    result += _recipe(base, rival)
    if base.stack != rival.stack:
        result.append(f"framework {base.stack} -> {rival.stack}")
    return tuple(result)


def _computing(base: ExplainedLayout, rival: ExplainedLayout) -> list[str]:
    """The work of an accelerator, and how fast it does it."""
    result = []
    work, rate = rival.flops / base.flops, rival.rate_flops / base.rate_flops
    if abs(work - 1) > SMALL:
        count = f" ({base.layout.world:,} -> {counted(rival.layout.world, 'accelerator')})"
        result.append(f"{work:.2f}x the FLOPs per accelerator" + count * (base.layout.world != rival.layout.world))
    if abs(rate - 1) > SMALL:
        figures = f"{base.rate_flops / 1e12:,.0f} -> {rival.rate_flops / 1e12:,.0f} TFLOP/s while it computes"
        peaks = [each.cluster.accelerator.peak_flops(each.job.recipe.precision) / 1e12 for each in (base, rival)]
        result.append(figures + (f" (peak {peaks[0]:,.0f} -> {peaks[1]:,.0f})" if peaks[0] != peaks[1] else ""))
    return result


def _recipe(base: ExplainedLayout, rival: ExplainedLayout) -> list[str]:
    """How the jobs differ."""
    if base.job is rival.job:
        return []
    names = {"model": "model.name", "sequence": "recipe.sequence", "batch": "recipe.global_batch"}
    names |= {"precision": "recipe.precision", "attention": "recipe.attention"}
    pairs = [(name, *map(attrgetter(field), (base.job, rival.job))) for name, field in names.items()]
    return [f"{name} {before} -> {after}" for name, before, after in pairs if before != after]


CONTENTION = "network_s"
"""The part by which the flow-level clock differs from the closed form."""
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

    @classmethod
    def of_plan(cls, plan: Plan, label: str, estimate: Estimate, **more: Any) -> Side:
        """A layout of a plan."""
        more |= {"job": plan.job, "cluster": plan.cluster, "constants": plan.constants, "stack": plan.stack}
        return cls(label=label, estimate=estimate, **more)

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
    def traced(self) -> ExplainedLayout:
        return ExplainedLayout.of(self.job, self.cluster, self.estimate.layout, self.constants, self.stack)


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
class Difference:
    """A side held against the first.

    ``ratio`` is its time for as many tokens over the first side's; ``error`` the share within which four of five
    such ratios were predicted, ``tied`` whether the difference is inside it (both None: not known).
    ``break_even_usd_per_hour`` is the side's price of an accelerator-hour at which both cost the same; None where a
    price is unknown, or both are the same machine at the same price, or both cost the same already.
    """

    label: str
    ratio: float
    error: float | None
    tied: bool | None
    time: tuple[Change, ...]
    memory: tuple[Change, ...]
    break_even_usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSide(Document):
    """A side and its whole run."""

    DOCUMENT = """
        label=side.label job=side.job cluster=side.cluster stack=side.stack fabric=side.fabric
        simulated_s=side.simulated_s estimate=side.estimate run"""

    side: Side
    run: TrainingRun


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """Sides, and what differs between each and the first."""

    SCHEMA = "weft.comparison/1"
    COLUMNS = (
        *("label", "model", "cluster", "accelerators", "stack", "fabric", "layout", "iteration_s", "tokens_per_s"),
        *("mfu", "memory_bytes", "fits", "ratio", "error", "tied", "expected_s", "usd", "energy_mwh"),
    )

    DOCUMENT = "tokens sides=priced differences"

    sides: tuple[Side, ...]
    tokens: float
    differences: tuple[Difference, ...]

    @cached_property
    def runs(self) -> tuple[TrainingRun, ...]:
        """The whole run of each side."""
        return tuple(side.run(self.tokens) for side in self.sides)

    @property
    def fastest(self) -> Side:
        """The side of the most tokens per second."""
        return max(self.sides, key=lambda side: side.tokens_per_s)

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
                "tied": None if other is None else other.tied,
                "expected_s": run.expected_s,
                "usd": run.usd,
                "energy_mwh": run.energy_mwh,
            }
            for one, other, run in zip(self.sides, against, self.runs, strict=True)
        ]

    @property
    def priced(self) -> tuple[PricedSide, ...]:
        """The sides with their runs."""
        return tuple(PricedSide(side=side, run=run) for side, run in zip(self.sides, self.runs, strict=True))


def compare(sides: Sequence[Side], tokens: float) -> Comparison:
    """Hold every side against the first.

    Raises:
        BadInput: there are fewer than two sides, or ``tokens`` is not positive.
    """
    if len(sides) < 2:
        raise BadInput("there is one side only", where="compare", remedy="name two clusters, layouts or plans")
    first = sides[0]
    result = tuple(_difference(first, other, tokens) for other in sides[1:])
    return Comparison(sides=tuple(sides), tokens=tokens, differences=result)


def _difference(one: Side, other: Side, tokens: float) -> Difference:
    ratio = one.tokens_per_s / other.tokens_per_s
    error = _error(one, other)
    return Difference(
        label=other.label,
        ratio=ratio,
        error=error,
        tied=None if error is None else max(ratio, 1.0 / ratio) <= 1.0 + error + SAME,
        time=_time(one, other),
        memory=tuple(
            Change(part=a.name, before=a.value, after=b.value, why=causes(a.name, one.traced, other.traced))
            for a, b in zip(one.estimate.memory, other.estimate.memory, strict=True)
        ),
        break_even_usd_per_hour=_break_even_usd(one, other, tokens),
    )


def _time(base: Side, rival: Side) -> tuple[Change, ...]:
    """The parts of both sides, for the tokens of the first one's iteration."""
    scale = base.job.recipe.tokens / rival.job.recipe.tokens
    changes = [
        Change(part=a.name, before=a.value, after=b.value * scale, why=causes(a.name, base.traced, rival.traced))
        for a, b in zip(base.estimate.time, rival.estimate.time, strict=True)
    ]
    if base.simulated_s is not None or rival.simulated_s is not None:
        before, after = (each.iteration_s - each.estimate.iteration_s for each in (base, rival))
        why = [f"{base.fabric or 'closed form'} -> {rival.fabric or 'closed form'}"] * (base.fabric != rival.fabric)
        changes.append(Change(part=CONTENTION, before=before, after=after * scale, why=tuple(why)))
    return tuple(changes)


def _error(one: Side, other: Side) -> float | None:
    """The share within which four of five ratios of such times were predicted.

    Layouts of one job on one cluster share errors except for the steps between them; otherwise the errors of the two
    sides are taken as independent.  How far contention on one network is off against another, was never measured.
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


def _break_even_usd(base: Side, rival: Side, tokens: float) -> float | None:
    if (base.cluster, base.fabric, base.usd_per_hour) == (rival.cluster, rival.fabric, rival.usd_per_hour):
        return None
    first, second = base.run(tokens), rival.run(tokens)
    if not first.usd or not second.usd or abs(first.usd / second.usd - 1) <= SAME:
        return None
    return first.usd / second.accelerator_hours
