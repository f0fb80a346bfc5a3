"""What the threadblocks of an MSCCL algorithm do, and what their steps wait for.

Every rank has one threadblock for each peer and channel that it sends to, one for each that it receives from,
and one that copies.  Steps are in the order of the plan, and wait for the last write of what they read and
for the reads of what they overwrite.

No program made here deadlocks, even if a send ends only when its receive runs.  A step waits for steps of
earlier messages only: of earlier plan steps, or for an earlier message of the same plan step in the same
threadblock or into the same block.  So the first message that has not run yet can always run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from weft.errors import Unsupported
from weft.interop.collectives.msccl_buffers import Buffers, Copy, Move, Place, pieces

MOST_CHUNKS_A_STEP = 71
"""Limit of the executor."""
NOWHERE = Place("o", -1)


@dataclass(slots=True, kw_only=True)
class Step:
    """One line of a threadblock; ``waits`` is a (threadblock, step) of the rank."""

    type: str
    source: Place = NOWHERE
    target: Place = NOWHERE
    count: int = 0
    waits: tuple[int, int] | None = None
    awaited: bool = False


@dataclass(slots=True, kw_only=True)
class Threadblock:
    """``seen[t]`` is the last step of threadblock t that is known to have ended."""

    number: int
    send: int = -1
    receive: int = -1
    channel: int = 0
    steps: list[Step] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)


At = tuple[int, int]
"""A threadblock of a rank, and its step."""


@dataclass(slots=True)
class Rank:
    """A rank's threadblocks, with the last write of each block and the reads since."""

    threadblocks: dict[tuple[str, int, int], Threadblock] = field(default_factory=dict)
    by_number: list[Threadblock] = field(default_factory=list)
    written: dict[int, At] = field(default_factory=dict)
    read: dict[int, list[At]] = field(default_factory=dict)
    seen_at: dict[At, dict[int, int]] = field(default_factory=dict)

    def threadblock(self, does: str, peer: int = -1, channel: int = 0) -> Threadblock:
        key = (does, peer, channel)
        if key not in self.threadblocks:
            made = Threadblock(number=len(self.by_number), channel=channel)
            made.send = peer if does == "send" else -1
            made.receive = peer if does == "receive" else -1
            self.threadblocks[key] = made
            self.by_number.append(made)
        return self.threadblocks[key]

    def reads(self, threadblock: Threadblock, step: Step, blocks: range) -> None:
        """Add a step that reads the blocks."""
        at = self._add(threadblock, step, {self.written[b] for b in blocks if b in self.written})
        for block in blocks:
            self.read.setdefault(block, []).append(at)

    def writes(self, threadblock: Threadblock, step: Step, blocks: range) -> None:
        """Add a step that writes the blocks, or adds to them."""
        before = {self.written[b] for b in blocks if b in self.written}
        at = self._add(threadblock, step, before.union(*(self.read.pop(b, ()) for b in blocks)))
        for block in blocks:
            self.written[block] = at

    def _add(self, threadblock: Threadblock, step: Step, after: Iterable[At]) -> At:
        waits = self._needed(threadblock, after)
        for wait in waits:
            self.by_number[wait[0]].steps[wait[1]].awaited = True
            for other, last in self.seen_at[wait].items():
                threadblock.seen[other] = max(threadblock.seen.get(other, -1), last)
        threadblock.steps += [Step(type="nop", waits=wait) for wait in waits[:-1]]
        step.waits = waits[-1] if waits else None
        at = (threadblock.number, len(threadblock.steps))
        threadblock.steps.append(step)
        threadblock.seen[threadblock.number] = at[1]
        self.seen_at[at] = dict(threadblock.seen)
        return at

    def _needed(self, threadblock: Threadblock, after: Iterable[At]) -> list[At]:
        """The waits that nothing else implies, one of a threadblock at most."""
        last: dict[int, int] = {}
        for other, step in after:
            if threadblock.seen.get(other, -1) < step:
                last[other] = max(last.get(other, -1), step)
        return [
            wait
            for wait in last.items()
            if not any(self.seen_at[at].get(wait[0], -1) >= wait[1] for at in last.items() if at != wait)
        ]


def schedule(buffers: Buffers, moves: list[Move], size: int) -> list[Rank]:
    """The threadblocks of each rank; ``moves`` are in the order of their steps.

    Raises:
        Unsupported: a rank sends and receives a block in one step.
    """
    ranks = [Rank() for _ in range(size)]
    for rank, copies in zip(ranks, buffers.before, strict=True):
        for copy in pieces(copies, MOST_CHUNKS_A_STEP):
            rank.writes(rank.threadblock("copy"), _copying(copy), copy.blocks)
    for _, group in groupby(moves, key=lambda move: move.step):
        together = list(group)
        _refuse_swaps(together)
        for move in together:
            rank = ranks[move.source]
            step = Step(
                type="s",
                source=buffers.places[move.source][move.blocks[0]],
                target=buffers.places[move.target][move.blocks[0]],
                count=len(move.blocks),
            )
            rank.reads(rank.threadblock("send", move.target, move.channel), step, move.blocks)
        for move in together:
            rank = ranks[move.target]
            home = buffers.places[move.target][move.blocks[0]]
            step = Step(
                type="rrc" if move.adds else "r",
                source=home if move.adds else buffers.places[move.source][move.blocks[0]],
                target=home,
                count=len(move.blocks),
            )
            rank.writes(rank.threadblock("receive", move.source, move.channel), step, move.blocks)
    for rank, copies in zip(ranks, buffers.after, strict=True):
        for copy in pieces(copies, MOST_CHUNKS_A_STEP):
            rank.reads(rank.threadblock("copy"), _copying(copy), copy.blocks)
    return ranks


def _copying(copy: Copy) -> Step:
    return Step(type="cpy", source=copy.source, target=copy.target, count=len(copy.blocks))


def _refuse_swaps(together: list[Move]) -> None:
    """Messages that overwrite what their target sends in the same step could wait for each other."""
    sent = {(move.source, block) for move in together for block in move.blocks}
    for move in together:
        if any((move.target, block) in sent for block in move.blocks):
            raise Unsupported(f"rank {move.target} sends and receives a block in one step ({move.step})", where="plan")
