"""Rates after a small change: only what the change reaches is solved again.

Levels are swept upwards, as in progressive filling.  Every flow is *presumed* to keep its level until the link
that holds it fills at another one.  A link knows its *members*, the flows that it holds and those that are open
(they rise), and what the presumed levels of all others leave: it fills at that room over the members' shares, or
higher, should others turn out to have less.  Where that level is

- below its old one, it cuts its members and all that are above down to it,
- above, it opens the flows that it held when the sweep comes to its old level.

So a flow is touched only if its level changes, and a link is looked at only where it may fill.
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
    NO_LINK,
    OPEN,
    OPENED,
    PENDING,
    SAME,
    SEEDS,
    Net,
    is_new,
    share_of,
)
from weft.solvers._heap import pop, push
from weft.solvers._jit import jit

HIGHEST = 1e300
"""In place of the level at which a link is full, as long as it is not known."""
TIE = 1e-12
"""Relative difference of levels that counts as none when it is decided what holds a flow."""


@jit
def put(net: Net, size: int, link: int, at: float) -> int:
    """Have a link looked at when the sweep comes to a level, unless it will be before."""
    this, stamp = net.links[link], 2 * net.counter[EPOCH]
    if this.stamp < stamp:
        this.stamp, this.look_at = stamp, np.inf
    # Of the entries of a link only that with the key `look_at` counts; `sweep` drops the others when they come up.
    if at >= this.look_at:
        return size
    # A link that held flows has to be looked at even if none is open any more.
    if this.look_at == np.inf and this.full_at < np.inf:
        net.counter[PENDING] += 1
    this.look_at = at
    return push(net.heap, size, at, link)


@jit
def alert(net: Net, size: int, link: int) -> int:
    """Have a link looked at where it fills, or where it did."""
    this = net.links[link]
    at = this.left / this.rising if this.open > 0 else np.inf
    return put(net, size, link, min(at, this.full_at))


@jit
def touch(net: Net, flow: int, level: float, link: int) -> None:
    """Note a flow as one whose level changes."""
    this = net.flows[flow]
    if this.touched != net.counter[EPOCH]:
        this.touched = net.counter[EPOCH]
        net.flow_list[net.counter[CHANGED]].changed = flow
        net.counter[CHANGED] += 1
    this.fresh, this.limit = level, link


@jit
def open_flow(net: Net, size: int, flow: int, holder: int) -> int:
    """Let a flow rise; its holder counts it as a member already."""
    this = net.flows[flow]
    touch(net, flow, OPEN, NO_LINK)
    net.counter[OPENED] += 1
    for place in range(this.first, this.end):
        number, share = wide(net.path[place].link), share_of(net, place)
        if number != holder:
            link = net.links[number]
            link.left += share * this.level
            link.rising += share
            link.open += 1
            size = alert(net, size, number)
    return push(net.heap, size, this.top, len(net.links) + flow) if this.top < np.inf else size


@jit
def open_new(net: Net, size: int, flow: int) -> int:
    """Let a flow rise that has come; it is a member of all its links already."""
    this = net.flows[flow]
    touch(net, flow, OPEN, NO_LINK)
    net.counter[OPENED] += 1
    return push(net.heap, size, this.top, len(net.links) + flow) if this.top < np.inf else size


@jit
def close(net: Net, flow: int, level: float, link: int) -> None:
    """Give an open flow its level."""
    this = net.flows[flow]
    touch(net, flow, level, link)
    net.counter[OPENED] -= 1
    for place in range(this.first, this.end):
        number, share = wide(net.path[place].link), share_of(net, place)
        if number != link:
            crossed = net.links[number]
            crossed.left -= share * level
            crossed.rising -= share
            crossed.open -= 1
            if crossed.open == 0 and crossed.full_at == np.inf and crossed.left < -EMPTY * crossed.capacity:
                # It is in the heap, and will have to cut flows that are above the level at which it is full.
                crossed.full_at = HIGHEST
                net.counter[PENDING] += 1


@jit
def cut(net: Net, size: int, flow: int, level: float, link: int) -> int:
    """Bring a flow down from its old level; links that others hold at more room are alerted."""
    this = net.flows[flow]
    holder, fall = this.limit, this.level - level
    touch(net, flow, level, link)
    for place in range(this.first, this.end):
        number, share = wide(net.path[place].link), share_of(net, place)
        if number == link:
            continue
        crossed = net.links[number]
        if number == holder:
            crossed.left -= share * level
            crossed.rising -= share
            crossed.open -= 1
        else:
            crossed.left += share * fall
        if crossed.full_at < np.inf:
            size = alert(net, size, number)
    return size


@jit
def release(net: Net, size: int, link: int) -> int:
    """Open the flows that a link held: it is not full at their level any more."""
    this = net.links[link]
    this.full_at = np.inf
    # Its flows rise until another link or their cap holds them; all of that happens at higher levels, later in the
    # sweep.
    for slot in range(this.first, this.first + this.count):
        flow = wide(net.slots[slot].flow)
        if net.flows[flow].limit == link:
            size = open_flow(net, size, flow, link)
    return alert(net, size, link)


@jit
def fills_at(net: Net, link: int, now: float) -> float:
    """Level at which a link is full, or a lower bound of it above a level; infinity if it holds no flow there."""
    this, epoch, high = net.links[link], net.counter[EPOCH], now * (1.0 + TIE)
    left, rising, stops, room, share_in, members = this.capacity, 0.0, 0, this.capacity, 0.0, 0
    # Sums over all slots: what was added and taken off one by one has rounded.
    # Two sums at once.  If the link fills now, all that are above `high` stop here as well as its members; if it fills
    # higher, only its members rise and the others keep their presumed level.
    for slot in range(this.first, this.first + this.count):
        flow, share = net.flows[net.slots[slot].flow], share_of(net, wide(net.slots[slot].place))
        presumed = flow.fresh if flow.touched == epoch else flow.level
        member = presumed == OPEN or flow.limit == link
        if member:
            share_in += share
            members += 1
        else:
            room -= share * presumed
        if member or presumed > high:
            rising += share
            stops += 1
        else:
            left -= share * presumed
    level = max(left / rising, now) if stops > 0 else np.inf
    if level > high:
        this.left, this.rising, this.open = room, share_in, members
    else:
        this.left, this.rising, this.open = left, rising, stops
    if stops == 0:
        this.full_at = np.inf
    return level


@jit
def stop_above(net: Net, size: int, link: int, level: float) -> int:
    """A link is full at a level: its members stop there, and all flows that are above."""
    this, epoch = net.links[link], net.counter[EPOCH]
    this.full_at, this.stamp = level, 2 * epoch + 1
    # Flows below the level are held by other links with less room and keep what they have: max-min fairness never
    # takes from a flow to give to one that has more.
    for slot in range(this.first, this.first + this.count):
        number = wide(net.slots[slot].flow)
        flow = net.flows[number]
        if flow.touched == epoch:
            if flow.fresh == OPEN:
                close(net, number, level, link)
        elif flow.level > level * (1.0 + TIE) or (flow.limit == link and abs(flow.level - level) > SAME * level):
            size = cut(net, size, number, level, link)
    return size


@jit
def look(net: Net, size: int, link: int, now: float) -> int:
    """Decide about a link whose level has come."""
    this = net.links[link]
    if this.full_at < np.inf:
        net.counter[PENDING] -= 1
    this.look_at = np.inf
    if this.open == 0 and this.left >= -EMPTY * this.capacity:
        this.full_at = np.inf
        return size
    level = this.left / this.rising if this.open > 0 else now
    if level <= now * (1.0 + TIE):
        level = fills_at(net, link, now)
    if level <= now * (1.0 + TIE):
        return stop_above(net, size, link, level)
    # It fills at a higher level: look at it there, or let its flows go where that is above their own.
    if this.stamp == 2 * net.counter[EPOCH] and level > this.full_at * (1.0 + TIE):
        if now >= this.full_at:
            return release(net, size, link)
        level = this.full_at
    return put(net, size, link, level)


@jit
def sweep(net: Net, size: int, most: int) -> bool:
    """Raise the level until no flow is open and no link has to be looked at; False if too many flows are
    touched."""
    nlinks, now, counter = len(net.links), 0.0, net.counter
    # Keys are lower bounds of the level at which a link fills, so below `now` every level is final.
    while size > 0 and counter[OPENED] + counter[PENDING] > 0:
        if counter[CHANGED] > most:
            return False
        at, item = net.heap[0].key, net.heap[0].number
        size = pop(net.heap, size)
        if item >= nlinks:
            if net.flows[item - nlinks].fresh == OPEN:
                now = max(now, at)
                close(net, item - nlinks, at, NO_LINK)
        elif net.links[item].look_at == at:
            now = max(now, at)
            size = look(net, size, item, now)
    return bool(counter[CHANGED] <= most)


@jit
def ripple(net: Net, most: int) -> bool:
    """New levels around the seeds; False, with nothing decided, if more than ``most`` flows are touched."""
    counter, size, changed = net.counter, ZERO, 0
    counter[EPOCH] += 1
    counter[CHANGED], counter[OPENED], counter[PENDING] = 0, 0, 0
    # Who has come sits last.
    for seat in range(counter[LIVE] - counter[COME], counter[LIVE]):
        flow = wide(net.flow_list[seat].live)
        if net.flows[flow].level == np.inf:
            size = open_new(net, size, flow)
    for at in range(counter[SEEDS]):
        if net.links[net.link_list[at].seed].open > 0:
            size = alert(net, size, net.link_list[at].seed)
    if not sweep(net, size, most):
        return False
    # A flow that was opened and stopped again at its old level has not changed.
    for at in range(counter[CHANGED]):
        flow = net.flow_list[at].changed
        if is_new(net, flow):
            net.flow_list[changed].changed = flow
            changed += 1
    counter[CHANGED] = changed
    return True
