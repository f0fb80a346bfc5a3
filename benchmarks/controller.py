"""How long the route controller takes to decide, by number of jobs: the routing paper's question of its controller.

One to ten jobs of the paper's workload (BLOOM, rings of 4: 192 flows each) on its 64 ToRs x 32 spines.  A decision is
timed as ``Controller.apply`` runs it, with the efficiency before and after: the last job's arrival, a spine that goes
down, a lossy link.  Beside it a plan of everything from nothing, by the paper's greedy, by edge colouring, and by
Weft's integer program.

Run: ``python benchmarks/controller.py``.  CPU seconds, compiled code warm, the least of some runs.
"""

from __future__ import annotations

from functools import partial

import bench
import numpy as np

from weft.fabric.families.clos import two_layers
from weft.fabric.spec import Fabric
from weft.routing.controller import Controller, Event
from weft.routing.problem import routing_problem
from weft.routing.routers import ROUTERS, route_exact
from weft.routing.telemetry import LinkSample
from weft.routing.traffic import JobTraffic, generate

MOST_JOBS = 10
ILP_LIMIT_S = 60.0
KINDS = ("job-arrives", "switch-down", "counters")


def story(fabric: Fabric, traffic: JobTraffic) -> list[Event]:
    """The arrival of every job, then a spine down and a lossy link."""
    events = [
        Event(time_s=float(job), kind="job-arrives", job=name, traffic=traffic.only([job]))
        for job, name in enumerate(traffic.jobs)
    ]
    last = float(len(events))
    events.append(Event(time_s=last, kind="switch-down", nodes=("spine-0",)))
    used = int(np.bincount(traffic.source // 32, minlength=1).argmax())
    ends = fabric.names.index(f"leaf-{used}"), fabric.names.index("spine-1")
    return [*events, Event(time_s=last + 1, kind="counters", samples=(LinkSample(ends=ends, loss=0.01),))]


def decided(fabric: Fabric, events: list[Event], repeat: int) -> dict[str, float]:
    """CPU seconds of the last decision of each kind."""
    best = dict.fromkeys(KINDS, float("inf"))
    for _ in range(repeat):
        controller = Controller(fabric)
        took = {}
        for event in events:
            took[event.kind] = bench.cpu_s(partial(controller.apply, event))
        best = {kind: min(best[kind], took[kind]) for kind in KINDS}
    return best


def main() -> None:
    """Print a row for each number of jobs, and record it."""
    options = bench.parser(__doc__).parse_args()
    fabric, repeat = two_layers(), 1 if options.tiny else 5
    decided(fabric, story(fabric, generate(fabric, [("BLOOM", 2)], seed=0)), 1)
    ROUTERS["greedy"](routing_problem(fabric, generate(fabric, [("BLOOM", 2)], seed=0)), 0)
    figures: dict[str, float] = {}
    print("CPU ms of a decision, and of a plan from nothing")
    print(f"{'jobs':>5}{'flows':>7}{'arrival':>9}{'spine':>8}{'lossy':>8}{'greedy':>8}{'colour':>8}{'ILP':>9}")
    for jobs in (1, 2) if options.tiny else range(1, MOST_JOBS + 1):
        traffic = generate(fabric, [("BLOOM", 4)] * jobs, seed=0)
        took = decided(fabric, story(fabric, traffic), repeat)
        asked = routing_problem(fabric, traffic)
        greedy, colour = (
            bench.cpu_s(partial(ROUTERS[name], asked, 0), repeat) for name in ("greedy", "edge-coloring")
        )
        exact = bench.cpu_s(partial(route_exact, asked, 0, ILP_LIMIT_S))
        row = [*(took[kind] for kind in KINDS), greedy, colour, exact]
        print(
            f"{jobs:5}{len(traffic):7,}"
            + "".join(f"{1e3 * one:{9 if at in (0, 5) else 8}.1f}" for at, one in enumerate(row))
        )
        names = ("arrival", "spine_down", "lossy_link", "greedy", "edge_coloring", "ilp")
        figures |= {f"{name}_{jobs}_jobs_cpu_ms": 1e3 * one for name, one in zip(names, row, strict=True)}
        figures[f"flows_{jobs}_jobs"] = len(traffic)
    bench.record(options, figures)


if __name__ == "__main__":
    main()
