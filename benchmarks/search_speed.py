"""How fast the search is: Megatron-1T on 4,096 A100 at batch 4,096, the case of Calculon's own search.

Calculon (commit caa4b11) enumerates 7,276,848 configurations there: tensor, pipeline and data degrees,
micro-batch, interleaving, and switches for sequence parallelism, recomputation, optimizer sharding, overlap,
offload and the choice of one of two networks for each axis.  Ours turns

* degrees: tensor (x), pipeline, data, and FSDP (z), over all divisors; every micro-batch that divides the batch;
* schedules: 1F1B, interleaved 1F1B with every divisor of the layers of a stage, ZB-1P, ZB-V;
* switches: sequence parallelism; recomputation none, selective, full, and of 1/4, 1/2, 3/4 of the layers;
  ZeRO 0, 1, 2; tensor overlap none, backward, full; gradient reduction and parameter gathering overlapped or
  not; optimizer and activation offload.

The network of an axis follows from its placement and is not a choice of ours; weight offload is not modelled.
Layouts that mean the same are counted once.  The search decides every layout that can run: it computes the exact
memory of each, also of those that do not fit, and evaluates in full (time, lower bound, breakdown) only what a bound
on the time does not rule out.  Its rate counts decided layouts; ``evaluation_rate.py`` counts full evaluations.

Run: ``python benchmarks/search_speed.py``.  One process, one thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

import bench

from weft.cluster import load as load_cluster
from weft.layout.text import format_layout
from weft.model import resolve_job
from weft.search import WIDE, plan

CALCULON_CONFIGURATIONS = 7_276_848
NEEDS_MEMORY = ("does-not-fit", "host-memory")
"""Codes of layouts that could run but for memory."""
SPACE = replace(WIDE, name="megatron-1t", y=False, fixed={"context": (1,)})


def main() -> None:
    """Time the search and print what it did."""
    options = bench.parser(__doc__).parse_args()
    model, cluster = ("gpt2", "a100-8") if options.tiny else ("megatron-1t", "a100-4096")
    wall, cpu = time.perf_counter(), time.process_time()
    found = plan(resolve_job(model), load_cluster(cluster), space=SPACE)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = bench.peak_GB()
    decided = found.considered - sum(one.layouts for one in found.rejected if one.code not in NEEDS_MEMORY)
    rate = decided / cpu
    print(f"decided   {decided:,} layouts ({decided / CALCULON_CONFIGURATIONS:.2f}x Calculon's)")
    print(f"feasible  {found.feasible:,}")
    print(f"time      {cpu:.1f} CPU-s, {wall:.1f} s wall, peak memory {memory:.2f} GB")
    print(f"rate      {rate:,.0f} decided per CPU-second")
    best = found.layouts[0]
    print(f"best      {best.iteration_s:.1f} s, MFU {best.mfu:.1%}: {format_layout(best.layout)}")
    figures = {
        "decided_layouts": decided,
        "compared_layouts": found.evaluated,
        "fitting_layouts": found.feasible,
        "cpu_s": cpu,
        "decided_per_cpu_s": rate,
        "memory_GB": memory,
    }
    bench.record(options, figures)


if __name__ == "__main__":
    main()
