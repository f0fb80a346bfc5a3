"""Themis and its baseline (arXiv 2110.04478).

Themis: each chunk takes the dimensions in the order of their loads so far (algorithm 1).  All-to-all, broadcast
and reduce load every dimension alike in any order; Themis leaves them to the baseline.

The baseline is the usual schedule, multi-rail hierarchical collectives, which is BlueConnect's decomposition
(MLSys 2019): every chunk visits the dimensions in the same order, in a reduce-scatter from the innermost
dimension out, in an all-gather back.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from weft.collectives.schedules.chunks import Request, Schedule, equal_chunks, mirrored
from weft.collectives.stages import BALANCED_KINDS, StageKind
from weft.fabric.spec import Ints

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


OUTER_FIRST = ("all-gather", "broadcast")


def baseline_order(collective: Request) -> Ints:
    """Dimensions in the usual order of the collective's kind."""
    inner_first = np.array(collective.used, dtype=np.int64)
    return inner_first[::-1] if collective.kind in OUTER_FIRST else inner_first


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
