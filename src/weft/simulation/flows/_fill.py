"""Rates of all active flows at once, by progressive filling over the slots of the links.

``solvers._filling`` fills a problem that is stated once, this a network whose flows come and go (see there);
``_ripple`` solves again only what a small change reaches.
"""

from __future__ import annotations

import numpy as np

from weft.simulation.flows._state import CHANGED, EPOCH, LIVE, NO_LINK, RANKED, Net
from weft.solvers._arrays import ZERO, wide
from weft.solvers._heap import heapify, pop, sink
from weft.solvers._jit import jit

OPEN, WAITING = -1.0, -2.0
"""In place of a level: the flow still rises, or its turn has not come."""
SAME = 1e-13
"""Relative difference of two levels that is rounding."""
EMPTY = 1e-12
"""Share of a link's capacity that is rounding when flows served before have taken the rest."""
MOVES = 8
"""Moves per flow after which sorting by insertion gives up."""
EQUAL = 1e-12
"""Relative difference of bytes left that counts as none."""


@jit
def add_up(net: Net, link: int) -> None:
    """Sum afresh what flows with a level leave of a link, and the shares of its open flows."""
    this = net.links[link]
    left, rising = this.capacity, 0.0
    # Differences that `stop` makes one by one round; a sum over all slots is exact to one rounding.
    for slot in range(this.first, this.first + this.count):
        level, share = net.flows[net.slots[slot].flow].fresh, net.slots[slot].share
        if level == OPEN:
            rising += share
        elif level > 0.0:
            left -= share * level
    this.left, this.rising = max(left, 0.0), rising


@jit
def stop(net: Net, flow: int, level: float, link: int) -> None:
    """Give a flow its level and take it off its links."""
    this = net.flows[flow]
    this.fresh, this.limit = level, link
    for place in range(this.first, this.end):
        share, crossed = net.path[place].share, net.links[net.path[place].link]
        crossed.left -= share * level
        crossed.rising -= share
        crossed.open -= 1


@jit
def free_links(net: Net) -> None:
    """Empty the links of all active flows."""
    for at in range(net.counter[LIVE]):
        flow = net.flows[net.flow_list[at].live]
        for place in range(flow.first, flow.end):
            link = net.links[net.path[place].link]
            link.left = link.capacity


@jit
def open_flow(net: Net, flow: int, used: int) -> int:
    """Let a flow rise on its links; returns how many links are used by now."""
    this, epoch = net.flows[flow], 2 * net.counter[EPOCH]
    this.fresh, this.limit = OPEN, NO_LINK
    # A stamp of this epoch says that another flow has put the link into use already.
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        link = net.links[number]
        if link.stamp != epoch:
            link.stamp, link.rising, link.open, link.full_at = epoch, 0.0, 0, np.inf
            net.link_list[used].used = number
            used += 1
        link.rising += net.path[place].share
        link.open += 1
    return used


@jit
def first_keys(net: Net, used: int, size: int) -> int:
    """Put the links in use into the heap, by the level at which they would fill; returns its size."""
    for at in range(used):
        number = net.link_list[at].used
        link = net.links[number]
        if link.left <= EMPTY * link.capacity:
            link.left = 0.0
        if link.capacity < np.inf:
            net.heap[size].key, net.heap[size].item = link.left / link.rising, number
            size += 1
    heapify(net.heap, size)
    return size


@jit
def raise_open(net: Net, size: int) -> None:
    """Let the open flows rise until a link or the flow's cap stops each."""
    nlinks, now = len(net.links), 0.0
    heap = net.heap
    # As in `_filling.fill`: keys are lower bounds, `now` never falls, and `full_at` becomes the level at which
    # the link stopped its flows (infinity where it never did), which `_ripple` reads.
    while size > 0:
        at, item = heap[0].key, heap[0].item
        if item >= nlinks:
            size = pop(heap, size)
            if net.flows[item - nlinks].fresh == OPEN:
                now = max(now, at)
                stop(net, item - nlinks, at, NO_LINK)
            continue
        link = net.links[item]
        if link.open == 0:
            size = pop(heap, size)
            continue
        fresh = max(link.left / link.rising, now)
        if fresh != at and not net.even:
            add_up(net, item)
            fresh = max(link.left / link.rising, now)
        if fresh > at:
            heap[0].key = fresh
            sink(heap, size, ZERO)
            continue
        size = pop(heap, size)
        now = max(now, at)
        link.full_at = now
        for slot in range(link.first, link.first + link.count):
            flow = wide(net.slots[slot].flow)
            if net.flows[flow].fresh == OPEN:
                stop(net, flow, now, item)


@jit
def push_top(net: Net, flow: int, size: int) -> int:
    """Append a flow's cap to the heap that is being made."""
    if net.flows[flow].top < np.inf:
        net.heap[size].key, net.heap[size].item = net.flows[flow].top, len(net.links) + flow
        size += 1
    return size


@jit
def fill_fair(net: Net) -> None:
    """Weighted max-min fair levels of all active flows."""
    net.counter[EPOCH] += 1
    used, size = ZERO, ZERO
    free_links(net)
    for at in range(net.counter[LIVE]):
        flow = net.flow_list[at].live
        used, size = open_flow(net, flow, used), push_top(net, flow, size)
    raise_open(net, first_keys(net, used, size))
    report(net)


@jit
def is_new(net: Net, flow: int) -> bool:
    """Whether a flow has another level now; no level left open means no limit."""
    this = net.flows[flow]
    if this.fresh == OPEN:
        this.fresh = np.inf
    gap = abs(this.fresh - this.level)
    return bool(this.fresh != this.level and (this.level == np.inf or gap > SAME * this.level))


@jit
def report(net: Net) -> None:
    """List the active flows whose level is another one now."""
    changed = 0
    for at in range(net.counter[LIVE]):
        if is_new(net, net.flow_list[at].live):
            net.flow_list[changed].changed = net.flow_list[at].live
            changed += 1
    net.counter[CHANGED] = changed


@jit
def known_first(net: Net) -> None:
    """List the active flows in their order so far, then those that have come."""
    ranks, kept = net.flow_list, 0
    # Ranks keep their order, those with a completion drop out; `touched` says who is listed.
    for at in range(net.counter[RANKED]):
        flow = ranks[at].ranked
        if np.isnan(net.trips[flow].completion):
            ranks[kept].ranked = flow
            kept += 1
    for at in range(net.counter[LIVE]):
        flow = ranks[at].live
        if net.flows[flow].touched == 0:
            net.flows[flow].touched = 1
            ranks[kept].ranked = flow
            kept += 1
    net.counter[RANKED] = kept


@jit
def mend_order(net: Net, most: int) -> bool:
    """Sort the ranks, which hardly change between events, by insertion; False after too many moves."""
    ranks, moves = net.flow_list, 0
    # The ranks before `at` are sorted; shortest-first order changes by few swaps an event.
    for at in range(1, net.counter[RANKED]):
        flow, hole = ranks[at].ranked, at
        left = net.trips[flow].remaining
        while hole > 0:
            before = ranks[hole - 1].ranked
            other = net.trips[before].remaining
            if other < left or (other == left and before < flow):
                break
            ranks[hole].ranked = before
            hole -= 1
        ranks[hole].ranked = flow
        moves += at - hole
        if moves > most:
            return False
    return True


@jit
def rank(net: Net, now: float) -> None:
    """List the active flows by bytes left; equals by number."""
    known_first(net)
    size, heap, ranks = net.counter[RANKED], net.heap, net.flow_list
    for at in range(size):
        trip = net.trips[ranks[at].ranked]
        net.flows[ranks[at].ranked].fresh = WAITING
        trip.remaining = max(trip.bytes_left - trip.rate * (now - trip.since), 0.0)
    if mend_order(net, MOVES * size):
        return
    for at in range(size):
        heap[at].key, heap[at].item = net.trips[ranks[at].ranked].remaining, ranks[at].ranked
    heapify(heap, size)
    for at in range(size):
        ranks[at].ranked = heap[0].item
        pop(heap, size - at)


@jit
def serve(net: Net, flow: int) -> None:
    """Give a flow all that is left on its path."""
    this = net.flows[flow]
    this.fresh, this.limit = this.top, NO_LINK
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        at = net.links[number].left / net.path[place].share
        if at < this.fresh:
            this.fresh, this.limit = at, number
    if this.fresh == 0.0:
        return
    for place in range(this.first, this.end):
        link = net.links[net.path[place].link]
        left = link.left - net.path[place].share * this.fresh
        link.left = left if left > EMPTY * link.capacity else 0.0


@jit
def share_equally(net: Net, begin: int, end: int) -> None:
    """Share what is left fairly among flows of one rank."""
    net.counter[EPOCH] += 1
    used, size = ZERO, ZERO
    for at in range(begin, end):
        flow = net.flow_list[at].ranked
        used, size = open_flow(net, flow, used), push_top(net, flow, size)
    raise_open(net, first_keys(net, used, size))


@jit
def fill_ranked(net: Net, now: float) -> None:
    """Serve flows by bytes left, the fewest first."""
    nlive, ranks, begin = net.counter[LIVE], net.flow_list, ZERO
    free_links(net)
    rank(net, now)
    # Flows before `begin` have what they get; `left` is what they leave to flows with more bytes to go.
    while begin < nlive:
        end, most = begin + 1, net.trips[ranks[begin].ranked].remaining * (1.0 + EQUAL)
        while end < nlive and net.trips[ranks[end].ranked].remaining <= most:
            end += 1
        if end == begin + 1:
            serve(net, ranks[begin].ranked)
        else:
            share_equally(net, begin, end)
        begin = end
    report(net)
