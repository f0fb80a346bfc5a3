"""Rates after a small change: only what the change reaches is solved again.

Levels are swept upwards, as in progressive filling.  A link is *stamped* once its load differs, from the
present level upwards, from what it was; all others still fill at their old level.  A flow is *touched* when
it rises on a stamped link.  At its old level a touched flow stops as before if an unstamped link holds it;
if none does, it rises on, and its links are alerted: they are stamped where this can first make a
difference.
"""

from __future__ import annotations

import numpy as np

from weft.simulation.flows._fill import OPEN, SAME, is_new
from weft.simulation.flows._state import CHANGED, EPOCH, NO_LINK, SEEDS, Net
from weft.solvers._arrays import ZERO, wide
from weft.solvers._heap import pop, push, sink
from weft.solvers._jit import jit

TIE = 1e-12
"""Relative difference of levels that counts as none when it is decided what holds a flow."""
LESS, MORE = wide(1), wide(2)
"""A link's load has fallen, or may have grown."""


@jit
def fair_start(net: Net, link: int) -> float:
    """Level below which a link cannot fill: all its active flows at one level."""
    this, total = net.links[link], 0.0
    if net.even:
        return float(this.capacity / this.count)
    for slot in range(this.first, this.first + this.count):
        total += net.slots[slot].share
    return float(this.capacity / total * (1.0 - TIE))


@jit
def alert(net: Net, size: int, link: int, now: float, kind: int) -> int:
    """Stamp a link later: where it was full, or, with more load, where its fair share begins."""
    this, alerted = net.links[link], 2 * net.counter[EPOCH] - 1
    at = this.full_at
    if kind == MORE:
        at = min(at, fair_start(net, link))
    at = max(at, now)
    if at == np.inf or (this.stamp == alerted and this.alert_at <= at):
        return size
    this.stamp, this.alert_at = alerted, at
    return push(net.heap, size, at, len(net.links) + link)


@jit
def reach(net: Net, size: int, flow: int) -> int:
    """Touch a flow: it rises until its old level, or its cap, is looked at."""
    this = net.flows[flow]
    this.touched, this.fresh = net.counter[EPOCH], OPEN
    net.flow_list[net.counter[CHANGED]].changed = flow
    net.counter[CHANGED] += 1
    at = min(this.level, this.top)
    return push(net.heap, size, at, 2 * len(net.links) + flow) if at < np.inf else size


@jit
def stamp(net: Net, size: int, link: int, now: float) -> int:
    """Follow a link's load from a level upwards; touches its flows that still rise there."""
    epoch, this = net.counter[EPOCH], net.links[link]
    this.stamp, this.full_at = 2 * epoch, np.inf
    left, rising, rises = this.capacity, 0.0, 0
    # Flows that stopped below `now` keep their load; all others rise from here on and are touched.
    for slot in range(this.first, this.first + this.count):
        flow, share = net.flows[net.slots[slot].flow], net.slots[slot].share
        known = flow.touched == epoch
        level = flow.fresh if known else flow.level
        if level >= 0.0 and (known or level < now * (1.0 - TIE)):
            left -= share * level
            continue
        rising += share
        rises += 1
        if not known:
            size = reach(net, size, wide(net.slots[slot].flow))
    this.left, this.rising, this.open = max(left, 0.0), rising, rises
    if rises > 0 and this.capacity < np.inf:
        size = push(net.heap, size, max(this.left / rising, now), link)
    return size


@jit
def settle(net: Net, size: int, flow: int, level: float, link: int, now: float) -> int:
    """Give a flow its level; alerts its links if that is less than before."""
    stamped, this = 2 * net.counter[EPOCH], net.flows[flow]
    less = level < this.level * (1.0 - SAME)
    this.fresh, this.limit = level, link
    for place in range(this.first, this.end):
        number, share = wide(net.path[place].link), net.path[place].share
        crossed = net.links[number]
        if crossed.stamp == stamped:
            crossed.left -= share * level
            crossed.rising -= share
            crossed.open -= 1
        elif less:
            size = alert(net, size, number, now, LESS)
    return size


@jit
def pass_old_level(net: Net, size: int, flow: int, now: float) -> int:
    """Stop a flow where it stopped before, if that still holds; else let it rise and alert its links."""
    stamped, this = 2 * net.counter[EPOCH], net.flows[flow]
    if this.top <= now * (1.0 + TIE):
        return settle(net, size, flow, this.top, NO_LINK, now)
    # A link that is full at or below `now`, and whose load is what it was, holds the flow as before.
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        link = net.links[number]
        if link.stamp != stamped and link.full_at <= now * (1.0 + TIE):
            if link.stamp != stamped - 1:
                return settle(net, size, flow, this.level, number, now)
            size = stamp(net, size, number, now)
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        if net.links[number].stamp != stamped:
            size = alert(net, size, number, now, MORE)
    if this.top < np.inf:
        size = push(net.heap, size, this.top, 2 * len(net.links) + flow)
    return size


@jit
def add_up_stamped(net: Net, link: int) -> None:
    """Sum afresh what flows with a level leave of a link, and the shares of those that rise."""
    this, epoch = net.links[link], net.counter[EPOCH]
    left, rising = this.capacity, 0.0
    for slot in range(this.first, this.first + this.count):
        flow, share = net.flows[net.slots[slot].flow], net.slots[slot].share
        level = flow.fresh if flow.touched == epoch else flow.level
        if level == OPEN:
            rising += share
        else:
            left -= share * level
    this.left, this.rising = max(left, 0.0), rising


@jit
def saturate(net: Net, size: int, link: int, now: float) -> int:
    """A link is full: its flows stop."""
    this = net.links[link]
    this.full_at = now
    for slot in range(this.first, this.first + this.count):
        flow = wide(net.slots[slot].flow)
        if net.flows[flow].touched == net.counter[EPOCH] and net.flows[flow].fresh == OPEN:
            size = settle(net, size, flow, now, link, now)
    return size


@jit
def fills_later(net: Net, size: int, link: int, now: float) -> bool:
    """Whether the link on top of the heap fills at a higher level than it was put there with; moves it if
    so."""
    this, at = net.links[link], net.heap[0].key
    fresh = max(this.left / this.rising, now)
    if fresh != at and not net.even:
        add_up_stamped(net, link)
        fresh = max(this.left / this.rising, now)
    if fresh <= at:
        return False
    net.heap[0].key = fresh
    sink(net.heap, size, ZERO)
    return True


@jit
def sweep(net: Net, size: int, most: int) -> bool:
    """Raise the level through all alerts, old levels and full links; False if too many flows are touched."""
    nlinks, now, counter = len(net.links), 0.0, net.counter
    # Below `now` every level is final: of touched flows the new one, of all others the old one.  An item is a
    # link (below nlinks), an alert of one (below 2 nlinks) or the old level or cap of a flow; keys of links are
    # lower bounds, as in `_fill.raise_open`.
    while size > 0:
        if counter[CHANGED] > most:
            return False
        at, what = net.heap[0].key, net.heap[0].item
        if what < nlinks and net.links[what].open > 0 and fills_later(net, size, what, now):
            continue
        size = pop(net.heap, size)
        now = max(now, at)
        if what >= 2 * nlinks:
            if net.flows[what - 2 * nlinks].fresh == OPEN:
                size = pass_old_level(net, size, what - 2 * nlinks, now)
        elif what >= nlinks:
            if net.links[what - nlinks].stamp != 2 * counter[EPOCH]:
                size = stamp(net, size, what - nlinks, now)
        elif net.links[what].open > 0:
            size = saturate(net, size, what, now)
    return True


@jit
def ripple(net: Net, most: int) -> bool:
    """New levels around the seeds; False, with nothing decided, if more than ``most`` flows are touched."""
    counter, size, changed = net.counter, ZERO, 0
    counter[EPOCH] += 1
    counter[CHANGED] = 0
    # An empty link can be full no more; the others may differ from where they were full, or would be.
    for at in range(counter[SEEDS]):
        number = net.link_list[at].seed
        link = net.links[number]
        if link.count == 0:
            link.full_at = np.inf
        else:
            size = alert(net, size, number, 0.0, net.link_list[number].seeded)
    if not sweep(net, size, most):
        return False
    for at in range(counter[CHANGED]):
        flow = net.flow_list[at].changed
        if is_new(net, flow):
            net.flow_list[changed].changed = flow
            changed += 1
    counter[CHANGED] = changed
    return True
