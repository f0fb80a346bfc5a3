"""OpenSM's forwarding tables, ``opensm -R file -U FILE -l LMC``: written of a route plan, and read as routes.

Tables say only where each switch sends a LID, so that the flows must be known where they are read.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.documents import csv_rows
from weft.errors import BadInput, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.fabric.traffic import Routes
from weft.interop.plan_paths import network_paths
from weft.interop.routes_json import routes_of_links
from weft.interop.subnet import ADAPTER, ROUTER, SWITCH, Matched, Subnet, Switching, matched, shortest, switching
from weft.routing.traffic import JobTraffic

# LIDs and tables -----------------------------------------------------------------------------------------------
# A route plan as forwarding tables of an InfiniBand subnet, with the LIDs that tell flows apart.
#
# InfiniBand switches forward by destination: to send two flows with one destination different ways from the same
# switch, the destination needs several LIDs (2^LMC each), and each flow says which it uses. The tables are complete:
# what the plan does not use goes the shortest way, up and then down, evenly over equal ports.

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


# Files of OpenSM -----------------------------------------------------------------------------------------------

_TITLES = {SWITCH: "Switch", ROUTER: "Router"}
_FLOW = ("source", "destination", "collective", "queue_pair")
_SWITCH = re.compile(r"Unicast lids\b(?:.*? Lid \d{1,5})?.*? guid 0x([0-9a-fA-F]{1,16})\s*(?:\(.*\))?\s*:?\s*$")
_ENTRY = re.compile(r"0x([0-9a-fA-F]{1,4})\s+(\d{1,3})\s(?:.*? portguid 0x([0-9a-fA-F]{1,16}))?")
LONGEST_LINE = 1000
"""Characters of a line that OpenSM reads."""


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes, subnet: Subnet) -> dict[str, str]:
    """All files for OpenSM, by name; ``subnet`` is of the text that the fabric was read of.

    Raises:
        BadInput, Unsupported: see ``lid_tables`` and ``table_text``.
    """
    tables = lid_tables(subnet, fabric, traffic, routes)
    files = {
        "opensm.conf": configuration(tables),
        "opensm.lfts": table_text(tables),
        "path_bits.csv": path_bits(tables),
    }
    return files | ({"guid2lid": guid2lid(tables)} if tables.reassigned else {})


def table_text(tables: LidTables) -> str:
    """The text of the tables, as ``dump_fts`` writes it.

    Every LID names its port's GUID, so that OpenSM finds its own LID where it differs.

    Raises:
        Unsupported: ways between adapters go down and then up: credits may wait for each other in a circle.
    """
    check_turns(tables)
    devices, ends = tables.subnet.devices, tables.subnet.ends
    behind = []
    for owner in tables.owner.tolist():
        end, device = ends[owner], devices[ends[owner].device]
        title = _TITLES.get(device.kind, "Channel Adapter")
        behind.append(f": ({title} portguid 0x{end.guid:016x}: '{device.name}')")
    switch_lids = {end.device: end.lid for end in ends if devices[end.device].kind == SWITCH}
    lids = [f"0x{lid:04x}" for lid in tables.lids.tolist()]
    lines = []
    for switch, ports in zip(tables.switches, tables.ports.tolist(), strict=True):
        name, guid = devices[switch].name, devices[switch].guid
        title = f"switch Lid {switch_lids[switch]} guid 0x{guid:016x} ({name}):"
        lines.append(f"Unicast lids [0x0-0x{tables.lids[-1]:x}] of {title}")
        lines += [f"{lid} {port:03} {behind_port}" for lid, port, behind_port in zip(lids, ports, behind, strict=True)]
    return "\n".join(lines) + "\n"


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
            "# LIDs are assigned again: copy guid2lid to OpenSM's cache directory (OSM_CACHE_DIR) before it starts.",
            "honor_guid2lid_file TRUE",
        ]
    return "\n".join(lines) + "\n"


def path_bits(tables: LidTables) -> str:
    """CSV: the LID of each flow, and its offset from the base LID of the destination."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([FlowLid._fields, *tables.flows])
    return text.getvalue()


class ForwardingTable(NamedTuple):
    """A switch's table in a file: the output port of each LID, and the port's GUID of each that names one."""

    guid: int
    ports: dict[int, int]
    owners: dict[int, int]


def forwarding_tables(text: str, *, where: str = "tables") -> tuple[ForwardingTable, ...]:
    """The tables of a dump."""
    tables: list[ForwardingTable] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.strip(), f"{where}: line {number}"
        if line.startswith("Unicast lids"):
            match = _SWITCH.match(line[:LONGEST_LINE])
            if match is None:
                raise BadInput("names no switch", where=place, remedy="expected ... of switch Lid 1 guid 0x...")
            tables.append(ForwardingTable(int(match[1], 16), {}, {}))
        elif line.startswith("0x"):
            entry = _ENTRY.match(line[:LONGEST_LINE] + " ")
            if entry is None or not tables:
                problem = "is not an entry" if tables else "stands before any switch"
                raise BadInput(f"{line[:60]!r} {problem}", where=place, remedy="expected 0x0007 006 : (...)")
            lid = int(entry[1], 16)
            if lid in tables[-1].ports:
                raise BadInput(f"LID 0x{lid:04x} is given twice", where=place, remedy="remove one")
            tables[-1].ports[lid] = int(entry[2])
            if entry[3]:
                tables[-1].owners[lid] = int(entry[3], 16)
    if not tables:
        raise BadInput("holds no table of a switch", where=where, remedy="give a dump of dump_fts or weft")
    return tuple(tables)


def read_tables(
    text: str, subnet: Subnet, fabric: Fabric, traffic: JobTraffic, *, path_bits: str = "", where: str = "tables"
) -> Routes:
    """The ways of flows through the forwarding tables of a subnet's switches.

    A flow is sent to its destination's first LID, or to the one that ``path_bits`` (CSV, as ``weft route export
    opensm`` writes it) gives it.  An adapter with several links takes the first from which the LID arrives.
    """
    tables, match = forwarding_tables(text, where=where), matched(subnet, fabric)
    index = {device.guid: number for number, device in enumerate(subnet.devices) if device.kind == SWITCH}
    strange = [f"0x{table.guid:x}" for table in tables if table.guid not in index]
    if strange:
        problem = f"names the switch {strange[0]}, which the subnet has not"
        raise BadInput(problem, where=where, remedy="give ibnetdiscover's output of the same subnet")
    ports = {index[table.guid]: table.ports for table in tables}
    # The link behind each port of a device, and the links by which each accelerator sends.
    leaving: dict[tuple[int, int], int] = {}
    nics: dict[int, list[int]] = {}
    for link, number in enumerate(match.wires):
        source = int(fabric.source[link])
        if fabric.tier[link] != SCALE_UP and fabric.up[link] and source < fabric.accelerators:
            nics.setdefault(source, []).append(link)
        if number >= 0:
            wire, here = subnet.wires[number], match.device[source]
            leaving[here, wire.port if wire.device == here else wire.other_port] = link
    owned: dict[int, int] = {}
    for lid, guid in sorted((lid, guid) for table in tables for lid, guid in table.owners.items()):
        owned.setdefault(guid, lid)
    base: dict[int, int] = {}
    for end in subnet.ends:
        base.setdefault(end.device, owned.get(end.guid, end.lid))
    lids = _given_lids(path_bits) if path_bits else {}
    names, paths = fabric.names, []
    columns = (traffic.source, traffic.target, traffic.collective, traffic.queue_pair)
    for source, target, collective, pair in zip(*(each.tolist() for each in columns), strict=True):
        key = (names[source], names[target], traffic.names[collective], str(pair))
        lid = lids.get(key, base.get(match.device[target], 0))
        for nic in nics.get(source, ()):
            path, node = [nic], int(fabric.target[nic])
            while node != target:
                device = match.device[node]
                link = leaving.get((device, ports.get(device, {}).get(lid, -1)), -1)
                if link < 0 or not fabric.up[link] or len(path) > len(ports) + 1:
                    break
                path.append(link)
                node = int(fabric.target[link])
            if node == target:
                paths.append(path)
                break
        else:
            problem = f"LID {lid} of {names[source]} -> {names[target]} does not arrive"
            raise BadInput(problem, where=where, remedy="dump the tables again")
    return routes_of_links(fabric, paths)


def _given_lids(text: str) -> dict[tuple[str, ...], int]:
    """The LID that a table (CSV) gives each flow, by source, destination, collective, queue pair."""
    lids = {}
    for row, place in csv_rows(text, "--path-bits", (*_FLOW, "dlid")):
        lid = row["dlid"]
        if not (lid.isascii() and lid.isdigit() and len(lid) < 6):
            raise BadInput(f"{lid[:20]!r} is not a dlid", where=place, remedy="give a number")
        lids[tuple(row[name] for name in _FLOW)] = int(lid)
    return lids
