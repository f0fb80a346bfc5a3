"""Device memory of NCCL's communicators, which no tensor allocates: one place for what a rank's groups take.

NCCL keeps a FIFO for each protocol of each connection, and a connection for each peer and channel.  Sizes and rules
are those of its source (2.30: ``init.cc``, ``transport/p2p.cc``, ``net.cc``, ``nvls.cc``, ``graph/connect.cc`` and
``paths.cc``); each algorithm connects when it is first used (since 2.22).  Measured: two and four A100
(NVIDIA/nccl issue 964), an all-to-all of eight H100 (issue 1685).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from weft.collectives.cost import Network
from weft.layout.mesh import Spread, distinct_groups, spread
from weft.layout.step import Use
from weft.layout.table import Floats, LayoutTable, Mask

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


def switch_bytes(group: _Group, *, alone: bool = True) -> Floats:
    """NVLink SHARP in a domain of more than two ranks: in that of groups of one domain, or in each of the others."""
    channels = HOPPER_CHANNELS if group.network.peak_Bps[0] <= HOPPER_BPS else BLACKWELL_CHANNELS
    reducing = (group.alone == alone) & (group.inside > 2) & group.network.reduces[0]
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
    partial(switch_bytes, alone=False): ("all-reduce",),
    pair_bytes: ("all-to-all",),
    neighbour_bytes: ("send",),
    next_bytes: ("exchange",),
}
"""What is kept for which kinds of collectives; the same ranks keep each once."""
