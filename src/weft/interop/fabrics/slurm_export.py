"""A fabric as SLURM's ``topology.yaml``.

SLURM's tree has one leaf per node.  So the switches at which the accelerators of a scale-up domain hang
count as one leaf, together with all that share a domain with them; and switches that share a lower one
count as one above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import levels, role_of_level
from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.fabrics.hostlist import compress


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
