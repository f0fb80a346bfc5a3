"""Compiled loops of path finding: distances to a destination, walks down them, and UGAL; imported when needed.

A path costs 1 per link, and ``relay`` of the link on top where it enters an accelerator that is not the
destination.  Relays weigh more than any number of links (``paths`` sets them), so equal costs mean equal
numbers of links, and nodes met in order of links from the source are met after all that lead to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.solvers._jit import jit

FAR = np.int64(2**62)
"""Distance of what cannot be reached."""
LOCAL, DIRECT, FORWARDED, RELAYED, NONE = 0, 1, 2, 3, 4
"""How a pair is joined; see ``paths``."""
HASHED, SPRAYED = 0, 1


@jit
def mix(value: Any) -> Any:
    """A well mixed 64-bit number (the finalizer of splitmix64: Steele, Lea and Flood, OOPSLA 2014)."""
    value = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@jit
def root(label: Any, node: int) -> int:
    """The smallest node known to be joined with a node; the way there is halved (path halving)."""
    while label[node] != node:
        label[node] = label[label[node]]
        node = label[node]
    return node


@jit
def join(source: Any, target: Any, label: Any) -> None:
    """Lower ``label``, the number of every node, to the smallest node that links join it with (union-find)."""
    for at in range(len(source)):
        a, b = root(label, source[at]), root(label, target[at])
        # Labels point to smaller nodes only, so that a root is the smallest of its nodes.
        label[max(a, b)] = min(a, b)
    for node in range(len(label)):
        label[node] = label[label[node]]


@jit
def spread(
    net: Any, dist: Any, queue: Any, waiting: Any, tail: int, low: int, high: int, relays: bool, goal: int
) -> None:
    """Lower ``dist`` backwards over links of tiers ``low`` to ``high`` from the ``tail`` nodes queued.

    Without ``relays``, accelerators are left alone.  Whatever is not nearer than ``goal`` (unless that is -1) is
    not followed further.
    """
    ahead, behind, size = 0, tail, len(waiting)
    # Bellman and Ford with a queue: nodes that may still lower a neighbour are `waiting`, each once, so that the
    # ring of as many places as nodes never overflows.
    while ahead < behind:
        node = queue[ahead % size]
        ahead += 1
        waiting[node] = False
        if goal >= 0 and dist[node] >= dist[goal]:
            continue
        through, relay = dist[node] + 1, dist[node] > 0 and node < net.accelerators
        for at in range(net.in_first[node], net.in_first[node + 1]):
            before, tier = net.in_source[at], net.in_tier[at]
            if tier < low or tier > high or (not relays and before < net.accelerators):
                continue
            cost = through + (net.in_relay[at] if relay else 0)
            if cost < dist[before]:
                dist[before] = cost
                if not waiting[before]:
                    waiting[before] = True
                    queue[behind % size] = before
                    behind += 1


@jit
def clear(work: Any) -> None:
    """Forget all distances."""
    work.dist[:] = FAR
    work.base[:] = FAR


@jit
def reach(net: Any, dist: Any, keys: Any, key: int, queue: Any) -> None:
    """Distances of all switches to an accelerator under those of a key, over scale-out links alone."""
    for at in range(len(net.switches)):
        dist[net.switches[at]] = FAR
    ahead = behind = 0
    for at in range(keys.first[key], keys.first[key + 1]):
        switch = keys.switches[at]
        dist[switch], queue[behind] = 1, switch
        behind += 1
    while ahead < behind:
        node = queue[ahead]
        ahead += 1
        for at in range(net.into_first[node], net.into_first[node + 1]):
            before = net.into_source[at]
            if dist[before] == FAR:
                dist[before], queue[behind] = dist[node] + 1, before
                behind += 1


@jit
def approach(net: Any, dist: Any, node: int, target: int) -> Any:
    """Distance of an accelerator over scale-out links, from those of the switches above it."""
    best = FAR
    for at in range(net.out_first[node], net.out_first[node + 1]):
        link = net.out_links[at]
        after = net.target[link]
        if net.tier[link] > 0 and (after == target or after >= net.accelerators) and dist[after] < FAR:
            best = min(best, dist[after] + 1)
    return best


@jit
def local(net: Any, dist: Any, node: int, target: int, queue: Any, waiting: Any) -> bool:
    """Set distances inside the scale-up domain of both; False where its links do not join them."""
    scope = net.scope_of[net.domain[node]]
    for at in range(net.scope_first[scope], net.scope_first[scope + 1]):
        dist[net.scope[at]] = FAR
    dist[target] = 0
    queue[0] = target
    waiting[target] = True
    spread(net, dist, queue, waiting, 1, 0, 0, True, node)
    return bool(dist[node] < FAR)


@jit
def forward(net: Any, dist: Any, node: int, target: int, queue: Any, waiting: Any) -> bool:
    """Set distances inside the sender's domain, whose other accelerators send on over scale-out links."""
    domain, tail = net.domain[node], 0
    for at in range(net.member_first[domain], net.member_first[domain + 1]):
        peer = net.members[at]
        dist[peer] = approach(net, dist, peer, target) if peer != target else dist[peer]
        if dist[peer] < FAR:
            queue[tail] = peer
            waiting[peer] = True
            tail += 1
    spread(net, dist, queue, waiting, tail, 0, 0, True, node)
    return bool(dist[node] < FAR)


@jit
def restore(net: Any, dist: Any, base: Any, node: int) -> None:
    """Undo what was set in a domain: its accelerators and what its scale-up links join them with."""
    scope = net.scope_of[net.domain[node]]
    for at in range(net.scope_first[scope], net.scope_first[scope + 1]):
        dist[net.scope[at]] = base[net.scope[at]]


@jit
def settle(net: Any, dist: Any, base: Any, node: int, target: int, queue: Any, waiting: Any) -> int:
    """Distances that lead from ``node`` to ``target``, given those of the switches (``base``, see ``reach``).

    Returns how the pair is joined.
    """
    if net.domain[node] == net.domain[target]:
        if local(net, dist, node, target, queue, waiting):
            return LOCAL
        restore(net, dist, base, node)
    dist[target] = 0
    dist[node] = approach(net, dist, node, target)
    if dist[node] < FAR:
        return DIRECT
    if forward(net, dist, node, target, queue, waiting):
        return FORWARDED
    return RELAYED


@jit
def relayed(net: Any, dist: Any, node: int, target: int, queue: Any, waiting: Any) -> None:
    """Distances over all links, by way of any accelerators, of all nodes nearer than ``node`` (all if -1)."""
    dist[:] = FAR
    dist[target] = 0
    queue[0] = target
    waiting[target] = True
    spread(net, dist, queue, waiting, 1, 0, net.top, True, node)


@jit
def leads(net: Any, dist: Any, link: int, target: int, kind: int) -> bool:
    """Whether a link is on a shortest path."""
    after = net.target[link]
    if dist[after] == FAR or (kind == LOCAL and net.tier[link] > 0):
        return False
    extra = net.relay[link] if after < net.accelerators and after != target else 0
    return bool(dist[net.source[link]] == dist[after] + 1 + extra)


@jit
def compact(net: Any, work: Any) -> None:
    """List the links that lead on from each switch of ``base`` but those next to the destination."""
    used = 0
    for number in range(len(net.switches)):
        node = net.switches[number]
        work.ahead_first[node] = used
        if 1 < work.base[node] < FAR:
            for at in range(net.from_first[node], net.from_first[node + 1]):
                if work.base[net.from_target[at]] + 1 == work.base[node]:
                    work.ahead[used] = net.from_links[at]
                    used += 1
        work.ahead_first[node + 1] = used


@jit
def onward(net: Any, work: Any, node: int, target: int, kind: int, links: Any, used: int) -> int:
    """Write the links that lead on from a node; the entries used, or -1 where ``links`` is full."""
    if kind != LOCAL and work.dist[node] == work.base[node] and work.base[node] > 1:
        first, last = work.ahead_first[node], work.ahead_first[node + 1]
        if used + last - first > len(links):
            return -1
        for at in range(first, last):
            links[used + at - first] = work.ahead[at]
        return int(used + last - first)
    for at in range(net.out_first[node], net.out_first[node + 1]):
        if leads(net, work.dist, net.out_links[at], target, kind):
            if used == len(links):
                return -1
            links[used] = net.out_links[at]
            used += 1
    return used


@jit
def hashed(net: Any, work: Any, node: int, target: int, kind: int, salt: Any, links: Any, used: int) -> int:
    """Write one path, each hop drawn by hash from the cables that lead on.

    Returns the entries used, or -1 where ``links`` is full.
    """
    hop = 0
    # Distances fall with every hop, so the walk ends; the draw is by hop, so that equal switches draw apart.
    while node != target:
        if kind != LOCAL and work.dist[node] == work.base[node] and work.base[node] > 1:
            # Between switches every cable is a link: the draw needs no list of them.
            first, last = work.ahead_first[node], work.ahead_first[node + 1]
            if used == len(links):
                return -1
            links[used] = work.ahead[first + np.int64(mix(salt + np.uint64(hop)) % np.uint64(last - first))]
            node = net.target[links[used]]
            used, hop = used + 1, hop + 1
            continue
        stop = onward(net, work, node, target, kind, links, used)
        if stop < 0:
            return -1
        total = 0
        for i in range(used, stop):
            total += net.cables[links[i]]
        chosen = used
        if stop > used + 1:
            draw = np.int64(mix(salt + np.uint64(hop)) % np.uint64(total)) - net.cables[links[chosen]]
            while draw >= 0:
                chosen += 1
                draw -= net.cables[links[chosen]]
        links[used] = links[chosen]
        node = net.target[links[used]]
        used, hop = used + 1, hop + 1
    return used


@jit
def sprayed(net: Any, work: Any, node: int, target: int, kind: int, links: Any, usage: Any, used: int) -> int:
    """Write all links of all shortest paths, each node's share split evenly over the cables that lead on.

    Returns the entries used, or -1 where ``links`` is full.
    """
    queue, share = work.queue, work.share
    front, back = 0, 1
    queue[0], share[node] = node, 1.0
    # Nodes come in order of links from the source: when one is taken out, all its share has arrived.
    while front < back and used >= 0:
        node = queue[front]
        front += 1
        if node == target:
            continue
        begin, total = used, 0
        used = int(onward(net, work, node, target, kind, links, used))
        for i in range(begin, used):
            total += net.cables[links[i]]
        for i in range(begin, used):
            usage[i] = share[node] * net.cables[links[i]] / total
            after = net.target[links[i]]
            if share[after] == 0.0:
                queue[back] = after
                back += 1
            share[after] += usage[i]
    for i in range(back):
        share[queue[i]] = 0.0
    return used


@jit
def prepare(net: Any, work: Any, keys: Any, key: int) -> None:
    """Distances to the accelerators below the switches of a key; those of all others are as ``clear`` left them."""
    reach(net, work.dist, keys, key, work.queue)
    for at in range(len(net.switches)):
        work.base[net.switches[at]] = work.dist[net.switches[at]]
    compact(net, work)


@jit
def relay(net: Any, work: Any, flows: Any, flow: int) -> None:
    """Distances for a flow over relays: those of all nodes where the next flow has the same target."""
    group, last = flows.group, len(flows.group) - 1
    if flow > 0 and group[flow - 1] == group[flow] and work.dist[flows.target[flow]] == 0:
        return
    work.base[:] = FAR
    goal = -1 if flow < last and group[flow + 1] == group[flow] else flows.source[flow]
    relayed(net, work.dist, goal, flows.target[flow], work.queue, work.waiting)


@jit
def assign(
    net: Any, work: Any, flows: Any, keys: Any, mode: int, relaying: bool, begin: int, links: Any, usage: Any
) -> int:
    """Links of flows from number ``begin`` on, until ``links`` is full; the number of the first flow without.

    The flows come sorted by group: of the switches above their target, or of the target.  ``flows.end``
    receives the end of each flow's links, ``flows.joined`` whether it has any: without ``relaying``, those
    that only relays can join have none.
    """
    used, current = 0, -1
    clear(work)
    # `base` is that of the present group; `dist` differs from it only in the domains of one flow, which `restore`
    # undoes.
    for flow in range(begin, len(flows.source)):
        here, there = flows.source[flow], flows.target[flow]
        kind = RELAYED
        if relaying:
            relay(net, work, flows, flow)
        else:
            if flows.group[flow] != current:
                current = flows.group[flow]
                prepare(net, work, keys, current)
            kind = settle(net, work.dist, work.base, here, there, work.queue, work.waiting)
        joined = kind != RELAYED or (relaying and work.dist[here] < FAR)
        after = used
        if joined and mode == SPRAYED:
            after = sprayed(net, work, here, there, kind, links, usage, used)
        elif joined:
            after = hashed(net, work, here, there, kind, flows.salt[flow], links, used)
        if not relaying:
            restore(net, work.dist, work.base, here)
            restore(net, work.dist, work.base, there)
        if after < 0:
            return flow
        used = after
        flows.end[flow], flows.joined[flow] = used, joined
    return len(flows.source)


@jit
def salts(source: Any, target: Any, key: Any, seed: int, salt: Any) -> None:
    """Write a number per flow that its hash begins from."""
    first = mix(np.uint64(seed))
    for flow in range(len(source)):
        pair = mix(mix(first + np.uint64(source[flow])) + np.uint64(target[flow]))
        salt[flow] = mix(pair + np.uint64(key[flow]))


@jit
def distances(net: Any, work: Any, node: int, target: int, keys: Any, key: int) -> int:
    """Leave the distances that lead from a node to one under a key in ``work.dist``; how they are joined."""
    clear(work)
    prepare(net, work, keys, key)
    kind = settle(net, work.dist, work.base, node, target, work.queue, work.waiting)
    if kind == RELAYED:
        relayed(net, work.dist, node, target, work.queue, work.waiting)
        kind = RELAYED if work.dist[node] < FAR else NONE
    return kind


@jit
def worst_link(first: int, last: int, links: Any, capacity: Any, load: Any) -> Any:
    """Flows on the busiest link of a path for its capacity, one more counted, times the links of the path."""
    most = 0.0
    for at in range(first, last):
        most = max(most, (load[links[at]] + 1.0) / capacity[links[at]])
    return most * (last - first)


@jit
def choose_ugal(
    short_ptr: Any, short: Any, long_ptr: Any, long: Any, capacity: Any, load: Any, takes_long: Any
) -> None:
    """Write 1 for each flow that takes its long path, in order, each seeing those before it."""
    for flow in range(len(takes_long)):
        # UGAL: the path with the least product of its busiest link and its length; equal ones go the short way.
        near = worst_link(short_ptr[flow], short_ptr[flow + 1], short, capacity, load)
        far = worst_link(long_ptr[flow], long_ptr[flow + 1], long, capacity, load)
        takes_long[flow] = 1 if far < near else 0
        ptr, links = (long_ptr, long) if takes_long[flow] else (short_ptr, short)
        for at in range(ptr[flow], ptr[flow + 1]):
            load[links[at]] += 1.0
