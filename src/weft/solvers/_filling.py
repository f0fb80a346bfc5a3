"""Progressive filling, compiled: all rates rise together, a link that is full stops the flows that cross it.

The *level* is the rate per weight.  A link that is not full yet can only fill later when a flow elsewhere
stops, so a heap of links by the level at which they fill may hold old, too low keys: a link whose key has
risen goes back.

This is the problem stated once: flows by path, in arrays of equal length.  ``simulation.flows._fill`` fills the
links of a network whose flows come and go, over slots that each link keeps from event to event, and tells which
links stopped which flows; to list the flows anew for this kernel at every event would cost more than the
filling.  Tests hold both against ``maxmin.reference``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.solvers._arrays import PAIR, ZERO, Flags, Floats, Index, Ints, Records, wide
from weft.solvers._heap import heapify, pop, sink
from weft.solvers._jit import jit

SHARER = np.dtype([("flow", np.int32), ("place", np.int32)])
LINK = np.dtype(
    [("left", np.float64), ("rising", np.float64), ("open", np.int32), ("first", np.int32), ("end", np.int32)],
    align=True,
)


class Filling(NamedTuple):
    """The arrays of ``maxmin.solve``, and room to work."""

    capacity: Floats
    indptr: Ints
    path: Index
    usage: Floats
    weight: Floats
    cap: Floats
    links: Records
    sharers: Records
    level: Floats
    stopped: Flags
    """Whether a flow has a level: many small looks that would be far apart in ``level``."""
    heap: Records
    even: bool


def new_problem(capacity: Floats, indptr: Ints, path: Ints, usage: Floats, weight: Floats, cap: Floats) -> Filling:
    """Room for a problem."""
    return Filling(
        capacity=np.ascontiguousarray(capacity, dtype=np.float64),
        indptr=np.ascontiguousarray(indptr, dtype=np.int64),
        path=np.ascontiguousarray(path, dtype=np.int32),
        usage=np.ascontiguousarray(usage, dtype=np.float64),
        weight=np.ascontiguousarray(weight, dtype=np.float64),
        cap=np.ascontiguousarray(cap, dtype=np.float64),
        links=np.zeros(len(capacity), dtype=LINK),
        sharers=np.empty(len(path), dtype=SHARER),
        level=np.full(len(weight), np.inf),
        stopped=np.zeros(len(weight), dtype=np.uint8),
        heap=np.empty(len(capacity) + int(np.count_nonzero(cap < np.inf)) + 1, dtype=PAIR),
        even=bool(np.all(usage == 1.0) and np.all(weight == 1.0)),
    )


@jit
def share_of(problem: Filling, flow: int, place: int) -> float:
    """What a flow loads a link of its path with at level 1."""
    return 1.0 if problem.even else float(problem.usage[place] * problem.weight[flow])


@jit
def seat(problem: Filling) -> None:
    """List the flows of each link, in order."""
    links, total = problem.links, 0
    # Counting sort of places by link: counts first, then where each link begins, then the places in flow order.
    for place in range(len(problem.path)):
        links[problem.path[place]].end += 1
    for link in range(len(links)):
        count = links[link].end
        links[link].first, links[link].end = total, total
        total += count
    for flow in range(len(problem.weight)):
        for place in range(problem.indptr[flow], problem.indptr[flow + 1]):
            link = links[problem.path[place]]
            problem.sharers[link.end].flow, problem.sharers[link.end].place = flow, place
            link.end += 1
            link.rising += share_of(problem, flow, place)


@jit
def add_up(problem: Filling, link: int) -> None:
    """Sum afresh what flows with a level leave of a link, and the shares of its open flows."""
    this = problem.links[link]
    left, rising = problem.capacity[link], 0.0
    for at in range(this.first, this.end):
        sharer = problem.sharers[at]
        share = share_of(problem, wide(sharer.flow), wide(sharer.place))
        if problem.stopped[sharer.flow]:
            left -= share * problem.level[sharer.flow]
        else:
            rising += share
    this.left, this.rising = max(left, 0.0), rising


@jit
def first_keys(problem: Filling) -> int:
    """Fill the heap with links, by the level at which they would fill, and caps; returns its size."""
    size, heap, nlinks = 0, problem.heap, len(problem.links)
    for number in range(nlinks):
        link = problem.links[number]
        link.open, link.left = link.end - link.first, problem.capacity[number]
        if link.open > 0 and link.left < np.inf:
            heap[size].key, heap[size].number = link.left / link.rising, number
            size += 1
    for flow in range(len(problem.cap)):
        if problem.cap[flow] < np.inf:
            heap[size].key, heap[size].number = problem.cap[flow] / problem.weight[flow], nlinks + flow
            size += 1
    heapify(heap, size)
    return size


@jit
def stop(problem: Filling, flow: int, level: float) -> None:
    """Give a flow its level and take it off its links."""
    problem.level[flow], problem.stopped[flow] = level, 1
    for place in range(problem.indptr[flow], problem.indptr[flow + 1]):
        link, share = problem.links[problem.path[place]], share_of(problem, flow, place)
        link.left -= share * level
        link.rising -= share
        link.open -= 1


@jit
def fills_at(problem: Filling, link: int, known: float, now: float) -> float:
    """Level at which a link fills, which was known to be at least some level."""
    this = problem.links[link]
    level = max(this.left / this.rising, now)
    if level != known and not problem.even:
        add_up(problem, link)
        level = max(this.left / this.rising, now)
    return float(level)


@jit
def fill(problem: Filling) -> None:
    """Raise all flows until a link or the cap stops each; what nothing stops gets infinity."""
    seat(problem)
    size, now, nlinks, heap = first_keys(problem), 0.0, len(problem.links), problem.heap
    # All open flows have the level `now`, which never falls.  A key of the heap is never above the level at which
    # its link fills or its cap binds, so a top whose key is right comes next.  A stop takes `level` x share from
    # the link, no more than its open flows had: no link is ever overfull.
    while size > 0:
        at, item = heap[0].key, heap[0].number
        if item < nlinks and problem.links[item].open > 0:
            level = fills_at(problem, item, at, now)
            if level > at:
                heap[0].key = level
                sink(heap, size, ZERO)
                continue
        size = pop(heap, size)
        if item >= nlinks:
            if not problem.stopped[item - nlinks]:
                now = max(now, at)
                stop(problem, item - nlinks, at)
        elif problem.links[item].open > 0:
            now = max(now, at)
            for place in range(problem.links[item].first, problem.links[item].end):
                flow = wide(problem.sharers[place].flow)
                if not problem.stopped[flow]:
                    stop(problem, flow, now)
    for flow in range(len(problem.level)):
        problem.level[flow] *= problem.weight[flow]
