"""A route plan as forwarding tables of an InfiniBand subnet, with the LIDs that tell flows apart.

InfiniBand switches forward by destination: to send two flows with one destination different ways from the
same switch, the destination needs several LIDs (2^LMC each), and each flow says which it uses.  The tables
are complete: what the plan does not use goes the shortest way, up and then down, evenly over equal ports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.errors import Unsupported
from weft.fabric.spec import Fabric, Ints
from weft.fabric.traffic import Routes
from weft.interop.plan_paths import network_paths
from weft.interop.subnet import ADAPTER, SWITCH, Matched, Subnet, Switching, matched, shortest, switching
from weft.routing.traffic import JobTraffic

TOP_LMC = 7
TOP_LID = 0xBFFF
"""The last unicast LID; the first is 1."""
_SEARCH_STEPS, _SEARCHED = 20_000, 64
Steps = tuple[tuple[int, int], ...]
"""The switches of a flow, each with the link that it leaves by."""


class FlowLid(NamedTuple):
    """The LID that a flow is sent to: its destination's base LID plus ``path_bits``."""

    source: str
    destination: str
    collective: str
    queue_pair: int
    port_guid: str
    """GUID of the destination's port."""
    path_bits: int
    dlid: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LidTables:
    """The output port of every LID at every switch.

    ``ports`` has a row per switch of ``switches`` (a device of ``subnet``) and a column per LID of ``lids``, which
    belongs to an end of ``subnet``, ``owner``.  ``subnet`` has the LIDs of the tables and the cables that are up.
    Where ``reassigned``, its LIDs are not those of the text: OpenSM must be given ``guid2lid``.
    """

    subnet: Subnet
    lmc: int
    reassigned: bool
    switches: tuple[int, ...]
    lids: Ints
    owner: Ints
    ports: npt.NDArray[np.uint8]
    flows: tuple[FlowLid, ...]
    """The flows that cross the subnet, in their order."""


def lid_tables(subnet: Subnet, fabric: Fabric, traffic: JobTraffic, routes: Routes) -> LidTables:
    """Forwarding tables that send every flow its way, with the smallest LMC that allows it.

    Args:
        subnet: of the text that the fabric was read of (``read_subnet``).
        fabric: its links may be down since.
        routes: one path per flow; flows inside a scale-up domain may be among them.

    Raises:
        Unsupported: a flow is split over paths or crosses adapters; the LMC would exceed 7; LIDs run out.
    """
    match = matched(subnet, fabric)
    net = switching(match.subnet)
    number = {(end.device, end.port): i for i, end in enumerate(match.subnet.ends)}
    crossing: list[tuple[int, int, Steps]] = []  # flow, the end where it arrives, its switches and links
    groups: dict[int, dict[Steps, int]] = defaultdict(dict)
    for path in network_paths(fabric, traffic, routes):
        ends = f"{fabric.names[path.source]} -> {fabric.names[path.target]}"
        if any(subnet.devices[match.device[node]].kind != SWITCH for node in path.switches):
            remedy = "route it over InfiniBand switches only"
            raise Unsupported(f"{ends} is passed on by a router", where="routes", remedy=remedy)
        target, wire = match.device[path.target], match.subnet.wires[match.wires[path.links[-1]]]
        end = number[target, wire.port if wire.device == target else wire.other_port]
        if end not in net.attached:
            problem = f"{ends} does not cross the largest part of the subnet that is up"
            raise Unsupported(problem, where="routes", remedy="remove it")
        steps = tuple((match.device[fabric.source[link]], link) for link in path.links[1:])
        crossing.append((path.flow, end, steps))
        groups[end][steps] = 0
    most, widest = 1, -1
    for end, colours in sorted(groups.items()):
        colours.update(zip(colours, path_colours(list(colours)), strict=True))
        if 1 + max(colours.values()) > most:
            most, widest = 1 + max(colours.values()), end
    lmc = (most - 1).bit_length()
    if lmc > TOP_LMC:
        raise Unsupported(
            f"the flows to {subnet.devices[subnet.ends[widest].device].name} need {most} LIDs,"
            f" and LMC {TOP_LMC} allows {2**TOP_LMC}",
            where="routes",
            remedy="give the flows to one destination fewer different paths",
        )
    placed, new = addressed(match.subnet, lmc)
    plans: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for end, colours in groups.items():
        for steps, colour in colours.items():
            plans[end, colour].update(steps)
    columns = sorted(
        (placed.ends[end].lid + k, end, k) for end in net.attached for k in range(2 ** placed.ends[end].lmc)
    )
    flows = (
        FlowLid(
            source=fabric.names[traffic.source[flow]],
            destination=fabric.names[traffic.target[flow]],
            collective=traffic.names[traffic.collective[flow]],
            queue_pair=int(traffic.queue_pair[flow]),
            port_guid=f"0x{placed.ends[end].guid:016x}",
            path_bits=groups[end][steps],
            dlid=placed.ends[end].lid + groups[end][steps],
        )
        for flow, end, steps in crossing
    )
    return LidTables(
        subnet=placed,
        lmc=lmc,
        reassigned=new,
        switches=net.switches,
        lids=np.array([lid for lid, _, _ in columns], dtype=np.int64),
        owner=np.array([end for _, end, _ in columns], dtype=np.int64),
        ports=_ports(match, net, [(end, k) for _, end, k in columns], plans),
        flows=tuple(flows),
    )


def addressed(subnet: Subnet, lmc: int) -> tuple[Subnet, bool]:
    """The subnet with ``2**lmc`` LIDs for each port of an adapter or router, and whether they are new.

    LIDs that the subnet has are kept if all fit: known, aligned and apart.  New ones follow the order of
    the GUIDs: blocks of the ports from ``2**lmc`` on, the switches before and behind.

    Raises:
        Unsupported: LIDs run out.
    """
    ends = tuple(replace(e, lmc=0 if subnet.devices[e.device].kind == SWITCH else lmc) for e in subnet.ends)
    used_lids = [lid for e in ends for lid in range(e.lid, e.lid + 2**e.lmc)]
    aligned = all(e.lid > 0 and e.lid % 2**e.lmc == 0 for e in ends)
    if aligned and len(set(used_lids)) == len(used_lids) and max(used_lids, default=0) <= TOP_LID:
        return replace(subnet, ends=ends), False
    order = sorted(range(len(ends)), key=lambda i: ends[i].guid)
    switches = [i for i in order if subnet.devices[ends[i].device].kind == SWITCH]
    leaves = [i for i in order if subnet.devices[ends[i].device].kind != SWITCH]
    size = 2**lmc
    behind = size * (1 + len(leaves))
    lids = {end: size * (1 + i) for i, end in enumerate(leaves)}
    lids |= {end: 1 + i if 1 + i < size else behind + 1 + i - size for i, end in enumerate(switches)}
    top = max((lid + 2 ** ends[i].lmc - 1 for i, lid in lids.items()), default=0)
    if top > TOP_LID:
        raise Unsupported(
            f"{len(leaves):,} adapter ports with {size} LIDs each (LMC {lmc}) and {len(switches):,} switches"
            f" need more than the {TOP_LID:,} unicast LIDs",
            where=subnet.where,
            remedy="give the flows to one destination fewer different paths, or cut the subnet",
        )
    return replace(subnet, ends=tuple(replace(e, lid=lids[i]) for i, e in enumerate(ends))), True


def path_colours(paths: Sequence[Steps]) -> list[int]:
    """A colour for each path to one end, so that paths of a colour leave no switch by different links.

    Greedy, most conflicts first; then, if fewer might do for a smaller LMC, by search (within limits).
    """
    links: dict[int, Counter[int]] = defaultdict(Counter)
    for steps in paths:
        for switch, link in steps:
            links[switch][link] += 1
    apart = [sum(links[s].total() - links[s][link] for s, link in steps) for steps in paths]
    merged: list[dict[int, int]] = []
    colours = [0] * len(paths)
    for i in sorted(range(len(paths)), key=lambda i: (-apart[i], i)):
        agrees = (all(chosen.get(s, link) == link for s, link in paths[i]) for chosen in merged)
        colours[i] = next((colour for colour, fits in enumerate(agrees) if fits), len(merged))
        merged += [{}] if colours[i] == len(merged) else []
        merged[colours[i]].update(paths[i])
    # Only a power of two fewer colours saves anything, and the links that leave one switch bound them from below.
    least = max((len(each) for each in links.values()), default=1)
    fewer = 1 << (len(merged) - 1).bit_length() >> 1
    while least <= fewer and len(paths) <= _SEARCHED:
        better = _searched(paths, fewer)
        if better is None:
            break
        colours, fewer = better, fewer // 2
    return colours


def _searched(paths: Sequence[Steps], count: int) -> list[int] | None:
    """A colouring with ``count`` colours: always the path with the fewest colours left, with each of them."""
    maps = [dict(steps) for steps in paths]
    beside = [[j for j, b in enumerate(maps) if any(b.get(s, link) != link for s, link in a.items())] for a in maps]
    colours, left = [-1] * len(maps), _SEARCH_STEPS

    def search(used: int) -> bool:
        nonlocal left
        left -= 1
        open_ = [i for i, colour in enumerate(colours) if colour < 0]
        if not open_ or left < 0:
            return not open_
        used_colours = {i: {colours[j] for j in beside[i]} - {-1} for i in open_}
        chosen = min(open_, key=lambda i: (-len(used_colours[i]), -len(beside[i]), i))
        for colour in range(min(used + 1, count)):
            if colour not in used_colours[chosen]:
                colours[chosen] = colour
                if search(max(used, colour + 1)):
                    return True
                colours[chosen] = -1
        return False

    return colours if search(0) else None


def _ports(
    match: Matched,
    net: Switching,
    columns: Sequence[tuple[int, int]],
    plans: Mapping[tuple[int, int], Mapping[int, int]],
) -> npt.NDArray[np.uint8]:
    """Output ports by switch and column (an end and an offset)."""
    ports = np.zeros((len(net.switches), len(columns)), dtype=np.uint8)
    load = {switch: [0] * 256 for switch in net.switches}
    # First what the plan fixes: the next switch and the port of each switch on a way, and their load.
    fixed: list[dict[int, tuple[int, int]]] = []
    for key in columns:
        fixed.append({})
        for switch, link in plans.get(key, {}).items():
            if switch != net.attached[key[0]][0]:
                wire = match.subnet.wires[match.wires[link]]
                out = (wire.other, wire.port) if wire.device == switch else (wire.device, wire.other_port)
                load[switch][out[1]] += 1
                fixed[-1][switch] = out
    # Then the rest, target by target: each switch takes the least loaded of its ports on a shortest way.
    common = -1
    free: dict[int, list[int]] = {}
    for column in sorted(range(len(columns)), key=lambda c: (net.attached[columns[c][0]][0], c)):
        target, last = net.attached[columns[column][0]]
        if target != common:
            common, free = target, shortest(net, target, {})
        device, ways = fixed[column], free
        if any(port not in ways.get(switch, ()) for switch, (_, port) in device.items()):
            ways = shortest(net, target, device)
        for row, switch in enumerate(net.switches):
            if switch == target:
                port = last
            elif switch in device:
                port = device[switch][1]
            else:
                loads = load[switch]
                port = min(ways[switch], key=lambda p: (loads[p], p))
                loads[port] += 1
            ports[row, column] = port
    return ports


def check_turns(tables: LidTables) -> None:
    """Refuse ways between adapters that go down and then up: credits may wait for each other in a circle."""
    net, devices = switching(tables.subnet), tables.subnet.devices
    if net.level is None:
        return
    onward = {(a, port): b for b, every in net.inward.items() for a, port in every}
    of_adapter = [devices[end.device].kind == ADAPTER for end in tables.subnet.ends]
    first = {switch for end, (switch, _) in net.attached.items() if of_adapter[end]}
    for column in np.flatnonzero(np.array(of_adapter)[tables.owner]).tolist():
        ports = dict(zip(tables.switches, tables.ports[:, column].tolist(), strict=True))
        seen: set[tuple[int, bool]] = set()
        for start in first:
            at, falls = start, False
            while (at, falls) not in seen:
                seen.add((at, falls))
                after = onward.get((at, ports[at]))
                if after is None:
                    break
                if falls and net.level[after] > net.level[at]:
                    raise Unsupported(
                        f"ways to LID {tables.lids[column]} go down to {devices[at].name} and then up,"
                        " where credits can deadlock",
                        where="tables",
                        remedy="plan ways that go up and then down",
                    )
                at, falls = after, falls or net.level[after] < net.level[at]
