"""Rates where flows are served by the bytes that they have left, the fewest first.

Most flows wait behind a link that those before them fill.  They stand still, so their order is kept from event to
event; only the flows that move are sorted again and merged into it, and a flow whose link is full again when its turn
comes is passed over.
"""

from __future__ import annotations

import numpy as np

from weft.solvers._arrays import ZERO, wide
from weft.solvers._filling import (
    CHANGED,
    COME,
    EMPTY,
    EPOCH,
    LIVE,
    MOVING,
    NO_LINK,
    SEEDS,
    SIDE,
    STILL,
    Net,
    first_keys,
    is_new,
    open_flow,
    push_top,
    raise_open,
    share_of,
)
from weft.solvers._jit import jit

WAITING = -2.0
"""In place of a level: the flow's turn has not come."""
MOVES = 8
"""Moves per flow after which sorting by insertion gives up."""
EQUAL = 1e-12
"""Relative difference of bytes left that counts as none."""


@jit
def comes_first(net: Net, rank: int, second: int) -> bool:
    """Whether a rank is before another: by bytes left, equals by number."""
    this, that = net.ranks[rank], net.ranks[second]
    return bool(this.key < that.key or (this.key == that.key and this.flow < that.flow))


@jit
def mend_order(net: Net, first: int, end: int) -> bool:
    """Sort ranks, whose order hardly changes between events, by insertion; False after too many moves."""
    # Few flows overtake each other between two events: insertion is then nearly linear.  Where it is not, `sort`
    # merges.
    ranks, moves = net.ranks, 0
    for at in range(first + 1, end):
        hole = at
        while hole > first and comes_first(net, hole, hole - 1):
            rank, above = ranks[hole], ranks[hole - 1]
            rank.key, above.key = above.key, rank.key
            rank.flow, above.flow = above.flow, rank.flow
            hole -= 1
        moves += at - hole
        if moves > MOVES * (end - first):
            return False
    return True


@jit
def run_end(net: Net, first: int, end: int) -> int:
    """Where the ranks that are in order from a place on end."""
    at = first + 1
    while at < end and comes_first(net, at - 1, at):
        at += 1
    return min(at, end)


@jit
def merge(net: Net, left: int, right: int, end: int, shift: int) -> None:
    """Merge two runs that follow each other, to places that lie further on."""
    ranks, left_end = net.ranks, right
    for to in range(left + shift, end + shift):
        if right == end or (left < left_end and comes_first(net, left, right)):
            ranks[to].key, ranks[to].flow = ranks[left].key, ranks[left].flow
            left += 1
        else:
            ranks[to].key, ranks[to].flow = ranks[right].key, ranks[right].flow
            right += 1


@jit
def sort(net: Net, first: int, end: int, spare: int) -> None:
    """Order ranks; as many places from ``spare`` on are free."""
    if mend_order(net, first, end):
        return
    # Each pass merges runs in pairs and moves them to the other places; a copy brings them back.
    while run_end(net, first, end) < end:
        at = first
        while at < end:
            middle = run_end(net, at, end)
            last = run_end(net, middle, end) if middle < end else end
            merge(net, at, middle, last, spare - first)
            at = last
        for at in range(first, end):
            this, that = net.ranks[at], net.ranks[at + spare - first]
            this.key, this.flow = that.key, that.flow


@jit
def empty_links(net: Net) -> None:
    """Take off what the last solution put on links: only flows that moved did."""
    first = (2 + net.counter[SIDE]) * len(net.flows)
    for at in range(first, first + net.counter[MOVING]):
        flow = net.flows[net.ranks[at].flow]
        for place in range(flow.first, flow.end):
            link = net.links[net.path[place].link]
            link.left = link.capacity
    for at in range(net.counter[SEEDS]):
        link = net.links[net.link_list[at].seed]
        link.left = link.capacity


@jit
def list_moving(net: Net, now: float) -> int:
    """Rank the flows that moved and those that have come; returns how many."""
    # Only flows that moved have fewer bytes left than at the last event; those that stand still keep their key and
    # order.
    counter, ranks = net.counter, net.ranks
    first = (2 + counter[SIDE]) * len(net.flows)
    end = first
    for at in range(first, first + counter[MOVING]):
        number = wide(ranks[at].flow)
        trip = net.trips[number]
        if np.isnan(trip.completion):
            net.flows[number].fresh = WAITING
            ranks[end].flow, ranks[end].key = number, max(trip.bytes_left - trip.rate * (now - trip.since), 0.0)
            end += 1
    # Who has come sits last.
    for seat in range(counter[LIVE] - counter[COME], counter[LIVE]):
        number = wide(net.flow_list[seat].live)
        if net.flows[number].level == np.inf:
            net.flows[number].fresh = WAITING
            ranks[end].flow, ranks[end].key = number, net.trips[number].bytes_left
            end += 1
    sort(net, first, end, (3 - counter[SIDE]) * len(net.flows))
    return wide(end - first)


@jit
def is_full(net: Net, link: int) -> bool:
    """Whether flows served before leave nothing of a link."""
    return bool(net.links[link].left <= EMPTY * net.links[link].capacity)


@jit
def stand(net: Net, key: float, flow: int, link: int) -> None:
    """Rank a flow among those that wait behind a link."""
    rank = net.ranks[net.counter[SIDE] * len(net.flows) + net.counter[STILL]]
    rank.key, rank.flow, rank.link = key, flow, link
    net.counter[STILL] += 1


@jit
def move(net: Net, flow: int) -> None:
    """Rank a flow among those that move."""
    net.ranks[(2 + net.counter[SIDE]) * len(net.flows) + net.counter[MOVING]].flow = flow
    net.counter[MOVING] += 1


@jit
def serve(net: Net, flow: int) -> None:
    """Give a flow all that is left on its path."""
    # Flows with fewer bytes left have been served: the flow gets what they leave on the tightest link of its path.
    this = net.flows[flow]
    this.fresh, this.limit = this.top, NO_LINK
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        at = 0.0 if is_full(net, number) else net.links[number].left / share_of(net, place)
        if at < this.fresh:
            this.fresh, this.limit = at, number
    if this.fresh == 0.0:
        return
    for place in range(this.first, this.end):
        link = net.links[net.path[place].link]
        left = link.left - share_of(net, place) * this.fresh
        link.left = left if left > EMPTY * link.capacity else 0.0


@jit
def share_equally(net: Net, count: int) -> None:
    """Share what is left fairly among the flows of one rank whose turn has come."""
    # Progressive filling as in `fill_fair`, but from what flows before this rank leave instead of the capacities.
    net.counter[EPOCH] += 1
    used, size = ZERO, ZERO
    for at in range(count):
        flow = net.flow_list[at].ranked
        if net.flows[flow].fresh == WAITING:
            used, size = open_flow(net, flow, used), push_top(net, flow, size)
    raise_open(net, first_keys(net, used, size))


@jit
def serve_group(net: Net, count: int, ready: int) -> None:
    """Serve the flows of one rank and put each among those that move or stand."""
    counter = net.counter
    # The rates of a rank depend only on what the ranks before it leave, which is final here.
    if count == 1:
        serve(net, net.flow_list[0].ranked)
    elif ready > 0:
        share_equally(net, count)
    for at in range(count):
        flow = net.flow_list[at].ranked
        if is_new(net, flow):
            net.flow_list[counter[CHANGED]].changed = flow
            counter[CHANGED] += 1
        if net.flows[flow].fresh > 0.0:
            move(net, flow)
        else:
            stand(net, net.trips[flow].remaining, flow, net.flows[flow].limit)


@jit
def is_due(net: Net, most: float, still: int, still_end: int, moved: int, moved_end: int) -> bool:
    """Whether the next flow has at most some bytes left."""
    return bool(
        (still < still_end and net.ranks[still].key <= most) or (moved < moved_end and net.ranks[moved].key <= most)
    )


@jit
def fill_ranked(net: Net, now: float) -> None:
    """Serve flows by bytes left, the fewest first."""
    counter, ranks, flows = net.counter, net.ranks, len(net.flows)
    empty_links(net)
    moving = list_moving(net, now)
    still, moved = counter[SIDE] * flows, (2 + counter[SIDE]) * flows
    still_end, moved_end = still + counter[STILL], moved + moving
    # The lists of this event are read from one half of `ranks`, those for the next are written to the other.
    counter[SIDE], counter[STILL], counter[MOVING], counter[CHANGED] = 1 - counter[SIDE], 0, 0, 0
    count, ready, most = ZERO, ZERO, 0.0
    # Both lists are merged; `left` of a link is what those before the present group leave to it.
    while count > 0 or still < still_end or moved < moved_end:
        if count > 0 and not is_due(net, most, still, still_end, moved, moved_end):
            serve_group(net, count, ready)
            count, ready = ZERO, ZERO
            continue
        stands = moved == moved_end or (still < still_end and comes_first(net, still, moved))
        rank = ranks[still if stands else moved]
        if stands:
            still += 1
        else:
            moved += 1
        waits = stands and is_full(net, wide(rank.link))
        if count == 0:
            most = rank.key * (1.0 + EQUAL)
        # A flow alone in its rank, behind a link that is full again, gets nothing whatever the rest of its path
        # carries: its rate, limit and key stay, and its path need not be looked at.
        if waits and count == 0 and not is_due(net, most, still, still_end, moved, moved_end):
            stand(net, rank.key, wide(rank.flow), wide(rank.link))
            continue
        net.trips[rank.flow].remaining = rank.key
        net.flow_list[count].ranked = rank.flow
        count += 1
        if not waits:
            net.flows[rank.flow].fresh = WAITING
            ready += 1
