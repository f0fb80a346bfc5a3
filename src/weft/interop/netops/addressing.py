"""Names and addresses of a fabric's nodes and links, the same in every export.

Node ``i`` has index ``i + 1``: address 10.0.0.0 + index (a switch's loopback, an accelerator's NIC).
A cable has two addresses of 10.128.0.0/9 (a /31).  The scale-out links of a node are its interfaces eth1, eth2, ...
in the order of the links, its scale-up links sup1, sup2, ...; failed links keep theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np

from weft.errors import Unsupported
from weft.fabric.spec import SCALE_UP, Fabric

MOST_NODES = 2**23 - 2
MOST_CABLES = 2**22
LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressing:
    """What ``addressing`` gives the nodes and directed links of a fabric.

    ``names`` are names that hosts and files can have.  Link ``l`` leaves its source by ``interfaces[l]`` and
    goes back by ``reverse[l]``; it is end ``ends[l]`` (0 or 1) of cable ``cables[l]``.
    """

    names: tuple[str, ...]
    interfaces: tuple[str, ...]
    reverse: tuple[int, ...]
    cables: tuple[int, ...]
    ends: tuple[int, ...]

    def ipv4(self, node: int) -> str:
        """Address of a node."""
        return str(IPv4Address("10.0.0.0") + node + 1)

    def link_ipv4(self, link: int) -> str:
        """Address, in its /31, of the interface by which a link leaves its source."""
        return str(IPv4Address("10.128.0.0") + 2 * self.cables[link] + self.ends[link])

    def gateway_ipv4(self, link: int) -> str:
        """Address of the far end of a link."""
        return self.link_ipv4(self.reverse[link])


def addressing(fabric: Fabric) -> Addressing:
    """Names and addresses for a fabric.

    Raises:
        Unsupported: more nodes or cables than the ranges hold, or a link without the opposite one.
    """
    where = f"fabric {fabric.name}"
    if fabric.nodes > MOST_NODES:
        raise Unsupported(
            f"{fabric.nodes:,} nodes are more than {MOST_NODES:,} addresses",
            where=where,
            remedy="export a part of the fabric",
        )
    if fabric.links > 2 * MOST_CABLES:
        raise Unsupported(
            f"{fabric.links:,} links are more than {2 * MOST_CABLES:,}", where=where, remedy="export a part"
        )
    reverse, cables, ends = _cables(fabric, where)
    return Addressing(names=_names(fabric), interfaces=_interfaces(fabric), reverse=reverse, cables=cables, ends=ends)


def _cables(fabric: Fabric, where: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Every link's opposite, the number of its cable, and which end of the cable the link is."""
    reverse = fabric.reverse
    if (reverse < 0).any():
        link = int(np.argmin(reverse))
        raise Unsupported(
            f"{fabric.names[fabric.source[link]]} -> {fabric.names[fabric.target[link]]} has no link back",
            where=where,
            remedy="give both directions of every cable",
        )
    links = np.arange(fabric.links)
    cable = np.unique(np.minimum(links, reverse), return_inverse=True)[1]
    return tuple(reverse.tolist()), tuple(cable.tolist()), tuple((reverse < links).astype(int).tolist())


def _interfaces(fabric: Fabric) -> tuple[str, ...]:
    counts: Counter[tuple[int, str]] = Counter()
    found = []
    for node, tier in zip(fabric.source.tolist(), fabric.tier.tolist(), strict=True):
        kind = "sup" if tier == SCALE_UP else "eth"
        counts[node, kind] += 1
        found.append(f"{kind}{counts[node, kind]}")
    return tuple(found)


def _names(fabric: Fabric) -> tuple[str, ...]:
    """Letters, digits and hyphens of the names, with the node's number where that is not unique."""
    plain = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in fabric.names]
    plain = [name if name[:1].isalpha() and len(name) <= LONGEST_NAME else "" for name in plain]
    times = Counter(plain)
    given = {name for name in plain if times[name] == 1}
    found = []
    for node, name in enumerate(plain):
        unique = name if name and times[name] == 1 else f"{name or 'node'}-{node}"
        while unique != name and unique in given:
            unique = f"{unique}-{node}"
        given.add(unique)
        found.append(unique)
    return tuple(found)
