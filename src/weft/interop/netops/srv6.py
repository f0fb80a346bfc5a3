"""SRv6 micro-segments that pin every flow's path: FRR configurations, and shell scripts for Linux hosts alone.

Every node has a locator and answers to its micro-segment (uN); every switch has a static route to the locator
of each neighbour.  A sending host puts an outer header on packets to the destination, whose address names the
switches behind the first and then the receiving host (whose uDT6 segment takes the header off), so that they
lead along the path whatever routing says.  Routes are per destination.

FRR's configurations (``write``, ``lint``) need FRR 10.3 or later (static SIDs); FRR 8.4 does not know these
lines.  The scripts (``write_script``, ``lint_script``) need switches with their micro-segments and routes to
the locators of their neighbours, as ``write`` or ``sonic`` writes them.  The checkers know exactly the lines
written here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from ipaddress import IPv6Address, IPv6Network

from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import BLOCK, DECAPSULATE, Addressing, addressing, first_links
from weft.interop.netops.frr import Grammar, check_parallel, known_lines
from weft.interop.netops.plan_paths import PlannedPath, network_paths, path_to_destination
from weft.routing.traffic import JobTraffic

PER_DESTINATION = (
    "plan one path per pair of hosts (--router ecmp-paper), or export roce-csv, which steers queue pairs by their"
    " source ports, or frr, which steers them by color"
)


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """A configuration for every host and switch of the scale-out network, by file name.

    Raises:
        Unsupported: a flow is not on one path, flows of a pair take different paths, or parallel links cannot
            be told apart by segments.
        BadInput: the routes are not of this traffic and fabric.
    """
    plan = addressing(fabric)
    own = _sent(fabric, traffic, routes, "SRv6")
    links: dict[int, list[int]] = defaultdict(list)
    for link in (fabric.tier > SCALE_UP).nonzero()[0].tolist():
        links[int(fabric.source[link])].append(link)
    files = {}
    for node, out in sorted(links.items()):
        lines = _interfaces(fabric, plan, node, out) + _neighbours(fabric, plan, out)
        lines += [_steer(plan, path) for path in own.get(node, [])]
        lines += _segments(plan, node, host=node < fabric.accelerators)
        files[f"{plan.names[node]}.conf"] = "\n".join([*lines, "end"]) + "\n"
    return files


def _sent(fabric: Fabric, traffic: JobTraffic, routes: Routes, where: str) -> dict[int, list[PlannedPath]]:
    """The paths of every sending host, one per destination, both in order of their numbers."""
    paths = network_paths(fabric, traffic, routes, where=where)
    check_parallel(fabric, paths, where)
    pairs = path_to_destination(fabric, paths, where=where, remedy=PER_DESTINATION)
    sent: dict[int, list[PlannedPath]] = defaultdict(list)
    for _, path in sorted(pairs.items()):
        sent[path.source].append(path)
    return sent


def _interfaces(fabric: Fabric, plan: Addressing, node: int, links: list[int]) -> list[str]:
    lines = [f"hostname {plan.names[node]}", "!", "interface lo"]
    lines += [f" ipv6 address {plan.ipv6(node)}/128", "exit", "!"]
    for link in links:
        lines += [f"interface {plan.interfaces[link]}"]
        lines += [f" description {plan.names[fabric.target[link]]}"]
        lines += [f" ipv6 address {plan.link_ipv6(link)}/127"]
        lines += [*([] if fabric.up[link] else [" shutdown"]), "exit", "!"]
    return lines


def _neighbours(fabric: Fabric, plan: Addressing, links: list[int]) -> list[str]:
    return [
        f"ipv6 route {plan.locator(other)} {plan.gateway_ipv6(link)} {plan.interfaces[link]}"
        for other, link in first_links(fabric, links)
    ]


def _steer(plan: Addressing, path: PlannedPath) -> str:
    segments = "/".join(plan.segments(path.nodes[2:] or path.nodes[1:]))
    interface = plan.interfaces[path.links[0]]
    gateway = plan.gateway_ipv6(path.links[0])
    return f"ipv6 route {plan.ipv6(path.target)}/128 {gateway} {interface} segments {segments}"


def _segments(plan: Addressing, node: int, *, host: bool) -> list[str]:
    lines = ["!", "segment-routing", " srv6", "  encapsulation"]
    lines += [f"   source-address {plan.ipv6(node)}", "  exit", "  locators", "   locator MAIN"]
    lines += [f"    prefix {plan.locator(node)} block-len 32 node-len 16 func-bits 16", "    behavior usid"]
    lines += ["   exit", "  exit", "  static-sids", f"   sid {plan.locator(node)} locator MAIN behavior uN"]
    if host:
        lines.append(f"   sid {plan.end(node)}/64 locator MAIN behavior uDT6 vrf default")
    return [*lines, "  exit", " exit", "exit", "!"]


_NAME, _IF, _ADDRESS = r"[a-z][a-z0-9-]*", r"(?:eth\d+|lo)", r"[0-9a-f:]+"
_GRAMMAR: Grammar = {
    "": [
        (rf"!|end|hostname {_NAME}", ""),
        (rf"interface {_IF}", "interface"),
        (
            rf"ipv6 route (?P<prefix>{_ADDRESS}/\d+) (?P<address>{_ADDRESS}) {_IF}"
            rf"(?: segments (?P<segments>{_ADDRESS}(?:/{_ADDRESS})*))?",
            "",
        ),
        (r"segment-routing", "sr"),
    ],
    "interface": [
        (rf" description {_NAME}| shutdown", "interface"),
        (rf" ipv6 address (?P<interface>{_ADDRESS})/\d+", "interface"),
        (r"exit", ""),
    ],
    "sr": [(r" srv6", "srv6"), (r"exit", "")],
    "srv6": [
        (r"  encapsulation", "encapsulation"),
        (r"  locators", "locators"),
        (r"  static-sids", "sids"),
        (r" exit", "sr"),
    ],
    "encapsulation": [(rf"   source-address (?P<address>{_ADDRESS})", "encapsulation"), (r"  exit", "srv6")],
    "locators": [(r"   locator MAIN", "locator"), (r"  exit", "srv6")],
    "locator": [
        (rf"    prefix (?P<locator>{_ADDRESS}/48) block-len 32 node-len 16 func-bits 16", "locator"),
        (r"    behavior usid", "locator"),
        (r"   exit", "locators"),
    ],
    "sids": [
        (rf"   sid (?P<node>{_ADDRESS}/48) locator MAIN behavior uN", "sids"),
        (rf"   sid (?P<end>{_ADDRESS}/64) locator MAIN behavior uDT6 vrf default", "sids"),
        (r"  exit", "srv6"),
    ],
}


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a configuration: unknown lines, addresses, and segments outside the locator."""
    found: list[str] = []
    locator = ""
    for number, _, fields in known_lines(_GRAMMAR, text, found):
        locator = fields.get("locator") or locator
        found += [f"line {number}: {problem}" for problem in _problems(fields, locator)]
    return tuple(found)


def _problems(fields: dict[str, str | None], locator: str) -> list[str]:
    found = []
    for key, value in fields.items():
        try:
            if value is None:
                continue
            if key in ("address", "interface"):
                IPv6Address(value)
            elif key == "segments":
                found += lint_segments(value.split("/"))
            elif key == "node" and value != locator:
                found.append(f"{value} is not the locator {locator}")
            elif key == "end" and not IPv6Network(value).subnet_of(IPv6Network(locator)):
                found.append(f"{value} is not in the locator {locator}")
            elif key in ("prefix", "locator"):
                IPv6Network(value)
        except ValueError:
            found.append(f"{value} is no address")
    return found


def lint_segments(segments: list[str]) -> list[str]:
    """What is wrong with addresses that pack micro-segments: another block, gaps, or no end to them."""
    found = []
    words: list[int] = []
    for text in segments:
        try:
            packed = IPv6Address(text).packed
        except ValueError:
            found.append(f"{text[:60]!r} is no address")
            continue
        if packed[:4] != IPv6Address(f"{BLOCK}::").packed[:4]:
            found.append(f"segment {text} is not in {BLOCK}::/32")
        words = [int.from_bytes(packed[i : i + 2], "big") for i in range(4, 16, 2)]
        used = max((i + 1 for i, word in enumerate(words) if word), default=0)
        if not used or 0 in words[:used]:
            found.append(f"segment {text} has a gap")
        words = words[:used]
    if not found and words[-1:] != [DECAPSULATE]:
        found.append(f"no segment takes the outer header off: {segments[-1][:60]}")
    return found


_HEAD = ("#!/bin/sh", "set -e")
_ADDRESS = r"([0-9a-f:]+)"
_LINES = (
    rf"ip sr tunsrc set {_ADDRESS}",
    rf"ip -6 route add {_ADDRESS}/128 encap seg6local action End\.DT6 table 254 dev eth\d+",
    rf"ip -6 route add {_ADDRESS}/128 encap seg6 mode encap segs ([0-9a-f:,]+) dev eth\d+",
)


def write_script(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """A script for every host that sends or receives, by file name.

    Raises:
        Unsupported: a flow is not on one path, flows of a pair take different paths, or parallel links cannot
            be told apart by segments.
        BadInput: the routes are not of this traffic and fabric.
    """
    plan = addressing(fabric)
    sent = _sent(fabric, traffic, routes, "host routes")
    enters: dict[int, int] = {}
    for path in (path for paths in sent.values() for path in paths):
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


def lint_script(text: str) -> tuple[str, ...]:
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
