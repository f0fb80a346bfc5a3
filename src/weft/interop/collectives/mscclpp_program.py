"""What each rank of an MSCCL++ plan does, step by step, before it is cut into threadblocks.

A rank writes ("puts") into the memory of another and signals; the other waits for the signal.  A message
that is added, or that could come before its target is done with what it overwrites, goes to scratch chunks
that nothing else uses, and the target adds or copies it from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeVar

from weft.interop.collectives.msccl_buffers import Buffers, Copy, Move, Place

ChannelType = Literal["memory", "port"]
Item = TypeVar("Item")

MOST_IN_AN_OPERATION = 8
"""Channels, or sources beside the first, that one operation may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
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
    sources: tuple[Span, ...] = ()
    targets: tuple[Span, ...] = ()


NOP = Operation(name="nop")
"""Waits for all threads of the threadblock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A move, and the scratch chunk of its target that it goes to (None: straight to the block's place)."""

    move: Move
    scratch: int | None


def deliveries(moves: Iterable[Move], buffers: Buffers, scratch: list[int], domain: int) -> list[Delivery]:
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
                Span(place=Place(end.buffer, end.chunk + skip), count=count) for end in (copy.source, copy.target)
            )
            found.append(Operation(name="copy", sources=(source,), targets=(target,)))
    return [*found, NOP] if found else []


def _puts(name: str, channel: ChannelType, sent: Sequence[Delivery], buffers: Buffers) -> list[Operation]:
    """Puts of as many deliveries at once as one operation holds; all read the same buffer."""
    by_buffer: dict[str, list[tuple[Span, Span]]] = defaultdict(list)
    for one in sent:
        move, count = one.move, len(one.move.blocks)
        source = Span(place=buffers.places[move.source][move.blocks[0]], count=count)
        place = buffers.places[move.target][move.blocks[0]]
        place = place if one.scratch is None else Place("s", one.scratch)
        by_buffer[source.place.buffer].append((source, Span(place=place, count=count, peer=move.target)))
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
        home = Span(place=buffers.places[rank][blocks[0]], count=len(blocks))
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
