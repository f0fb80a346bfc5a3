"""MSCCL XML, executed by an interpreter of its own that knows nothing of plans.

Threadblocks run in any order, joined by channels of small capacity, on chunks that name their contributions.
Vector clocks show that no order of threadblocks could change the outcome.
"""

import random
import xml.etree.ElementTree as ET
from collections import Counter, deque

import numpy as np
import pytest

from weft.collectives.messages import MessagePlan, after
from weft.collectives.messages import plan as messages
from weft.errors import BadInput, Unsupported
from weft.interop.msccl import write_msccl

KINDS = ("all-reduce", "all-gather", "reduce-scatter")
SHAPES = [(2, 2), (2, 3), (3, 2), (3, 3), (2, 4), (4, 4), (5, 3), (1, 5), (7, 1)]


def plan(kind, algorithm, size, **domains):
    """The messages of an algorithm; an all-reduce by halving and doubling is its two halves."""
    if (kind, algorithm) == ("all-reduce", "halving-doubling"):
        return after(*(messages(half, algorithm, size) for half in ("reduce-scatter", "all-gather")))
    return messages(kind, algorithm, size, **domains)


class Machine:
    """Ranks with buffers of chunks; a chunk is a Counter of (rank, chunk of its input)."""

    def __init__(self, text, capacity, seed):
        algorithm = ET.fromstring(text)
        self.kind, self.capacity = algorithm.get("coll"), capacity
        assert (algorithm.get("inplace"), algorithm.get("outofplace")) == ("1", "0")
        self.gpus = algorithm.findall("gpu")
        assert [int(gpu.get("id")) for gpu in self.gpus] == list(range(int(algorithm.get("ngpus"))))
        self.channels = int(algorithm.get("nchannels"))
        self.loop = int(algorithm.get("nchunksperloop"))
        self.random = random.Random(seed)
        self.memory, self.wires, self.blocks = {}, {}, {}
        self.access, self.clock = {}, {}
        for rank, gpu in enumerate(self.gpus):
            for chunk in range(int(gpu.get("i_chunks"))):
                self.memory[self.home(rank, "i", chunk)] = Counter({(rank, chunk): 1})
            senders, receivers = set(), set()
            for number, tb in enumerate(gpu.findall("tb")):
                assert int(tb.get("id")) == number
                send, receive, channel = (int(tb.get(key)) for key in ("send", "recv", "chan"))
                assert 0 <= channel < self.channels
                assert rank not in (send, receive)
                assert (send, channel) not in senders, "two threadblocks send on one connection"
                assert (receive, channel) not in receivers
                senders |= {(send, channel)} if send >= 0 else set()
                receivers |= {(receive, channel)} if receive >= 0 else set()
                steps = tb.findall("step")
                assert [int(step.get("s")) for step in steps] == list(range(len(steps)))
                self.blocks[rank, number] = [(step.attrib, send, receive, channel) for step in steps]
                self.clock[rank, number] = Counter()
        self.done = dict.fromkeys(self.blocks, 0)
        self.past = {}

    def home(self, rank, buffer, chunk):
        """The memory of a chunk: in place, input and output overlap."""
        gpu = self.gpus[rank]
        limit = int(gpu.get({"i": "i_chunks", "o": "o_chunks"}[buffer]))
        assert 0 <= chunk < limit
        if buffer == "i" and self.kind == "allgather":
            return rank, "o", chunk + rank * limit
        if buffer == "o" and self.kind == "reducescatter":
            return rank, "i", chunk + rank * limit
        return rank, "i" if self.kind == "allreduce" else buffer, chunk

    def run(self):
        waiting = list(self.blocks)
        while waiting:
            self.random.shuffle(waiting)
            moved = [block for block in waiting if self.step(block)]
            waiting = [block for block in waiting if self.done[block] < len(self.blocks[block])]
            assert moved or not waiting, "deadlock"
        assert not any(self.wires.values()), "a message that nobody received"

    def step(self, block):
        if self.done[block] == len(self.blocks[block]):
            return False
        step, send, receive, channel = self.blocks[block][self.done[block]]
        wait = (block[0], int(step["depid"])), int(step["deps"])
        if wait[0][1] >= 0:
            assert self.blocks[wait[0]][wait[1]][0]["hasdep"] == "1"
            if self.done[wait[0]] <= wait[1]:
                return False
        out, back = (block[0], send, channel), (receive, block[0], channel)
        if step["type"] == "s" and not self.accepts(out):
            return False
        if step["type"] in ("r", "rrc") and not self.wires.get(back):
            return False
        if wait[0][1] >= 0:
            self.clock[block] |= self.past[wait[0], wait[1]]
        self.perform(block, step, out, back)
        self.past[block, self.done[block]] = Counter(self.clock[block])
        self.done[block] += 1
        return True

    def accepts(self, wire):
        """Room on the wire; without capacity, a receiver that stands at its receive."""
        if len(self.wires.get(wire, ())) < self.capacity:
            return True
        if self.capacity or self.wires.get(wire):
            return False
        for block, lines in self.blocks.items():
            if block[0] == wire[1] and self.done[block] < len(lines):
                step, _, receive, channel = lines[self.done[block]]
                if (receive, channel) == (wire[0], wire[2]) and step["type"] in ("r", "rrc"):
                    wait = (block[0], int(step["depid"])), int(step["deps"])
                    return wait[0][1] < 0 or self.done[wait[0]] > wait[1]
        return False

    def perform(self, block, step, out, back):
        self.clock[block][block] = self.done[block] + 1
        rank, count = block[0], int(step["cnt"])
        source = [(step["srcbuf"], int(step["srcoff"]) + k) for k in range(count)]
        target = [(step["dstbuf"], int(step["dstoff"]) + k) for k in range(count)]
        assert step["type"] == "nop" or 0 < count < 72
        if step["type"] == "s":
            payload = [self.load(block, rank, place) for place in source]
            self.wires.setdefault(out, deque()).append((payload, Counter(self.clock[block])))
        elif step["type"] in ("r", "rrc"):
            payload, clock = self.wires[back].popleft()
            self.clock[block] |= clock
            assert len(payload) == count
            for here, place, value in zip(source, target, payload, strict=True):
                if step["type"] == "rrc":
                    value = value + self.load(block, rank, here)
                self.store(block, rank, place, value)
        else:
            assert step["type"] == "nop"

    def load(self, block, rank, place):
        home = self.home(rank, *place)
        write, reads = self.access.setdefault(home, [None, []])
        self.check(block, write)
        reads.append((block, self.done[block] + 1))
        return self.memory[home]

    def store(self, block, rank, place, value):
        home = self.home(rank, *place)
        write, reads = self.access.setdefault(home, [None, []])
        for other in (write, *reads):
            self.check(block, other)
        self.access[home] = [(block, self.done[block] + 1), []]
        self.memory[home] = value

    def check(self, block, other):
        assert other is None or self.clock[block][other[0]] >= other[1], "a race between threadblocks"


def prove(text, capacity=1, seed=0):
    machine = Machine(text, capacity, seed)
    machine.run()
    ranks, memory, home = len(machine.gpus), machine.memory, machine.home
    outputs = int(machine.gpus[0].get("o_chunks"))
    for rank, chunk in ((r, c) for r in range(ranks) for c in range(outputs)):
        each = outputs // ranks
        expected = {
            "allreduce": [(r, chunk) for r in range(ranks)],
            "allgather": [(chunk // max(each, 1), chunk % max(each, 1))],
            "reducescatter": [(r, rank * outputs + chunk) for r in range(ranks)],
        }[machine.kind]
        assert memory[home(rank, "o", chunk)] == Counter(expected)
    return machine


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving-doubling"])
@pytest.mark.parametrize("kind", KINDS)
def test_flat_algorithms_are_exact(kind, algorithm):
    for size in range(2, 17):
        made = plan(kind, algorithm, size)
        prove(write_msccl(made, kind, size, name="p"), capacity=size % 3, seed=size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rings_over_domains_are_exact(kind):
    for domains, members in SHAPES:
        size = domains * members
        made = plan(kind, "rings", size, domains=domains)
        prove(write_msccl(made, kind, size, name="p"), capacity=size % 3, seed=size)


@pytest.mark.parametrize("capacity", [0, 1, 2, 8])
def test_any_capacity_of_channels_will_do(capacity):
    for kind, algorithm in (("all-reduce", "halving-doubling"), ("all-reduce", "direct"), ("all-gather", "ring")):
        for seed in range(5):
            prove(write_msccl(plan(kind, algorithm, 6), kind, 6, name="p"), capacity, seed)


def test_a_ring_all_gather_of_two_as_people_write_it():
    """Each rank has a threadblock that sends its chunk, and one that receives the other's."""
    algorithm = ET.fromstring(write_msccl(plan("all-gather", "ring", 2), "all-gather", 2, name="two"))
    for rank, gpu in enumerate(algorithm.findall("gpu")):
        steps = [(tb.get("send"), tb.get("recv"), tb.find("step").attrib) for tb in gpu.findall("tb")]
        for (send, receive, step), kind, chunk in zip(steps, "sr", (rank, 1 - rank), strict=True):
            assert {send, receive} == {"-1", str(1 - rank)}
            assert (step["type"], step["srcbuf"], step["srcoff"], step["dstoff"], step["cnt"]) == (
                *(kind, "o", str(chunk), str(chunk), "1"),
            )
            assert (step["depid"], step["deps"], step["hasdep"]) == ("-1", "-1", "0")


def test_every_wait_is_awaited_and_none_is_superfluous_in_a_ring():
    text = write_msccl(plan("all-reduce", "ring", 8), "all-reduce", 8, name="p")
    steps = ET.fromstring(text).findall(".//step")
    assert not [step for step in steps if step.get("type") == "nop"], "one wait a step is enough"
    waits = sum(step.get("depid") != "-1" for step in steps)
    assert waits <= 8 * 2 * 14


def test_the_interpreter_sees_what_is_missing():
    text = write_msccl(plan("all-reduce", "ring", 4), "all-reduce", 4, name="p")
    whole = ET.fromstring(text)
    for number in range(len(whole.findall(".//step"))):
        algorithm = ET.fromstring(text)
        step = algorithm.findall(".//step")[number]
        if step.get("type") == "s" and step.get("depid") != "-1":
            step.set("depid", "-1")
            with pytest.raises(AssertionError, match="race"):
                prove(ET.tostring(algorithm, encoding="unicode"))
    with pytest.raises(AssertionError):
        prove(text.replace('"rrc"', '"r"'))


@pytest.mark.slow
def test_what_the_executor_cannot_run_is_refused():
    with pytest.raises(Unsupported, match="threadblocks on a rank"):
        write_msccl(plan("all-gather", "direct", 70), "all-gather", 70, name="p")
    with pytest.raises(Unsupported, match="steps in a threadblock"):
        write_msccl(plan("all-reduce", "ring", 140), "all-reduce", 140, name="p")
    with pytest.raises(Unsupported, match="peers"):
        write_msccl(plan("all-gather", "direct", 40), "all-gather", 40, name="p")


def swap():
    """Two ranks that overwrite what they send."""
    two = np.array([0, 1])
    return MessagePlan(
        parts=1,
        steps=1,
        step=np.zeros(2, dtype=np.int64),
        source=two,
        target=two[::-1].copy(),
        first=np.zeros(2, dtype=np.int64),
        blocks=np.ones(2, dtype=np.int64),
        adds=np.ones(2, dtype=bool),
        owner=np.zeros(1, dtype=np.int64),
    )


def test_swaps_are_refused():
    with pytest.raises(Unsupported, match="sends and receives a block in one step"):
        write_msccl(swap(), "all-reduce", 2, name="p")


@pytest.mark.parametrize(
    ("changes", "match"), [({"name": 'a"b'}, "name"), ({"name": ""}, "name"), ({"size": 1}, "group of 1")]
)
def test_arguments_that_cannot_be(changes, match):
    given = {"size": 4, "name": "p"} | changes
    with pytest.raises(BadInput, match=match):
        write_msccl(plan("all-reduce", "ring", 4), "all-reduce", given.pop("size"), **given)


def test_shares_of_different_sizes_are_refused():
    with pytest.raises(Unsupported, match="own different"):
        write_msccl(swap(), "all-gather", 2, name="p")
