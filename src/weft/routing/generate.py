"""The routing paper's workloads, generated: data-parallel rings of a few models, placed in groups of hosts.

Each job has copies of a model; every stage of the model (one accelerator of a copy) is a ring over the
copies. A copy fills random leaves in groups of ``GROUP`` hosts (arXiv 2503.05324; reference in
docs/routing.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.routing.traffic import JobTraffic, job_traffic, merged

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
