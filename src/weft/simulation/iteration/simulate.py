"""One training iteration on a fabric, beside the closed form.

Exact: the routes and the max-min sharing of all groups of an axis that run a collective at the same time, and
who waits for whom in the pipeline.  Not exact: collectives of different axes never meet on a link, every
message of a collective flows at once (no steps), all stages of a pipeline communicate at the same moment, and
time within a chunk is the closed form's with the simulated transfer in its place.  ``full`` instead simulates
every flow of a small world in time, where axes and stages meet as they do.

Ranks may compute more slowly than others.  Ranks of one model-parallel group wait for each other in every block, so
that a stage is as slow as its slowest rank.  Data-parallel replicas wait for each other once, with their gradients:
the slowest replica counts.  Where experts exchange tokens between replicas these wait in every block too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network, collective_s
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import Estimator
from weft.fabric.lump import Lump, lumped, trunked, unlumped
from weft.fabric.placement import Placement
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.transport import transport
from weft.layout.check import check_layout
from weft.layout.mesh import spread
from weft.layout.spec import Layout
from weft.layout.stages import Durations, stage_of
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.simulation.iteration.contention import IN_NETWORK, Contended, FlowRoutes, Messages, Wires
from weft.simulation.iteration.demand import Demand, Key, StageTotals, demand, message_bytes, rank_stages, totals
from weft.simulation.iteration.full import FullTraffic, full_traffic, run_full
from weft.simulation.iteration.result import CollectiveRow, IterationSimulation, LinkLoad, StageSpan, TierLoad
from weft.simulation.iteration.stepping import PhaseTimes, Stepped, clock


def simulate_iteration(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    *,
    routing: str = "ecmp",
    seed: int = 0,
    constants: Calibration | None = None,
    placement: Placement | None = None,
    routes: FlowRoutes | None = None,
    full: bool = False,
    symmetry: bool = True,
    slow: Floats | None = None,
) -> IterationSimulation:
    """Simulate one iteration of a layout.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers, which the closed form takes for the network.
        layout: how the job is cut.
        fabric: the network, with at least as many accelerators as ranks.
        routing: a mode of ``weft.fabric.paths`` or a transport (``weft.fabric.transport``).
        seed: of hashed and random routes.
        constants: calibration; the shipped one of the accelerator by default.
        placement: of every rank; rank r on accelerator r by default.
        routes: of flows between scale-up domains, instead of ``routing``.
        full: every flow in time (small worlds), not each distinct collective once.
        symmetry: equal groups whose routes share no link are solved once, and switches that sprayed flows cannot tell
            apart are taken as one.
        slow: how many times longer each rank computes, shape (world,); not with ``full``.

    Raises:
        UnknownName: there is no such routing or transport.
    """
    check_layout(job, layout.world, layout)
    closed = Estimator(job, cluster, constants)
    # Sprayed flows load parallel switches alike: these are one switch with their capacities added
    # (`weft.fabric.lump`).
    sprayed = routes is None and transport(routing).mode == "spray"
    merged = lumped if symmetry and not full else trunked
    lump = merged(fabric) if sprayed else unlumped(fabric)
    wires = Wires(
        layout,
        cluster,
        lump.fabric,
        closed.constants,
        placement=placement,
        routing=routing,
        routes=routes,
        seed=seed,
        symmetry=symmetry,
        in_network=not full,
    )
    if full and slow is not None:
        raise BadInput("goes without --full", where="--slow", remedy="drop one of them")
    return _Run(closed, layout, wires, lump, slow).result(full=full)


def iteration_traffic(
    job: Job, cluster: Cluster, layout: Layout, wires: Wires
) -> tuple[FullTraffic, dict[Key, Messages]]:
    """Every flow of one iteration in phases, as ``simulate_iteration`` with ``full`` runs it, and the messages
    whose routes the flows take.
    """
    check_layout(job, layout.world, layout)
    run = _Run(Estimator(job, cluster, wires.constants), layout, wires, unlumped(wires.fabric))
    return run.full(), run.messages


class _Run:
    """Everything about one layout on one fabric."""

    def __init__(
        self, closed: Estimator, layout: Layout, wires: Wires, lump: Lump, slow: Floats | None = None
    ) -> None:
        self.closed, self.layout, self.wires, self.lump = closed, layout, wires, lump
        self.columns = None if slow is None else columns(layout, slow)
        self.table = LayoutTable.of([layout])
        self.frame = next(iter(closed.frames(self.table)))
        self.demand: Demand = demand(layout, self.frame)
        self.totals = totals(layout, self.demand)
        self.messages: dict[Key, Messages] = {key: wires.messages(key) for key in self.totals}

    @cached_property
    def contended(self) -> dict[Key, Contended]:
        return {key: self.wires.contended(messages) for key, messages in self.messages.items()}

    def result(self, *, full: bool) -> IterationSimulation:
        estimates = self.closed.evaluate(self.table)
        plain = clock(self.layout, self.frame, float(estimates.offload_s[0]))
        timeline: Iterable[StageSpan]
        if full:
            seconds, timeline = run_full(self.full(plain), self.wires.capacity_Bps)
        else:
            # The pipeline is stepped twice: with what the fabric adds to every collective, and as the closed form has
            # it; the difference is the fabric's.
            contention = {key: contended.extra for key, contended in self.contended.items()}
            stepped = self._stepped(self._clock(replace(self.closed.network, contention=contention)))
            seconds, timeline = stepped.seconds, stepped
        wires = self.wires
        used_bytes, crossing = usage(self.layout, wires.fabric, wires.placement, self.messages, self.totals)
        fabric, link_bytes = self.lump.whole, self.lump.spread(used_bytes)
        reached_Bps = self.wires.reached_Bps(fabric)
        return IterationSimulation(
            iteration_s=seconds,
            closed_form_s=float(estimates.iteration_s[0]),
            lower_bound_s=float(estimates.lower_bound_s[0]),
            scheduled_s=self._stepped(plain).seconds,
            routing=self.wires.routing,
            exact=full,
            collectives=tuple(self._rows()),
            busiest=busiest(fabric, reached_Bps, link_bytes, seconds),
            tiers=tiers(fabric, link_bytes, reached_Bps),
            cross_rail_bytes=crossing,
            link_bytes=link_bytes,
            timeline=timeline,
        )

    def full(self, plain: PhaseTimes | None = None) -> FullTraffic:
        """Every flow of an iteration, in phases that last what the closed form says beside the transfers."""
        if plain is None:
            plain = clock(self.layout, self.frame, float(self.closed.evaluate(self.table).offload_s[0]))
        ideal_s = {key: messages.ideal / messages.calls for key, messages in self.messages.items()}
        return full_traffic(self.layout, plain, self.demand, self.wires, self.messages, ideal_s)

    def _clock(self, network: Network) -> PhaseTimes:
        """What the phases last with the durations that a network gives."""
        estimator = Estimator(self.closed.job, self.closed.cluster, self.closed.constants)
        estimator.network = network
        frame = next(iter(estimator.frames(self.table)))
        return clock(self.layout, frame, float(estimator.evaluate(self.table).offload_s[0]))

    def _stepped(self, times: PhaseTimes) -> Stepped:
        """The pipeline of one data-parallel column, the slowest where ranks are slow."""
        clocks = [times] if self.columns is None else [slowed(self.layout, times, choice) for choice in self.columns]
        return max((Stepped(self.layout, choice) for choice in clocks), key=lambda choice: choice.seconds)

    def _rows(self) -> list[CollectiveRow]:
        """The table of collectives, all-to-alls also hop after hop, all-reduces of a domain also in its switch."""
        rows = []
        for key, messages in self.messages.items():
            rows.append(self._row(messages, self.contended[key], self.totals[key], used=True))
            if key[0] == "all-to-all" and self.wires.spans_domains(messages.groups):
                hops = self.wires.messages(key, algorithm="hierarchical")
                slower = replace(self.wires.contended(hops), ideal=self.contended[key].ideal)
                rows.append(self._row(hops, slower, self.totals[key], used=False))
            if key[0] == "all-reduce" and self.wires.switch_reduces(messages.groups):
                with suppress(Unsupported, BadInput):
                    added = self.wires.messages(key, algorithm=IN_NETWORK)
                    rows.append(self._row(added, self.wires.contended(added), self.totals[key], used=False))
        return sorted(rows, key=lambda row: (not row.used, -row.calls * row.simulated_s))

    def _row(self, messages: Messages, contended: Contended, total: StageTotals, *, used: bool) -> CollectiveRow:
        kind, axes = messages.key
        long = [axis for axis in axes if getattr(self.layout, axis, 2) > 1]
        stage = int(np.argmax(total.bytes))
        calls = float(total.calls[stage])
        bytes_ = float(total.bytes[stage]) / calls
        call = np.full(1, bytes_)
        closed = float(
            collective_s(kind, call, spread(self.table, axes, self.closed.network.spans), self.closed.network)[0]
        )
        return CollectiveRow(
            axes="+".join(long or axes).replace("_", " "),
            kind=kind,
            algorithm=messages.algorithm,
            used=used,
            bytes=bytes_,
            calls=calls,
            groups=len(messages.groups),
            size=messages.groups.shape[1],
            ideal_s=bytes_ * contended.ideal,
            alone_s=bytes_ * contended.alone,
            everybody_s=bytes_ * contended.everybody,
            closed_form_s=closed,
            simulated_s=max(closed + bytes_ * contended.extra, 0.0),
            bottlenecks=tuple(self.lump.whole.link_name(int(self.lump.first[link])) for link in contended.bottlenecks),
        )


_FORM = re.compile(r"(rank|host)=([0-9]{1,9}):([0-9.]{1,12})|random=([0-9.]{1,12})", re.ASCII)
MOST = 1000.0
"""Times that a rank may be slower."""


def parse_slow(texts: Sequence[str], world: int, host_size: int, *, seed: int) -> Floats:
    """How many times longer each rank computes, shape (world,).

    Args:
        texts: "rank=3:1.3", "host=2:1.1" (all ranks of a host), "random=0.02" (each rank by one plus the size of a
            normal number of that deviation); of several for a rank the slowest counts.
        host_size: ranks of a host.
        seed: of random ones.
    """
    slow = np.ones(world)
    for text in texts:
        match = _FORM.fullmatch(text.strip())
        try:
            factor = float((match[3] or match[4]) if match else "")
        except ValueError:
            remedy = "write rank=3:1.3, host=2:1.1 or random=0.02"
            raise BadInput(f"{text[:40]!r} says no slow rank", where="--slow", remedy=remedy) from None
        assert match is not None
        low, high = (0.0, 1.0) if match[4] else (1.0, MOST)
        if not low <= factor <= high:
            raise BadInput(f"{text[:40]!r} is out of range", where="--slow", remedy=f"give {low:g} to {high:g}")
        if match[4]:
            drawn = 1.0 + factor * np.abs(np.random.default_rng(seed).standard_normal(world))
            slow = np.maximum(slow, drawn)
            continue
        size = host_size if match[1] == "host" else 1
        first = int(match[2]) * size
        if first >= world:
            last = -(-world // size) - 1
            raise BadInput(f"there is no {match[1]} {match[2]}", where="--slow", remedy=f"give 0 to {last}")
        slow[first : first + size] = np.maximum(slow[first : first + size], factor)
    return slow


def columns(layout: Layout, slow: Floats) -> Floats:
    """How much longer each stage computes, shape (replicas, stages).

    Replicas that another is slower than in every stage are left out.
    """
    # Ranks lie in the mesh with the innermost axis last.  A stage of a replica is as slow as its slowest rank, as
    # these wait for each other in every block.
    names = list(reversed(layout.order))
    grid = slow.reshape([getattr(layout, name) for name in names])
    waiting = tuple(i for i, name in enumerate(names) if name not in ("data", "pipeline"))
    stages: Floats = grid.max(axis=waiting)
    if names.index("data") > names.index("pipeline"):
        stages = stages.T
    # Experts exchange tokens between replicas in every block: all replicas wait for the slowest.
    if layout.expert > 1:
        stages = stages.max(axis=0, keepdims=True)
    slowest: list[Floats] = []
    for replica in np.unique(stages, axis=0)[::-1]:  # no later one is slower in every stage
        if not any((replica <= slower).all() for slower in slowest):
            slowest.append(replica)
    return np.array(slowest)


def slowed(layout: Layout, clock: PhaseTimes, stages: Floats) -> PhaseTimes:
    """The phases with what stages compute lasting so many times longer; what they communicate lasts as long."""
    chunks = []
    # Only the computation is slower; the exposed seconds of collectives are the network's.
    for i, (chunk, (forward, backward)) in enumerate(zip(clock.chunks, clock.exposed, strict=True)):
        factor = float(stages[stage_of(layout, i)])
        chunks.append(
            Durations(
                forward_s=factor * (chunk.forward_s - forward) + forward,
                input_gradient_s=factor * (chunk.input_gradient_s - backward) + backward,
                weight_gradient_s=factor * chunk.weight_gradient_s,
            )
        )
    return replace(clock, chunks=tuple(chunks))


BUSIEST = 16
"""Links that are listed."""


def usage(
    layout: Layout,
    fabric: Fabric,
    placement: Ints,
    messages: Mapping[Key, Messages],
    wanted: Mapping[Key, StageTotals],
) -> tuple[Floats, float]:
    """Bytes of an iteration over each link, and between accelerators of different domains and rails."""
    links, crossing = np.zeros(fabric.links), 0.0
    stages = np.zeros(fabric.accelerators, dtype=np.int64)
    stages[placement] = rank_stages(layout)
    for key, collective in messages.items():
        for wave in collective.waves:
            flows = message_bytes(layout, wave.bytes, wanted[key], key, stages[wave.source], stages[wave.target])
            entries = np.repeat(flows, np.diff(wave.routes.indptr)) * wave.routes.usage
            links += np.bincount(wave.routes.links, weights=entries, minlength=fabric.links)
            away = fabric.domain[wave.source] != fabric.domain[wave.target]
            turned = fabric.rail[wave.source] != fabric.rail[wave.target]
            crossing += float(flows[away & turned].sum())
    return links, crossing


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
