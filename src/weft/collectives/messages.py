"""Collectives as messages between ranks: who sends which blocks to whom in which step.

``expand`` gives the bytes of every step of an algorithm.  Behind it stands ``plan``, which also says which blocks of
the buffer each message carries and whether the receiver adds or keeps them, so that an algorithm can be executed
symbolically and proved: each rank must end with every contribution exactly once.

Rings are those of Patarasuk and Yuan (2009), recursive halving and doubling those of Rabenseifner (2004).  ``rings``
of a group with m members in each scale-up domain are m rings that each carry 1/m of the buffer, ring c leaving a
domain where ring c + 1 enters it: every member's NIC carries one ring in and one ring out, and a ring enters the next
domain on the rail on which it left the last one.  Three domains close such a ring where the number of domains is odd;
two members a domain cannot, and then cross rails once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats, Ints, Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagePlan:
    """An algorithm's messages between the ranks of a group, before any size is known.

    The buffer is ``parts`` equal blocks.  In ``step``, ``source`` sends the ``blocks`` blocks from ``first``
    on, as it held them when the step began; ``adds`` says whether the receiver adds them to its own or keeps
    them. ``owner`` names the rank that each block of a scattered or gathered buffer belongs to.  In an
    all-to-all, block ``i * size + j`` goes from rank i to rank j and ``parts`` counts the blocks of one rank.
    """

    parts: int
    steps: int
    step: Ints
    source: Ints
    target: Ints
    first: Ints
    blocks: Ints
    adds: Mask
    owner: Ints

    def moved(self, ranks: Ints, *, scale: int = 1, shift: int = 0) -> MessagePlan:
        """The same among other ranks, each block standing for ``scale`` blocks, ``shift`` further on."""
        return replace(
            self,
            source=ranks[self.source],
            target=ranks[self.target],
            first=self.first * scale + shift,
            blocks=self.blocks * scale,
        )


def table(
    step: Ints | int,
    source: Ints,
    target: Ints,
    first: Ints | int,
    *,
    parts: int,
    owner: Ints | None = None,
    adds: bool = False,
    blocks: Ints | int = 1,
) -> MessagePlan:
    """A plan of messages that all add, or all keep; block b belongs to rank b unless ``owner`` says otherwise."""
    columns = np.broadcast_arrays(step, source, target, first, blocks)
    step, source, target, first, blocks = (column.ravel().astype(np.int64) for column in columns)
    return MessagePlan(
        parts=parts,
        steps=int(step.max(initial=-1)) + 1,
        step=step,
        source=source,
        target=target,
        first=first,
        blocks=blocks,
        adds=np.full(step.size, adds),
        owner=np.arange(parts) if owner is None else owner,
    )


def beside(plans: Sequence[MessagePlan], *, parts: int, owner: Ints) -> MessagePlan:
    """Plans that run at the same time."""
    names = ("step", "source", "target", "first", "blocks", "adds")
    columns = {name: np.concatenate([getattr(plan, name) for plan in plans]) for name in names}
    return MessagePlan(parts=parts, steps=max((plan.steps for plan in plans), default=0), owner=owner, **columns)


def after(*plans: MessagePlan) -> MessagePlan:
    """Plans one after the other, over the same blocks."""
    begins = np.cumsum([0, *(plan.steps for plan in plans)])
    shifted = [replace(plan, step=plan.step + begin) for plan, begin in zip(plans, begins.tolist(), strict=False)]
    joined = beside(shifted, parts=plans[0].parts, owner=plans[0].owner)
    return replace(joined, steps=int(begins[-1]))


# Rings --------------------------------------------------------------------------------------------


def ring_reduce_scatter(size: int) -> MessagePlan:
    """size - 1 steps; block b starts behind rank b and ends at it."""
    step, rank = np.arange(size - 1)[:, None], np.arange(size)[None, :]
    return table(step, rank, (rank + 1) % size, (rank - step - 1) % size, parts=size, adds=True)


def ring_all_gather(size: int) -> MessagePlan:
    """size - 1 steps; block b starts at rank b."""
    step, rank = np.arange(size - 1)[:, None], np.arange(size)[None, :]
    return table(step, rank, (rank + 1) % size, (rank - step) % size, parts=size)


def line_all_gather(size: int) -> MessagePlan:
    """size - 1 steps on a line: each rank passes on, both ways, what it got from the other side."""
    step, rank = np.arange(size - 1)[:, None], np.arange(size)[None, :]
    right, left = rank - step, rank + step
    goes_right = (right >= 0) & (rank + 1 < size)
    goes_left = (left < size) & (rank > 0)
    steps, ranks = np.broadcast_arrays(step, rank)
    ways = [
        table(steps[goes], ranks[goes], ranks[goes] + ahead, block[goes], parts=size)
        for goes, ahead, block in ((goes_right, 1, right), (goes_left, -1, left))
    ]
    return beside(ways, parts=size, owner=np.arange(size))


def line_reduce_scatter(size: int) -> MessagePlan:
    """The reverse: sums of each block come to its rank from both sides."""
    gather = line_all_gather(size)
    return replace(
        gather, step=size - 2 - gather.step, source=gather.target, target=gather.source, adds=np.ones_like(gather.adds)
    )


def ring_exchange(size: int) -> MessagePlan:
    """One step of a ring: each rank's whole buffer to the next rank."""
    rank = np.arange(size if size > 1 else 0)
    return table(0, rank, (rank + 1) % size, rank, parts=1, owner=np.arange(size))


def _rings(algorithm: Callable[[int], MessagePlan], domains: int, members: int) -> MessagePlan:
    size = domains * members
    # All rings run at once, each over its own 1/members of the blocks.
    once = algorithm(size)
    orders = [ring_order(domains, members, ring) for ring in range(members)]
    rings = [once.moved(order, shift=ring * size) for ring, order in enumerate(orders)]
    return beside(rings, parts=members * size, owner=np.concatenate(orders))


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


# Halving and doubling -----------------------------------------------------------------------------


def halving(size: int) -> MessagePlan:
    """Reduce-scatter of ``size`` = p + r ranks with p a power of two: r odd ranks first fold into their
    neighbours, and last get their blocks back."""
    ends, odd = _ends(size)
    active = len(ends) - 1
    steps = [_swap(size, ends, active >> i, adds=True) for i in range(1, active.bit_length())]
    if len(odd):
        fold = table(0, odd, odd - 1, 0, parts=size, adds=True, blocks=size)
        steps = [fold, *steps, table(0, odd - 1, odd, odd, parts=size)]
    return after(_nothing(size), *steps)


def doubling(size: int) -> MessagePlan:
    """All-gather: the reverse of ``halving``."""
    ends, odd = _ends(size)
    steps = [_swap(size, ends, 1 << i, adds=False) for i in range((len(ends) - 1).bit_length() - 1)]
    if len(odd):
        # Last, the neighbour of each folded rank sends it everything but its own block: what lies before and behind.
        first = np.concatenate([np.zeros_like(odd), odd + 1])
        blocks = np.concatenate([odd, size - 1 - odd])
        some = blocks > 0
        pair = np.tile(odd, 2)[some]
        rest = table(0, pair - 1, pair, first[some], parts=size, blocks=blocks[some])
        steps = [table(0, odd, odd - 1, odd, parts=size), *steps, rest]
    return after(_nothing(size), *steps)


def _nothing(size: int) -> MessagePlan:
    none = np.zeros(0, dtype=np.int64)
    return table(none, none, none, none, parts=size)


def _ends(size: int) -> tuple[Ints, Ints]:
    """Where the blocks of each active rank begin (and the end), and the ranks that fold away.

    Active rank a < r holds the blocks 2a and 2a + 1, the others one each.
    """
    active = 1 << (size.bit_length() - 1)
    folded = size - active
    blocks = np.where(np.arange(active) < folded, 2, 1)
    return np.concatenate([[0], np.cumsum(blocks)]), 2 * np.arange(folded) + 1


def _swap(size: int, ends: Ints, distance: int, *, adds: bool) -> MessagePlan:
    """Active ranks ``distance`` apart exchange half of what they both cover: the other's half when reducing,
    their own when gathering."""
    # At distance d two partners cover the same 2d active ranks; each keeps the half with its own bit.
    rank = np.arange(len(ends) - 1)
    partner = rank ^ distance
    low = (partner if adds else rank) & ~(distance - 1)
    first = ends[low]
    # Active rank a is rank ends[a]: the first block that it holds has its number.
    blocks = ends[low + distance] - first
    return table(0, ends[rank], ends[partner], first, parts=size, adds=adds, blocks=blocks)


# Every pair by itself -----------------------------------------------------------------------------


def direct_reduce_scatter(size: int) -> MessagePlan:
    """One step: each rank sends block b to rank b."""
    source, target = _pairs(size)
    return table(0, source, target, target, parts=size, adds=True)


def direct_all_gather(size: int) -> MessagePlan:
    """One step: each rank sends its block to all."""
    source, target = _pairs(size)
    return table(0, source, target, source, parts=size)


def direct_all_to_all(size: int) -> MessagePlan:
    """One step: every pair exchanges its blocks."""
    source, target = _pairs(size)
    return table(0, source, target, source * size + target, parts=size, owner=_receivers(size))


def _pairs(size: int) -> tuple[Ints, Ints]:
    """All ordered pairs of different ranks."""
    source = np.repeat(np.arange(size), size - 1)
    target = (source + np.tile(np.arange(1, size), size)) % size
    return source, target


def forwarded_all_to_all(domains: int, members: int) -> MessagePlan:
    """Forwarding over rails: what must leave the domain goes to the member on the rail of its target first.

    What stays inside the domain is exchanged beside the second step.
    """
    size = domains * members
    owner = _receivers(size)
    # All ordered pairs of ranks in the same domain.
    pairs = _pairs(members)
    home = np.repeat(np.arange(domains), len(pairs[0]))
    inner, outer = (home * members + np.tile(member, domains) for member in pairs)
    # Step 1, inside the domain: the block from `inner` to the rank in domain `away` on the rail of `outer` goes to
    # `outer`.
    away, rail = np.meshgrid(np.arange(domains), np.arange(len(inner)), indexing="ij")
    leaves = away != home[rail]
    rail, away = rail[leaves], away[leaves]
    first = inner[rail] * size + away * members + outer[rail] % members
    to_rails = table(0, inner[rail], outer[rail], first, parts=size, owner=owner)
    # Step 2: each member sends along its rail what it has from `origin`.
    axes = np.meshgrid(*map(np.arange, (domains, domains, members, members)), indexing="ij")
    home, target, member, origin = (axis[axes[0] != axes[1]] for axis in axes)
    first = (home * members + origin) * size + target * members + member
    across = table(0, home * members + member, target * members + member, first, parts=size, owner=owner)
    inside = table(0, inner, outer, inner * size + outer, parts=size, owner=owner)
    return after(to_rails, beside([across, inside], parts=size, owner=owner))


def _receivers(size: int) -> Ints:
    return np.tile(np.arange(size), size)


# Collectives --------------------------------------------------------------------------------------

# An all-reduce is its two halves, one after the other.
_FLAT: dict[tuple[str, str], Callable[[int], MessagePlan]] = {
    ("all-gather", "ring"): ring_all_gather,
    ("reduce-scatter", "ring"): ring_reduce_scatter,
    ("all-gather", "line"): line_all_gather,
    ("reduce-scatter", "line"): line_reduce_scatter,
    ("exchange", "ring"): ring_exchange,
    ("all-gather", "direct"): direct_all_gather,
    ("reduce-scatter", "direct"): direct_reduce_scatter,
    ("all-to-all", "direct"): direct_all_to_all,
    ("all-gather", "halving-doubling"): doubling,
    ("reduce-scatter", "halving-doubling"): halving,
}
_SPREAD: dict[tuple[str, str], Callable[[int, int], MessagePlan]] = {
    ("all-gather", "rings"): partial(_rings, ring_all_gather),
    ("reduce-scatter", "rings"): partial(_rings, ring_reduce_scatter),
    ("all-to-all", "hierarchical"): forwarded_all_to_all,
}
"""Algorithms that know the scale-up domains: of domains and members of each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Messages of a collective: in ``step`` (0 .. ``count`` - 1), ``source`` sends ``bytes`` to ``target``.

    A step begins when the one before has ended.  Every pair appears at most once in a step.
    """

    count: int
    step: Ints
    source: Ints
    target: Ints
    bytes: Floats

    def __len__(self) -> int:
        return len(self.step)

    def pipelined(self) -> Steps:
        """All steps at once, as when the buffer is cut into so many pieces that every step always has one."""
        # All steps count as step 0: messages between the same two ranks add up.
        merged = _merged(np.zeros_like(self.step), self.source, self.target, self.bytes)
        return replace(merged, count=min(self.count, 1))

    def one_by_one(self) -> tuple[Steps, ...]:
        """Each step by itself."""
        return tuple(self._of(self.step == step) for step in range(self.count))

    def _of(self, now: Mask) -> Steps:
        step = np.zeros(int(now.sum()), dtype=np.int64)
        return Steps(count=1, step=step, source=self.source[now], target=self.target[now], bytes=self.bytes[now])


def plan(kind: str, algorithm: str, size: int, *, domains: int = 1) -> MessagePlan:
    """The algorithm's messages between the ranks 0 .. ``size`` - 1, which lie in ``domains`` equal blocks.

    Raises:
        Unsupported: there is no such algorithm for the kind.
    """
    if size < 1 or domains < 1 or size % domains:
        raise BadInput(f"{size} ranks do not lie evenly in {domains} domains", where="collective")
    if kind == "all-reduce" and ("all-gather", algorithm) in {**_FLAT, **_SPREAD}:
        halves = ("reduce-scatter", "all-gather")
        return after(*(plan(half, algorithm, size, domains=domains) for half in halves))
    if (kind, algorithm) in _FLAT:
        return _FLAT[kind, algorithm](size)
    if (kind, algorithm) in _SPREAD:
        return _SPREAD[kind, algorithm](domains, size // domains)
    like = "all-gather" if kind == "all-reduce" else kind
    known = sorted({name for its_kind, name in (*_FLAT, *_SPREAD) if its_kind == like})
    raise Unsupported(
        f"no algorithm {algorithm!r} for {kind!r}", where="collective", remedy=f"known: {', '.join(known)}"
    )


def expand(kind: str, algorithm: str, ranks: Ints, bytes_: float, *, domain: Ints | None = None) -> Steps:
    """The steps of one collective, or of the same collective in many groups at once.

    Args:
        kind: as ``weft.layout.operations`` has it; an ``exchange`` goes from each rank to the next.
        algorithm: one that the kind has.
        ranks: the group in order, or one group a row.
        bytes_: the full buffer as ``weft.layout.operations.Collective`` defines it: reduced, gathered, before
            scattering, or passed on.
        domain: scale-up domain of each rank number; ``rings`` and ``hierarchical`` follow it.

    Raises:
        Unsupported: there is no such algorithm for the kind.
    """
    groups = np.atleast_2d(np.asarray(ranks, dtype=np.int64))
    if not np.isfinite(bytes_) or bytes_ < 0:
        raise BadInput(f"{bytes_!r} bytes cannot be sent", where="collective")
    if groups.size == 0 or len(np.unique(groups)) != groups.size:
        raise BadInput("a rank appears twice, or there is none", where="collective")
    domains = 1
    if domain is not None and algorithm in ("rings", "hierarchical"):
        groups, domains = by_domain(groups, domain)
    messages = plan(kind, algorithm, groups.shape[1], domains=domains)
    # One group's messages, then the same in all groups.
    once = _merged(
        messages.step,
        messages.source,
        messages.target,
        (messages.blocks * (bytes_ / messages.parts)).astype(np.float64),
    )
    return Steps(
        count=messages.steps,
        step=np.tile(once.step, len(groups)),
        source=groups[:, once.source].ravel(),
        target=groups[:, once.target].ravel(),
        bytes=np.tile(once.bytes, len(groups)),
    )


def by_domain(groups: Ints, domain: Ints) -> tuple[Ints, int]:
    """The groups with the ranks of each domain together, and in how many domains each group lies.

    Domains follow each other as their first ranks do, and ranks within a domain as they are given: the order
    of a caller's placement stays.
    """
    # Step 1: ranks of a domain together.  Step 2: check that each domain has equally many.
    domains = domain[groups]
    order = np.argsort(domains, axis=1, kind="stable")
    sorted_domains = np.take_along_axis(domains, order, axis=1)
    starts = np.ones_like(domains, dtype=bool)
    starts[:, 1:] = sorted_domains[:, 1:] != sorted_domains[:, :-1]
    count = int(starts[0].sum())
    if groups.shape[1] % count or not (starts == (np.arange(groups.shape[1]) % (groups.shape[1] // count) == 0)).all():
        raise BadInput(
            "the ranks of a group do not lie evenly in their scale-up domains",
            where="collective",
            remedy="use a flat algorithm: ring, direct or halving-doubling",
        )
    # Step 3: domains in the order of their first ranks.
    members = order.reshape(len(groups), count, -1)
    first = np.argsort(members[:, :, 0], axis=1)
    order = np.take_along_axis(members, first[:, :, None], axis=1).reshape(groups.shape)
    return np.take_along_axis(groups, order, axis=1), count


def _merged(step: Ints, source: Ints, target: Ints, bytes_: Floats) -> Steps:
    """One message for each step and pair of ranks, in order."""
    if not len(step):
        return Steps(count=0, step=step, source=source, target=target, bytes=bytes_)
    width = int(max(source.max(), target.max())) + 1
    key = (step * width + source) * width + target
    unique, inverse = np.unique(key, return_inverse=True)
    return Steps(
        count=int(step.max()) + 1,
        step=unique // (width * width),
        source=unique // width % width,
        target=unique % width,
        bytes=np.bincount(inverse, weights=bytes_).astype(np.float64),
    )
