"""Shell scripts for Linux hosts that pin paths with SRv6 micro-segments.

A sending host puts an outer header on packets to each planned destination, whose address names the switches
behind the first and then the receiving host, which takes it off; switches need their micro-segments (uN) and
routes to the locators of their neighbours (``frr_srv6``, ``sonic``).  Routes are per destination.
"""

from __future__ import annotations

import re
from collections import defaultdict
from ipaddress import IPv6Address

from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import addressing
from weft.interop.netops.frr import check_parallel
from weft.interop.netops.frr_srv6 import PER_DESTINATION, lint_segments
from weft.interop.netops.plan_paths import PlannedPath, network_paths, path_to_destination
from weft.routing.traffic import JobTraffic

_HEAD = ("#!/bin/sh", "set -e")
_ADDRESS = r"([0-9a-f:]+)"
_LINES = (
    rf"ip sr tunsrc set {_ADDRESS}",
    rf"ip -6 route add {_ADDRESS}/128 encap seg6local action End\.DT6 table 254 dev eth\d+",
    rf"ip -6 route add {_ADDRESS}/128 encap seg6 mode encap segs ([0-9a-f:,]+) dev eth\d+",
)


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """A script for every host that sends or receives, by file name.

    Raises:
        Unsupported: a flow is not on one path, flows of a pair take different paths, or parallel links cannot
            be told apart by segments.
        BadInput: the routes are not of this traffic and fabric.
    """
    plan = addressing(fabric)
    paths = network_paths(fabric, traffic, routes, where="host routes")
    check_parallel(fabric, paths, "host routes")
    pairs = path_to_destination(fabric, paths, where="host routes", remedy=PER_DESTINATION)
    sent: dict[int, list[PlannedPath]] = defaultdict(list)
    enters: dict[int, int] = {}
    for _, path in sorted(pairs.items()):
        sent[path.source].append(path)
        enters.setdefault(path.target, plan.reverse[path.links[-1]])
    files = {}
    for host in sorted({*sent, *enters}):
        lines = [*_HEAD, f"ip sr tunsrc set {plan.ipv6(host)}"]
        if host in enters:
            back = plan.interfaces[enters[host]]
            lines.append(f"ip -6 route add {plan.end(host)}/128 encap seg6local action End.DT6 table 254 dev {back}")
        for path in sent.get(host, []):
            segments = ",".join(plan.segments(path.nodes[2:] or path.nodes[1:]))
            out = plan.interfaces[path.links[0]]
            prefix = f"{plan.ipv6(path.target)}/128"
            lines.append(f"ip -6 route add {prefix} encap seg6 mode encap segs {segments} dev {out}")
        files[f"{plan.names[host]}.sh"] = "\n".join(lines) + "\n"
    return files


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a script: unknown commands, addresses, segments, or a destination given twice."""
    lines = text.splitlines()
    found = [] if tuple(lines[:2]) == _HEAD else ["does not begin as a shell script that stops at errors"]
    seen = set()
    for number, line in enumerate(lines[2:], start=3):
        match = next((match for form in _LINES if (match := re.fullmatch(form, line))), None)
        if match is None:
            found.append(f"line {number}: {line[:60]!r} is not known")
            continue
        problems = [] if _is_address(match[1]) else [f"{match[1][:60]} is no address"]
        if match.re.groups > 1:
            problems += lint_segments(match[2].split(","))
        if " route " in line:
            problems += [f"{match[1]} is given twice"] if match[1] in seen else []
            seen.add(match[1])
        found += [f"line {number}: {problem}" for problem in problems]
    return tuple(found)


def _is_address(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
