"""Chunks in queues, against a slow simulator that keeps lists and looks at everything at every event."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.collectives.schedules.queues import MOST_ACTIVE, Passages, order_of, play
from weft.errors import BadInput, UnknownName

RULES = ("fifo", "scf", "paper-scf", "astra-fifo", "astra-scf")
ACTIVE = (1, 2, 3, None)


class Reference:
    """Times of operations and tasks; ``operations[i]`` is (dimension, work, latency, key, chunk, task)."""

    def __init__(self, operations, dimensions, rule, active, seconds, waits, ranks=None):
        self.operations, self.rule, self.active, self.ranks = operations, rule, active, ranks
        self.slots = 1 if active is None else active
        chunk = [one[4] for one in operations]
        self.head = [i == 0 or chunk[i - 1] != chunk[i] for i in range(len(chunk))]
        self.next = [i + 1 if i + 1 < len(chunk) and chunk[i + 1] == chunk[i] else None for i in range(len(chunk))]
        self.queue = [[] for _ in range(dimensions)]
        self.holding = [0] * dimensions
        self.turn = [0] * dimensions
        self.left = {}
        self.timers = []
        self.now = 0.0
        self.admitted, self.moving, self.end = {}, {}, {}
        self.begun, self.ended = {}, {}
        self.seconds, self.missing = seconds, [set(others) for others in waits]
        self.open = [
            sum(h and o[5] == t for h, o in zip(self.head, operations, strict=True)) for t in range(len(waits))
        ]
        self.ready, self.computing = [], None
        for task, others in enumerate(waits):
            if not others:
                self.begin(task)
        while len(self.ended) < len(waits):
            self.step()

    def step(self):
        share = [0] * len(self.queue)
        for op in self.left:
            share[self.operations[op][0]] += 1
        done = [(self.now + left * share[self.operations[op][0]], op) for op, left in self.left.items()]
        first = min(done, default=(np.inf, None))
        timer = self.timers[0][0] if self.timers else np.inf
        then = min(first[0], timer)
        assert then < np.inf, "stuck"
        for op in self.left:
            self.left[op] -= (then - self.now) / share[self.operations[op][0]]
        self.now = then
        if first[0] <= timer:
            del self.left[first[1]]
            self.leave(first[1])
        else:
            _, code = heapq.heappop(self.timers)
            item, kind = divmod(code, 3)
            (self.move, self.finish, self.complete)[kind](item)

    def after(self, delay, call, item):
        """What falls on one instant happens in the order of operations' and tasks' numbers."""
        kind = (self.move, self.finish, self.complete).index(call)
        heapq.heappush(self.timers, (self.now + delay, item * 3 + kind))

    def begin(self, task):
        self.begun[task] = self.now
        if self.seconds[task] > 0:
            heapq.heappush(self.ready, task)
            self.compute()
        elif self.open[task] == 0:
            self.after(0.0, self.complete, task)
        for op, head in enumerate(self.head):
            if head and self.operations[op][5] == task:
                self.arrive(op)

    def compute(self):
        if self.computing is None and self.ready:
            self.computing = heapq.heappop(self.ready)
            self.begun[self.computing] = self.now
            self.after(self.seconds[self.computing], self.complete, self.computing)

    def complete(self, task):
        self.ended[task] = self.now
        if self.computing == task:
            self.computing = None
        for other, missing in enumerate(self.missing):
            if task in missing:
                missing.discard(task)
                if not missing:
                    self.begin(other)
        self.compute()

    def arrive(self, op):
        """Where an operation goes in the list of those that wait."""
        dimension, key = self.operations[op][0], self.operations[op][3]
        waiting = self.queue[dimension]
        one_more = self.next[op] is not None and self.next[self.next[op]] is None
        place = len(waiting)
        if self.rule == "scf":
            place = next((i for i, o in enumerate(waiting) if self.operations[o][3] > key), place)
        elif self.rule == "paper-scf" or (self.rule == "astra-scf" and not one_more):
            place = next((i for i, o in enumerate(waiting) if self.operations[o][3] >= key), place)
        elif self.rule == "fixed":
            place = next((i for i, o in enumerate(waiting) if self.ranks[o] > self.ranks[op]), place)
        waiting.insert(place, op)
        self.admit(dimension)

    def admit(self, dimension):
        waiting = self.queue[dimension]
        while waiting and self.holding[dimension] < self.slots:
            if self.rule == "fixed" and self.ranks[waiting[0]] != self.turn[dimension]:
                return
            op = waiting.pop(0)
            self.turn[dimension] += 1
            self.holding[dimension] += 1
            self.admitted[op] = self.now
            latency = self.operations[op][2]
            if self.active is None or latency == 0:
                self.move(op)
            else:
                self.after(latency, self.move, op)

    def move(self, op):
        self.moving[op] = self.now
        self.left[op] = self.operations[op][1]

    def leave(self, op):
        dimension, latency = self.operations[op][0], self.operations[op][2]
        self.holding[dimension] -= 1
        if self.active is None and latency > 0:
            self.after(latency, self.finish, op)
        else:
            self.finish(op)
        self.admit(dimension)

    def finish(self, op):
        self.end[op] = self.now
        if self.next[op] is not None:
            self.arrive(self.next[op])
            return
        task = self.operations[op][5]
        self.open[task] -= 1
        if self.open[task] == 0:
            self.complete(task)


def passages_of(operations):
    columns = list(zip(*operations, strict=True)) or [()] * 6
    dimension, work, latency, key, chunk, task = columns
    return Passages(
        dimension=np.array(dimension, dtype=np.int64),
        work_s=np.array(work, dtype=np.float64) * 1e-9,
        latency_s=np.array(latency, dtype=np.float64) * 1e-9,
        key_bytes=np.array(key, dtype=np.float64),
        chunk=np.array(chunk, dtype=np.int64),
        task=np.array(task, dtype=np.int64),
    )


def some_chunks(rng, *, tasks=(0,), most=8):
    """Random chunks: each may visit a dimension several times, and skip others."""
    dimensions = int(rng.integers(1, 5))
    operations = []
    latency_at_all = rng.random() < 0.7
    for chunk in range(int(rng.integers(1, most + 1))):
        task, size = int(rng.choice(tasks)), float(rng.choice([1.0, 2.0, 4.0]))
        for _ in range(int(rng.integers(1, 6))):
            size *= float(rng.choice([0.25, 1.0, 2.0]))
            latency = float(rng.uniform(0, 3)) if latency_at_all and rng.random() < 0.7 else 0.0
            work = size * float(rng.uniform(0.5, 2))
            operations.append((int(rng.integers(dimensions)), work, latency, size, chunk, task))
    return operations, dimensions


def assert_same(chart, slow, operations):
    ns = 1e-9
    for name in ("admitted", "moving", "end"):
        expected = np.array([getattr(slow, name)[op] for op in range(operations)])
        np.testing.assert_allclose(getattr(chart, f"{name}_s") / ns, expected, rtol=1e-9, atol=1e-9)
    for found, expected in ((chart.task_begin_s, slow.begun), (chart.task_end_s, slow.ended)):
        values = [expected[task] for task in range(len(expected))]
        np.testing.assert_allclose(found / ns, values, rtol=1e-9, atol=1e-9)
    assert chart.time_s / ns == pytest.approx(max(slow.ended.values()), rel=1e-9)


@pytest.mark.slow_but(5)
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("rule", RULES)
@given(st.integers(0, 2**32 - 1))
def test_one_collective_as_the_slow_simulator(rule, active, seed):
    operations, dimensions = some_chunks(np.random.default_rng(seed))
    slow = Reference(operations, dimensions, rule, active, (0.0,), ((),))
    chart = play(passages_of(operations), dimensions, rule=rule, active=active)
    assert_same(chart, slow, len(operations))


def some_tasks(rng):
    """A program: computations and collectives, each after some of the tasks before it."""
    tasks = int(rng.integers(1, 9))
    computes = rng.random(tasks) < 0.5
    seconds = tuple(float(x) for x in np.where(computes, rng.uniform(0.5, 8, tasks), 0.0))
    waits = tuple(
        tuple(sorted(rng.choice(task, size=int(rng.integers(0, min(task, 3) + 1)), replace=False).tolist()))
        for task in range(tasks)
    )
    communicates = np.flatnonzero(~computes)
    if not len(communicates):
        return [], 1, seconds, waits
    operations, dimensions = some_chunks(rng, tasks=communicates, most=12)
    return operations, dimensions, seconds, waits


@pytest.mark.slow_but(5)
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("rule", RULES)
@given(st.integers(0, 2**32 - 1))
def test_programs_as_the_slow_simulator(rule, active, seed):
    operations, dimensions, seconds, waits = some_tasks(np.random.default_rng(seed))
    slow = Reference(operations, dimensions, rule, active, seconds, waits)
    in_s = tuple(value * 1e-9 for value in seconds)
    chart = play(passages_of(operations), dimensions, rule=rule, active=active, seconds=in_s, waits=waits)
    assert_same(chart, slow, len(operations))


@given(st.integers(0, 2**32 - 1), st.sampled_from(ACTIVE))
def test_any_order_that_can_be_kept_as_the_slow_simulator(seed, active):
    """The order of one run, kept by operations whose work is another."""
    rng = np.random.default_rng(seed)
    operations, dimensions = some_chunks(rng)
    passages = passages_of(operations)
    ranks = order_of(play(passages, dimensions, rule="scf", active=active), passages, dimensions)
    changed = [(d, work * float(rng.uniform(0.3, 3)), *rest) for d, work, *rest in operations]
    slow = Reference(changed, dimensions, "fixed", active, (0.0,), ((),), ranks.tolist())
    chart = play(passages_of(changed), dimensions, rule="fixed", active=active, ranks=ranks)
    assert_same(chart, slow, len(operations))


def with_ties(rng):
    """Equal chunks with few different times."""
    operations, dimensions = some_chunks(rng)
    return [(d, float(1 + i % 2), float(i % 2), k, c, t) for i, (d, _, _, k, c, t) in enumerate(operations)], (
        dimensions
    )


@pytest.mark.slow_but(6)
@pytest.mark.parametrize("active", [*ACTIVE, 64])
@pytest.mark.parametrize("rule", RULES)
@given(st.integers(0, 2**32 - 1), st.booleans())
@example(0, True)
def test_a_fixed_order_repeats_any_run(rule, active, seed, ties):
    operations, dimensions = (with_ties if ties else some_chunks)(np.random.default_rng(seed))
    passages = passages_of(operations)
    first = play(passages, dimensions, rule=rule, active=active)
    ranks = order_of(first, passages, dimensions)
    for dimension in range(dimensions):
        here = ranks[passages.dimension == dimension]
        assert sorted(here.tolist()) == list(range(len(here)))
    again = play(passages, dimensions, rule="fixed", active=active, ranks=ranks)
    for name in ("admitted_s", "moving_s", "end_s"):
        np.testing.assert_allclose(getattr(again, name), getattr(first, name), rtol=1e-12, atol=1e-21)
    assert again.time_s == pytest.approx(first.time_s, rel=1e-12)


# Small cases by hand -----------------------------------------------------------------------------


def test_smallest_first_only_overtakes_those_that_wait():
    """Chunk 0 has begun when the smaller ones come; of equal ones the first goes first."""
    operations = [(0, 4.0, 0.0, 4.0, 0, 0), (0, 3.0, 0.0, 3.0, 1, 0), *((0, 1.0, 0.0, 1.0, c, 0) for c in (2, 3))]
    chart = play(passages_of(operations), 1, rule="scf", active=1)
    assert chart.end_s == pytest.approx(np.array([4, 9, 5, 6]) * 1e-9)
    chart = play(passages_of(operations), 1, rule="fifo", active=1)
    assert chart.end_s == pytest.approx(np.array([4, 7, 8, 9]) * 1e-9)


def test_astra_puts_the_newest_of_equals_first_and_a_last_but_one_stage_last():
    operations = [(0, 1.0, 0.0, 1.0, chunk, 0) for chunk in range(4)]
    chart = play(passages_of(operations), 1, rule="astra-scf", active=1)
    assert chart.end_s == pytest.approx(np.array([1, 4, 3, 2]) * 1e-9)
    operations = [*operations[:3], (0, 1.0, 0.0, 0.5, 3, 0), (1, 1.0, 0.0, 0.5, 3, 0)]
    chart = play(passages_of(operations), 2, rule="astra-scf", active=1)
    assert chart.end_s == pytest.approx(np.array([1, 3, 2, 4, 5]) * 1e-9)


def test_orders_that_cannot_be_kept():
    crossing = [(0, 1.0, 0.0, 1.0, 0, 0), (1, 1.0, 0.0, 1.0, 0, 0), (1, 1.0, 0.0, 1.0, 1, 0), (0, 1.0, 0.0, 1.0, 1, 0)]
    passages = passages_of(crossing)
    for active in ACTIVE:
        kept = play(passages, 2, rule="fixed", active=active, ranks=np.array([0, 1, 0, 1]))
        assert kept.time_s == pytest.approx(2e-9)
        with pytest.raises(BadInput, match="cannot be kept"):
            play(passages, 2, rule="fixed", active=active, ranks=np.array([1, 0, 1, 0]))
    with pytest.raises(BadInput, match="cannot be kept"):
        play(passages, 2, rule="fixed", ranks=np.array([0, 2, 0, 1]))


def test_values_that_cannot_be():
    passages = passages_of([(0, 1.0, 0.0, 1.0, 0, 0)])
    with pytest.raises(UnknownName, match="fifo"):
        play(passages, 1, rule="fif")
    for active in (0, -1, MOST_ACTIVE + 1):
        with pytest.raises(BadInput, match="active"):
            play(passages, 1, active=active)
    assert play(passages, 1, active=MOST_ACTIVE).time_s == pytest.approx(1e-9)
