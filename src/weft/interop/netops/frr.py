"""FRR configurations that pin every flow's path with MPLS node labels.

Every switch has one static label-switched path per neighbour: it takes the neighbour's label off and sends
the rest there.  A stack that names every node of a path therefore leads along it, whatever routing says.
Where the path begins (the sending host, or its leaf), a static route puts the stack on packets to the
destination, and a segment list with an SR-TE policy names the same path: one color per path of the pair, from
1.  Routes are per destination; where flows of a pair take several paths, the route takes the first one's and
the others need traffic that is steered by color.  BGP over all links reaches what is not planned.

Written for FRR 8.4 and later; the checker knows exactly the lines written here.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Literal

import numpy as np

from weft.errors import Unsupported
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import Addressing, addressing, first_links
from weft.interop.netops.plan_paths import PlannedPath, network_paths
from weft.routing.traffic import JobTraffic

Grammar = dict[str, list[tuple[str, str]]]
"""Per state of a configuration: the forms of its lines, and the state after each."""
Headend = Literal["host", "leaf"]
MOST_LABELS = 16
FIRST_AS = 4_200_000_000
MOST_PATHS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steer:
    """Packets of a headend to a destination: the gateway link, then labels of nodes in order."""

    headend: int
    target: int
    link: int
    nodes: tuple[int, ...]


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes, *, headend: Headend = "host") -> dict[str, str]:
    """A configuration for every host and switch of the scale-out network, by file name.

    Args:
        headend: who puts the labels on: the sending host, or the first switch of the path.

    Raises:
        Unsupported: a flow is not on one path, parallel links cannot be told apart by labels, a path has more
            labels than FRR pushes, or flows that meet at a leaf headend take different paths.
        BadInput: the routes are not of this traffic and fabric.
    """
    plan = addressing(fabric)
    paths = network_paths(fabric, traffic, routes, where="FRR")
    check_parallel(fabric, paths, "FRR")
    steers = _steers(fabric, paths, headend)
    scale_out = (fabric.tier > SCALE_UP).tolist()
    links: dict[int, list[int]] = defaultdict(list)
    for link, node in enumerate(fabric.source.tolist()):
        if scale_out[link]:
            links[node].append(link)
    files = {}
    for node, own in sorted(links.items()):
        lines = _base(fabric, plan, node, own) + _labels(fabric, plan, own)
        lines += _policies(fabric, plan, steers.get(node, []))
        files[f"{plan.names[node]}.conf"] = "\n".join([*lines, "end"]) + "\n"
    return files


def colors(fabric: Fabric, traffic: JobTraffic, routes: Routes, *, headend: Headend = "host") -> str:
    """The color of the policy that leads each flow along its path, as CSV."""
    paths = network_paths(fabric, traffic, routes, where="FRR")
    skip = 1 if headend == "leaf" else 0
    ways = {(at, each[0].target): each for at, every in _steers(fabric, paths, headend).items() for each in every}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["source", "destination", "collective", "queue_pair", "color"])
    for path in paths:
        if len(path.links) >= 2 + skip:
            steer = _steer(path, skip)
            color = 1 + ways[steer.headend, steer.target].index(steer)
            table.writerow(
                [fabric.names[path.source], fabric.names[path.target], path.collective, path.queue_pair, color]
            )
    return text.getvalue()


def check_parallel(fabric: Fabric, paths: Iterable[PlannedPath], where: str) -> None:
    """Refuse paths over one of several live links between the same nodes, which segments do not tell apart.

    Raises:
        Unsupported: there is one.
    """
    live = fabric.up & (fabric.tier > SCALE_UP)
    ends, links = np.unique(np.stack([fabric.source[live], fabric.target[live]]), axis=1, return_counts=True)
    parallel = set(zip(*ends[:, links > 1].tolist(), strict=True))
    for path in paths if parallel else ():
        for a, b in zip(path.nodes[1:-1], path.nodes[2:], strict=True):
            if (a, b) in parallel:
                raise Unsupported(
                    f"several links join {fabric.names[a]} and {fabric.names[b]}",
                    where=where,
                    remedy="steer by source ports (weft route export roce-csv)",
                )


def _steers(fabric: Fabric, paths: tuple[PlannedPath, ...], headend: Headend) -> dict[int, list[list[_Steer]]]:
    """The different ways from a headend to every destination, in order of the flows."""
    found: dict[int, dict[int, list[_Steer]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        skip = 1 if headend == "leaf" else 0
        if len(path.links) < 2 + skip:
            continue
        steer = _steer(path, skip)
        at = steer.headend
        if len(steer.nodes) + 1 > MOST_LABELS:
            raise Unsupported(
                f"the path {fabric.names[path.source]} -> {fabric.names[path.target]} needs more than "
                f"{MOST_LABELS} labels",
                where="FRR",
                remedy="plan shorter paths",
            )
        ways = found[at][path.target]
        if headend == "leaf" and ways and steer not in ways:
            raise Unsupported(
                f"flows from {fabric.names[at]} to {fabric.names[path.target]} take different paths",
                where="FRR",
                remedy="let the hosts put the labels on (headend host)",
            )
        if steer not in ways:
            ways.append(steer)
    return {at: [ways for _, ways in sorted(each.items())] for at, each in found.items()}


def _steer(path: PlannedPath, skip: int) -> _Steer:
    """What leads along a path from its ``skip``-th node on."""
    return _Steer(headend=path.nodes[skip], target=path.target, link=path.links[skip], nodes=path.nodes[skip + 2 :])


def _base(fabric: Fabric, plan: Addressing, node: int, links: list[int]) -> list[str]:
    lines = ["frr defaults datacenter", f"hostname {plan.names[node]}", "!", "interface lo"]
    lines += [f" ip address {plan.ipv4(node)}/32", "exit", "!"]
    for link in links:
        lines += [f"interface {plan.interfaces[link]}"]
        lines += [f" description {plan.names[fabric.target[link]]}", f" ip address {plan.link_ipv4(link)}/31"]
        lines += [" mpls enable", *([] if fabric.up[link] else [" shutdown"]), "exit", "!"]
    lines += [f"router bgp {FIRST_AS + node}", f" bgp router-id {plan.ipv4(node)}"]
    lines += [" bgp bestpath as-path multipath-relax", " no bgp ebgp-requires-policy"]
    lines += [" neighbor FABRIC peer-group", " neighbor FABRIC remote-as external"]
    lines += [f" neighbor {plan.gateway_ipv4(link)} peer-group FABRIC" for link in links]
    lines += [" address-family ipv4 unicast", f"  network {plan.ipv4(node)}/32"]
    lines += ["  neighbor FABRIC activate", f"  maximum-paths {MOST_PATHS}", " exit-address-family", "exit", "!"]
    return lines


def _labels(fabric: Fabric, plan: Addressing, links: list[int]) -> list[str]:
    """One label-switched path to every neighbour: over the first live link that leads there."""
    return [
        f"mpls lsp {plan.label(other)} {plan.gateway_ipv4(link)} implicit-null"
        for other, link in first_links(fabric, links)
    ]


def _policies(fabric: Fabric, plan: Addressing, destinations: list[list[_Steer]]) -> list[str]:
    routes, lists, policies = [], [], []
    for ways in destinations:
        for color, steer in enumerate(ways, start=1):
            name = f"{plan.names[steer.target]}-{color}"
            stack = [plan.label(node) for node in steer.nodes]
            if color == 1:
                route = f"ip route {plan.ipv4(steer.target)}/32 {plan.gateway_ipv4(steer.link)}"
                routes.append(f"{route} label {'/'.join(map(str, stack))}")
            lists.append(f"  segment-list {name}")
            first = plan.label(int(fabric.target[steer.link]))
            lists += [f"   index {10 * i} mpls label {each}" for i, each in enumerate([first, *stack], 1)]
            lists.append("  exit")
            policies += [f"  policy color {color} endpoint {plan.ipv4(steer.target)}", f"   name {name}"]
            policies.append(f"   candidate-path preference 100 name {name} explicit segment-list {name}")
            policies.append("  exit")
    if not routes:
        return []
    traffic = ["segment-routing", " traffic-eng", *lists, *policies, " exit", "exit", "!"]
    return ["!", *routes, "!", *traffic]


_NAME, _IF, _ADDRESS, _NUMBER = r"[a-z][a-z0-9-]*", r"(?:eth\d+|lo)", r"[0-9a-f.:]+", r"\d{1,10}"
_GRAMMAR: Grammar = {
    "": [
        (r"!|end|frr defaults datacenter", ""),
        (rf"hostname {_NAME}", ""),
        (rf"interface {_IF}", "interface"),
        (rf"router bgp {_NUMBER}", "bgp"),
        (rf"mpls lsp (?P<label>{_NUMBER}) (?P<address>{_ADDRESS}) implicit-null", ""),
        (
            rf"ip route (?P<prefix>{_ADDRESS}/\d+) (?P<address>{_ADDRESS}) label (?P<stack>{_NUMBER}(?:/{_NUMBER})*)",
            "",
        ),
        (r"segment-routing", "sr"),
    ],
    "interface": [
        (rf" description {_NAME}| mpls enable| shutdown", "interface"),
        (rf" ip address (?P<prefix>{_ADDRESS}/\d+)", "interface"),
        (r"exit", ""),
    ],
    "bgp": [
        (rf" bgp router-id (?P<address>{_ADDRESS})| no bgp ebgp-requires-policy", "bgp"),
        (r" bgp bestpath as-path multipath-relax", "bgp"),
        (r" neighbor FABRIC peer-group| neighbor FABRIC remote-as external", "bgp"),
        (rf" neighbor (?P<address>{_ADDRESS}) peer-group FABRIC", "bgp"),
        (r" address-family ipv4 unicast", "af"),
        (r"exit", ""),
    ],
    "af": [
        (rf"  network (?P<prefix>{_ADDRESS}/\d+)|  neighbor FABRIC activate", "af"),
        (rf"  maximum-paths {_NUMBER}", "af"),
        (r" exit-address-family", "bgp"),
    ],
    "sr": [(r" traffic-eng", "te"), (r"exit", "")],
    "te": [
        (rf"  segment-list (?P<defines>{_NAME})", "list"),
        (rf"  policy color [1-9]\d* endpoint (?P<address>{_ADDRESS})", "policy"),
        (r" exit", "sr"),
    ],
    "list": [(rf"   index {_NUMBER} mpls label (?P<label>{_NUMBER})", "list"), (r"  exit", "te")],
    "policy": [
        (rf"   name {_NAME}", "policy"),
        (rf"   candidate-path preference \d+ name {_NAME} explicit segment-list (?P<uses>{_NAME})", "policy"),
        (r"  exit", "te"),
    ],
}


def known_lines(grammar: Grammar, text: str, found: list[str]) -> Iterator[tuple[int, str, dict[str, str | None]]]:
    """The number, text and fields of each line that a grammar knows; problems of the others go to ``found``."""
    state = ""
    for number, line in enumerate(text.splitlines(), start=1):
        step = next(((match, after) for form, after in grammar[state] if (match := re.fullmatch(form, line))), None)
        if step is None:
            found.append(f"line {number}: {line[:60]!r} is not known here")
            continue
        state = step[1]
        yield number, line, step[0].groupdict()
    if state or not text.endswith("end\n"):
        found.append("does not come to its end")


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a configuration: unknown lines, addresses, labels, and lists that are missing."""
    found: list[str] = []
    lists, incoming = set[str](), set[str]()
    for number, line, fields in known_lines(_GRAMMAR, text, found):
        found += [f"line {number}: {problem}" for problem in _problems(fields, lists)]
        if defined := fields.get("defines"):
            lists.add(defined)
        if line.startswith("mpls lsp"):
            label = str(fields["label"])
            if label in incoming:
                found.append(f"line {number}: label {label} is given twice")
            incoming.add(label)
    return tuple(found)


def _problems(fields: dict[str, str | None], lists: set[str]) -> list[str]:
    found = []
    for key, value in fields.items():
        if value is None:
            continue
        labels = value.split("/") if key == "stack" else [value] if key == "label" else []
        found += [f"label {each} is not in 16 to 1048575" for each in labels if not 16 <= int(each) < 2**20]
        if len(labels) > MOST_LABELS:
            found.append(f"{len(labels)} labels are more than {MOST_LABELS}")
        if key == "defines" and value in lists:
            found.append(f"segment list {value} is given twice")
        if key == "uses" and value not in lists:
            found.append(f"there is no segment list {value}")
        try:
            if key == "address":
                ip_address(value)
            elif key == "prefix":
                ip_interface(value)
        except ValueError:
            found.append(f"{value} is no address")
    return found
