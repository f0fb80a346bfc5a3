"""Collectives as steps of messages between ranks: who sends how much to whom, and when.

``expand`` gives the bytes of every step of an algorithm.  Behind it stands ``plan``, which also says which
blocks of the buffer each message carries and whether the receiver adds or keeps them, so that an algorithm
can be executed symbolically and proved: each rank must end with every contribution exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from weft.collectives.messages import halving, pairs, ring
from weft.collectives.messages.blocks import MessagePlan
from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats, Ints, Mask

_FLAT: dict[tuple[str, str], Callable[[int], MessagePlan]] = {
    ("all-reduce", "ring"): ring.all_reduce,
    ("all-gather", "ring"): ring.all_gather,
    ("reduce-scatter", "ring"): ring.reduce_scatter,
    ("all-gather", "line"): ring.line_all_gather,
    ("reduce-scatter", "line"): ring.line_reduce_scatter,
    ("exchange", "ring"): ring.exchange,
    ("all-reduce", "direct"): pairs.all_reduce,
    ("all-gather", "direct"): pairs.all_gather,
    ("reduce-scatter", "direct"): pairs.reduce_scatter,
    ("all-to-all", "direct"): pairs.all_to_all,
    ("all-gather", "halving-doubling"): halving.doubling,
    ("reduce-scatter", "halving-doubling"): halving.halving,
}
_SPREAD: dict[tuple[str, str], Callable[[int, int], MessagePlan]] = {
    ("all-reduce", "rings"): ring.rings_all_reduce,
    ("all-gather", "rings"): ring.rings_all_gather,
    ("reduce-scatter", "rings"): ring.rings_reduce_scatter,
    ("all-to-all", "hierarchical"): pairs.forwarded_all_to_all,
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
        result = []
        for step in range(self.count):
            now = self.step == step
            result.append(
                Steps(
                    count=1,
                    step=np.zeros(int(now.sum()), dtype=np.int64),
                    source=self.source[now],
                    target=self.target[now],
                    bytes=self.bytes[now],
                )
            )
        return tuple(result)

    def sent(self, ranks: int) -> Floats:
        """Bytes that each of the ranks 0 .. ``ranks`` - 1 sends."""
        return np.bincount(self.source, weights=self.bytes, minlength=ranks).astype(np.float64)


def plan(kind: str, algorithm: str, size: int, *, domains: int = 1) -> MessagePlan:
    """The algorithm's messages between the ranks 0 .. ``size`` - 1, which lie in ``domains`` equal blocks.

    Raises:
        Unsupported: there is no such algorithm for the kind.
    """
    if size < 1 or domains < 1 or size % domains:
        raise BadInput(f"{size} ranks do not lie evenly in {domains} domains", where="collective")
    if (kind, algorithm) in _FLAT:
        return _FLAT[kind, algorithm](size)
    if (kind, algorithm) in _SPREAD:
        return _SPREAD[kind, algorithm](domains, size // domains)
    known = sorted({name for its_kind, name in (*_FLAT, *_SPREAD) if its_kind == kind})
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
    if (kind, algorithm) in _SPREAD and domain is not None:
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
    starts = _run_starts(np.take_along_axis(domains, order, axis=1))
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


def _run_starts(rows: Ints) -> Mask:
    """Where a row's value differs from the one before."""
    starts = np.ones_like(rows, dtype=bool)
    starts[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return starts


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
