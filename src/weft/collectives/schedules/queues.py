"""Chunks of collectives that queue at the network's dimensions, and tasks that start them: events in time.

All ranks are alike, so one stands for all.  A chunk passes through its dimensions one after the other.  A
dimension works on ``active`` operations at a time: each first waits out its latency, then moves its bytes,
the bandwidth equally shared.  Without a limit (``active`` None) an operation's latency delays only itself:
the dimension moves the bytes of one operation after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from weft.collectives.schedules import _queues
from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Floats, Ints
from weft.solvers._arrays import PAIR

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
    times = _queues.QueueTimes(
        *(np.full(size, np.nan) for size in (count, count, count, len(seconds) + 1, len(seconds) + 1))
    )
    code = {
        "fifo": _queues.FIFO,
        "astra-fifo": _queues.FIFO,
        "scf": _queues.SMALLEST,
        "paper-scf": _queues.ASTRA,
        "astra-scf": _queues.ASTRA,
        "fixed": _queues.FIXED,
    }[rule]
    room = _room(count, len(seconds), dimensions, slots)
    # An operation is looked at when it queues, moves and ends, and each end looks at all slots of all dimensions.
    steps = 50 * (count + len(seconds)) * (1 + dimensions * slots)
    time = _queues.play.sized(steps)(ops, tasks, times, room, _queues.Service(slots, active is None, code))
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


def _operations(passages: Passages, ranks: Ints | None) -> tuple[_queues.Visits, Ints]:
    """The kernel's operations, and which of them are the first of their chunks."""
    count = len(passages)
    first = np.ones(count, dtype=bool)
    # Operations of a chunk are neighbours: each is followed by the next of its chunk, the last by none.
    first[1:] = passages.chunk[1:] != passages.chunk[:-1]
    follower = np.where(np.append(~first[1:], False), np.arange(1, count + 1), -1)
    # ASTRA-sim puts a chunk with one stage after this one last.
    second_to_last = np.zeros(count, dtype=bool)
    second_to_last[:-1] = (follower[:-1] >= 0) & (follower[1:] < 0)
    ops = _queues.Visits(
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


def _tasks(heads: Ints, task: Ints, seconds: Sequence[float], waits: Sequence[tuple[int, ...]]) -> _queues.Tasks:
    count = len(seconds)
    owner = task[heads]
    by_owner = np.argsort(owner, kind="stable")
    chunks = np.bincount(owner, minlength=count + 1)
    lengths = np.array([len(tasks) for tasks in waits], dtype=np.int64)
    # Tasks that wait for none wait for the start, which the kernel has as the last task.
    before = np.array([task_before for tasks in waits for task_before in tasks or (count,)], dtype=np.int64)
    after = np.repeat(np.arange(count), np.maximum(lengths, 1))
    by_before = np.argsort(before, kind="stable")
    return _queues.Tasks(
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


def _room(ops: int, tasks: int, dimensions: int, slots: int) -> _queues.Room:
    none = np.full(dimensions, -1, dtype=np.int64)
    zeros = np.zeros(dimensions, dtype=np.int64)
    return _queues.Room(
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
