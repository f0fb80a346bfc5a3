"""Algorithms in which ranks talk directly: every message goes from its first owner to its last.

An all-to-all may also be forwarded: between scale-up domains on rails alone.  There rank
``domain * members + member`` is a member of a domain.
"""

from __future__ import annotations

import numpy as np

from weft.collectives.messages.blocks import MessagePlan, after, beside, table
from weft.fabric.spec import Ints


def reduce_scatter(size: int) -> MessagePlan:
    """One step: each rank sends block b to rank b."""
    source, target = _pairs(size)
    return table(np.zeros_like(source), source, target, target, parts=size, owner=np.arange(size), adds=True)


def all_gather(size: int) -> MessagePlan:
    """One step: each rank sends its block to all."""
    source, target = _pairs(size)
    return table(np.zeros_like(source), source, target, source, parts=size, owner=np.arange(size), adds=False)


def all_reduce(size: int) -> MessagePlan:
    """Two steps: reduce-scatter, then all-gather."""
    return after(reduce_scatter(size), all_gather(size))


def all_to_all(size: int) -> MessagePlan:
    """One step: every pair exchanges its blocks."""
    source, target = _pairs(size)
    first = source * size + target
    return table(np.zeros_like(source), source, target, first, parts=size, owner=_receivers(size), adds=False)


def _pairs(size: int) -> tuple[Ints, Ints]:
    """All ordered pairs of different ranks."""
    source = np.repeat(np.arange(size), size - 1)
    target = (source + np.tile(np.arange(1, size), size)) % size
    return source, target


def forwarded_all_to_all(domains: int, members: int) -> MessagePlan:
    """Forwarding over rails: what must leave the domain goes to the member on the rail of its target first.

    What stays inside the domain is exchanged beside the second step.
    """
    # Step 1, inside the domain: hand each block to the member on its target's rail.  Step 2: send it along that rail.
    size = domains * members
    return after(_to_rails(domains, members, size), _on_rails(domains, members, size))


def _to_rails(domains: int, members: int, size: int) -> MessagePlan:
    home, source, target = _domain_pairs(domains, members)
    away, rail = np.meshgrid(np.arange(domains), np.arange(len(source)), indexing="ij")
    leaves = away != home[rail]
    rail, away = rail[leaves], away[leaves]
    # The block from `source` to the rank of the target's rail in domain `away`.
    first = source[rail] * size + away * members + target[rail] % members
    return table(
        np.zeros_like(rail), source[rail], target[rail], first, parts=size, owner=_receivers(size), adds=False
    )


def _on_rails(domains: int, members: int, size: int) -> MessagePlan:
    home, target, member, origin = (
        axis.ravel() for axis in np.meshgrid(*map(np.arange, (domains, domains, members, members)), indexing="ij")
    )
    keep = home != target
    home, target, member, origin = home[keep], target[keep], member[keep], origin[keep]
    first = (home * members + origin) * size + target * members + member
    across = table(
        np.zeros_like(home),
        home * members + member,
        target * members + member,
        first,
        parts=size,
        owner=_receivers(size),
        adds=False,
    )
    _, inner, outer = _domain_pairs(domains, members)
    inside = table(
        np.zeros_like(inner), inner, outer, inner * size + outer, parts=size, owner=_receivers(size), adds=False
    )
    return beside([across, inside], parts=size, owner=_receivers(size))


def _domain_pairs(domains: int, members: int) -> tuple[Ints, Ints, Ints]:
    """All ordered pairs of ranks in the same domain: the domain, one rank, the other."""
    # Ordered pairs of members, repeated for each domain.
    once = all_gather(members)
    home = np.repeat(np.arange(domains), len(once.source))
    source, target = np.tile(once.source, domains), np.tile(once.target, domains)
    return home, home * members + source, home * members + target


def _receivers(size: int) -> Ints:
    return np.tile(np.arange(size), size)
