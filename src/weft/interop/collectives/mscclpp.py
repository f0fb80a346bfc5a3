"""MSCCL++: an algorithm as a JSON execution plan (microsoft/mscclpp), from any plan.

Each share of the blocks is one program a rank.  The executor runs 64 operations a threadblock, so a program
is cut, at the same steps on all ranks, into threadblocks that follow each other through semaphores.  Every
threadblock has its own channel to each peer, over which it first says that it has begun: nobody writes into
the memory of a rank that still runs the collective before.

A rank writes ("puts") into the memory of another and signals; the other waits for the signal.  A message
that is added, or that could come before its target is done with what it overwrites, goes to scratch chunks
that nothing else uses, and the target adds or copies it from there.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, TypeVar, get_args

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
)

ChannelType = Literal["memory", "port"]
Item = TypeVar("Item")

MOST_IN_AN_OPERATION = 8
"""Channels, or sources beside the first, that one operation may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpan:
    """``count`` chunks from ``place`` on, of this rank or of ``peer``."""

    place: Place
    count: int
    peer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the executor, by its name there; ``peers`` are those of its channels."""

    name: str
    channel: ChannelType | None = None
    peers: tuple[int, ...] = ()
    sources: tuple[ChunkSpan, ...] = ()
    targets: tuple[ChunkSpan, ...] = ()


NOP = Operation(name="nop")
"""Waits for all threads of the threadblock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A move, and the scratch chunk of its target that it goes to (None: straight to the block's place)."""

    move: BlockMove
    scratch: int | None


def deliveries(moves: Iterable[BlockMove], buffers: Buffers, scratch: list[int], domain: int) -> list[Delivery]:
    """Where the moves of one channel go, in the order of their steps; adds to the ``scratch`` chunks in use.

    ``domain`` is the number of ranks that reach each other's memory.  A move that does not add goes straight
    to its place if what was there is known to be no longer used.  What a rank knows of another is the phase
    that this has certainly reached: 2s after its sends of step s, 2s + 1 after its receives, -1 once it has
    copied its input, -2 once it has begun.  A signal over a port channel says nothing of what its sender puts
    to others in the same step.
    """
    size = len(buffers.places)
    known = [[-2] * size for _ in range(size)]
    used: list[dict[int, int]] = [{block: -1 for copy in copies for block in copy.blocks} for copies in buffers.before]
    found = []
    for step, group in groupby(moves, key=lambda move: move.step):
        together = list(group)
        for move in together:
            used[move.source] |= dict.fromkeys(move.blocks, 2 * step)
        told = {move.source: tuple(known[move.source]) for move in together}
        ends = {source: {move.target for move in together if move.source == source} for source in told}
        for move in together:
            latest = max(used[move.target].get(block, -2) for block in move.blocks)
            direct = not move.adds and latest <= told[move.source][move.target]
            found.append(Delivery(move=move, scratch=None if direct else scratch[move.target]))
            scratch[move.target] += 0 if direct else len(move.blocks)
        for move in together:
            used[move.target] |= dict.fromkeys(move.blocks, 2 * step + 1)
            mine, theirs = known[move.target], told[move.source]
            alone = move.source // domain == move.target // domain or len(ends[move.source]) == 1
            reached = 2 * step if alone else 2 * step - 1
            known[move.target] = [max(pair) for pair in zip(mine, theirs, strict=True)]
            known[move.target][move.source] = max(known[move.target][move.source], reached)
    return found


def step_operations(rank: int, together: Sequence[Delivery], buffers: Buffers, domain: int) -> list[Operation]:
    """What a rank does in a step: put and signal, wait, then add and copy what came to its scratch."""
    sent = [one for one in together if one.move.source == rank]
    received = [one for one in together if one.move.target == rank]
    near = [one for one in sent if one.move.target // domain == rank // domain]
    far = [one for one in sent if one.move.target // domain != rank // domain]
    operations = _puts("put", "memory", near, buffers)
    last = {one.move.target: one for one in far}
    operations += _puts("put", "port", [one for one in far if last[one.move.target] is not one], buffers)
    operations += _puts("pwsf", "port", list(last.values()), buffers)
    if near:
        operations += [NOP, *calls("signal", rank, {one.move.target for one in near}, domain)]
    if received:
        operations += [*calls("wait", rank, {one.move.source for one in received}, domain), NOP]
    return operations + _from_scratch(rank, received, buffers)


def calls(name: str, rank: int, peers: Iterable[int], domain: int) -> list[Operation]:
    """Signals to peers, or waits for theirs, on the channels that join them."""
    kinds: dict[ChannelType, list[int]] = {"memory": [], "port": []}
    for peer in sorted(peers):
        kinds["memory" if peer // domain == rank // domain else "port"].append(peer)
    return [
        Operation(name=name, channel=channel, peers=some)
        for channel, all_peers in kinds.items()
        for some in _few(all_peers)
    ]


def copy_operations(copies: Iterable[Copy], blocks: range) -> list[Operation]:
    """The copies of those blocks within the rank."""
    found = []
    for copy in copies:
        start = max(copy.blocks.start, blocks.start)
        count = min(copy.blocks.stop, blocks.stop) - start
        skip = start - copy.blocks.start
        if count > 0:
            source, target = (
                ChunkSpan(place=Place(end.buffer, end.chunk + skip), count=count) for end in (copy.source, copy.target)
            )
            found.append(Operation(name="copy", sources=(source,), targets=(target,)))
    return [*found, NOP] if found else []


def _puts(name: str, channel: ChannelType, sent: Sequence[Delivery], buffers: Buffers) -> list[Operation]:
    """Puts of as many deliveries at once as one operation holds; all read the same buffer."""
    by_buffer: dict[str, list[tuple[ChunkSpan, ChunkSpan]]] = defaultdict(list)
    for one in sent:
        move, count = one.move, len(one.move.blocks)
        source = ChunkSpan(place=buffers.places[move.source][move.blocks[0]], count=count)
        place = buffers.places[move.target][move.blocks[0]]
        place = place if one.scratch is None else Place("s", one.scratch)
        by_buffer[source.place.buffer].append((source, ChunkSpan(place=place, count=count, peer=move.target)))
    return [
        Operation(
            name=name,
            channel=channel,
            peers=tuple(target.peer for _, target in some if target.peer is not None),
            sources=tuple(source for source, _ in some),
            targets=tuple(target for _, target in some),
        )
        for pairs in by_buffer.values()
        for some in _few(pairs)
    ]


def _from_scratch(rank: int, received: Sequence[Delivery], buffers: Buffers) -> list[Operation]:
    """Adds and copies; a barrier of the threads lies between two that write the same blocks."""
    found: list[Operation] = []
    written: set[int] = set()
    indirect = [one for one in received if one.scratch is not None]
    for (blocks, adds), group in groupby(
        sorted(indirect, key=lambda one: (one.move.blocks.start, one.move.blocks.stop, one.move.adds)),
        key=lambda one: (one.move.blocks, one.move.adds),
    ):
        home = ChunkSpan(place=buffers.places[rank][blocks[0]], count=len(blocks))
        slots = [replace(home, place=Place("s", one.scratch or 0)) for one in group]
        for some in _few(slots):
            found += [NOP] if not written.isdisjoint(blocks) else []
            written = written | set(blocks)
            sources = (home, *some) if adds else some
            found.append(Operation(name="re" if adds else "copy", sources=sources, targets=(home,)))
    return [*found, NOP] if found else []


def _few(items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    """The items in lots that one operation holds."""
    for begin in range(0, len(items), MOST_IN_AN_OPERATION):
        yield tuple(items[begin : begin + MOST_IN_AN_OPERATION])


MOST_OPERATIONS = 64
MOST_CHANNELS = 16
MOST_SEMAPHORES = 16
"""Limits of the executor: operations of a threadblock, its channels and remote buffers of one type, and
semaphores of a rank."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_TYPES: tuple[ChannelType, ...] = get_args(ChannelType)


def write_mscclpp(
    plan: MessagePlan,
    kind: str,
    size: int,
    *,
    name: str,
    in_place: bool = True,
    channels: int = 1,
    instances: int = 1,
    domain: int | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
) -> str:
    """The plan of a collective of ``size`` ranks as an MSCCL++ execution plan.

    Args:
        kind: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce (of rank 0).
        in_place: whether calls give one buffer for input and output; an all-to-all is always out of place.
        channels: shares that the plan's blocks are cut into, each with threadblocks of its own; for
            ``rings`` the number of rings.
        instances: copies of the plan, each with threadblocks of its own and an equal share of the buffer.
        domain: ranks that reach each other's memory (by memory channels; port channels join the others); all
            of them by default.
        min_bytes, max_bytes: sizes that the executor uses it for.

    Raises:
        Unsupported: another kind, or a plan that is too large for the executor.
        BadInput: a name or number that cannot be used, or a malformed plan.
    """
    _check(name, domain, min_bytes, max_bytes)
    in_place = in_place and kind != "all-to-all"
    whole = instances_of(plan, instances)
    buffers = buffers_of(whole, kind, size, in_place=in_place)
    scratch = list(buffers.scratch)
    threadblocks = _threadblocks(whole, buffers, channels * instances, scratch, domain or size)
    values: dict[str, Any] = {
        "name": name,
        "collective": COLLECTIVES[kind],
        "protocol": "Simple",
        "inplace": in_place,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "num_threads_per_block": 1024,
        "min_message_size": min_bytes,
    }
    if max_bytes is not None:
        values["max_message_size"] = max_bytes
    values["gpus"] = [
        {
            "id": rank,
            "input_chunks": buffers.input_chunks,
            "output_chunks": buffers.output_chunks,
            "scratch_chunks": scratch[rank],
            **_gpu(threadblocks[rank]),
        }
        for rank in range(size)
    ]
    return json.dumps(values, indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Threadblock:
    """One threadblock: what it says and hears first, and its part of the program of a share of the blocks."""

    share: int
    greeting: list[Operation]
    program: list[Operation]

    @property
    def operations(self) -> list[Operation]:
        return self.greeting + self.program

    def peers(self, channel: ChannelType) -> list[int]:
        """Those that its channels of a type lead to."""
        return sorted({peer for op in self.operations if op.channel == channel for peer in op.peers})

    def remote(self, channel: ChannelType) -> list[tuple[int, str]]:
        """Buffers of others that it writes to over channels of a type."""
        spans = [span for op in self.program if op.channel == channel for span in op.targets]
        return sorted({(span.peer, span.place.buffer) for span in spans if span.peer is not None})

    def fits(self) -> bool:
        counts = [len(of(channel)) for channel in _TYPES for of in (self.peers, self.remote)]
        return len(self.operations) + _SEQUEL <= MOST_OPERATIONS and max(counts) <= MOST_CHANNELS


_Programs = list[list[Operation]]
"""Operations of each rank in one step."""
_SEQUEL = 4
"""Operations that join a threadblock to those before and behind it."""


def _threadblocks(
    plan: MessagePlan, buffers: Buffers, shares: int, scratch: list[int], domain: int
) -> list[list[_Threadblock]]:
    """The threadblocks of each rank; adds to the chunks of ``scratch`` in use."""
    ranks = range(len(buffers.places))
    moves = moves_of(plan, buffers, channels=shares, most=len(plan.owner))
    found: list[list[_Threadblock]] = [[] for _ in ranks]
    for share in range(shares):
        blocks = range(share * len(plan.owner) // shares, (share + 1) * len(plan.owner) // shares)
        steps = [[copy_operations(copies, blocks) for copies in buffers.before]]
        delivered = deliveries([m for m in moves if m.channel == share], buffers, scratch, domain)
        for _, group in groupby(delivered, key=lambda one: one.move.step):
            together = list(group)
            steps.append([step_operations(rank, together, buffers, domain) for rank in ranks])
        steps.append([copy_operations(copies, blocks) for copies in buffers.after])
        for segment in _segments(steps, share, domain):
            for rank in ranks:
                found[rank] += [segment[rank]] if segment[rank].operations else []
    return found


def _segments(steps: list[_Programs], share: int, domain: int) -> list[list[_Threadblock]]:
    """Steps joined to threadblocks, as many as fit on all ranks.

    Raises:
        Unsupported: a single step does not fit.
    """
    found: list[list[_Threadblock]] = []
    begin = 0
    for end in range(1, len(steps) + 1):
        joined = _joined(steps[begin:end], share, domain)
        if end - begin > 1 and all(one.fits() for one in joined):
            found[-1] = joined
            continue
        begin = end - 1
        found.append(_joined(steps[begin:end], share, domain))
        if not all(one.fits() for one in found[-1]):
            raise Unsupported(
                "a step needs more operations or peers than a threadblock of the executor has",
                where="MSCCL++",
                remedy="use fewer ranks, or an algorithm with fewer peers a step",
            )
    return found


def _joined(steps: list[_Programs], share: int, domain: int) -> list[_Threadblock]:
    """Threadblocks for some steps: they signal to all who will write here, and wait for their targets."""
    programs = [[op for step in steps for op in step[rank]] for rank in range(len(steps[0]))]
    targets = [{span.peer for op in program for span in op.targets if span.peer is not None} for program in programs]
    found = []
    for rank, program in enumerate(programs):
        writers = [other for other, written in enumerate(targets) if rank in written]
        waits = calls("wait", rank, targets[rank], domain)
        greeting = [*calls("signal", rank, writers, domain), *waits, *([NOP] if waits else [])]
        found.append(_Threadblock(share=share, greeting=greeting, program=program))
    return found


def _gpu(threadblocks: list[_Threadblock]) -> dict[str, Any]:
    """The threadblocks of a rank with their channels, remote buffers and semaphores."""
    follows = [i for i in range(1, len(threadblocks)) if threadblocks[i - 1].share == threadblocks[i].share]
    if len(follows) > MOST_SEMAPHORES:
        raise Unsupported(
            f"needs {len(follows)} semaphores on a rank; the executor has {MOST_SEMAPHORES}",
            where="MSCCL++",
            remedy="use fewer ranks, channels or instances, or an algorithm with fewer steps",
        )
    ends = sorted({(c, *end) for one in threadblocks for c in _TYPES for end in one.remote(c)})
    connected: dict[ChannelType, list[int]] = {"memory": [], "port": []}
    written = []
    for number, one in enumerate(threadblocks):
        own = [(c, range(len(connected[c]), len(connected[c]) + len(one.peers(c)))) for c in _TYPES]
        refs = [(c, [ends.index((c, *end)) for end in one.remote(c)]) for c in _TYPES]
        written.append(
            {
                "id": number,
                "ops": _operations(number, one, follows),
                "channels": [{"channel_type": c, "channel_ids": list(ids)} for c, ids in own if ids],
                "remote_buffer_refs": [{"access_channel_type": c, "remote_buffer_ids": ids} for c, ids in refs if ids],
            }
        )
        for c in _TYPES:
            connected[c] += one.peers(c)
    return {
        "threadblocks": written,
        "channels": [{"channel_type": c, "connected_to": connected[c]} for c in _TYPES if connected[c]],
        "remote_buffers": [{"rank": peer, "type": buffer, "access_channel_types": [c]} for c, peer, buffer in ends],
        "semaphores": [{"init_value": 0} for _ in follows],
    }


def _operations(number: int, one: _Threadblock, follows: list[int]) -> list[dict[str, Any]]:
    """All operations of a threadblock, with the wait for the one before and the release of the next."""
    nop = {"name": "nop"}
    found = [_written(op, one) for op in one.greeting]
    if number in follows:
        found += [{"name": "sem_acquire", "semaphore_ids": [follows.index(number)]}, nop]
    found += [_written(op, one) for op in one.program]
    if number + 1 in follows:
        found += [nop, {"name": "sem_release", "semaphore_ids": [follows.index(number + 1)]}]
    return found


def _written(op: Operation, one: _Threadblock) -> dict[str, Any]:
    values: dict[str, Any] = {"name": op.name}
    if op.sources:
        values["src_buff"] = [_span(span, op, one) for span in op.sources]
        values["dst_buff"] = [_span(span, op, one) for span in op.targets]
    if op.channel is not None:
        peers = one.peers(op.channel)
        values["channel_ids"] = [peers.index(peer) for peer in op.peers]
        values["channel_type"] = op.channel
    return values


def _span(span: ChunkSpan, op: Operation, one: _Threadblock) -> dict[str, Any]:
    where: dict[str, Any] = {"type": span.place.buffer}
    if span.peer is not None and op.channel is not None:
        where = {"buffer_id": one.remote(op.channel).index((span.peer, span.place.buffer))}
    return {**where, "index": span.place.chunk, "size": span.count}


def _check(name: str, domain: int | None, min_bytes: int, max_bytes: int | None) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:40]!r} is no name of a plan", where="name", remedy="use A-Z a-z 0-9 _ . -")
    if domain is not None and domain < 1:
        raise BadInput(f"{domain} ranks are no domain", where="domain")
    if min_bytes < 0 or (max_bytes is not None and max_bytes < min_bytes):
        raise BadInput(f"no size is between {min_bytes} and {max_bytes} bytes", where="min_bytes, max_bytes")
