"""Where the blocks of a plan lie in the input, output and scratch buffers of MSCCL.

The format cuts every buffer into equal chunks.  Each rank keeps a block in one place from the first message
to the last; blocks of a gathered or scattered buffer are renumbered so that those of a rank are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from weft.collectives.messages.blocks import MessagePlan, beside
from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Ints

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
class Buffers:
    """Places of the blocks of each rank, and what it copies before the first and after the last message.

    ``places[rank]`` maps blocks to places.  Chunk counts are those of input, output and (per rank) scratch.
    """

    input_chunks: int
    output_chunks: int
    scratch: tuple[int, ...]
    places: tuple[dict[int, Place], ...]
    before: tuple[tuple[Copy, ...], ...]
    after: tuple[tuple[Copy, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMove:
    """``blocks`` that ``source`` sends to ``target`` in a step; contiguous in the buffers of both."""

    step: int
    source: int
    target: int
    adds: bool
    channel: int
    blocks: range


def instances_of(plan: MessagePlan, count: int) -> MessagePlan:
    """``count`` copies of the plan beside each other, each for an equal share of the buffer."""
    if count < 1:
        raise BadInput(f"{count} instances are out of range", where="instances")
    ranks = np.arange(int(max(plan.source.max(initial=0), plan.target.max(initial=0))) + 1)
    blocks = len(plan.owner)
    shifted = [plan.moved(ranks, shift=i * blocks) for i in range(count)]
    return beside(shifted, parts=count * plan.parts, owner=np.tile(plan.owner, count))


def buffers_of(plan: MessagePlan, kind: str, size: int, *, in_place: bool) -> Buffers:
    """Where the blocks lie.

    In place, results lie where the input was: an all-gather's input is the rank's share of the output, a
    reduce-scatter's output its share of the input, and reduction clobbers the input.  Otherwise the input
    stays as it was.  An all-to-all is never in place.  A reduction to rank 0 leaves the others' input alone.

    Raises:
        Unsupported: a kind that the format cannot hold, or owners with different numbers of blocks.
        BadInput: fewer than two ranks, or a message with ranks or blocks outside of the plan.
    """
    _check(plan, kind, size)
    blocks = len(plan.owner)
    if kind == "all-to-all":
        return _all_to_all(plan, size)
    if kind in ("all-gather", "reduce-scatter"):
        return _shares(plan, kind, size, in_place)
    homes: list[Buffer] = ["i" if in_place else "o"] * size
    before: list[tuple[Copy, ...]] = [()] * size
    after: list[tuple[Copy, ...]] = [()] * size
    if kind == "broadcast":
        homes = ["i", *["o"] * (size - 1)]  # type: ignore[list-item]
        after[0] = () if in_place else (_whole("i", "o", blocks),)
    elif kind == "reduce":
        gets = set(plan.target.tolist())
        homes[1:] = ["s" if rank in gets else "i" for rank in range(1, size)]
        before = [(_whole("i", home, blocks),) if home != "i" else () for home in homes]
    elif not in_place:
        before = [(_whole("i", "o", blocks),)] * size
    return Buffers(
        input_chunks=blocks,
        output_chunks=blocks,
        scratch=tuple(blocks if home == "s" else 0 for home in homes),
        places=tuple({block: Place(home, block) for block in range(blocks)} for home in homes),
        before=tuple(before),
        after=tuple(after),
    )


def moves_of(plan: MessagePlan, buffers: Buffers, *, channels: int, most: int) -> list[BlockMove]:
    """The plan's messages by step, cut where their blocks are not contiguous on both sides.

    The blocks are cut into ``channels`` equal shares, in order; a move has at most ``most`` blocks.

    Raises:
        BadInput: the channels do not divide the blocks.
    """
    if channels < 1 or len(plan.owner) % channels:
        raise BadInput(
            f"{channels} channels do not divide the {len(plan.owner)} blocks of the plan",
            where="channels",
            remedy="use a divisor, or more instances",
        )
    share = len(plan.owner) // channels
    found: list[BlockMove] = []
    for message in np.argsort(plan.step, kind="stable").tolist():
        source, target = int(plan.source[message]), int(plan.target[message])
        first, count = int(plan.first[message]), int(plan.blocks[message])
        places = (buffers.places[source], buffers.places[target])
        found.extend(
            BlockMove(
                step=int(plan.step[message]),
                source=source,
                target=target,
                adds=bool(plan.adds[message]),
                channel=run.start // share,
                blocks=run,
            )
            for run in _runs(range(first, first + count), places, share, most)
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


def _check(plan: MessagePlan, kind: str, size: int) -> None:
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


def _shares(plan: MessagePlan, kind: str, size: int, in_place: bool) -> Buffers:
    """All-gather and reduce-scatter: the blocks sorted by their owners."""
    blocks = len(plan.owner)
    order = np.argsort(plan.owner, kind="stable")
    if (np.bincount(plan.owner, minlength=size) * size != blocks).any():
        raise Unsupported("the ranks own different numbers of blocks", where="plan")
    number = np.empty(blocks, dtype=np.int64)
    number[order] = np.arange(blocks)
    each = blocks // size
    gathers = kind == "all-gather"
    home: Buffer = "o" if gathers else ("i" if in_place else "s")
    places = {block: Place(home, int(number[block])) for block in range(blocks)}
    before: list[tuple[Copy, ...]] = [()] * size
    after: list[tuple[Copy, ...]] = [()] * size
    if not in_place:
        shares = [order[rank * each : (rank + 1) * each] for rank in range(size)]
        if gathers:
            before = [tuple(_own(shares[r], Place("i", 0), Place("o", r * each))) for r in range(size)]
        else:
            before = [tuple(_own(order, Place("i", 0), Place("s", 0)))] * size
            after = [tuple(_own(shares[r], Place("s", r * each), Place("o", 0))) for r in range(size)]
    return Buffers(
        input_chunks=each if gathers else blocks,
        output_chunks=blocks if gathers else each,
        scratch=(blocks if home == "s" else 0,) * size,
        places=(places,) * size,
        before=tuple(before),
        after=tuple(after),
    )


def _own(blocks: Ints, source: Place, target: Place) -> Iterator[Copy]:
    """Copies of blocks that lie one after the other in both places, a copy for each run of block numbers."""
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            yield Copy(
                Place(source.buffer, source.chunk + begin),
                Place(target.buffer, target.chunk + begin),
                range(int(blocks[begin]), int(blocks[end - 1]) + 1),
            )
            begin = end


def _all_to_all(plan: MessagePlan, size: int) -> Buffers:
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
    return Buffers(
        input_chunks=size * copies,
        output_chunks=size * copies,
        scratch=tuple(scratch),
        places=tuple(places),
        before=tuple(before),
        after=((),) * size,
    )


def _held(plan: MessagePlan, places: Sequence[dict[int, Place]]) -> bool:
    return all(
        block in places[source]
        for source, first, count in zip(plan.source.tolist(), plan.first.tolist(), plan.blocks.tolist(), strict=True)
        for block in range(first, first + count)
    )


def _runs(blocks: range, places: tuple[dict[int, Place], dict[int, Place]], share: int, most: int) -> Iterator[range]:
    """Blocks of one share that are contiguous in both places."""
    begin = blocks.start
    for block in range(blocks.start + 1, blocks.stop + 1):
        ends = block == blocks.stop or block - begin == most
        if ends or block % share == 0 or not all(_next(of, block) for of in places):
            yield range(begin, block)
            begin = block


def _next(places: dict[int, Place], block: int) -> bool:
    before, place = places[block - 1], places[block]
    return before.buffer == place.buffer and before.chunk + 1 == place.chunk
