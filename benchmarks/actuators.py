"""How much of the best possible congestion each actuator reaches: what one can tell a network, or a job, about paths.

The paper's network (64 ToRs x 32 spines) and its models in rings of 4, placed anew five times; with the authors' job
files (folder WEFT_ROUTING_JOBS) also their 11 workloads.  In a ring each destination has one source; so four jobs also
exchange all-to-all, on that network and on three layers.  A figure is the mean of alpha* / alpha: the least congestion
of flows that may split over all paths, by cuts, over that reached.

Run: ``python benchmarks/actuators.py``.  Everything is computed, nothing is timed; accelerators have one NIC each.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import bench
import numpy as np

from weft.fabric.families import clos
from weft.fabric.paths import Paths
from weft.fabric.spec import Fabric
from weft.interop.opensm import path_colours
from weft.routing.bound import closed_bound
from weft.routing.choice import links_of
from weft.routing.problem import Problem, routing_problem
from weft.routing.routers import ROUTERS
from weft.routing.traffic import JobTraffic, generate, job_traffic, merged

FOUR = (("BLOOM", 4), ("LLaMA2_70B", 4), ("GPT_3", 4), ("LLaMA2_70B", 4))
SINGLE = ("BLOOM", "GPT_3", "LLaMA2_70B")
AUTHORS = ((1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (3, 2), (3, 4), (3, 8), (5, 2), (5, 4))
"""Jobs and ring sizes of the authors' files."""
SEEDS, STEPS = 5, 1000
"""Placements; swaps of ranks that are tried."""
QUEUE_PAIRS = (1, 2, 4, 8, 16)
PINNED_PAIRS = 2
GROUP = 16
"""Hosts of an all-to-all."""


def all_to_all(fabric: Fabric, jobs: int, groups: int, seed: int) -> JobTraffic:
    """Jobs of ``groups`` groups of hosts, drawn anywhere, each of which sends to all others of its group."""
    hosts = np.random.default_rng(seed).permutation(fabric.accelerators)[: jobs * groups * GROUP]
    turn = np.arange(1, GROUP)
    parts = []
    for number, mine in enumerate(hosts.reshape(jobs, groups, GROUP)):
        target = np.stack([np.roll(mine, -step, axis=1) for step in turn], axis=-1)
        source = np.broadcast_to(mine[:, :, None], target.shape)
        group = np.repeat(np.arange(groups), GROUP * len(turn))
        ends = source.ravel(), target.ravel()
        parts.append(job_traffic(*ends, np.ones(source.size), collective=group, jobs=(f"job {number}",)))
    return merged(parts)


def workloads(seeds: int) -> Iterator[tuple[str, Fabric, JobTraffic]]:
    """Name, network and flows; a name comes once for each placement."""
    fabric = clos.two_layers()
    spines = fabric.nodes_of("spine")
    failed = fabric.failed(nodes=spines[-8:])
    pods = clos.build(432, radix=12, tiers=3, bandwidth_Bps=12.5e9)
    for seed in range(seeds):
        for name in SINGLE:
            yield "one", fabric, generate(fabric, [(name, 4)], seed=seed)
        four = generate(fabric, FOUR, seed=seed)
        yield "four", fabric, four
        yield "four_failed", failed, four
        yield "all_to_all", fabric, all_to_all(fabric, 4, 16, seed)
        yield "all_to_all_pods", pods, all_to_all(pods, 4, 6, seed)
    if seeds == SEEDS and "WEFT_ROUTING_JOBS" in os.environ:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from tests.paper_jobs import paper_jobs

        for jobs, ring in AUTHORS:
            yield "authors", fabric, paper_jobs(jobs, ring)


def congestion(problem: Problem, router: str) -> float:
    """The highest load of a link."""
    return float(problem.loads(ROUTERS[router](problem, 0).routes).max())


def rank_order(problem: Problem, steps: int) -> float:
    """Congestion of hashed flows after swaps of two ranks of a job on one leaf, where that is no worse.

    The hash is known.  Traffic between leaves stays as it is, so that ranks which share a copy stay close.
    """
    fabric, traffic, draw = problem.fabric, problem.traffic, np.random.default_rng(0)
    paths, add = Paths(fabric), problem.demand_Bps
    place = np.arange(fabric.accelerators)
    nics = np.flatnonzero(fabric.source < fabric.accelerators)
    leaf = np.zeros(fabric.accelerators, dtype=np.int64)
    leaf[fabric.source[nics]] = fabric.target[nics]
    flows_of: dict[int, list[int]] = defaultdict(list)
    swappable: dict[tuple[int, int], set[int]] = defaultdict(set)
    for flow, ends in enumerate(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)):
        for host in ends:
            flows_of[host].append(flow)
            swappable[int(traffic.flow_job[flow]), int(leaf[host])].add(host)

    def load(flows: np.ndarray) -> np.ndarray:
        ends = place[traffic.source[flows]], place[traffic.target[flows]]
        routes = paths.routes(*ends, key=np.zeros(len(flows), dtype=np.int64))
        of = np.repeat(flows, np.diff(routes.indptr))
        return np.bincount(routes.links, add[of] * problem.inverse[routes.links], fabric.links)

    now = load(np.arange(len(traffic)))
    pools = [sorted(hosts) for hosts in swappable.values() if len(hosts) > 1]
    for _ in range(steps):
        pair = draw.choice(pools[int(draw.integers(len(pools)))], 2, replace=False)
        flows = np.unique([flow for host in pair.tolist() for flow in flows_of[host]])
        after = now - load(flows)
        place[pair] = place[pair[::-1]]
        after += load(flows)
        if (round(after.max(), 9), (after**2).sum()) <= (round(now.max(), 9), (now**2).sum()):
            now = after
        else:
            place[pair] = place[pair[::-1]]
    return float(now.max())


def trees_needed(problem: Problem) -> int:
    """The most LIDs that a destination needs for the routes of ``auto``."""
    fabric, paths = problem.fabric, defaultdict(set)
    rows = links_of(ROUTERS["auto"](problem, 0).routes).tolist()
    for target, row in zip(problem.traffic.target.tolist(), rows, strict=True):
        paths[target].add(tuple((int(fabric.source[link]), link) for link in row[1:] if link >= 0))
    return max(1 + max(path_colours(sorted(each))) for each in paths.values())


def reached(fabric: Fabric, traffic: JobTraffic, steps: int) -> dict[str, float]:
    """Congestion by actuator, and the LIDs that the routes of single flows need for a destination."""
    problem = routing_problem(fabric, traffic)
    split = {pairs: routing_problem(fabric, traffic.split(pairs)) for pairs in QUEUE_PAIRS}
    return {
        "best": closed_bound(problem, whole=False),
        "hashed": congestion(problem, "ecmp"),
        "rank_order": rank_order(problem, steps),
        "nccl": min(congestion(each, "ecmp") for each in split.values()),
        "destination": congestion(problem, "destination"),
        "flow": congestion(problem, "auto"),
        "queue_pair": congestion(split[PINNED_PAIRS], "auto"),
        "packet": congestion(problem, "spray"),
        "lids": trees_needed(problem),
    }


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    shares: dict[str, list[float]] = defaultdict(list)
    for name, fabric, traffic in workloads(1 if options.tiny else SEEDS):
        if options.tiny and name != "one":
            break
        alphas = reached(fabric, traffic, 20 if options.tiny else STEPS)
        best, lids = alphas.pop("best"), alphas.pop("lids")
        for actuator, alpha in alphas.items():
            shares[f"{name}_{actuator}"].append(best / alpha)
        shares[f"{name}_lids"].append(lids)
        cells = "  ".join(f"{actuator} {best / alpha:.1%}" for actuator, alpha in alphas.items())
        print(f"{name:16}{len(traffic):8,} flows   {cells}   LIDs {lids}", flush=True)
    figures = {key: float(max(each) if key.endswith("_lids") else np.mean(each)) for key, each in shares.items()}
    bench.record(options, figures, "the authors' job files" if "authors_flow" in figures else "")


if __name__ == "__main__":
    main()
