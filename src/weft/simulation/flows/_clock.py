"""The event loop: all that happens at one instant (completions, phases, arrivals), then new rates.

The soonest of the many completion times is the top of a wide tree of lower bounds of them, mended where they are too
low once they come to the top.

After a small change only what it reaches is solved again.  Levels are swept upwards, as in progressive filling.
Every flow is *presumed* to keep its level until the link that holds it fills at another one.  A link knows its
*members*, the flows that it holds and those that are open (they rise), and what the presumed levels of all others
leave: it fills at that room over the members' shares, or higher, should others turn out to have less.  Where that
level is

- below its old one, it cuts its members and all that are above down to it,
- above, it opens the flows that it held when the sweep comes to its old level.

So a flow is touched only if its level changes, and a link is looked at only where it may fill.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.solvers._arrays import ZERO, Floats, Ints, Records, wide
from weft.solvers._filling import (
    ARRIVALS,
    CHANGED,
    COME,
    EMPTY,
    EPOCH,
    FEW,
    LIVE,
    LOGGED,
    NO_LINK,
    OPEN,
    OPENED,
    PENDING,
    READY,
    RIPPLES,
    SAME,
    SEEDS,
    SOLVES,
    TAKEN,
    Net,
    fill_fair,
    is_new,
    share_of,
)
from weft.solvers._heap import pop, push
from weft.solvers._jit import jit

# Rates after a small change ------------------------------------------------------------------------

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


PHASE = np.dtype(
    [
        ("delay", np.float64),
        ("start", np.float64),
        ("begin", np.float64),
        ("end", np.float64),
        ("waiting", np.int64),  # phases that must end before it begins
        ("unfinished", np.int64),  # flows of it that have not completed
        ("flow_first", np.int64),
        ("flow_end", np.int64),
        ("next_first", np.int64),
        ("next_end", np.int64),
    ]
)
SAMPLE = np.dtype([("time", np.float64), ("link", np.int64), ("rate", np.float64)])


class Timeline(NamedTuple):
    """What happens when: a tree of the soonest completions, phases and arrivals."""

    finish: Floats
    nodes: Floats
    levels: Ints
    phases: Records
    flow_order: Ints
    next_phase: Ints
    ready: Records
    arrivals: Records
    samples: Records
    """Room for rates of links; none where they are not wanted."""
    sampled: Floats
    """Rates of links when last sampled."""
    now: Floats


@jit
def plan(clock: Timeline, flow: int, end: float) -> None:
    """Set a flow's completion time."""
    clock.finish[flow] = end
    node, level = flow >> 4, 0
    # A node is at most the least of its children; where it has become less, `soonest_end` mends it.
    while level < len(clock.levels) - 1 and end < clock.nodes[clock.levels[level] + node]:
        clock.nodes[clock.levels[level] + node] = end
        node >>= 4
        level += 1


@jit
def least(values: Floats, first: int, end: int) -> int:
    """Place of the least of some values."""
    best = first
    for at in range(first + 1, end):
        if values[at] < values[best]:
            best = at
    return best


@jit
def soonest_end(clock: Timeline) -> float:
    """When the next flow completes."""
    nodes, levels, last = clock.nodes, clock.levels, len(clock.levels) - 2
    # Step 1: descend from the root to the child with the least bound, down to the flows.  A bound is never above the
    # least below it (`plan` lowers bounds at once), so a completion time that is at most the root's bound is the
    # soonest.
    while True:
        node = 0
        for level in range(last - 1, -1, -1):
            first = levels[level]
            node = least(nodes, first + (node << 4), min(first + (node << 4) + 16, levels[level + 1])) - first
        first = node << 4
        soonest = clock.finish[least(clock.finish, first, min(first + 16, len(clock.finish)))]
        if soonest <= nodes[levels[last]]:
            return float(soonest)
        # Step 2: otherwise the bounds on this path are too low, because a flow ended or was put off.  Raise them to
        # the least of their children and look again; each round makes at least one bound exact, so that the search
        # ends.
        nodes[node] = soonest
        for level in range(1, last + 1):
            below, node = levels[level - 1], node >> 4
            first = below + (node << 4)
            nodes[levels[level] + node] = nodes[least(nodes, first, min(first + 16, levels[level]))]


@jit
def collect(clock: Timeline, flow_list: Records, latest: float) -> int:
    """List the flows that complete by a time as ``due``, in order; returns how many."""
    nodes, levels, last = clock.nodes, clock.levels, len(clock.levels) - 2
    result, node, level = 0, 0, last
    # In order from the left: leaves left of `node` at its level are listed; a subtree whose least is later than
    # `latest` is passed as a whole.
    while level <= last:
        if nodes[levels[level] + node] <= latest:
            if level > 0:
                level, node = level - 1, node << 4
                continue
            for leaf in range(node << 4, min((node << 4) + 16, len(clock.finish))):
                if clock.finish[leaf] <= latest:
                    flow_list[result].due = leaf
                    result += 1
        node += 1
        while level <= last and (node & 15 == 0 or levels[level] + node >= levels[level + 1]):
            node = ((node - 1) >> 4) + 1
            level += 1
    return result


INSTANT = 1e-13
"""Relative difference of two times that is rounding."""


@jit
def seed(net: Net, link: int) -> None:
    """Note that a link has to be looked at again."""
    if net.link_list[link].seeded == 0:
        net.link_list[link].seeded = 1
        net.link_list[net.counter[SEEDS]].seed = link
        net.counter[SEEDS] += 1


@jit
def make_room(net: Net, link: int) -> None:
    """Give a link twice as many slots; all it ever had are fewer than four times its flows, or few."""
    this, first = net.links[link], net.counter[TAKEN]
    # Old slots are left unused: because rooms double, they are fewer than those of the new room.
    for at in range(this.count):
        old, new = net.slots[this.first + at], net.slots[first + at]
        new.flow, new.place = old.flow, old.place
        net.path[new.place].slot = first + at
    this.first, this.room = first, max(2 * this.room, FEW)
    net.counter[TAKEN] += this.room


@jit
def join(net: Net, flow: int) -> None:
    """A flow becomes active."""
    # A flow comes as an open member of all its links, with the level inf and no limit: by that a solution knows it.
    this, seat = net.flows[flow], net.counter[LIVE]
    net.trips[flow].seat, this.level, this.limit = seat, np.inf, NO_LINK
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
        net.path[place].slot = slot
        link.count += 1
        link.rising += share_of(net, place)
        link.open += 1
        seed(net, number)


@jit
def take_off(net: Net, number: int, share: float, flow: int) -> None:
    """A link loses a flow."""
    link, this = net.links[number], net.flows[flow]
    # A member counts in `rising` and `open`, any other flow in `left` (see `LINK`).  The last flow resets all sums, so
    # that what differences rounded does not pile up.
    if link.count == 0:
        link.left, link.rising, link.open, link.full_at = link.capacity, 0.0, 0, np.inf
    elif this.limit == number:
        link.rising -= share
        link.open -= 1
        if link.open == 0:
            link.rising, link.full_at = 0.0, np.inf
    else:
        link.left += share * this.level


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
        take_off(net, number, share_of(net, place), flow)
        free, last_slot = net.slots[net.path[place].slot], net.slots[link.first + link.count]
        free.flow, free.place = last_slot.flow, last_slot.place
        net.path[free.place].slot = net.path[place].slot
        seed(net, number)


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
    # Each phase counts those that it still waits for; the one that brings the count to 0 makes it ready.
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
    # Without links only the cap bounds a flow; without a cap either it takes no time.
    bare = this.first == this.end
    trip.begin = now
    if trip.bytes <= 0.0 or (bare and this.top == np.inf):
        complete(net, clock, flow, now)
        return
    join(net, flow)
    trip.rate, trip.since = 0.0, now
    if bare:
        this.level, trip.rate = this.top, this.top * this.weight
        plan(clock, flow, now + trip.bytes / trip.rate)


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
        leave(net, flow)
        complete(net, clock, flow, now)


@jit
def happen(net: Net, clock: Timeline, now: float) -> None:
    """Everything of one instant except new rates."""
    latest, counter = now * (1.0 + INSTANT), net.counter
    counter[COME] = 0
    # Completions come first, as they free links and end phases.  Then phases and flows begin; neither needs rates,
    # which are solved once when all of the instant has happened.
    finish_flows(net, clock, now, latest)
    # A phase may begin and end at once and ready others of this instant: until neither heap has one due.
    while True:
        if counter[READY] > 0 and clock.ready[0].key <= latest:
            phase = clock.ready[0].number
            counter[READY] = pop(clock.ready, counter[READY])
            begin_phase(net, clock, phase, now)
        elif counter[ARRIVALS] > 0 and clock.arrivals[0].key <= latest:
            flow = clock.arrivals[0].number
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
        plan(clock, number, now + trip.bytes_left / trip.rate if trip.rate > 0.0 else np.inf)


@jit
def sample(net: Net, clock: Timeline, link: int, now: float) -> None:
    """Note a link's rate if it is another one now."""
    this, load = net.links[link], 0.0
    for slot in range(this.first, this.first + this.count):
        load += share_of(net, wide(net.slots[slot].place)) * net.flows[net.slots[slot].flow].level
    if this.capacity < np.inf and abs(load - clock.sampled[link]) > INSTANT * max(load, clock.sampled[link]):
        clock.sampled[link] = load
        entry = clock.samples[net.counter[LOGGED]]
        entry.time, entry.link, entry.rate = now, link, load
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
def share(net: Net, clock: Timeline, local: float, now: float) -> None:
    """New rates and completion times, where they change."""
    counter = net.counter
    counter[SOLVES] += 1
    most = int(local * counter[LIVE])
    # Max-min fair levels are unique, so that the two ways to find them agree: around the change where few flows came
    # and few change their level (beyond `most` of them `ripple` gives up, with nothing decided), otherwise for all
    # flows.
    if local > 0.0 and counter[COME] <= most and ripple(net, most):
        counter[RIPPLES] += 1
    else:
        fill_fair(net)
    apply_changes(net, clock, now)
    if len(clock.samples) > 0:
        sample_changes(net, clock, now)
    for at in range(counter[SEEDS]):
        net.link_list[net.link_list[at].seed].seeded = 0
    counter[SEEDS] = 0


@jit
def soonest_of(net: Net, clock: Timeline) -> float:
    """When something happens next; infinity if nothing does."""
    counter, soonest = net.counter, soonest_end(clock)
    if counter[READY] > 0:
        soonest = min(soonest, clock.ready[0].key)
    if counter[ARRIVALS] > 0:
        soonest = min(soonest, clock.arrivals[0].key)
    return soonest


@jit
def advance(net: Net, clock: Timeline, local: float) -> bool:
    """Run on; True when nothing more happens, False when the samples have to be taken away first."""
    # No event lies before `now`, rates are those of all active flows, and samples have room for one instant.
    # The event loop: the next instant, all that happens then, and new rates where a link has other flows than before.
    # Without such a link every rate is still right.
    while True:
        if 0 < len(clock.samples) < net.counter[LOGGED] + len(net.links):
            return False
        soonest = soonest_of(net, clock)
        if soonest == np.inf:
            return True
        clock.now[0] = max(clock.now[0], soonest)
        happen(net, clock, clock.now[0])
        if net.counter[SEEDS] > 0:
            share(net, clock, local, clock.now[0])
