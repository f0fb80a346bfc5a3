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
from functools import cache
from ipaddress import AddressValueError, IPv4Address

from weft.documents import csv_rows
from weft.errors import BadInput, Unsupported
from weft.fabric.paths import Paths
from weft.fabric.spec import Fabric
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
    follow, names = cache(Paths(fabric).follow), fabric.names
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
            behind, ahead = zip(path.switches, path.nodes[2:], strict=True), follow(path.source, path.target)
            needed = {names[after] for node, after in behind if len(ahead(node)) > 1}
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
