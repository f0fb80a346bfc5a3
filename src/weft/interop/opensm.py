"""OpenSM's forwarding tables, ``opensm -R file -U FILE -l LMC``: written of a route plan, and read as routes.

Tables say only where each switch sends a LID, so that the flows must be known where they are read.
"""

from __future__ import annotations

import csv
import io
import re
from typing import NamedTuple

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.lid_tables import FlowLid, LidTables, check_turns, lid_tables
from weft.interop.routes_json import routes_of_links
from weft.interop.subnet import ROUTER, SWITCH, Subnet, matched
from weft.routing.traffic import JobTraffic

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
