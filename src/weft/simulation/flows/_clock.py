"""The event loop: all that happens at one instant (completions, capacities, phases, arrivals), then new rates.

The soonest of the many completion times is the top of a wide tree of minima, repaired once per event.
"""

from __future__ import annotations

import numpy as np

from weft.simulation.flows._fill import fill_fair, fill_ranked
from weft.simulation.flows._ripple import LESS, MORE, ripple
from weft.simulation.flows._state import (
    ARRIVALS,
    CHANGED,
    COME,
    EVENT,
    FEW,
    HALTS,
    LIVE,
    LOGGED,
    READY,
    RIPPLES,
    SEEDS,
    SOLVES,
    TAKEN,
    Net,
    Timeline,
)
from weft.solvers._arrays import Records, wide
from weft.solvers._heap import pop, push
from weft.solvers._jit import jit


@jit
def touch(clock: Timeline, flow: int) -> None:
    """Note that a flow's completion time has changed."""
    node = flow >> 4
    if clock.nodes[node].dirty == 0:
        clock.nodes[node].dirty = 1
        clock.nodes[clock.levels[0].queued].queue = node
        clock.levels[0].queued += 1


@jit
def least(clock: Timeline, level: int, node: int) -> float:
    """The soonest completion below a node."""
    best, begin = np.inf, node << 4
    if level == 0:
        for leaf in range(begin, min(begin + 16, len(clock.finish))):
            best = min(best, clock.finish[leaf])
        return best
    below, end = clock.levels[level - 1].first, clock.levels[level].first
    for child in range(below + begin, min(below + begin + 16, end)):
        best = min(best, clock.nodes[child].soonest)
    return best


@jit
def refresh(clock: Timeline) -> float:
    """Repair the tree; returns the soonest completion."""
    nodes, last = clock.nodes, len(clock.levels) - 2
    # Nodes below this level hold the least of their children; the queue of a level lists those that may not.
    for level in range(last + 1):
        first, above = clock.levels[level].first, clock.levels[level + 1].first
        for queued in range(clock.levels[level].queued):
            node = nodes[first + queued].queue
            nodes[first + node].soonest = least(clock, level, node)
            nodes[first + node].dirty = 0
            parent = node >> 4
            if level < last and nodes[above + parent].dirty == 0:
                nodes[above + parent].dirty = 1
                nodes[above + clock.levels[level + 1].queued].queue = parent
                clock.levels[level + 1].queued += 1
        clock.levels[level].queued = 0
    return float(nodes[len(nodes) - 1].soonest)


@jit
def collect(clock: Timeline, flow_list: Records, latest: float) -> int:
    """List the flows that complete by a time as ``due``, in order; returns how many."""
    nodes, levels, last = clock.nodes, clock.levels, len(clock.levels) - 2
    found, node, level = 0, 0, last
    # In order from the left: leaves left of `node` at its level are listed; a subtree whose least is later than
    # `latest` is passed as a whole.
    while level <= last:
        if nodes[levels[level].first + node].soonest <= latest:
            if level > 0:
                level, node = level - 1, node << 4
                continue
            for leaf in range(node << 4, min((node << 4) + 16, len(clock.finish))):
                if clock.finish[leaf] <= latest:
                    flow_list[found].due = leaf
                    found += 1
        node += 1
        while level <= last and (node & 15 == 0 or levels[level].first + node >= levels[level + 1].first):
            node = ((node - 1) >> 4) + 1
            level += 1
    return found


FAIR, SHORTEST = 0, 1
INSTANT = 1e-13
"""Relative difference of two times that is rounding."""


@jit
def seed(net: Net, link: int, kind: int) -> None:
    """Note that a link has to be looked at again."""
    this = net.link_list[link]
    if this.seeded == 0:
        net.link_list[net.counter[SEEDS]].seed = link
        net.counter[SEEDS] += 1
    this.seeded = max(this.seeded, kind)


@jit
def make_room(net: Net, link: int) -> None:
    """Give a link twice as many slots; all it ever had are fewer than four times its flows, or few."""
    this, first = net.links[link], net.counter[TAKEN]
    # Old slots are left unused: because rooms double, they are fewer than those of the new room.
    for at in range(this.count):
        old, new = net.slots[this.first + at], net.slots[first + at]
        new.flow, new.place, new.share = old.flow, old.place, old.share
        net.path[new.place].slot = first + at
    this.first, this.room = first, max(2 * this.room, FEW)
    net.counter[TAKEN] += this.room


@jit
def join(net: Net, flow: int) -> None:
    """A flow becomes active."""
    this, seat = net.flows[flow], net.counter[LIVE]
    net.trips[flow].seat, this.level = seat, np.inf
    net.flow_list[seat].live = flow
    net.counter[LIVE] += 1
    net.counter[COME] += 1
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        link = net.links[number]
        if link.count == link.room:
            make_room(net, number)
        slot = link.first + link.count
        net.slots[slot].flow, net.slots[slot].place = flow, place
        net.slots[slot].share = net.path[place].share
        net.path[place].slot = slot
        link.count += 1
        seed(net, number, MORE)


@jit
def leave(net: Net, flow: int) -> None:
    """A flow is active no more; the last active ones take its seats."""
    this = net.flows[flow]
    net.counter[LIVE] -= 1
    last = net.flow_list[net.counter[LIVE]].live
    seat = net.trips[flow].seat
    net.flow_list[seat].live, net.trips[last].seat = last, seat
    # The last slot of the link fills the gap, so that active flows lie at the front of its slots.
    for place in range(this.first, this.end):
        number = wide(net.path[place].link)
        link = net.links[number]
        link.count -= 1
        free, last_slot = net.slots[net.path[place].slot], net.slots[link.first + link.count]
        free.flow, free.place, free.share = last_slot.flow, last_slot.place, last_slot.share
        net.path[free.place].slot = net.path[place].slot
        seed(net, number, LESS)


@jit
def complete(net: Net, clock: Timeline, flow: int, now: float) -> None:
    """A flow has ended, and with the last one of its phase the phase."""
    trip = net.trips[flow]
    trip.completion = now
    clock.phases[trip.phase].unfinished -= 1
    if clock.phases[trip.phase].unfinished == 0:
        end_phase(net, clock, trip.phase, now)


@jit
def end_phase(net: Net, clock: Timeline, phase: int, now: float) -> None:
    """Let the phases that waited for this one last begin after their delay."""
    this = clock.phases[phase]
    this.end = now
    net.counter[HALTS] += this.halts
    for at in range(this.next_first, this.next_end):
        number = clock.next_phase[at]
        later = clock.phases[number]
        later.waiting -= 1
        if later.waiting == 0:
            begin = max(now + later.delay, later.start)
            net.counter[READY] = push(clock.ready, net.counter[READY], begin, number)


@jit
def arrive(net: Net, clock: Timeline, flow: int, now: float) -> None:
    """The first byte of a flow moves."""
    this, trip = net.flows[flow], net.trips[flow]
    bare = this.first == this.end
    trip.begin = now
    if trip.bytes <= 0.0 or (bare and this.top == np.inf):
        complete(net, clock, flow, now)
        return
    join(net, flow)
    trip.rate, trip.since = 0.0, now
    if bare:
        this.level, trip.rate = this.top, this.top * this.weight
        clock.finish[flow] = now + trip.bytes / trip.rate
        touch(clock, flow)


@jit
def begin_phase(net: Net, clock: Timeline, phase: int, now: float) -> None:
    """Start a phase's flows, each after its latency."""
    this = clock.phases[phase]
    this.begin = now
    if this.unfinished == 0:
        end_phase(net, clock, phase, now)
        return
    for at in range(this.flow_first, this.flow_end):
        flow = clock.flow_order[at]
        latency = net.trips[flow].latency
        if latency <= 0.0:
            arrive(net, clock, flow, now)
        else:
            net.counter[ARRIVALS] = push(clock.arrivals, net.counter[ARRIVALS], now + latency, flow)


@jit
def finish_flows(net: Net, clock: Timeline, now: float, latest: float) -> None:
    """All completions of one instant."""
    for at in range(collect(clock, net.flow_list, latest)):
        flow = net.flow_list[at].due
        clock.finish[flow] = np.inf
        touch(clock, flow)
        leave(net, flow)
        complete(net, clock, flow, now)


@jit
def happen(net: Net, clock: Timeline, now: float) -> None:
    """Everything of one instant except new rates."""
    latest, counter = now * (1.0 + INSTANT), net.counter
    finish_flows(net, clock, now, latest)
    while counter[EVENT] < len(clock.events) and clock.events[counter[EVENT]].time <= latest:
        event = clock.events[counter[EVENT]]
        net.links[event.link].capacity = event.capacity
        seed(net, event.link, MORE)
        counter[EVENT] += 1
    # A phase may begin and end at once and ready others of this instant: until neither heap has one due.
    while True:
        if counter[READY] > 0 and clock.ready[0].key <= latest:
            phase = clock.ready[0].item
            counter[READY] = pop(clock.ready, counter[READY])
            begin_phase(net, clock, phase, now)
        elif counter[ARRIVALS] > 0 and clock.arrivals[0].key <= latest:
            flow = clock.arrivals[0].item
            counter[ARRIVALS] = pop(clock.arrivals, counter[ARRIVALS])
            arrive(net, clock, flow, now)
        else:
            return


@jit
def apply_changes(net: Net, clock: Timeline, now: float) -> None:
    """Let the flows whose level changed go on at their new rates."""
    # Only here bytes are taken off: since `since` the rate was constant.
    for at in range(net.counter[CHANGED]):
        number = net.flow_list[at].changed
        flow, trip = net.flows[number], net.trips[number]
        trip.bytes_left = max(trip.bytes_left - trip.rate * (now - trip.since), 0.0)
        flow.level = flow.fresh
        trip.since, trip.rate = now, flow.weight * flow.fresh
        clock.finish[number] = now + trip.bytes_left / trip.rate if trip.rate > 0.0 else np.inf
        touch(clock, number)


@jit
def sample(net: Net, clock: Timeline, link: int, now: float) -> None:
    """Note a link's rate if it is another one now."""
    this, load = net.links[link], 0.0
    for slot in range(this.first, this.first + this.count):
        load += net.slots[slot].share * net.flows[net.slots[slot].flow].level
    if this.capacity < np.inf and abs(load - clock.sampled[link]) > INSTANT * max(load, clock.sampled[link]):
        clock.sampled[link] = load
        taken = clock.samples[net.counter[LOGGED]]
        taken.time, taken.link, taken.rate = now, link, load
        net.counter[LOGGED] += 1


@jit
def sample_changes(net: Net, clock: Timeline, now: float) -> None:
    """Sample the links that flows came to or left, and those of flows with another rate."""
    for at in range(net.counter[SEEDS]):
        sample(net, clock, net.link_list[at].seed, now)
    for at in range(net.counter[CHANGED]):
        flow = net.flows[net.flow_list[at].changed]
        for place in range(flow.first, flow.end):
            sample(net, clock, wide(net.path[place].link), now)


@jit
def share(net: Net, clock: Timeline, mode: int, local: float, now: float) -> None:
    """New rates and completion times, where they change."""
    counter = net.counter
    counter[SOLVES] += 1
    most = int(local * counter[LIVE])
    if mode == SHORTEST:
        fill_ranked(net, now)
    elif local > 0.0 and counter[COME] <= most and ripple(net, most):
        counter[RIPPLES] += 1
    else:
        fill_fair(net)
    apply_changes(net, clock, now)
    if len(clock.samples) > 0:
        sample_changes(net, clock, now)
    for at in range(counter[SEEDS]):
        net.link_list[net.link_list[at].seed].seeded = 0
    counter[SEEDS], counter[COME] = 0, 0


@jit
def soonest_of(net: Net, clock: Timeline) -> float:
    """When something happens next; infinity if nothing does."""
    counter, soonest = net.counter, refresh(clock)
    if counter[READY] > 0:
        soonest = min(soonest, clock.ready[0].key)
    if counter[ARRIVALS] > 0:
        soonest = min(soonest, clock.arrivals[0].key)
    if counter[LIVE] + counter[READY] + counter[ARRIVALS] > 0 and counter[EVENT] < len(clock.events):
        soonest = min(soonest, clock.events[counter[EVENT]].time)
    return soonest


@jit
def advance(net: Net, clock: Timeline, mode: int, local: float, until: float) -> bool:
    """Run on; True when nothing more happens up to a time, or a phase that halts has ended; False when the
    samples have to be taken away first."""
    # No event lies before `now`, rates are those of all active flows, and samples have room for one instant.
    while net.counter[HALTS] == 0:
        if 0 < len(clock.samples) < net.counter[LOGGED] + len(net.links):
            return False
        soonest = soonest_of(net, clock)
        if soonest == np.inf or soonest > until * (1.0 + INSTANT):
            return True
        clock.now[0] = max(clock.now[0], soonest)
        happen(net, clock, clock.now[0])
        if net.counter[SEEDS] > 0:
            share(net, clock, mode, local, clock.now[0])
    return True
