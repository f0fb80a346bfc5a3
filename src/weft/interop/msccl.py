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
from typing import Literal, NamedTuple

import numpy as np

from weft.collectives.messages.blocks import MessagePlan
from weft.errors import BadInput, Unsupported

MOST_STEPS = 256
MOST_THREADBLOCKS = 128
MOST_PEERS_A_CHANNEL = 32
MOST_NODES = 4096
MOST_CHUNKS = 32767
"""Limits of the executor: steps of a threadblock, threadblocks of a rank (their numbers have 8 bits), peers
of a channel, XML elements that a rank reads, and chunks of a buffer (16 bits)."""

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

Buffer = Literal["i", "o", "s"]


class Place(NamedTuple):
    """A chunk of a rank's input (i), output (o) or scratch (s) buffer."""

    buffer: Buffer
    chunk: int


class Copy(NamedTuple):
    """``count`` chunks that a rank copies; ``blocks`` are those that they hold."""

    source: Place
    target: Place
    blocks: range


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkBuffers:
    """Places of the blocks of each rank, and what it copies before the first message.

    ``places[rank]`` maps blocks to places.  Chunk counts are those of input, output and (per rank) scratch.
    """

    input_chunks: int
    output_chunks: int
    scratch: tuple[int, ...]
    places: tuple[dict[int, Place], ...]
    before: tuple[tuple[Copy, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMove:
    """``blocks`` that ``source`` sends to ``target`` in a step; contiguous in the buffers of both."""

    step: int
    source: int
    target: int
    adds: bool
    blocks: range


def write_msccl(plan: MessagePlan, kind: str, size: int, *, name: str, min_bytes: int = 0, max_bytes: int = 0) -> str:
    """The plan of a collective of ``size`` ranks as MSCCL XML: in place but for an all-to-all, on one channel.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce (of rank 0).
        min_bytes, max_bytes: sizes that the executor uses it for; 0 bytes at most is no limit.

    Raises:
        Unsupported: another kind, a plan in which ranks swap a block, or one that is too large for the
            executor.
        BadInput: a name or number that cannot be used, or a malformed plan.
    """
    _check(name, min_bytes, max_bytes)
    in_place = kind != "all-to-all"
    buffers = buffers_of(plan, kind, size)
    moves = moves_of(plan, buffers, most=MOST_CHUNKS_A_STEP)
    ranks = schedule(buffers, moves, size)
    _check_limits(buffers, ranks)
    head = {
        "name": name,
        "proto": "Simple",
        "nchannels": 1,
        "nchunksperloop": max(buffers.input_chunks, buffers.output_chunks),
        "ngpus": size,
        "coll": COLLECTIVES[kind],
        "inplace": int(in_place),
        "outofplace": int(not in_place),
        "minBytes": min_bytes,
        "maxBytes": max_bytes,
    }
    lines = [f"<algo {_attributes(head)}>"]
    for number, rank in enumerate(ranks):
        lines += _gpu(number, rank, buffers)
    return "\n".join([*lines, "</algo>", ""])


def _gpu(number: int, rank: RankProgram, buffers: ChunkBuffers) -> list[str]:
    head = {
        "id": number,
        "i_chunks": buffers.input_chunks,
        "o_chunks": buffers.output_chunks,
        "s_chunks": buffers.scratch[number],
    }
    lines = [f" <gpu {_attributes(head)}>"]
    for block in rank.by_number:
        ends = {"id": block.number, "send": block.send, "recv": block.receive, "chan": 0}
        lines.append(f"  <tb {_attributes(ends)}>")
        lines += [f"   <step {_attributes(_fields(s, step))}/>" for s, step in enumerate(block.steps)]
        lines.append("  </tb>")
    return [*lines, " </gpu>"]


def _fields(number: int, step: ThreadblockStep) -> dict[str, object]:
    depid, deps = step.waits or (-1, -1)
    return {
        "s": number,
        "type": step.type,
        "srcbuf": step.source.buffer,
        "srcoff": step.source.chunk,
        "dstbuf": step.target.buffer,
        "dstoff": step.target.chunk,
        "cnt": step.count,
        "depid": depid,
        "deps": deps,
        "hasdep": int(step.awaited),
    }


def _attributes(values: Mapping[str, object]) -> str:
    return " ".join(f'{key}="{value}"' for key, value in values.items())


def _check(name: str, min_bytes: int, max_bytes: int) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is no name of an algorithm", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if min_bytes < 0 or max_bytes < 0 or 0 < max_bytes < min_bytes:
        raise BadInput(f"no size is between {min_bytes} and {max_bytes} bytes", where="min_bytes, max_bytes")


def _check_limits(buffers: ChunkBuffers, ranks: list[RankProgram]) -> None:
    chunks = max(buffers.input_chunks, buffers.output_chunks, *buffers.scratch)
    found = [("chunks in a buffer", chunks, MOST_CHUNKS)]
    for rank in ranks:
        steps = [len(block.steps) for block in rank.by_number]
        ends = Counter((block.send >= 0, block.receive >= 0) for block in rank.by_number)
        found += [
            ("steps in a threadblock", max(steps, default=0), MOST_STEPS),
            ("threadblocks on a rank", len(steps), MOST_THREADBLOCKS),
            ("peers on a channel", max(ends.values(), default=0), MOST_PEERS_A_CHANNEL),
            ("XML elements for a rank", sum(steps) + len(steps) + len(ranks) + 1, MOST_NODES),
        ]
    for what, count, most in found:
        if count > most:
            raise Unsupported(
                f"needs {count} {what}; the executor has {most}",
                where="MSCCL",
                remedy="use fewer ranks, or another algorithm",
            )


MOST_CHUNKS_A_STEP = 71
"""Limit of the executor."""
NOWHERE = Place("o", -1)


@dataclass(slots=True, kw_only=True)
class ThreadblockStep:
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
    steps: list[ThreadblockStep] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)


At = tuple[int, int]
"""A threadblock of a rank, and its step."""


@dataclass(slots=True)
class RankProgram:
    """A rank's threadblocks, with the last write of each block and the reads since."""

    threadblocks: dict[tuple[str, int], Threadblock] = field(default_factory=dict)
    by_number: list[Threadblock] = field(default_factory=list)
    written: dict[int, At] = field(default_factory=dict)
    read: dict[int, list[At]] = field(default_factory=dict)
    seen_at: dict[At, dict[int, int]] = field(default_factory=dict)

    def threadblock(self, does: str, peer: int = -1) -> Threadblock:
        key = (does, peer)
        if key not in self.threadblocks:
            made = Threadblock(number=len(self.by_number))
            made.send = peer if does == "send" else -1
            made.receive = peer if does == "receive" else -1
            self.threadblocks[key] = made
            self.by_number.append(made)
        return self.threadblocks[key]

    def reads(self, threadblock: Threadblock, step: ThreadblockStep, blocks: range) -> None:
        """Add a step that reads the blocks."""
        at = self._add(threadblock, step, {self.written[b] for b in blocks if b in self.written})
        for block in blocks:
            self.read.setdefault(block, []).append(at)

    def writes(self, threadblock: Threadblock, step: ThreadblockStep, blocks: range) -> None:
        """Add a step that writes the blocks, or adds to them."""
        before = {self.written[b] for b in blocks if b in self.written}
        at = self._add(threadblock, step, before.union(*(self.read.pop(b, ()) for b in blocks)))
        for block in blocks:
            self.written[block] = at

    def _add(self, threadblock: Threadblock, step: ThreadblockStep, after: Iterable[At]) -> At:
        waits = self._needed(threadblock, after)
        for wait in waits:
            self.by_number[wait[0]].steps[wait[1]].awaited = True
            for other, last in self.seen_at[wait].items():
                threadblock.seen[other] = max(threadblock.seen.get(other, -1), last)
        threadblock.steps += [ThreadblockStep(type="nop", waits=wait) for wait in waits[:-1]]
        step.waits = waits[-1] if waits else None
        at = (threadblock.number, len(threadblock.steps))
        threadblock.steps.append(step)
        threadblock.seen[threadblock.number] = at[1]
        self.seen_at[at] = dict(threadblock.seen)
        return at

    def _needed(self, threadblock: Threadblock, after: Iterable[At]) -> list[At]:
        """The waits that nothing else implies, at most one for each threadblock."""
        last: dict[int, int] = {}
        for other, step in after:
            if threadblock.seen.get(other, -1) < step:
                last[other] = max(last.get(other, -1), step)
        return [
            wait
            for wait in last.items()
            if not any(self.seen_at[at].get(wait[0], -1) >= wait[1] for at in last.items() if at != wait)
        ]


def schedule(buffers: ChunkBuffers, moves: list[BlockMove], size: int) -> list[RankProgram]:
    """The threadblocks of each rank; ``moves`` are in the order of their steps.

    Raises:
        Unsupported: a rank sends and receives a block in one step.
    """
    ranks = [RankProgram() for _ in range(size)]
    for rank, copies in zip(ranks, buffers.before, strict=True):
        for copy in pieces(copies, MOST_CHUNKS_A_STEP):
            rank.writes(rank.threadblock("copy"), _copying(copy), copy.blocks)
    for _, group in groupby(moves, key=lambda move: move.step):
        together = list(group)
        _refuse_swaps(together)
        for move in together:
            rank = ranks[move.source]
            step = ThreadblockStep(
                type="s",
                source=buffers.places[move.source][move.blocks[0]],
                target=buffers.places[move.target][move.blocks[0]],
                count=len(move.blocks),
            )
            rank.reads(rank.threadblock("send", move.target), step, move.blocks)
        for move in together:
            rank = ranks[move.target]
            home = buffers.places[move.target][move.blocks[0]]
            step = ThreadblockStep(
                type="rrc" if move.adds else "r",
                source=home if move.adds else buffers.places[move.source][move.blocks[0]],
                target=home,
                count=len(move.blocks),
            )
            rank.writes(rank.threadblock("receive", move.source), step, move.blocks)
    return ranks


def _copying(copy: Copy) -> ThreadblockStep:
    return ThreadblockStep(type="cpy", source=copy.source, target=copy.target, count=len(copy.blocks))


def _refuse_swaps(together: list[BlockMove]) -> None:
    """Messages that overwrite what their target sends in the same step could wait for each other."""
    sent = {(move.source, block) for move in together for block in move.blocks}
    for move in together:
        if any((move.target, block) in sent for block in move.blocks):
            raise Unsupported(f"rank {move.target} sends and receives a block in one step ({move.step})", where="plan")


def buffers_of(plan: MessagePlan, kind: str, size: int) -> ChunkBuffers:
    """Where the blocks lie.

    Results lie where the input was: an all-gather's input is the rank's share of the output, a reduce-scatter's
    output its share of the input, and reduction clobbers the input.  An all-to-all is never in place.  A reduction
    to rank 0 leaves the others' input alone.

    Raises:
        Unsupported: a kind that the format cannot hold, or owners with different numbers of blocks.
        BadInput: fewer than two ranks, or a message with ranks or blocks outside of the plan.
    """
    _check_plan(plan, kind, size)
    blocks = len(plan.owner)
    if kind == "all-to-all":
        return _all_to_all(plan, size)
    if kind in ("all-gather", "reduce-scatter"):
        return _shares(plan, kind, size)
    homes: list[Buffer] = ["i"] * size
    before: list[tuple[Copy, ...]] = [()] * size
    if kind == "broadcast":
        homes = ["i", *["o"] * (size - 1)]  # type: ignore[list-item]
    elif kind == "reduce":
        gets = set(plan.target.tolist())
        homes[1:] = ["s" if rank in gets else "i" for rank in range(1, size)]
        before = [(_whole("i", home, blocks),) if home != "i" else () for home in homes]
    return ChunkBuffers(
        input_chunks=blocks,
        output_chunks=blocks,
        scratch=tuple(blocks if home == "s" else 0 for home in homes),
        places=tuple({block: Place(home, block) for block in range(blocks)} for home in homes),
        before=tuple(before),
    )


def moves_of(plan: MessagePlan, buffers: ChunkBuffers, *, most: int) -> list[BlockMove]:
    """The plan's messages by step, cut where their blocks are not contiguous on both sides, of ``most`` at most."""
    found: list[BlockMove] = []
    for message in np.argsort(plan.step, kind="stable").tolist():
        source, target = int(plan.source[message]), int(plan.target[message])
        first, count = int(plan.first[message]), int(plan.blocks[message])
        places = (buffers.places[source], buffers.places[target])
        found.extend(
            BlockMove(
                step=int(plan.step[message]), source=source, target=target, adds=bool(plan.adds[message]), blocks=run
            )
            for run in _runs(range(first, first + count), places, most)
        )
    return found


def pieces(copies: Iterable[Copy], most: int) -> Iterator[Copy]:
    """The same copies, of at most ``most`` blocks each."""
    for copy in copies:
        for begin in range(0, len(copy.blocks), most):
            yield Copy(
                Place(copy.source.buffer, copy.source.chunk + begin),
                Place(copy.target.buffer, copy.target.chunk + begin),
                copy.blocks[begin : begin + most],
            )


def _check_plan(plan: MessagePlan, kind: str, size: int) -> None:
    if kind not in COLLECTIVES:
        raise Unsupported(
            f"{kind!r} is no collective of the format", where="kind", remedy=f"use {', '.join(COLLECTIVES)}"
        )
    if size < 2:
        raise BadInput(f"a group of {size} exchanges nothing", where="size", remedy="give at least two ranks")
    ends = plan.first + plan.blocks
    ranks = (plan.source, plan.target)
    if any(((each < 0) | (each >= size)).any() for each in ranks) or (plan.source == plan.target).any():
        raise BadInput(f"has a message from or to a rank outside of 0 .. {size - 1}, or to itself", where="plan")
    if (plan.first < 0).any() or (plan.blocks < 1).any() or (ends > len(plan.owner)).any():
        raise BadInput("has a message without blocks, or with blocks that do not exist", where="plan")
    if kind == "all-to-all" and len(plan.owner) != plan.parts * size:
        raise BadInput("is no all-to-all: every rank must have as many blocks as the others", where="plan")


def _whole(source: Buffer, target: Buffer, blocks: int) -> Copy:
    return Copy(Place(source, 0), Place(target, 0), range(blocks))


def _shares(plan: MessagePlan, kind: str, size: int) -> ChunkBuffers:
    """All-gather and reduce-scatter: the blocks sorted by their owners."""
    blocks = len(plan.owner)
    if (np.bincount(plan.owner, minlength=size) * size != blocks).any():
        raise Unsupported("the ranks own different numbers of blocks", where="plan")
    number = np.empty(blocks, dtype=np.int64)
    number[np.argsort(plan.owner, kind="stable")] = np.arange(blocks)
    gathers = kind == "all-gather"
    home: Buffer = "o" if gathers else "i"
    return ChunkBuffers(
        input_chunks=blocks // size if gathers else blocks,
        output_chunks=blocks if gathers else blocks // size,
        scratch=(0,) * size,
        places=({block: Place(home, int(number[block])) for block in range(blocks)},) * size,
        before=((),) * size,
    )


def _all_to_all(plan: MessagePlan, size: int) -> ChunkBuffers:
    """Blocks from rank i to rank j: chunk j of i's input, chunk i of j's output, scratch elsewhere."""
    pairs, copies = size * size, plan.parts // size
    places: list[dict[int, Place]] = [{} for _ in range(size)]
    before: list[tuple[Copy, ...]] = [()] * size
    for block in range(pairs * copies):
        (source, target), copy = divmod(block % pairs, size), block // pairs
        places[target][block] = Place("o", source * copies + copy)
        places[source][block] = Place("i", target * copies + copy)
        if source == target:
            place = places[source][block]
            before[source] += (Copy(place, Place("o", place.chunk), range(block, block + 1)),)
    scratch = [0] * size
    for message in np.argsort(plan.step, kind="stable").tolist():
        target, first = int(plan.target[message]), int(plan.first[message])
        for block in range(first, first + int(plan.blocks[message])):
            if block not in places[target]:
                places[target][block] = Place("s", scratch[target])
                scratch[target] += 1
    if (plan.source < 0).any() or not _held(plan, places):
        raise BadInput("has a rank that sends a block which never reached it", where="plan")
    return ChunkBuffers(
        input_chunks=size * copies,
        output_chunks=size * copies,
        scratch=tuple(scratch),
        places=tuple(places),
        before=tuple(before),
    )


def _held(plan: MessagePlan, places: Sequence[dict[int, Place]]) -> bool:
    return all(
        block in places[source]
        for source, first, count in zip(plan.source.tolist(), plan.first.tolist(), plan.blocks.tolist(), strict=True)
        for block in range(first, first + count)
    )


def _runs(blocks: range, places: tuple[dict[int, Place], dict[int, Place]], most: int) -> Iterator[range]:
    """Blocks that are contiguous in both places."""
    begin = blocks.start
    for block in range(blocks.start + 1, blocks.stop + 1):
        ends = block == blocks.stop or block - begin == most
        if ends or not all(_next(of, block) for of in places):
            yield range(begin, block)
            begin = block


def _next(places: dict[int, Place], block: int) -> bool:
    before, place = places[block - 1], places[block]
    return before.buffer == place.buffer and before.chunk + 1 == place.chunk
