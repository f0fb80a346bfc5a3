"""Rates of all active flows at once, by progressive filling over the slots of the links.

``solvers._filling`` fills a problem that is stated once, this a network whose flows come and go (see there);
``_ripple`` solves again only what a small change reaches, ``_rank`` serves flows by the bytes that they have left.
"""

from __future__ import annotations

import numpy as np

from weft.simulation.flows._state import CHANGED, EPOCH, LIVE, NO_LINK, Net
from weft.solvers._arrays import ZERO, wide
from weft.solvers._heap import heapify, pop, sink
from weft.solvers._jit import jit

OPEN = -1.0
"""In place of a level: the flow still rises."""
SAME = 1e-13
"""Relative difference of two levels that is rounding."""
EMPTY = 1e-12
"""Share of a link's capacity that is rounding when flows served before have taken the rest."""


@jit
def share_of(net: Net, place: int) -> float:
    """What a flow loads a link of its path with at level 1."""
    return 1.0 if net.even else float(net.share[place])


@jit
def add_up(net: Net, link: int) -> None:
    """Sum afresh what flows with a level leave of a link, and the shares of its open flows."""
    this = net.links[link]
    left, rising = this.capacity, 0.0
    # Differences that `stop` makes one by one round; a sum over all slots is exact to one rounding.
    for slot in range(this.first, this.first + this.count):
        level, share = net.flows[net.slots[slot].flow].fresh, share_of(net, wide(net.slots[slot].place))
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
        share, crossed = share_of(net, place), net.links[net.path[place].link]
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
        link.rising += share_of(net, place)
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
            net.heap[size].key, net.heap[size].number = link.left / link.rising, number
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
        at, item = heap[0].key, heap[0].number
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
        net.heap[size].key, net.heap[size].number = net.flows[flow].top, len(net.links) + flow
        size += 1
    return size


@jit
def keep_members(net: Net, used: int) -> None:
    """Leave links as ``_ripple`` keeps them: their members are the flows that they stopped."""
    for at in range(used):
        link = net.links[net.link_list[at].used]
        link.rising, link.open = 0.0, 0
    for at in range(net.counter[LIVE]):
        flow = net.flows[net.flow_list[at].live]
        for place in range(flow.first, flow.end):
            if net.path[place].link == flow.limit:
                link, share = net.links[net.path[place].link], share_of(net, place)
                link.left += share * flow.fresh
                link.rising += share
                link.open += 1


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
    keep_members(net, used)
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
