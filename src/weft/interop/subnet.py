"""An InfiniBand subnet as its subnet manager sees it: GUIDs, LIDs and ports beside the names of a fabric."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from weft.errors import BadInput
from weft.fabric.assemble import SCALE_UP_SWITCH, levels
from weft.fabric.checks import components, some
from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.ibnetdiscover import Discovered

SWITCH, ADAPTER, ROUTER, AGGREGATION = "switch", "adapter", "router", "aggregation node"
_KINDS = {"Switch": SWITCH, "Ca": ADAPTER, "Rt": ROUTER}
_GUID = re.compile(r"[0-9a-fA-F]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A switch, adapter, router or aggregation node."""

    name: str
    kind: str
    guid: int


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


def read_subnet(text: str, *, where: str = "ibnetdiscover", exclude: Sequence[str] = ()) -> Subnet:
    """GUIDs, LIDs, port numbers and cables of ibnetdiscover's text, with the names of ``ibnetdiscover.read``.

    Adapters that match ``exclude`` are none of the fabric's, as aggregation nodes are.
    """
    result = Discovered(text, where, exclude)
    index = {guid: i for i, guid in enumerate(result.devices)}
    wires = tuple(
        Wire(device=index[guid], port=port, other=index[p.other], other_port=p.other_port)
        for guid, port, p, _ in result.cables(result.devices)
    )
    times = Counter(end for wire in wires for end in ((wire.device, wire.port), (wire.other, wire.other_port)))
    wrong = [f"port {port}" for (_, port), count in times.items() if count > 1 or not 1 <= port <= 254]
    if wrong:
        problem = f"{wrong[0]} has two cables, or no number from 1 to 254"
        raise BadInput(problem, where=where, remedy="give ibnetdiscover's output")
    devices = (
        Device(
            name=result.names[guid],
            kind=_KINDS[device.kind] if guid in result.kept else AGGREGATION,
            guid=int(guid[2:], 16),
        )
        for guid, device in result.devices.items()
    )
    return Subnet(where=where, devices=tuple(devices), ends=tuple(_ends(result, wires)), wires=wires)


def _ends(result: Discovered, wires: tuple[Wire, ...]) -> Iterator[End]:
    """Port 0 of the switches and the joined ports of the others, by device and port."""
    keys, seen = list(result.devices), set()
    joined = {(w.device, w.port): (w.other, w.other_port) for w in wires}
    joined |= {far: near for near, far in joined.items()}
    switches = {i for i, d in enumerate(result.devices.values()) if d.kind == "Switch"}
    for i, port in sorted([(i, 0) for i in switches] + [end for end in joined if end[0] not in switches]):
        device = result.devices[keys[i]]
        if i in switches:
            guid, lid, lmc = device.guid or keys[i][2:], device.lid, 0
        else:
            # The port's own line tells all of it; the line of the other end has its GUID and LID, too.
            (neighbour, other_port), near = joined[i, port], device.ports.get(port)
            back = result.devices[keys[neighbour]].ports.get(other_port)
            guid, lid, lmc = (near.guid, near.lid, near.lmc) if near else ("", 0, 0)
            guid, lid = (guid or back.other_guid, lid or back.other_lid) if back else (guid, lid)
        is_guid = _GUID.fullmatch(guid)
        if not is_guid or int(guid, 16) in seen:
            problem = f"port {port} of {result.names[keys[i]]} has " + (
                "a GUID that another port has" if is_guid else "no GUID"
            )
            place = f"{result.where}: line {device.line}"
            raise BadInput(problem, where=place, remedy="give the output of ibnetdiscover as it is")
        seen.add(int(guid, 16))
        yield End(device=i, port=port, guid=int(guid, 16), lid=lid, lmc=lmc)


def matched(subnet: Subnet, fabric: Fabric) -> Matched:
    """The ports that each link of the fabric takes; the subnet's cables are up where the links are."""
    index = {device.name: i for i, device in enumerate(subnet.devices)}
    inside = [fabric.roles[role] == SCALE_UP_SWITCH for role in fabric.role.tolist()]
    unknown = [n for n, within in zip(fabric.names, inside, strict=True) if n not in index and not within]
    known = set(fabric.names)
    missing = [d.name for d in subnet.devices if d.kind != AGGREGATION and d.name not in known]
    if unknown or missing:
        of, names = ("the subnet", unknown) if unknown else ("the fabric", missing)
        problem = f"{of} has no {some(names)}"
        raise BadInput(problem, where=subnet.where, remedy="read the fabric of the same text")
    device = [-1 if within else index[name] for name, within in zip(fabric.names, inside, strict=True)]
    joined: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, wire in enumerate(subnet.wires):
        joined[wire.device, wire.other].append(i)
        joined[wire.other, wire.device].append(i)
    wires = [-1] * fabric.links
    used: Counter[tuple[int, int]] = Counter()
    down: set[int] = set()
    for link in np.flatnonzero(fabric.tier != SCALE_UP).tolist():
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


def switching(subnet: Subnet) -> Switching:
    """What the switches of a subnet reach over the cables that are up."""
    kinds = [device.kind for device in subnet.devices]
    inward: dict[int, list[tuple[int, int]]] = {i: [] for i, kind in enumerate(kinds) if kind == SWITCH}
    number = {(end.device, end.port): i for i, end in enumerate(subnet.ends)}
    attached = {number[switch, 0]: (switch, 0) for switch in inward}
    for wire in subnet.wires:
        far, near = (wire.other, wire.other_port), (wire.device, wire.port)
        for (a, port), (b, other_port) in ((near, far), (far, near)):
            if wire.up and kinds[a] == SWITCH and kinds[b] == SWITCH:
                inward[b].append((a, port))
            elif wire.up and kinds[a] == SWITCH:
                attached[number[b, other_port]] = (a, port)
    pairs = np.array([(a, b) for b, ports in inward.items() for a, _ in ports], dtype=np.int64).reshape(-1, 2)
    part = components(len(kinds), pairs[:, 0], pairs[:, 1]).tolist()
    weight = Counter(part[switch] for switch, _ in attached.values())
    largest = max((part[switch] for switch in inward), key=lambda label: (weight[label], -label), default=-1)
    switches = tuple(switch for switch in inward if part[switch] == largest)
    # Levels: hops of every device from the adapters, also over cables that are down.
    joined = [(w.device, w.other) for w in subnet.wires if {kinds[w.device], kinds[w.other]} <= {SWITCH, ADAPTER}]
    level = levels([i for i, kind in enumerate(kinds) if kind == ADAPTER], len(kinds), joined)
    flat = any(level[a] == level[b] and kinds[a] == kinds[b] == SWITCH for a, b in joined)
    return Switching(
        switches=switches,
        inward={switch: tuple(inward[switch]) for switch in switches},
        attached={end: at for end, at in sorted(attached.items()) if part[at[0]] == largest},
        level=None if flat else tuple(level),
    )


def shortest(net: Switching, target: int, fixed: Mapping[int, tuple[int, int]]) -> dict[int, list[int]]:
    """Each switch's ports on its shortest ways to ``target``; ``fixed`` says what some switches do already.

    In a fabric with levels a way goes up, then down: switches that reach the target downwards do so, the
    others go up; only those that can do neither take a turn from down to up.

    Args:
        fixed: the switches whose port is given: the next switch and the port. They must lead to the target.
    """
    hops, falls = {target: 0}, {target}
    for start in fixed:
        # Follow the given way (up, then down) to a switch whose hops are known, then count back along it.
        way = [start]
        while way[-1] not in hops:
            way.append(fixed[way[-1]][0])
        for switch, after in zip(way[-2::-1], way[:0:-1], strict=True):
            hops[switch] = hops[after] + 1
            if net.level is not None and net.level[after] < net.level[switch]:
                falls.add(switch)
    ways: dict[int, list[int]] = {}
    if net.level is not None:
        _spread(net, {switch: hops[switch] for switch in falls}, hops, ways, upwards=False)
        _spread(net, dict(hops), hops, ways, upwards=True)
    _spread(net, dict(hops), hops, ways, upwards=None)
    return ways


def _spread(
    net: Switching, starts: dict[int, int], hops: dict[int, int], ways: dict[int, list[int]], *, upwards: bool | None
) -> None:
    """Settle the switches without hops whose ways upwards (downwards, any) lead to the ``starts`` (Dijkstra)."""
    heap = sorted((count, switch) for switch, count in starts.items())
    settled: dict[int, int] = {}
    while heap:
        count, switch = heappop(heap)
        if settled.get(switch, starts.get(switch)) != count:
            continue
        for neighbour, port in net.inward[switch]:
            up = net.level is not None and net.level[switch] > net.level[neighbour]
            if neighbour in hops or (upwards is not None and up != upwards):
                continue
            if count + 1 < settled.get(neighbour, count + 2):
                settled[neighbour], ways[neighbour] = count + 1, [port]
                heappush(heap, (count + 1, neighbour))
            elif count + 1 == settled[neighbour]:
                ways[neighbour].append(port)
    hops.update(settled)
