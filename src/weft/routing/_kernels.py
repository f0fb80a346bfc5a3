"""Compiled loops of routers: the best way of a flow, moves and chains of flows, ways of given links, edge colours.

A *place* is a link on a flow's present path, ``flow * width + column`` over its way up, then its way down.
Each link lists its places (``head``, ``after``, ``before``), so that the flows on it are found without a search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.solvers._jit import jit

TIE = 1e-9
"""Relative difference of two loads that is rounding."""


@jit
def meet(top: Any, limits: Any, met: Any) -> None:
    """Whether the tops of two sorted lists of ways have one in common."""
    for pair in range(limits.shape[1]):
        a, b = limits[0, pair], limits[2, pair]
        # Sorted lists: what lies before `a` and before `b` has no partner.
        while a < limits[1, pair] and b < limits[3, pair]:
            if top[a] == top[b]:
                met[pair] = True
                break
            if top[a] < top[b]:
                a += 1
            else:
                b += 1


@jit
def peak(load: Any, inverse: Any, links: Any, way: int, demand: float, worst: float) -> float:
    """The highest load on a way's links with one more flow on them, or ``worst`` if that is more."""
    for column in range(links.shape[1]):
        link = links[way, column]
        if link >= 0:
            worst = max(worst, load[link] + demand * inverse[link])
    return worst


@jit
def total(load: Any, inverse: Any, links: Any, way: int, demand: float) -> float:
    """What a flow adds to the sum of squared loads of a way's links."""
    result = 0.0
    for column in range(links.shape[1]):
        link = links[way, column]
        if link >= 0:
            more = demand * inverse[link]
            result += more * (2.0 * load[link] + more)
    return result


@jit
def skip(top: Any, a: int, a_end: int, b: int, b_end: int) -> Any:
    """The next pair of ways, from ``a`` and ``b`` on, with the same top."""
    while a < a_end and b < b_end and top[a] != top[b]:
        if top[a] < top[b]:
            a += 1
        else:
            b += 1
    return a, b


@jit
def best(ways: Any, flow: int, load: Any, inverse: Any, demand: float, smooth: bool) -> Any:
    """The ways up and down with the least peak; among equals the first, or (``smooth``) that with the
    least total.
    """
    # A path is a way up and a way down with the same top.  Both lists are sorted by top, so that one sweep over the
    # two meets every path once.
    found_a, found_b, least, least_total = -1, -1, np.inf, np.inf
    a, b = ways.up_first[flow], ways.down_first[flow]
    a_end, b_end = ways.up_end[flow], ways.down_end[flow]
    a, b = skip(ways.top, a, a_end, b, b_end)
    # Ways are sorted by top: `b` is the first way down from the top of `a`, or from a later one.
    while a < a_end and b < b_end:
        top = ways.top[a]
        up = peak(load, inverse, ways.up, a, demand, 0.0)
        # The peak of the way up alone bounds that of the path from below: a higher one cannot win.
        if up <= least:
            mate = b
            while mate < b_end and ways.top[mate] == top:
                high = peak(load, inverse, ways.down, mate, demand, up)
                lower, now = high < least * (1 - TIE) or found_a < 0, 0.0
                # Equal peaks: the path that adds least to the squared loads leaves most room for the flows that
                # follow.
                if smooth and (lower or high <= least * (1 + TIE)):
                    now = total(load, inverse, ways.up, a, demand) + total(load, inverse, ways.down, mate, demand)
                    if not lower and now < least_total * (1 - TIE):
                        found_a, found_b, least_total = a, mate, now
                if lower:
                    found_a, found_b, least, least_total = a, mate, high, now
                mate += 1
        a += 1
        if a < a_end and ways.top[a] != top:
            a, b = skip(ways.top, a, a_end, b, b_end)
    return found_a, found_b, least


@jit
def link_at(ways: Any, a: int, b: int, column: int) -> Any:
    """The link in a column of a path, which are those of its way up, then of its way down; -1 for none."""
    width = ways.up.shape[1]
    return ways.up[a, column] if column < width else ways.down[b, column - width]


@jit
def settle(net: Any, ways: Any, flow: int, a: int, b: int) -> None:
    """Put a flow on a path: loads, and its place on every link."""
    # Every link of the path gets the flow's place at the front of its list: constant time, whatever its length.
    net.up[flow], net.down[flow] = a, b
    width = 2 * ways.up.shape[1]
    for column in range(width):
        link = link_at(ways, a, b, column)
        if link < 0:
            continue
        place = flow * width + column
        net.load[link] += net.demand[flow] * net.inverse[link]
        net.before[place], net.after[place] = -1, net.head[link]
        if net.head[link] >= 0:
            net.before[net.head[link]] = place
        net.head[link] = place


@jit
def lift(net: Any, ways: Any, flow: int) -> None:
    """Take a flow off its path."""
    width = 2 * ways.up.shape[1]
    a, b = net.up[flow], net.down[flow]
    for column in range(width):
        link = link_at(ways, a, b, column)
        if link < 0:
            continue
        place = flow * width + column
        # The list is doubly linked, so that a place leaves it without a search.
        net.load[link] -= net.demand[flow] * net.inverse[link]
        # A link without flows has load 0 exactly (or what is fixed): sums and differences round.
        if net.head[link] == place:
            net.head[link] = net.after[place]
            net.load[link] = 0.0 if net.after[place] < 0 and net.fixed[link] == 0.0 else net.load[link]
        else:
            net.after[net.before[place]] = net.after[place]
        if net.after[place] >= 0:
            net.before[net.after[place]] = net.before[place]
    net.up[flow] = -1


@jit
def excess(net: Any, links: Any, way: int, demand: float, target: float) -> float:
    """How much has to leave the links of a way for a flow to fit below ``target``."""
    result = 0.0
    for column in range(links.shape[1]):
        link = links[way, column]
        if link >= 0:
            result += max(net.load[link] + demand * net.inverse[link] - target, 0.0)
    return result


@jit
def cheapest(net: Any, ways: Any, flow: int, target: float) -> Any:
    """The path from whose links least has to leave; among equals the one whose last guest came longest ago."""
    found_a, found_b, least, oldest = -1, -1, np.inf, np.int64(2**62)
    demand = net.demand[flow]
    a, b = ways.up_first[flow], ways.down_first[flow]
    a_end, b_end = ways.up_end[flow], ways.down_end[flow]
    a, b = skip(ways.top, a, a_end, b, b_end)
    while a < a_end and b < b_end:
        top, mate = ways.top[a], b
        up = excess(net, ways.up, a, demand, target)
        while mate < b_end and ways.top[mate] == top:
            over = up + excess(net, ways.down, mate, demand, target)
            if over <= least + TIE:
                # Equal excess: the links that were filled longest ago, so that a chain does not go back and forth
                # between two.
                age = latest(net, ways, a, mate)
                if over < least - TIE or age < oldest:
                    found_a, found_b, least, oldest = a, mate, over, age
            mate += 1
        a += 1
        if a < a_end and ways.top[a] != top:
            a, b = skip(ways.top, a, a_end, b, b_end)
    return found_a, found_b


@jit
def latest(net: Any, ways: Any, a: int, b: int) -> Any:
    """The last stamp of a path's links."""
    result = np.int64(0)
    for column in range(2 * ways.up.shape[1]):
        link = link_at(ways, a, b, column)
        if link >= 0:
            result = max(result, net.stamp[link])
    return result


@jit
def fill_path(net: Any, ways: Any, a: int, b: int, now: int) -> None:
    """Stamp a path's links."""
    for column in range(2 * ways.up.shape[1]):
        link = link_at(ways, a, b, column)
        if link >= 0:
            net.stamp[link] = now


@jit
def displace(net: Any, ways: Any, a: int, b: int, keep: int, target: float, waiting: int) -> int:
    """Take flows off the links of a path until they are within ``target``; put them in the queue.  -1: no room."""
    for column in range(2 * ways.up.shape[1]):
        link = link_at(ways, a, b, column)
        # What is lifted here waits in the queue; `keep` stays.
        while link >= 0 and net.load[link] > target * (1 + TIE):
            guest = victim(net, ways, link, keep, net.load[link] - target)
            if guest < 0 or waiting >= len(net.queue):
                return -1
            remember(net, guest)
            lift(net, ways, guest)
            net.queue[waiting] = guest
            waiting += 1
    return waiting


@jit
def victim(net: Any, ways: Any, link: int, keep: int, over: float) -> int:
    """The flow to leave a link: the smallest that is enough, otherwise the largest; -1 if none may."""
    result, size, width = -1, np.inf, 2 * ways.up.shape[1]
    place = net.head[link]
    while place >= 0:
        flow = place // width
        demand = net.demand[flow] * net.inverse[link]
        if flow != keep:
            # One flow that is enough costs its demand, the smallest best; of those that are not the largest leaves
            # first, so that few have to.
            cost = demand if demand >= over * (1 - TIE) else 1e18 / max(demand, 1e-30)
            if cost < size:
                result, size = flow, cost
        place = net.after[place]
    return result


@jit
def remember(net: Any, flow: int) -> None:
    """Note where a flow was before this chain moved it for the first time."""
    if net.moved[flow] != net.clock[1]:
        net.moved[flow] = net.clock[1]
        net.log[net.clock[2]] = flow
        net.old_up[flow], net.old_down[flow] = net.up[flow], net.down[flow]
        net.clock[2] += 1


@jit
def undo(net: Any, ways: Any) -> None:
    """Put all flows that this chain moved back where they were."""
    # All leave before any returns: a former path may need room that a flow of the chain still has.
    # The log has each flow once, with the path that it had before the chain.
    for at in range(net.clock[2]):
        if net.up[net.log[at]] >= 0:
            lift(net, ways, net.log[at])
    for at in range(net.clock[2]):
        flow = net.log[at]
        if net.old_up[flow] >= 0:
            settle(net, ways, flow, net.old_up[flow], net.old_down[flow])


@jit
def chain(net: Any, ways: Any, flow: int, target: float, steps: int) -> bool:
    """Find ``flow`` a path on which no link exceeds ``target``, displacing others, which seek paths in turn.

    True if all have one; otherwise everything is as before.
    """
    # Step 1: the flow leaves its path and waits.
    net.clock[1] += 1
    net.clock[2] = 0
    remember(net, flow)
    if net.up[flow] >= 0:
        lift(net, ways, flow)
    net.queue[0] = flow
    waiting = 1
    # Flows without a path are those in the queue; links outside of paths just filled are within `target` or were
    # above it before the chain began.
    for _ in range(steps):
        # Step 2: the last to wait takes the path from which least has to leave (depth first, so that the queue is
        # short).
        waiting -= 1
        this = net.queue[waiting]
        a, b = cheapest(net, ways, this, target)
        settle(net, ways, this, a, b)
        net.clock[0] += 1
        fill_path(net, ways, a, b, net.clock[0])
        # Step 3: what is too much on that path waits in turn.  The chain ends when nobody waits.
        waiting = displace(net, ways, a, b, this, target, waiting)
        if waiting == 0:
            return True
        if waiting < 0:
            break
    undo(net, ways)
    return False


@jit
def keep(net: Any, ways: Any, up: Any, down: Any, target: float) -> int:
    """Put flows back on the paths ``up``, ``down`` where no link then exceeds ``target``; how many went."""
    count = 0
    for flow in range(len(up)):
        a, b = net.up[flow], net.down[flow]
        if up[flow] < 0 or (a == up[flow] and b == down[flow]):
            continue
        # Tried without the flow's own load, which its former path may share with the present one.
        lift(net, ways, flow)
        high = peak(net.load, net.inverse, ways.up, up[flow], net.demand[flow], 0.0)
        high = peak(net.load, net.inverse, ways.down, down[flow], net.demand[flow], high)
        if high <= target * (1 + TIE):
            settle(net, ways, flow, up[flow], down[flow])
            count += 1
        else:
            settle(net, ways, flow, a, b)
    return count


@jit
def relax(net: Any, ways: Any, target: float) -> int:
    """Move flows off links above ``target`` to better paths, one at a time; how many moved."""
    moves, width = 0, 2 * ways.up.shape[1]
    for link in range(len(net.load)):
        place = net.head[link]
        # A move changes the list of flows; each lowers the flow's own peak, so that the loop ends.
        while place >= 0 and net.load[link] > target * (1 + TIE):
            following, flow = net.after[place], place // width
            # A flow moves only where its own highest link becomes lower.
            highest = peak(net.load, net.inverse, ways.up, net.up[flow], 0.0, 0.0)
            highest = peak(net.load, net.inverse, ways.down, net.down[flow], 0.0, highest)
            a_old, b_old = net.up[flow], net.down[flow]
            lift(net, ways, flow)
            a, b, high = best(ways, flow, net.load, net.inverse, net.demand[flow], True)
            if high < highest * (1 - TIE):
                settle(net, ways, flow, a, b)
                moves += 1
                following = net.head[link]
            else:
                settle(net, ways, flow, a_old, b_old)
            place = following
    return moves


@jit
def repair(net: Any, ways: Any, target: float, steps: int, tries: int) -> bool:
    """Bring every link within ``target`` by chains from the flows on links above it; True if that
    succeeds.
    """
    width = 2 * ways.up.shape[1]
    for _ in range(tries):
        # One round: each overloaded link sheds flows by chains until it is within the target or no chain succeeds.  A
        # later round may succeed where this one did not, as other links have changed.
        over = 0
        for link in range(len(net.load)):
            stuck = False
            while net.load[link] > target * (1 + TIE) and net.head[link] >= 0 and not stuck:
                stuck = True
                place = net.head[link]
                while place >= 0:
                    flow, following = place // width, net.after[place]
                    if chain(net, ways, flow, target, steps):
                        stuck = False
                        break
                    # A failed chain puts flows back in another order, so that the list may end here.
                    place = following if net.up[flow] >= 0 and following >= 0 else -1
                    if net.clock[3] >= net.clock[4]:
                        return False
                    net.clock[3] += 1
            over += net.load[link] > target * (1 + TIE)
        if over == 0:
            return True
    return False


@jit
def weigh(load: Any, inverse: Any, demand: Any, links: Any) -> None:
    """Add the flows to the load of the links in their rows; -1 is none."""
    for flow in range(len(links)):
        for column in range(links.shape[1]):
            link = links[flow, column]
            if link >= 0:
                load[link] += demand[flow] * inverse[link]


@jit
def crossing(
    part: Any, source: Any, target: Any, demand: Any, listed: Any, sent: Any, flows: Any, first: Any, span: Any
) -> None:
    """Add up the demands (``sent``) and number (``flows``) of the flows that leave and enter each part of each level;
    of those of a level the ``first``, and the least and most demand (``span``)."""
    for flow in range(len(demand)):
        if listed[flow]:
            continue
        for level in range(part.shape[1]):
            a, b = part[source[flow], level], part[target[flow], level]
            # Parts of a level lie in parts of the next: flows that meet in one go no higher.
            if a == b:
                break
            sent[0, a] += demand[flow]
            sent[1, b] += demand[flow]
            flows[0, a] += 1
            flows[1, b] += 1
            span[0, level], span[1, level] = min(span[0, level], demand[flow]), max(span[1, level], demand[flow])
            if first[level] < 0:
                first[level] = flow


@jit
def settle_all(net: Any, ways: Any, up: Any, down: Any) -> None:
    """Every flow with a way on its path."""
    for flow in range(len(up)):
        if up[flow] >= 0:
            settle(net, ways, flow, up[flow], down[flow])


@jit
def place_all(net: Any, ways: Any, order: Any, smooth: bool) -> None:
    """Each flow of ``order`` that has no way yet on its best one."""
    for at in range(len(order)):
        flow = order[at]
        if net.up[flow] < 0:
            a, b, _ = best(ways, flow, net.load, net.inverse, net.demand[flow], smooth)
            settle(net, ways, flow, a, b)


# Links of paths ------------------------------------------------------------------------------------


@jit
def all_up(links: Any, up: Any, live: Any) -> None:
    """Which rows of ``links`` (-1 behind) are paths over links that are up."""
    for flow in range(len(links)):
        live[flow] = links.shape[1] > 0 and links[flow, 0] >= 0
        for column in range(links.shape[1]):
            link = links[flow, column]
            if link < 0 or not live[flow]:
                break
            live[flow] = up[link]


@jit
def capped(links: Any, capacity: Any, number: Any, left: Any, rates: Any, places: Any, ends: Any) -> Any:
    """Cap every flow at the links that it has alone; number the other links in order of their first flow, from 1.

    ``number`` begins with zeros; ``left`` gets the capacities of the numbered links, ``places`` their numbers less 1,
    those of a flow up to its ``ends``.  How many places there are, and links.
    """
    # Step 1: links with one flow get -1, others -2.
    for flow in range(len(links)):
        for column in range(links.shape[1]):
            if links[flow, column] >= 0:
                number[links[flow, column]] = max(number[links[flow, column]] - 1, -2)
    used, shared = 0, 0
    for flow in range(len(links)):
        for column in range(links.shape[1]):
            link = links[flow, column]
            if link < 0:
                continue
            # Step 2: what no other flow takes is a cap on this one.
            if number[link] == -1:
                rates[flow] = min(rates[flow], capacity[link])
                continue
            # Step 3: the rest is to share.
            if number[link] == -2:
                left[shared] = capacity[link]
                shared += 1
                number[link] = shared
            places[used] = number[link] - 1
            used += 1
        ends[flow] = used
    return used, shared


# Ways of given links ------------------------------------------------------------------------------


@jit
def first_with(tops: Any, low: int, high: int, top: int) -> int:
    """The first of the ways from ``low`` to ``high`` with a top, or where it would be: they are sorted by top."""
    # Ways before `low` have a lower top, those from `high` on the same or a higher one.
    while low < high:
        middle = (low + high) // 2
        if tops[middle] < top:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def locate(ways: Any, first: Any, end: Any, top: Any, links: Any, result: Any) -> None:
    """The way to a top with given links, of those from ``first`` to ``end``; -1 where there is none."""
    for at in range(len(first)):
        # Step 1: the first way with the top.  Step 2: of the ways with that top the one with the same links.
        low = first_with(ways.top, first[at], end[at], top[at])
        while low < end[at] and ways.top[low] == top[at]:
            same = True
            for column in range(links.shape[1]):
                same = same and ways.up[low, column] == links[at, column]
            if same:
                result[at] = low
                break
            low += 1


@jit
def follow(ways: Any, target: Any, flows: Any, links: Any, up: Any, down: Any) -> None:
    """The ways up and down that make the path in a flow's row of ``links`` (-1 behind it); -1 where
    none do.  ``target``: of every link.
    """
    for at in range(len(flows)):
        flow = flows[at]
        # A path is first link, way up, way down, last link.  Each part must follow on the one before, and nothing may
        # be left behind the last.
        begin = 1 if ways.first[flow] >= 0 else 0
        if begin == 1 and links[flow, 0] != ways.first[flow]:
            continue
        start = ways.up_first[flow]
        # Ways of a host with one NIC are from the table: as long as each other, and the last link ends at the top.
        last = begin - 1
        for column in range(ways.up.shape[1]):
            last += start < ways.up_end[flow] and ways.up[start, column] >= 0
        if begin == 1 and last > 0 and last < links.shape[1] and links[flow, last] >= 0:
            start = first_with(ways.top, start, ways.up_end[flow], target[links[flow, last]])
        for a in range(start, ways.up_end[flow]):
            after = follows(ways.up, a, links, flow, begin)
            if after >= 0:
                b = way_down(ways, flow, a, links, after)
                if b >= 0:
                    up[flow], down[flow] = a, b
                    break


@jit
def way_down(ways: Any, flow: int, a: int, links: Any, begin: int) -> int:
    """The way down from the top of ``a`` that a flow's row has from ``begin`` on; -1 if there is
    none.
    """
    b = first_with(ways.top, ways.down_first[flow], ways.down_end[flow], ways.top[a])
    while b < ways.down_end[flow] and ways.top[b] == ways.top[a]:
        end = follows(ways.down, b, links, flow, begin)
        if end >= 0 and ends(ways.last[flow], links, flow, end):
            return b
        b += 1
    return -1


@jit
def follows(table: Any, way: int, links: Any, flow: int, begin: int) -> int:
    """Where a way's links end in a flow's row, if they stand there from ``begin`` on; otherwise -1."""
    for column in range(table.shape[1]):
        link = table[way, column]
        if link < 0:
            continue
        if begin >= links.shape[1] or links[flow, begin] != link:
            return -1
        begin += 1
    return begin


@jit
def ends(last: int, links: Any, flow: int, begin: int) -> bool:
    """Whether a row goes on from ``begin`` with the last link, if there is one, and nothing else."""
    if last >= 0:
        if begin >= links.shape[1] or links[flow, begin] != last:
            return False
        begin += 1
    return bool(begin >= links.shape[1] or links[flow, begin] < 0)


# Edge colouring: Koenig's alternating paths on a bipartite multigraph ------------------------------

FREE, CLOSED = -1, -2
"""Places of ``out[u, c]`` and ``into[v, c]``, which hold the edge of colour ``c`` at a left and a right vertex: no
edge yet, or a colour that the vertex may not use."""


@jit
def put(graph: Any, edge: int, colour: int) -> None:
    """Give an edge a colour."""
    graph.out[graph.left[edge], colour] = edge
    graph.into[graph.right[edge], colour] = edge
    graph.colour[edge] = colour


@jit
def open_path(graph: Any, edge: int, a: int, b: int) -> bool:
    """Whether the path that leaves the right end of ``edge`` by colours a, b, a, ... meets no closed
    place.
    """
    right, at = True, graph.right[edge]
    # The path alternates sides and meets no edge twice: no more steps than vertices.
    for _ in range(2 * len(graph.left) + 2):
        following = graph.into[at, a] if right else graph.out[at, b]
        if following < 0:
            return bool(following == FREE)
        at = graph.left[following] if right else graph.right[following]
        right = not right
    return False


@jit
def flip(graph: Any, edge: int, a: int, b: int) -> int:
    """Give ``edge`` colour ``a``, which is free at its left end, and swap a and b along the path from its
    right end, where b is free; how many other edges changed."""
    changed, right = 0, graph.right[edge]
    # Step by step along the path: an edge takes the colour that the one before it had, and displaces the next.
    displaced = graph.into[right, a]
    put(graph, edge, a)
    # Every edge but `displaced` has one colour, and no vertex has two edges of one.
    while displaced >= 0:
        left = graph.left[displaced]
        if graph.out[left, a] == displaced:
            graph.out[left, a] = FREE
        following = graph.out[left, b]
        put(graph, displaced, b)
        changed += 1
        if following < 0:
            break
        right = graph.right[following]
        if graph.into[right, b] == following:
            graph.into[right, b] = FREE
        displaced = graph.into[right, a]
        put(graph, following, a)
        changed += 1
    return changed


@jit
def insert(graph: Any, edge: int, first: int) -> int:
    """Colour one edge; how many others changed for it, or -1 where it found no colour.

    Colours below ``first`` are tried last.
    """
    left, right, colours = graph.left[edge], graph.right[edge], graph.out.shape[1]
    # The cheap case: a colour that both ends have free.
    for turn in range(colours):
        colour = (first + turn) % colours
        if graph.out[left, colour] == FREE and graph.into[right, colour] == FREE:
            put(graph, edge, colour)
            return 0
    # Koenig: colour a is free at the left end, b at the right one.  The path of colours a and b from the right
    # end cannot reach the left one, so that swapping the two along it leaves a free at both ends.
    for a in range(colours):
        if graph.out[left, a] != FREE or graph.into[right, a] == CLOSED:
            continue
        for b in range(colours):
            if graph.into[right, b] == FREE and open_path(graph, edge, a, b):
                return flip(graph, edge, a, b)
    return -1


@jit
def insert_all(graph: Any, edges: Any) -> int:
    """Colour edges in order; how many already coloured ones changed."""
    changed = 0
    for at in range(len(edges)):
        changed += max(insert(graph, edges[at], 0), 0)
    return changed
