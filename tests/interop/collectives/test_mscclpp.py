"""MSCCL++ execution plans, run by an interpreter of its own that knows nothing of plans.

Threadblocks of all ranks run in any order; a put writes the memory of another rank at once.  Chunks name
their contributions, and vector clocks show that no order of threadblocks could change the outcome.
"""

import json
import random
from collections import Counter, deque
from itertools import product

import pytest

from weft.collectives.messages.flows import plan
from weft.errors import BadInput, Unsupported
from weft.interop.collectives.mscclpp import write_mscclpp

FLAT = [
    (kind, algorithm)
    for kind, algorithms in {
        "all-reduce": ("ring", "direct", "halving-doubling", "tree", "double-tree"),
        "all-gather": ("ring", "direct", "halving-doubling"),
        "reduce-scatter": ("ring", "direct", "halving-doubling"),
        "all-to-all": ("direct",),
        "broadcast": ("direct", "tree", "double-tree"),
        "reduce": ("direct", "tree", "double-tree"),
    }.items()
    for algorithm in algorithms
]
SPREAD = [
    (kind, algorithm)
    for algorithm in ("rings", "hierarchical")
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    if (kind, algorithm) != ("all-to-all", "rings")
]
SHAPES = [(2, 2), (2, 3), (3, 2), (3, 3), (2, 4), (4, 4), (5, 3), (1, 5), (7, 1)]
ALIASED = ("allreduce", "broadcast", "reduce")


class Machine:
    """Ranks that launch the plan ``launches`` times: a threadblock of the next launch begins when the rank
    has ended the one before."""

    def __init__(self, text, seed=0, launches=2):
        self.plan = json.loads(text)
        self.random, self.launches = random.Random(seed), launches
        self.kind, self.in_place = self.plan["collective"], self.plan["inplace"]
        self.gpus = self.plan["gpus"]
        self.signals, self.semaphores, self.memory, self.access = {}, {}, {}, {}
        self.at, self.clock, self.launch = {}, {}, [0] * len(self.gpus)
        self.ended = [Counter() for _ in self.gpus]
        self.channels = [self.flattened(gpu) for gpu in self.gpus]
        for rank, gpu in enumerate(self.gpus):
            assert gpu["id"] == rank
            for number, block in enumerate(gpu["threadblocks"]):
                assert block["id"] == number
                assert len(block["ops"]) <= 64
                for key in ("channels", "remote_buffer_refs"):
                    assert all(len(one[name]) <= 16 for one in block[key] for name in one if name.endswith("ids"))
            assert len(gpu["semaphores"]) <= 16
            self.begin(rank)
        assert self.paired()

    def flattened(self, gpu):
        return {
            kind: [peer for one in gpu["channels"] if one["channel_type"] == kind for peer in one["connected_to"]]
            for kind in ("memory", "port")
        }

    def paired(self):
        """Both sides count as many channels to each other."""
        ranks = range(len(self.gpus))
        return all(
            self.channels[a][kind].count(b) == self.channels[b][kind].count(a)
            for kind, a, b in product(("memory", "port"), ranks, ranks)
        )

    def begin(self, rank):
        """A launch: its user has written the input after everything that the last launch did."""
        self.ended[rank][rank, -1] += 1
        for chunk in range(self.gpus[rank]["input_chunks"]):
            if self.kind != "broadcast" or rank == 0:
                home = self.home(rank, "i", chunk)
                write, reads = self.access.get(home, [None, []])
                for other in (write, *reads):
                    assert other is None or self.ended[rank][other[0]] >= other[1], "a write between launches"
                self.memory[home] = Counter({(rank, chunk): 1})
                self.access[home] = [((rank, -1), self.ended[rank][rank, -1]), []]
        for number in range(len(self.gpus[rank]["threadblocks"])):
            self.at[rank, number] = 0
            self.clock[rank, number] = Counter(self.ended[rank])

    def home(self, rank, buffer, chunk):
        gpu = self.gpus[rank]
        limit = gpu[{"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}[buffer]]
        assert 0 <= chunk < limit
        if self.in_place and buffer == "i" and self.kind == "allgather":
            return rank, "o", chunk + rank * limit
        if self.in_place and buffer == "o" and self.kind == "reducescatter":
            return rank, "i", chunk + rank * limit
        return rank, "i" if self.in_place and self.kind in ALIASED and buffer == "o" else buffer, chunk

    def run(self):
        left = len(self.gpus)
        while left:
            moved = False
            blocks = list(self.at)
            self.random.shuffle(blocks)
            for block in blocks:
                ops = self.gpus[block[0]]["threadblocks"][block[1]]["ops"]
                for _ in range(self.random.randint(1, 4)):
                    if self.at[block] < len(ops) and self.perform(block, ops[self.at[block]]):
                        self.at[block] += 1
                        moved = True
            for rank, gpu in enumerate(self.gpus):
                over = all(self.at[rank, n] == len(block["ops"]) for n, block in enumerate(gpu["threadblocks"]))
                if over and self.launch[rank] < self.launches:
                    self.check_outcome(rank)
                    self.launch[rank] += 1
                    moved = True
                    for n in range(len(gpu["threadblocks"])):
                        self.ended[rank] |= self.clock[rank, n]
                    if self.launch[rank] < self.launches:
                        self.begin(rank)
                    else:
                        left -= 1
            assert moved, "deadlock"
        assert not any(self.signals.values()), "a signal that nobody waited for"
        assert not any(map(len, self.semaphores.values()))

    def perform(self, block, op):
        name = op["name"]
        if name == "wait":
            wires = [self.inward(block, op, i) for i in op["channel_ids"]]
            if not all(self.signals.get(wire) for wire in wires):
                return False
            for wire in wires:
                self.clock[block] |= self.signals[wire].popleft()
        elif name == "sem_acquire":
            keys = [(block[0], i) for i in op["semaphore_ids"]]
            if not all(self.semaphores.get(key) for key in keys):
                return False
            for key in keys:
                self.clock[block] |= self.semaphores[key].popleft()
        else:
            self.act(block, op)
        return True

    def act(self, block, op):
        name = op["name"]
        self.clock[block][block] += 1
        if name in ("put", "pwsf"):
            assert len(op["src_buff"]) == len(op["dst_buff"]) == len(op["channel_ids"]) <= 8
            assert len({source["type"] for source in op["src_buff"]}) == 1
            for source, target, channel in zip(op["src_buff"], op["dst_buff"], op["channel_ids"], strict=True):
                remote = self.remote(block, op["channel_type"], target["buffer_id"])
                assert self.wire(block, op, channel)[0][1] == remote[0], "a channel to another rank"
                assert source["size"] == target["size"] > 0
                for k in range(source["size"]):
                    value = self.load(block, (block[0], source["type"], source["index"] + k))
                    self.store(block, (*remote, target["index"] + k), value)
        elif name in ("re", "copy"):
            (target,) = op["dst_buff"]
            assert len(op["src_buff"]) <= (9 if name == "re" else 1)
            for k in range(target["size"]):
                assert all(source["size"] == target["size"] for source in op["src_buff"])
                values = [self.load(block, (block[0], s["type"], s["index"] + k)) for s in op["src_buff"]]
                self.store(block, (block[0], target["type"], target["index"] + k), sum(values, Counter()))
        elif name == "sem_release":
            for i in op["semaphore_ids"]:
                self.semaphores.setdefault((block[0], i), deque()).append(Counter(self.clock[block]))
        if name in ("signal", "pwsf"):
            assert len(op["channel_ids"]) <= 8
            for i in op["channel_ids"]:
                self.signals.setdefault(self.wire(block, op, i), deque()).append(Counter(self.clock[block]))
        assert name in ("nop", "put", "pwsf", "re", "copy", "signal", "sem_release")

    def channel(self, block, op, i):
        """Peer of a threadblock's channel, and which of the channels to that peer it is."""
        mine = self.gpus[block[0]]["threadblocks"][block[1]]["channels"]
        (ids,) = [one["channel_ids"] for one in mine if one["channel_type"] == op["channel_type"]]
        peers = self.channels[block[0]][op["channel_type"]]
        return peers[ids[i]], (op["channel_type"], peers[: ids[i]].count(peers[ids[i]]))

    def wire(self, block, op, i):
        peer, which = self.channel(block, op, i)
        return (block[0], peer), which

    def inward(self, block, op, i):
        peer, which = self.channel(block, op, i)
        return (peer, block[0]), which

    def remote(self, block, kind, number):
        refs = self.gpus[block[0]]["threadblocks"][block[1]]["remote_buffer_refs"]
        (ids,) = [one["remote_buffer_ids"] for one in refs if one["access_channel_type"] == kind]
        buffer = self.gpus[block[0]]["remote_buffers"][ids[number]]
        assert kind in buffer["access_channel_types"]
        return buffer["rank"], buffer["type"]

    def load(self, block, place):
        home = self.home(*place)
        write, reads = self.access.setdefault(home, [None, []])
        self.check(block, write)
        reads.append((block, self.clock[block][block]))
        return self.memory[home]

    def store(self, block, place, value):
        home = self.home(*place)
        write, reads = self.access.setdefault(home, [None, []])
        for other in (write, *reads):
            self.check(block, other)
        self.access[home] = [(block, self.clock[block][block]), []]
        self.memory[home] = value

    def check(self, block, other):
        assert other is None or self.clock[block][other[0]] >= other[1], "a race between threadblocks"

    def check_outcome(self, rank):
        if self.kind == "reduce" and rank:
            return
        ranks, outputs = len(self.gpus), self.gpus[rank]["output_chunks"]
        each = max(outputs // ranks, 1)
        for chunk in range(outputs):
            expected = {
                "allreduce": [(r, chunk) for r in range(ranks)],
                "reduce": [(r, chunk) for r in range(ranks)],
                "broadcast": [(0, chunk)],
                "allgather": [(chunk // each, chunk % each)],
                "alltoall": [(chunk // each, rank * each + chunk % each)],
                "reducescatter": [(r, rank * outputs + chunk) for r in range(ranks)],
            }[self.kind]
            assert self.memory[self.home(rank, "o", chunk)] == Counter(expected)


def prove(text, seed=0):
    machine = Machine(text, seed)
    machine.run()
    assert machine.plan["protocol"] == "Simple"
    return machine


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "algorithm"), FLAT)
def test_flat_algorithms_are_exact(kind, algorithm):
    for size in range(2, 17):
        made = plan(kind, algorithm, size)
        prove(write_mscclpp(made, kind, size, name="p", domain=(None, 3, 1)[size % 3]), seed=size)
        if size < 9:
            prove(write_mscclpp(made, kind, size, name="p", in_place=False), seed=size)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "algorithm"), SPREAD)
def test_domain_algorithms_are_exact(kind, algorithm):
    for domains, members in SHAPES:
        size = domains * members
        made = plan(kind, algorithm, size, domains=domains)
        prove(write_mscclpp(made, kind, size, name="p", domain=members, in_place=size % 2 == 0), seed=size)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_threadblocks_will_do(seed):
    for kind, algorithm in (("all-reduce", "halving-doubling"), ("all-reduce", "ring"), ("broadcast", "tree")):
        for domain in (None, 2):
            prove(write_mscclpp(plan(kind, algorithm, 7), kind, 7, name="p", domain=domain), seed)


@pytest.mark.parametrize(("kind", "algorithm"), FLAT)
def test_instances_have_threadblocks_of_their_own(kind, algorithm):
    text = write_mscclpp(plan(kind, algorithm, 5), kind, 5, name="p", instances=3, in_place=False)
    machine = prove(text, seed=1)
    assert all(len(gpu["threadblocks"]) % 3 == 0 for gpu in machine.gpus)


def test_each_ring_in_its_threadblocks():
    made = plan("all-reduce", "rings", 8, domains=2)
    machine = prove(write_mscclpp(made, "all-reduce", 8, name="p", channels=4, domain=4))
    assert {len(gpu["threadblocks"]) for gpu in machine.gpus} == {8}, "two threadblocks follow each other"
    assert {len(gpu["semaphores"]) for gpu in machine.gpus} == {4}
    kinds = {op["name"] for gpu in machine.gpus for block in gpu["threadblocks"] for op in block["ops"]}
    assert kinds == {"nop", "put", "pwsf", "signal", "wait", "re", "sem_acquire", "sem_release"}


def test_many_messages_share_an_operation():
    machine = prove(write_mscclpp(plan("all-reduce", "direct", 8), "all-reduce", 8, name="p"))
    ops = [op for op in machine.gpus[0]["threadblocks"][0]["ops"] if op["name"] != "nop"]
    assert [op["name"] for op in ops] == ["signal", "wait", "put", "signal", "wait", "re", "put", "signal", "wait"]
    assert len(ops[5]["src_buff"]) == 8
    assert machine.gpus[0]["scratch_chunks"] == 7, "gathered blocks go straight to their places"


def test_a_broadcast_to_one_as_people_write_it():
    text = write_mscclpp(plan("broadcast", "direct", 2), "broadcast", 2, name="two", min_bytes=64, max_bytes=4096)
    channel = [{"channel_type": "memory", "channel_ids": [0]}]
    joined = {"channel_ids": [0], "channel_type": "memory"}

    def gpu(rank, ops, refs, remote):
        block = {"id": 0, "ops": ops, "channels": channel, "remote_buffer_refs": refs}
        return {
            "id": rank,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": 0,
            "threadblocks": [block],
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
            "remote_buffers": remote,
            "semaphores": [],
        }

    source, target = {"type": "i", "index": 0, "size": 1}, {"buffer_id": 0, "index": 0, "size": 1}
    put = {"name": "put", "src_buff": [source], "dst_buff": [target], **joined}
    signal, wait, nop = {"name": "signal", **joined}, {"name": "wait", **joined}, {"name": "nop"}
    refs = [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]
    remote = [{"rank": 1, "type": "o", "access_channel_types": ["memory"]}]
    assert json.loads(text) == {
        "name": "two",
        "collective": "broadcast",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "num_threads_per_block": 1024,
        "min_message_size": 64,
        "max_message_size": 4096,
        "gpus": [gpu(0, [wait, nop, put, nop, signal], refs, remote), gpu(1, [signal, wait, nop], [], [])],
    }


def without(text, names, *, first_only=False):
    """The plan with some operations made nops."""
    made = json.loads(text)
    for gpu in made["gpus"]:
        for block in gpu["threadblocks"]:
            places = [i for i, op in enumerate(block["ops"]) if op["name"] in names]
            for i in places[:1] if first_only else places:
                block["ops"][i] = {"name": "nop"}
    return json.dumps(made)


def test_the_interpreter_sees_what_is_missing():
    text = write_mscclpp(plan("all-reduce", "ring", 8), "all-reduce", 8, name="p")
    for broken in (
        without(text, ("sem_acquire", "sem_release")),
        without(text, ("signal", "wait"), first_only=True),
        without(text, ("re",)),
        without(text, ("put",), first_only=True),
        without(text, ("signal",)),
    ):
        with pytest.raises((AssertionError, KeyError)):
            prove(broken)


@pytest.mark.slow
def test_what_the_executor_cannot_run_is_refused():
    with pytest.raises(Unsupported, match="a step needs more"):
        write_mscclpp(plan("all-to-all", "direct", 32), "all-to-all", 32, name="p")
    with pytest.raises(Unsupported, match="semaphores"):
        write_mscclpp(plan("all-reduce", "ring", 90), "all-reduce", 90, name="p")
    with pytest.raises(Unsupported, match="exchange"):
        write_mscclpp(plan("exchange", "ring", 4), "exchange", 4, name="p")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": 'a"b'}, "name"),
        ({"domain": 0}, "domain"),
        ({"min_bytes": 5, "max_bytes": 4}, "size"),
        ({"min_bytes": -1}, "size"),
        ({"channels": 3}, "divide"),
        ({"instances": 0}, "instances"),
        ({"size": 3}, "outside"),
    ],
)
def test_arguments_that_cannot_be(changes, match):
    given = {"size": 4, "name": "p"} | changes
    with pytest.raises(BadInput, match=match):
        write_mscclpp(plan("all-reduce", "ring", 4), "all-reduce", given.pop("size"), **given)
