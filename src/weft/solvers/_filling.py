"""Max-min fair rates by progressive filling, compiled: the arrays of links and flows, and the one filling of both.

All rates rise together; a link that is full stops the flows that cross it.  The *level* of a flow is its rate per
weight.  A *place* is a link on a flow's path, its *share* what the flow loads the link with at level 1; a *slot* is
the seat of an active flow on a link.  A link that is not full yet can only fill later when a flow elsewhere stops,
so a heap of links by the level at which they fill may hold old, too low keys: a link whose key has risen goes back.

``weft.solvers.maxmin`` states a problem once (``share_all``); in ``weft.simulation.flows`` flows come and go, with
``fill_fair`` at an event that changes much.  Tests hold both against ``maxmin.reference``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.solvers._arrays import PAIR, ZERO, Floats, Ints, Records, wide
from weft.solvers._heap import heapify, pop, sink
from weft.solvers._jit import jit

OPEN = -1.0
"""In place of a level: the flow still rises."""
SAME = 1e-13
"""Relative difference of two levels that is rounding."""
EMPTY = 1e-12
"""Share of a link's capacity that is rounding when flows served before have taken the rest."""

(LIVE, ARRIVALS, READY, CHANGED, SEEDS, EPOCH, SOLVES, RIPPLES, LOGGED, COME, TAKEN, OPENED, PENDING, COUNTERS) = (
    range(14)
)
"""Places in ``counter``: active flows; sizes of the heaps of arrivals and of ready phases; flows whose level
changed; links to look at again; the last stamp given; solutions; local ones; samples of link rates taken; flows that
came since the last solution; slots given to links; flows that rise; links that have held flows and wait to be looked
at."""

NO_LINK = wide(-1)
FEW = 4
"""Slots that a link gets first."""

LINK = np.dtype(
    [
        ("capacity", np.float64),
        ("left", np.float64),  # capacity that flows other than its members leave
        ("rising", np.float64),  # share of its members: flows that it holds, or without a level yet
        ("full_at", np.float64),  # level of the flows that it holds; infinity if it holds none
        ("look_at", np.float64),  # level at which it is looked at next
        ("stamp", np.int64),  # twice the number of the solution that used it last, and 1 more once it is full
        ("open", np.int32),  # number of its members
        ("first", np.int32),  # slots first .. first+count are taken
        ("count", np.int32),
        ("room", np.int32),  # slots that are its own
    ],
    align=True,
)
"""One cache line, as are flows."""
FLOW = np.dtype(
    [
        ("first", np.int64),  # places first .. end are its path
        ("end", np.int64),
        ("level", np.float64),
        ("fresh", np.float64),  # level in the solution that is being made
        ("touched", np.int64),
        ("limit", np.int64),  # link that holds it down
        ("top", np.float64),  # level of its cap
        ("weight", np.float64),
    ],
    align=True,
)
TRIP = np.dtype(
    [
        ("bytes_left", np.float64),
        ("rate", np.float64),
        ("since", np.float64),
        ("bytes", np.float64),
        ("seat", np.int64),  # index among the active flows
        ("phase", np.int64),
        ("latency", np.float64),
        ("begin", np.float64),
        ("completion", np.float64),
    ],
    align=True,
)
PLACE = np.dtype([("link", np.int32), ("slot", np.int32)], align=True)
SLOT = np.dtype([("flow", np.int32), ("place", np.int32)], align=True)
FLOW_LIST = np.dtype([(name, np.int64) for name in ("live", "changed", "due")])
LINK_LIST = np.dtype([(name, np.int64) for name in ("used", "seed", "seeded")])
"""Links used in a solution; links to look at again; per link, whether it is one."""


class Net(NamedTuple):
    """Links, flows, who is where, and room to solve."""

    links: Records
    flows: Records
    trips: Records
    """What changes of a flow when it moves, not when rates are sought."""
    path: Records
    share: Floats
    """Of each place; not looked at where all are 1."""
    slots: Records
    flow_list: Records
    link_list: Records
    heap: Records
    counter: Ints
    even: bool
    """Every share is 1."""


def new_net(capacity: Floats, indptr: Ints, links: Ints, usage: Floats, weight: Floats, cap: Floats) -> Net:
    """Arrays as ``weft.solvers.maxmin`` has them, no flow active."""
    nlinks, nflows, places = len(capacity), len(weight), len(links)
    link, flow, path = blank(nlinks, LINK), blank(nflows, FLOW), blank(places, PLACE)
    link["capacity"], link["left"], link["full_at"] = capacity, capacity, np.inf
    flow["first"], flow["end"], flow["limit"] = indptr[:-1], indptr[1:], NO_LINK
    flow["weight"], flow["top"], path["link"] = weight, cap / weight, links
    same = bool(np.all(weight == 1.0))
    share = usage if same else usage * np.repeat(weight, np.diff(indptr))
    return Net(
        links=link,
        flows=flow,
        trips=blank(nflows, TRIP),
        path=path,
        share=np.ascontiguousarray(share, dtype=np.float64),
        slots=blank(4 * places + FEW * nlinks, SLOT),
        flow_list=blank(nflows, FLOW_LIST),
        link_list=blank(nlinks, LINK_LIST),
        heap=blank(2 * places + nlinks + 2 * nflows + 1, PAIR),
        counter=np.zeros(COUNTERS, dtype=np.int64),
        even=same and bool(np.all(usage == 1.0)),
    )


def blank(count: int, dtype: np.dtype[np.void]) -> Records:
    """Records with all fields zero."""
    return np.zeros(count, dtype=dtype)


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
    # All open flows have the level `now`, which never falls.  A key of the heap is never above the level at which
    # its link fills or its cap binds, so a top whose key is right comes next.  A stop takes `level` x share from
    # the link, no more than its open flows had: no link is ever overfull.  `full_at` becomes the level at which a
    # link stopped its flows (infinity where it never did), which `simulation.flows._clock` reads.
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
    """Leave links as ``simulation.flows._clock`` keeps them: their members are the flows that they stopped."""
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
def raise_all(net: Net) -> int:
    """Levels of all active flows in ``fresh``, ``OPEN`` where nothing limits one; returns how many links they use."""
    net.counter[EPOCH] += 1
    used, size = ZERO, ZERO
    for at in range(net.counter[LIVE]):
        flow = net.flow_list[at].live
        used, size = open_flow(net, flow, used), push_top(net, flow, size)
    raise_open(net, first_keys(net, used, size))
    return used


@jit
def fill_fair(net: Net) -> None:
    """Weighted max-min fair levels of all active flows."""
    free_links(net)
    keep_members(net, raise_all(net))
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
def share_all(net: Net) -> None:
    """Weighted max-min fair levels of a problem that is stated once: every flow is active."""
    taken = 0
    # Counting sort of places by link: counts first, then where each link begins, then the places in flow order.
    for place in range(len(net.path)):
        net.links[net.path[place].link].room += 1
    for number in range(len(net.links)):
        net.links[number].first = taken
        taken += net.links[number].room
    for flow in range(len(net.flows)):
        net.flow_list[flow].live = flow
        for place in range(net.flows[flow].first, net.flows[flow].end):
            link = net.links[net.path[place].link]
            slot = net.slots[link.first + link.count]
            slot.flow, slot.place = flow, place
            link.count += 1
    net.counter[LIVE] = len(net.flows)
    raise_all(net)
