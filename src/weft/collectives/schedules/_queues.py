"""The kernel behind ``queues``: tasks, and chunks of collectives that queue at dimensions.

Times are in whatever unit the caller uses.  A dimension has ``slots``; an operation that holds one first
waits out its latency (unless latency is ``outside`` the slot), then moves its bytes, and shares the
bandwidth equally with the others that do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.solvers._arrays import Flags, Floats, Ints, Records, wide
from weft.solvers._heap import pop, push
from weft.solvers._jit import jit

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
def play(ops: Visits, tasks: Tasks, times: QueueTimes, room: Room, service: Service) -> float:
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
