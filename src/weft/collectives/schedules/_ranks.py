"""The kernel behind ``weft.collectives.schedules.per_rank``: every step of every stage on every rank."""

from __future__ import annotations

from typing import NamedTuple

from weft.solvers._arrays import Flags, Floats, Ints, wide
from weft.solvers._jit import jit

RING, HALVING, DOUBLING, HALVING_DOUBLING, PAIRS, TOGETHER = (wide(pattern) for pattern in range(6))
"""Who waits for whom: the rank before on the ring; the partner of each step (far ones first, near ones first,
or one after the other); everybody in one step; everybody in all steps."""


class Course(NamedTuple):
    """Stages in an order in which each comes after all that it waits for."""

    chunk: Ints
    dimension: Ints
    pattern: Ints
    steps: Ints
    sent_bytes: Floats


class Dimensions(NamedTuple):
    """The dimensions: size, distance of neighbours in ranks, latency of a step; and of each dimension and
    rank the seconds that a byte costs."""

    size: Ints
    stride: Ints
    latency: Floats
    cost: Floats


@jit
def keep(now: Floats, then: Floats, size: int) -> None:
    """Let the next step begin."""
    for at in range(size):
        now[at] = then[at]


@jit
def by_ring(now: Floats, then: Floats, cost: Floats, size: int, sent: float, steps: int, latency: float) -> None:
    """Steps around a ring: each begins when the one before has been sent and its data have come."""
    part = sent / steps
    # `now` is when each rank has sent its part of the step before and received its neighbour's.
    for _ in range(steps):
        for at in range(size):
            before = at - 1 if at > 0 else size - 1
            then[at] = max(now[at] + part * cost[at], now[before] + part * cost[before] + latency)
        keep(now, then, size)


@jit
def by_partners(
    now: Floats, then: Floats, cost: Floats, size: int, sent: float, latency: float, halving: bool
) -> None:
    """Exchanges at distance size/2, size/4, ... of half, a quarter, ... of the buffer; or all that back."""
    part, distance = sent * size / (size - 1) / 2, size // 2
    if not halving:
        part, distance = sent / (size - 1), 1
    # `part` is what a rank sends in this step: half of what it still has to reduce, or all that it has gathered.
    while 0 < distance < size:
        for at in range(size):
            partner = at ^ distance
            then[at] = max(now[at] + part * cost[at], now[partner] + part * cost[partner] + latency)
        keep(now, then, size)
        part, distance = (part / 2, distance // 2) if halving else (part * 2, distance * 2)


@jit
def by_pairs(now: Floats, then: Floats, cost: Floats, size: int, sent: float, latency: float) -> None:
    """Each rank has sent its own, and has what all others sent."""
    last, before, slowest = -1.0, -1.0, wide(-1)
    # `last` and `before` are the two latest ends: the slowest rank waits for the one before it, all others for
    # it.
    for at in range(size):
        then[at] = now[at] + sent * cost[at]
        if then[at] > last:
            last, before, slowest = then[at], last, wide(at)
        elif then[at] > before:
            before = then[at]
    for at in range(size):
        slowest_peer = before if at == slowest else last
        now[at] = max(then[at], slowest_peer + latency)


@jit
def together(now: Floats, cost: Floats, size: int, sent: float, latency: float) -> None:
    """Everybody has what all others sent."""
    last = 0.0
    for at in range(size):
        last = max(last, now[at] + sent * cost[at])
    for at in range(size):
        now[at] = last + latency


@jit
def walk(
    course: Course,
    network: Dimensions,
    ready: Floats,
    free: Floats,
    exclusive: Flags,
    now: Floats,
    then: Floats,
    cost: Floats,
) -> None:
    """Go through all stages.

    ``ready[c, r]`` becomes when rank r has chunk c, ``free[d, r]`` when its dimension d can take the next
    stage: at the end of this one (``exclusive``), or once its own bytes are sent.
    """
    ranks = ready.shape[1]
    # Stages come after all they wait for, so that `ready` and `free` are final when they are read.
    for op in range(len(course.chunk)):
        chunk, dimension = course.chunk[op], course.dimension[op]
        size, stride, latency = network.size[dimension], network.stride[dimension], network.latency[dimension]
        pattern, sent, steps = course.pattern[op], course.sent_bytes[op], course.steps[op]
        # The groups of a dimension: ranks whose coordinate there is 0, each with those `stride` apart.
        for first in range(ranks):
            if first // stride % size != 0:
                continue
            # A rank begins when it has the chunk and its link is free; bytes take it at the rank's own speed.
            for at in range(size):
                rank = first + at * stride
                now[at] = max(ready[chunk, rank], free[dimension, rank])
                cost[at] = network.cost[dimension, rank]
                free[dimension, rank] = now[at] + sent * cost[at]
            # Step by step with its partners, as Themis' section 4.6.2 has every rank keep the same order.
            if pattern == RING:
                by_ring(now, then, cost, size, sent, steps, latency)
            elif pattern in (HALVING, DOUBLING):
                by_partners(now, then, cost, size, sent, latency, pattern == HALVING)
            elif pattern == HALVING_DOUBLING:
                by_partners(now, then, cost, size, sent / 2, latency, True)
                by_partners(now, then, cost, size, sent / 2, latency, False)
            elif pattern == PAIRS:
                by_pairs(now, then, cost, size, sent, latency)
            else:
                together(now, cost, size, sent, latency * steps)
            for at in range(size):
                rank = first + at * stride
                ready[chunk, rank] = now[at]
                if exclusive[0]:
                    free[dimension, rank] = now[at]
