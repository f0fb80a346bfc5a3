"""The messages of a schedule between all ranks, chunk by chunk, for the stacks that can run them.

Rank is a0 + P0 (a1 + P1 (a2 + ...)).  A chunk is cut into one block a rank, numbered so that what a rank
holds is always a run of blocks: the first digit of a block is the coordinate of its owner in the dimension
that the reduce-scatter visits first (an all-gather last).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.collectives.messages import MessagePlan, beside, plan
from weft.collectives.schedules.chunks import Request, Schedule
from weft.collectives.schedules.timing import TimedSchedule, time_schedule
from weft.collectives.stages import BALANCED_KINDS, ONE_OPERATION, StageKind
from weft.errors import Unsupported
from weft.fabric.families.torus import lines_of
from weft.fabric.spec import Ints

MOST_BLOCKS = 1 << 20
MOST_MESSAGES = 4_000_000


def equal(timed: TimedSchedule, chunks: int) -> TimedSchedule:
    """The same orders in equal chunks, as many of each as its share of the bytes asks for, timed again.

    A schedule whose chunks are equal already is returned as it is.
    """
    schedule = timed.schedule
    if np.ptp(schedule.chunk_bytes) <= 1e-9 * schedule.chunk_bytes.max():
        return timed
    # Chunk i takes the order that holds the middle of its bytes: each order gets chunks in proportion to its share.
    target = np.cumsum(schedule.chunk_bytes) / schedule.request.bytes
    which = np.searchsorted(target, (np.arange(chunks) + 0.5) / chunks)
    cut = replace(
        schedule,
        chunk_bytes=np.full(chunks, schedule.request.bytes / chunks),
        orders=schedule.orders[which],
        gathers=None if schedule.gathers is None else schedule.gathers[which],
        ranks=None,
    )
    return time_schedule(cut, rule="scf", active=timed.active)


def schedule_plan(timed: TimedSchedule) -> MessagePlan:
    """Messages of a timed schedule with equal chunks; blocks of chunk c are c * ranks and on.

    In each dimension stages follow each other in the schedule's order, and a chunk's stages do; every message
    is in the first step in which it can be.

    Raises:
        Unsupported: another collective, in-switch or double-tree stages, gather orders that do not mirror the
            others, or too many messages.
    """
    schedule = timed.schedule
    _check(schedule)
    collective = schedule.request
    parts = len(schedule) * collective.accelerators
    pieces, owner = [], np.zeros(parts, dtype=np.int64)
    # Step 1: who owns each block at the end.
    for chunk in range(len(schedule)):
        blocks = slice(chunk * collective.accelerators, (chunk + 1) * collective.accelerators)
        owner[blocks] = _owners(collective, schedule.orders[chunk])
    # Step 2: the messages of every stage, in the first step in which chunk and dimension are free.
    messages = 0
    for placed in _placed(timed):
        stage = _stage(collective, schedule.orders[placed.chunk], placed)
        messages += len(stage.step)
        if messages > MOST_MESSAGES:
            raise Unsupported(f"over {MOST_MESSAGES:,} messages", where="export", remedy="take fewer chunks")
        pieces.append(replace(stage, step=stage.step + placed.begin))
    joined = beside(pieces, parts=parts, owner=owner)
    return replace(joined, steps=int(joined.step.max()) + 1 if len(joined.step) else 0)


def _check(schedule: Schedule) -> None:
    collective = schedule.request
    if collective.kind not in BALANCED_KINDS:
        problem = f"executors have no plan of messages for {collective.kind}, only for {', '.join(BALANCED_KINDS)}"
        raise Unsupported(problem, where="--export", remedy="take --export chakra, or one of these collectives")
    if len(schedule) * collective.accelerators > MOST_BLOCKS:
        problem = f"{len(schedule)} chunks on {collective.accelerators} ranks"
        raise Unsupported(problem, where="export", remedy="take fewer chunks or dimensions")
    if collective.kind == "all-reduce" and any(collective.algorithms[i] in ONE_OPERATION for i in collective.used):
        raise Unsupported(
            "all-reduces in the switch or over trees",
            where="export",
            remedy="name other algorithms with --algorithms, as halving-doubling",
        )
    if schedule.gathers is not None and (schedule.gathers != schedule.orders[:, ::-1]).any():
        problem = "all-gather orders that do not mirror the reduce-scatter's"
        raise Unsupported(problem, where="export", remedy="mirror them")


class _Placed(NamedTuple):
    """A stage: its number in its chunk, the step in which it begins, and whether it goes around a ring
    backwards, as every other stage does, so that both directions have work."""

    chunk: int
    stage: int
    dimension: int
    kind: StageKind
    begin: int
    backwards: bool


def _owners(collective: Request, order: Ints) -> Ints:
    """The owner of each block of a chunk."""
    shape = [links.size for links in collective.dimensions]
    ranks = np.arange(collective.accelerators).reshape(shape[::-1])
    nested = order if collective.kind != "all-gather" else order[::-1]
    # The digits of a block's number are coordinates in the order of the dimensions; the transposed ranks read it off.
    axes = [len(shape) - 1 - dimension for dimension in nested.tolist()]
    unused = [axis for axis in range(len(shape)) if axis not in axes]
    return np.transpose(ranks, (*axes, *unused)).ravel()


def _placed(timed: TimedSchedule) -> Iterator[_Placed]:
    """All stages in an order that respects chunks and dimensions, with the steps in which they begin."""
    stages, collective = timed.stages, timed.schedule.request
    # The order of the simulation: every stage comes after those that its chunk and its dimension had before.
    order = np.lexsort((timed.ranks, timed.chart.end_s, timed.chart.moving_s, timed.chart.admitted_s))
    free, ready = [0] * len(collective.dimensions), [0] * len(timed.schedule)
    done = [0] * len(timed.schedule)
    names: tuple[StageKind, ...] = ("reduce-scatter", "all-gather")
    width = timed.schedule.orders.shape[1]
    for at in order.tolist():
        chunk, dimension = int(stages.chunk[at]), int(stages.dimension[at])
        kind = names[done[chunk] >= width] if collective.kind == "all-reduce" else collective.kind
        begin = max(free[dimension], ready[chunk])
        size = collective.dimensions[dimension].size
        fused = timed.schedule.fused and collective.kind == "all-reduce" and done[chunk] == width - 1
        for half in names if fused else (kind,):
            yield _Placed(chunk, done[chunk], dimension, half, begin, bool(timed.ranks[at] % 2))
            done[chunk] += 1
            begin += plan(half, collective.stage(half, dimension).algorithm, size).steps
        free[dimension] = ready[chunk] = begin


def _stage(collective: Request, order: Ints, placed: _Placed) -> MessagePlan:
    """The messages of one stage in all groups, of one chunk."""
    sizes = collective.sizes
    width = len(order)
    # After `depth` reduce-scatters a rank holds a run of blocks: all that agree with it in the first `depth` digits.
    depth = placed.stage if placed.stage < width else 2 * width - 1 - placed.stage
    if collective.kind == "all-gather":
        depth = width - 1 - placed.stage
    nested = order if collective.kind != "all-gather" else order[::-1]
    run = int(np.prod(sizes[nested[depth + 1 :]]))
    size = int(sizes[placed.dimension])
    once = plan(placed.kind, collective.stage(placed.kind, placed.dimension).algorithm, size)
    if placed.backwards and collective.dimensions[placed.dimension].kind == "ring":
        # Every rank and its block in the place of their mirror image.
        once = replace(once, source=-once.source % size, target=-once.target % size, first=-once.first % size)
    base = placed.chunk * collective.accelerators
    block = np.argsort(_owners(collective, order))
    groups = lines_of(collective.accelerators, sizes.tolist())[placed.dimension]
    firsts = base + block[groups[:, 0]] // (run * size) * (run * size)
    return beside(
        [once.moved(ranks, scale=run, shift=int(first)) for ranks, first in zip(groups, firsts, strict=True)],
        parts=1,
        owner=np.zeros(0, dtype=np.int64),
    )
