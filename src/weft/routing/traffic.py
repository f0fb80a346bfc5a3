"""The long-lived flows of training jobs: which accelerators talk, how much, how often, and for which job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.fabric.checks import some
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.fabric.traffic import Phases, Traffic

_OF_FLOWS = ("source", "target", "bytes", "cap_Bps", "queue_pair", "collective")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTraffic:
    """Flows that repeat for as long as their jobs run.

    Flow ``f`` goes from accelerator ``source[f]`` to ``target[f]`` and carries ``bytes[f]`` in every round
    of its ``collective[f]``; its rate never exceeds ``cap_Bps[f]`` (inf: only links bound it).
    Where a flow was split over several queue pairs, ``queue_pair`` tells its parts apart (otherwise it is 0).

    Collective ``c`` belongs to ``job[c]`` and has ``rounds[c]`` rounds, each of which begins when the last
    flow of the one before has ended (a ring all-reduce over r ranks: 2 (r-1) rounds).  A job's collectives
    run at the same time; once all have ended, the job computes for ``pause_s`` and repeats.  It begins at
    ``start_s``.
    """

    source: Ints
    target: Ints
    bytes: Floats
    cap_Bps: Floats
    queue_pair: Ints
    collective: Ints
    job: Ints
    rounds: Ints
    names: tuple[str, ...]
    """Names of the collectives."""
    jobs: tuple[str, ...]
    """Names of the jobs."""
    start_s: Floats
    pause_s: Floats

    def __len__(self) -> int:
        return len(self.source)

    @property
    def flow_job(self) -> Ints:
        """The job of every flow."""
        return self.job[self.collective]

    def split(self, parts: int) -> JobTraffic:
        """Every flow as ``parts`` equal flows over separate queue pairs, one beside the other."""
        if parts < 1:
            raise BadInput(f"flows cannot be split in {parts}", where="split", remedy="give 1 or more")
        flows = self.select(np.repeat(np.arange(len(self)), parts))
        queue_pair = flows.queue_pair * parts + np.tile(np.arange(parts), len(self))
        return replace(flows, bytes=flows.bytes / parts, cap_Bps=flows.cap_Bps / parts, queue_pair=queue_pair)

    def select(self, flows: Ints) -> JobTraffic:
        """Some of the flows, in the order given; jobs and collectives stay."""
        return replace(self, **{name: getattr(self, name)[flows] for name in _OF_FLOWS})

    def only(self, jobs: Sequence[int]) -> JobTraffic:
        """The flows of some jobs, renumbered in the order given."""
        # New numbers for jobs, then for their collectives, then for flows; -1 leaves one out.
        number = np.full(len(self.jobs), -1, dtype=np.int64)
        number[list(jobs)] = np.arange(len(jobs))
        collectives = np.flatnonzero(number[self.job] >= 0)
        renumbered = np.full(len(self.job), -1, dtype=np.int64)
        renumbered[collectives] = np.arange(len(collectives))
        flows = self.select(np.flatnonzero(renumbered[self.collective] >= 0))
        chosen = list(jobs)
        return replace(
            flows,
            collective=renumbered[flows.collective],
            job=number[self.job[collectives]],
            rounds=self.rounds[collectives],
            names=tuple(self.names[c] for c in collectives.tolist()),
            jobs=tuple(self.jobs[j] for j in chosen),
            start_s=self.start_s[chosen],
            pause_s=self.pause_s[chosen],
        )

    def epochs(self, count: int) -> Traffic:
        """``count`` repetitions of every job as flows in phases, for the simulator.

        The phases of an epoch of a job are one per round of each collective, then its compute pause.
        """
        collectives, jobs = len(self.job), len(self.jobs)
        per_epoch = int(self.rounds.sum()) + jobs
        # Phases of an epoch: the rounds of collective after collective, then the pause of each job.
        begin = np.cumsum(self.rounds) - self.rounds
        within = np.arange(per_epoch - jobs) - np.repeat(begin, self.rounds)
        owner = np.repeat(np.arange(collectives), self.rounds)
        pauses = per_epoch - jobs + np.arange(jobs)
        ends = begin + self.rounds - 1
        # A round waits for the one before it; the first round for the pause of its job an epoch earlier.  A pause
        # waits for the last rounds of all collectives of its job.
        before = np.where(within > 0, np.arange(per_epoch - jobs) - 1, pauses[self.job[owner]] - per_epoch)
        order = np.argsort(self.job, kind="stable")
        waits_each = [before[i : i + 1] for i in range(per_epoch - jobs)]
        waits_each += np.split(ends[order], np.cumsum(np.bincount(self.job, minlength=jobs))[:-1])
        lengths = np.array([len(each) for each in waits_each], dtype=np.int64)
        waits = np.concatenate([*waits_each, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        # The same in every epoch, `per_epoch` phases further on; waits before the first epoch drop out.
        all_waits = (waits[None, :] + per_epoch * np.arange(count)[:, None]).ravel()
        inside = all_waits >= 0
        owner_of_wait = np.repeat(np.arange(per_epoch * count), np.tile(lengths, count))
        counts = np.bincount(owner_of_wait[inside], minlength=per_epoch * count)
        flows = np.argsort(self.collective, kind="stable")
        repeats = self.rounds[self.collective[flows]]
        flow = np.repeat(flows, repeats)
        # A flow appears once in every round of its collective.
        turn = np.arange(len(flow)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        phase = begin[self.collective[flow]] + turn
        every = np.tile(flow, count)
        job_of_phase = np.concatenate([self.job[owner], np.arange(jobs)])
        start = np.tile(np.where(np.arange(per_epoch) < per_epoch - jobs, self.start_s[job_of_phase], 0.0), count)
        delay = np.concatenate([np.zeros(per_epoch - jobs), self.pause_s])
        return Traffic(
            source=self.source[every],
            target=self.target[every],
            bytes=self.bytes[every],
            phase=(phase[None, :] + per_epoch * np.arange(count)[:, None]).ravel(),
            weight=np.ones(len(every)),
            cap_Bps=self.cap_Bps[every],
            phases=Phases(
                delay_s=np.tile(delay, count),
                start_s=start,
                indptr=np.concatenate([[0], np.cumsum(counts)]),
                waits=all_waits[inside],
                label=np.tile((np.arange(per_epoch) >= per_epoch - jobs).astype(np.int64), count),
                labels=("round", "pause"),
                job=np.tile(job_of_phase, count),
            ),
        )


def job_traffic(
    source: Ints,
    target: Ints,
    bytes_: Floats,
    *,
    collective: Ints | None = None,
    job: Ints | None = None,
    rounds: Ints | None = None,
    names: Sequence[str] | None = None,
    jobs: Sequence[str] = ("job",),
    start_s: Floats | None = None,
    pause_s: Floats | None = None,
    cap_Bps: Floats | None = None,
    queue_pair: Ints | None = None,
) -> JobTraffic:
    """Traffic from its flows; all in one collective of one job by default."""
    flows = len(source)
    group = np.zeros(flows, dtype=np.int64) if collective is None else np.asarray(collective, dtype=np.int64)
    count = int(group.max(initial=-1)) + 1 if names is None else len(names)
    nothing = np.zeros(len(jobs))
    return JobTraffic(
        source=np.asarray(source, dtype=np.int64),
        target=np.asarray(target, dtype=np.int64),
        bytes=np.asarray(bytes_, dtype=np.float64),
        cap_Bps=np.full(flows, np.inf) if cap_Bps is None else np.asarray(cap_Bps, dtype=np.float64),
        queue_pair=np.zeros(flows, dtype=np.int64) if queue_pair is None else np.asarray(queue_pair),
        collective=group,
        job=np.zeros(count, dtype=np.int64) if job is None else np.asarray(job, dtype=np.int64),
        rounds=np.ones(count, dtype=np.int64) if rounds is None else np.asarray(rounds, dtype=np.int64),
        names=tuple(names) if names is not None else tuple(f"collective {i}" for i in range(count)),
        jobs=tuple(jobs),
        start_s=nothing if start_s is None else np.asarray(start_s, dtype=np.float64),
        pause_s=nothing if pause_s is None else np.asarray(pause_s, dtype=np.float64),
    )


def merged(parts: Sequence[JobTraffic]) -> JobTraffic:
    """Several jobs at once, in order."""
    if not parts:
        raise BadInput("no job is given", where="traffic", remedy="give job files, flows or planned jobs")
    names = [name for part in parts for name in part.jobs]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise BadInput(f"two jobs are called {some(twice)}", where="traffic", remedy="give each its own name")
    # Jobs and collectives of each part are numbered behind those of the parts before.
    jobs = np.cumsum([0] + [len(part.jobs) for part in parts])
    collectives = np.cumsum([0] + [len(part.job) for part in parts])

    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in (*_OF_FLOWS, "job", "rounds", "start_s", "pause_s")
    }
    joined["collective"] += np.repeat(collectives[:-1], [len(part) for part in parts])
    joined["job"] += np.repeat(jobs[:-1], [len(part.job) for part in parts])
    return JobTraffic(**joined, names=tuple(chain.from_iterable(part.names for part in parts)), jobs=tuple(names))


def check_traffic(fabric: Fabric, traffic: JobTraffic, where: str = "traffic") -> None:
    """Refuse flows that cannot be routed."""
    ends = np.concatenate([traffic.source, traffic.target])
    strange = ends[(ends < 0) | (ends >= fabric.accelerators)]
    if len(strange):
        raise BadInput(
            f"{strange[0]} is not one of the {fabric.accelerators:,} accelerators of {fabric.name}",
            where=where,
            remedy="use the fabric that the jobs were placed on",
        )

    def refuse(flows: Ints, problem: str, remedy: str) -> None:
        if len(flows):
            pairs = [f"{fabric.names[traffic.source[f]]} -> {fabric.names[traffic.target[f]]}" for f in flows[:9]]
            raise BadInput(f"{problem}: {some(pairs)}", where=where, remedy=remedy)

    refuse(np.flatnonzero(traffic.source == traffic.target), "flows to themselves", "remove them")
    sized = np.isfinite(traffic.bytes) & (traffic.bytes > 0) & (traffic.cap_Bps > 0)
    refuse(np.flatnonzero(~sized), "flows without bytes or rate", "remove them, or give a positive size")
    key = np.stack([traffic.collective, traffic.source, traffic.target, traffic.queue_pair])
    # Sorted by all four, flows that are listed twice are neighbours.
    order = np.lexsort(key[::-1])
    again = order[1:][(key[:, order[1:]] == key[:, order[:-1]]).all(axis=0)]
    refuse(np.sort(again), "listed twice in one collective", "list each flow once, with all its bytes")


# Generated -----------------------------------------------------------------------------------------------------
# The routing paper's workloads, generated: data-parallel rings of a few models, placed in groups of hosts.
#
# Each job has copies of a model; every stage of the model (one accelerator of a copy) is a ring over the copies. A
# copy fills random leaves in groups of `GROUP` hosts (arXiv 2503.05324; reference in docs/routing.md).

GROUP = 8
"""Hosts that are placed together."""
START_S = (1.0, 10.0)
"""Jobs begin at a time drawn between these, after their first compute pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """Parameters, stages (tensor x pipeline parallel accelerators of a copy) and compute pause of a model."""

    parameters: float
    stages: int
    pause_s: float


MODELS = {
    "BLOOM": PaperModel(parameters=176e9, stages=48, pause_s=1.23877),
    "GPT_3": PaperModel(parameters=175e9, stages=64, pause_s=1.00962),
    "LLaMA2_70B": PaperModel(parameters=70e9, stages=128, pause_s=2.69231),
}


def flow_bytes(model: PaperModel, ring: int) -> float:
    """What each member of a ring sends in a round: its share of a stage's gradients in 32 bits."""
    return float(math.ceil(math.ceil(4 * model.parameters / model.stages) / ring))


def generate(fabric: Fabric, jobs: Sequence[tuple[str, int]], *, seed: int = 0) -> JobTraffic:
    """Jobs of given (model, ring size), each on separate hosts.

    Raises:
        UnknownName: there is no such model.
        BadInput: a ring of fewer than 2, or more hosts than the fabric has free in groups.
    """
    draw = np.random.default_rng(seed)
    free = _groups(fabric)
    parts = []
    for number, (name, ring) in enumerate(jobs):
        if name not in MODELS:
            raise UnknownName("model of the routing paper", name, MODELS, where="generate")
        if ring < 2:
            raise BadInput(f"a ring of {ring}", where="generate", remedy="give 2 copies or more")
        hosts = _placed(free, MODELS[name].stages, ring, draw, fabric)
        parts.append(_job(f"job_{number}-{name}", MODELS[name], hosts, draw))
    return merged(parts)


def _groups(fabric: Fabric) -> dict[int, list[Ints]]:
    """Free groups of hosts below each first switch."""
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators))
    hosts, first = np.unique(fabric.source[nics], return_index=True)
    leaf = fabric.target[nics[first]]
    result = {}
    for switch in np.unique(leaf).tolist():
        below = hosts[leaf == switch]
        result[switch] = [below[i : i + GROUP] for i in range(0, len(below) - GROUP + 1, GROUP)]
    return result


def _placed(free: dict[int, list[Ints]], stages: int, copies: int, draw: np.random.Generator, fabric: Fabric) -> Ints:
    """Hosts of every copy (row) and stage; leaves are drawn and filled."""
    rows = []
    for _ in range(copies):
        row: list[Ints] = []
        for switch in draw.permutation([s for s, groups in free.items() if groups]).tolist():
            while free[switch] and len(row) * GROUP < stages:
                row.append(free[switch].pop(0))
        if len(row) * GROUP < stages:
            raise BadInput(
                f"no room left for a copy of {stages} on {fabric.name}",
                where="generate",
                remedy="fewer jobs or smaller rings",
            )
        rows.append(np.concatenate(row)[:stages])
    return np.array(rows)


def _job(name: str, model: PaperModel, hosts: Ints, draw: np.random.Generator) -> JobTraffic:
    ring, stages = hosts.shape
    source, target = hosts.T, np.roll(hosts, -1, axis=0).T
    return job_traffic(
        source.ravel(),
        target.ravel(),
        np.full(hosts.size, flow_bytes(model, ring)),
        collective=np.repeat(np.arange(stages), ring),
        rounds=np.full(stages, 2 * (ring - 1)),
        names=[f"stage {stage}" for stage in range(stages)],
        job=np.zeros(stages, dtype=np.int64),
        jobs=(name,),
        start_s=np.array([draw.uniform(*START_S) + model.pause_s]),
        pause_s=np.array([model.pause_s]),
    )
