"""What a transport makes of a network: the paths that its packets take, and what its links carry for it.

Max-min fair sharing of whole links is the ideal.  Three things part a transport from it:

- headers: of a packet's time on a link only the payload's share counts (``wire``);
- paths: a connection's data goes in equal parts over its queue pairs, each hashed to one path, and is there when
  the slowest part is; or its packets are spread over all shortest paths;
- between switches links are idle for a part of the time that max-min would use them: queues run empty while
  senders react, and pauses or missing credits hold up flows that pass by the cause (``busy``).  Links of
  accelerators are not: the last link of an incast is served without a gap.

The parameters and where each is from: ``TRANSPORTS``; what they are worth: docs/congestion.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.paths import MODES, Mode, Paths
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.fabric.traffic import Routes, joined, merged

PAYLOAD_BYTES = 4096
"""The largest MTU of InfiniBand and RoCE."""
ROCE_HEADER_BYTES = 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12
"""Preamble, Ethernet, IPv4, UDP, base transport header, invariant CRC, frame check, gap: IEEE 802.3 and the
InfiniBand architecture's annex A17.  392.2 of 400 Gb/s; ib_write_bw shows 392.1 (github.com/NVIDIA/nccl/issues/2409).
"""
INFINIBAND_HEADER_BYTES = 8 + 12 + 4 + 2
"""Local route header, base transport header, invariant and variant CRC: the InfiniBand architecture, volume 1."""
HASHES = 8
"""Draws of the hash over which seconds are averaged."""
MOST_PARTS = 10_000_000
"""Parts of flows that are hashed at once."""
MOST_QUEUE_PAIRS = 128
"""What NCCL takes for NCCL_IB_QPS_PER_CONNECTION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How one transport uses a network."""

    name: str
    mode: Mode
    header_bytes: int = 0
    busy: float = 1.0
    queue_pairs: int = 1

    @property
    def text(self) -> str:
        """What ``transport`` reads: the mode of the ideal one, the name and queue pairs of the others."""
        if self.name == IDEAL:
            return self.mode
        return self.name if self.queue_pairs == 1 else f"{self.name}:{self.queue_pairs}"

    @property
    def draws(self) -> int:
        """Hashes over which seconds are averaged; 1 where there is nothing to average."""
        return HASHES if self.name != IDEAL and self.mode == "ecmp" else 1

    @property
    def wire(self) -> float:
        """The payload's share of a packet's time on a link."""
        return PAYLOAD_BYTES / (PAYLOAD_BYTES + self.header_bytes)

    def over(self, queue_pairs: int, where: str = "routing") -> Transport:
        """The same over so many queue pairs a connection."""
        if queue_pairs != 1 and (self.name == IDEAL or self.mode != "ecmp"):
            what = f"queue pairs change nothing on {self.name}"
            raise BadInput(what, where=where, remedy="give them to roce-ecmp, which hashes each")
        return replace(self, queue_pairs=queue_pairs)

    def shares(self, fabric: Fabric) -> Floats:
        """What part of its capacity every link carries; the whole inside scale-up domains."""
        inner = np.minimum(fabric.source, fabric.target) >= fabric.accelerators
        outside = np.where(inner, self.wire * self.busy, self.wire)
        return np.asarray(np.where(fabric.tier == SCALE_UP, 1.0, outside), dtype=np.float64)

    def routes(self, paths: Paths, source: Ints, target: Ints, *, seed: int = 0) -> Routes:
        """One route a flow; parts on different paths are shares of it, so that the slowest decides.

        Raises:
            BadInput: a flow has no path.
            Unsupported: more parts than ``MOST_PARTS``.
        """
        if self.name == IDEAL:
            return paths.routes(source, target, mode=self.mode, seed=seed)
        domain = paths.fabric.domain
        away, stay = np.flatnonzero(domain[source] != domain[target]), np.flatnonzero(domain[source] == domain[target])
        inside = paths.routes(source[stay], target[stay], mode="spray", seed=seed)
        outside = self._outside(paths, source[away], target[away], seed)
        return joined([outside, inside]).of(np.argsort(np.concatenate([away, stay])))

    def _outside(self, paths: Paths, source: Ints, target: Ints, seed: int) -> Routes:
        if self.mode == "spray" or self.queue_pairs == 1:
            return paths.routes(source, target, mode=self.mode, seed=seed)
        if len(source) * self.queue_pairs > MOST_PARTS:
            problem = f"{len(source):,} flows over {self.queue_pairs} queue pairs are over {MOST_PARTS:,} parts"
            raise Unsupported(problem, where="transport", remedy="give fewer queue pairs, or roce-adaptive")
        flow = np.repeat(np.arange(len(source)), self.queue_pairs)
        key = np.tile(np.arange(self.queue_pairs), len(source))
        parts = paths.routes(source[flow], target[flow], mode=self.mode, seed=seed, key=key)
        return merged(parts, flow, np.ones(len(flow)), len(source))


IDEAL = "ideal"
TRANSPORTS: dict[str, Transport] = {
    one.name: one
    for one in (
        Transport(name=IDEAL, mode="ecmp"),
        Transport(name="roce-ecmp", mode="ecmp", header_bytes=ROCE_HEADER_BYTES, busy=0.9),
        Transport(name="roce-adaptive", mode="spray", header_bytes=ROCE_HEADER_BYTES, busy=0.88),
        Transport(name="packet-spray", mode="spray", header_bytes=ROCE_HEADER_BYTES, busy=0.87),
        Transport(name="infiniband", mode="spray", header_bytes=INFINIBAND_HEADER_BYTES, busy=0.88),
    )
}
"""``busy`` is fitted to htsim (benchmarks/congestion.py).  Two values are assumptions: InfiniBand's is that of
lossless adaptive routing, and sprayed packets have RoCEv2's headers."""


def transport(text: str, where: str = "routing") -> Transport:
    """A transport by ``Transport.text``; a mode of ``weft.fabric.paths`` is the ideal one on such paths.

    Raises:
        UnknownName: there is no such mode or transport.
        BadInput: queue pairs that cannot be.
    """
    for mode in MODES:
        if text == mode:
            return replace(TRANSPORTS[IDEAL], mode=mode)
    name, _, pairs = text.partition(":")
    if name not in TRANSPORTS or name == IDEAL:
        raise UnknownName("mode of routing or transport", text[:40], (*MODES, *TRANSPORTS), where=where)
    if not pairs:
        return TRANSPORTS[name]
    if not (pairs.isascii() and pairs.isdigit() and 0 < int(pairs[:9]) <= MOST_QUEUE_PAIRS):
        raise BadInput(f"{pairs[:20]!r} queue pairs", where=where, remedy=f"give 1 to {MOST_QUEUE_PAIRS}")
    return TRANSPORTS[name].over(int(pairs), where)


def carrier(routing: str) -> str:
    """The transport of a result's routing: a mode, a transport, or a maker of routes, "over" a transport or not."""
    carried = routing.rpartition(" over ")[2]
    return carried if carried.partition(":")[0] in TRANSPORTS else IDEAL


def crossing(routing: str) -> str:
    """A result's routing and transport in words."""
    carried = carrier(routing)
    if carried == routing:
        return f"{carried} transport"
    paths = routing.removesuffix(f" over {carried}")
    return f"{_WORDS.get(paths, f'{paths} routing')}, {carried} transport"


_WORDS = {"ecmp": "ECMP hashing", "spray": "packet spraying"}
