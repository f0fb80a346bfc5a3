"""Which bytes cross which links in one iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.fabric.spec import Fabric, Floats, Ints
from weft.layout.mesh import groups
from weft.layout.spec import Layout
from weft.layout.stages import stage_of
from weft.simulation.iteration.contention import Messages
from weft.simulation.iteration.demand import Amounts, Demand, Key
from weft.simulation.iteration.result import LinkLoad, TierLoad

BUSIEST = 16
"""Links that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTotals:
    """Bytes and calls of one collective in an iteration, on a rank of each stage."""

    bytes: Floats
    calls: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Usage:
    """Bytes over each link, and between accelerators of different domains and rails."""

    link_bytes: Floats
    cross_rail_bytes: float


def totals(layout: Layout, wanted: Demand) -> dict[Key, StageTotals]:
    """What each stage asks of every collective in one iteration; for a send, what each stage passes on."""
    found: dict[Key, StageTotals] = {}

    def add(amounts: Amounts, stage: int, times: float) -> None:
        for key, amount in amounts.items():
            total = found.setdefault(
                key, StageTotals(bytes=np.zeros(layout.pipeline), calls=np.zeros(layout.pipeline))
            )
            total.bytes[stage] += amount.bytes * times
            total.calls[stage] += amount.calls * times

    count = float(wanted.micro_batches)
    for chunk in wanted.chunks:
        for amounts in (chunk.forward, chunk.backward, chunk.sends):
            add(amounts, chunk.stage, count)
    for stage, once in enumerate(wanted.stages):
        for amounts in (once.reduce, once.gather, once.tied, once.scalars):
            add(amounts, stage, 1.0)
    return found


def usage(
    layout: Layout,
    fabric: Fabric,
    placement: Ints,
    messages: Mapping[Key, Messages],
    wanted: Mapping[Key, StageTotals],
) -> Usage:
    """Bytes of an iteration over every link."""
    links, crossing = np.zeros(fabric.links), 0.0
    stages = np.zeros(fabric.accelerators, dtype=np.int64)
    stages[placement] = rank_stages(layout)
    sent = crossings(layout)
    sent = sent / np.maximum(sent.sum(axis=1, keepdims=True), 1.0)
    for key, one in messages.items():
        for wave in one.waves:
            flows = wave.bytes * wanted[key].bytes[stages[wave.source]]
            if key[0] == "send":
                flows = flows * sent[stages[wave.source], stages[wave.target]]
            if key[1] == ("tied",):
                flows = wave.bytes * wanted[key].bytes[0]
            entries = np.repeat(flows, np.diff(wave.routes.indptr)) * wave.routes.usage
            links += np.bincount(wave.routes.links, weights=entries, minlength=fabric.links)
            away = fabric.domain[wave.source] != fabric.domain[wave.target]
            turned = fabric.rail[wave.source] != fabric.rail[wave.target]
            crossing += float(flows[away & turned].sum())
    return Usage(link_bytes=links, cross_rail_bytes=crossing)


def rank_stages(layout: Layout) -> Ints:
    """Pipeline stage of each rank."""
    stages = np.empty(layout.world, dtype=np.int64)
    members = groups(layout, "pipeline")
    for stage in range(layout.pipeline):
        stages[members[:, stage]] = stage
    return stages


def busiest(fabric: Fabric, capacity_Bps: Floats, link_bytes: Floats, seconds: float) -> tuple[LinkLoad, ...]:
    """The links with the largest share of their time in use."""
    able = capacity_Bps * seconds
    share = np.divide(link_bytes, able, out=np.zeros_like(able), where=able > 0)
    order = np.argsort(-share, kind="stable")[:BUSIEST]
    return tuple(
        LinkLoad(
            link=int(link),
            name=fabric.link_name(int(link)),
            tier=int(fabric.tier[link]),
            bytes=float(link_bytes[link]),
            utilization=float(share[link]),
        )
        for link in order
        if link_bytes[link] > 0
    )


def tiers(fabric: Fabric, link_bytes: Floats, capacity_Bps: Floats) -> tuple[TierLoad, ...]:
    """Bytes per tier, and what of its links' speed ``capacity_Bps`` is."""
    rows = [(int(tier), fabric.tier == tier) for tier in np.unique(fabric.tier)]
    return tuple(
        TierLoad(
            tier=tier,
            links=int(row.sum()),
            bytes=float(link_bytes[row].sum()),
            reached=float(capacity_Bps[row].sum() / fabric.capacity_Bps[row].sum()),
        )
        for tier, row in rows
    )


def crossings(layout: Layout) -> Floats:
    """Messages of one micro-batch from each stage (row) to each other: activations there, gradients back."""
    count = np.zeros((layout.pipeline, layout.pipeline))
    for chunk in range(layout.pipeline * layout.virtual_stages - 1):
        here, there = stage_of(layout, chunk), stage_of(layout, chunk + 1)
        if here != there:
            count[here, there] += 1
            count[there, here] += 1
    return count
