"""FRR configurations of switches: static routes by destination on the planned paths, BGP for what is not planned.

A switch sends a destination's packets one way, wherever they come from.  A plan fits if all its flows to a destination
leave each switch by one link; the ways to a destination then form a tree, so that no packet goes round in circles.
Written for FRR 8.4 and later.
"""

from __future__ import annotations

from collections import defaultdict

from weft.errors import Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import Addressing, addressing
from weft.interop.netops.plan_paths import network_paths
from weft.routing.traffic import JobTraffic

FIRST_AS = 4_200_000_000
MOST_PATHS = 64


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """A configuration for every switch of the scale-out network, by file name.

    Raises:
        Unsupported: a flow is not on one path, or flows to a destination leave a switch by different links.
        BadInput: the routes are not of this traffic and fabric.
    """
    plan = addressing(fabric)
    planned = _planned(fabric, traffic, routes)
    scale_out = (fabric.tier > SCALE_UP).tolist()
    links: dict[int, list[int]] = defaultdict(list)
    for link, node in enumerate(fabric.source.tolist()):
        if scale_out[link] and node >= fabric.accelerators:
            links[node].append(link)
    return {
        f"{plan.names[node]}.conf": "\n".join(_lines(fabric, plan, node, own, planned.get(node, {}))) + "\n"
        for node, own in sorted(links.items())
    }


def _planned(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[int, dict[int, int]]:
    """The link by which each switch sends on to each destination of a flow that crosses it."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for path in network_paths(fabric, traffic, routes, where="FRR"):
        for node, link in zip(path.switches, path.links[1:], strict=True):
            if found[node].setdefault(path.target, link) != link:
                raise Unsupported(
                    f"flows to {fabric.names[path.target]} leave {fabric.names[node]} by different links",
                    where="FRR",
                    remedy="steer by source ports (weft route export roce-csv)",
                )
    return found


def _lines(fabric: Fabric, plan: Addressing, node: int, links: list[int], planned: dict[int, int]) -> list[str]:
    lines = ["frr defaults datacenter", f"hostname {plan.names[node]}", "!"]
    lines += ["interface lo", f" ip address {plan.ipv4(node)}/32", "exit", "!"]
    for link in links:
        lines += [f"interface {plan.interfaces[link]}", f" description {plan.names[fabric.target[link]]}"]
        lines += [f" ip address {plan.link_ipv4(link)}/31", *([] if fabric.up[link] else [" shutdown"]), "exit", "!"]
    live = [link for link in links if fabric.up[link]]
    hosts = {int(fabric.target[link]): link for link in reversed(live) if fabric.target[link] < fabric.accelerators}
    ways = sorted((hosts | planned).items())
    lines += [f"ip route {plan.ipv4(target)}/32 {plan.gateway_ipv4(link)}" for target, link in ways]
    lines += ["!", f"router bgp {FIRST_AS + node}", f" bgp router-id {plan.ipv4(node)}"]
    lines += [" bgp bestpath as-path multipath-relax", " no bgp ebgp-requires-policy"]
    lines += [" neighbor FABRIC peer-group", " neighbor FABRIC remote-as external"]
    switches = [link for link in links if fabric.target[link] >= fabric.accelerators]
    lines += [f" neighbor {plan.gateway_ipv4(link)} peer-group FABRIC" for link in switches]
    lines += [" address-family ipv4 unicast"]
    lines += [f"  network {plan.ipv4(one)}/32" for one in (node, *sorted(hosts))]
    lines += [
        "  neighbor FABRIC activate",
        f"  maximum-paths {MOST_PATHS}",
        " exit-address-family",
        "exit",
        "!",
        "end",
    ]
    return lines
