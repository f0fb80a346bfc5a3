"""Hierarchical algorithms: inside the scale-up domains directly, between them on rails.

Rank ``domain * members + member``; the blocks that a member carries between domains are contiguous:
``member * domains + domain`` belongs to that rank.
"""

from __future__ import annotations

import numpy as np

from weft.collectives.messages import pairs, ring
from weft.collectives.messages.blocks import MessagePlan, after, beside, table
from weft.fabric.spec import Ints


def reduce_scatter(domains: int, members: int) -> MessagePlan:
    """Each member gathers the sums of its share in its domain, then rings scatter the share over domains."""
    inside = _inside(pairs.reduce_scatter(members), domains, members)
    return after(inside, _across(ring.reduce_scatter(domains), domains, members))


def all_gather(domains: int, members: int) -> MessagePlan:
    """The reverse: rings over domains gather each member's share, then members exchange their shares."""
    across = _across(ring.all_gather(domains), domains, members)
    return after(across, _inside(pairs.all_gather(members), domains, members))


def all_reduce(domains: int, members: int) -> MessagePlan:
    """Reduce inside, all-reduce each member's share over domains, gather inside."""
    inside = _inside(pairs.reduce_scatter(members), domains, members)
    across = _across(ring.all_reduce(domains), domains, members)
    return after(inside, across, _inside(pairs.all_gather(members), domains, members))


def all_to_all(domains: int, members: int) -> MessagePlan:
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
    once = pairs.all_gather(members)
    home = np.repeat(np.arange(domains), len(once.source))
    source, target = np.tile(once.source, domains), np.tile(once.target, domains)
    return home, home * members + source, home * members + target


def _receivers(size: int) -> Ints:
    return np.tile(np.arange(size), size)


def _owner(domains: int, members: int) -> Ints:
    """The rank of each block ``member * domains + domain``."""
    return np.arange(domains * members).reshape(domains, members).T.ravel()


def _inside(once: MessagePlan, domains: int, members: int) -> MessagePlan:
    ranks = np.arange(domains * members).reshape(domains, members)
    return beside(
        [once.moved(ranks[domain], scale=domains) for domain in range(domains)],
        parts=domains * members,
        owner=_owner(domains, members),
    )


def _across(once: MessagePlan, domains: int, members: int) -> MessagePlan:
    ranks = np.arange(domains * members).reshape(domains, members)
    return beside(
        [once.moved(ranks[:, member], shift=member * domains) for member in range(members)],
        parts=domains * members,
        owner=_owner(domains, members),
    )
