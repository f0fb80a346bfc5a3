"""Names, addresses, labels and segments of a fabric's nodes and links, the same in every export.

Node ``i`` has index ``i + 1``: address 10.0.0.0 + index (a switch's loopback, an accelerator's NIC), MPLS
node label 16000 + index, SRv6 locator fcbb:bbbb:<index>::/48 and, in it, address fcbb:bbbb:<index>::1.  A
cable has two addresses of 10.128.0.0/9 (a /31) and of fd00::/64 (a /127).  The scale-out links of a node
are its interfaces eth1, eth2, ... in the order of the links, its scale-up links sup1, sup2, ...; failed
links keep theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import numpy as np

from weft.errors import Unsupported
from weft.fabric.spec import SCALE_UP, Fabric

BLOCK = "fcbb:bbbb"
DECAPSULATE = 0xFE06
"""The function of a node's locator that takes the outer header off and looks the inner address up."""
FIRST_LABEL = 16000
MOST_NODES = 0xDFFF
"""Larger numbers are local functions among 16-bit micro-segments."""
MOST_CABLES = 2**22
SEGMENTS_PER_ADDRESS = 6
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

    def ipv6(self, node: int) -> str:
        """Address of a node, in its locator."""
        return str(IPv6Address(f"{BLOCK}:{node + 1:x}::1"))

    def label(self, node: int) -> int:
        """MPLS label that names a node."""
        return FIRST_LABEL + node + 1

    def segment(self, node: int) -> str:
        """SRv6 segment (uN) that names a node."""
        return f"{BLOCK}:{node + 1:x}::"

    def locator(self, node: int) -> str:
        """The prefix of all segments of a node."""
        return f"{self.segment(node)}/48"

    def end(self, node: int) -> str:
        """The segment at which a node takes the outer header off."""
        return f"{BLOCK}:{node + 1:x}:{DECAPSULATE:x}::"

    def link_ipv4(self, link: int) -> str:
        """Address, in its /31, of the interface by which a link leaves its source."""
        return str(IPv4Address("10.128.0.0") + 2 * self.cables[link] + self.ends[link])

    def link_ipv6(self, link: int) -> str:
        """Address, in its /127, of the interface by which a link leaves its source."""
        return str(IPv6Address("fd00::") + 2 * self.cables[link] + self.ends[link])

    def gateway_ipv4(self, link: int) -> str:
        """Address of the far end of a link."""
        return self.link_ipv4(self.reverse[link])

    def gateway_ipv6(self, link: int) -> str:
        """Address of the far end of a link."""
        return self.link_ipv6(self.reverse[link])

    def segments(self, nodes: Sequence[int]) -> tuple[str, ...]:
        """Addresses that lead through nodes in order, the last of which takes the outer header off.

        Each address packs up to six 16-bit micro-segments behind the block; the last node's stays together
        with its function.
        """
        words = [[f"{node + 1:x}"] for node in nodes[:-1]] + [[f"{nodes[-1] + 1:x}", f"{DECAPSULATE:x}"]]
        packed: list[list[str]] = [[]]
        for word in words:
            if len(packed[-1]) + len(word) > SEGMENTS_PER_ADDRESS:
                packed.append([])
            packed[-1] += word
        return tuple(str(IPv6Address(f"{BLOCK}:{':'.join(each)}" + _rest(each))) for each in packed)


def first_links(fabric: Fabric, links: Sequence[int]) -> list[tuple[int, int]]:
    """Every neighbour that some of a node's links lead to, in order, and the first live link to it."""
    first: dict[int, int] = {}
    for link in links:
        if fabric.up[link]:
            first.setdefault(int(fabric.target[link]), link)
    return sorted(first.items())


def addressing(fabric: Fabric) -> Addressing:
    """Names, addresses, labels and segments for a fabric.

    Raises:
        Unsupported: more nodes or cables than the ranges hold, or a link without the opposite one.
    """
    where = f"fabric {fabric.name}"
    if fabric.nodes > MOST_NODES:
        raise Unsupported(
            f"{fabric.nodes:,} nodes are more than {MOST_NODES:,} micro-segments and labels",
            where=where,
            remedy="export a part of the fabric",
        )
    if fabric.links > 2 * MOST_CABLES:
        raise Unsupported(
            f"{fabric.links:,} links are more than {2 * MOST_CABLES:,}", where=where, remedy="export a part"
        )
    reverse, cables, ends = _cables(fabric, where)
    return Addressing(names=_names(fabric), interfaces=_interfaces(fabric), reverse=reverse, cables=cables, ends=ends)


def _rest(words: list[str]) -> str:
    return "" if len(words) == SEGMENTS_PER_ADDRESS else "::"


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
