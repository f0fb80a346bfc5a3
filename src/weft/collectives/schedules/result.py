"""What is known of a scheduled collective, as a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from weft.codec import Document, encode
from weft.collectives.schedules.bound import Shares, best_shares
from weft.collectives.schedules.chunks import Request, stages_of
from weft.collectives.schedules.policies import baseline
from weft.collectives.schedules.timing import TimedSchedule, per_dimension
from weft.collectives.stages import STAGE_KINDS
from weft.fabric.dimension import Dimension
from weft.fabric.spec import Floats, Ints
from weft.results import Result

Verdict = Literal["just enough", "over-provisioned", "under-provisioned"]
CLOSE, EXACT = 0.01, 1e-4
STEP, HALVINGS = 1.1, 12
MOST_FACTOR = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Document):
    """A dimension against the one inside it (numbers from 1): what it needs for the baseline's order to keep both
    equally busy, and what it has.  (For large dimensions that is the paper's BW(K) = P_K BW(K + 1).)

    Over-provisioned: the baseline leaves bandwidth idle that other orders can use.  Under-provisioned: the
    baseline waits for it; where chunks come to it last already, no order helps.
    """

    DOCUMENT = "inner outer needed_Bps bandwidth_Bps=Bps verdict"

    inner: int
    outer: int
    needed_Bps: float
    Bps: float

    @property
    def verdict(self) -> Verdict:
        if abs(self.Bps / self.needed_Bps - 1) <= CLOSE:
            return "just enough"
        return "over-provisioned" if self.Bps > self.needed_Bps else "under-provisioned"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provision(Document):
    """Pairs of neighbouring dimensions; the split of the same total bandwidth that is just enough for the
    baseline; and, where no mix of orders can use every dimension all the time, the dimensions that are too
    slow (numbers from 1), with the bandwidths at which one could (None where none is found)."""

    DOCUMENT = "pairs just_enough_Bps too_slow enough_Bps"

    pairs: tuple[Pair, ...]
    just_enough_Bps: Floats
    too_slow: tuple[int, ...]
    enough_Bps: Floats | None


def provision(collective: Request) -> Provision:
    """Judge the bandwidths of a request's dimensions."""
    used = collective.used
    widths = np.array([dimension.bandwidth_Bps for dimension in collective.dimensions])
    stages = stages_of(baseline(collective, chunks=1))
    # The baseline keeps two dimensions equally busy if their bandwidths are in proportion to the bytes that they send.
    sent = per_dimension(stages, stages.sent_bytes, len(widths))
    pairs = tuple(
        Pair(inner=a + 1, outer=b + 1, needed_Bps=float(widths[a] * sent[b] / sent[a]), Bps=float(widths[b]))
        for a, b in pairwise(used)
    )
    slow = _slow(collective)
    factor = _factor(collective, slow) if slow else None
    return Provision(
        pairs=pairs,
        just_enough_Bps=sent / sent.sum() * widths[list(used)].sum(),
        too_slow=tuple(i + 1 for i in slow),
        enough_Bps=None if factor is None else _scaled(widths, slow, factor),
    )


def _slow(collective: Request) -> tuple[int, ...]:
    """Dimensions that are busy all the time in the best mix of orders while others cannot be."""
    still = _without_latency(collective)
    if _fits(still, CLOSE):
        return ()
    bound_s = best_shares(still).bound_s
    # A dimension limits if the bound falls when it alone gets faster.
    faster = {i: best_shares(_faster(still, (i,), 1 + CLOSE)).bound_s for i in collective.used}
    return tuple(i for i, seconds in faster.items() if seconds < bound_s * (1 - CLOSE / 100))


def _factor(collective: Request, slow: tuple[int, ...]) -> float | None:
    """How much faster the slow dimensions must be for some mix of orders to keep all busy."""
    still = _without_latency(collective)
    # Grow by steps until the best mix keeps all dimensions busy, then bisect the last step.
    low = high = 1.0
    while not _fits(_faster(still, slow, high), EXACT):
        low, high = high, high * STEP
        if high > MOST_FACTOR:
            return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(_faster(still, slow, middle), EXACT) else (middle, high)
    return high


def _fits(collective: Request, close: float) -> bool:
    """Whether the best mix of orders keeps every dimension busy, except for a share ``close`` of the time."""
    shares = best_shares(collective)
    if shares.loads_s.shape[1] != len(shares.share):
        return False
    # In the best mix the least busy dimension works as long as the bound says, within `close`.
    loads = (shares.loads_s @ shares.share)[list(collective.used)]
    return bool(loads.min() >= shares.bound_s * (1 - close))


def _faster(collective: Request, chosen: tuple[int, ...], factor: float) -> Request:
    widths = _scaled(np.array([dimension.bandwidth_Bps for dimension in collective.dimensions]), chosen, factor)
    pairs = zip(collective.dimensions, widths.tolist(), strict=True)
    return replace(collective, dimensions=tuple(replace(dimension, bandwidth_Bps=Bps) for dimension, Bps in pairs))


def _scaled(widths: Floats, chosen: tuple[int, ...], factor: float) -> Floats:
    changed = widths.copy()
    changed[list(chosen)] *= factor
    return changed


def _without_latency(collective: Request) -> Request:
    return replace(collective, dimensions=tuple(replace(links, latency_s=0.0) for links in collective.dimensions))


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionRow(Document):
    """A dimension, the algorithms that ran on it, and how busy it was."""

    DOCUMENT = "number dimension.* algorithm sent_bytes busy_s idle_s utilization"

    number: int
    dimension: Dimension
    algorithm: str
    sent_bytes: float
    busy_s: float
    idle_s: float
    utilization: float


@dataclass(frozen=True, slots=True)
class PolicyTime:
    """What a policy takes, in so many chunks."""

    policy: str
    chunks: int
    time_s: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ScheduleResult(Result):
    """One timed schedule of a request, what bounds it, and what else was asked for.

    ``baseline`` is the usual hierarchical order on the same machine, ``others`` are policies by name.
    """

    SCHEMA = "weft.schedule/1"
    DOCUMENT = """
        collective=timed.schedule.request.kind bytes=timed.schedule.request.bytes
        accelerators=timed.schedule.request.accelerators policy=timed.schedule.policy order=timed.rule chunks
        active=timed.active time_s ideal_s bound_s bandwidth_bound_s=shares.bandwidth_s utilization=timed.utilization
        assumptions=every_assumption dimensions orders gather_orders? chunk_bytes=timed.schedule.chunk_bytes provision
        policies?"""
    INDENT = None

    timed: TimedSchedule
    baseline: TimedSchedule
    shares: Shares
    ideal_s: float
    provision: Provision
    assumptions: tuple[str, ...] = ()
    others: Mapping[str, TimedSchedule] | None = None

    @property
    def time_s(self) -> float:
        return self.timed.time_s

    @property
    def bound_s(self) -> float:
        """No schedule of chunks over these dimensions is faster."""
        return self.shares.bound_s

    def algorithms(self) -> list[str]:
        """What stages of each dimension ran, as "in-switch + ring"; "-" where nobody talks."""
        collective, stages = self.timed.schedule.request, self.timed.stages
        result = []
        for i in range(len(collective.dimensions)):
            kinds = np.unique(stages.kind[stages.dimension == i]).tolist()
            names = sorted({collective.stage(STAGE_KINDS[kind], i).algorithm for kind in kinds})
            result.append(" + ".join(names) or "-")
        return result

    @property
    def dimensions(self) -> tuple[DimensionRow, ...]:
        """The dimensions, inner to outer: what each is, and how busy it was."""
        timed = self.timed
        dimensions = timed.schedule.request.dimensions
        sent = per_dimension(timed.stages, timed.stages.sent_bytes, len(dimensions))
        return tuple(
            DimensionRow(
                number=i + 1,
                dimension=dimension,
                algorithm=algorithm,
                sent_bytes=float(sent[i]),
                busy_s=float(timed.busy_s[i]),
                idle_s=float(timed.idle_s[i]),
                utilization=float(timed.dimension_utilization[i]),
            )
            for i, (dimension, algorithm) in enumerate(zip(dimensions, self.algorithms(), strict=True))
        )

    @property
    def chunks(self) -> int:
        return len(self.timed.schedule)

    @property
    def every_assumption(self) -> tuple[str, ...]:
        return (*self.timed.schedule.request.notes, *self.assumptions)

    @property
    def orders(self) -> Ints:
        """The dimensions' order of each chunk, from 1."""
        return self.timed.schedule.orders + 1

    @property
    def gather_orders(self) -> list[list[int]] | None:
        gathers = self.timed.schedule.gathers
        return None if gathers is None else (gathers + 1).tolist()

    @property
    def policies(self) -> tuple[PolicyTime, ...] | None:
        if self.others is None:
            return None
        runs = self.others.items()
        return tuple(PolicyTime(name, len(run.schedule), run.time_s, run.utilization) for name, run in runs)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a dimension, inner to outer."""
        return [encode(row) for row in self.dimensions]
