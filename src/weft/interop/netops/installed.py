"""Routes that a network has: from lists of paths, and from InfiniBand switches' forwarding tables.

A list of paths (``weft.routes/1``, or a CSV table) may hold the flows themselves; forwarding tables say only where
each switch sends a LID, so that the flows must be known.

A CSV table has a header with ``source``, ``target`` and ``path``: names of nodes from source to target with spaces
between.  Optional are ``queue_pair`` (0), ``job``, ``collective``, ``bytes`` (1), and ``links``: which of several
links between two nodes each hop takes, from 0, with spaces between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops import routes_json
from weft.interop.netops.subnet import SWITCH, Subnet, matched
from weft.routing.traffic import JobTraffic
from weft.units import parse_bytes

_FLOW = ("source", "destination", "collective", "queue_pair")


def read_paths(
    text: str, fabric: Fabric, traffic: JobTraffic | None = None, *, where: str = "routes"
) -> tuple[JobTraffic, Routes]:
    """The flows of a list of paths, or the given ones, and their routes.

    A flow of ``traffic`` takes the path of its ends and queue pair, or the only one of its ends.

    Raises:
        BadInput: neither ``weft.routes/1`` nor a table of paths, a path that the fabric has not, or a flow without.
    """
    as_json = text.lstrip().startswith("{")
    listed, routes = (
        routes_json.read(text, fabric, where=where)
        if as_json
        else routes_json.routed(path_rows(text, where), fabric, where=where)
    )
    if not len(listed):
        raise BadInput("holds no flow", where=where, remedy="list the path of each flow")
    if traffic is None:
        return listed, routes
    number: dict[tuple[int, int, int], int] = {}
    alone: dict[tuple[int, int], int] = {}
    for flow, ends in enumerate(zip(listed.source.tolist(), listed.target.tolist(), strict=True)):
        number[(*ends, int(listed.queue_pair[flow]))] = flow
        alone[ends] = -1 if ends in alone else flow
    chosen = []
    for source, target, pair in zip(
        traffic.source.tolist(), traffic.target.tolist(), traffic.queue_pair.tolist(), strict=True
    ):
        flow = number.get((source, target, pair), alone.get((source, target), -1))
        if flow < 0:
            named = f"{fabric.names[source]} -> {fabric.names[target]} (queue pair {pair})"
            raise BadInput(f"has no path for {named}", where=where, remedy="list the path of each flow of the traffic")
        chosen.append(routes.links[routes.indptr[flow] : routes.indptr[flow + 1]].tolist())
    return traffic, routes_json.routes_of_links(fabric, chosen)


def read_tables(
    text: str, subnet: Subnet, fabric: Fabric, traffic: JobTraffic, *, path_bits: str = "", where: str = "tables"
) -> Routes:
    """The ways of flows through the forwarding tables of a subnet's switches.

    A flow is sent to its destination's first LID, or to the one that ``path_bits`` (CSV, as ``weft route export
    opensm`` writes it) gives it.  An adapter with several links takes the first from which the LID arrives.

    Raises:
        BadInput: no tables, tables of another subnet, or a flow that does not arrive.
    """
    walk = _TableWalk(forwarding_tables(text, where=where), subnet, fabric, where)
    given = _given_bits(path_bits) if path_bits else {}
    names, found = fabric.names, []
    for source, target, collective, pair in zip(
        traffic.source.tolist(),
        traffic.target.tolist(),
        traffic.collective.tolist(),
        traffic.queue_pair.tolist(),
        strict=True,
    ):
        key = (names[source], names[target], traffic.names[collective], str(pair))
        found.append(walk.links(source, target, given.get(key)))
    return routes_json.routes_of_links(fabric, found)


def _given_bits(text: str) -> Mapping[tuple[str, ...], int]:
    """The LID that a table (CSV) gives each flow, by source, destination, collective, queue pair.

    Raises:
        BadInput: a column is missing, or no number.
    """
    found = {}
    for row, place in csv_rows(text, "--path-bits", (*_FLOW, "dlid")):
        bits = row["dlid"]
        if not (bits.isascii() and bits.isdigit() and len(bits) < 6):
            raise BadInput(f"{bits[:20]!r} is no dlid", where=place, remedy="give a number")
        found[tuple(row[name] for name in _FLOW)] = int(bits)
    return found


class _TableWalk:
    """Where tables lead."""

    def __init__(self, tables: tuple[ForwardingTable, ...], subnet: Subnet, fabric: Fabric, where: str) -> None:
        self.fabric, self.where = fabric, where
        match = matched(subnet, fabric)
        devices = match.subnet.devices
        index = {device.guid: number for number, device in enumerate(devices) if device.kind == SWITCH}
        strange = [f"0x{table.guid:x}" for table in tables if table.guid not in index]
        if strange:
            problem = f"names the switch {strange[0]}, which the subnet has not"
            raise BadInput(problem, where=where, remedy="give ibnetdiscover's output of the same subnet")
        self.ports = {index[table.guid]: table.ports for table in tables}
        self.device = match.device
        self.leaving: dict[tuple[int, int], int] = {}
        self.nics: dict[int, list[int]] = {}
        for link, number in enumerate(match.wires):
            source = int(fabric.source[link])
            if fabric.tier[link] != SCALE_UP and fabric.up[link] and source < fabric.accelerators:
                self.nics.setdefault(source, []).append(link)
            if number >= 0:
                wire = match.subnet.wires[number]
                here = match.device[source]
                self.leaving[here, wire.port if wire.device == here else wire.other_port] = link
        owned: dict[int, int] = {}
        for lid, guid in sorted((lid, guid) for table in tables for lid, guid in table.owners.items()):
            owned.setdefault(guid, lid)
        self.lid: dict[int, int] = {}
        for end in match.subnet.ends:
            self.lid.setdefault(end.device, owned.get(end.guid, end.lid))

    def links(self, source: int, target: int, given: int | None) -> list[int]:
        """The links of a flow."""
        lid = self.lid.get(self.device[target], 0) if given is None else given
        for nic in self.nics.get(source, ()):
            path, node = [nic], int(self.fabric.target[nic])
            while node != target:
                port = self.ports.get(self.device[node], {}).get(lid, -1)
                link = self.leaving.get((self.device[node], port), -1)
                if link < 0 or not self.fabric.up[link] or len(path) > len(self.ports) + 1:
                    break
                path.append(link)
                node = int(self.fabric.target[link])
            else:
                return path
        ends = f"{self.fabric.names[source]} -> {self.fabric.names[target]}"
        raise BadInput(f"LID {lid} of {ends} does not arrive", where=self.where, remedy="dump the tables anew")


_SWITCH = re.compile(r"Unicast lids\b(?:.*? Lid (\d{1,5}))?.*? guid 0x([0-9a-fA-F]{1,16})\s*(?:\((.*)\))?\s*:?\s*$")
_ENTRY = re.compile(r"0x([0-9a-fA-F]{1,4})\s+(\d{1,3})\s(?:.*? portguid 0x([0-9a-fA-F]{1,16}))?")
LONGEST_LINE = 1000
"""Characters of a line that OpenSM reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingTable:
    """A switch's table in a file: the output port of each LID, and the port's GUID of each that names one."""

    guid: int
    name: str
    lid: int
    """LID of the switch itself; 0 where the file does not say."""
    line: int
    ports: dict[int, int]
    owners: dict[int, int]


def forwarding_tables(text: str, *, where: str = "tables") -> tuple[ForwardingTable, ...]:
    """The tables of a dump.

    Raises:
        BadInput: no such dump, or a line that cannot be read.
    """
    tables: list[ForwardingTable] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.strip(), f"{where}: line {number}"
        if line.startswith("Unicast lids"):
            match = _SWITCH.match(line[:LONGEST_LINE])
            if match is None:
                raise BadInput("names no switch", where=place, remedy="expected ... of switch Lid 1 guid 0x...")
            lid, guid, name = match.groups()
            tables.append(
                ForwardingTable(
                    guid=int(guid, 16), name=name or "", lid=int(lid or 0), line=number, ports={}, owners={}
                )
            )
        elif line.startswith("0x"):
            entry = _ENTRY.match(line[:LONGEST_LINE] + " ")
            if entry is None or not tables:
                problem = "is no entry" if tables else "stands before any switch"
                raise BadInput(f"{line[:60]!r} {problem}", where=place, remedy="expected 0x0007 006 : (...)")
            lid_here = int(entry[1], 16)
            if lid_here in tables[-1].ports:
                raise BadInput(f"LID 0x{lid_here:04x} is given twice", where=place, remedy="remove one")
            tables[-1].ports[lid_here] = int(entry[2])
            if entry[3]:
                tables[-1].owners[lid_here] = int(entry[3], 16)
    if not tables:
        raise BadInput("holds no table of a switch", where=where, remedy="give a dump of dump_fts or weft")
    return tuple(tables)


PATH_NEEDED = ("source", "target", "path")
PATH_COLUMNS = (*PATH_NEEDED, "queue_pair", "job", "collective", "bytes", "links")


def path_rows(text: str, where: str = "routes") -> Iterator[tuple[dict[str, Any], str]]:
    """The rows as those of ``weft.routes/1``, each with its place in the file.

    Raises:
        BadInput: a missing or unknown column, or a value that cannot be used.
    """
    for row, place in csv_rows(text, where, PATH_NEEDED, PATH_COLUMNS):
        yield _path_row(row, place), place


def _path_row(given: dict[str, str], place: str) -> dict[str, Any]:
    row: dict[str, Any] = {"job": given.get("job") or "job", "collective": given.get("collective") or "flows"}
    row |= {"source": given["source"], "target": given["target"], "path": given["path"].split()}
    row["queue_pair"] = _numbers(given.get("queue_pair") or "0", f"{place}: queue_pair")[0]
    if given.get("bytes"):
        row["bytes"] = parse_bytes(given["bytes"], f"{place}: bytes")
    if given.get("links"):
        row["links"] = _numbers(given["links"], f"{place}: links")
    return row


def _numbers(text: str, place: str) -> list[int]:
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise BadInput(f"{text[:40]!r} is no whole number", where=place, remedy="count from 0")
    return [int(word) for word in words]
