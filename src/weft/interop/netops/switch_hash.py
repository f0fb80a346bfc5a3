"""A model of how switches choose among equal-cost next hops, to find the path of a packet.

A switch forwards over its live links that lie on a shortest path to the destination (in links, over
scale-out links and switches only); it numbers them in the order of the fabric's links, computes a hash of the
packet and takes the remainder by their number.  A sending NIC's own choice of uplink is not modelled.

``crc32`` is the plain model: CRC-32 (IEEE 802.3) of source address, destination address, protocol 17, source
port and destination port 4791 in network order, with the same start value in every switch.  Real switches
differ in polynomial, seed and order of the links; what a model finds holds for switches that behave like it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TypeAlias

import numpy as np

from weft.errors import UnknownName
from weft.fabric.spec import SCALE_UP, Fabric, Ints

ROCE_PORT = 4791
UDP = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What a switch hashes: ``switch`` by name, IPv4 addresses, and the UDP source port."""

    switch: str
    src_ip: str
    dst_ip: str
    udp_sport: int


SwitchHash: TypeAlias = Callable[[Packet], int]


def crc32(packet: Packet) -> int:
    """CRC-32 of the five-tuple; the switch does not matter."""
    addresses = IPv4Address(packet.src_ip).packed + IPv4Address(packet.dst_ip).packed
    ports = packet.udp_sport.to_bytes(2, "big") + ROCE_PORT.to_bytes(2, "big")
    return zlib.crc32(addresses + bytes([UDP]) + ports)


HASHES: dict[str, SwitchHash] = {"crc32": crc32}


def resolve_hash(given: SwitchHash | str) -> SwitchHash:
    """A hash by name, or the function given.

    Raises:
        UnknownName: a name that is not in ``HASHES``.
    """
    if not isinstance(given, str):
        return given
    if given not in HASHES:
        raise UnknownName("hash of switches", given, HASHES)
    return HASHES[given]


class NextHops:
    """The live next hops of every switch towards every destination, found as they are asked for."""

    def __init__(self, fabric: Fabric) -> None:
        usable = np.flatnonzero(fabric.up & (fabric.tier > SCALE_UP))
        order = np.argsort(fabric.source[usable], kind="stable")
        self._links: Ints = usable[order]
        self._source, self._target = fabric.source[self._links], fabric.target[self._links]
        self._first = np.searchsorted(self._source, np.arange(fabric.nodes + 1))
        self._nodes, self._hosts = fabric.nodes, fabric.accelerators
        self._hops: dict[int, Ints] = {}
        self._found: dict[tuple[int, int], tuple[int, ...]] = {}

    def of(self, node: int, target: int) -> tuple[int, ...]:
        """Links out of a switch on shortest paths to an accelerator, in order; empty without a path."""
        found = self._found.get((node, target))
        if found is None:
            hops = self._distances(target)
            out = slice(self._first[node], self._first[node + 1])
            ahead = hops[self._target[out]]
            closer = (ahead >= 0) & (ahead == hops[node] - 1)
            found = self._found[node, target] = tuple(self._links[out][closer].tolist())
        return found

    def _distances(self, target: int) -> Ints:
        """Links from every node to the target, through no other accelerator; -1 without a path."""
        if target not in self._hops:
            hops = np.full(self._nodes, -1, dtype=np.int64)
            hops[target] = 0
            passes = (self._target >= self._hosts) | (self._target == target)
            for step in range(self._nodes):
                reached = passes & (hops[self._target] == step)
                new = self._source[reached & (hops[self._source] < 0)]
                if not len(new):
                    break
                hops[new] = step + 1
            self._hops[target] = hops
        return self._hops[target]
