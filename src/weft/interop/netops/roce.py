"""RoCEv2: the UDP source port of a flow, and tables of source ports that put queue pairs on planned paths.

A switch that hashes the five-tuple sends all packets of a queue pair over one path, which its UDP source port
decides.  A table says, for each (source, destination, queue pair), which port to use and which path is
planned; ``status`` says what is known of it:

- ``unverified``: nothing; the port is one of its own for each queue pair of the pair of hosts;
- ``modelled``: with the hash given, the switches take the planned path;
- ``probed``: the probes given saw packets with this port at the nodes of the planned path (parallel cables between two
  nodes they do not tell apart);
- ``not found``: neither model nor probes give a port for the planned path; there is none in the row.

NCCL asks for flow label 0, so it cannot be steered as it is: a network plugin or an agent has to set the
ports (mlx5dv_modify_qp_udp_sport changes the one of a live queue pair).  ``queue_pair`` counts the flows of a
pair of hosts, by collective and then by the plan's queue pair, from 0.

The model of the hash: a switch forwards over its live links that lie on a shortest path to the destination
(in links, over scale-out links and switches only); it numbers them in the order of the fabric's links,
computes a hash of the packet and takes the remainder by their number.  A sending NIC's own choice of uplink is
not modelled.  ``crc32`` is the plain model: CRC-32 (IEEE 802.3) of source address, destination address,
protocol 17, source port and destination port 4791 in network order, with the same start value in every
switch.  Real switches differ in polynomial, seed and order of the links; what the model finds holds for
switches that behave like it.

A file of probes is CSV: columns src_ip, dst_ip and udp_sport, then any columns (spine, or hop1, hop2, ...) with
the names of the nodes seen, in order; cells may stay empty.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import Addressing, addressing
from weft.interop.netops.plan_paths import PlannedPath, network_paths
from weft.routing.traffic import JobTraffic

FIRST_PORT, LAST_PORT = 0xC000, 0xFFFF
Status = Literal["unverified", "modelled", "probed", "not found"]
STATUSES: tuple[Status, ...] = get_args(Status)
COLUMNS = ("src_ip", "dst_ip", "queue_pair", "udp_sport", "expected_path", "status", "job", "collective")
_BETWEEN = "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePort:
    """A row of the table; ``path`` are names of nodes from source to destination, ``udp_sport`` None where
    none was found."""

    src_ip: str
    dst_ip: str
    queue_pair: int
    udp_sport: int | None
    path: tuple[str, ...]
    status: Status
    job: str
    collective: str


def source_ports(
    fabric: Fabric,
    traffic: JobTraffic,
    routes: Routes,
    *,
    switch_hash: SwitchHash | str | None = None,
    probes: str | None = None,
) -> tuple[SourcePort, ...]:
    """A source port for every flow that crosses the network.

    Args:
        switch_hash: how the switches hash, or the name of a model ("crc32").
        probes: text of a probe file (see ``read_probes``).

    Raises:
        BadInput: both are given, or the probes or routes cannot be used.
        UnknownName: no such model.
        Unsupported: a flow is not on one path, or a pair has more flows than there are ports.
    """
    if switch_hash is not None and probes is not None:
        raise BadInput("a hash and probes are given", where="source ports", remedy="give one of them")
    plan, hops = addressing(fabric), NextHops(fabric)
    search = _PortSearch(
        plan=plan,
        hops=hops,
        switch_hash=None if switch_hash is None else resolve_hash(switch_hash),
        probes=None if probes is None else read_probes(probes, fabric),
        names=fabric.names,
    )
    paths = network_paths(fabric, traffic, routes, where="source ports")
    rank = traffic.collective.tolist()
    order = sorted(paths, key=lambda path: (rank[path.flow], path.queue_pair))
    pairs: dict[tuple[int, int], list[PlannedPath]] = defaultdict(list)
    for path in order:
        pairs[path.source, path.target].append(path)
    rows: dict[int, SourcePort] = {}
    for flows in pairs.values():
        if len(flows) > LAST_PORT - FIRST_PORT + 1:
            raise Unsupported(
                f"{len(flows):,} flows between two hosts have no port each",
                where="source ports",
                remedy="plan fewer queue pairs",
            )
        used: set[int] = set()
        for slot, path in enumerate(flows):
            port = search.port(path, slot, used)
            used |= set() if port is None else {port}
            rows[path.flow] = search.row(path, slot, port)
    return tuple(rows[path.flow] for path in paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PortSearch:
    plan: Addressing
    hops: NextHops
    switch_hash: SwitchHash | None
    probes: Probes | None
    names: tuple[str, ...]

    def port(self, path: PlannedPath, slot: int, used: set[int]) -> int | None:
        ports = (each for each in range(FIRST_PORT, LAST_PORT + 1) if each not in used)
        if self.switch_hash is not None:
            return next((port for port in ports if self._takes(path, port, self.switch_hash)), None)
        if self.probes is not None:
            ends = self.plan.ipv4(path.source), self.plan.ipv4(path.target)
            seen = self.probes.on(ends, [self.names[node] for node in path.nodes], self._chosen(path))
            return next((port for port in seen if port not in used), None)
        return FIRST_PORT + slot

    def row(self, path: PlannedPath, slot: int, port: int | None) -> SourcePort:
        status: Status = "unverified"
        if self.switch_hash is not None or self.probes is not None:
            status = "modelled" if self.switch_hash is not None else "probed"
        return SourcePort(
            src_ip=self.plan.ipv4(path.source),
            dst_ip=self.plan.ipv4(path.target),
            queue_pair=slot,
            udp_sport=port,
            path=tuple(self.names[node] for node in path.nodes),
            status="not found" if port is None else status,
            job=path.job,
            collective=path.collective,
        )

    def _takes(self, path: PlannedPath, port: int, switch_hash: SwitchHash) -> bool:
        """Whether every switch of the path sends a packet with this port along it."""
        for node, link in zip(path.switches, path.links[1:], strict=True):
            choices = self.hops.of(node, path.target)
            if link not in choices:
                return False
            packet = Packet(
                switch=self.names[node],
                src_ip=self.plan.ipv4(path.source),
                dst_ip=self.plan.ipv4(path.target),
                udp_sport=port,
            )
            if len(choices) > 1 and choices[switch_hash(packet) % len(choices)] != link:
                return False
        return True

    def _chosen(self, path: PlannedPath) -> set[str]:
        """The nodes of a path behind switches that have a choice: who sees these knows the path."""
        steps = zip(path.switches, path.nodes[2:], strict=True)
        return {self.names[after] for node, after in steps if len(self.hops.of(node, path.target)) > 1}


def write_csv(rows: tuple[SourcePort, ...]) -> str:
    """The table as CSV; the nodes of a path stand between "|"."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        port = "" if row.udp_sport is None else row.udp_sport
        path = _BETWEEN.join(row.path)
        writer.writerow([row.src_ip, row.dst_ip, row.queue_pair, port, path, row.status, row.job, row.collective])
    return text.getvalue()


def lint_csv(text: str) -> tuple[str, ...]:
    """What is wrong with a table in CSV."""
    try:
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        return (f"not valid CSV: {error}",)
    if not rows or tuple(rows[0]) != COLUMNS:
        return (f"line 1: the columns are not {','.join(COLUMNS)}",)
    found, tables = [], []
    for number, cells in enumerate(rows[1:], start=2):
        if len(cells) != len(COLUMNS):
            found.append(f"row {number}: {len(cells)} cells")
            continue
        row: dict[str, Any] = dict(zip(COLUMNS, cells, strict=True))
        for key in ("queue_pair", "udp_sport"):
            digits = row[key].isascii() and row[key].isdigit() and len(row[key]) < 10
            row[key] = int(row[key]) if digits else (None if row[key] == "" else row[key])
        row["expected_path"] = row["expected_path"].split(_BETWEEN)
        tables.append((f"row {number}", row))
    return (*found, *_lint_rows(tables))


def _lint_rows(rows: list[tuple[str, dict[str, Any]]]) -> tuple[str, ...]:
    found = []
    seen: set[tuple[str, str, int]] = set()
    for place, row in rows:
        found += [
            f"{place}: {key} {str(row[key])[:40]!r} is no address"
            for key in ("src_ip", "dst_ip")
            if not _address(row[key])
        ]
        port, slot, status, path = (row[key] for key in ("udp_sport", "queue_pair", "status", "expected_path"))
        if status not in STATUSES:
            found.append(f"{place}: status {str(status)[:40]!r} is not known")
        if (port is None) != (status == "not found"):
            found.append(f"{place}: a port and status {str(status)[:40]!r} do not go together")
        if port is not None and not (type(port) is int and FIRST_PORT <= port <= LAST_PORT):
            found.append(f"{place}: port {str(port)[:40]} is not in {FIRST_PORT} to {LAST_PORT}")
        if len(path) < 2 or not all(path):
            found.append(f"{place}: the path has no two nodes")
        if type(slot) is not int or slot < 0:
            found.append(f"{place}: queue pair {str(slot)[:40]!r} is no number from 0")
            continue
        key = str(row["src_ip"]), str(row["dst_ip"]), slot
        if key in seen:
            found.append(f"{place}: {key[0]} -> {key[1]} queue pair {slot} is given twice")
        seen.add(key)
    return tuple(found)


def _address(text: object) -> bool:
    try:
        IPv4Address(str(text))
    except AddressValueError:
        return False
    return True


ROCE_PORT = 4791
UDP = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What a switch hashes: ``switch`` by name, IPv4 addresses, and the UDP source port."""

    switch: str
    src_ip: str
    dst_ip: str
    udp_sport: int


SwitchHash: TypeAlias = Callable[[Packet], int]


def crc32(packet: Packet) -> int:
    """CRC-32 of the five-tuple; the switch does not matter."""
    addresses = IPv4Address(packet.src_ip).packed + IPv4Address(packet.dst_ip).packed
    ports = packet.udp_sport.to_bytes(2, "big") + ROCE_PORT.to_bytes(2, "big")
    return zlib.crc32(addresses + bytes([UDP]) + ports)


HASHES: dict[str, SwitchHash] = {"crc32": crc32}


def resolve_hash(given: SwitchHash | str) -> SwitchHash:
    """A hash by name, or the function given.

    Raises:
        UnknownName: a name that is not in ``HASHES``.
    """
    if not isinstance(given, str):
        return given
    if given not in HASHES:
        raise UnknownName("hash of switches", given, HASHES)
    return HASHES[given]


class NextHops:
    """The live next hops of every switch towards every destination, found as they are asked for."""

    def __init__(self, fabric: Fabric) -> None:
        usable = np.flatnonzero(fabric.up & (fabric.tier > SCALE_UP))
        order = np.argsort(fabric.source[usable], kind="stable")
        self._links: Ints = usable[order]
        self._source, self._target = fabric.source[self._links], fabric.target[self._links]
        self._first = np.searchsorted(self._source, np.arange(fabric.nodes + 1))
        self._nodes, self._hosts = fabric.nodes, fabric.accelerators
        self._hops: dict[int, Ints] = {}
        self._found: dict[tuple[int, int], tuple[int, ...]] = {}

    def of(self, node: int, target: int) -> tuple[int, ...]:
        """Links out of a switch on shortest paths to an accelerator, in order; empty without a path."""
        found = self._found.get((node, target))
        if found is None:
            hops = self._distances(target)
            out = slice(self._first[node], self._first[node + 1])
            ahead = hops[self._target[out]]
            closer = (ahead >= 0) & (ahead == hops[node] - 1)
            found = self._found[node, target] = tuple(self._links[out][closer].tolist())
        return found

    def _distances(self, target: int) -> Ints:
        """Links from every node to the target, through no other accelerator; -1 without a path."""
        if target not in self._hops:
            hops = np.full(self._nodes, -1, dtype=np.int64)
            hops[target] = 0
            passes = (self._target >= self._hosts) | (self._target == target)
            for step in range(self._nodes):
                reached = passes & (hops[self._target] == step)
                new = self._source[reached & (hops[self._source] < 0)]
                if not len(new):
                    break
                hops[new] = step + 1
            self._hops[target] = hops
        return self._hops[target]


PROBE_COLUMNS = ["src_ip", "dst_ip", "udp_sport"]
MOST_ROWS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The nodes seen with each UDP source port, by (source, destination) address."""

    seen: dict[tuple[str, str], dict[int, tuple[str, ...]]]

    def on(self, ends: tuple[str, str], path: list[str], needed: set[str]) -> list[int]:
        """Ports with which all of ``needed`` were seen, and nothing but nodes of the path in its order."""
        found = []
        for port, names in sorted(self.seen.get(ends, {}).items()):
            rest = iter(path)
            if needed <= set(names) and all(name in rest for name in names):
                found.append(port)
        return found


def read_probes(text: str, fabric: Fabric, *, where: str = "probes") -> Probes:
    """The probes of a file.

    Raises:
        BadInput: other columns, no address or port, a node that the fabric lacks, or contradictions.
    """
    try:
        rows = csv.reader(io.StringIO(text), strict=True)
        header = next(rows, [])
        if header[:3] != PROBE_COLUMNS or len(header) < 4:
            raise BadInput(
                f"the columns are not {','.join(PROBE_COLUMNS)} and then nodes",
                where=f"{where}: line 1",
                remedy="begin with src_ip,dst_ip,udp_sport,spine",
            )
        return _probes(rows, set(fabric.names), where)
    except csv.Error as error:
        raise BadInput(f"not valid CSV: {error}", where=where) from None


def _probes(rows: Iterable[list[str]], nodes: set[str], where: str) -> Probes:
    seen: dict[tuple[str, str], dict[int, tuple[str, ...]]] = defaultdict(dict)
    for number, row in enumerate(rows, start=2):
        place = f"{where}: row {number}"
        if not row:
            continue
        if number > MOST_ROWS:
            raise BadInput(f"has more than {MOST_ROWS:,} rows", where=where)
        if len(row) < 4:
            raise BadInput(f"has {len(row)} cells", where=place, remedy="give addresses, port and nodes")
        ends = _canonical(row[0], place), _canonical(row[1], place)
        names = tuple(cell.strip() for cell in row[3:] if cell.strip())
        strange = [name for name in names if name not in nodes]
        if strange:
            raise BadInput(f"there is no node {strange[0][:60]!r}", where=place, remedy="use the names of the fabric")
        before = seen[ends].setdefault(_port(row[2], place), names)
        if before != names:
            raise BadInput(
                "contradicts an earlier row",
                where=place,
                remedy="probe again while nothing changes, and give each port once",
            )
    return Probes(seen=dict(seen))


def _canonical(text: str, place: str) -> str:
    try:
        return str(IPv4Address(text.strip()))
    except AddressValueError:
        raise BadInput(f"{text[:40]!r} is no IPv4 address", where=place) from None


def _port(text: str, place: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0xC000 <= int(text) <= 0xFFFF):
        raise BadInput(f"port {text[:20]!r} is not in 49152 to 65535", where=place)
    return int(text)
