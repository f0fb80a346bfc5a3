"""Chunks of collectives that queue at the network's dimensions, and tasks that start them: events in time.

All ranks are alike, so one stands for all.  A chunk passes through its dimensions one after the other.  A
dimension works on ``active`` operations at a time: each first waits out its latency, then moves its bytes,
the bandwidth equally shared.  Without a limit (``active`` None) an operation's latency delays only itself:
the dimension moves the bytes of one operation after the other.  In the kernel times are in whatever unit the caller
uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.solvers._arrays import PAIR, Flags, Floats, Ints, Records, wide
from weft.solvers._heap import pop, push
from weft.solvers._jit import jit

# The kernel ----------------------------------------------------------------------------------------

FIFO, SMALLEST, ASTRA, FIXED = (wide(rule) for rule in range(4))
"""How an operation is put into the queue: last; before larger keys; before equal and larger keys (marked
ones last); by its rank, and only in turn."""
NONE = wide(-1)
JOIN, FINISH, COMPLETE = (wide(kind) for kind in range(3))
"""Events: an operation's latency is over and its bytes move; an operation has ended; a task has ended."""
EVENTS, READY, BUSY, LIVE = range(4)
"""Places in ``state``: sizes of the heaps of events and of computations that could begin;
whether one is running; tasks left."""


class Visits(NamedTuple):
    """A chunk's passage through one dimension, each."""

    dimension: Ints
    work: Floats
    latency: Floats
    key: Floats
    last: Flags
    follower: Ints
    task: Ints
    rank: Ints


class Tasks(NamedTuple):
    """``heads[head_at[t] : head_at[t + 1]]`` are the first operations of task t; alike its followers."""

    seconds: Floats
    waits: Ints
    chunks: Ints
    head_at: Ints
    heads: Ints
    follower_at: Ints
    followers: Ints


class Service(NamedTuple):
    """How dimensions work: slots of each, whether latency is outside them, and the rule of the queues."""

    slots: int
    outside: bool
    rule: int


class QueueTimes(NamedTuple):
    """When operations got a slot, began to move bytes and ended, and when tasks began and ended."""

    admitted: Floats
    moving: Floats
    end: Floats
    task_begin: Floats
    task_end: Floats


class Room(NamedTuple):
    """State of the dimensions: queue as a linked list, operations that move bytes, and their virtual time."""

    first: Ints
    final: Ints
    behind: Ints
    used: Ints
    sharing: Ints
    moving: Ints
    target: Floats
    virtual: Floats
    since: Floats
    turn: Ints
    events: Records
    ready: Records
    state: Ints


@jit
def advance(room: Room, dimension: int, now: float) -> None:
    """Let the operations that move bytes share what the dimension did since it was looked at."""
    count = room.sharing[dimension]
    # `virtual` is the work that each of them has got since the dimension was idle; one ends at its `target`.
    if count > 0:
        room.virtual[dimension] += (now - room.since[dimension]) / count
    else:
        room.virtual[dimension] = 0.0
    room.since[dimension] = now


@jit
def announce(room: Room, time: float, kind: int, item: int) -> None:
    """Add an event."""
    room.state[EVENTS] = push(room.events, room.state[EVENTS], time, item * 3 + kind)


@jit
def join(ops: Visits, times: QueueTimes, room: Room, op: int, now: float) -> None:
    """Begin to move an operation's bytes."""
    dimension = ops.dimension[op]
    advance(room, dimension, now)
    # It shares from now on: it ends when the common virtual time has grown by its work, however many come and go
    # meanwhile.
    at = room.sharing[dimension]
    room.moving[dimension, at] = op
    room.target[dimension, at] = room.virtual[dimension] + ops.work[op]
    room.sharing[dimension] = at + 1
    times.moving[op] = now


@jit
def serve(ops: Visits, times: QueueTimes, room: Room, dimension: int, now: float, service: Service) -> None:
    """Give free slots to the operations at the head of the queue."""
    # The queue is in the order of the rule; under FIXED the operation whose turn it is may not have come yet.
    while room.used[dimension] < service.slots and room.first[dimension] >= 0:
        op = room.first[dimension]
        if service.rule == FIXED and ops.rank[op] != room.turn[dimension]:
            break
        room.turn[dimension] += 1
        room.first[dimension] = room.behind[op]
        if room.first[dimension] < 0:
            room.final[dimension] = NONE
        room.used[dimension] += 1
        times.admitted[op] = now
        if service.outside or ops.latency[op] <= 0.0:
            join(ops, times, room, op, now)
        else:
            announce(room, now + ops.latency[op], JOIN, op)


@jit
def is_before(ops: Visits, rule: int, op: int, waiting: int) -> bool:
    """Whether an operation goes before one that waits already."""
    if rule == SMALLEST:
        return bool(ops.key[op] < ops.key[waiting])
    if rule == ASTRA:
        return bool(ops.key[op] <= ops.key[waiting])
    return bool(ops.rank[op] < ops.rank[waiting])


@jit
def enqueue(ops: Visits, room: Room, op: int, rule: int) -> None:
    """Put an operation into the queue of its dimension."""
    dimension = ops.dimension[op]
    before, after = NONE, room.first[dimension]
    final = room.final[dimension]
    in_order = rule in (SMALLEST, FIXED) and final >= 0
    if rule == FIFO or (rule == ASTRA and ops.last[op]) or (in_order and not is_before(ops, rule, op, final)):
        before, after = final, NONE
    # All from the first to `before` go before `op`; where `op` goes behind all, `after` is none from the start.
    while after >= 0 and not is_before(ops, rule, op, after):
        before, after = after, room.behind[after]
    room.behind[op] = after
    if before >= 0:
        room.behind[before] = op
    else:
        room.first[dimension] = op
    if after < 0:
        room.final[dimension] = op


@jit
def compute(tasks: Tasks, times: QueueTimes, room: Room, now: float) -> None:
    """Begin the next computation, in program order, where none is running."""
    # One computation at a time, the first task in program order among those that may begin.
    size = room.state[READY]
    if room.state[BUSY] > 0 or size == 0:
        return
    task = room.ready[0].number
    room.state[READY] = pop(room.ready, size)
    room.state[BUSY] = 1
    times.task_begin[task] = now
    announce(room, now + tasks.seconds[task], COMPLETE, task)


@jit
def begin(ops: Visits, tasks: Tasks, times: QueueTimes, room: Room, task: int, now: float, service: Service) -> None:
    """Begin a task that nothing holds back any more."""
    times.task_begin[task] = now
    if tasks.seconds[task] > 0.0:
        room.state[READY] = push(room.ready, room.state[READY], float(task), task)
        compute(tasks, times, room, now)
    elif tasks.chunks[task] == 0:
        announce(room, now, COMPLETE, task)
    for at in range(tasks.head_at[task], tasks.head_at[task + 1]):
        op = tasks.heads[at]
        enqueue(ops, room, op, service.rule)
        serve(ops, times, room, ops.dimension[op], now, service)


@jit
def complete(
    ops: Visits, tasks: Tasks, times: QueueTimes, room: Room, task: int, now: float, service: Service
) -> None:
    """End a task and begin those that waited for it alone."""
    times.task_end[task] = now
    room.state[LIVE] -= 1
    if tasks.seconds[task] > 0.0:
        room.state[BUSY] = 0
    # Each task counts those that it waits for; the one that brings the count to 0 begins it.
    for at in range(tasks.follower_at[task], tasks.follower_at[task + 1]):
        follower = tasks.followers[at]
        tasks.waits[follower] -= 1
        if tasks.waits[follower] == 0:
            begin(ops, tasks, times, room, follower, now, service)
    compute(tasks, times, room, now)


@jit
def soonest(room: Room) -> tuple[int, int, float]:
    """The dimension, the place there and the time of the next operation that will have moved its bytes."""
    result, place, time = NONE, NONE, np.inf
    # Where ends are equal the lowest dimension and the earliest to join come first: runs repeat.
    for dimension in range(len(room.sharing)):
        count = room.sharing[dimension]
        for at in range(count):
            left = (room.target[dimension, at] - room.virtual[dimension]) * count
            if room.since[dimension] + left < time:
                result, place, time = wide(dimension), wide(at), room.since[dimension] + left
    return result, place, time


@jit
def leave(ops: Visits, room: Room, dimension: int, at: int, now: float) -> int:
    """An operation has moved its bytes and gives its slot back; returns which."""
    op = wide(room.moving[dimension, at])
    advance(room, dimension, now)
    count = room.sharing[dimension] - 1
    room.sharing[dimension] = count
    # Places keep the order of joining, so that equal ends leave in that order.
    for place in range(at, count):
        room.moving[dimension, place] = room.moving[dimension, place + 1]
        room.target[dimension, place] = room.target[dimension, place + 1]
    if count == 0:
        room.virtual[dimension] = 0.0
    # Its slot is free; the others share its bandwidth from `now` on, up to which `advance` has settled what they got.
    room.used[dimension] -= 1
    return op


@jit
def play_all(ops: Visits, tasks: Tasks, times: QueueTimes, room: Room, service: Service) -> float:
    """Run all tasks; returns when the last one ended, or -1 where some never began.

    The last task is the start, which nothing holds back and for which all wait that wait for no other.
    """
    now = 0.0
    room.state[LIVE] = len(tasks.seconds)
    announce(room, now, COMPLETE, wide(len(tasks.seconds) - 1))
    # `now` never falls; every dimension that has a free slot and a queue was served when either changed.  What an
    # event leads to is done in one place each, not by calls within calls: the compiler puts every call in line.
    while room.state[LIVE] > 0:
        ended, over = NONE, NONE
        # Step 1: the next instant is an end of bytes or an event of the heap, ends first where they coincide.
        dimension, at, time = soonest(room)
        size = room.state[EVENTS]
        # An end frees a slot, which goes to the queue only after the chunk has gone on (below): it may queue here
        # again.
        leaves = dimension >= 0 and (size == 0 or time <= room.events[0].key)
        if leaves:
            now = time
            ended = leave(ops, room, dimension, at, now)
            if service.outside and ops.latency[ended] > 0.0:
                announce(room, now + ops.latency[ended], FINISH, ended)
                ended = NONE
        elif size == 0:
            return -1.0
        else:
            now, code = room.events[0].key, room.events[0].number
            room.state[EVENTS] = pop(room.events, size)
            item, kind = code // 3, code % 3
            if kind == JOIN:
                join(ops, times, room, item, now)
            elif kind == FINISH:
                ended = item
            else:
                over = item
        # An operation has ended: its chunk goes on to the next dimension, or its task may be over.
        if ended >= 0:
            times.end[ended] = now
            follower = ops.follower[ended]
            if follower >= 0:
                enqueue(ops, room, follower, service.rule)
                serve(ops, times, room, ops.dimension[follower], now, service)
            else:
                tasks.chunks[ops.task[ended]] -= 1
                if tasks.chunks[ops.task[ended]] == 0:
                    over = ops.task[ended]
        if over >= 0:
            complete(ops, tasks, times, room, over, now, service)
        if leaves:
            serve(ops, times, room, dimension, now, service)
    return now


QueueRule = Literal["fifo", "scf", "paper-scf", "astra-fifo", "astra-scf", "fixed"]
QUEUE_RULES: tuple[QueueRule, ...] = get_args(QueueRule)
"""First in, first out; the smallest chunk first, of equal ones the first; the same, of equal ones the newest first;
both as ASTRA-sim has it (the newest of equal ones first, a chunk with one stage after this one last); and in the order
of given ranks."""
NS = 1e-9
_UNLIMITED = 1
MOST_ACTIVE = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passages:
    """Operations, each a chunk's passage through one dimension; all arrays have one element an operation.

    ``work_s`` is bytes over bandwidth, ``key_bytes`` the size that smallest-chunk-first looks at, ``chunk``
    numbers the chunks (operations of a chunk are neighbours, in order), ``task`` the task that they belong
    to.
    """

    dimension: Ints
    work_s: Floats
    latency_s: Floats
    key_bytes: Floats
    chunk: Ints
    task: Ints

    def __len__(self) -> int:
        return len(self.dimension)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """When everything happened, in seconds.

    Each passage has ``admitted_s``, ``moving_s`` (bytes begin to move) and ``end_s``; each task has
    ``task_begin_s`` and ``task_end_s``.
    """

    time_s: float
    admitted_s: Floats
    moving_s: Floats
    end_s: Floats
    task_begin_s: Floats
    task_end_s: Floats


def play(
    passages: Passages,
    dimensions: int,
    *,
    rule: QueueRule = "fifo",
    active: int | None = 1,
    ranks: Ints | None = None,
    seconds: Sequence[float] = (0.0,),
    waits: Sequence[tuple[int, ...]] = ((),),
) -> Chart:
    """Run tasks whose collectives queue at the dimensions; one task without waiting by default.

    Args:
        active: operations that a dimension works on at a time; None lets latencies overlap without limit.
        ranks: of ``fixed``, the place of each passage among those of its dimension, from 0.
        seconds: computation of each task without passages; one runs at a time, in the order of the tasks.
        waits: the tasks that each task waits for.

    Raises:
        UnknownName: there is no such rule.
    """
    if rule not in QUEUE_RULES:
        raise UnknownName("order within a dimension", str(rule), QUEUE_RULES)
    if active is not None and not 1 <= active <= MOST_ACTIVE:
        raise BadInput(f"{active} active chunks", where="active", remedy=f"give 1 to {MOST_ACTIVE}, or none")
    count, slots = len(passages), _UNLIMITED if active is None else active
    ops, heads = _operations(passages, ranks)
    if rule == "paper-scf":
        ops = ops._replace(last=np.zeros_like(ops.last))
    tasks = _tasks(heads, ops.task, seconds, waits)
    if ((tasks.chunks > 0) & (tasks.seconds > 0)).any():
        raise BadInput("a task computes and communicates", where="tasks", remedy="make two of it")
    times = QueueTimes(*(np.full(size, np.nan) for size in (count, count, count, len(seconds) + 1, len(seconds) + 1)))
    code = {"fifo": FIFO, "astra-fifo": FIFO, "scf": SMALLEST, "paper-scf": ASTRA, "astra-scf": ASTRA, "fixed": FIXED}[
        rule
    ]
    room = _room(count, len(seconds), dimensions, slots)
    # An operation is looked at when it queues, moves and ends, and each end looks at all slots of all dimensions.
    steps = 50 * (count + len(seconds)) * (1 + dimensions * slots)
    time = play_all.sized(steps)(ops, tasks, times, room, Service(slots, active is None, code))
    if time < 0:
        problem = "cannot be kept: chunks or tasks wait for each other in a circle"
        raise BadInput(problem, where="order")
    return Chart(
        time_s=time * NS,
        admitted_s=times.admitted * NS,
        moving_s=times.moving * NS,
        end_s=times.end * NS,
        task_begin_s=times.task_begin[:-1] * NS,
        task_end_s=times.task_end[:-1] * NS,
    )


def order_of(chart: Chart, passages: Passages, dimensions: int) -> Ints:
    """The place of each passage among those of its dimension: the ``ranks`` that repeat a run's order."""
    ranks = np.zeros(len(passages), dtype=np.int64)
    # Operations got their slots in this order; of equals the one that moved first, then the first in the schedule.
    by_time = np.lexsort((np.arange(len(passages)), chart.moving_s, chart.admitted_s))
    for dimension in range(dimensions):
        queue = by_time[passages.dimension[by_time] == dimension]
        ranks[queue] = np.arange(len(queue))
    return ranks


def _operations(passages: Passages, ranks: Ints | None) -> tuple[Visits, Ints]:
    """The kernel's operations, and which of them are the first of their chunks."""
    count = len(passages)
    first = np.ones(count, dtype=bool)
    # Operations of a chunk are neighbours: each is followed by the next of its chunk, the last by none.
    first[1:] = passages.chunk[1:] != passages.chunk[:-1]
    follower = np.where(np.append(~first[1:], False), np.arange(1, count + 1), -1)
    # ASTRA-sim puts a chunk with one stage after this one last.
    second_to_last = np.zeros(count, dtype=bool)
    second_to_last[:-1] = (follower[:-1] >= 0) & (follower[1:] < 0)
    ops = Visits(
        dimension=np.ascontiguousarray(passages.dimension, dtype=np.int64),
        work=passages.work_s / NS,
        latency=passages.latency_s / NS,
        key=np.ascontiguousarray(passages.key_bytes, dtype=np.float64),
        last=second_to_last.astype(np.uint8),
        follower=follower.astype(np.int64),
        task=np.ascontiguousarray(passages.task, dtype=np.int64),
        rank=np.zeros(count, dtype=np.int64) if ranks is None else np.ascontiguousarray(ranks, dtype=np.int64),
    )
    return ops, np.flatnonzero(first)


def _tasks(heads: Ints, task: Ints, seconds: Sequence[float], waits: Sequence[tuple[int, ...]]) -> Tasks:
    count = len(seconds)
    owner = task[heads]
    by_owner = np.argsort(owner, kind="stable")
    chunks = np.bincount(owner, minlength=count + 1)
    lengths = np.array([len(tasks) for tasks in waits], dtype=np.int64)
    # Tasks that wait for none wait for the start, which the kernel has as the last task.
    before = np.array([task_before for tasks in waits for task_before in tasks or (count,)], dtype=np.int64)
    after = np.repeat(np.arange(count), np.maximum(lengths, 1))
    by_before = np.argsort(before, kind="stable")
    return Tasks(
        seconds=np.append(np.asarray(seconds, dtype=np.float64) / NS, 0.0),
        waits=np.append(np.maximum(lengths, 1), 0),
        chunks=chunks.astype(np.int64),
        head_at=_starts(chunks),
        heads=heads[by_owner].astype(np.int64),
        follower_at=_starts(np.bincount(before, minlength=count + 1)),
        followers=after[by_before].astype(np.int64),
    )


def _starts(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _room(ops: int, tasks: int, dimensions: int, slots: int) -> Room:
    none = np.full(dimensions, -1, dtype=np.int64)
    zeros = np.zeros(dimensions, dtype=np.int64)
    return Room(
        first=none.copy(),
        final=none.copy(),
        behind=np.full(ops, -1, dtype=np.int64),
        used=zeros.copy(),
        sharing=zeros.copy(),
        moving=np.zeros((dimensions, slots), dtype=np.int64),
        target=np.zeros((dimensions, slots)),
        virtual=np.zeros(dimensions),
        since=np.zeros(dimensions),
        turn=zeros.copy(),
        events=np.zeros(ops + tasks + 2, dtype=PAIR),
        ready=np.zeros(tasks + 2, dtype=PAIR),
        state=np.zeros(4, dtype=np.int64),
    )
