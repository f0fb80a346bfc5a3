"""RoCEv2: the UDP source ports that put queue pairs on planned paths, as a table.

A switch that hashes the five-tuple sends all packets of a queue pair over one path, which its UDP source port
decides.  The table says, for each (source, destination, queue pair), which port to use and which path is
planned (its nodes, with "|" between); ``status`` says how sure it is:

- ``unverified``: not checked; each queue pair of a pair of hosts has a separate port;
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
from collections import Counter, defaultdict
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address

import numpy as np

from weft.documents import csv_rows
from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.plan_paths import PlannedPath, ipv4, network_paths
from weft.routing.traffic import JobTraffic

PORTS = range(0xC000, 0x10000)
ROCE_PORT, UDP = 4791, 17
COLUMNS = ("src_ip", "dst_ip", "queue_pair", "udp_sport", "expected_path", "status", "job", "collective")
HASHES = ("crc32",)
PROBE_COLUMNS = ("src_ip", "dst_ip", "udp_sport")


def write(
    fabric: Fabric, traffic: JobTraffic, routes: Routes, *, switch_hash: str | None = None, probes: str | None = None
) -> str:
    """The table (CSV) with a source port for every flow that crosses the network.

    Args:
        switch_hash: how the switches hash, one of ``HASHES``.
        probes: text of a probe file (see ``read_probes``).

    Raises:
        UnknownName: no such hash.
        Unsupported: a flow is not on one path, or a pair has more flows than there are ports.
    """
    if switch_hash is not None and probes is not None:
        raise BadInput("a hash and probes are given", where="source ports", remedy="give one of them")
    if switch_hash is not None and switch_hash not in HASHES:
        raise UnknownName("hash of switches", switch_hash, HASHES)
    seen = None if probes is None else read_probes(probes, fabric)
    hops, names = NextHops(fabric), fabric.names
    paths = network_paths(fabric, traffic, routes, where="source ports")
    flows = Counter((path.source, path.target) for path in paths)
    if max(flows.values(), default=0) > len(PORTS):
        raise Unsupported(
            f"{max(flows.values()):,} flows between two hosts have no port each",
            where="source ports",
            remedy="plan fewer queue pairs",
        )
    status = "unverified" if switch_hash is None and seen is None else "modelled" if seen is None else "probed"
    used: dict[tuple[int, int], set[int]] = defaultdict(set)
    slots: Counter[tuple[int, int]] = Counter()
    rows: dict[int, tuple[object, ...]] = {}
    for path in sorted(paths, key=lambda path: (int(traffic.collective[path.flow]), path.queue_pair)):
        pair, addresses = (path.source, path.target), (ipv4(path.source), ipv4(path.target))
        nodes = [names[node] for node in path.nodes]
        if switch_hash is not None:
            ports = _modelled(path, hops)
        elif seen is not None:
            behind = zip(path.switches, path.nodes[2:], strict=True)
            needed = {names[after] for node, after in behind if len(hops.of(node, path.target)) > 1}
            ports = iter(_probed(seen.get(addresses, {}), nodes, needed))
        else:
            ports = iter(PORTS[slots[pair] :])
        port = next((port for port in ports if port not in used[pair]), None)
        used[pair] |= set() if port is None else {port}
        status_words = ("", "not found") if port is None else (port, status)
        rows[path.flow] = (
            *addresses,
            slots[pair],
            status_words[0],
            "|".join(nodes),
            status_words[1],
            path.job,
            path.collective,
        )
        slots[pair] += 1
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(rows[path.flow] for path in paths)])
    return text.getvalue()


def _modelled(path: PlannedPath, hops: NextHops) -> Iterator[int]:
    """Ports with which every switch of the path sends a packet along it, by the hash of the five-tuple."""
    turns = []
    for node, link in zip(path.switches, path.links[1:], strict=True):
        choices = hops.of(node, path.target)
        if link not in choices:
            return
        turns.append((len(choices), choices.index(link)))
    for port in PORTS:
        number = crc32(ipv4(path.source), ipv4(path.target), port)
        if all(number % count == turn for count, turn in turns):
            yield port


def crc32(source_ip: str, target_ip: str, udp_sport: int) -> int:
    """CRC-32 of the five-tuple of a RoCEv2 packet."""
    addresses = IPv4Address(source_ip).packed + IPv4Address(target_ip).packed
    return zlib.crc32(addresses + bytes([UDP]) + udp_sport.to_bytes(2, "big") + ROCE_PORT.to_bytes(2, "big"))


def _probed(seen: dict[int, tuple[str, ...]], path: list[str], needed: set[str]) -> Iterator[int]:
    """Ports with which all of ``needed`` were seen, and nothing but nodes of the path in its order."""
    for port, names in sorted(seen.items()):
        nodes = iter(path)
        if needed <= set(names) and all(name in nodes for name in names):
            yield port


class NextHops:
    """The live next hops of every switch towards every destination, found as they are needed."""

    def __init__(self, fabric: Fabric) -> None:
        usable = np.flatnonzero(fabric.up & (fabric.tier > SCALE_UP))
        self._links = usable[np.argsort(fabric.source[usable], kind="stable")]
        self._source, self._target = fabric.source[self._links], fabric.target[self._links]
        self._nodes, self._hosts = fabric.nodes, fabric.accelerators
        self._hops: dict[int, dict[int, tuple[int, ...]]] = {}

    def of(self, node: int, target: int) -> tuple[int, ...]:
        """Links out of a switch on shortest paths to an accelerator, in order; empty without a path."""
        if target not in self._hops:
            # Breadth first from the target, a step at a time over all links, through no other accelerator.
            hops = np.full(self._nodes, -1, dtype=np.int64)
            hops[target] = 0
            passes = (self._target >= self._hosts) | (self._target == target)
            for step in range(self._nodes):
                new = self._source[passes & (hops[self._target] == step) & (hops[self._source] < 0)]
                if not len(new):
                    break
                hops[new] = step + 1
            ahead = hops[self._target]
            closer = (ahead >= 0) & (ahead == hops[self._source] - 1)
            ways: dict[int, list[int]] = defaultdict(list)
            for source, link in zip(self._source[closer].tolist(), self._links[closer].tolist(), strict=True):
                ways[source].append(link)
            self._hops[target] = {source: tuple(links) for source, links in ways.items()}
        return self._hops[target].get(node, ())


def read_probes(
    text: str, fabric: Fabric, *, where: str = "probes"
) -> dict[tuple[str, str], dict[int, tuple[str, ...]]]:
    """The nodes seen with each UDP source port, by source and destination address."""
    known = set(fabric.names)
    seen: dict[tuple[str, str], dict[int, tuple[str, ...]]] = defaultdict(dict)
    for row, place in csv_rows(text, where, PROBE_COLUMNS):
        try:
            ends = str(IPv4Address(row["src_ip"])), str(IPv4Address(row["dst_ip"]))
        except AddressValueError as error:
            raise BadInput(f"has no IPv4 address: {str(error)[:60]}", where=place) from None
        port = row["udp_sport"]
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) in PORTS):
            raise BadInput(f"port {port[:20]!r} is not in {PORTS[0]} to {PORTS[-1]}", where=place)
        names = tuple(name for column, name in row.items() if column not in PROBE_COLUMNS and name)
        strange = [name for name in names if name not in known]
        if strange:
            raise BadInput(f"there is no node {strange[0][:60]!r}", where=place, remedy="use the names of the fabric")
        if seen[ends].setdefault(int(port), names) != names:
            raise BadInput(
                "contradicts an earlier row",
                where=place,
                remedy="probe again while nothing changes, and give each port once",
            )
    return seen
