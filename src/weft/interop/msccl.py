"""MSCCL: an algorithm as XML for the executor of MSCCL (Azure/msccl-executor-nccl), from any plan.

Every rank has one threadblock for each peer that it sends to, one for each that it receives from,
and one that copies.  Steps are in the order of the plan, and wait for the last write of what they read and
for the reads of what they overwrite.

No program made here deadlocks, even if a send ends only when its receive runs.  A step waits for steps of
earlier messages only: of earlier plan steps, or for an earlier message of the same plan step in the same
threadblock or into the same block.  So the first message that has not run yet can always run.

The format cuts every buffer into equal chunks.  Each rank keeps a block in one place from the first message to the
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

from weft.collectives.messages.blocks import MessagePlan
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

COLLECTIVES = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
    "all-to-all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""The names of the kinds in the format."""


class Place(NamedTuple):
    """A chunk of a rank's input (i), output (o) or scratch (s) buffer."""

    buffer: str
    chunk: int


NOWHERE = Place("o", -1)
Places = Sequence[Mapping[int, Place]]
"""By rank, the place of each block."""
At = tuple[int, int]
"""A threadblock of a rank, and its step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkBuffers:
    """Places of the blocks of each rank, and what it copies before the first message.

    ``copied[rank]`` lists blocks that a rank copies from its input to a buffer, at the same chunks.  Chunk counts are
    those of input, output and (per rank) scratch.
    """

    input_chunks: int
    output_chunks: int
    scratch: Sequence[int]
    places: Places
    copied: Sequence[tuple[Place, Sequence[int]]]


class BlockMove(NamedTuple):
    """``blocks`` that ``source`` sends to ``target`` in a step; contiguous in the buffers of both."""

    step: int
    source: int
    target: int
    adds: bool
    blocks: range


def write_msccl(plan: MessagePlan, kind: str, size: int, *, name: str, min_bytes: int = 0, max_bytes: int = 0) -> str:
    """The plan of a collective of ``size`` ranks as MSCCL XML: in place except an all-to-all, on one channel.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce (of rank 0).
        min_bytes, max_bytes: sizes that the executor uses it for; 0 bytes at most is not a limit.

    Raises:
        Unsupported: another kind, a plan in which ranks swap a block, or one that is too large for the
            executor.
        BadInput: a name or number that cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is not a name of an algorithm", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if min_bytes < 0 or max_bytes < 0 or 0 < max_bytes < min_bytes:
        raise BadInput(f"no size is between {min_bytes} and {max_bytes} bytes", where="min_bytes, max_bytes")
    if kind not in COLLECTIVES:
        problem = f"{kind!r} is not a collective of the format"
        raise Unsupported(problem, where="kind", remedy=f"use {', '.join(COLLECTIVES)}")
    if size < 2:
        raise BadInput(f"a group of {size} exchanges nothing", where="size", remedy="give at least two ranks")
    buffers = _buffers(plan, kind, size)
    ranks = _programs(buffers, list(_moves(plan, buffers.places)), size)
    _check_limits(buffers, ranks)
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="1"'
        f' nchunksperloop="{max(buffers.input_chunks, buffers.output_chunks)}" ngpus="{size}"'
        f' coll="{COLLECTIVES[kind]}" inplace="{int(kind != "all-to-all")}" outofplace="{int(kind == "all-to-all")}"'
        f' minBytes="{min_bytes}" maxBytes="{max_bytes}">'
    ]
    for number, rank in enumerate(ranks):
        chunks = f'i_chunks="{buffers.input_chunks}" o_chunks="{buffers.output_chunks}"'
        lines.append(f' <gpu id="{number}" {chunks} s_chunks="{buffers.scratch[number]}">')
        for block in rank.threadblocks.values():
            lines.append(f'  <tb id="{block.number}" send="{block.send}" recv="{block.receive}" chan="0">')
            for s, step in enumerate(block.steps):
                fields = " ".join(f'{key}="{value}"' for key, value in step.items())
                lines.append(f'   <step s="{s}" {fields}/>')
            lines.append("  </tb>")
        lines.append(" </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _check_limits(buffers: ChunkBuffers, ranks: Sequence[RankProgram]) -> None:
    counts = [("chunks in a buffer", max(buffers.input_chunks, buffers.output_chunks, *buffers.scratch), MOST_CHUNKS)]
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
    """Where the blocks lie.

    Results lie where the input was: an all-gather's input is the rank's share of the output, a reduce-scatter's
    output its share of the input, and reduction clobbers the input.  An all-to-all is never in place.  A reduction
    to rank 0 leaves the others' input alone.
    """
    blocks = len(plan.owner)
    nothing: tuple[Place, Sequence[int]] = (NOWHERE, ())
    if kind == "all-to-all":
        return _all_to_all(plan, size)
    if kind in ("all-gather", "reduce-scatter"):
        # The blocks are sorted by their owners.
        if (np.bincount(plan.owner, minlength=size) * size != blocks).any():
            raise Unsupported("the ranks own different numbers of blocks", where="plan")
        order = np.argsort(plan.owner, kind="stable").tolist()
        gathers = kind == "all-gather"
        places = {block: Place("o" if gathers else "i", chunk) for chunk, block in enumerate(order)}
        return ChunkBuffers(
            input_chunks=blocks // size if gathers else blocks,
            output_chunks=blocks if gathers else blocks // size,
            scratch=(0,) * size,
            places=(places,) * size,
            copied=(nothing,) * size,
        )
    homes = ["i"] * size
    if kind == "broadcast":
        homes[1:] = ["o"] * (size - 1)
    elif kind == "reduce":
        gets = set(plan.target.tolist())
        homes[1:] = ["s" if rank in gets else "i" for rank in range(1, size)]
    return ChunkBuffers(
        input_chunks=blocks,
        output_chunks=blocks,
        scratch=[blocks if home == "s" else 0 for home in homes],
        places=[{block: Place(home, block) for block in range(blocks)} for home in homes],
        copied=[(Place("s", 0), range(blocks)) if home == "s" else nothing for home in homes],
    )


def _all_to_all(plan: MessagePlan, size: int) -> ChunkBuffers:
    """Blocks from rank i to rank j: chunk j of i's input, chunk i of j's output, scratch elsewhere."""
    pairs, copies = size * size, plan.parts // size
    places: list[dict[int, Place]] = [{} for _ in range(size)]
    local: list[list[int]] = [[] for _ in range(size)]
    for block in range(pairs * copies):
        (source, target), copy = divmod(block % pairs, size), block // pairs
        places[target][block] = Place("o", source * copies + copy)
        places[source][block] = Place("i", target * copies + copy)
        if source == target:
            local[source].append(block)
    scratch = [0] * size
    for message in np.argsort(plan.step, kind="stable").tolist():
        target, first = int(plan.target[message]), int(plan.first[message])
        for block in range(first, first + int(plan.blocks[message])):
            if block not in places[target]:
                places[target][block] = Place("s", scratch[target])
                scratch[target] += 1
    return ChunkBuffers(
        input_chunks=size * copies,
        output_chunks=size * copies,
        scratch=scratch,
        places=places,
        copied=[(Place("o", rank * copies), blocks) for rank, blocks in enumerate(local)],
    )


def _moves(plan: MessagePlan, places: Places) -> Iterator[BlockMove]:
    """The messages by step, cut where their blocks are not contiguous on both sides, and for the executor."""
    for message in np.argsort(plan.step, kind="stable").tolist():
        source, target = int(plan.source[message]), int(plan.target[message])
        first, end = int(plan.first[message]), int(plan.first[message] + plan.blocks[message])
        begin = first
        for block in range(first + 1, end + 1):
            cut = block == end or block - begin == MOST_CHUNKS_A_STEP
            if cut or any(
                places[rank][block] != (places[rank][block - 1].buffer, places[rank][block - 1].chunk + 1)
                for rank in (source, target)
            ):
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

    threadblocks: dict[tuple[str, int], Threadblock] = field(default_factory=dict)
    written: dict[int, At] = field(default_factory=dict)
    read: dict[int, list[At]] = field(default_factory=dict)
    seen_at: dict[At, dict[int, int]] = field(default_factory=dict)

    def reads(self, peer: int, places: tuple[Place, Place], blocks: Sequence[int]) -> None:
        """Send the blocks to a peer."""
        at = self._add("s", peer, places, len(blocks), {self.written[b] for b in blocks if b in self.written})
        for block in blocks:
            self.read.setdefault(block, []).append(at)

    def writes(self, kind: str, peer: int, places: tuple[Place, Place], blocks: Sequence[int]) -> None:
        """Copy the blocks, or receive them from a peer (and add to those of the rank)."""
        before = {self.written[b] for b in blocks if b in self.written}
        after = before.union(*(self.read.pop(b, ()) for b in blocks))
        at = self._add(kind, peer, places, len(blocks), after)
        for block in blocks:
            self.written[block] = at

    def _add(self, kind: str, peer: int, places: tuple[Place, Place], count: int, after: Iterable[At]) -> At:
        """A step behind some others, with a step that does nothing for each further wait."""
        does = {"s": "send", "cpy": "copy"}.get(kind, "receive")
        if (does, peer) not in self.threadblocks:
            send, receive = peer if does == "send" else -1, peer if does == "receive" else -1
            self.threadblocks[does, peer] = Threadblock(len(self.threadblocks), send, receive)
        block, by_number = self.threadblocks[does, peer], list(self.threadblocks.values())
        waits = self._needed(block, after)
        for number, step in waits:
            by_number[number].steps[step]["hasdep"] = 1
            for rank, last in self.seen_at[number, step].items():
                block.seen[rank] = max(block.seen.get(rank, -1), last)
        idle = [("nop", (NOWHERE, NOWHERE), 0, wait) for wait in waits[:-1]]
        for type_, (source, target), chunks, (number, step) in [
            *idle,
            (kind, places, count, waits[-1] if waits else (-1, -1)),
        ]:
            fields = {"type": type_, "srcbuf": source.buffer, "srcoff": source.chunk, "dstbuf": target.buffer}
            fields |= {"dstoff": target.chunk, "cnt": chunks, "depid": number, "deps": step, "hasdep": 0}
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
    for rank, (to, blocks) in enumerate(buffers.copied):
        for begin in range(0, len(blocks), MOST_CHUNKS_A_STEP):
            target = Place(to.buffer, to.chunk + begin)
            source = Place("i", target.chunk)
            ranks[rank].writes("cpy", -1, (source, target), blocks[begin : begin + MOST_CHUNKS_A_STEP])
    for _, group in groupby(moves, key=lambda move: move.step):
        together = list(group)
        # Messages that overwrite what their target sends in the same step could wait for each other.
        sent = {(move.source, block) for move in together for block in move.blocks}
        for move in together:
            if any((move.target, block) in sent for block in move.blocks):
                problem = f"rank {move.target} sends and receives a block in one step ({move.step})"
                raise Unsupported(problem, where="plan")
        for move in together:
            ends = (places[move.source][move.blocks[0]], places[move.target][move.blocks[0]])
            ranks[move.source].reads(move.target, ends, move.blocks)
        for move in together:
            home = places[move.target][move.blocks[0]]
            ends = (home if move.adds else places[move.source][move.blocks[0]], home)
            ranks[move.target].writes("rrc" if move.adds else "r", move.source, ends, move.blocks)
    return ranks
