"""A schedule on ranks that are not alike: late ones, slow links, contention.

Every rank keeps the order within the dimensions that the symmetric simulation found (Themis, section 4.6.2),
and plays each stage step by step with its partners: a step begins when the rank has sent the one before and
received what it needs.  With ranks all alike this is the symmetric time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.codec import Document
from weft.collectives.schedules import _ranks
from weft.collectives.schedules.timing import TimedSchedule
from weft.collectives.stages import STAGE_KINDS
from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats

MOST_STATE, MOST_STEPS = 1 << 28, 1 << 36
"""Chunks times ranks at most; steps of all stages times ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTimes(Document):
    """When each rank has its result; ``alike_s`` is the time when all ranks are alike and none is late."""

    DOCUMENT = "time_s finish_s"

    finish_s: Floats
    alike_s: float

    @property
    def time_s(self) -> float:
        return float(self.finish_s.max())


def rank_bandwidths(timed: TimedSchedule) -> Floats:
    """Bytes/s of every rank on every dimension as the request has them, shape (dimensions, ranks)."""
    collective = timed.schedule.request
    nominal_Bps = np.array([dimension.bandwidth_Bps for dimension in collective.dimensions])
    return np.repeat(nominal_Bps[:, None], collective.accelerators, axis=1)


def play_ranks(
    timed: TimedSchedule, *, start_s: Floats | None = None, bandwidth_Bps: Floats | None = None
) -> RankTimes:
    """Play a schedule on every rank.

    Args:
        timed: with one chunk at a time in a dimension, or latencies overlapped without limit.
        start_s: when each rank begins; 0 by default.
        bandwidth_Bps: of each dimension and rank; as the request has them by default.

    Raises:
        Unsupported: another number of active chunks, or more chunks and ranks than can be held.
    """
    collective = timed.schedule.request
    ranks, chunks = collective.accelerators, len(timed.schedule)
    if timed.active not in (1, None):
        problem = f"{timed.active} active chunks on ranks that differ"
        raise Unsupported(problem, where="active", remedy="give 1 or auto")
    if ranks * chunks > MOST_STATE:
        raise Unsupported(f"{chunks} chunks on {ranks} ranks", where="chunks", remedy="give fewer chunks")
    work = ranks * sum(_steps(timed))
    if work > MOST_STEPS:
        problem = f"{work:.2g} steps of all ranks"
        raise Unsupported(problem, where="ranks", remedy="give fewer chunks or other algorithms")
    starts = np.zeros(ranks) if start_s is None else np.asarray(start_s, dtype=np.float64)
    speeds = rank_bandwidths(timed) if bandwidth_Bps is None else np.asarray(bandwidth_Bps, dtype=np.float64)
    _check(starts, speeds, ranks, len(collective.dimensions))
    sizes = collective.sizes
    widest = int(sizes.max())
    ready = np.tile(starts, (chunks, 1))
    # Stages in an order in which each comes after all that it waits for: one pass over them settles every rank's
    # times.
    _ranks.walk(
        _course(timed),
        _ranks.Dimensions(
            size=sizes,
            stride=np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.int64),
            latency=np.array([dimension.latency_s for dimension in collective.dimensions]),
            cost=1.0 / speeds,
        ),
        ready,
        np.tile(starts, (len(sizes), 1)),
        np.array([timed.active == 1], dtype=np.uint8),
        np.zeros(widest),
        np.zeros(widest),
        np.zeros(widest),
    )
    return RankTimes(finish_s=ready.max(axis=0), alike_s=timed.time_s)


def _course(timed: TimedSchedule) -> _ranks.Course:
    stages, collective = timed.stages, timed.schedule.request
    # The order in which the symmetric simulation admitted them respects both chunks and dimensions.
    order = np.lexsort((timed.ranks, timed.chart.end_s, timed.chart.moving_s, timed.chart.admitted_s))
    pattern, steps = np.zeros(len(order), dtype=np.int64), np.array(_steps(timed), dtype=np.int64)
    # All stages of one kind on one dimension go by one pattern.
    for code in np.unique(stages.kind).tolist():
        for i in range(len(collective.dimensions)):
            alike = (stages.kind == code) & (stages.dimension == i)
            cost = collective.stage(STAGE_KINDS[code], i)
            pattern[alike] = _pattern(STAGE_KINDS[code], cost.algorithm)
    return _ranks.Course(
        chunk=stages.chunk[order],
        dimension=stages.dimension[order],
        pattern=pattern[order],
        steps=steps[order],
        sent_bytes=stages.sent_bytes[order],
    )


def _steps(timed: TimedSchedule) -> list[int]:
    """Steps of each stage."""
    collective = timed.schedule.request
    known = {
        (code, i): collective.stage(STAGE_KINDS[code], i).steps
        for code in np.unique(timed.stages.kind).tolist()
        for i in collective.used
    }
    pairs = zip(timed.stages.kind.tolist(), timed.stages.dimension.tolist(), strict=True)
    return [known[pair] for pair in pairs]


def _pattern(kind: str, algorithm: str) -> int:
    if kind in ("reduce-scatter", "all-gather", "all-reduce"):
        if algorithm == "ring":
            return _ranks.RING
        if algorithm == "halving-doubling":
            return {
                "reduce-scatter": _ranks.HALVING,
                "all-gather": _ranks.DOUBLING,
                "all-reduce": _ranks.HALVING_DOUBLING,
            }[kind]
    return _ranks.PAIRS if algorithm == "direct" and kind != "all-reduce" else _ranks.TOGETHER


def _check(starts: Floats, speeds: Floats, ranks: int, dimensions: int) -> None:
    if starts.shape != (ranks,) or not np.isfinite(starts).all() or (starts < 0).any():
        raise BadInput(f"give {ranks} times of 0 s or more", where="start of the ranks")
    if speeds.shape != (dimensions, ranks) or not np.isfinite(speeds).all() or (speeds <= 0).any():
        problem = f"give {dimensions} x {ranks} positive bandwidths"
        raise BadInput(problem, where="bandwidth of the ranks")
