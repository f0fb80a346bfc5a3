"""A fabric from lists of nodes and cables, as files describe them: checked, in rank order, as arrays."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from weft.codec import Coded, Document, Range, decode
from weft.errors import BadInput
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Ints, ranks
from weft.units import parse_bandwidth, parse_seconds

ACCELERATOR, SCALE_UP_SWITCH = "accelerator", "scale-up"
MOST_NODES, MOST_LINKS = 2_000_000, 8_000_000
SCALE_UP_LATENCY_S = 0.5e-6
FASTEST_BPS, SLOWEST_S, MOST_CABLES = 1e15, 1.0, 1_000_000
LEVEL_ROLES = ("leaf", "spine", "core")
"""Roles of switches by their distance from the accelerators, for formats that do not tell."""


Label = Annotated[str, Range(1, 200)]
_Number = Annotated[int, Range(0, MOST_NODES)]
_WRITTEN: Any = str | float


def _quantity(parse: Callable[[str | float, str], float]) -> Coded:
    return Coded(lambda raw: parse(decode(_WRITTEN, raw, ""), ""), shape=_WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Document):
    """A node of a file; ``place`` says where in the file it is ("nodes[3]", "line 12").

    Without ``domain`` the links decide which accelerators share one; ``rail`` is the position in the domain.
    """

    DOCUMENT = "name role domain? rail?"

    name: Label
    role: Label
    place: str = ""
    domain: _Number | None = None
    rail: _Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable(Document):
    """A link of a file, in both directions where ``both``; without ``tier`` the roles of its ends decide.

    ``capacity_Bps`` is that of all its ``cables``, which are separate links beyond scale-up domains.
    """

    DOCUMENT = "source target capacity=capacity_Bps latency=latency_s cables tier up? both?"

    source: Label
    target: Label
    capacity_Bps: Annotated[float, _quantity(parse_bandwidth)]
    place: str = ""
    latency_s: Annotated[float, _quantity(parse_seconds)] = 0.0
    cables: Annotated[int, Range(1, MOST_CABLES)] = 1
    tier: Annotated[int, Range(0, 64)] | None = None
    up: bool = True
    both: bool = True


def assemble(
    name: str, nodes: Sequence[Node], links: Sequence[Cable], *, where: str, roles: Sequence[str] = ()
) -> Fabric:
    """The fabric of some nodes and links; accelerators come first, in the order given.

    Args:
        where: how messages name the source.
        roles: order of the roles; those of the nodes, accelerator first, by default.
    """
    ordered = [n for n in nodes if n.role == ACCELERATOR] + [n for n in nodes if n.role != ACCELERATOR]
    accelerators = sum(n.role == ACCELERATOR for n in ordered)
    index = _index(ordered, accelerators, sum(link.cables for link in links), where)
    _check_links(links, index, where)
    source, target, of = _directed(links, index)
    _check_connected(ordered, source, target, where)
    known = tuple(dict.fromkeys([*roles, ACCELERATOR, *(n.role for n in ordered)]))
    tier = _tiers(ordered, links, source, target, of)
    rails = [-1 if node.rail is None else node.rail for node in ordered[:accelerators]]
    domain = _domains(ordered[:accelerators], source, target, tier, len(ordered))
    cables = np.array([links[i].cables for i in of], dtype=np.int64)
    capacity = np.array([links[i].capacity_Bps for i in of], dtype=np.float64)
    members = np.where(tier > SCALE_UP, cables, 1)
    order = np.repeat(np.arange(len(of)), members)
    order = order[np.lexsort((order, ranks(order), np.array(of)[order]))]  # both directions of a cable side by side
    return Fabric(
        name=name,
        accelerators=accelerators,
        names=tuple(n.name for n in ordered),
        roles=known,
        role=np.array([known.index(n.role) for n in ordered], dtype=np.int64),
        source=source[order],
        target=target[order],
        capacity_Bps=(capacity / members)[order],
        latency_s=np.array([links[i].latency_s for i in of], dtype=np.float64)[order],
        cables=(cables // members)[order],
        tier=tier[order],
        up=np.array([links[i].up for i in of], dtype=bool)[order],
        domain=domain,
        rail=np.where(np.array(rails) < 0, ranks(domain), rails),
    )


def networked(
    name: str,
    accelerators: Sequence[tuple[str, str, str]],
    switches: Sequence[tuple[str, str]],
    links: Sequence[Cable],
    *,
    where: str,
    scale_up_Bps: float | None = None,
) -> Fabric:
    """The fabric of a source that tells who hangs at whom: a switch's role follows from its hops.

    Args:
        accelerators: name, host and place of each, in rank order; those of a host share a domain.
        switches: name and place of each.
        scale_up_Bps: bytes/s per accelerator and direction inside a host; joins the accelerators of a host by
            a scale-up switch.  Without it they meet in the network only.
    """
    hosts = {host: number for number, host in enumerate(dict.fromkeys(host for _, host, _ in accelerators))}
    nodes = [Node(name=each, role=ACCELERATOR, domain=hosts[host], place=at) for each, host, at in accelerators]
    index = {each[0]: i for i, each in enumerate([*accelerators, *switches])}
    pairs = [(index[link.source], index[link.target]) for link in links]
    hops = levels(range(len(accelerators)), len(index), pairs)
    nodes += [Node(name=each, role=role_of_level(hops[index[each]]), place=at) for each, at in switches]
    if scale_up_Bps is None:
        return assemble(name, nodes, links, where=where)
    inside = {host: f"scale-up {number} ({host})" for host, number in hosts.items()}
    nodes += [Node(name=switch, role=SCALE_UP_SWITCH, place="scale-up") for switch in inside.values()]
    # Accelerators host by host, which is the order of their links.
    ordered = sorted(accelerators, key=lambda accelerator: hosts[accelerator[1]])
    within: dict[str, Any] = {
        "capacity_Bps": scale_up_Bps,
        "latency_s": SCALE_UP_LATENCY_S,
        "tier": SCALE_UP,
        "place": "scale-up",
    }
    links = [*links, *(Cable(source=each, target=inside[host], **within) for each, host, _ in ordered)]
    return assemble(name, nodes, links, where=where)


def parts_of_fabric(fabric: Fabric) -> tuple[list[Node], list[Cable]]:
    """The nodes and links that ``assemble`` makes an equal fabric of; neighbours that are each other's reverse are one
    link for both directions."""
    domain, rail = fabric.domain.tolist(), fabric.rail.tolist()
    nodes = []
    for i, (name, role) in enumerate(zip(fabric.names, fabric.role.tolist(), strict=True)):
        place = {"domain": domain[i], "rail": rail[i]} if i < fabric.accelerators else {}
        nodes.append(Node(name=name, role=fabric.roles[role], place=name, **place))
    columns = (fabric.capacity_Bps, fabric.latency_s, fabric.cables, fabric.tier, fabric.up)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    ends = list(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))
    links, i = [], 0
    while i < len(rows):
        a, b = ends[i]
        capacity_Bps, latency_s, cables, tier, up = rows[i]
        both = i + 1 < len(rows) and ends[i + 1] == (b, a) and rows[i + 1] == rows[i]
        links.append(
            Cable(
                source=fabric.names[a],
                target=fabric.names[b],
                capacity_Bps=capacity_Bps,
                place=f"links[{i}]",
                latency_s=latency_s,
                cables=cables,
                tier=tier,
                up=up,
                both=both,
            )
        )
        i += 2 if both else 1
    return nodes, links


def role_of_level(level: int) -> str:
    """What a switch is called that is ``level`` hops (from 1) away from the nearest accelerator."""
    return LEVEL_ROLES[level - 1] if 1 <= level <= len(LEVEL_ROLES) else "switch"


def levels(starts: Sequence[int], count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Hops of each node from the nearest start over undirected pairs; -1 where there is no path."""
    beside: list[list[int]] = [[] for _ in range(count)]
    for a, b in pairs:
        beside[a].append(b)
        beside[b].append(a)
    result = [-1] * count
    for start in starts:
        result[start] = 0
    queue = deque(starts)
    while queue:
        node = queue.popleft()
        for neighbour in beside[node]:
            if result[neighbour] < 0:
                result[neighbour] = result[node] + 1
                queue.append(neighbour)
    return result


def _index(nodes: Sequence[Node], accelerators: int, links: int, where: str) -> dict[str, int]:
    if not accelerators:
        raise BadInput("has no accelerator", where=where, remedy=f'give some nodes role = "{ACCELERATOR}"')
    if len(nodes) > MOST_NODES or links > MOST_LINKS:
        raise BadInput(f"{len(nodes):,} nodes and {links:,} cables are too many", where=where)
    index = {node.name: i for i, node in enumerate(nodes)}
    if len(index) < len(nodes):
        twice = Counter(node.name for node in nodes).most_common(1)[0][0]
        places = " and ".join([node.place for node in nodes if node.name == twice][:2])
        raise BadInput(f"two nodes are named {twice!r}", where=f"{where}: {places}", remedy="rename one")
    return index


def _check_links(links: Sequence[Cable], index: dict[str, int], where: str) -> None:
    for link in links:
        place = f"{where}: {link.place} ({link.source} - {link.target})"
        for end in (link.source, link.target):
            if end not in index:
                raise BadInput(f"there is no node {end!r}", where=place, remedy="add it, or correct the link")
        if link.source == link.target:
            raise BadInput("joins a node with itself", where=place, remedy="remove it")
        if not 0 < link.capacity_Bps <= FASTEST_BPS:
            problem = f"capacity is {link.capacity_Bps:g} bytes/s"
            raise BadInput(problem, where=place, remedy="give a positive one; set up = false to fail a link")
        if not 0 <= link.latency_s <= SLOWEST_S:
            raise BadInput(f"latency is {link.latency_s:g} s", where=place, remedy="give 0 to 1 s")
        if not 1 <= link.cables <= MOST_CABLES:
            raise BadInput(f"bundles {link.cables} cables", where=place, remedy="give 1 or more")
        if link.tier is not None and not 0 <= link.tier <= 64:
            raise BadInput(f"tier is {link.tier}", where=place, remedy="give 0 (scale-up) to 64")


def _directed(links: Sequence[Cable], index: dict[str, int]) -> tuple[Ints, Ints, list[int]]:
    """Ends of every directed link, and the cable that it comes from."""
    source, target, of = [], [], []
    for i, link in enumerate(links):
        a, b = index[link.source], index[link.target]
        source += [a, b] if link.both else [a]
        target += [b, a] if link.both else [b]
        of += [i, i] if link.both else [i]
    return np.array(source, dtype=np.int64), np.array(target, dtype=np.int64), of


def _check_connected(nodes: Sequence[Node], source: Ints, target: Ints, where: str) -> None:
    part = components(len(nodes), source, target)
    lost = [nodes[i] for i in np.flatnonzero(part != part[0]).tolist()]
    if lost:
        names = ", ".join(node.name for node in lost[:4]) + (", ..." if len(lost) > 4 else "")
        raise BadInput(
            f"is disconnected: no path joins {nodes[0].name} with {len(lost)} nodes: {names}",
            where=f"{where}: {lost[0].place}",
            remedy="add the missing links, or remove the nodes, or join accelerators inside hosts (--scale-up)",
        )


def _tiers(nodes: Sequence[Node], links: Sequence[Cable], source: Ints, target: Ints, of: Sequence[int]) -> Ints:
    pairs = list(zip(source.tolist(), target.tolist(), strict=True))
    inside = [SCALE_UP_SWITCH in (nodes[a].role, nodes[b].role) for a, b in pairs]
    starts = [i for i, node in enumerate(nodes) if node.role == ACCELERATOR]
    level = levels(starts, len(nodes), [pair for pair, within in zip(pairs, inside, strict=True) if not within])
    result = []
    for (a, b), within, i in zip(pairs, inside, of, strict=True):
        stated = links[i].tier
        together = nodes[a].domain is not None and nodes[a].domain == nodes[b].domain
        within = within or (nodes[a].role == nodes[b].role == ACCELERATOR and together)
        tier = SCALE_UP if within else max(1, 1 + min(level[a], level[b]))
        result.append(tier if stated is None else stated)
    return np.array(result, dtype=np.int64)


def _domains(accelerators: Sequence[Node], source: Ints, target: Ints, tier: Ints, count: int) -> Ints:
    """The domains given; for accelerators without one, those that scale-up links join."""
    inside = tier == SCALE_UP
    part = components(count, source[inside], target[inside]).tolist()
    free = 1 + max((n.domain for n in accelerators if n.domain is not None), default=-1)
    numbers: dict[int, int] = {}
    result = []
    for i, node in enumerate(accelerators):
        if node.domain is not None:
            result.append(node.domain)
        else:
            result.append(numbers.setdefault(part[i], free + len(numbers)))
    return np.array(result, dtype=np.int64)


def finite(value: object, what: str, where: str) -> float:
    """A finite number from text or a number of a foreign file."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise BadInput(f"{what} {str(value)[:40]!r} is not a finite number", where=where)
    return number
