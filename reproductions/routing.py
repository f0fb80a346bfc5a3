"""Routing for Large ML Models (arXiv 2503.05324): its workloads under hashing, its greedy routes, and Weft's.

    python reproductions/routing.py

The network is the paper's: 64 ToRs x 32 spines, 2,048 NICs of 100 Gb/s.  The body of the paper is not public here.
What stands under "authors" was measured with their public simulator and job files; Weft draws the same jobs and places
them anew, so that hashing differs by its luck.  Runs are replays in the flow-level simulator (three epochs).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from paper import show

import weft
from weft.fabric.families.clos import two_layers
from weft.routing.generate import generate
from weft.simulation.routes.replay import replay, with_spines_down

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


def slowdowns_of(jobs: int, ring: int, down: int, routers: Sequence[str], controller: str) -> tuple[int, list[float]]:
    """Number of flows; by router the mean over jobs of the all-reduce over its time alone."""
    fabric = with_spines_down(two_layers(), down)
    traffic = generate(fabric, [(model, ring) for model in JOBS[ring][:jobs]], seed=0)
    replays = [replay(fabric, traffic, router, epochs=EPOCHS, controller=controller) for router in routers]
    return len(traffic), [float(result.ratio.mean()) for result in replays]


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
        flows, (ecmp, planned_again) = slowdowns_of(jobs, ring, down, ("ecmp", "greedy"), "paper")
        _, (ours,) = slowdowns_of(jobs, ring, down, ("auto",), "held")
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
