"""Routing for Large ML Models (arXiv 2503.05324): its workloads under hashing, its greedy routes, and Weft's.

    python reproductions/routing.py

The network is the paper's: 64 ToRs x 32 spines, 2,048 NICs of 100 Gb/s.  The body of the paper is not public here.
What stands under "authors" was measured with their public simulator and job files; Weft draws the same jobs and places
them anew, so that hashing differs by its luck.  Jobs are replayed in the flow-level simulator: rounds of their rings,
a pause, and again, for three epochs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from paper import show

import weft
from weft.fabric.families.clos import two_layers
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import Phases, Routes, Traffic, joined
from weft.routing.plan import RoutePlan, plan
from weft.routing.problem import routing_problem
from weft.routing.routers import ROUTERS
from weft.routing.traffic import JobTraffic, generate
from weft.simulation.flows.engine import Simulation, run

JOBS = {
    2: ("BLOOM", "LLaMA2_70B", "LLaMA2_70B", "BLOOM", "GPT_3"),
    4: ("BLOOM", "LLaMA2_70B", "GPT_3", "LLaMA2_70B", "GPT_3"),
    8: ("BLOOM", "GPT_3"),
}
"""The models of the paper's jobs in its order, by the size of their rings."""
AUTHORS = {
    (1, 2, 0): ("4.00", "1.00"),
    (1, 4, 0): ("4.00", "1.00"),
    (1, 8, 0): ("4.00", "1.00"),
    (1, 2, 1): ("3.00", "2.00"),
    (1, 2, 4): ("4.00", "2.00"),
    (1, 2, 8): ("4.00", "2.00"),
    (2, 2, 0): ("4.50", "1.00"),
    (3, 2, 0): ("4.33", "1.00"),
    (5, 2, 0): ("4.40", "1.07"),
    (5, 2, 8): ("5.00", "1.80"),
    (3, 4, 0): ("5.30", "1.01"),
    (5, 4, 0): ("5.51", "1.05"),
    (5, 4, 8): ("5.20", "1.83"),
    (2, 8, 0): ("4.68", "1.70"),
}
"""By jobs, ring size and spines down: the mean over jobs of the all-reduce over its time alone, of hashed routes and
of the authors' controller with greedy routes."""
EPOCHS = 3
HASHED = ("ecmp", "spray")
"""Routers of switches, which no controller plans again."""
INSTANT = 1e-12
"""Relative difference of two times that is rounding."""


def slowdowns_of(jobs: int, ring: int, down: int, routers: Sequence[str], *, again: bool) -> tuple[int, list[float]]:
    """Number of flows; by router the mean over jobs of the all-reduce over its time alone."""
    fabric = with_spines_down(two_layers(), down)
    traffic = generate(fabric, [(model, ring) for model in JOBS[ring][:jobs]], seed=0)
    ratios = [np.divide(*replay(fabric, traffic, router, again=again)).mean(axis=1) for router in routers]
    return len(traffic), [float(ratio.mean()) for ratio in ratios]


def with_spines_down(fabric: Fabric, count: int) -> Fabric:
    """The fabric without its last spines."""
    return fabric.failed(nodes=fabric.nodes_of("spine")[-count:]) if count else fabric


def replay(
    fabric: Fabric, traffic: JobTraffic, router: str, *, again: bool = False, epochs: int = EPOCHS
) -> tuple[Floats, Floats]:
    """Seconds of every all-reduce, a row a job and a column an epoch, and of those of each job without collisions.

    The routes are one plan over all pairs of all jobs; with ``again``, as the paper's code makes them, a new plan over
    the pairs of the running jobs whenever an all-reduce begins, or ends while others run, and flows under way move
    (of routers that do not split them).
    """
    first = plan(fabric, traffic, router=router, bound="cuts")
    every = first.traffic.epochs(epochs)
    # The order of `JobTraffic.epochs`: collective by collective, round by round, epoch by epoch.
    order = np.argsort(first.traffic.collective, kind="stable")
    flow_of = np.tile(np.repeat(order, first.traffic.rounds[first.traffic.collective[order]]), epochs)
    if again and first.router not in HASHED:
        begin_s, end_s = _planned_again(first, every, flow_of, epochs)
    else:
        result = run(_capacity(fabric), every, first.routes.of(flow_of))
        begin_s, end_s = _all_reduces(every.phases, result.phase_begin_s, result.phase_end_s, epochs)
    return end_s - begin_s, np.array([[job.alone_s] for job in first.jobs])


def _capacity(fabric: Fabric) -> Floats:
    return np.where(fabric.up, fabric.capacity_Bps, 0.0)


def _all_reduces(phases: Phases, begin_s: Floats, end_s: Floats, epochs: int) -> tuple[Floats, Floats]:
    """Begin and end of the all-reduce of every job and epoch: of its first and its last round in any collective."""
    jobs = int(phases.job.max()) + 1
    rounds = np.flatnonzero(phases.label == phases.labels.index("round"))
    at = (phases.job[rounds], rounds // (len(phases) // epochs))
    begin, end = np.full((jobs, epochs), np.inf), np.full((jobs, epochs), -np.inf)
    np.minimum.at(begin, at, begin_s[rounds])
    np.maximum.at(end, at, end_s[rounds])
    return begin, end


def _planned_again(first: RoutePlan, every: Traffic, flow_of: Ints, epochs: int) -> tuple[Floats, Floats]:
    """Begins and ends of all-reduces under the paper's controller.

    What is left is simulated to its end after each decision, and holds up to the next one.
    """
    fabric, traffic, routes = first.fabric, first.traffic, first.routes
    left, now_s = every, -1.0
    phase_begin_s = phase_end_s = np.full(len(every.phases), np.inf)
    while True:
        flow_routes = routes.of(flow_of)
        result = run(_capacity(fabric), left, flow_routes, sample=True)
        phase_begin_s = np.where(phase_begin_s <= now_s, phase_begin_s, result.phase_begin_s)
        phase_end_s = np.where(phase_end_s <= now_s, phase_end_s, result.phase_end_s)
        begin_s, end_s = _all_reduces(every.phases, phase_begin_s, phase_end_s, epochs)
        # The next moment at which an all-reduce begins, or ends while others run.
        for moment_s in np.unique([begin_s, end_s]) * (1 + INSTANT):
            running = ((begin_s <= moment_s) & (end_s > moment_s)).any(axis=1)
            if moment_s > now_s * (1 + INSTANT) and running.any():
                break
        else:
            return begin_s, end_s
        now_s = float(moment_s)
        left = _left(left, result, flow_routes, phase_begin_s, phase_end_s, now_s)
        problem = routing_problem(fabric, traffic.only(np.flatnonzero(running).tolist()))
        # Behind all routes come the new ones; the flows of running jobs point there.
        moved, at = running[traffic.flow_job], np.arange(len(traffic))
        at[moved] = len(traffic) + np.arange(np.count_nonzero(moved))
        routes = joined([routes, ROUTERS[first.router](problem, first.seed).routes]).of(at)


def _left(
    traffic: Traffic, result: Simulation, routes: Routes, begin_s: Floats, end_s: Floats, now_s: float
) -> Traffic:
    """The same flows and phases with what is left of them at a time; what has ended has no bytes and no delay."""
    # A host sends one flow at a time, so that the rate of its link is that of the flow: what the link has carried,
    # less the flows that have completed on it, is what the present one has sent.
    rates, port = result.rates, routes.links[routes.indptr[:-1]]
    order = np.lexsort((rates.time_s, rates.link))
    link, time_s = rates.link[order], np.minimum(rates.time_s[order], now_s)
    until_s = np.where(np.append(link[1:] == link[:-1], False), np.append(time_s[1:], now_s), now_s)
    carried = np.bincount(link, rates.rate_Bps[order] * (until_s - time_s), int(port.max()) + 1)
    completed = result.completion_s <= now_s
    carried -= np.bincount(port, traffic.bytes * completed, len(carried))
    under_way = ~completed & (begin_s[traffic.phase] <= now_s)
    bytes_ = np.maximum(traffic.bytes - carried[port] * under_way, 0.0)
    phases = traffic.phases
    # Phases that have begun go on at once, those that wait for no other begin when they would have.
    owner = np.repeat(np.arange(len(phases)), np.diff(phases.indptr))
    ready = np.bincount(owner, end_s[phases.waits] > now_s, len(phases)) == 0
    start_s = np.where(ready, np.maximum(begin_s, now_s), phases.start_s)
    phases = replace(
        phases, start_s=np.where(end_s <= now_s, 0.0, start_s), delay_s=np.where(ready, 0.0, phases.delay_s)
    )
    return replace(traffic, bytes=np.where(completed, 0.0, bytes_), phases=phases)


def decided_s(jobs: int, ring: int, router: str) -> float:
    """Seconds of a whole decision."""
    text = ",".join(f"{model}:{ring}" for model in JOBS[ring][:jobs])
    taken = []
    for _ in range(2):
        begin = time.perf_counter()
        weft.route(generate=text, router=router)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    """Slowdown and decision time of every workload."""
    slowdowns, decisions = [], []
    for (jobs, ring, down), (hashed, greedy) in AUTHORS.items():
        flows, (ecmp, planned_again) = slowdowns_of(jobs, ring, down, ("ecmp", "greedy"), again=True)
        _, (ours,) = slowdowns_of(jobs, ring, down, ("auto",), again=False)
        slowdowns.append(
            {
                "workload": f"{jobs} {'job' if jobs == 1 else 'jobs'}, rings of {ring}",
                "flows": f"{flows:,}",
                "spines down": str(down),
                "hashed, authors": hashed,
                "hashed": f"{ecmp:.2f}",
                "greedy, authors": greedy,
                "greedy": f"{planned_again:.2f}",
                "Weft's": f"{ours:.2f}",
            }
        )
        if down == 0:
            seconds = {router: decided_s(jobs, ring, router) for router in ("greedy", "auto")}
            decisions.append(
                {
                    "workload": slowdowns[-1]["workload"],
                    "flows": slowdowns[-1]["flows"],
                    "greedy": f"{1e3 * seconds['greedy']:.1f} ms",
                    "Weft's": f"{1e3 * seconds['auto']:.1f} ms",
                }
            )
    show(
        "All-reduce over its time without collisions, mean over jobs",
        "the authors' simulator and job files, epochs 0 to 9",
        [
            "jobs placed anew",
            "greedy: a plan at each begin and end of an all-reduce, as the authors' controller",
            "Weft's: one plan for all jobs, held",
        ],
        slowdowns,
        ["With spines down no routes reach 1: two flows share a link that is left (4, 8 down), or one ToR's do (1)."],
    )
    show(
        "Time of a decision",
        'summaries of the paper: "around 10 ms"; the authors\' Java code: 11 to 31 ms',
        ["a whole call of weft.route: network, flows, routes and their bound, the better of two"],
        decisions,
        ["Where routes miss the bound of cuts (greedy, 5 jobs, rings of 4), an LP looks for a better bound."],
    )


if __name__ == "__main__":
    main()
