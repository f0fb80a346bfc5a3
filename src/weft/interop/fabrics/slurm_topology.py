"""Fabrics from SLURM's network topology, ``topology.yaml`` and ``topology.conf``, and fabrics written as the first.

Models of NVIDIA's topograph are read, too: ``switches`` above each other, ``blocks`` of nodes at the lowest.

SLURM tells who hangs below whom, not how fast: every accelerator gets a NIC of the bandwidth asked for, and
a switch as much bandwidth upwards as comes from below (split evenly where it has several parents), as many
cables as accelerators below it.

SLURM's tree has one leaf per node.  So where a fabric is written, the switches at which the accelerators of a
scale-up domain hang count as one leaf, together with all that share a domain with them; and switches that
share a lower one count as one above.

Host lists are written as SLURM does: ``node[01-04,07],gpu[1-2]x[0-3]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import ACCELERATOR, SCALE_UP_SWITCH, Cable, Node, assemble, levels, role_of_level
from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.text.yaml import Value, parse_yaml

MOST_PER_NODE = 4096
LONGEST_NAME = 64
_WORD = re.compile(r"(?<![A-Za-z])([A-Za-z]++)=((?:\[[^\[\]]*\]|\S)+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What SLURM does not say about a node."""

    per_node: int
    nic_Bps: float
    scale_up_Bps: float
    latency_s: float
    scale_up_latency_s: float


@dataclass(slots=True)
class _Switch:
    place: str
    nodes: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class _SwitchTree:
    """The switches by name, and how many more nodes and children they may have in all."""

    def __init__(self, where: str) -> None:
        self.switches: dict[str, _Switch] = {}
        self.where, self.left = where, MOST_NAMES

    def add(self, name: str, nodes: str, children: str, place: str) -> None:
        here = f"{self.where}: {place}"
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise BadInput(f"{name[:40]!r} is no name of a switch", where=here)
        if name in self.switches:
            raise BadInput(f"two switches are named {name!r}", where=here, remedy="rename one")
        switch = _Switch(place, self.expand(nodes, f"{here}: nodes"), self.expand(children, here))
        self.switches[name] = switch

    def expand(self, hostlist: str, where: str) -> list[str]:
        if hostlist and self.left <= 0:
            raise BadInput(f"has more than {MOST_NAMES:,} nodes", where=where)
        names = expand(hostlist, where=where, most=self.left) if hostlist else []
        self.left -= len(names)
        return names


def read(
    text: str,
    *,
    where: str = "topology",
    topology: str | None = None,
    per_node: int = 1,
    nic_Bps: float = 50e9,
    scale_up_Bps: float = 450e9,
    latency_s: float = 1e-6,
    scale_up_latency_s: float = 0.5e-6,
) -> Fabric:
    """The fabric of a ``topology.yaml``, or of a ``topology.conf`` (``SwitchName=``, ``BlockName=``).

    Args:
        topology: which of several in a ``topology.yaml``; the cluster's default, else the first, by default.
        per_node: accelerators of every SLURM node; more than one are joined by a scale-up switch.
        nic_Bps: bytes/s per accelerator and direction to its leaf switch.

    Raises:
        BadInput: malformed, a switch named twice, unknown or above itself, or parts without a path.
        Unsupported: a flat topology: it says nothing.
    """
    if not 1 <= per_node <= MOST_PER_NODE:
        raise BadInput(f"{per_node} accelerators per node", where="per_node", remedy="give 1 to 4096")
    sizes = _Sizes(
        per_node=per_node,
        nic_Bps=nic_Bps,
        scale_up_Bps=scale_up_Bps,
        latency_s=latency_s,
        scale_up_latency_s=scale_up_latency_s,
    )
    conf = re.search(r"^[ \t]*+(SwitchName|BlockName)[ \t]*=", text, re.IGNORECASE | re.MULTILINE)
    switches = _from_conf(text, where) if conf else _from_yaml(text, topology, where)
    return _fabric(switches, sizes, where)


def _from_conf(text: str, where: str) -> dict[str, _Switch]:
    tree, blocks = _SwitchTree(where), False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        name = words.get("switchname") or words.get("blockname")
        if name is None:
            if line and "blocksizes" not in words:
                raise BadInput(
                    f"{line[:60]!r} names no switch",
                    where=f"{where}: line {number}",
                    remedy="write it like SwitchName=leaf0 Nodes=node[01-04]",
                )
            continue
        blocks = blocks or "blockname" in words
        tree.add(name, words.get("nodes", ""), words.get("switches", ""), f"line {number}")
    return _joined(tree.switches, where) if blocks else tree.switches


def _from_yaml(text: str, topology: str | None, where: str) -> dict[str, _Switch]:
    found = parse_yaml(text, where=where)
    if isinstance(found, dict) and isinstance(found.get("blocks"), list):
        return _from_model(found, where)
    entries = found if isinstance(found, list) else [found]
    tables = [entry for entry in entries if isinstance(entry, dict) and "topology" in entry]
    if not tables or len(tables) < len(entries):
        raise BadInput("is not a list of topologies", where=where, remedy="write it like - topology: name")
    chosen = _chosen(tables, topology, where)
    place = f"{where}: {str(chosen['topology'])[:60]}"
    for kind, list_name, item in (("tree", "switches", "switch"), ("block", "blocks", "block")):
        if kind in chosen:
            switches = _listed(chosen[kind], list_name, item, place)
            return _joined(switches, place) if kind == "block" else switches
    raise Unsupported("is neither a tree nor blocks", where=place, remedy="choose another topology")


def _from_model(model: dict[str, Value], where: str) -> dict[str, _Switch]:
    """The switches of a model of topograph: who hangs below whom, and blocks of nodes at their leaves."""
    nodes: dict[str, list[str]] = {}
    for i, block in enumerate(model["blocks"]):
        if not isinstance(block, dict) or not isinstance(block.get("switch"), str):
            raise BadInput("has no switch", where=f"{where}: blocks[{i}]", remedy="write it like - switch: leaf1")
        nodes.setdefault(_text(block["switch"]), []).append(_text(block.get("nodes", "")))
    above = model.get("switches", "")
    rows = above if isinstance(above, dict) else {}
    tree = _SwitchTree(where)
    for name, row in (rows | {leaf: rows.get(leaf, "") for leaf in nodes}).items():
        below = row.get("switches", "") if isinstance(row, dict) else ""
        tree.add(name, ",".join(nodes.get(name, ())), _text(below), f"switches.{name}")
    return tree.switches


def _chosen(tables: list[dict[str, Value]], topology: str | None, where: str) -> dict[str, Value]:
    if topology is not None:
        named = [table for table in tables if table["topology"] == topology]
        if not named:
            raise BadInput(f"holds no topology {topology!r}", where=where, remedy="choose one that it holds")
        return named[0]
    default = [table for table in tables if str(table.get("cluster_default", "")).lower() == "true"]
    return (default or tables)[0]


def _listed(table: Value, list_name: str, item: str, where: str) -> dict[str, _Switch]:
    rows = table.get(list_name) if isinstance(table, dict) else None
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"has no list of {list_name}", where=where)
    tree = _SwitchTree(where)
    for i, row in enumerate(rows):
        place = f"{list_name}[{i}]"
        if not isinstance(row, dict) or not isinstance(row.get(item), str):
            raise BadInput(f"has no {item}", where=f"{where}: {place}", remedy=f"write it like - {item}: name")
        nodes, children = (_text(row.get(key, "")) for key in ("nodes", "children"))
        tree.add(_text(row[item]), nodes, children, place)
    return tree.switches


def _text(value: Value) -> str:
    if isinstance(value, list):
        return ",".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


def _joined(blocks: dict[str, _Switch], where: str) -> dict[str, _Switch]:
    """Blocks as leaf switches under one switch that joins them."""
    if len(blocks) < 2:
        return blocks
    top = next(name for name in ("core", "blocks", "between blocks") if name not in blocks)
    return blocks | {top: _Switch(where, [], list(blocks))}


def _fabric(switches: dict[str, _Switch], sizes: _Sizes, where: str) -> Fabric:
    hosts = list(dict.fromkeys(node for switch in switches.values() for node in switch.nodes))
    if both := next((host for host in hosts if host in switches), None):
        place = f"{where}: {switches[both].place}"
        raise BadInput(
            f"{both!r} is a switch and a node", where=place, remedy=f"list it as Switches={both}, not Nodes="
        )
    below, parents = _loads(switches, sizes.per_node, where)
    index = {name: i for i, name in enumerate([*hosts, *switches])}
    pairs = [(index[a], index[b]) for b, s in switches.items() for a in (*s.nodes, *s.children) if a in index]
    hops = levels(range(len(hosts)), len(index), pairs)
    places = {node: switch.place for switch in switches.values() for node in switch.nodes}
    nodes, cables = _hosts(hosts, places, sizes)
    for name, switch in switches.items():
        nodes.append(Node(name=name, role=role_of_level(hops[index[name]]), place=switch.place))
        cables += _nics(name, switch, sizes)
        cables += [
            Cable(
                source=child,
                target=name,
                capacity_Bps=below[child] * sizes.nic_Bps / parents[child],
                latency_s=sizes.latency_s,
                cables=max(1, below[child] // parents[child]),
                place=switch.place,
            )
            for child in switch.children
        ]
    return assemble("SLURM topology", nodes, cables, where=where)


def _loads(switches: dict[str, _Switch], per_node: int, where: str) -> tuple[dict[str, int], dict[str, int]]:
    """Accelerators below every switch, and how many parents it has; the switches must form no cycle."""
    parents = dict.fromkeys(switches, 0)
    for switch in switches.values():
        for child in switch.children:
            if child not in switches:
                remedy = "add a line for it"
                raise BadInput(f"there is no switch {child!r}", where=f"{where}: {switch.place}", remedy=remedy)
            parents[child] += 1
    waiting = dict(parents)
    ready = [name for name, count in waiting.items() if count == 0]
    order: list[str] = []
    while ready:
        name = ready.pop()
        order.append(name)
        for child in switches[name].children:
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    if len(order) < len(switches):
        cycle = next(name for name, count in waiting.items() if count > 0)
        raise BadInput(f"switch {cycle!r} is above itself", where=f"{where}: {switches[cycle].place}")
    below: dict[str, int] = {}
    for name in reversed(order):
        switch = switches[name]
        below[name] = per_node * len(switch.nodes) + sum(below[child] for child in switch.children)
        if not 1 <= below[name] <= 10**6:
            problem = "has no nodes below it" if below[name] < 1 else "has too many nodes below it"
            raise BadInput(f"switch {name!r} {problem}", where=f"{where}: {switch.place}")
    return below, parents


def _hosts(hosts: list[str], place: dict[str, str], sizes: _Sizes) -> tuple[list[Node], list[Cable]]:
    nodes, cables = [], []
    if len(hosts) * sizes.per_node > 10**6:
        raise BadInput(f"{len(hosts)} nodes of {sizes.per_node} accelerators are too many", where="per_node")
    for number, host in enumerate(hosts):
        for rail, name in enumerate(_names(host, sizes.per_node)):
            nodes.append(Node(name=name, role=ACCELERATOR, domain=number, rail=rail, place=place[host]))
            if sizes.per_node > 1:
                cables.append(
                    Cable(
                        source=name,
                        target=f"{host}/scale-up",
                        capacity_Bps=sizes.scale_up_Bps,
                        latency_s=sizes.scale_up_latency_s,
                        tier=SCALE_UP,
                        place=place[host],
                    )
                )
        if sizes.per_node > 1:
            nodes.append(Node(name=f"{host}/scale-up", role=SCALE_UP_SWITCH, place=place[host]))
    return nodes, cables


def _names(host: str, per_node: int) -> list[str]:
    return [host] if per_node == 1 else [f"{host}/{rail}" for rail in range(per_node)]


def _nics(name: str, switch: _Switch, sizes: _Sizes) -> list[Cable]:
    return [
        Cable(
            source=accelerator, target=name, capacity_Bps=sizes.nic_Bps, latency_s=sizes.latency_s, place=switch.place
        )
        for host in switch.nodes
        for accelerator in _names(host, sizes.per_node)
    ]


MOST_NAMES = 100_000
_LONGEST = 1_000_000
_LONGEST_HOST = 255
_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")


def expand(text: str, *, where: str, most: int = MOST_NAMES) -> list[str]:
    """The names of a host list, in its order.

    Raises:
        BadInput: malformed, more than ``most`` names, or names that no host can have.
    """
    if len(text) > _LONGEST:
        raise BadInput("the host list is too long", where=where)
    found: list[str] = []
    for item in _items(text, where):
        names = [""]
        for part in _parts(item, where):
            ends = list(islice(_ranged(part[1:-1], where, most), most + 1)) if part.startswith("[") else [part]
            if len(names[0]) + len(ends[0]) > _LONGEST_HOST:
                raise BadInput(f"{item[:40]!r} is longer than {_LONGEST_HOST} characters", where=where)
            if len(names) * len(ends) + len(found) > most:
                raise BadInput(f"{item[:40]!r} stands for more than {most:,} names", where=where)
            names = [name + end for name in names for end in ends]
        found += names
    return found


def compress(names: Iterable[str]) -> str:
    """A host list of some names: runs of numbers with the same prefix and width become ranges."""
    runs: list[tuple[str, int, list[list[int]]]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            runs.append((name, 0, []))
            continue
        prefix, width, number = match[1], len(match[2]), int(match[2])
        if runs and runs[-1][:2] == (prefix, width):
            ranges = runs[-1][2]
            if ranges[-1][1] + 1 == number:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        else:
            runs.append((prefix, width, [[number, number]]))
    return ",".join(_written(*run) for run in runs)


def _written(prefix: str, width: int, ranges: list[list[int]]) -> str:
    if not ranges:
        return prefix
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"{prefix}{ranges[0][0]:0{width}}"
    shown = (f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in ranges)
    return f"{prefix}[{','.join(shown)}]"


def _items(text: str, where: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
        if depth not in (0, 1):
            break
    if depth:
        raise BadInput(f"{text[:60]!r} has unbalanced brackets", where=where, remedy="write it like node[01-04]")
    yield text[start:].strip()


def _parts(item: str, where: str) -> list[str]:
    parts = _PART.findall(item)
    if not item or "".join(parts) != item or not item.isprintable():
        raise BadInput(f"{item[:60]!r} is not a host name", where=where, remedy="write it like node[01-04]")
    return parts


def _ranged(text: str, where: str, most: int) -> Iterator[str]:
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(high) < int(low):
            remedy = "write it like [01-04,7]"
            raise BadInput(f"{piece[:40]!r} is not a range of numbers", where=where, remedy=remedy)
        if int(high) - int(low) >= most:
            raise BadInput(f"[{piece[:40]}] stands for more than {most:,} names", where=where)
        yield from (f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1))


def write(fabric: Fabric, *, topology: str = "weft", hosts: Sequence[str] | None = None) -> str:
    """A ``topology.yaml`` with one tree over the scale-up domains.

    Args:
        topology: its name.
        hosts: names of the domains in order of their numbers; node0, node1, ... by default.

    Raises:
        BadInput: ``hosts`` does not name every domain once.
        Unsupported: some domain hangs at no switch.
    """
    numbers = sorted(set(fabric.domain.tolist()))
    width = len(str(len(numbers) - 1))
    members = list(hosts) if hosts is not None else [f"node{i:0{width}}" for i in range(len(numbers))]
    if len(members) != len(numbers) or len(set(members)) < len(members):
        raise BadInput(f"{len(set(members))} names for {len(numbers)} domains", where="hosts")
    lines = [f"- topology: {topology}", "  cluster_default: true", "  tree:", "    switches:"]
    item = "nodes"
    for level, groups in enumerate(_merged(fabric, numbers), start=1):
        title = role_of_level(level) + (str(level) if level > 3 else "")
        width = len(str(len(groups) - 1))
        names = [f"{title}{i:0{width}}" for i in range(len(groups))]
        for name, group in zip(names, groups, strict=True):
            lines += [f"    - switch: {name}", f"      {item}: {compress(members[i] for i in group)}"]
        members, item = names, "children"
    return "\n".join(lines) + "\n"


def _merged(fabric: Fabric, numbers: list[int]) -> Iterator[list[list[int]]]:
    """Per level of switches, the groups of groups below (of domains, at first) that they join; last, one."""
    outside = fabric.tier != SCALE_UP
    pairs = list(zip(fabric.source[outside].tolist(), fabric.target[outside].tolist(), strict=True))
    hops = levels(range(fabric.accelerators), fabric.nodes, pairs)
    position = {number: i for i, number in enumerate(numbers)}
    group_of = {i: position[number] for i, number in enumerate(fabric.domain.tolist())}
    count, level = len(numbers), 0
    while count > 1 or level == 0:
        level += 1
        touched: dict[int, set[int]] = {}
        for a, b in pairs:
            if hops[a] == level - 1 and hops[b] == level and a in group_of:
                touched.setdefault(b, set()).add(group_of[a])
        if level == 1 and set().union(*touched.values()) != set(range(count)):
            raise Unsupported("some accelerators hang at no switch", where=fabric.name)
        parts = _components(count, list(touched.values())) if touched else [list(range(count))]
        above = {member: i for i, part in enumerate(parts) for member in part}
        group_of = {switch: above[min(groups)] for switch, groups in touched.items()}
        count = len(parts)
        yield parts


def _components(count: int, sets: list[set[int]]) -> list[list[int]]:
    """Members 0 .. count-1 that some set joins, directly or through others, in order."""
    root = list(range(count))

    def find(member: int) -> int:
        while root[member] != member:
            root[member] = root[root[member]]
            member = root[member]
        return member

    for joined in sets:
        least = find(min(joined))
        for member in joined:
            other = find(member)
            least, other = min(least, other), max(least, other)
            root[other] = least
    parts: dict[int, list[int]] = {}
    for member in range(count):
        parts.setdefault(find(member), []).append(member)
    return list(parts.values())
