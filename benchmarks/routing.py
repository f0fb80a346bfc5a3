"""How fast routes are found: a decision at the paper's size, and 100,000 flows.

The paper's size is 1,728 flows of five jobs on 64 ToRs x 32 spines; the large network is a three-tier Clos of
16,384 hosts in 128 pods, whose flows are rings over all hosts in random order.

Run: ``python benchmarks/routing.py``.

The jobs are those of the routing paper, placed anew.
Times are CPU seconds of the router alone, compiled code warm, the best of some runs; "problem" is what lists the paths
of the flows before.  Integer programs run in the same process, so ratios to them are of one machine: "ilp"
is Weft's, which gathers equal flows and begins with repaired routes, "plain ilp" that of the paper.
Memory is the most that arrays took beyond what was there before.  One process, one thread.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import bench
import numpy as np

from weft.errors import Unsupported
from weft.fabric.build import start
from weft.fabric.families.clos import ClosShape, two_layers, wire
from weft.fabric.spec import Fabric
from weft.routing.bound import closed_bound
from weft.routing.problem import Problem, routing_problem
from weft.routing.routers import ROUTERS, route_exact
from weft.routing.traffic import JobTraffic, generate, job_traffic
from weft.routing.ways import climbs
from weft.solvers import lp

PAPER_JOBS = (("BLOOM", 4), ("LLaMA2_70B", 4), ("GPT_3", 4), ("LLaMA2_70B", 4), ("GPT_3", 4))
QUICK = ("ecmp", "greedy", "edge-coloring", "repair")
HOSTS, PODS, LEAF_PORTS = 16_384, 128, 16
LINE_RATE = 12.5e9
ILP_LIMIT_S = 120.0


def peak_bytes(action: Callable[[], object]) -> int:
    """The most that arrays took at a time during one call."""
    tracemalloc.start()
    action()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def plain_ilp(asked: Problem, seconds: float) -> tuple[float, float]:
    """Seconds and congestion of the integer program as the paper has it: a binary for every flow and path.

    On a Clos of two tiers, where a flow's ways up and down are in the same order of spines.
    """
    ways = asked.ways
    count = ways.up_end - ways.up_first
    flow, columns = np.repeat(np.arange(len(count)), count), int(count.sum())
    turn = np.arange(columns) - np.repeat(np.cumsum(count) - count, count)
    pair = np.concatenate([ways.up[ways.up_first[flow] + turn], ways.down[ways.down_first[flow] + turn]], axis=1)
    entry, place = np.nonzero(pair >= 0)
    used, row = np.unique(pair[entry, place], return_inverse=True)
    index = np.concatenate([flow, len(count) + row.reshape(-1), len(count) + np.arange(len(used))])
    column = np.concatenate([np.arange(columns), entry, np.full(len(used), columns)])
    value = np.concatenate([np.ones(columns + len(entry)), np.full(len(used), -1.0)])
    free = np.full(len(used), -np.inf)
    rows = lp.Rows(
        index, column, value, np.append(np.ones(len(count)), free), np.append(np.ones(len(count)), 0 * used)
    )
    bounds = np.zeros(columns + 1), np.append(np.ones(columns), np.inf)
    cost, begun = np.append(np.zeros(columns), 1.0), time.process_time()
    found = lp.least(cost, bounds, rows, integer=[True] * (columns + 1), seconds=seconds)
    return time.process_time() - begun, found.objective


def congestion(asked: Problem, router: str) -> float:
    """Highest load of a link."""
    return float(asked.loads(ROUTERS[router](asked, 0).routes).max())


def decisions(fabric: Fabric, traffic: JobTraffic, repeat: int) -> dict[str, float]:
    """Quick routers beside the integer program, without failures and with 8 spines down."""
    figures: dict[str, float] = {"flows": len(traffic)}
    ratios: dict[str, list[float]] = {"ilp": [], "plain_ilp": []}
    for down in (0, 8):
        spines = fabric.nodes_of("spine")
        asked = routing_problem(fabric.failed(nodes=spines[len(spines) - down :]), traffic)
        print(f"\n{len(traffic):,} flows, {down} of 32 spines down, bound {closed_bound(asked):g}")
        listing = bench.cpu_s(partial(routing_problem, asked.fabric, traffic), repeat)
        begin = time.process_time()
        exact = route_exact(asked, 0, ILP_LIMIT_S)
        ilp = time.process_time() - begin
        plain, alpha = plain_ilp(asked, ILP_LIMIT_S)
        head = ("ms", "congestion", "ilp / it", "plain ilp / it")
        print("  {:16}{:>12}{:>12}{:>12}{:>16}".format("", *head))
        print(f"  {'problem':16}{listing * 1e3:12.3f}")
        for router in QUICK:
            took = bench.cpu_s(partial(ROUTERS[router], asked, 0), repeat)
            reached = congestion(asked, router)
            key = f"{router}_{down}_down"
            figures |= {f"{key}_cpu_ms": took * 1e3, f"{key}_congestion": reached}
            if router != "ecmp":
                ratios["ilp"].append(ilp / took)
                ratios["plain_ilp"].append(plain / took)
            print(f"  {router:16}{took * 1e3:12.3f}{reached:12g}{ilp / took:12.0f}{plain / took:16.0f}")
        print(f"  {'ilp':16}{ilp * 1e3:12.3f}{asked.loads(exact.routes).max():12g}")
        print(f"  {'plain ilp':16}{plain * 1e3:12.3f}{alpha:12g}", flush=True)
    for key, found in ratios.items():
        figures |= {f"{key}_least_times": min(found), f"{key}_most_times": max(found)}
    return figures


def large_fabric() -> Fabric:
    """16,384 hosts: leaves of 16, pods of 8 leaves and 16 spines, 128 core switches."""
    form = ClosShape(
        radix=128,
        units=(HOSTS // LEAF_PORTS, PODS, 1),
        joins=(LEAF_PORTS, 8, PODS),
        per_unit=(1, 16, 128),
        uplinks=(16, 8, 0),
    )
    builder = start("three tiers", HOSTS, bandwidth_Bps=LINE_RATE)
    members = np.arange(HOSTS, dtype=np.int64)
    wire(builder, members, members // LEAF_PORTS, form)
    return builder.build()


def rings(flows: int, seed: int = 0) -> JobTraffic:
    """Flows of rings over all hosts in random orders, each a collective; the last ring may be open."""
    draw = np.random.default_rng(seed)
    count = -(-flows // HOSTS)
    order = np.array([draw.permutation(HOSTS) for _ in range(count)])
    return job_traffic(
        order.ravel()[:flows],
        np.roll(order, -1, axis=1).ravel()[:flows],
        np.full(flows, 1e9),
        collective=np.repeat(np.arange(count), HOSTS)[:flows],
    )


def large() -> dict[str, float]:
    """Time, congestion and memory for 10,000 and 100,000 flows over three tiers."""
    fabric = large_fabric()
    table = climbs(fabric)
    once, figures = bench.cpu_s(partial(climbs, fabric)), {}
    print(f"\nthree tiers, {HOSTS:,} hosts, {fabric.links:,} links; ways up: {once:.2f} s")
    for flows in (10_000, 100_000):
        traffic = rings(flows)
        asked = routing_problem(fabric, traffic, table=table)
        listing = bench.cpu_s(partial(routing_problem, fabric, traffic, table=table), 2)
        print(f"{flows:,} flows: problem {listing:.2f} s, bound {closed_bound(asked):g}")
        for router in ("greedy", "edge-coloring", "repair"):
            act = partial(ROUTERS[router], asked, 0)
            try:
                took = bench.cpu_s(act, 2)
            except Unsupported as reason:
                print(f"  {router:16}{reason.what}")
                continue
            memory = peak_bytes(act)
            figures |= {f"{router}_{flows}_flows_cpu_s": took, f"{router}_{flows}_flows_MiB": memory / 2**20}
            print(
                f"  {router:16}{took:8.3f} s   congestion {congestion(asked, router):g}"
                f"   memory {memory / 2**20:,.0f} MiB"
            )
    many = [value for key, value in figures.items() if key.endswith("_100000_flows_cpu_s")]
    most = max(value for key, value in figures.items() if key.endswith("_100000_flows_MiB"))
    figures |= {"large_least_cpu_s": min(many), "large_most_cpu_s": max(many), "large_most_MiB": most}
    return figures


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    fabric = two_layers()
    jobs = PAPER_JOBS[:2] if options.tiny else PAPER_JOBS
    traffic = generate(fabric, jobs)
    figures = decisions(fabric, traffic, 1 if options.tiny else 7)
    if not options.tiny:
        figures |= large()
    bench.record(options, figures, "the jobs of the routing paper, placed anew")


if __name__ == "__main__":
    main()
