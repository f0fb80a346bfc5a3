"""A schedule in the formats of the stacks that run or simulate it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.commands.shared import constants_of
from weft.errors import BadInput, Unsupported
from weft.interop.formats import formats_of

if TYPE_CHECKING:
    from weft.collectives.schedules.timing import TimedSchedule
    from weft.commands.schedule import Scheduled, ScheduleOptions

MSCCL_CHUNKS = 32_767
"""Parts of a buffer that MSCCL's executor takes."""
FORMATS = tuple(formats_of("schedule"))


def exported(found: Scheduled, asked: ScheduleOptions, form: str) -> str:
    """A schedule as text in one of ``FORMATS`` but chakra.

    Raises:
        BadInput: the format needs a cluster.
        Unsupported: the format cannot hold the schedule; says why.
    """
    timed, cluster = found.timed, found.cluster
    if form == "msccl":
        return _msccl_text(timed)
    if form == "nccl-tuner":
        from weft.interop.nccl_tuner import write_tuner

        if cluster is None:
            raise BadInput("a tuner file needs --cluster", where="--export nccl-tuner")
        span = cluster.tiers[0].size
        whole = (cluster, cluster.count // span, cluster.count)
        return write_tuner([whole], calibration=constants_of(asked, cluster))
    return _astra_text(timed, form)


def _msccl_text(timed: TimedSchedule) -> str:
    from weft.collectives.messages.scheduled import equal, schedule_plan
    from weft.interop.msccl import write_msccl

    asked = timed.schedule.request
    if len(timed.schedule) * asked.accelerators > MSCCL_CHUNKS:
        problem = f"{len(timed.schedule)} chunks on {asked.accelerators} ranks are over {MSCCL_CHUNKS:,}"
        raise Unsupported(problem, where="--export msccl", remedy="give fewer chunks with --chunks")
    same = equal(timed, len(timed.schedule))
    plan = schedule_plan(same)
    name = f"weft_{asked.kind.replace('-', '')}_{asked.accelerators}"
    return write_msccl(plan, asked.kind, asked.accelerators, name=name)


def _astra_text(timed: TimedSchedule, form: str) -> str:
    asked = timed.schedule.request
    if form == "logical-topology":
        from weft.interop.astra_network import write_logical_topology

        return write_logical_topology([one.size for one in asked.dimensions])
    if form == "astra-network":
        from weft.interop.astra_network import write as write_network

        return write_network(asked.dimensions)
    from weft.interop.astra_system import AstraSystem
    from weft.interop.astra_system import write as write_system

    policy = timed.schedule.policy.split()[0]
    if policy == "weft":
        raise BadInput(
            "ASTRA-sim has no policy weft", where="--export astra-system", remedy="add --policy themis or baseline"
        )
    if timed.active is None:
        problem = "ASTRA-sim has no overlap of latencies without limit"
        raise BadInput(problem, where="--export astra-system", remedy="add --active 1, or more")
    system = AstraSystem(
        algorithms={asked.kind: asked.algorithms},
        chunks=len(timed.schedule),
        active=timed.active,
        policy="themis" if policy == "themis" else "baseline",
        order="scf" if "scf" in timed.rule else "fifo",
    )
    return write_system(system, version="1" if policy == "themis" else "2")


def write_chakra(timed: TimedSchedule, folder: str) -> int:
    """Traces of the collective for every rank, FOLDER/trace.<rank>.et; returns how many."""
    from weft.interop.chakra import write_traces
    from weft.model.workload import Communication, Task, Workload

    asked = timed.schedule.request
    call = Communication(kind=asked.kind, bytes=asked.bytes)
    workload = Workload(name=asked.kind, tasks=(Task(name=asked.kind, communication=call),))
    sizes = [one.size for one in asked.dimensions]
    return len(write_traces(workload, folder, asked.accelerators, sizes=sizes))
