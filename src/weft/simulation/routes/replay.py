"""Jobs replayed over epochs on routes that are held, or that a controller changes while they run.

``evaluate`` compares routers: the same jobs with each, on a fabric with more and more of its spines down.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Fabric, Floats, Ints, Mask
from weft.fabric.traffic import Phases, Routes, Traffic, joined
from weft.routing.plan import RoutePlan, plan
from weft.routing.problem import routing_problem
from weft.routing.routers import ROUTERS
from weft.routing.traffic import JobTraffic
from weft.simulation.flows.engine import rest_of, run, run_until

STATIC = ("ecmp", "spray")
"""Routers that nobody runs: switches hash or spray."""


def changed(before: Routes, after: Routes) -> Mask:
    """Which flows have other links, or other shares of them."""
    same = np.diff(before.indptr) == np.diff(after.indptr)
    flows = np.flatnonzero(same)
    a, b = before.of(flows), after.of(flows)
    differs = (a.links != b.links) | (a.usage != b.usage)
    owner = np.repeat(flows, np.diff(a.indptr))
    return np.asarray(~same | (np.bincount(owner, differs, len(same)) > 0))


CONTROLLERS = ("held", "paper")
MOST_EPOCHS = 10_000
INSTANT = 1e-12
"""Relative difference of two times that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What jobs and flows took.

    ``all_reduce_s`` has a row a job and a column an epoch: from the begin of its first round to the end of
    its last.  ``alone_s`` is the same without any collision.  ``fct_s`` and ``throughput_Bps`` are of every
    flow in every round: seconds from the begin of the round to its last byte (of the last part, where it was
    split), and bytes over these.  ``decision_s`` is the wall time of each decision of a controller,
    ``moved_flows`` counts flows of running jobs that were given another path.
    """

    router: str
    controller: str
    jobs: tuple[str, ...]
    alone_s: Floats
    all_reduce_s: Floats
    fct_s: Floats
    throughput_Bps: Floats
    makespan_s: float
    decision_s: tuple[float, ...]
    moved_flows: int

    @property
    def mean_s(self) -> Floats:
        """Mean all-reduce of every job."""
        return np.asarray(self.all_reduce_s.mean(axis=1))

    @property
    def ratio(self) -> Floats:
        """Mean all-reduce of every job over that without collisions."""
        return self.mean_s / self.alone_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Times:
    """When the phases and flows of all epochs begin and end."""

    begin_s: Floats
    end_s: Floats
    completion_s: Floats

    def without(self, ends: Ints, pauses: Ints) -> _Times:
        """The times of phases as they were before ``_with_ends``."""
        count = len(self.begin_s) - len(pauses)
        begin, end = self.begin_s[:count].copy(), self.end_s[:count].copy()
        begin[ends], end[ends] = self.begin_s[pauses], self.end_s[pauses]
        return _Times(begin_s=begin, end_s=end, completion_s=self.completion_s)


def replay(
    fabric: Fabric,
    traffic: JobTraffic,
    router: str,
    *,
    epochs: int = 10,
    seed: int = 0,
    split: int = 2,
    controller: str = "held",
) -> Replay:
    """Run every job for some epochs: rounds of its collectives, compute pause, and again.

    Args:
        router: one of ``weft.routing.routers.ROUTERS``.
        epochs: of every job.
        seed: of hashes, draws and searches.
        split: into how many parts "split" cuts each flow.
        controller: "held": one plan over all pairs of all jobs, made once; "paper": as the routing paper's
            code, a new plan over the pairs of the running jobs whenever an all-reduce begins, or ends while
            others run, and flows under way move.  Hashed and sprayed routes are held in both.

    Raises:
        UnknownName: there is no such router or controller.
        Unsupported: a router that does not apply.
    """
    if controller not in CONTROLLERS:
        raise UnknownName("controller", controller, CONTROLLERS, where="replay")
    if not 1 <= epochs <= MOST_EPOCHS:
        raise BadInput(f"{epochs} epochs", where="replay", remedy=f"give 1 to {MOST_EPOCHS:,}")
    _check_jobs(traffic)
    first = plan(fabric, traffic, router=router, seed=seed, split=split, bound="cuts")
    seconds, moved = [] if first.router in STATIC else [first.solve_s], 0
    flow_of = _flow_of(first.traffic, epochs)
    every = first.traffic.epochs(epochs)
    # Without decisions while jobs run, all epochs are one simulation.
    if controller == "paper" and first.router not in STATIC:
        with_ends, ends, pauses = _with_ends(every)
        replanner = _Replanner(first, with_ends, ends, epochs)
        times = _stepped(replanner, with_ends, np.concatenate([ends, pauses]), flow_of).without(ends, pauses)
        seconds, moved = replanner.seconds, replanner.moved
    else:
        simulated = run(_capacity(fabric), every, first.routes.of(flow_of))
        times = _Times(
            begin_s=simulated.phase_begin_s, end_s=simulated.phase_end_s, completion_s=simulated.completion_s
        )
    took, sent = _whole_flows(every, times, flow_of, len(first.traffic) // len(traffic))
    return Replay(
        router=router,
        controller=controller,
        jobs=first.traffic.jobs,
        alone_s=np.array([job.alone_s for job in first.jobs]),
        all_reduce_s=_all_reduce_s(every.phases, times, epochs),
        fct_s=took,
        throughput_Bps=sent / took,
        makespan_s=float(times.end_s.max(initial=0.0)),
        decision_s=tuple(seconds),
        moved_flows=moved,
    )


def _check_jobs(traffic: JobTraffic) -> None:
    rounds = np.bincount(traffic.job, traffic.rounds, len(traffic.jobs))
    empty = np.bincount(traffic.job, traffic.rounds < 1, len(traffic.jobs))
    idle = np.flatnonzero((rounds == 0) | (empty > 0))
    if len(idle):
        raise BadInput(
            f"job {traffic.jobs[idle[0]]} has no collective, or one without rounds",
            where="traffic",
            remedy="leave it out",
        )


def _flow_of(traffic: JobTraffic, epochs: int) -> Ints:
    """Which flow of the jobs each flow of ``traffic.epochs(epochs)`` is."""
    # The order of `JobTraffic.epochs`: collective by collective, round by round, epoch by epoch.
    order = np.argsort(traffic.collective, kind="stable")
    return np.tile(np.repeat(order, traffic.rounds[traffic.collective[order]]), epochs)


def _whole_flows(every: Traffic, times: _Times, flow_of: Ints, parts: int) -> tuple[Floats, Floats]:
    """Seconds and bytes of every flow in every round, up to the last byte of its last part."""
    # The parts of a split flow are neighbours after sorting by phase and flow; the last of them ends the flow.
    together = np.lexsort((flow_of // parts, every.phase))
    took = (times.completion_s - times.begin_s[every.phase])[together].reshape(-1, parts)
    return took.max(axis=1), every.bytes[together].reshape(-1, parts).sum(axis=1)


def _capacity(fabric: Fabric) -> Floats:
    return np.where(fabric.up, fabric.capacity_Bps, 0.0)


def _all_reduce_s(phases: Phases, times: _Times, epochs: int) -> Floats:
    """Seconds of the all-reduce of every job (row) and epoch."""
    jobs = int(phases.job.max(initial=-1)) + 1
    # From the first round that begins to the last that ends, of all collectives of the job in the epoch.
    rounds = np.flatnonzero(phases.label == phases.labels.index("round"))
    at = (phases.job[rounds], rounds // (len(phases) // epochs))
    begin, end = np.full((jobs, epochs), np.inf), np.full((jobs, epochs), -np.inf)
    np.minimum.at(begin, at, times.begin_s[rounds])
    np.maximum.at(end, at, times.end_s[rounds])
    return np.asarray(end - begin)


def _with_ends(every: Traffic) -> tuple[Traffic, Ints, Ints]:
    """A separate phase for the end of each all-reduce, with the number of its pause; pauses come behind.

    Returns the phases that are ends, and those whose ends let the next epoch begin.
    """
    phases_before = every.phases
    # A pause ends when the next epoch begins; the controller also has to see when the all-reduce ended.  So each pause
    # becomes two phases: one without delay that waits for the rounds, and the pause behind it, for which the next
    # epoch waits.
    ends = np.flatnonzero(phases_before.label == phases_before.labels.index("pause"))
    pauses = len(phases_before) + np.arange(len(ends))
    now = np.arange(len(phases_before))
    now[ends] = pauses
    delay = phases_before.delay_s.copy()
    delay[ends] = 0.0
    phases = Phases(
        delay_s=np.concatenate([delay, phases_before.delay_s[ends]]),
        start_s=np.concatenate([phases_before.start_s, np.zeros(len(ends))]),
        indptr=np.concatenate([phases_before.indptr, phases_before.indptr[-1] + 1 + np.arange(len(ends))]),
        waits=np.concatenate([now[phases_before.waits], ends]),
        label=np.concatenate([phases_before.label, phases_before.label[ends]]),
        labels=phases_before.labels,
        job=np.concatenate([phases_before.job, phases_before.job[ends]]),
    )
    return replace(every, phases=phases), ends, pauses


def _stepped(replanner: _Replanner, every: Traffic, stopping: Ints, flow_of: Ints) -> _Times:
    """Simulate from one decision to the next; phases that are ``stopping`` call for one when they end."""
    moments = set(replanner.plan.traffic.start_s.tolist())
    stops = np.zeros(len(every.phases), dtype=bool)
    stops[stopping] = True
    capacity_Bps = _capacity(replanner.plan.fabric)
    times = _Times(
        begin_s=np.full(len(every.phases), np.nan),
        end_s=np.full(len(every.phases), np.nan),
        completion_s=np.full(len(every), np.nan),
    )
    part, flows, phases = every, np.arange(len(every)), np.arange(len(every.phases))
    routes = replanner.routes.of(flow_of)
    while True:
        # Step 1: run to the next moment at which the controller may decide: an all-reduce begins or ends.
        until = min(moments, default=np.inf)
        halt = run_until(capacity_Bps, part, routes, until_s=until, stop_phases=np.flatnonzero(stops[phases]))
        fresh = np.isnan(times.begin_s[phases])
        times.begin_s[phases[fresh]] = halt.phase_begin_s[fresh]
        times.end_s[phases], times.completion_s[flows] = halt.phase_end_s, halt.completion_s
        if halt.done:
            return times
        # Step 2: let the controller decide.  Step 3: go on with what remains, on the routes that hold from now on.
        moments = {moment for moment in moments if moment > halt.time_s}
        replanner.decide(times, halt.time_s)
        remaining = rest_of(part, routes, halt)
        part, flows, phases = remaining.traffic, flows[remaining.flows], phases[remaining.phases]
        routes = remaining.routes(replanner.routes.of(flow_of[flows]))


class _Replanner:
    """The paper's controller: the present ``routes`` of all flows, planned again at begins and ends of all-reduces.

    ``seconds`` has the time that each decision took, ``moved`` how many flows of running jobs were given another path.
    """

    def __init__(self, first: RoutePlan, every: Traffic, ends: Ints, epochs: int) -> None:
        self.plan, self.routes = first, first.routes
        self.seconds: list[float] = []
        self.moved = 0
        self.ends = ends.reshape(epochs, -1)
        jobs = self.ends.shape[1]
        rounds = np.flatnonzero(every.phases.label == every.phases.labels.index("round"))
        # Every epoch has equally many phases; the first round of each job in each epoch begins its all-reduce.
        per_epoch = int(ends[jobs]) - int(ends[0]) if epochs > 1 else int(ends[-1]) + 1
        _, begins = np.unique(np.stack([rounds // per_epoch, every.phases.job[rounds]]), axis=1, return_index=True)
        self.begins = rounds[begins].reshape(epochs, -1)
        self.started = self.ended = np.zeros(jobs, dtype=np.int64)

    def decide(self, times: _Times, now_s: float) -> None:
        """Route the running jobs again where an all-reduce has begun, or one has ended while others run."""
        begin_s = times.begin_s[self.begins]
        started = np.count_nonzero(~np.isnan(begin_s), axis=0)
        ended = np.count_nonzero(~np.isnan(times.end_s[self.ends]), axis=0)
        running = started > ended
        news = bool((started > self.started).any() or (ended > self.ended).any())
        self.started, self.ended = started, ended
        if not news or not running.any():
            return
        # Jobs whose all-reduce begins at this instant have sent nothing: giving them other paths moves no flow.
        under_way = running & (np.fmax.reduce(begin_s, axis=0) < now_s * (1 - INSTANT))
        traffic, fabric = self.plan.traffic, self.plan.fabric
        problem = routing_problem(fabric, traffic.only(np.flatnonzero(running).tolist()))
        begun = time.perf_counter()
        result = ROUTERS[self.plan.router](problem, self.plan.seed).routes
        self.seconds.append(time.perf_counter() - begun)
        flows = np.flatnonzero(running[traffic.flow_job])
        moved = changed(self.routes.of(flows), result) & under_way[traffic.flow_job[flows]]
        self.moved += int(np.count_nonzero(moved))
        # Behind all routes come the new ones; the flows that change point there.
        at = np.arange(len(traffic))
        at[flows] = len(traffic) + np.arange(len(flows))
        self.routes = joined([self.routes, result]).of(at)


def with_spines_down(fabric: Fabric, count: int) -> Fabric:
    """The fabric without its last spines."""
    spines = fabric.nodes_of("spine")
    if count and not 0 < count < len(spines):
        raise BadInput(
            f"{count} of {len(spines)} spines down",
            where="with_spines_down",
            remedy=f"give 0 to {max(len(spines) - 1, 0)}",
        )
    return fabric.failed(nodes=spines[len(spines) - count :]) if count else fabric
