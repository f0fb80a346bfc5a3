"""What the closed form's choice loses on real networks, and what it takes to find the best layout on each, with proof.

For each job and network: the best layout on that network (proved), the seconds of the layout that the closed form
ranks first, what that loses, layouts evaluated at flow level, and CPU seconds of the search with kernels compiled.
The networks: rail-optimized 1:1 and 4:1, and a three-tier Clos whose leaves pass on a quarter, with hashed, planned
and sprayed routes.

Run: ``python benchmarks/plan_on_fabric.py``.
"""

from __future__ import annotations

import time

import bench

from weft.cluster import Cluster
from weft.cluster import load as load_cluster
from weft.fabric import Fabric
from weft.fabric.catalogue import for_cluster
from weft.fabric.dimension import from_tier
from weft.fabric.families import clos
from weft.layout.text import format_layout
from weft.model import resolve_job
from weft.search import plan
from weft.search.network_plan import NetworkPlan, plan_on_fabric

MARGIN = 0.05
"""Memory that is left free, as `weft plan` does."""
TINY = (("gpt2-124m", "a100-16"),)
CASES = (
    ("llama-3.1-70b", "h100-512"),
    ("llama-3.1-405b", "h100-1024"),
    ("qwen3-235b-a22b", "h100-512"),
    ("mixtral-8x22b", "h100-256"),
    ("deepseek-v3", "h800-2048"),
)
ROUTINGS = ("ecmp", "planned", "spray")


def networks(cluster: Cluster, *, tiny: bool) -> dict[str, Fabric]:
    """The networks of a cluster, by name."""
    narrow = clos.build(
        cluster.count,
        radix=8 if tiny else 64,
        tiers=3,
        oversubscription=(3, 1) if tiny else (4, 1),
        bandwidth_Bps=cluster.tiers[1].bandwidth_Bps,
        scale_up=from_tier(cluster.tiers[0]),
    )
    if tiny:
        return {"clos": narrow}
    rails = {f"rail_{ratio}": for_cluster("rail-optimized", cluster, oversubscription=ratio) for ratio in (1, 4)}
    return rails | {"clos": narrow}


def main() -> None:
    """Search for every job, network and routing."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    for model, name in TINY if options.tiny else CASES:
        job, cluster = resolve_job(model), load_cluster(name)
        closed = plan(job, cluster, top=100, per_mesh=True, memory_margin=MARGIN)
        for network, fabric in networks(cluster, tiny=options.tiny).items():
            for routing in ROUTINGS:
                begin = time.process_time()
                found = plan_on_fabric(closed, fabric, routing=routing)
                figures |= told(f"{model}_{network}_{routing}", found, time.process_time() - begin)
    bench.record(options, figures)


def told(name: str, found: NetworkPlan, seconds: float) -> dict[str, float]:
    """Print a search, and return its figures."""
    best, proof = found.ranked[0].simulated_s, found.proof
    lost = found.first_choice_s / best - 1
    print(
        f"{name:34s} best {best:8.3f} s, gap {proof.gap:.1%}, first choice loses {lost:6.1%};"
        f" {proof.evaluated:5,d} of {proof.considered:,d} evaluated, {seconds:.1f} CPU-s:"
        f" {format_layout(found.layouts[0].layout)}",
        flush=True,
    )
    figures = {"best_s": best, "lost": lost, "gap": proof.gap, "evaluated": float(proof.evaluated), "cpu_s": seconds}
    return {f"{name}_{key}": value for key, value in figures.items()}


if __name__ == "__main__":
    main()
