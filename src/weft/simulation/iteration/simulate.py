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
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network, collective_s
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import Estimator
from weft.fabric.checks import components
from weft.fabric.lump import Lump, lumped, trunked, unlumped
from weft.fabric.placement import Placement
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import Phases, Routes, Traffic, joined
from weft.fabric.transport import transport
from weft.layout.check import check_layout
from weft.layout.mesh import spread
from weft.layout.spec import Layout
from weft.layout.stages import Durations, Op, following, orders, stage_of
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.simulation.flows.engine import run
from weft.simulation.iteration.contention import IN_NETWORK, Contended, FlowRoutes, Messages, Wave, Wires
from weft.simulation.iteration.demand import (
    Amounts,
    Demand,
    Key,
    StageTotals,
    demand,
    message_bytes,
    rank_stages,
    totals,
)
from weft.simulation.iteration.result import (
    CollectiveRow,
    IterationSimulation,
    LinkLoad,
    SpanKind,
    StageSpan,
    TierLoad,
)
from weft.simulation.iteration.stepping import PhaseTimes, Stepped, clock, op_seconds

# Every phase ---------------------------------------------------------------------------------------------------
# Every flow of one iteration in time, for worlds small enough.
#
# Ranks that exchange data within a micro-batch move together (a column of a stage); columns, stages and axes meet on
# links as they do. Each pass is a computation beside which the hidden part of its collectives flows, followed by the
# exposed part, one axis after the other. The computation lasts what the closed form's pass does beyond the ideal
# transfers, so that without contention both agree.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseLoad:
    """Flows of one phase, and which of a list of routes each takes."""

    source: Ints
    target: Ints
    bytes: Floats
    route: Ints

    def times(self, factor: float) -> PhaseLoad:
        """The same flows with that many times the bytes."""
        return replace(self, bytes=self.bytes * factor)


class Graph:
    """Phases that wait for each other, with the flows of some."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.waits: list[list[int]] = []
        self.names: list[str] = []
        self.loads: list[tuple[int, PhaseLoad]] = []

    def add(self, name: str, delay_s: float, waits: Iterable[int] = ()) -> int:
        """A phase; returns its number."""
        self.delays.append(max(delay_s, 0.0))
        self.waits.append(list(waits))
        self.names.append(name)
        return len(self.delays) - 1

    def phases(self) -> Phases:
        """All phases as arrays."""
        labels = {name: i for i, name in enumerate(dict.fromkeys(self.names))}
        lengths = [len(waits) for waits in self.waits]
        return Phases(
            delay_s=np.array(self.delays),
            start_s=np.zeros(len(self.delays)),
            indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            waits=np.array([before for waits in self.waits for before in waits], dtype=np.int64),
            label=np.array([labels[name] for name in self.names], dtype=np.int64),
            labels=tuple(labels),
            job=np.zeros(len(self.delays), dtype=np.int64),
        )

    def traffic(self) -> Traffic:
        """All phases and flows."""
        # Flows in the order of `loads`, which is that of `routes` too.
        none = np.zeros(0)
        flows = [load for _, load in self.loads]
        count = sum(len(load.source) for load in flows)
        phase = [np.full(len(load.source), phase) for phase, load in self.loads]
        return Traffic(
            source=np.concatenate([none, *(load.source for load in flows)]).astype(np.int64),
            target=np.concatenate([none, *(load.target for load in flows)]).astype(np.int64),
            bytes=np.concatenate([none, *(load.bytes for load in flows)]),
            phase=np.concatenate([none, *phase]).astype(np.int64),
            weight=np.ones(count),
            cap_Bps=np.full(count, np.inf),
            phases=self.phases(),
        )

    def routes(self, known: Routes) -> Routes:
        """The routes of the flows of ``traffic``, from the list that loads number."""
        numbers = [load.route for _, load in self.loads]
        return known.of(np.concatenate([np.zeros(0, dtype=np.int64), *numbers]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullTraffic:
    """An iteration's flows and phases, their routes, and the phase that ends it.

    ``message`` numbers each flow's message among those of all waves.
    """

    traffic: Traffic
    routes: Routes
    message: Ints
    pipeline: Pipeline
    last: int


def run_full(full: FullTraffic, capacity_Bps: Floats) -> tuple[float, tuple[StageSpan, ...]]:
    """Seconds of the iteration, and its timeline."""
    result = run(capacity_Bps, full.traffic, full.routes)
    spans = full.pipeline.spans(result.phase_begin_s.tolist(), result.phase_end_s.tolist())
    return float(result.phase_end_s[full.last]), spans


def full_traffic(
    layout: Layout,
    clock: PhaseTimes,
    wanted: Demand,
    wires: Wires,
    messages: Mapping[Key, Messages],
    ideal: Mapping[Key, float],
) -> FullTraffic:
    """One iteration as traffic.  ``ideal`` are seconds per byte over ports alone."""
    pipeline = Pipeline(layout, clock, wanted, wires, messages, ideal)
    last = pipeline.build()
    traffic = pipeline.graph.traffic()
    known = joined([wave.routes for collective in messages.values() for wave in collective.waves])
    routes = pipeline.graph.routes(known).without_latency()
    message = np.concatenate([np.zeros(0, dtype=np.int64), *(load.route for _, load in pipeline.graph.loads)])
    return FullTraffic(traffic=traffic, routes=routes, message=message, pipeline=pipeline, last=last)


@dataclass(frozen=True, slots=True)
class Placed:
    """The phases in which an op begins and ends."""

    begin: int
    end: int


class Pipeline:
    """The phases of one iteration: chunks in the schedule's order, sends, gradients, update, with their flows.

    What waits for what is as in ``weft.simulation.iteration.stepping``, which times one column without flows.  The
    columns of a stage run the same without waiting for each other; a column's share of the gradients flows as soon as
    that column is ready.
    """

    def __init__(
        self,
        layout: Layout,
        clock: PhaseTimes,
        wanted: Demand,
        wires: Wires,
        messages: Mapping[Key, Messages],
        ideal: Mapping[Key, float],
    ) -> None:
        self.wire(layout, clock)
        self.wanted, self.messages, self.ideal = wanted, messages, ideal
        # Accelerators beyond the job belong to no stage.
        self.stage = np.full(wires.fabric.accelerators, -1, dtype=np.int64)
        self.stage[wires.placement] = rank_stages(layout)
        self.column = self._columns()
        self.flows: dict[tuple[Key, int, int, int], PhaseLoad] = {}
        first = 0
        for key, collective in messages.items():
            for wave in collective.waves:
                self._index(key, wave, first)
                first += len(wave.source)

    def wire(self, layout: Layout, clock: PhaseTimes) -> None:
        """Begin without any phase."""
        self.layout, self.clock, self.graph = layout, clock, Graph()
        self.orders = orders(layout, clock.micro_batches)
        self.share = 1.0 / layout.virtual_stages
        # Of all stages: the first forward and the last backward pass of each chunk, which gather and reduce.
        every = [op for order in self.orders for op in order]
        self.first_forward = set({op.chunk: op for op in reversed(every) if op.what == "forward"}.values())
        self.last_backward = set({op.chunk: op for op in every if op.what == "backward"}.values())
        self.blocking = layout.schedule.blocks
        self.bars: list[tuple[int, SpanKind, str, int, int]] = []
        self.placed: dict[tuple[int, int, Op], Placed] = {}

    def build(self) -> int:
        """Wire everything; returns the last phase."""
        # Step 1: the phases of every pass.  All exist before anything waits, as a pass may wait for one of a later
        # stage.
        for stage, order in enumerate(self.orders):
            for column in self.columns(stage):
                for op in order:
                    edge = op in self.first_forward or op in self.last_backward
                    seconds = op_seconds(self.layout, self.clock, op, edge=edge)
                    self.placed[stage, column, op] = placed = self.work(stage, column, op, seconds)
                    if column == 0:
                        self._bar(stage, op.what, f"{op.micro_batch}.{op.chunk}", placed.begin, placed.end)
        # Step 2: who waits for whom, column by column.  Step 3: what all wait for, tied embedding, update and host.
        ends = [self._column(stage, column) for stage in range(self.layout.pipeline) for column in self.columns(stage)]
        if self.clock.step.tied_s > 0:
            ends = [*ends, self.graph.add("tied", self.clock.step.tied_s, [ends[0], ends[-1]])]
        updated = self.graph.add("update", self.clock.step.update_s, ends)
        self._bar(0, "update", "optimizer", updated, updated)
        last = self.graph.add("host", self.clock.step.host_s, [updated])
        self._bar(0, "host", "host", last, last)
        return last

    def spans(self, begin: list[float], end: list[float]) -> tuple[StageSpan, ...]:
        """The timeline of the first column of every stage."""
        return tuple(
            StageSpan(stage=stage, kind=kind, name=name, begin_s=begin[first], end_s=end[last])
            for stage, kind, name, first, last in self.bars
            if end[last] > begin[first]
        )

    def _bar(self, stage: int, kind: SpanKind, name: str, first: int, last: int) -> None:
        self.bars.append((stage, kind, name, first, last))

    def _column(self, stage: int, column: int) -> int:
        """Wire one column from its first op to its reduced gradients; returns the phase that ends it."""
        order = self.orders[stage]
        gathered = self._gathered(stage, column)
        before: list[int] = []
        reduced: list[int] = []
        # A column runs its passes one after another; sends hold it up only where the schedule blocks.
        for op in order:
            placed = self.placed[stage, column, op]
            for phase in (*before, *gathered.get(op, ())):
                self.graph.waits[placed.begin].append(phase)
            before = [placed.end]
            sent = self._sent(stage, column, op, placed)
            if self.blocking:
                before += sent
            if self.layout.zero == 2 and op.what == "backward":
                before = [self._reduced(stage, column, placed, before, reduced)]
            elif op in self.last_backward:
                reduced = [self._reduced(stage, column, placed, before, reduced)]
        ends = [*before, *reduced]
        return ends[0] if len(ends) == 1 else self.graph.add("end", 0.0, ends)

    def _gathered(self, stage: int, column: int) -> dict[Op, list[int]]:
        """What ops wait for: the parameters of their chunk; all but the first bucket come while other ops run."""
        step, order = self.clock.step, self.orders[stage]
        if step.gather_s <= 0:
            return {}
        if not self.layout.overlap_gather:
            return {order[0]: [self.synchronise(stage, column, "weights", 1.0, [])]}
        bucket = self.synchronise(stage, column, "weights", self.share * step.last, [])
        last = self.synchronise(stage, column, "weights", self.share * (1.0 - step.last), [bucket])
        waits = {order[0]: [bucket], order[min(1, len(order) - 1)]: [last]}
        for op in [op for op in order if op in self.first_forward][1:]:
            last = self.synchronise(stage, column, "weights", self.share, [last])
            waits.setdefault(op, []).append(last)
        if column == 0:
            self._bar(stage, "weights", "parameters", bucket, last)
        return waits

    def _reduced(self, stage: int, column: int, placed: Placed, before: list[int], earlier: list[int]) -> int:
        """A chunk's gradients: all but the last bucket beside the backward pass, the last behind it, after those
        of ``earlier`` chunks."""
        step = self.clock.step
        if step.reduce_s <= 0:
            return before[0] if len(before) == 1 else self.graph.add("end", 0.0, before)
        if not self.layout.overlap_reduce:
            last = self.synchronise(stage, column, "gradients", self.share, [*before, *earlier])
            first = last
        else:
            # What flows beside the backward pass begins with it and waits for the same phases.
            first = self.synchronise(stage, column, "gradients", self.share * (1.0 - step.last), [])
            self.graph.waits[first] = [*self.graph.waits[placed.begin], *earlier]
            last = self.synchronise(stage, column, "gradients", self.share * step.last, [first, *before])
        if column == 0:
            self._bar(stage, "gradients", "gradients", first, last)
        return last

    def _sent(self, stage: int, column: int, op: Op, placed: Placed) -> list[int]:
        """Send an op's result to the stage that needs it; returns the phases of the sends."""
        after = following(self.layout, op)
        if after is None:
            return []
        receiving = stage_of(self.layout, after.chunk)
        if receiving == stage:
            self.graph.waits[self.placed[stage, column, after].begin].append(placed.end)
            return []
        phase = self.send(stage, column, op, receiving, placed.end)
        for receiver in self.receivers(stage, column, receiving):
            self.graph.waits[self.placed[receiving, receiver, after].begin].append(phase)
        if column == 0:
            self._bar(stage, "send", f"{op.what} {op.micro_batch}.{op.chunk}", phase, phase)
        return [phase]

    def columns(self, stage: int) -> range:
        """Columns of a stage."""
        return range(int(self.column[self.stage == stage].max()) + 1)

    def receivers(self, stage: int, column: int, receiving: int) -> list[int]:
        """Columns of another stage that a column sends to."""
        load = self.flows.get((_SEND, stage, column, receiving))
        return [] if load is None else np.unique(self.column[load.target]).tolist()

    def work(self, stage: int, column: int, op: Op, seconds: float) -> Placed:
        """The phases of a pass: computation, exposed collectives one after the other, hidden ones beside."""
        chunk = self.wanted.chunks[op.chunk]
        amounts = {"forward": chunk.forward, "backward": chunk.backward}.get(op.what, {})
        transfer = fsum(amount.bytes * self.ideal[key] for key, amount in amounts.items())
        if transfer <= 0:
            phase = self.graph.add(op.what, seconds)
            return Placed(phase, phase)
        # Of the ideal transfer the closed form exposes a share and hides the rest.  The computation lasts the pass
        # less the exposed share, so that without contention pass and closed form last equally long.
        exposed = self.clock.exposed[op.chunk][op.what == "backward"]
        share = min(max(exposed / transfer, 0.0), 1.0)
        begin = before = self.graph.add(op.what, seconds - share * transfer)
        for key in amounts:
            before = self.graph.add(f"{op.what} {key[0]}", 0.0, [before])
            self._carry(before, {key: amounts[key]}, stage, column, share)
        # The hidden part flows beside the computation; the pass ends when both have.
        hidden = self.graph.add(f"{op.what} hidden", 0.0)
        self.graph.waits[hidden] = self.graph.waits[begin]
        self._carry(hidden, amounts, stage, column, 1.0 - share)
        return Placed(begin, self.graph.add(f"{op.what} end", 0.0, [before, hidden]))

    def send(self, stage: int, column: int, op: Op, receiving: int, waits: int) -> int:
        """The phase of a stage boundary."""
        amount = self.wanted.boundary[_SEND]
        # The delay is what the closed form's send takes beyond its ideal transfer; the bytes flow on top of that.
        phase = self.graph.add("send", self.clock.hop_s - amount.bytes * self.ideal[_SEND], [waits])
        self.graph.loads.append((phase, self.flows[_SEND, stage, column, receiving].times(amount.bytes)))
        return phase

    def synchronise(self, stage: int, column: int, name: str, share: float, waits: list[int]) -> int:
        """A phase of ``share`` of the step's reduction or gathering."""
        reducing = name == "gradients"
        every = [demand.reduce if reducing else demand.gather for demand in self.wanted.stages]
        rounds = self.clock.micro_batches if reducing and self.layout.zero == 2 else 1
        seconds = self.clock.step.reduce_s if reducing else self.clock.step.gather_s
        most = max(fsum(amount.bytes * self.ideal[key] for key, amount in amounts.items()) for amounts in every)
        # The closed form's seconds are those of the stage with the most to reduce.
        phase = self.graph.add(name, share * max(seconds - most / rounds, 0.0), waits)
        self._carry(phase, every[stage], stage, column, share / rounds)
        return phase

    def _carry(self, phase: int, amounts: Amounts, stage: int, column: int, share: float) -> None:
        for key, amount in amounts.items():
            load = self.flows.get((key, stage, column, stage))
            if load is not None and amount.bytes * share > 0:
                self.graph.loads.append((phase, load.times(amount.bytes * share)))

    def _columns(self) -> Ints:
        """Which accelerators of a stage exchange data within a micro-batch, numbered in each stage."""
        keys = {key for chunk in self.wanted.chunks for key in (*chunk.forward, *chunk.backward)}
        # What exchanges data, if only through others, is joined with the same smallest rank.
        groups = [self.messages[key].groups for key in keys]
        first = np.concatenate([np.zeros(0, np.int64), *(np.repeat(each[:, 0], each.shape[1]) for each in groups)])
        members = np.concatenate([np.zeros(0, np.int64), *(each.ravel() for each in groups)])
        label = components(len(self.stage), first, members)
        column = np.zeros_like(label)
        for stage in range(self.layout.pipeline):
            members_here = self.stage == stage
            column[members_here] = np.unique(label[members_here], return_inverse=True)[1]
        return column

    def _index(self, key: Key, wave: Wave, first: int) -> None:
        """Flows by collective, stage and column of the sender, and stage of the receiver; their routes are
        numbered from ``first``.
        """
        if not len(wave.source):
            return
        # Sorted by place, the flows of one key are neighbours.
        place = np.stack([self.stage[wave.source], self.column[wave.source], self.stage[wave.target]])
        order = np.lexsort(place[::-1])
        bounds = np.flatnonzero((np.diff(place[:, order]) != 0).any(axis=0)) + 1
        for flows in np.split(order, bounds):
            stage, column, receiving = place[:, flows[0]].tolist()
            self.flows[key, stage, column, receiving] = PhaseLoad(
                source=wave.source[flows], target=wave.target[flows], bytes=wave.bytes[flows], route=first + flows
            )


_SEND: Key = ("send", ("pipeline",))


# Simulation ----------------------------------------------------------------------------------------------------


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
