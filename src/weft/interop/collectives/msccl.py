"""MSCCL: an algorithm as XML for the executor of MSCCL (Azure/msccl-executor-nccl), from any plan.

Every rank has one threadblock for each peer and channel that it sends to, one for each that it receives from,
and one that copies.  Steps are in the order of the plan, and wait for the last write of what they read and
for the reads of what they overwrite.

No program made here deadlocks, even if a send ends only when its receive runs.  A step waits for steps of
earlier messages only: of earlier plan steps, or for an earlier message of the same plan step in the same
threadblock or into the same block.  So the first message that has not run yet can always run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, get_args

from weft.collectives.messages.blocks import MessagePlan
from weft.errors import BadInput, Unsupported
from weft.interop.collectives.msccl_buffers import (
    COLLECTIVES,
    BlockMove,
    Buffers,
    Copy,
    Place,
    buffers_of,
    instances_of,
    moves_of,
    pieces,
)

Protocol = Literal["Simple", "LL", "LL128"]

MOST_STEPS = 256
MOST_THREADBLOCKS = 128
MOST_PEERS_A_CHANNEL = 32
MOST_CHANNELS = 32
MOST_NODES = 4096
MOST_CHUNKS = 32767
"""Limits of the executor: steps of a threadblock, threadblocks of a rank (their numbers have 8 bits), peers
and channels, XML elements that a rank reads, and chunks of a buffer (16 bits)."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def write_msccl(
    plan: MessagePlan,
    kind: str,
    size: int,
    *,
    name: str,
    protocol: Protocol = "Simple",
    in_place: bool = True,
    channels: int = 1,
    instances: int = 1,
    min_bytes: int = 0,
    max_bytes: int = 0,
) -> str:
    """The plan of a collective of ``size`` ranks as MSCCL XML.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce (of rank 0).
        in_place: whether calls give one buffer for input and output; an all-to-all is always out of place.
        channels: shares that the plan's blocks are cut into, each with a channel of its own; for ``rings``
            the number of rings.
        instances: copies of the plan, each with its own channels and an equal share of the buffer.
        min_bytes, max_bytes: sizes that the executor uses it for; 0 bytes at most is no limit.

    Raises:
        Unsupported: another kind, a plan in which ranks swap a block, or one that is too large for the
            executor.
        BadInput: a name, protocol or number that cannot be used, or a malformed plan.
    """
    _check(name, protocol, min_bytes, max_bytes)
    in_place = in_place and kind != "all-to-all"
    whole = instances_of(plan, instances)
    buffers = buffers_of(whole, kind, size, in_place=in_place)
    moves = moves_of(whole, buffers, channels=channels * instances, most=MOST_CHUNKS_A_STEP)
    ranks = schedule(buffers, moves, size)
    _check_limits(buffers, ranks, channels * instances)
    head = {
        "name": name,
        "proto": protocol,
        "nchannels": channels * instances,
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


def _gpu(number: int, rank: RankProgram, buffers: Buffers) -> list[str]:
    head = {
        "id": number,
        "i_chunks": buffers.input_chunks,
        "o_chunks": buffers.output_chunks,
        "s_chunks": buffers.scratch[number],
    }
    lines = [f" <gpu {_attributes(head)}>"]
    for block in rank.by_number:
        ends = {"id": block.number, "send": block.send, "recv": block.receive, "chan": block.channel}
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


def _check(name: str, protocol: str, min_bytes: int, max_bytes: int) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is no name of an algorithm", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if protocol not in get_args(Protocol):
        known = ", ".join(get_args(Protocol))
        raise BadInput(f"{protocol!r} is no protocol", where="protocol", remedy=f"use {known}")
    if min_bytes < 0 or max_bytes < 0 or 0 < max_bytes < min_bytes:
        raise BadInput(f"no size is between {min_bytes} and {max_bytes} bytes", where="min_bytes, max_bytes")


def _check_limits(buffers: Buffers, ranks: list[RankProgram], channels: int) -> None:
    chunks = max(buffers.input_chunks, buffers.output_chunks, *buffers.scratch)
    found = [("channels", channels, MOST_CHANNELS), ("chunks in a buffer", chunks, MOST_CHUNKS)]
    for rank in ranks:
        steps = [len(block.steps) for block in rank.by_number]
        ends = Counter((block.channel, block.send >= 0, block.receive >= 0) for block in rank.by_number)
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
                remedy="use fewer ranks, channels or instances, or another algorithm",
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
    channel: int = 0
    steps: list[ThreadblockStep] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)


At = tuple[int, int]
"""A threadblock of a rank, and its step."""


@dataclass(slots=True)
class RankProgram:
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


def schedule(buffers: Buffers, moves: list[BlockMove], size: int) -> list[RankProgram]:
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
            rank.reads(rank.threadblock("send", move.target, move.channel), step, move.blocks)
        for move in together:
            rank = ranks[move.target]
            home = buffers.places[move.target][move.blocks[0]]
            step = ThreadblockStep(
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


def _copying(copy: Copy) -> ThreadblockStep:
    return ThreadblockStep(type="cpy", source=copy.source, target=copy.target, count=len(copy.blocks))


def _refuse_swaps(together: list[BlockMove]) -> None:
    """Messages that overwrite what their target sends in the same step could wait for each other."""
    sent = {(move.source, block) for move in together for block in move.blocks}
    for move in together:
        if any((move.target, block) in sent for block in move.blocks):
            raise Unsupported(f"rank {move.target} sends and receives a block in one step ({move.step})", where="plan")
