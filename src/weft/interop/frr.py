"""FRR configurations of switches: static routes by destination on the planned paths, BGP for what is not planned.

A switch sends a destination's packets one way, wherever they come from.  A plan fits if all its flows to a destination
leave each switch by one link; the ways to a destination then form a tree, so that no packet goes round in circles.
The scale-out links of a switch are its interfaces eth1, eth2, ... in their order; failed links keep theirs.  A cable
has two addresses of 10.128.0.0/9 (a /31).  Written for FRR 8.4 and later.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from ipaddress import IPv4Address

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.plan_paths import ipv4, network_paths
from weft.routing.traffic import JobTraffic

FIRST_AS = 4_200_000_000
MOST_PATHS = 64
LONGEST_NAME = 60
HOSTS, HOST_COLUMNS = "hosts.csv", ("host", "address", "nic_address", "gateway")


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """By file name: a configuration for every switch of the scale-out network, and the addresses of hosts (CSV).

    Raises:
        Unsupported: a flow is not on one path, flows to a destination leave a switch by different links, or a link
            has no opposite one.
    """
    reverse, names = fabric.reverse, host_names(fabric)
    if (reverse < 0).any():
        link = int(np.argmin(reverse))
        raise Unsupported(
            f"{fabric.names[fabric.source[link]]} -> {fabric.names[fabric.target[link]]} has no link back",
            where=f"fabric {fabric.name}",
            remedy="give both directions of every cable",
        )
    numbers = np.arange(fabric.links)
    cable = np.unique(np.minimum(numbers, reverse), return_inverse=True)[1]
    base = IPv4Address("10.128.0.0")
    addresses = [str(base + offset) for offset in (2 * cable + (reverse < numbers)).tolist()]
    # The link by which each switch sends on to each destination of a flow that crosses it.
    planned: dict[int, dict[int, int]] = defaultdict(dict)
    for path in network_paths(fabric, traffic, routes, where="FRR"):
        for node, link in zip(path.switches, path.links[1:], strict=True):
            if planned[node].setdefault(path.target, link) != link:
                raise Unsupported(
                    f"flows to {fabric.names[path.target]} leave {fabric.names[node]} by different links",
                    where="FRR",
                    remedy="plan with --router destination, or steer by source ports (roce-csv)",
                )
    out: dict[int, list[int]] = defaultdict(list)
    for link in np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source >= fabric.accelerators)).tolist():
        out[int(fabric.source[link])].append(link)
    if not out:
        raise BadInput("nothing to write", where="frr", remedy="give a fabric with switches that the kind configures")
    files = {
        f"{names[node]}.conf": "\n".join(_lines(fabric, names, addresses, node, out[node], planned[node])) + "\n"
        for node in sorted(out)
    }
    return files | {HOSTS: _hosts(fabric, names, addresses)}


def _hosts(fabric: Fabric, names: list[str], addresses: list[str]) -> str:
    """A row for each NIC: the host's address, the NIC's on its cable (/31), and the switch that it sends to."""
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators)).tolist()
    rows = [
        (names[fabric.source[nic]], ipv4(int(fabric.source[nic])), addresses[nic], addresses[fabric.reverse[nic]])
        for nic in nics
    ]
    return "".join(",".join(row) + "\n" for row in (HOST_COLUMNS, *rows))


def _lines(
    fabric: Fabric, names: list[str], addresses: list[str], node: int, links: list[int], planned: dict[int, int]
) -> list[str]:
    """The configuration of a switch, by the links that leave it."""
    lines = ["frr defaults datacenter", f"hostname {names[node]}", "ip forwarding", "!"]
    lines += ["interface lo", f" ip address {ipv4(node)}/32", "exit", "!"]
    for number, link in enumerate(links, start=1):
        lines += [f"interface eth{number}", f" description {names[fabric.target[link]]}"]
        lines += [f" ip address {addresses[link]}/31", *([] if fabric.up[link] else [" shutdown"]), "exit", "!"]
    gateway = {link: addresses[fabric.reverse[link]] for link in links}
    live = [link for link in links if fabric.up[link]]
    hosts = {int(fabric.target[link]): link for link in reversed(live) if fabric.target[link] < fabric.accelerators}
    ways = sorted((hosts | planned).items())
    lines += [f"ip route {ipv4(target)}/32 {gateway[link]}" for target, link in ways]
    lines += ["!", f"router bgp {FIRST_AS + node}", f" bgp router-id {ipv4(node)}"]
    lines += [" bgp bestpath as-path multipath-relax", " no bgp ebgp-requires-policy"]
    # A leaf with a static route would send back what a switch above, whose own way is cut, sends it.
    lines += [" bgp suppress-fib-pending"] if hosts else []
    lines += [" neighbor FABRIC peer-group", " neighbor FABRIC remote-as external"]
    switches = [link for link in links if fabric.target[link] >= fabric.accelerators]
    lines += [f" neighbor {gateway[link]} peer-group FABRIC" for link in switches]
    lines += [" address-family ipv4 unicast", *(f"  network {ipv4(each)}/32" for each in (node, *sorted(hosts)))]
    lines += [
        "  neighbor FABRIC activate",
        f"  maximum-paths {MOST_PATHS}",
        " exit-address-family",
        "exit",
        "!",
        "end",
    ]
    return lines


def host_names(fabric: Fabric) -> list[str]:
    """Names that hosts and files can have: letters, digits and hyphens, with the node's number where not unique."""
    plain = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in fabric.names]
    plain = [name if name[:1].isalpha() and len(name) <= LONGEST_NAME else "" for name in plain]
    times = Counter(plain)
    taken = {name for name in plain if times[name] == 1}
    names = []
    for node, name in enumerate(plain):
        unique = name if name and times[name] == 1 else f"{name or 'node'}-{node}"
        while unique != name and unique in taken:
            unique = f"{unique}-{node}"
        taken.add(unique)
        names.append(unique)
    return names
