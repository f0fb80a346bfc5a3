"""What a collective costs, in closed form: one place for every kind, algorithm and protocol.

A group spreads over the network's tiers (``weft.layout.mesh.Spread``).  A ring of all its ranks crosses tier k
with the NICs of the ranks that share one unit below it, so a rank's share of the crossing is 1/members; the
slowest tier bounds the pipelined ring.  As in NCCL's tuning model (its ``tuning.cc``) time is latency of the
steps plus bytes over bandwidth, for each algorithm (ring, double binary tree, in-switch reduction) and protocol
(LL, LL128, Simple), and the library takes the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from weft.cluster.calibration import SCALE_OUT, SCALE_UP, Calibration, CollectiveTime
from weft.cluster.spec import Cluster, TierKind
from weft.errors import BadInput
from weft.layout.mesh import Spread, distinct_groups, spread
from weft.layout.table import Floats, LayoutTable, Mask

if TYPE_CHECKING:
    from weft.layout.operations import CollectiveKind
    from weft.layout.step import Use

Number = TypeVar("Number", float, Floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How data and flags travel: share of the bandwidth, and seconds that a step inside and between domains costs
    on top of the tier's own latency."""

    name: str
    bandwidth: float
    inside_s: float
    outside_s: float


PROTOCOLS = (
    Protocol(name="LL", bandwidth=0.40, inside_s=0.0, outside_s=0.0),
    Protocol(name="LL128", bandwidth=0.92, inside_s=1.3e-6, outside_s=1.3e-6),
    Protocol(name="Simple", bandwidth=1.0, inside_s=2.8e-6, outside_s=11.3e-6),
)
"""What NCCL's tuning tables give a ring's step beyond that of LL, which is the latency of the tier (LL and LL128
carry flags in half and in one sixteenth of the line)."""

Pattern = Literal["ring", "pairs", "neighbour"]
"""Who talks to whom: around a ring (or a tree), all pairs at once, or one neighbour."""

TREE_BANDWIDTH = 0.90
"""Double binary trees reach this share of the ring's bandwidth between domains (NCCL's tuning model)."""


@dataclass(frozen=True, slots=True)
class Network:
    """The tiers as collectives see them: achieved bytes/s per accelerator and direction, added hop latency
    in seconds.

    ``contention`` holds what a simulation found beyond the closed form: seconds per byte of a kind over axes.
    ``measured`` times count where they fit, general ones before those of a tier or of a number of ranks.
    """

    spans: tuple[int, ...]
    sizes: tuple[int, ...]
    kinds: tuple[TierKind, ...]
    achieved_Bps: tuple[float, ...]
    peak_Bps: tuple[float, ...]
    latency_s: tuple[float, ...]
    reduces: tuple[bool, ...]
    switch_efficiency: float
    launch_s: float
    contention: Mapping[tuple[CollectiveKind, tuple[str, ...]], float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    measured: tuple[CollectiveTime, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster, calibration: Calibration) -> Network:
        """The tiers of a cluster with what a calibration says of them."""
        efficiency = [calibration.scale_up_efficiency] + [calibration.scale_out_efficiency] * (len(cluster.tiers) - 1)
        sizes, kinds, peak_Bps, latency_s, reduces, names = zip(
            *(
                (tier.size, tier.kind, tier.effective_Bps, tier.latency_s, tier.in_network_reduction, tier.name)
                for tier in cluster.tiers
            ),
            strict=True,
        )
        return cls(
            spans=cluster.spans,
            sizes=sizes,
            kinds=kinds,
            achieved_Bps=tuple(peak * share for peak, share in zip(peak_Bps, efficiency, strict=True)),
            peak_Bps=peak_Bps,
            latency_s=latency_s,
            reduces=reduces,
            switch_efficiency=calibration.scale_up_reduction_efficiency,
            launch_s=calibration.collective_s,
            names=names,
            measured=_measured_in(cluster, calibration),
        )

    def share(self, tier: int, units: Floats, pattern: Pattern) -> Floats | float:
        """``link_share`` of a tier, at least one link where the group does not use it."""
        return link_share(self.kinds[tier], self.sizes[tier], np.maximum(units, 2.0), pattern)


def _measured_in(cluster: Cluster, calibration: Calibration) -> tuple[CollectiveTime, ...]:
    result = calibration.measured.collectives if calibration.measured is not None else ()
    known = dict.fromkeys((SCALE_UP, SCALE_OUT, *(tier.name for tier in cluster.tiers)))
    for line in result:
        if line.scope not in known:
            raise BadInput(
                f"collectives were measured on {line.scope!r}, which is not a tier of {cluster.name}",
                where=f"calibration {calibration.name}",
                remedy=f"give the cluster that was measured, or a scope of {', '.join(known)}",
            )
    return tuple(sorted(result, key=lambda line: (line.scope not in (SCALE_UP, SCALE_OUT), line.ranks > 0)))


def collective_s(
    kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network, *, copies: float = 0.0
) -> Floats:
    """Seconds of one collective; 0 where there is nothing to move or nobody to move it to.

    ``bytes_`` is the full buffer, as ``weft.layout.operations.Collective`` defines it.  An ``exchange`` is one
    step of a ring; the caller multiplies by the steps.  With ``copies`` the all-to-all sends that many copies of
    each element to random ranks, of which a unit of a tier gets one and passes it on inside.
    """
    moves = (group.size > 1) & (bytes_ > 0)
    if not moves.any():
        return np.zeros(moves.shape)
    if kind == "all-to-all":
        seconds = _all_to_all(bytes_, group, network, copies)
    elif kind in ("send", "exchange"):
        seconds = _neighbour(bytes_, group, network)
    else:
        # The library takes the algorithm and protocol that its model has for fastest, and launches once.
        options = candidates(kind, bytes_, group, network)
        seconds = np.minimum.reduce(list(options.values())) + network.launch_s
    if network.measured:
        seconds = _measured(kind, bytes_, group, network, copies, seconds)
    if network.contention:
        seconds = np.maximum(seconds + bytes_ * network.contention.get((kind, group.axes), 0.0), 0.0)
    return np.where(moves, seconds, 0.0)


def _measured(
    kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network, copies: float, seconds: Floats
) -> Floats:
    """``seconds`` where nothing was measured, else the line of what was: the outermost tier that a group spans
    counts, whose crossing the ranks of one unit below it share."""
    tier, below = _outermost(group)
    crossing = bytes_ * (group.size - 1) / group.size * (2.0 if kind == "all-reduce" else 1.0) / below
    steps = (group.size - 1) * (2.0 if kind == "all-reduce" else 1.0)
    if kind == "all-to-all":
        distinct = np.where(tier > 0, _distinct(group.size / below, copies), 1.0) if copies else 1.0
        crossing = bytes_ * (group.size - below) / group.size * distinct
    elif kind in ("send", "exchange"):
        crossing, steps = bytes_, np.ones_like(group.size)
    # Later ones overwrite earlier ones: general measurements come first, those of a tier or a number of ranks last.
    for line in network.measured:
        if line.kind == kind or (line.kind == "send" and kind == "exchange"):
            fits = tier == 0 if line.scope == SCALE_UP else tier > 0
            if line.scope in network.names:
                fits = tier == network.names.index(line.scope)
            fits = fits & ((group.size == line.ranks) | (line.ranks == 0))
            seconds = np.where(fits, line.latency_s + steps * line.step_s + crossing / line.Bps, seconds)
    return seconds


def _outermost(group: Spread) -> tuple[Floats, Floats]:
    """The outermost tier that a group spans, and its ranks in one unit below that."""
    below, tier, members_below = np.ones_like(group.size), np.zeros_like(group.size), np.ones_like(group.size)
    for k, members in enumerate(group.members):
        crossed = members > below
        tier, members_below = np.where(crossed, k, tier), np.where(crossed, below, members_below)
        below = members
    return tier, members_below


def lower_bound_s(kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network) -> Floats:
    """No algorithm is faster: what the ranks of each unit must pass to the rest, over the peak of their
    links there.

    Each of u units lacks (u-1)/u of a gathered buffer, whatever the algorithm.  An all-reduce passes that twice,
    or the buffer once through a tier that reduces.  Links of the scale-up domain and of the NIC count together
    for what leaves a rank.
    """
    if kind in ("send", "exchange"):
        return bytes_ / (network.peak_Bps[0] + max(network.peak_Bps[1:], default=0.0))
    below = np.ones_like(group.size)
    seconds = np.zeros_like(bytes_)
    for k, members in enumerate(group.members):
        units = group.size / below
        share = 1.0 if kind == "all-reduce" and network.reduces[k] else (units - 1) / units
        if kind == "all-reduce" and not network.reduces[k]:
            share = 2.0 * share
        passed = bytes_ * (share * below if kind == "all-to-all" else share)
        Bps = max(network.peak_Bps[k:]) if k else network.peak_Bps[0] + max(network.peak_Bps[1:], default=0.0)
        seconds = np.maximum(seconds, np.where(members > below, passed / (below * Bps), 0.0))
        below = members
    return seconds


def candidates(kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network) -> dict[tuple[str, str], Floats]:
    """Seconds of every algorithm (ring, tree, nvls, collnet) and protocol that can run the collective.

    Without the launch; infinite where the group cannot use the algorithm.  ``kind`` is all-reduce, all-gather
    or reduce-scatter.
    """
    result = {}
    for protocol in PROTOCOLS:
        result["ring", protocol.name] = _ring(kind, bytes_, group, network, protocol)
        if kind == "all-reduce":
            result["tree", protocol.name] = _tree(bytes_, group, network, protocol)
    simple = PROTOCOLS[-1].name
    if network.reduces[0]:
        result["nvls", simple] = _in_switch(kind, bytes_, group, network)
    if kind == "all-reduce" and len(network.spans) > 1 and all(network.reduces):
        # Reduction in every switch on the way (SHARP): each byte goes up once and comes down once.
        latency = 2.0 * (PROTOCOLS[-1].outside_s + _hops(group, network))
        result["collnet", simple] = slowest(bytes_, group, network.achieved_Bps) + latency
    return result


def link_share(kind: TierKind, size: int, units: Floats, pattern: Pattern) -> Floats | float:
    """Share of an accelerator's bandwidth on a tier that a group of ``units`` of its ``size`` can use.

    A switch gives all of it.  On a fully connected tier the group uses its own links, 1/(size-1) each.  A
    ring tier has two links per accelerator: a group of all goes around both ways, one of fewer needs each link
    for the way back; between all pairs a message takes units/4 hops on average.
    """
    if kind == "switch":
        return 1.0
    if kind == "fully-connected":
        links = 1.0 if pattern == "neighbour" else units - 1.0
        return links / max(size - 1, 1)
    both_ways = np.where(units >= size, 1.0, 0.5)
    if pattern == "ring":
        return both_ways
    return both_ways * np.minimum(4.0 / units, 1.0) if pattern == "pairs" else 0.5


def slowest(crossing: Floats, group: Spread, bandwidth: tuple[float, ...], network: Network | None = None) -> Floats:
    """Seconds for ``crossing`` bytes to pass every tier that the group spans, the slowest counting.

    With a ``network`` the shape of its tiers counts; without, every tier is taken for a switch.
    """
    below = np.ones_like(group.size)
    seconds = np.zeros_like(crossing)
    # For each tier: what the ranks of a unit below it must pass, over the bandwidth that the unit's ranks have beyond
    # it.
    # The pipelined ring crosses all tiers at once.  On a tier the ranks of a unit below it share the crossing: 1/below
    # each.
    for k, (members, Bps) in enumerate(zip(group.members, bandwidth, strict=True)):
        crossed = members > below
        share = 1.0 if network is None else network.share(k, members / below, "ring")
        seconds = np.maximum(seconds, np.where(crossed, crossing / (below * Bps * share), 0.0))
        below = members
    return seconds


def _hops(group: Spread, network: Network) -> Floats:
    """Added latency of one step between domains: the outermost tier that the group spans."""
    latency = np.full_like(group.size, network.latency_s[0])
    below = group.members[0]
    for members, hop in zip(group.members[1:], network.latency_s[1:], strict=True):
        latency = np.where(members > below, hop, latency)
        below = members
    return latency


def _ring(kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network, protocol: Protocol) -> Floats:
    rounds = 2.0 if kind == "all-reduce" else 1.0
    # Of the ring's `size` hops as many lead between domains as there are domains; the size - 1 steps have their share.
    outside = np.ceil(group.size / group.members[0]) - 1
    outside = np.where(outside > 0, outside + 1, 0.0) * (group.size - 1) / group.size
    inside = group.size - 1 - outside
    step_out = protocol.outside_s + _hops(group, network)
    steps = inside * (protocol.inside_s + network.latency_s[0]) + outside * step_out
    crossing = rounds * bytes_ * (group.size - 1) / group.size
    return rounds * steps + slowest(crossing, group, network.achieved_Bps, network) / protocol.bandwidth


def _tree(bytes_: Floats, group: Spread, network: Network, protocol: Protocol) -> Floats:
    """Chains inside domains, double binary trees between them (Sanders et al. 2009)."""
    domains = np.ceil(group.size / group.members[0])
    # Up and down: a chain through the domain, then the depth of the tree over domains; each rank sends the buffer
    # twice.
    inside = (group.members[0] - 1) * (protocol.inside_s + network.latency_s[0])
    outside = np.ceil(np.log2(domains)) * (1.9 * protocol.outside_s + _hops(group, network))
    seconds = slowest(2.0 * bytes_, group, network.achieved_Bps, network) / (protocol.bandwidth * TREE_BANDWIDTH)
    return 2.0 * (inside + outside) + seconds


def in_switch_share(size: Number) -> Number:
    """The share of its buffer that an accelerator sends for an all-reduce in the switch: its part to be
    added up, and its share of the sums to be copied to all."""
    return (size + 1) / size


def _in_switch(kind: CollectiveKind, bytes_: Floats, group: Spread, network: Network) -> Floats:
    """NVLS: the scale-up switch reduces and multicasts; groups that leave the domain cannot use it alone."""
    size = group.size
    moved = bytes_ * (in_switch_share(size) if kind == "all-reduce" else (size - 1) / size)
    seconds = moved / (network.peak_Bps[0] * network.switch_efficiency)
    latency = 2.0 * (PROTOCOLS[-1].inside_s + network.latency_s[0])
    alone = (group.members[0] >= size) & (size > 2)
    return np.where(alone, seconds + latency, np.inf)


def _distinct(units: Floats, copies: float) -> Floats:
    """The share of the copies leaving a unit that remains when every other unit gets at most one."""
    # Each copy goes to a random unit: the expected number of distinct other units among `copies` draws.
    peers = np.maximum(units - 1.0, 1e-9)
    reached: Floats = peers * (1.0 - (1.0 - 1.0 / np.maximum(units, 1.0)) ** copies)
    return np.where(units > 1, reached * units / (copies * peers), 1.0)


def _all_to_all(bytes_: Floats, group: Spread, network: Network, copies: float) -> Floats:
    """Each rank sends 1/size of its bytes to every other; what leaves a unit crosses the tier above it."""
    posts = (group.members[0] - 1) * 0.3e-6 + (group.size - group.members[0]) * 0.6e-6
    below = np.ones_like(group.size)
    seconds = np.zeros_like(bytes_)
    for k, (members, Bps) in enumerate(zip(group.members, network.achieved_Bps, strict=True)):
        # The ranks outside of a unit are (size - below) of size.
        leaving = bytes_ * (group.size - below) / group.size
        if copies:
            leaving = leaving * _distinct(group.size / below, copies)
        share = network.share(k, members / below, "pairs")
        seconds = np.maximum(seconds, np.where(members > below, leaving / (Bps * share), 0.0))
        below = members
    return network.launch_s + posts + _step(group, network) + seconds


def _neighbour(bytes_: Floats, group: Spread, network: Network) -> Floats:
    """One message to the next rank of the group, on the outermost tier between them."""
    below = np.ones_like(group.size)
    # The slowest link on the way counts: the least of all tiers that the message crosses.
    Bps = np.full_like(group.size, network.achieved_Bps[0])
    for k, (members, achieved) in enumerate(zip(group.members, network.achieved_Bps, strict=True)):
        reached = achieved * network.share(k, members / below, "neighbour")
        Bps = np.where(members > below, np.minimum(Bps, reached), Bps)
        below = members
    return network.launch_s + _step(group, network) + bytes_ / Bps


def _step(group: Spread, network: Network) -> Floats:
    """Seconds of one point-to-point step on the outermost tier that the group spans."""
    simple = PROTOCOLS[-1]
    extra = np.where(group.size > group.members[0], simple.outside_s, simple.inside_s)
    return extra + _hops(group, network)


# Device memory of communicators, which no tensor allocates ----------------------------------------------
#
# NCCL keeps a FIFO for each protocol of each connection, and a connection for each peer and channel.  Sizes and rules
# are those of its source (2.30: init.cc, transport/p2p.cc, net.cc, nvls.cc, graph/connect.cc and paths.cc); each
# algorithm connects when it is first used (since 2.22).  Measured: two and four A100 (NVIDIA/nccl issue 964), an
# all-to-all of eight H100 (issue 1685).

MIB = 2.0**20
GRAIN_BYTES = 2 * MIB
"""What memory that peers map is rounded up to (``CUDA_IPC_MIN``)."""
STEPS = 8
"""Slots of a FIFO (``NCCL_STEPS``)."""
LL_BYTES, LL128_BYTES, SIMPLE_BYTES = STEPS * 512 * 8 * 16.0, STEPS * 640 * 120 * 8.0, 4 * MIB
"""FIFOs of the protocols: 0.5, 4.7 and 4 MiB (``NCCL_LL_BUFFSIZE``, ``NCCL_LL128_BUFFSIZE``, ``NCCL_BUFFSIZE``)."""


def _rounded(size: float) -> float:
    return float(np.ceil(size / GRAIN_BYTES) * GRAIN_BYTES)


INSIDE_BYTES = _rounded(LL_BYTES + LL128_BYTES + SIMPLE_BYTES) + GRAIN_BYTES
"""A connection to a peer of the domain and one from it, on one channel: 12 MiB, whether peers read or write."""
OUTSIDE_BYTES = _rounded(LL_BYTES + LL128_BYTES + SIMPLE_BYTES) + _rounded(LL128_BYTES + SIMPLE_BYTES)
"""The same over a NIC: 20 MiB; LL is sent from host memory."""
LINK_BPS, MOST_LINKS = 25e9, 12
"""An NVLink, and of how many a domain's rings make two channels each: 24 on A100 and H100, 16 on H800."""
NIC_CHANNELS, REDUCING_NIC_CHANNELS, MOST_NIC_CHANNELS = 2.0, 4.0, 16.0
"""Channels between domains for each rank in one, where the domain's switch reduces (Hopper) and where not."""
PEERS_IN_ROUND = 8
"""Peers of one round of messages (``NCCL_MAX_DEV_WORK_P2P_PER_BATCH``)."""
SHARED_BYTES = 16 * 2.0**17
"""Slots of a channel that all messages between domains share, each way (``NCCL_SHARED_STEPS`` of 128 KiB)."""
SWITCH_BYTES = 2 * STEPS * 2.0**17
"""FIFOs of NVLink SHARP for each channel and rank of the domain (``NCCL_NVLS_CHUNKSIZE`` of 128 KiB)."""
HOPPER_BPS, HOPPER_CHANNELS, BLACKWELL_CHANNELS = 450e9, 16, 24
"""Its channels, by the bandwidth of the domain."""

VENDORS = ("nvidia", "amd")
"""Whose collectives are NCCL or RCCL, which is a fork of it."""


def communicator_bytes(
    table: LayoutTable, uses: Mapping[tuple[Use, tuple[str, ...]], Mask], network: Network
) -> Floats:
    """Bytes of all groups of one rank, on every row.

    Args:
        table: the layouts.
        uses: the rows on which groups over each axes are for each kind of collective
            (``weft.layout.step.TrainingStep.groups``).
        network: the tiers.
    """
    total = np.zeros(len(table))
    known: dict[tuple[str, ...], _Group] = {}
    # Groups over the same ranks share a communicator: `distinct_groups` counts each set once.
    for of_group, kinds in _BUFFERS.items():
        some = [(axes, mask) for (use, axes), mask in uses.items() if use in kinds]
        sets, used = [axes for axes, _ in some], [mask for _, mask in some]
        for axes, rows in zip(sets, distinct_groups(table, sets, used), strict=True):
            if rows.any():
                if axes not in known:
                    known[axes] = _Group(spread(table, axes, network.spans), network)
                total = total + np.where(rows, of_group(known[axes]), 0.0)
    return total


class _Group:
    """Ranks of a group, and on how many channels they are connected."""

    def __init__(self, group: Spread, network: Network) -> None:
        self.size, self.inside = group.size, group.members[0]
        self.network = network
        self.domains = self.size / self.inside
        self.alone = self.domains == 1
        links = np.clip(np.floor(network.peak_Bps[0] / LINK_BPS), 1, MOST_LINKS)
        per_rank = REDUCING_NIC_CHANNELS if network.reduces[0] else NIC_CHANNELS
        self.channels: Floats = np.where(
            self.alone, 2.0 * links, np.minimum(per_rank * self.inside, MOST_NIC_CHANNELS)
        )
        self.message_channels: Floats = 2.0 ** np.ceil(np.log2(self.channels))

    def peers(self, inside: Floats) -> Floats:
        """Messages with so many peers of the domain, there and back, and any outside."""
        # Channels of one peer: fewer where many rounds of peers use them; links between domains share their slots.
        rounds = np.ceil(self.size / PEERS_IN_ROUND)
        few = np.where(2.0 * rounds > self.message_channels, 1.0, 2.0)
        each = np.where(self.alone, self.message_channels, few)
        shared = np.where(self.alone, 0.0, 2.0 * self.message_channels * SHARED_BYTES)
        return each * inside * INSIDE_BYTES + shared


def ring_bytes(group: _Group) -> Floats:
    """A connection to the next rank and one from the one before, on every channel."""
    outside = np.where(group.alone, 0.0, 1.0 / group.inside)
    return group.channels * ((1.0 - outside) * INSIDE_BYTES + outside * OUTSIDE_BYTES)


def tree_bytes(group: _Group) -> Floats:
    """What a double tree connects beside the ring: the way back along each domain's chain, and a parent and a
    child in other domains."""
    back = np.where(group.alone, group.inside > 2, 1.0 - 1.0 / group.inside)
    outside = np.where(group.domains > 2, 2.0 * (1.0 - 1.0 / group.domains) / group.inside, 0.0)
    return group.channels * (back * INSIDE_BYTES + outside * OUTSIDE_BYTES)


def switch_bytes(group: _Group) -> Floats:
    """NVLink SHARP in a domain of more than two ranks, which is the whole group."""
    return np.where(group.alone, _switch_bytes(group), 0.0)


def switches_bytes(group: _Group) -> Floats:
    """The same in each domain of a group that sums across domains."""
    return np.where(group.alone, 0.0, _switch_bytes(group))


def _switch_bytes(group: _Group) -> Floats:
    channels = HOPPER_CHANNELS if group.network.peak_Bps[0] <= HOPPER_BPS else BLACKWELL_CHANNELS
    reducing = (group.inside > 2) & group.network.reduces[0]
    return np.where(reducing, channels * SWITCH_BYTES * np.minimum(group.inside, channels), 0.0)


def pair_bytes(group: _Group) -> Floats:
    """Messages between all pairs."""
    return group.peers(group.inside - 1.0)


def neighbour_bytes(group: _Group) -> Floats:
    """Messages to the next stage and the one before, and back."""
    return group.peers(_neighbours(group, 2.0))


def next_bytes(group: _Group) -> Floats:
    """Messages to the next rank, from the one before."""
    return group.peers(_neighbours(group, 1.0))


def _neighbours(group: _Group, most: float) -> Floats:
    near = np.minimum(group.size - 1.0, most)
    return np.where(group.alone, near, near * (1.0 - 1.0 / group.inside))


_BUFFERS: Mapping[Callable[[_Group], Floats], tuple[Use, ...]] = {
    ring_bytes: ("all-reduce", "scalar", "all-gather", "reduce-scatter"),
    tree_bytes: ("all-reduce", "scalar"),
    switch_bytes: ("all-reduce", "all-gather", "reduce-scatter"),
    switches_bytes: ("all-reduce",),
    pair_bytes: ("all-to-all",),
    neighbour_bytes: ("send",),
    next_bytes: ("exchange",),
}
"""What is kept for which kinds of collectives; the same ranks keep each once."""
