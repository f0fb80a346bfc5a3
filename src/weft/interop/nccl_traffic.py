"""Traffic of a run from its NCCL logs: who sends to whom, and how much in a pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from weft.errors import BadInput
from weft.fabric.placement import host_names
from weft.fabric.spec import Fabric
from weft.interop.flow_tables import FlowRow, read_records, traffic_of
from weft.interop.nccl_log import Communicator, Gpu, NcclLog, Operation, is_nccl_log, read_nccl_logs
from weft.routing.demand import MeasuredDemand, RecognisedJob, recognised
from weft.routing.problem import sharing_ports
from weft.routing.traffic import JobTraffic
from weft.units import format_bytes

UNKNOWN_BYTES = 1e9
"""Of each connection of a ring, where the log has no operations: only who talks to whom counts."""
_Flows = dict[tuple[str, int, int], float]
"""Bytes by pattern, source and target (ranks)."""


def demand_of(paths: Sequence[str], fabric: Fabric) -> MeasuredDemand:
    """What is recognised in tables of measured flows, which may be no job, or in NCCL logs of one run.

    Raises:
        BadInput: tables beside logs, or one of ``read_records`` and ``read_demand``.
    """
    logs = [path for path in paths if is_nccl_log(path)]
    if logs and len(logs) < len(paths):
        raise BadInput("has logs of NCCL beside tables", where=", ".join(paths[:3]), remedy="give either")
    return read_demand(logs, fabric) if logs else recognised(read_records(paths, fabric), fabric)


def read_demand(paths: Sequence[str], fabric: Fabric) -> MeasuredDemand:
    """The traffic of the logs of one run, of one pass through its operations.

    Raises:
        BadInput: no communicators, not all of their ranks, or hosts that do not fit on the fabric.
    """
    where = ", ".join(paths[:3])
    log = read_nccl_logs(*paths)
    groups = [group for group in log.communicators if group.size > 1]
    if not groups:
        remedy = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL"
        raise BadInput("names no communicator of several ranks", where=where, remedy=remedy)
    for group in groups:
        if group.mixed:
            remedy = "use NCCL 2.17 or later, which names them"
            raise BadInput(f"has communicators of {group.size} ranks that look alike", where=where, remedy=remedy)
        if len(group.members) != group.size or len(set(group.members.values())) != group.size:
            problem = f"tells of {len(set(group.members.values()))} of the {group.size} ranks of a communicator"
            raise BadInput(problem, where=where, remedy="give the logs of all processes")
    accelerator, assumptions = _placed(log, groups, fabric, where)
    passes = {gpu: _last_pass(operations) for gpu, operations in log.operations.items()}
    if not passes:
        assumptions.append(
            f"the log has no bytes (subsystem COLL): each ring connection sends {format_bytes(UNKNOWN_BYTES)}"
        )
    elif all(len(passes[gpu]) == len(log.operations[gpu]) for gpu in passes):
        assumptions.append("operations do not repeat: bytes are those of the whole log")
    if passes and not log.over_trees:
        assumptions.append("collectives go over rings (the log does not say which go over trees: subsystem TUNING)")
    rows: list[FlowRow] = []
    job_of = _jobs(groups)
    for number, group in enumerate(log.communicators):
        if group.size < 2:
            continue
        flows = _flows(number, group, passes, log.over_trees) if passes else _equal(group)
        for (pattern, source, target), size in flows.items():
            begin, end = (accelerator[group.members[rank]] for rank in (source, target))
            if size > 0 and fabric.domain[begin] != fabric.domain[end]:
                job, name = f"nccl {job_of[group.members[0]]}", f"{pattern} of {group.size} #{number}"
                rows.append(FlowRow(begin, end, size, job, name))
    if not rows:
        raise BadInput("sends nothing between hosts", where=where, remedy="give the logs of a run on several hosts")
    traffic = sharing_ports(fabric, traffic_of(rows, where))
    members: dict[str, list[int]] = defaultdict(list)
    for gpu, job_number in job_of.items():
        members[f"nccl {job_number}"].append(accelerator[gpu])
    jobs = tuple(
        _job(traffic, job, sorted(members[name]), known=bool(passes)) for job, name in enumerate(traffic.jobs)
    )
    records = sum(len(operations) for operations in log.operations.values())
    return MeasuredDemand(
        traffic=traffic,
        jobs=jobs,
        records=records or len(groups),
        assumptions=tuple(assumptions),
        unit="operation" if records else "communicator",
        sure="share of the flows whose bytes are logged",
    )


def _job(traffic: JobTraffic, job: int, members: Sequence[int], *, known: bool) -> RecognisedJob:
    mine = np.flatnonzero(traffic.flow_job == job)
    names = [traffic.names[c].partition(" #")[0] for c in np.flatnonzero(traffic.job == job).tolist()]
    return RecognisedJob(
        job=traffic.jobs[job],
        accelerators=tuple(members),
        period_s=None,
        spread=None,
        bytes=float(traffic.bytes[mine].sum()),
        collectives=dict(Counter(names)),
        confidence=float(known),
    )


def _jobs(groups: Sequence[Communicator]) -> dict[Gpu, int]:
    """The job of every GPU: those that share communicators, directly or over others."""
    job: dict[Gpu, int] = {}
    for number, group in enumerate(groups):
        joined = {job[gpu] for gpu in group.members.values() if gpu in job}
        least = min(joined, default=number)
        job |= {gpu: least for gpu, other in job.items() if other in joined}
        job |= dict.fromkeys(group.members.values(), least)
    order = {number: at for at, number in enumerate(sorted(set(job.values())))}
    return {gpu: order[number] for gpu, number in job.items()}


def _placed(
    log: NcclLog, groups: Sequence[Communicator], fabric: Fabric, where: str
) -> tuple[dict[Gpu, int], list[str]]:
    """The accelerator of every GPU, and what was assumed."""
    gpus: dict[str, set[Gpu]] = defaultdict(set)
    for group in groups:
        for gpu in group.members.values():
            gpus[gpu.host].add(gpu)
    places: dict[str, list[int]] = defaultdict(list)
    for accelerator, host in enumerate(host_names(fabric)):
        places[host].append(accelerator)
    short = {host.partition(".")[0]: host for host in places}
    names = {host: host if host in places else short.get(host.partition(".")[0]) for host in sorted(gpus)}
    assumptions = []
    if None in names.values() or len(set(names.values())) < len(names):
        if len(names) > len(places):
            raise BadInput(
                f"has {len(names)} hosts, {fabric.name} {len(places)}", where=where, remedy="use its network"
            )
        names = dict(zip(names, places, strict=False))
        first, last = next(iter(names)), list(names)[-1]
        assumptions.append(f"hosts in the order of their names: {first} is {names[first]}, {last} is {names[last]}")
    result: dict[Gpu, int] = {}
    for host, name in names.items():
        own, free = sorted(gpus[host], key=lambda gpu: (gpu.device, gpu.process, gpu.number)), places[str(name)]
        if len(own) > len(free):
            problem = f"has {len(own)} GPUs on {host}, {fabric.name} {len(free)} on {name}"
            raise BadInput(problem, where=where, remedy="give the network of this run")
        devices = [gpu.device for gpu in own]
        numbered = len(set(devices)) == len(own) and max(devices) < len(free)
        result |= {gpu: free[gpu.device if numbered else at] for at, gpu in enumerate(own)}
    return result, assumptions


def _last_pass(operations: Sequence[Operation]) -> Sequence[Operation]:
    """The last of the passes that repeat from the middle of the log on; all operations where none does."""
    back = list(reversed(operations[len(operations) // 2 :]))
    # Borders of all beginnings (Knuth, Morris, Pratt): what is longer than its border by p repeats every p.
    border = [0] * len(back)
    for at in range(1, len(back)):
        length = border[at - 1]
        while length and back[at] != back[length]:
            length = border[length - 1]
        border[at] = length + (back[at] == back[length])
    period = len(back) - border[-1] if back else 0
    return operations[-period:] if 2 * period <= len(back) else operations


def _equal(group: Communicator) -> _Flows:
    """The same bytes for every connection of rings, or of all connections where the log lists no ring."""
    flows: _Flows = defaultdict(float)
    for _, source, target in group.rings or group.connections:
        flows["ring", source, target] += UNKNOWN_BYTES
    return flows


def _flows(
    number: int, group: Communicator, passes: dict[Gpu, Sequence[Operation]], over_trees: frozenset[tuple[str, int]]
) -> _Flows:
    """The bytes of a pass: collectives as its first rank calls them, sends as their senders do."""
    flows: _Flows = defaultdict(float)
    ranks = group.size
    rings = group.rings or group.connections
    for rank, gpu in sorted(group.members.items()):
        calls = Counter(operation for operation in passes.get(gpu, ()) if operation.communicator == number)
        for (name, bytes_, root, _), times in calls.items():
            size = times * bytes_
            if name == "Send" and root < ranks:
                flows["sends", rank, root] += size
            elif rank or name in ("Send", "Recv"):
                continue
            elif (name, bytes_) in over_trees and group.trees:
                # Each channel has a tree for its share: up to the root, and down again.
                share = size / len({channel for channel, _, _ in group.trees})
                for _, child, parent in group.trees:
                    flows["tree", child, parent] += share
                    flows["tree", parent, child] += share * (name == "AllReduce")
            else:
                # Each channel has a ring for its share.  Counts of AllGather and ReduceScatter are of one rank's part.
                passed = {"AllReduce": 2 * (ranks - 1) / ranks, "AllGather": ranks - 1, "ReduceScatter": ranks - 1}
                share = size * passed.get(name, 1.0) / max(len({channel for channel, _, _ in rings}), 1)
                for _, source, target in rings:
                    ends = {"Broadcast": target, "Reduce": source}.get(name, -1)
                    flows["ring", source, target] += share * (ends != root)
    return flows
