"""Every policy by name, under one machine model, and all of them side by side.

Themis (arXiv 2110.04478, algorithm 1): each chunk takes the dimensions in the order of their loads so far.
All-to-all, broadcast and reduce load every dimension alike in any order; Themis leaves them to the baseline.

The baseline is the usual schedule, multi-rail hierarchical collectives, which is BlueConnect's decomposition
(MLSys 2019): every chunk visits the dimensions in the same order, in a reduce-scatter from the innermost dimension
out, in an all-gather back.

Weft's own schedule has orders in the shares that the bound finds, cut so finely that the pipeline fills.

The LP of ``bound.py`` says which share of the bytes takes which order.  Each order's share is cut into
equal chunks, the orders interleaved as evenly as they go; the chunks then queue at the dimensions by a few
rules, in a few chunk counts, and the fastest of these simulations is kept, together with the order
within the dimensions that it found.  Themis' schedules compete as well, so that none is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from weft.collectives.schedules.bound import Shares, best_shares, shares_of
from weft.collectives.schedules.chunks import (
    Request,
    Schedule,
    Stages,
    baseline_order,
    equal_chunks,
    mirrored,
    stages_of,
)
from weft.collectives.schedules.queues import Chart, QueueRule, order_of, play
from weft.collectives.schedules.timing import Active, TimedSchedule, resolve_active, time_schedule
from weft.collectives.stages import BALANCED_KINDS, StageKind
from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Floats, Ints

POLICIES = ("baseline", "themis", "weft")
ALIASES = {"blueconnect": "baseline", "multi-rail": "baseline"}
ORDERS: tuple[QueueRule, ...] = ("fifo", "scf", "paper-scf", "astra-fifo", "astra-scf")
_DEFAULT_ORDER: dict[str, QueueRule] = {"baseline": "fifo", "themis": "scf"}


DEFAULT_CHUNKS = 64


def default_chunks(collective: Request) -> int:
    """64 chunks, as in the paper, or fewer where they would be smaller than a byte."""
    return max(1, min(DEFAULT_CHUNKS, int(collective.bytes)))


def machine(collective: Request, chunks: int | None, active: Active) -> int | None:
    """What ``auto`` means for a request, whatever the policy: judged by Themis' schedule."""
    if active != "auto":
        return active
    count = default_chunks(collective) if chunks is None else chunks
    return resolve_active(active, stages_of(themis(collective, chunks=count)), len(collective.dimensions))


def schedule(
    collective: Request,
    policy: str = "weft",
    *,
    order: QueueRule | None = None,
    chunks: int | None = None,
    active: Active = "auto",
) -> TimedSchedule:
    """Schedule a collective and time it.

    Args:
        policy: one of ``POLICIES``, or a name in ``ALIASES``.
        order: within the dimensions, for baseline (default fifo) and themis (default scf); "paper-scf" is what the
            paper's figures show; "astra-fifo" and "astra-scf" are ASTRA-sim's variants of policy and order, in whole
            nanoseconds.  These three take ASTRA-sim's variant of the policy.
        chunks: 64 by default; ``weft`` chooses.
        active: chunks that a dimension works on at a time; None lets latencies overlap without limit.

    Raises:
        UnknownName: there is no such policy or order.
    """
    name = ALIASES.get(policy, policy)
    if name not in POLICIES:
        raise UnknownName("policy", policy, (*POLICIES, *ALIASES))
    if name == "weft":
        if order is not None:
            problem = "the policy weft finds the order within the dimensions itself"
            raise BadInput(problem, where="order", remedy="drop it, or choose baseline or themis")
        # Every policy runs on the same machine model, which Themis' schedule decides.
        limit = machine(collective, chunks, active)
        result = balanced(collective, chunks=chunks, active=limit)
        return time_schedule(result, active=limit)
    rule = order or _DEFAULT_ORDER[name]
    astra, count = rule.startswith("astra"), default_chunks(collective) if chunks is None else chunks
    limit = machine(collective, count, active)
    if name == "baseline":
        return time_schedule(baseline(collective, chunks=count, fused=astra), rule=rule, active=limit)
    chosen = themis(collective, chunks=count, variant="astra-sim" if astra or rule == "paper-scf" else "published")
    return time_schedule(chosen, rule=rule, active=limit)


def compare(collective: Request, *, chunks: int | None = None, active: Active = "auto") -> dict[str, TimedSchedule]:
    """Every policy on one machine, by name: the baseline first, Weft's own last."""
    limit = machine(collective, chunks, active)

    def timed(policy: str, order: QueueRule | None) -> TimedSchedule:
        return schedule(collective, policy, order=order, chunks=chunks, active=limit)

    result = {"baseline": timed("baseline", "fifo")}
    if collective.kind in BALANCED_KINDS:
        result |= {f"themis {order}": timed("themis", order) for order in ORDERS}
    return result | {"weft": timed("weft", None)}


def beside(timed: TimedSchedule, *, chunks: int | None = None) -> dict[str, TimedSchedule]:
    """A schedule among the policies that it is held against, by name, on its machine; the baseline first."""
    collective, policy = timed.schedule.request, timed.schedule.policy
    names = POLICIES if collective.kind in BALANCED_KINDS else ("baseline", "weft")
    result = {
        name: timed if name == policy else schedule(collective, name, chunks=chunks, active=timed.active)
        for name in names
    }
    return result if policy in result else result | {policy: timed}


# Themis and the baseline --------------------------------------------------------------------------

Variant = Literal["published", "astra-sim"]
THRESHOLD = 1 / 16
"""Share of a chunk: loads closer than the time of so small an operation count as balanced."""


def themis(collective: Request, *, chunks: int = 64, variant: Variant = "published") -> Schedule:
    """Themis' schedule of a request.

    Args:
        chunks: equal parts; 64 in the paper.
        variant: ``published`` starts the loads at the latency A of each dimension; ``astra-sim`` leaves
            latency out, and of equal loads keeps the order of the chunk before.
    """
    parts = equal_chunks(collective, chunks)
    if collective.kind not in BALANCED_KINDS:
        return baseline(collective, chunks=chunks)
    tracker = _Loads(collective, counts_latency=variant == "published")
    orders = np.array([tracker.next(size) for size in parts], dtype=np.int64).reshape(chunks, -1)
    return Schedule(
        request=collective,
        policy="themis" if variant == "published" else "themis (astra-sim)",
        chunk_bytes=parts,
        orders=orders,
        gathers=mirrored(orders) if collective.kind == "all-reduce" else None,
    )


class _Loads:
    """The dimension load tracker."""

    def __init__(self, collective: Request, *, counts_latency: bool) -> None:
        self.kind: StageKind = "all-gather" if collective.kind == "all-gather" else "reduce-scatter"
        self.baseline = baseline_order(collective).tolist()
        self.sizes = [dimension.size for dimension in collective.dimensions]
        self.rates_s = collective.rates_s(self.kind).tolist()
        latencies = collective.latencies_s(self.kind).tolist()
        self.latencies = latencies if counts_latency else [0.0] * len(latencies)
        # Algorithm 1 begins: loads begin at the latency of each dimension, which it pays whatever it sends.
        self.loads = dict(zip(collective.used, (self.latencies[i] for i in collective.used), strict=True))
        self.ranking = list(collective.used)
        self.share_held = 1.0 if self.kind == "reduce-scatter" else 1.0 / collective.accelerators

    def next(self, chunk_bytes: float) -> list[int]:
        """The order of the next chunk, whose load is added."""
        # Sort the dimensions by load so far.  The sort is stable, so that equal loads keep the order of the chunk
        # before.
        self.ranking.sort(key=self.loads.__getitem__)
        if not self.ranking:
            return []
        least, most = self.ranking[0], self.ranking[-1]
        # Loads that differ by less than a small operation takes are balanced: then the baseline's order serves best.
        small_s = self.latencies[least] + chunk_bytes * THRESHOLD * self.rates_s[least]
        balanced = self.loads[most] - self.loads[least] < small_s
        gather = self.kind == "all-gather"
        # A reduce-scatter sends most in its first dimension, so that this is the least loaded; an all-gather sends
        # most in its last, and takes the ranking backwards.
        order = self.baseline if balanced else self.ranking[::-1] if gather else list(self.ranking)
        buffer = chunk_bytes * self.share_held
        # Add what the chunk sends in each dimension; it shrinks or grows on the way.
        for dimension in order:
            grown = buffer * self.sizes[dimension] if gather else buffer
            self.loads[dimension] += grown * self.rates_s[dimension]
            buffer = grown if gather else buffer / self.sizes[dimension]
        return list(order)


def baseline(collective: Request, *, chunks: int = 64, fused: bool = False) -> Schedule:
    """The usual schedule of a request.

    Args:
        chunks: equal parts that follow each other.
        fused: the outermost dimension all-reduces in one operation, as in ASTRA-sim.
    """
    parts = equal_chunks(collective, chunks)
    orders = np.tile(baseline_order(collective), (chunks, 1))
    return Schedule(
        request=collective,
        policy="baseline",
        chunk_bytes=parts,
        orders=orders,
        gathers=mirrored(orders) if collective.kind == "all-reduce" else None,
        fused=fused,
    )


# Weft's own ---------------------------------------------------------------------------------------

CHUNK_COUNTS = (1, 2, 4, 8, 16, 64, 256, 1024)
SMALLEST_SHARE = 1e-6
SMALLEST_PIECE_BYTES = 4.0
"""What an accelerator holds of a chunk at least when all dimensions have scattered it."""
FEW = 16
"""Fewer chunks than this are worth a look only where each one costs latency that others cannot hide."""
ROTATIONS_COST = 1e-3
"""By how much the turns of one order may bound worse than all orders."""


class _Candidate(NamedTuple):
    schedule: Schedule
    stages: Stages
    rule: QueueRule
    key: Floats | None
    ranks: Ints | None = None


def balanced(collective: Request, *, chunks: int | None = None, active: Active = "auto") -> Schedule:
    """The fastest schedule that Weft knows for a request; its order within the dimensions is fixed.

    Args:
        chunks: how many (rounded up to one for each order in use); by default the best of several counts.
        active: as ``weft.collectives.schedules.timing.time_schedule`` takes it.
    """
    limit = machine(collective, chunks, active)
    # Step 1: the shares of orders that the bound's LP finds, and those of the turns of one order where chunks are few.
    most = max(collective.bytes / (SMALLEST_PIECE_BYTES * collective.accelerators), 1.0)
    least = min(FEW if limit is None else 1, most)
    counts = [chunks] if chunks is not None else [count for count in CHUNK_COUNTS if least <= count <= most] or [1]
    shares = [best_shares(collective)]
    if min(counts) <= FEW:
        shares += _rotations(collective, shares[0].bound_s)
    result: tuple[_Candidate, Chart] | None = None
    # Step 2: simulate Themis and the baseline, then the shares in several chunk counts under several queue rules.  The
    # first of equal times stays, so that runs repeat.
    candidates = chain(
        _peers(collective, default_chunks(collective) if chunks is None else chunks),
        _candidates(collective, shares, counts),
    )
    if collective.kind == "all-gather":
        candidates = chain(candidates, [_reversed(collective, chunks, limit)])
    for candidate in candidates:
        chart = _timed(candidate, limit)
        if result is None or chart.time_s < result[1].time_s * (1 - 1e-12):
            result = candidate, chart
    assert result is not None
    candidate, chart = result
    # Step 3: fix the order that the fastest run had within each dimension, so that `time_schedule` repeats it.
    ranks = candidate.ranks
    if ranks is None:
        ranks = order_of(chart, candidate.stages.passages(), len(collective.dimensions))
    return replace(candidate.schedule, policy="weft", ranks=ranks, active=limit)


def _candidates(collective: Request, shares: Sequence[Shares], counts: Sequence[int]) -> Iterator[_Candidate]:
    for count in counts:
        for split in shares if count <= FEW else shares[:1]:
            schedule = _cut(collective, split, count)
            stages = stages_of(schedule)
            # Rules: first in first out, smallest chunk first, fewest stages done first, earliest chunk first.
            yield _Candidate(schedule, stages, "fifo", None)
            yield _Candidate(schedule, stages, "scf", None)
            number = np.arange(len(stages.chunk)) - np.searchsorted(stages.chunk, stages.chunk)
            yield _Candidate(schedule, stages, "scf", number.astype(np.float64))
            yield _Candidate(schedule, stages, "scf", stages.chunk.astype(np.float64))


def _peers(collective: Request, chunks: int) -> Iterator[_Candidate]:
    usual = baseline(collective, chunks=chunks)
    yield _Candidate(usual, stages_of(usual), "fifo", None)
    if collective.kind in BALANCED_KINDS:
        published = themis(collective, chunks=chunks)
        simulated = themis(collective, chunks=chunks, variant="astra-sim")
        stages, rounded = stages_of(published), stages_of(simulated)
        yield _Candidate(published, stages, "fifo", None)
        yield _Candidate(published, stages, "scf", None)
        yield _Candidate(simulated, rounded, "paper-scf", None)
        yield _Candidate(simulated, rounded, "astra-fifo", None)
        yield _Candidate(simulated, rounded, "astra-scf", None)


def _rotations(collective: Request, bound_s: float) -> list[Shares]:
    """Shares of the turns of one order, where they bound no worse: few chunks of these fit each other."""
    width = len(collective.used)
    if width < 3 or collective.kind not in BALANCED_KINDS:
        return []
    # In the turns of one order every stage number has each dimension once: few chunks seldom queue for the same one.
    turns = (np.arange(width)[:, None] + np.arange(width)) % width
    result = shares_of(collective, np.array(collective.used)[turns])
    return [result] if result.bound_s <= bound_s * (1 + ROTATIONS_COST) else []


def _reversed(collective: Request, chunks: int | None, limit: int | None) -> _Candidate:
    """An all-gather as the best reduce-scatter backwards."""
    # Backwards in time an all-gather is a reduce-scatter: each stage of a chunk mirrored, and the order within each
    # dimension reversed, takes equally long.
    scatter = balanced(replace(collective, kind="reduce-scatter"), chunks=chunks, active=limit)
    back = replace(scatter, request=collective, orders=mirrored(scatter.orders), ranks=None)
    stages = stages_of(back)
    assert scatter.ranks is not None
    chunk = np.searchsorted(stages.chunk, stages.chunk)
    last = np.searchsorted(stages.chunk, stages.chunk, side="right") - 1
    # Stages of a chunk are neighbours: the mirror image of place i is first + last - i.
    mirror = chunk + last - np.arange(len(chunk))
    count = np.bincount(stages.dimension, minlength=len(collective.dimensions))
    ranks = count[stages.dimension] - 1 - scatter.ranks[mirror]
    return _Candidate(back, stages, "fixed", None, ranks)


def _cut(collective: Request, shares: Shares, count: int) -> Schedule:
    """The bound's shares in about ``count`` chunks."""
    which, part = _interleaved(shares.share, count)
    orders = shares.orders[which]
    gathers = mirrored(orders) if collective.kind == "all-reduce" else None
    return Schedule(
        request=collective, policy="weft", chunk_bytes=part * collective.bytes, orders=orders, gathers=gathers
    )


def _interleaved(share: Floats, count: int) -> tuple[Ints, Floats]:
    """Which order each chunk takes and its part of the bytes, each order's chunks spread evenly."""
    used = np.flatnonzero(share > SMALLEST_SHARE)
    parts = share[used] / share[used].sum()
    pieces = np.maximum(1, np.round(count * parts)).astype(np.int64)
    # An order with n chunks puts them at (i + 1/2) / n of the way; sorting mixes all orders as evenly as they go.
    place = np.concatenate([(np.arange(number) + 0.5) / number for number in pieces])
    owner = np.repeat(np.arange(len(used)), pieces)[np.argsort(place, kind="stable")]
    return used[owner], (parts / pieces)[owner]


def _timed(candidate: _Candidate, limit: int | None) -> Chart:
    """A run of a candidate; one by ASTRA-sim's rules repeats their order without rounding."""
    passages, count = candidate.stages.passages(candidate.rule), len(candidate.schedule.request.dimensions)
    # ASTRA-sim's order follows from its rounded times; the run that counts keeps that order with exact times.
    if candidate.rule.startswith("astra"):
        rounded = stages_of(candidate.schedule, whole_ns=True).passages()
        ranks = order_of(play(rounded, count, rule=candidate.rule, active=limit), rounded, count)
        return play(passages, count, rule="fixed", active=limit, ranks=ranks)
    if candidate.ranks is not None:
        return play(passages, count, rule="fixed", active=limit, ranks=candidate.ranks)
    if candidate.key is not None:
        passages = replace(passages, key_bytes=candidate.key)
    return play(passages, count, rule=candidate.rule, active=limit)
