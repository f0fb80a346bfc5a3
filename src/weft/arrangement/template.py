"""The iteration of a job by rank: phases of computation and communication, ready to be put on any hosts.

The phases are those of the flow-level simulation of one iteration (``weft.simulation.iteration.simulate``), built once
on a 1:1 rail-optimized network of the job's own size.  Phases whose flows all stay inside hosts become delays: what
they take there does not depend on where the hosts are.  Large jobs are one burst of all their bytes and a pause
(``weft.simulation.iteration.evaluator``), as ``weft route`` sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from weft.arrangement.site import SiteJob
from weft.cluster.calibration import calibration
from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.fabric.catalogue import for_cluster
from weft.fabric.paths import Paths
from weft.fabric.spec import Fabric, Floats, Ints, Mask
from weft.fabric.traffic import Phases
from weft.routing.traffic import JobTraffic, merged
from weft.simulation.flows.engine import run
from weft.simulation.iteration.contention import Messages, Wires, reached, title
from weft.simulation.iteration.demand import Key
from weft.simulation.iteration.evaluator import planned_traffic
from weft.simulation.iteration.simulate import iteration_traffic

Detail = Literal["phases", "burst"]
MOST_RANKS = 256
"""Ranks of a job up to which its iteration is stepped phase by phase."""
MOST_WAITS = 8
"""Phases that one may wait for after it took over those of another."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """One iteration of a job.

    Flow ``f`` is in phase ``phase[f]``, carries ``bytes[f]`` and takes the route of message ``message[f]``, which
    goes from rank ``source[m]`` to ``target[m]`` in the collective ``titles[group[m]]``.  ``last`` ends the
    iteration.  ``alone_s`` is what it takes alone on a 1:1 rail-optimized network, sprayed; ``network_s`` the
    part of it in which something is sent between hosts.  ``traffic`` are all flows between hosts, by rank, for
    routers; it is None where nothing leaves a host.
    """

    name: str
    detail: Detail
    ranks: int
    domains: int
    phases: Phases
    last: int
    phase: Ints
    bytes: Floats
    message: Ints
    source: Ints
    target: Ints
    group: Ints
    titles: tuple[str, ...]
    traffic: JobTraffic | None
    alone_s: float
    network_s: float

    def between_hosts(self, size: int) -> Floats:
        """Bytes that are stepped in an iteration from each host of the job (row) to each other."""
        result = np.zeros((self.domains, self.domains))
        source, target = self.source[self.message] // size, self.target[self.message] // size
        np.add.at(result, (source, target), np.where(source == target, 0.0, self.bytes))
        return result


def template(job: SiteJob, cluster: Cluster) -> Template:
    """The iteration of a job of a site."""
    constants = calibration(cluster.accelerator.name)
    network = bare(job, cluster)
    fabric = reached(network, constants)
    try:
        traffic = planned_traffic(job.job, cluster, job.layout, fabric, name=job.name)
    except BadInput as error:
        if "sends nothing over the network" not in error.what:
            raise
        traffic = None
    if traffic is None or job.layout.world <= MOST_RANKS:
        return _phased(job, Wires(job.layout, cluster, network, constants, routing="spray"), traffic)
    return _burst(job, fabric, traffic)


def bare(job: SiteJob, cluster: Cluster) -> Fabric:
    """A 1:1 rail-optimized network of the job's size."""
    size, hosts = cluster.tiers[0].size, max(job.domains, 2)
    rail = replace(cluster.tiers[1], size=hosts, oversubscription=1.0)
    alone = replace(cluster, count=size * hosts, tiers=(cluster.tiers[0], rail))
    return for_cluster("rail-optimized", alone, radix=4096, oversubscription=1.0)


def _phased(job: SiteJob, wires: Wires, traffic: JobTraffic | None) -> Template:
    """Every phase of an iteration; phases that stay inside hosts as delays."""
    full, messages = iteration_traffic(job.job, wires.cluster, job.layout, wires)
    # The job is stepped alone once: what stays inside hosts takes the same time beside other jobs, and becomes a
    # delay.
    done = run(wires.capacity_Bps, full.traffic, full.routes)
    source, target, group, titles = _messages(messages)
    # A phase with one flow between hosts keeps all of its flows; one without becomes a delay.
    away = wires.fabric.domain[full.traffic.source] != wires.fabric.domain[full.traffic.target]
    mixed = np.zeros(len(full.traffic.phases), dtype=bool)
    mixed[full.traffic.phase[away]] = True
    flows = np.flatnonzero(mixed[full.traffic.phase])
    inside_s = np.where(mixed, 0.0, done.phase_end_s - done.phase_begin_s)
    phases_alone = replace(full.traffic.phases, delay_s=full.traffic.phases.delay_s + inside_s)
    phases, number = contracted(phases_alone, mixed, full.last)
    return Template(
        name=job.name,
        detail="phases",
        ranks=job.layout.world,
        domains=job.domains,
        phases=phases,
        last=int(number[full.last]),
        phase=number[full.traffic.phase[flows]],
        bytes=full.traffic.bytes[flows],
        message=full.message[flows],
        source=source,
        target=target,
        group=group,
        titles=titles,
        traffic=traffic,
        alone_s=float(done.phase_end_s[full.last]),
        network_s=float(np.diff(covered(done.phase_begin_s[mixed], done.phase_end_s[mixed])).sum()),
    )


def _messages(messages: dict[Key, Messages]) -> tuple[Ints, Ints, Ints, tuple[str, ...]]:
    """Source, target and collective of the messages of all waves, in order, and titles of collectives."""
    titles: dict[str, int] = {}
    sources, targets, groups = [], [], []
    for key, messages_of_key in messages.items():
        for wave in messages_of_key.waves:
            names = [title(key, number) for number in range(int(wave.group.max(initial=-1)) + 1)]
            numbers = np.array([titles.setdefault(name, len(titles)) for name in names], dtype=np.int64)
            sources.append(wave.source)
            targets.append(wave.target)
            groups.append(numbers[wave.group] if len(names) else wave.group)
    none = np.zeros(0, dtype=np.int64)
    source, target, group = (np.concatenate([none, *part]) for part in (sources, targets, groups))
    return source, target, group, tuple(titles)


def _burst(job: SiteJob, fabric: Fabric, traffic: JobTraffic) -> Template:
    """All bytes of an iteration at once, then a pause."""
    # Too many ranks to step every phase: bytes and pause are right, their order within the iteration is not.
    epoch = traffic.epochs(1)
    order = np.argsort(traffic.collective, kind="stable")
    pause = len(epoch.phases) - 1
    routes = Paths(fabric).routes(epoch.source, epoch.target, mode="spray").without_latency()
    done = run(fabric.capacity_Bps, epoch, routes)
    return Template(
        name=job.name,
        detail="burst",
        ranks=job.layout.world,
        domains=job.domains,
        phases=epoch.phases,
        last=pause,
        phase=epoch.phase,
        bytes=epoch.bytes,
        message=order,
        source=traffic.source,
        target=traffic.target,
        group=traffic.collective,
        titles=traffic.names,
        traffic=traffic,
        alone_s=float(done.phase_end_s[pause]),
        network_s=float(done.phase_end_s[pause] - traffic.pause_s[0]),
    )


def covered(begin: Floats, end: Floats) -> Floats:
    """The union of some spans of time, as disjoint spans (begin, end) in order."""
    # A new span begins where it begins after all before it have ended.
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]])[: len(begin)])
    last = np.append(first[1:], len(begin))[: len(first)] - 1
    return np.stack([begin[first], reach[last]], axis=1)


def contracted(phases: Phases, flows: Mask, last: int) -> tuple[Phases, Ints]:
    """The phases that are left, and their number in the new order (-1: gone).

    A phase that waits for nothing but one without flows begins when that one's waits have ended, and both delays
    have passed.  A phase without flows and delay may be replaced by what it waits for.

    Args:
        flows: which phases have flows; these stay, as does ``last``.
    """
    delay = phases.delay_s.tolist()
    waits = [list(part) for part in np.split(phases.waits, phases.indptr[1:-1])]
    bare = (~flows).tolist()
    # Both rules keep the time at which each phase with flows begins: delays and waits are taken over, none is dropped.
    changed = True
    while changed:
        changed = False
        for phase, before_it in enumerate(waits):
            # Rule 1: a chain.  The delay of the phase before is added, and its waits are taken over.
            if len(before_it) == 1 and bare[before_it[0]]:
                before = before_it[0]
                delay[phase] += delay[before]
                waits[phase] = list(waits[before])
                changed = True
                continue
            for before in before_it:
                more = waits[before]
                # Rule 2: a join without a delay is replaced by what it waits for, as long as the list stays short.
                if bare[before] and delay[before] == 0.0 and more and len(before_it) + len(more) <= MOST_WAITS:
                    waits[phase] = sorted({*before_it, *more} - {before})
                    changed = True
                    break
    stays = flows.copy()
    stays[last] = True
    # What no phase with flows waits for any more is gone.
    stack = np.flatnonzero(stays).tolist()
    while stack:
        for before in waits[stack.pop()]:
            if not stays[before]:
                stays[before] = True
                stack.append(before)
    left = np.flatnonzero(stays)
    number = np.full(len(waits), -1, dtype=np.int64)
    number[left] = np.arange(len(left))
    lengths = [len(waits[phase]) for phase in left.tolist()]
    every = [before for phase in left.tolist() for before in waits[phase]]
    return (
        replace(
            phases,
            delay_s=np.array(delay)[left],
            start_s=phases.start_s[left],
            indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            waits=number[np.array(every, dtype=np.int64)],
            label=phases.label[left],
            job=phases.job[left],
        ),
        number,
    )


def merged_traffic(parts: list[tuple[JobTraffic, Ints]]) -> JobTraffic:
    """The flows of several jobs by accelerator; each part is a job by rank and the accelerators of its ranks."""
    return merged([replace(traffic, source=at[traffic.source], target=at[traffic.target]) for traffic, at in parts])
