"""A route plan as forwarding tables for OpenSM: ``opensm -R file -U FILE -l LMC``.

InfiniBand switches forward by destination: to send two flows with one destination different ways from the
same switch, the destination needs several LIDs (2^LMC each), and each flow says which it uses.  The tables
are complete: what the plan does not use goes the shortest way, up and then down, evenly over equal ports.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric, Ints, Mask
from weft.fabric.traffic import Routes
from weft.interop.netops.subnet import (
    ADAPTER,
    ROUTER,
    SWITCH,
    TOP_LMC,
    Matched,
    Subnet,
    Switching,
    addressed,
    matched,
    shortest,
    switching,
)
from weft.routing.traffic import JobTraffic

_SEARCH_STEPS, _SEARCHED = 20_000, 64
_TITLES = {SWITCH: "Switch", ROUTER: "Router"}
Steps = tuple[tuple[int, int], ...]
"""The switches of a flow, each with the link that it leaves by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLid:
    """The LID that a flow is sent to: its destination's base LID plus ``offset`` (the path bits)."""

    source: str
    destination: str
    collective: str
    queue_pair: int
    guid: int
    """GUID of the destination's port."""
    offset: int
    lid: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LidTables:
    """The output port of every LID at every switch.

    ``ports`` and ``planned`` (entries that flows of the plan use) have a row per switch of ``switches`` (a
    device of ``subnet``) and a column per LID of ``lids``, which belongs to an end of ``subnet``, ``owner``.
    ``subnet`` has the LIDs of the tables and the cables that are up.  Where ``reassigned``, its LIDs are
    not those of the text: OpenSM must be given ``guid2lid``.
    """

    subnet: Subnet
    lmc: int
    reassigned: bool
    switches: tuple[int, ...]
    lids: Ints
    owner: Ints
    ports: npt.NDArray[np.uint8]
    planned: Mask
    flows: tuple[FlowLid, ...]
    """The flows that cross the subnet, in their order."""


def tables(subnet: Subnet, fabric: Fabric, traffic: JobTraffic, routes: Routes) -> LidTables:
    """Forwarding tables that send every flow its way, with the smallest LMC that allows it.

    Args:
        subnet: of the text that the fabric was read of (``ibnetdiscover.read_subnet``).
        fabric: its links may be down since.
        routes: one path per flow; flows inside a scale-up domain may be among them.

    Raises:
        BadInput: subnet, fabric, traffic and routes do not belong together, or a path is broken or down.
        Unsupported: a flow is split over paths or crosses adapters; the LMC would exceed 7; LIDs run out.
    """
    match = matched(subnet, fabric)
    net = switching(match.subnet)
    paths = _paths(match, net, fabric, traffic, routes)
    groups: dict[int, dict[Steps, int]] = defaultdict(dict)
    for end, steps in paths:
        if end >= 0:
            groups[end][steps] = 0
    most, widest = 1, -1
    for end, kinds in sorted(groups.items()):
        kinds.update(zip(kinds, _colours(list(kinds)), strict=True))
        if 1 + max(kinds.values()) > most:
            most, widest = 1 + max(kinds.values()), end
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
    for end, kinds in groups.items():
        for steps, colour in kinds.items():
            plans[end, colour].update(steps)
    columns = sorted(
        (placed.ends[end].lid + k, end, k) for end in net.attached for k in range(2 ** placed.ends[end].lmc)
    )
    ports, planned = _filled(match, net, [(end, k) for _, end, k in columns], plans)
    return LidTables(
        subnet=placed,
        lmc=lmc,
        reassigned=new,
        switches=net.switches,
        lids=np.array([lid for lid, _, _ in columns], dtype=np.int64),
        owner=np.array([end for _, end, _ in columns], dtype=np.int64),
        ports=ports,
        planned=planned,
        flows=tuple(_flow_lids(placed, fabric, traffic, paths, groups)),
    )


def _flow_lids(
    placed: Subnet,
    fabric: Fabric,
    traffic: JobTraffic,
    paths: Sequence[tuple[int, Steps]],
    groups: Mapping[int, Mapping[Steps, int]],
) -> list[FlowLid]:
    return [
        FlowLid(
            source=fabric.names[traffic.source[flow]],
            destination=fabric.names[traffic.target[flow]],
            collective=traffic.names[traffic.collective[flow]],
            queue_pair=int(traffic.queue_pair[flow]),
            guid=placed.ends[end].guid,
            offset=groups[end][steps],
            lid=placed.ends[end].lid + groups[end][steps],
        )
        for flow, (end, steps) in enumerate(paths)
        if end >= 0
    ]


def _paths(
    match: Matched, net: Switching, fabric: Fabric, traffic: JobTraffic, routes: Routes
) -> list[tuple[int, Steps]]:
    """The end where each flow arrives (-1: without the subnet), its switches and their links."""
    if len(routes.indptr) != len(traffic) + 1:
        problem = f"{len(routes.indptr) - 1:,} routes for {len(traffic):,} flows"
        raise BadInput(problem, where="routes", remedy="give the routes of these flows")
    if (routes.usage < 1 - 1e-9).any():
        flow = int(np.searchsorted(routes.indptr, np.argmax(routes.usage < 1 - 1e-9), side="right")) - 1
        raise Unsupported(
            "is split over several paths, and a LID has one",
            where=f"routes: flow {flow} ({_flow(fabric, traffic, flow)})",
            remedy="split flows over queue pairs and route each on one path",
        )
    number = {(end.device, end.port): i for i, end in enumerate(match.subnet.ends)}
    found: list[tuple[int, Steps]] = []
    for flow in range(len(traffic)):
        links = routes.links[routes.indptr[flow] : routes.indptr[flow + 1]].tolist()
        place = f"routes: flow {flow} ({_flow(fabric, traffic, flow)})"
        _check_path(fabric, int(traffic.source[flow]), int(traffic.target[flow]), links, place)
        if all(fabric.tier[link] == SCALE_UP for link in links):
            found.append((-1, ()))
            continue
        target = match.device[traffic.target[flow]]
        steps = tuple((match.device[fabric.source[link]], link) for link in links[1:])
        strange = [switch for switch, _ in steps if switch < 0 or match.subnet.devices[switch].kind != SWITCH]
        if strange or any(fabric.tier[link] == SCALE_UP for link in links):
            raise Unsupported(
                "is passed on by another accelerator, a router or a scale-up switch",
                where=place,
                remedy="route it over InfiniBand switches only",
            )
        wire = match.subnet.wires[match.wires[links[-1]]]
        end = number[target, wire.port if wire.device == target else wire.other_port]
        if end not in net.attached:
            raise Unsupported(
                "does not cross the largest part of the subnet that is up", where=place, remedy="remove it"
            )
        found.append((end, steps))
    return found


def _flow(fabric: Fabric, traffic: JobTraffic, flow: int) -> str:
    return f"{fabric.names[traffic.source[flow]]} -> {fabric.names[traffic.target[flow]]}"


def _check_path(fabric: Fabric, source: int, target: int, links: list[int], place: str) -> None:
    nodes = [source] + [int(fabric.target[link]) for link in links if 0 <= link < fabric.links]
    remedy = "route the flows on this fabric"
    if len(nodes) <= len(links) or not links or nodes[-1] != target:
        raise BadInput("its links do not lead to its target", where=place, remedy=remedy)
    if [int(fabric.source[link]) for link in links] != nodes[:-1]:
        raise BadInput("its links do not join", where=place, remedy=remedy)
    if len(set(nodes)) < len(nodes):
        raise BadInput("passes a node twice", where=place, remedy=remedy)
    for a, link in zip(nodes, links, strict=False):
        if not fabric.up[link]:
            problem = f"takes {fabric.names[a]} -> {fabric.names[fabric.target[link]]}, which is down"
            raise BadInput(problem, where=place, remedy=remedy)


def _colours(paths: Sequence[Steps]) -> list[int]:
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
        taken = {i: {colours[j] for j in beside[i]} - {-1} for i in open_}
        chosen = min(open_, key=lambda i: (-len(taken[i]), -len(beside[i]), i))
        for colour in range(min(used + 1, count)):
            if colour not in taken[chosen]:
                colours[chosen] = colour
                if search(max(used, colour + 1)):
                    return True
                colours[chosen] = -1
        return False

    return colours if search(0) else None


def _filled(
    match: Matched,
    net: Switching,
    columns: Sequence[tuple[int, int]],
    plans: Mapping[tuple[int, int], Mapping[int, int]],
) -> tuple[npt.NDArray[np.uint8], Mask]:
    """Output ports by switch and column (an end and an offset), and which the plan uses."""
    row = {switch: i for i, switch in enumerate(net.switches)}
    ports = np.zeros((len(row), len(columns)), dtype=np.uint8)
    planned = np.zeros(ports.shape, dtype=bool)
    load = {switch: [0] * 256 for switch in net.switches}
    fixed: list[dict[int, tuple[int, int]]] = []
    for column, key in enumerate(columns):
        target, last = net.attached[key[0]]
        fixed.append({})
        for switch, link in plans.get(key, {}).items():
            planned[row[switch], column] = True
            if switch != target:
                wire = match.subnet.wires[match.wires[link]]
                out = (wire.other, wire.port) if wire.device == switch else (wire.device, wire.other_port)
                load[switch][out[1]] += 1
                fixed[column][switch] = out
    order = sorted(range(len(columns)), key=lambda c: (net.attached[columns[c][0]][0], c))
    common = -1
    free: dict[int, list[int]] = {}
    for column in order:
        target, last = net.attached[columns[column][0]]
        if target != common:
            common, free = target, shortest(net, target, {})
        here, ways = fixed[column], free
        if any(port not in ways.get(switch, ()) for switch, (_, port) in here.items()):
            ways = shortest(net, target, here)
        for switch in net.switches:
            if switch == target:
                port = last
            elif switch in here:
                port = here[switch][1]
            else:
                loads = load[switch]
                port = min(ways[switch], key=lambda p: (loads[p], p))
                loads[port] += 1
            ports[row[switch], column] = port
    return ports, planned


def write(tables: LidTables) -> str:
    """The text of the tables, as ``dump_fts`` writes it.

    Every LID names its port's GUID, so that OpenSM finds its own LID where it differs.

    Raises:
        Unsupported: ways between adapters go down and then up: credits may wait for each other in a circle.
    """
    _check_turns(tables)
    devices, ends = tables.subnet.devices, tables.subnet.ends
    behind = []
    for owner in tables.owner.tolist():
        end, device = ends[owner], devices[ends[owner].device]
        title = _TITLES.get(device.kind, "Channel Adapter")
        behind.append(f": ({title} portguid 0x{end.guid:016x}: '{device.name}')")
    own = {end.device: end.lid for end in ends if devices[end.device].kind == SWITCH}
    lids = [f"0x{lid:04x}" for lid in tables.lids.tolist()]
    lines = []
    for switch, ports in zip(tables.switches, tables.ports.tolist(), strict=True):
        name, guid = devices[switch].name, devices[switch].guid
        title = f"switch Lid {own[switch]} guid 0x{guid:016x} ({name}):"
        lines.append(f"Unicast lids [0x0-0x{tables.lids[-1]:x}] of {title}")
        lines += [f"{lid} {port:03} {rest}" for lid, port, rest in zip(lids, ports, behind, strict=True)]
    return "\n".join(lines) + "\n"


def _check_turns(tables: LidTables) -> None:
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


def guid2lid(tables: LidTables) -> str:
    """OpenSM's file of that name (in its cache directory): the LIDs of every port GUID."""
    ends = sorted(tables.subnet.ends, key=lambda end: end.guid)
    return "".join(f"0x{e.guid:016x} 0x{e.lid:04x} 0x{e.lid + 2**e.lmc - 1:04x}\n\n" for e in ends)


def configuration(tables: LidTables) -> str:
    """OpenSM's options for these tables, for ``opensm -F FILE`` (names as ``opensm -c`` of 3.3.23 writes them).

    The LMC is among them: with another one OpenSM gives the ports other LIDs than the tables know.
    """
    lines = [
        "# Options that the tables in opensm.lfts need; add them to the subnet manager's own.",
        f"# On the command line: opensm -R file -U opensm.lfts -l {tables.lmc}",
        "# A relative name counts from the folder in which opensm starts.",
        "routing_engine file",
        "lfts_file opensm.lfts",
        f"lmc {tables.lmc}",
        "reassign_lids FALSE",
    ]
    if tables.reassigned:
        lines += [
            "# LIDs are given anew: copy guid2lid to OpenSM's cache directory (OSM_CACHE_DIR) before it starts.",
            "honor_guid2lid_file TRUE",
        ]
    return "\n".join(lines) + "\n"


def path_bits(tables: LidTables) -> str:
    """CSV: the LID of each flow, and its offset from the base LID of the destination."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["source", "destination", "collective", "queue_pair", "port_guid", "path_bits", "dlid"])
    for flow in tables.flows:
        rows.writerow(
            [
                flow.source,
                flow.destination,
                flow.collective,
                flow.queue_pair,
                f"0x{flow.guid:016x}",
                flow.offset,
                flow.lid,
            ]
        )
    return text.getvalue()
