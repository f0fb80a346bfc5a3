"""Traffic from NCCL logs, in the forms of lines that NCCL 2.21 and RCCL print (as in public issues)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.dimension import Dimension
from weft.fabric.families import rail
from weft.interop.events import read_event
from weft.interop.nccl_traffic import read_demand

GPUS = 4
GB = 10**9


def fabric(hosts=4):
    inside = Dimension(kind="switch", size=GPUS, bandwidth_Bps=450e9)
    return rail.only(hosts * GPUS, radix=2 * hosts, bandwidth_Bps=50e9, scale_up=inside)


class Run:
    """A log of processes with a GPU each; ranks of the world are in the order of hosts and GPUs."""

    def __init__(self, hosts: list[str], *, visible: bool = True, named: bool = True) -> None:
        self.hosts, self.visible, self.named = hosts, visible, named
        self.text: list[str] = []

    @property
    def world(self):
        return len(self.hosts) * GPUS

    def say(self, gpu, words, thread=7):
        shown = gpu % GPUS if self.visible else 0
        self.text.append(f"{self.hosts[gpu // GPUS]}:{100 + gpu}:{thread} [{shown}] NCCL INFO {words}")

    def communicator(self, number, members, *, channels=2, lists=True, trees=False):
        """The set-up of a communicator of some GPUs: in a thread of its own; before 2.17 in one, named at the end."""
        size, thread = len(members), 50 + number if self.named else 7
        heads = [
            f"comm 0x{number}{gpu:03x} rank {rank} nranks {size} cudaDev {0 if self.named else gpu % GPUS}"
            for rank, gpu in enumerate(members)
        ]
        if self.named:
            for gpu, head in zip(members, heads, strict=True):
                name = f"nvmlDev {gpu % GPUS} busId {gpu}000 commId 0xabc{number}"
                self.say(gpu, f"ncclCommInitRank {head} {name} - Init START", thread)
        for channel in range(channels):
            if lists:
                ring = "".join(f"{rank:4d}" for rank in range(size))
                self.say(members[0], f"Channel {channel:02}/{channels:02} :{ring}", thread)
            for rank, gpu in enumerate(members):
                after = (rank + 1) % size
                if not lists:
                    self.say(gpu, f"Ring {channel:02} : {(rank - 1) % size} -> {rank} -> {after}", thread)
                via = "P2P/IPC" if members[after] // GPUS == gpu // GPUS else f"NET/IB/{channel}/GDRDMA"
                way = "" if via.startswith("P2P") else "[send] "
                self.say(gpu, f"Channel {channel:02}/0 : {rank}[{gpu % GPUS}] -> {after}[0] {way}via {via}", thread)
        if trees:
            for rank, gpu in enumerate(members):
                ups = [
                    f"[{c}] {min(rank + 1, size) if rank + 1 < size else -1}/-1/-1->{rank}->{rank - 1}"
                    for c in range(channels)
                ]
                self.say(gpu, "Trees " + " ".join(ups), thread)
        if not self.named:
            for gpu, head in zip(members, heads, strict=True):
                self.say(gpu, f"{head} busId {gpu}000 - Init COMPLETE", thread)

    def call(self, number, gpu, name, count, *, kind=7, root=0, size=16, opcount=0):
        words = f"{name}: opCount {opcount:x} sendbuff 0x7f00 recvbuff (nil) count {count} datatype {kind} op 0"
        self.say(gpu, f"{words} root {root} comm 0x{number}{gpu:03x} [nranks={size}] stream 0x55")

    def write(self, path):
        path.write_text("\n".join(["# launching", *self.text, ""]))
        return str(path)


def sample(named):
    """A short log for the fuzzer."""
    run = Run(["n0", "n1"], named=named)
    run.communicator(1, range(8), trees=named)
    for step in range(3):
        for gpu in (0, 4):
            run.call(1, gpu, "AllReduce", 1024, opcount=step, size=8)
        run.say(0, "AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}")
    return "\n".join(run.text)


def flows(demand, job=0):
    traffic = demand.traffic
    mine = np.flatnonzero(traffic.flow_job == job)
    rows = zip(*(column[mine].tolist() for column in (traffic.source, traffic.target, traffic.bytes)), strict=True)
    result = {}
    for source, target, size in rows:
        result[source, target] = result.get((source, target), 0.0) + size
    return result


@pytest.mark.parametrize("lists", [True, False])
def test_an_all_reduce_goes_round_the_ring(tmp_path, lists):
    run = Run(["n0", "n1", "n2", "n3"])
    run.communicator(1, range(16), lists=lists)
    for step in range(6):
        for gpu in range(16):
            run.call(1, gpu, "AllReduce", GB, opcount=step)
    demand = read_demand([run.write(tmp_path / "nccl.log")], fabric())
    # One call a pass; the last GPU of a host sends to the first of the next, on both channels together.
    assert flows(demand) == {(4 * h + 3, (4 * h + 4) % 16): pytest.approx(2 * 15 / 16 * 4 * GB) for h in range(4)}
    (job,) = demand.jobs
    assert (job.confidence, job.period_s, demand.records) == (1.0, None, 96)
    assert job.collectives == {"ring of 16": 1}
    assert any("hosts in the order of their names: n0 is host-0, n3 is host-3" in text for text in demand.assumptions)


def test_a_pass_is_what_repeats_and_collectives_count_as_they_pass_the_ring(tmp_path):
    run = Run(["n0", "n1"])
    run.communicator(1, range(8))
    run.communicator(2, [0, 4], channels=1)
    calls = [("Broadcast", 5)] + 4 * [("AllGather", 3), ("AllGather", 3), ("ReduceScatter", 2)]
    for name, count in calls:
        for gpu in range(8):
            run.call(1, gpu, name, count * GB, kind=9, size=8)
        if name == "ReduceScatter":
            run.call(2, 0, "Send", GB, kind=7, root=1, size=2)
            run.call(2, 4, "Recv", GB, kind=7, root=0, size=2)
    demand = read_demand([run.write(tmp_path / "nccl.log")], fabric(2))
    ring = 7 * (3 + 3 + 2) * 2 * GB
    assert flows(demand) == {(3, 4): pytest.approx(ring), (7, 0): pytest.approx(ring), (0, 4): 4 * GB}
    assert demand.jobs[0].collectives == {"ring of 8": 1, "sends of 2": 1}
    assert len(demand.jobs) == 1


def test_trees_where_nccl_says_so(tmp_path):
    run = Run(["n0", "n1"])
    run.communicator(1, range(8), trees=True)
    for step in range(4):
        for gpu in range(8):
            run.call(1, gpu, "AllReduce", 256, opcount=step, size=8)
            run.say(gpu, "AllReduce: 1024 Bytes -> Algo 0 proto 0 time 12.5")
    demand = read_demand([run.write(tmp_path / "nccl.log")], fabric(2))
    # The chain of ranks is the tree: 4 sends up to 3, and 3 down to 4.
    assert flows(demand) == {(4, 3): 1024.0, (3, 4): 1024.0}
    assert not any("over rings" in text for text in demand.assumptions)


def test_without_operations_connections_are_equal_and_it_says_so(tmp_path):
    run = Run(["n1", "n0"])
    run.communicator(1, range(8), channels=3)
    demand = read_demand([run.write(tmp_path / "nccl.log")], fabric(2))
    # Host names are sorted: n0, which has the ranks from 4 on, is the first host.
    assert flows(demand) == {(7, 0): 3 * GB, (3, 4): 3 * GB}
    assert demand.jobs[0].confidence == 0.0
    assert "the log has no bytes" in demand.assumptions[-1]


def test_hosts_with_the_names_of_the_fabric_and_processes_that_see_one_gpu(tmp_path):
    run = Run(["host-3.example.org", "host-1"], visible=False)
    run.communicator(1, range(8))
    demand = read_demand([run.write(tmp_path / "nccl.log")], fabric())
    assert set(flows(demand)) == {(15, 4), (7, 12)}
    assert not any("order of their names" in text for text in demand.assumptions)


def test_two_jobs_whose_ranks_share_no_communicator(tmp_path):
    run = Run(["n0", "n1", "n2", "n3"])
    run.communicator(1, range(8))
    run.communicator(2, range(8, 16))
    run.communicator(3, [9, 13])
    demand = read_demand([run.write(tmp_path / "nccl.log")], fabric())
    assert [job.accelerators for job in demand.jobs] == [tuple(range(8)), tuple(range(8, 16))]


def test_parts_of_a_log_are_refused(tmp_path):
    run = Run(["n0", "n1"])
    run.communicator(1, range(8))
    path = run.write(tmp_path / "nccl.log")
    text = (tmp_path / "nccl.log").read_text()
    (tmp_path / "nccl.log").write_text("\n".join(line for line in text.splitlines() if not line.startswith("n1")))
    with pytest.raises(BadInput, match=r"tells of 4 of the 8 ranks"):
        read_demand([path], fabric(2))
    (tmp_path / "a.log").write_text("\n".join(line for line in text.splitlines() if line.startswith("n0")))
    (tmp_path / "b.log").write_text("\n".join(line for line in text.splitlines() if line.startswith("n1")))
    logs = [str(tmp_path / "b.log"), str(tmp_path / "a.log")]
    demand = read_demand(logs, fabric(2))
    assert flows(demand)
    # An event of weft route watch names the logs.
    event = read_event(json.dumps({"time_s": 9, "event": "measured", "files": logs}), fabric(2), "line 1")
    assert event.traffic is not None
    assert event.traffic.bytes.tolist() == demand.traffic.bytes.tolist()
    with pytest.raises(BadInput, match="2 hosts"):
        read_demand([str(tmp_path / "b.log"), str(tmp_path / "a.log")], fabric(1))


def test_communicators_without_names_are_told_apart_where_they_can_be(tmp_path):
    run = Run(["n0", "n1"], named=False)
    run.communicator(1, range(8))
    run.communicator(2, [0, 4])
    ring = {(3, 4): 2 * GB, (7, 0): 2 * GB, (0, 4): 2 * GB, (4, 0): 2 * GB}  # two channels each
    assert flows(read_demand([run.write(tmp_path / "a.log")], fabric(2))) == ring
    run.communicator(3, [1, 5])
    with pytest.raises(BadInput, match="look alike"):
        read_demand([run.write(tmp_path / "b.log")], fabric(2))
