"""How long the flow-level simulation of one training iteration takes, kernels compiled.

Each distinct collective is simulated with all its groups on the fabric; equal groups that share no link are
solved once.

Run: ``python benchmarks/iteration_simulation.py``.
"""

from __future__ import annotations

from functools import partial

import bench

from weft.cluster import load as load_cluster
from weft.fabric.catalogue import for_cluster
from weft.layout.text import parse_layout
from weft.model import resolve_job
from weft.simulation.iteration.simulate import simulate_iteration

TINY = (("gpt2", "a100-16", "tp=2", 8),)
CASES = (
    ("llama-3.1-8b", "h100-64", "tp=8,sp", 64),
    ("llama-3.1-70b", "h100-1024", "tp=8,pp=4,sp", 64),
    ("llama-3.1-405b", "h100-16384", "tp=8,pp=16,sp,vpp=4", 128),
)


def main() -> None:
    """Simulate each case twice and print the second."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    for model, name, text, radix in TINY if options.tiny else CASES:
        job, cluster = resolve_job(model), load_cluster(name)
        layout = parse_layout(text).complete(cluster.count)
        fabric = for_cluster("rail-optimized", cluster, radix=radix)
        result = simulate_iteration(job, cluster, layout, fabric)
        again = partial(simulate_iteration, job, cluster, layout, fabric)
        seconds, memory = bench.cpu_s(again), bench.peak_GB()
        figures |= {f"{name}_cpu_s": seconds, f"{name}_memory_GB": memory}
        print(
            f"{model:15s} {name:11s} {fabric.links:7,d} links  simulated in {seconds:.1f} CPU-s, {memory:.1f} GB:"
            f" iteration {result.iteration_s:.3f} s, closed form {result.closed_form_s:.3f} s"
        )
    bench.record(options, figures)


if __name__ == "__main__":
    main()
