"""Ring algorithms (Patarasuk and Yuan 2009), one ring or one ring per member of a scale-up domain.

``rings`` of a group with m members in each domain are m rings that each carry 1/m of the buffer, ring c
leaving a domain where ring c + 1 enters it: every member's NIC carries one ring in and one ring out, and a
ring enters the next domain on the rail on which it left the last one.  Three domains close such a ring where
the number of domains is odd; two members a domain cannot, and then cross rails once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from weft.collectives.messages.blocks import MessagePlan, after, beside, table
from weft.fabric.spec import Ints


def reduce_scatter(size: int) -> MessagePlan:
    """size - 1 steps; block b starts behind rank b and ends at it."""
    step, rank = np.arange(size - 1)[:, None], np.arange(size)[None, :]
    return table(step, rank, (rank + 1) % size, (rank - step - 1) % size, parts=size, owner=np.arange(size), adds=True)


def all_gather(size: int) -> MessagePlan:
    """size - 1 steps; block b starts at rank b."""
    step, rank = np.arange(size - 1)[:, None], np.arange(size)[None, :]
    return table(step, rank, (rank + 1) % size, (rank - step) % size, parts=size, owner=np.arange(size), adds=False)


def all_reduce(size: int) -> MessagePlan:
    """2 (size - 1) steps: scattered reduction, then gathering."""
    return after(reduce_scatter(size), all_gather(size))


def line_all_gather(size: int) -> MessagePlan:
    """size - 1 steps on a line: each rank passes on, both ways, what it got from the other side."""
    step, rank = np.arange(size - 1)[:, None], np.arange(size)[None, :]
    right, left, owner = rank - step, rank + step, np.arange(size)
    goes_right = (right >= 0) & (rank + 1 < size)
    goes_left = (left < size) & (rank > 0)
    steps, ranks = np.broadcast_arrays(step, rank)
    return beside(
        [
            table(steps[goes], ranks[goes], ranks[goes] + ahead, block[goes], parts=size, owner=owner, adds=False)
            for goes, ahead, block in ((goes_right, 1, right), (goes_left, -1, left))
        ],
        parts=size,
        owner=owner,
    )


def line_reduce_scatter(size: int) -> MessagePlan:
    """The reverse: sums of each block come to its rank from both sides."""
    gather = line_all_gather(size)
    return replace(
        gather, step=size - 2 - gather.step, source=gather.target, target=gather.source, adds=np.ones_like(gather.adds)
    )


def exchange(size: int) -> MessagePlan:
    """One step of a ring: each rank's whole buffer to the next rank."""
    rank = np.arange(size if size > 1 else 0)
    return replace(
        table(np.zeros_like(rank), rank, (rank + 1) % size, rank, parts=size, owner=np.arange(size), adds=False),
        parts=1,
    )


def rings_reduce_scatter(domains: int, members: int) -> MessagePlan:
    return _rings(reduce_scatter, domains, members)


def rings_all_gather(domains: int, members: int) -> MessagePlan:
    return _rings(all_gather, domains, members)


def rings_all_reduce(domains: int, members: int) -> MessagePlan:
    return _rings(all_reduce, domains, members)


def _rings(algorithm: Callable[[int], MessagePlan], domains: int, members: int) -> MessagePlan:
    size = domains * members
    # All rings run at once, each over its own 1/members of the blocks.
    once = algorithm(size)
    orders = [ring_order(domains, members, ring) for ring in range(members)]
    owner = np.concatenate(orders)
    rings = [once.moved(order, shift=ring * size) for ring, order in enumerate(orders)]
    return beside(rings, parts=members * size, owner=owner)


def ring_order(domains: int, members: int, ring: int) -> Ints:
    """Ranks (domain * members + member) in the order of one of ``members`` rings."""
    # Members in turn from the ring's number on; every other domain backwards, so that a ring enters a domain on the
    # rail on which it left the one before.
    forward = (ring + np.arange(members)) % members
    order = [forward if domain % 2 == 0 else forward[::-1] for domain in range(domains)]
    # With an odd number of domains the last two take other orders, so that the ring also closes on one rail.
    if domains % 2 and domains > 1 and members > 2:
        order[-2] = (ring - 1 + np.arange(members)) % members
        order[-1] = np.concatenate(
            [(ring - 2 + np.arange(2)) % members, (ring + 1 + np.arange(members - 3)) % members, [ring]]
        )
    return np.concatenate([domain * members + inside for domain, inside in enumerate(order)]).astype(np.int64)
