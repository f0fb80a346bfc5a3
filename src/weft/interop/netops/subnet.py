"""An InfiniBand subnet as its subnet manager sees it: GUIDs, LIDs and ports beside the names of a fabric."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import SCALE_UP_SWITCH, levels
from weft.fabric.checks import some
from weft.fabric.spec import SCALE_UP, Fabric

SWITCH, ADAPTER, ROUTER, AGGREGATION = "switch", "adapter", "router", "aggregation node"
TOP_LID = 0xBFFF
"""The last unicast LID; the first is 1."""
TOP_LMC = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A switch, adapter, router or aggregation node; ``ports`` is its highest port number."""

    name: str
    kind: str
    guid: int
    ports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A port that has LIDs: port 0 of a switch, any port of another device.

    Its LIDs are ``lid .. lid + 2**lmc - 1``; ``lid`` is 0 where none is known.
    """

    device: int
    port: int
    guid: int
    lid: int
    lmc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A cable between two ports."""

    device: int
    port: int
    other: int
    other_port: int
    up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """Devices, their ends and the cables between them, in the order of the text; ``where`` names it."""

    where: str
    devices: tuple[Device, ...]
    ends: tuple[End, ...]
    wires: tuple[Wire, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matched:
    """A subnet with the state of a fabric's links, and the wire of each link.

    ``device`` is the device of each node of the fabric (-1: a scale-up switch, outside of the subnet);
    ``wires`` has -1 for the links inside a scale-up domain.
    """

    subnet: Subnet
    device: tuple[int, ...]
    wires: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Switching:
    """The switches that reach each other over cables that are up (the part with most ends).

    ``inward`` lists the neighbours of each switch, each with its port to the switch; ``attached`` gives the
    switch of each end in reach and the port that leads to the end (0: the switch itself).  ``level`` is the
    distance from the adapters, None where cables join switches at the same distance.
    """

    switches: tuple[int, ...]
    inward: Mapping[int, tuple[tuple[int, int], ...]]
    attached: Mapping[int, tuple[int, int]]
    level: tuple[int, ...] | None


def matched(subnet: Subnet, fabric: Fabric) -> Matched:
    """The ports that each link of the fabric takes; the subnet's cables are up where the links are.

    Raises:
        BadInput: the fabric was not read of the same text: nodes or cables differ.
    """
    device = _nodes(subnet, fabric)
    joined: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, wire in enumerate(subnet.wires):
        joined[wire.device, wire.other].append(i)
        joined[wire.other, wire.device].append(i)
    links = np.flatnonzero(fabric.tier != SCALE_UP).tolist()
    wires = [-1] * fabric.links
    used: Counter[tuple[int, int]] = Counter()
    down: set[int] = set()
    for link in links:
        pair = device[fabric.source[link]], device[fabric.target[link]]
        wires[link] = next(iter(joined[pair][used[pair] :]), -1)
        used[pair] += 1
        if not fabric.up[link]:
            down.add(wires[link])
    for pair in sorted({*joined, *used}):
        a, b = (subnet.devices[i] for i in pair)
        if len(joined[pair]) != used[pair] and AGGREGATION not in (a.kind, b.kind):
            raise BadInput(
                f"{len(joined[pair])} cables join {a.name} and {b.name}, in the fabric {used[pair]}",
                where=subnet.where,
                remedy="read the fabric of the same text",
            )
    up = tuple(replace(wire, up=wire.up and i not in down) for i, wire in enumerate(subnet.wires))
    return Matched(subnet=replace(subnet, wires=up), device=tuple(device), wires=tuple(wires))


def _nodes(subnet: Subnet, fabric: Fabric) -> list[int]:
    index = {device.name: i for i, device in enumerate(subnet.devices)}
    inside = [fabric.roles[role] == SCALE_UP_SWITCH for role in fabric.role.tolist()]
    unknown = [n for n, within in zip(fabric.names, inside, strict=True) if n not in index and not within]
    known = set(fabric.names)
    missing = [d.name for d in subnet.devices if d.kind != AGGREGATION and d.name not in known]
    if unknown or missing:
        of, names = ("the subnet", unknown) if unknown else ("the fabric", missing)
        problem = f"{of} has no {some(names)}"
        raise BadInput(problem, where=subnet.where, remedy="read the fabric of the same text")
    return [-1 if within else index[name] for name, within in zip(fabric.names, inside, strict=True)]


def addressed(subnet: Subnet, lmc: int) -> tuple[Subnet, bool]:
    """The subnet with ``2**lmc`` LIDs for each port of an adapter or router, and whether they are new.

    LIDs that the subnet has are kept if all fit: known, aligned and apart.  New ones follow the order of
    the GUIDs: blocks of the ports from ``2**lmc`` on, the switches before and behind.

    Raises:
        Unsupported: LIDs run out.
    """
    ends = tuple(replace(e, lmc=0 if subnet.devices[e.device].kind == SWITCH else lmc) for e in subnet.ends)
    taken = [lid for e in ends for lid in range(e.lid, e.lid + 2**e.lmc)]
    aligned = all(e.lid > 0 and e.lid % 2**e.lmc == 0 for e in ends)
    if aligned and len(set(taken)) == len(taken) and max(taken, default=0) <= TOP_LID:
        return replace(subnet, ends=ends), False
    order = sorted(range(len(ends)), key=lambda i: ends[i].guid)
    switches = [i for i in order if subnet.devices[ends[i].device].kind == SWITCH]
    others = [i for i in order if subnet.devices[ends[i].device].kind != SWITCH]
    size = 2**lmc
    behind = size * (1 + len(others))
    lids = {end: size * (1 + i) for i, end in enumerate(others)}
    lids |= {end: 1 + i if 1 + i < size else behind + 1 + i - size for i, end in enumerate(switches)}
    top = max((lid + 2 ** ends[i].lmc - 1 for i, lid in lids.items()), default=0)
    if top > TOP_LID:
        raise Unsupported(
            f"{len(others):,} adapter ports with {size} LIDs each (LMC {lmc}) and {len(switches):,} switches"
            f" need more than the {TOP_LID:,} unicast LIDs",
            where=subnet.where,
            remedy="give the flows to one destination fewer different paths, or cut the subnet",
        )
    return replace(subnet, ends=tuple(replace(e, lid=lids[i]) for i, e in enumerate(ends))), True


def switching(subnet: Subnet) -> Switching:
    """What the switches of a subnet reach over the cables that are up."""
    kinds = [device.kind for device in subnet.devices]
    inward: dict[int, list[tuple[int, int]]] = {i: [] for i, kind in enumerate(kinds) if kind == SWITCH}
    number = {(end.device, end.port): i for i, end in enumerate(subnet.ends)}
    attached = {number[switch, 0]: (switch, 0) for switch in inward}
    for wire in subnet.wires:
        there, here = (wire.other, wire.other_port), (wire.device, wire.port)
        for (a, port), (b, other_port) in ((here, there), (there, here)):
            if wire.up and kinds[a] == SWITCH and kinds[b] == SWITCH:
                inward[b].append((a, port))
            elif wire.up and kinds[a] == SWITCH:
                attached[number[b, other_port]] = (a, port)
    weight = Counter(switch for switch, _ in attached.values())
    part = max(_parts(inward), key=lambda p: (sum(weight[s] for s in p), -min(p)), default=set())
    return Switching(
        switches=tuple(sorted(part)),
        inward={switch: tuple(inward[switch]) for switch in sorted(part)},
        attached={end: at for end, at in sorted(attached.items()) if at[0] in part},
        level=_levels(subnet),
    )


def _parts(inward: Mapping[int, Iterable[tuple[int, int]]]) -> list[set[int]]:
    left, parts = dict.fromkeys(inward), []
    while left:
        part, queue = set(), [next(iter(left))]
        while queue:
            switch = queue.pop()
            if switch not in part:
                part.add(switch)
                queue += [other for other, _ in inward[switch]]
        left = {switch: None for switch in left if switch not in part}
        parts.append(part)
    return parts


def _levels(subnet: Subnet) -> tuple[int, ...] | None:
    """Hops of every device from the adapters (also over cables that are down); None: not in levels."""
    counted = {SWITCH, ADAPTER}
    kinds = [device.kind for device in subnet.devices]
    pairs = [(w.device, w.other) for w in subnet.wires if {kinds[w.device], kinds[w.other]} <= counted]
    level = levels([i for i, kind in enumerate(kinds) if kind == ADAPTER], len(kinds), pairs)
    flat = any(level[a] == level[b] and kinds[a] == kinds[b] == SWITCH for a, b in pairs)
    return None if flat else tuple(level)


def shortest(net: Switching, target: int, fixed: Mapping[int, tuple[int, int]]) -> dict[int, list[int]]:
    """Each switch's ports on its shortest ways to ``target``; ``fixed`` says what some switches do already.

    In a fabric with levels a way goes up, then down: switches that reach the target downwards do so, the
    others go up; only those that can do neither take a turn from down to up.

    Args:
        fixed: the switches whose port is given: the next switch and the port. They must lead to the target.
    """
    hops, falls = {target: 0}, {target}
    for start in fixed:
        _follow(net, start, fixed, hops, falls)
    ways: dict[int, list[int]] = {}
    if net.level is not None:
        _spread(net, {s: hops[s] for s in falls}, hops, ways, upwards=False)
        _spread(net, dict(hops), hops, ways, upwards=True)
    _spread(net, dict(hops), hops, ways, upwards=None)
    return ways


def _follow(
    net: Switching, start: int, fixed: Mapping[int, tuple[int, int]], hops: dict[int, int], falls: set[int]
) -> None:
    """Count the hops of a given way (up, then down), and note which of its switches go down."""
    way = [start]
    while way[-1] not in hops:
        way.append(fixed[way[-1]][0])
    for switch, after in zip(way[-2::-1], way[:0:-1], strict=True):
        hops[switch] = hops[after] + 1
        if net.level is not None and net.level[after] < net.level[switch]:
            falls.add(switch)


def _spread(
    net: Switching, starts: dict[int, int], hops: dict[int, int], ways: dict[int, list[int]], *, upwards: bool | None
) -> None:
    """Settle the switches without hops whose ways upwards (downwards, any) lead to the ``starts``."""
    heap = sorted((count, switch) for switch, count in starts.items())
    found: dict[int, int] = {}
    while heap:
        count, switch = heappop(heap)
        if found.get(switch, starts.get(switch)) != count:
            continue
        for other, port in net.inward[switch]:
            up = net.level is not None and net.level[switch] > net.level[other]
            if other in hops or (upwards is not None and up != upwards):
                continue
            if count + 1 < found.get(other, count + 2):
                found[other], ways[other] = count + 1, [port]
                heappush(heap, (count + 1, other))
            elif count + 1 == found[other]:
                ways[other].append(port)
    hops.update(found)
