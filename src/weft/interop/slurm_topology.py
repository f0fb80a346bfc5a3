"""Fabrics from SLURM's network topology and as it: ``topology.yaml``, ``topology.conf``, ``scontrol show topology``.

SLURM tells who hangs below whom, not how fast: a node is as of a cluster, else an accelerator with a NIC of
``NIC_Bps``.  A switch has as much bandwidth upwards as comes from below, over its oversubscription, split evenly where
it has several parents, and about as many cables as NICs make that up.

SLURM's tree has one leaf per node.  So where a fabric is written, the switches at which the accelerators of a
scale-up domain hang count as one leaf, together with all that share a domain with them; and switches that
share a lower one count as one above.

Host lists are written as SLURM does: ``node[01-04,07],gpu[1-2]x[0-3]``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import numpy as np

from weft.cluster.spec import Cluster
from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import Cable, levels, networked, role_of_level
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.wiring import ends_of_accelerators
from weft.interop.yaml_text import Value, parse_yaml

NIC_Bps, LATENCY_S = 50e9, 1e-6
LONGEST_NAME, LONGEST_HOST = 64, 255
MOST_NAMES, LONGEST_LIST = 100_000, 1_000_000
_CONF = re.compile(r"^[ \t]*+(SwitchName|BlockName)[ \t]*=", re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"(?<![A-Za-z])([A-Za-z]++)=((?:\[[^\[\]]*\]|\S)+)")
_HOST = re.compile(r"\s*((?:[^\[\],\s]|\[[^\[\]]*\])+)\s*(,|$)")
_RANGE = re.compile(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")
Row = tuple[str, str, str, str]
"""A switch of a file: name, host lists of the nodes and switches below, and its place."""


@dataclass(frozen=True, slots=True)
class _Switch:
    place: str
    nodes: list[str]
    children: list[str]


def read(
    text: str, *, where: str = "topology", cluster: Cluster | None = None, oversubscription: Sequence[float] = ()
) -> Fabric:
    """The fabric of a ``topology.yaml`` (the cluster's default topology), of a ``topology.conf``, or of what
    ``scontrol show topology`` prints.

    Args:
        cluster: whose hosts the nodes are; their accelerators are "node/gpu0", ...
        oversubscription: of the switches by level, from the leaves; beyond, 1.

    Raises:
        Unsupported: a flat topology: it says nothing.
    """
    switches = _switches(*(_conf_rows(text, where) if _CONF.search(text) else _yaml_rows(text, where)))
    hosts = {node: switch.place for switch in switches.values() for node in switch.nodes}
    if shared := next((host for host in hosts if host in switches), None):
        problem, remedy = f"{shared!r} is a switch and a node", f"list it as Switches={shared}, not Nodes="
        raise BadInput(problem, where=f"{where}: {switches[shared].place}", remedy=remedy)
    below = _nodes_below(switches, where)
    parents = Counter(child for switch in switches.values() for child in switch.children)
    ratios = dict(enumerate(oversubscription))
    size, nic_Bps = (cluster.tiers[0].size, cluster.tiers[1].bandwidth_Bps) if cluster else (1, NIC_Bps)
    gpus = {host: [f"{host}/gpu{i}" for i in range(size)] if size > 1 else [host] for host in hosts}
    cables = []
    for name, switch in switches.items():
        ends = [(gpu, nic_Bps, 1) for node in switch.nodes for gpu in gpus[node]]
        for child in switch.children:
            nodes, level = below[child]
            share = nodes * size / parents[child] / ratios.get(level, 1.0)
            ends.append((child, share * nic_Bps, max(1, int(share))))
        cables += [
            Cable(source=end, target=name, capacity_Bps=rate, latency_s=LATENCY_S, cables=count, place=switch.place)
            for end, rate, count in ends
        ]
    accelerators = [(gpu, host, place) for host, place in hosts.items() for gpu in gpus[host]]
    above = [(name, switch.place) for name, switch in switches.items()]
    scale_up_Bps = cluster.tiers[0].bandwidth_Bps if cluster and size > 1 else None
    return networked("SLURM topology", accelerators, above, cables, where=where, scale_up_Bps=scale_up_Bps)


def _conf_rows(text: str, where: str) -> tuple[list[Row], bool, str]:
    """The rows of a ``topology.conf``, whether they are blocks, and their place."""
    rows: list[Row] = []
    blocks = False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        name = words.get("switchname") or words.get("blockname")
        if name is not None:
            blocks = blocks or "blockname" in words
            switches = words.get("switches", "")  # beside them, scontrol lists the nodes of all levels below
            rows.append((name, "" if switches else words.get("nodes", ""), switches, f"line {number}"))
        elif line and "blocksizes" not in words and "aggregatedblock" not in words:
            remedy = "write it like SwitchName=leaf0 Nodes=node[01-04]"
            raise BadInput(f"{line[:60]!r} names no switch", where=f"{where}: line {number}", remedy=remedy)
    return rows, blocks, where


def _yaml_rows(text: str, where: str) -> tuple[list[Row], bool, str]:
    """The same of the topology of a ``topology.yaml`` that is the cluster's default, else of the first."""
    result = parse_yaml(text, where=where)
    entries = result if isinstance(result, list) else [result]
    tables = [entry for entry in entries if isinstance(entry, dict) and "topology" in entry]
    if not tables or len(tables) < len(entries):
        raise BadInput("is not a list of topologies", where=where, remedy="write it like - topology: name")
    default = [table for table in tables if str(table.get("cluster_default", "")).lower() == "true"]
    chosen = (default or tables)[0]
    place = f"{where}: {str(chosen['topology'])[:60]}"
    for kind, title, item in (("tree", "switches", "switch"), ("block", "blocks", "block")):
        if kind not in chosen:
            continue
        table = chosen[kind]
        listed = table.get(title) if isinstance(table, dict) else None
        if not isinstance(listed, list) or not listed:
            raise BadInput(f"has no list of {title}", where=place)
        rows: list[Row] = []
        for i, row in enumerate(listed):
            name = row.get(item) if isinstance(row, dict) else None
            if not isinstance(row, dict) or not isinstance(name, str):
                remedy = f"write it like - {item}: name"
                raise BadInput(f"has no {item}", where=f"{place}: {title}[{i}]", remedy=remedy)
            rows.append((name, _list_of(row.get("nodes")), _list_of(row.get("children")), f"{title}[{i}]"))
        return rows, kind == "block", place
    raise Unsupported("is neither a tree nor blocks", where=place, remedy="choose another topology")


def _list_of(value: Value | None) -> str:
    if isinstance(value, list):
        return ",".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


def _switches(rows: Iterable[Row], blocks: bool, where: str) -> dict[str, _Switch]:
    """The switches by name; blocks are leaf switches under one switch that joins them."""
    switches: dict[str, _Switch] = {}
    left = MOST_NAMES
    for name, nodes, children, place in rows:
        place_text = f"{where}: {place}"
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise BadInput(f"{name[:40]!r} is not a name of a switch", where=place_text)
        if name in switches:
            raise BadInput(f"two switches are named {name!r}", where=place_text, remedy="rename one")
        expanded: list[list[str]] = []
        for hostlist, at in ((nodes, f"{place_text}: nodes"), (children, place_text)):
            if hostlist and left <= 0:
                raise BadInput(f"has more than {MOST_NAMES:,} nodes", where=at)
            expanded.append(expand(hostlist, where=at, most=left) if hostlist else [])
            left -= len(expanded[-1])
        switches[name] = _Switch(place, *expanded)
    if blocks and len(switches) > 1:
        top = next(name for name in ("core", "blocks", "between blocks") if name not in switches)
        switches[top] = _Switch(where, [], list(switches))
    return switches


def _nodes_below(switches: dict[str, _Switch], where: str) -> dict[str, tuple[int, int]]:
    """Nodes below every switch, and its level from the leaves; the switches must form no cycle."""
    for switch in switches.values():
        if unknown := [child for child in switch.children if child not in switches]:
            problem = f"there is no switch {unknown[0]!r}"
            raise BadInput(problem, where=f"{where}: {switch.place}", remedy="add a line for it")
    try:
        order = list(TopologicalSorter({name: switch.children for name, switch in switches.items()}).static_order())
    except CycleError as error:
        above = error.args[1][0]
        raise BadInput(f"switch {above!r} is above itself", where=f"{where}: {switches[above].place}") from None
    below: dict[str, tuple[int, int]] = {}
    for name in order:
        switch = switches[name]
        count = len(switch.nodes) + sum(below[child][0] for child in switch.children)
        if not 1 <= count <= 10**6:
            problem = "has no nodes below it" if count < 1 else "has too many nodes below it"
            raise BadInput(f"switch {name!r} {problem}", where=f"{where}: {switch.place}")
        below[name] = count, max((below[child][1] + 1 for child in switch.children), default=0)
    return below


def expand(text: str, *, where: str, most: int = MOST_NAMES) -> list[str]:
    """The names of a host list, in its order."""
    if len(text) > LONGEST_LIST:
        raise BadInput("the host list is too long", where=where)
    result: list[str] = []
    position, more = 0, ","
    while more:
        match = _HOST.match(text, position)
        if match is None or not match[1].isprintable():
            problem = "has unbalanced brackets" if text.count("[") != text.count("]") else "is not a host name"
            raise BadInput(f"{text[position:][:60]!r} {problem}", where=where, remedy="write it like node[01-04]")
        (item, more), position = match.groups(), match.end()
        names = [""]
        for part in filter(None, re.split(r"(\[[^\[\]]*\])", item)):
            ends = _ranged(part[1:-1], where, most) if part[0] == "[" else [part]
            if len(names[0]) + len(ends[0]) > LONGEST_HOST:
                raise BadInput(f"{item[:40]!r} is longer than {LONGEST_HOST} characters", where=where)
            if len(names) * len(ends) + len(result) > most:
                raise BadInput(f"{item[:40]!r} stands for more than {most:,} names", where=where)
            names = [name + end for name in names for end in ends]
        result += names
    return result


def _ranged(text: str, where: str, most: int) -> list[str]:
    """The numbers of brackets, with their zeros; no more than just above ``most``."""
    numbers: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(high) < int(low):
            remedy = "write it like [01-04,7]"
            raise BadInput(f"{piece[:40]!r} is not a range of numbers", where=where, remedy=remedy)
        if int(high) - int(low) >= most:
            raise BadInput(f"[{piece[:40]}] stands for more than {most:,} names", where=where)
        numbers += (f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1))
        if len(numbers) > most:
            break
    return numbers


def compress(names: Iterable[str]) -> str:
    """A host list of some names: runs of numbers with the same prefix and width become ranges."""
    runs: list[tuple[str, int, list[list[int]]]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            runs.append((name, 0, []))
            continue
        prefix, width, number = match[1], len(match[2]), int(match[2])
        if not runs or runs[-1][:2] != (prefix, width):
            runs.append((prefix, width, []))
        ranges = runs[-1][2]
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    lists = []
    for prefix, width, ranges in runs:
        text = ",".join(f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in ranges)
        lists.append(prefix + (f"[{text}]" if "-" in text or "," in text else text))
    return ",".join(lists)


def write(fabric: Fabric) -> str:
    """A ``topology.yaml`` with one tree over the scale-up domains, which are nodes; unnamed ones are node0, ...

    Raises:
        Unsupported: some domain hangs at no switch.
    """
    lines = ["- topology: weft", "  cluster_default: true", "  tree:", "    switches:"]
    for name, item, below in _tree(fabric):
        lines += [f"    - switch: {name}", f"      {item}: {below}"]
    return "\n".join(lines) + "\n"


def write_conf(fabric: Fabric) -> str:
    """The same tree as a ``topology.conf``."""
    keys = {"nodes": "Nodes", "children": "Switches"}
    return "".join(f"SwitchName={name} {keys[item]}={below}\n" for name, item, below in _tree(fabric))


def _tree(fabric: Fabric) -> Iterator[tuple[str, str, str]]:
    """Every switch, from the leaves: its name, "nodes" or "children", and a host list of them."""
    domains, inverse = np.unique(fabric.domain, return_inverse=True)
    devices: dict[int, set[str]] = defaultdict(set)
    for domain, end in zip(inverse.tolist(), ends_of_accelerators(fabric), strict=True):
        devices[domain].add(end.device)
    numbered = _numbered("node", len(domains))
    members = [min(devices[i]) if len(devices[i]) == 1 else name for i, name in enumerate(numbered)]
    item = "nodes"
    for level, groups in enumerate(_merged(fabric, inverse.tolist()), start=1):
        names = _numbered(role_of_level(level) + (str(level) if level > 3 else ""), len(groups))
        for name, group in zip(names, groups, strict=True):
            yield name, item, compress(members[i] for i in group)
        members, item = names, "children"


def _numbered(name: str, count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"{name}{i:0{width}}" for i in range(count)]


def _merged(fabric: Fabric, domain: list[int]) -> Iterator[list[list[int]]]:
    """Per level of switches, the groups of groups below (of domains, at first) that they join; last, one."""
    outside = fabric.tier != SCALE_UP
    pairs = list(zip(fabric.source[outside].tolist(), fabric.target[outside].tolist(), strict=True))
    hops = levels(range(fabric.accelerators), fabric.nodes, pairs)
    group_of = dict(enumerate(domain))
    count, level = max(domain) + 1, 0
    while count > 1 or level == 0:
        level += 1
        touched: dict[int, set[int]] = defaultdict(set)
        for a, b in pairs:
            if hops[a] == level - 1 and hops[b] == level and a in group_of:
                touched[b].add(group_of[a])
        if level == 1 and set(chain(*touched.values())) != set(range(count)):
            raise Unsupported("some accelerators hang at no switch", where=fabric.name)
        if touched:  # groups below one switch become one, directly or through others
            joined = np.array([(min(groups), group) for groups in touched.values() for group in groups])
            label = components(count, joined[:, 0], joined[:, 1])
        else:
            label = np.zeros(count, dtype=np.int64)
        above = np.unique(label, return_inverse=True)[1].tolist()
        group_of = {switch: above[min(groups)] for switch, groups in touched.items()}
        count = max(above) + 1
        parts: list[list[int]] = [[] for _ in range(count)]
        for member, group in enumerate(above):
            parts[group].append(member)
        yield parts
