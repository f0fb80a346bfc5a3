"""MSCCL: an algorithm as XML for the executor of MSCCL (Azure/msccl-executor-nccl), from any plan.

Every rank has one threadblock for each peer that it sends to, and one for each that it receives from.  Steps are in
the order of the plan, and wait for the last write of what they read and for the reads of what they overwrite.

No program made here deadlocks, even if a send ends only when its receive runs.  A step waits for steps of
earlier messages only: of earlier plan steps, or for an earlier message of the same plan step in the same
threadblock or into the same block.  So the first message that has not run yet can always run.

The format cuts every buffer into equal chunks.  All ranks keep a block in one place from the first message to the
last; blocks of a gathered or scattered buffer are renumbered so that those of a rank are contiguous.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from weft.collectives.messages import MessagePlan
from weft.errors import BadInput, Unsupported

MOST_STEPS = 256
MOST_THREADBLOCKS = 128
MOST_PEERS_A_CHANNEL = 32
MOST_NODES = 4096
MOST_CHUNKS = 32767
MOST_CHUNKS_A_STEP = 71
"""Limits of the executor: steps of a threadblock, threadblocks of a rank (their numbers have 8 bits), peers
of a channel, XML elements that a rank reads, chunks of a buffer (16 bits), and chunks of a step."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


class Place(NamedTuple):
    """A chunk of a rank's input (i) or output (o) buffer."""

    buffer: str
    chunk: int


NOWHERE = Place("o", -1)
Places = Mapping[int, Place]
At = tuple[int, int]
"""A threadblock of a rank, and its step."""


class ChunkBuffers(NamedTuple):
    """Chunks of every rank's input and output, and the place of each block on all ranks."""

    input_chunks: int
    output_chunks: int
    places: Places


class BlockMove(NamedTuple):
    """``blocks`` that ``source`` sends to ``target`` in a step; contiguous in the buffers of both."""

    step: int
    source: int
    target: int
    adds: bool
    blocks: range


def write_msccl(plan: MessagePlan, kind: str, size: int, *, name: str) -> str:
    """The plan of a collective of ``size`` ranks as MSCCL XML: in place, on one channel, for all sizes.

    Args:
        kind: all-reduce, all-gather or reduce-scatter.

    Raises:
        Unsupported: a plan in which ranks swap a block, or one that is too large for the executor.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is not a name of an algorithm", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if size < 2:
        raise BadInput(f"a group of {size} exchanges nothing", where="size", remedy="give at least two ranks")
    buffers = _buffers(plan, kind, size)
    ranks = _programs(buffers, list(_moves(plan, buffers.places)), size)
    _check_limits(buffers, ranks)
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="1"'
        f' nchunksperloop="{max(buffers.input_chunks, buffers.output_chunks)}" ngpus="{size}"'
        f' coll="{kind.replace("-", "")}" inplace="1" outofplace="0" minBytes="0" maxBytes="0">'
    ]
    for number, rank in enumerate(ranks):
        chunks = f'i_chunks="{buffers.input_chunks}" o_chunks="{buffers.output_chunks}"'
        lines.append(f' <gpu id="{number}" {chunks} s_chunks="0">')
        for block in rank.threadblocks.values():
            lines.append(f'  <tb id="{block.number}" send="{block.send}" recv="{block.receive}" chan="0">')
            for s, step in enumerate(block.steps):
                fields = " ".join(f'{key}="{value}"' for key, value in step.items())
                lines.append(f'   <step s="{s}" {fields}/>')
            lines.append("  </tb>")
        lines.append(" </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _check_limits(buffers: ChunkBuffers, ranks: Sequence[RankProgram]) -> None:
    counts = [("chunks in a buffer", max(buffers.input_chunks, buffers.output_chunks), MOST_CHUNKS)]
    for rank in ranks:
        steps = [len(block.steps) for block in rank.threadblocks.values()]
        ends = Counter((block.send >= 0, block.receive >= 0) for block in rank.threadblocks.values())
        counts += [
            ("steps in a threadblock", max(steps, default=0), MOST_STEPS),
            ("threadblocks on a rank", len(steps), MOST_THREADBLOCKS),
            ("peers on a channel", max(ends.values(), default=0), MOST_PEERS_A_CHANNEL),
            ("XML elements for a rank", sum(steps) + len(steps) + len(ranks) + 1, MOST_NODES),
        ]
    for noun, count, most in counts:
        if count > most:
            problem = f"needs {count} {noun}; the executor has {most}"
            raise Unsupported(problem, where="MSCCL", remedy="use fewer ranks, or another algorithm")


def _buffers(plan: MessagePlan, kind: str, size: int) -> ChunkBuffers:
    """Where the blocks lie: results where the input was.

    An all-gather's input is the rank's share of the output, a reduce-scatter's output its share of the input, and
    reduction clobbers the input.
    """
    blocks = len(plan.owner)
    if kind == "all-reduce":
        return ChunkBuffers(blocks, blocks, {block: Place("i", block) for block in range(blocks)})
    # The blocks are sorted by their owners.
    if (np.bincount(plan.owner, minlength=size) * size != blocks).any():
        raise Unsupported("the ranks own different numbers of blocks", where="plan")
    order = np.argsort(plan.owner, kind="stable").tolist()
    if kind == "all-gather":
        return ChunkBuffers(blocks // size, blocks, {block: Place("o", chunk) for chunk, block in enumerate(order)})
    return ChunkBuffers(blocks, blocks // size, {block: Place("i", chunk) for chunk, block in enumerate(order)})


def _moves(plan: MessagePlan, places: Places) -> Iterator[BlockMove]:
    """The messages by step, cut where their blocks are not contiguous, and for the executor."""
    for message in np.argsort(plan.step, kind="stable").tolist():
        source, target = int(plan.source[message]), int(plan.target[message])
        first, end = int(plan.first[message]), int(plan.first[message] + plan.blocks[message])
        begin = first
        for block in range(first + 1, end + 1):
            cut = block == end or block - begin == MOST_CHUNKS_A_STEP
            if cut or places[block].chunk != places[block - 1].chunk + 1:
                step, adds = int(plan.step[message]), bool(plan.adds[message])
                yield BlockMove(step, source, target, adds, range(begin, block))
                begin = block


@dataclass(slots=True)
class Threadblock:
    """``steps`` are attributes of the format; ``seen[t]`` is the last step of threadblock t known to have ended."""

    number: int
    send: int
    receive: int
    steps: list[dict[str, object]] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class RankProgram:
    """A rank's threadblocks in order of their numbers, with the last write of each block and the reads since."""

    threadblocks: dict[tuple[bool, int], Threadblock] = field(default_factory=dict)
    written: dict[int, At] = field(default_factory=dict)
    read: dict[int, list[At]] = field(default_factory=dict)
    seen_at: dict[At, dict[int, int]] = field(default_factory=dict)

    def reads(self, peer: int, place: Place, blocks: Sequence[int]) -> None:
        """Send the blocks to a peer."""
        at = self._add("s", peer, place, len(blocks), {self.written[b] for b in blocks if b in self.written})
        for block in blocks:
            self.read.setdefault(block, []).append(at)

    def writes(self, kind: str, peer: int, place: Place, blocks: Sequence[int]) -> None:
        """Receive the blocks from a peer (and add to those of the rank)."""
        before = {self.written[b] for b in blocks if b in self.written}
        after = before.union(*(self.read.pop(b, ()) for b in blocks))
        at = self._add(kind, peer, place, len(blocks), after)
        for block in blocks:
            self.written[block] = at

    def _add(self, kind: str, peer: int, place: Place, count: int, after: Iterable[At]) -> At:
        """A step behind some others, with a step that does nothing for each further wait."""
        sends = kind == "s"
        if (sends, peer) not in self.threadblocks:
            ends = (peer, -1) if sends else (-1, peer)
            self.threadblocks[sends, peer] = Threadblock(len(self.threadblocks), *ends)
        block, by_number = self.threadblocks[sends, peer], list(self.threadblocks.values())
        waits = self._needed(block, after)
        for number, step in waits:
            by_number[number].steps[step]["hasdep"] = 1
            for rank, last in self.seen_at[number, step].items():
                block.seen[rank] = max(block.seen.get(rank, -1), last)
        idle = [("nop", NOWHERE, 0, wait) for wait in waits[:-1]]
        work = (kind, place, count, waits[-1] if waits else (-1, -1))
        for type_, home, chunks, (number, step) in [*idle, work]:
            fields = {"type": type_, "srcbuf": home.buffer, "srcoff": home.chunk, "dstbuf": home.buffer}
            fields |= {"dstoff": home.chunk, "cnt": chunks, "depid": number, "deps": step, "hasdep": 0}
            block.steps.append(fields)
        at = (block.number, len(block.steps) - 1)
        block.seen[block.number] = at[1]
        self.seen_at[at] = dict(block.seen)
        return at

    def _needed(self, block: Threadblock, after: Iterable[At]) -> list[At]:
        """The waits that nothing else implies, at most one for each threadblock."""
        last: dict[int, int] = {}
        for rank, step in after:
            if block.seen.get(rank, -1) < step:
                last[rank] = max(last.get(rank, -1), step)
        return [
            wait
            for wait in last.items()
            if not any(self.seen_at[at].get(wait[0], -1) >= wait[1] for at in last.items() if at != wait)
        ]


def _programs(buffers: ChunkBuffers, moves: Sequence[BlockMove], size: int) -> list[RankProgram]:
    """The threadblocks of each rank; ``moves`` are in the order of their steps."""
    ranks, places = [RankProgram() for _ in range(size)], buffers.places
    for _, group in groupby(moves, key=lambda move: move.step):
        together = list(group)
        # Messages that overwrite what their target sends in the same step could wait for each other.
        sent = {(move.source, block) for move in together for block in move.blocks}
        for move in together:
            if any((move.target, block) in sent for block in move.blocks):
                problem = f"rank {move.target} sends and receives a block in one step ({move.step})"
                raise Unsupported(problem, where="plan")
        for move in together:
            ranks[move.source].reads(move.target, places[move.blocks[0]], move.blocks)
        for move in together:
            ranks[move.target].writes("rrc" if move.adds else "r", move.source, places[move.blocks[0]], move.blocks)
    return ranks
