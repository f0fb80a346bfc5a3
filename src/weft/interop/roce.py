"""RoCEv2: the UDP source ports that put queue pairs on planned paths, as a table.

A switch that hashes the five-tuple sends all packets of a queue pair over one path, which its UDP source port
decides.  The table says, for each (source, destination, queue pair), which port to use and which path is
planned (its nodes, with "|" between); ``status`` says how sure it is:

- ``unverified``: not checked; each queue pair of a pair of hosts has a separate port;
- ``probed``: the probes given saw packets with this port at the nodes of the planned path (parallel cables between two
  nodes they do not tell apart);
- ``not found``: the probes give no port for the planned path; there is none in the row.

NCCL asks for flow label 0, so it cannot be steered as it is: a network plugin or an agent has to set the
ports (mlx5dv_modify_qp_udp_sport changes the one of a live queue pair).  ``queue_pair`` counts the flows of a
pair of hosts, by collective and then by the plan's queue pair, from 0.

A switch is taken to forward over its live links that lie on a shortest path to the destination (in links, over
scale-out links and switches only).  A file of probes is CSV: columns src_ip, dst_ip and udp_sport, then any columns
(spine, or hop1, hop2, ...) with the names of the nodes seen, in order; cells may stay empty.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address

import numpy as np

from weft.documents import csv_rows
from weft.errors import BadInput, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.plan_paths import ipv4, network_paths
from weft.routing.traffic import JobTraffic

PORTS = range(0xC000, 0x10000)
COLUMNS = ("src_ip", "dst_ip", "queue_pair", "udp_sport", "expected_path", "status", "job", "collective")
PROBE_COLUMNS = ("src_ip", "dst_ip", "udp_sport")


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes, *, probes: str | None = None) -> str:
    """The table (CSV) with a source port for every flow that crosses the network.

    Args:
        probes: text of a probe file (see ``read_probes``).

    Raises:
        Unsupported: a flow is not on one path, or a pair has more flows than there are ports.
    """
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
    used: dict[tuple[int, int], set[int | str]] = defaultdict(set)
    slots: Counter[tuple[int, int]] = Counter()
    rows: dict[int, tuple[object, ...]] = {}
    for path in sorted(paths, key=lambda path: (int(traffic.collective[path.flow]), path.queue_pair)):
        pair, addresses = (path.source, path.target), (ipv4(path.source), ipv4(path.target))
        nodes = [names[node] for node in path.nodes]
        port: int | str = PORTS[slots[pair]]
        status = "unverified"
        if seen is not None:
            behind = zip(path.switches, path.nodes[2:], strict=True)
            needed = {names[after] for node, after in behind if len(hops.of(node, path.target)) > 1}
            ports = (p for p in _probed(seen.get(addresses, {}), nodes, needed) if p not in used[pair])
            port = next(ports, "")
            status = "not found" if port == "" else "probed"
        used[pair].add(port)
        rows[path.flow] = (*addresses, slots[pair], port, "|".join(nodes), status, path.job, path.collective)
        slots[pair] += 1
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(rows[path.flow] for path in paths)])
    return text.getvalue()


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
