"""Messages that name the blocks they carry: what an algorithm does, before any size is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.fabric.spec import Ints, Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagePlan:
    """An algorithm's messages between the ranks of a group.

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
    step: Ints, source: Ints, target: Ints, first: Ints, *, parts: int, owner: Ints, adds: bool, blocks: int = 1
) -> MessagePlan:
    """A plan of messages of equal length that all add, or all keep."""
    shape = np.broadcast_shapes(step.shape, source.shape, target.shape, first.shape)
    flat = [np.broadcast_to(column, shape).ravel().astype(np.int64) for column in (step, source, target, first)]
    return MessagePlan(
        parts=parts,
        steps=int(flat[0].max()) + 1 if flat[0].size else 0,
        step=flat[0],
        source=flat[1],
        target=flat[2],
        first=flat[3],
        blocks=np.full(flat[0].size, blocks, dtype=np.int64),
        adds=np.full(flat[0].size, adds),
        owner=owner,
    )


def beside(plans: Sequence[MessagePlan], *, parts: int, owner: Ints) -> MessagePlan:
    """Plans that run at the same time."""
    return MessagePlan(
        parts=parts,
        steps=max((plan.steps for plan in plans), default=0),
        step=np.concatenate([plan.step for plan in plans]),
        source=np.concatenate([plan.source for plan in plans]),
        target=np.concatenate([plan.target for plan in plans]),
        first=np.concatenate([plan.first for plan in plans]),
        blocks=np.concatenate([plan.blocks for plan in plans]),
        adds=np.concatenate([plan.adds for plan in plans]),
        owner=owner,
    )


def after(*plans: MessagePlan) -> MessagePlan:
    """Plans one after the other, over the same blocks."""
    begins = np.cumsum([0, *(plan.steps for plan in plans)])
    shifted = [replace(plan, step=plan.step + begin) for plan, begin in zip(plans, begins.tolist(), strict=False)]
    joined = beside(shifted, parts=plans[0].parts, owner=plans[0].owner)
    return replace(joined, steps=int(begins[-1]))
