"""How fast the search is: Megatron-1T on 4,096 A100 at batch 4,096, the case of Calculon's own search.

Calculon (commit caa4b11) enumerates 7,276,848 configurations there: tensor, pipeline and data degrees, micro-batch, interleaving, and switches
for sequence parallelism, recomputation, optimizer sharding, overlap, offload and the choice of one of two networks for each
axis.  Ours turns the same degrees and switches over 1F1B and interleaved 1F1B; the network of an axis follows from its placement and is no
choice.  Every layout is evaluated in full (time, memory, lower bound, breakdown), also those that do not fit.

Run: ``python benchmarks/search_speed.py [--rows N]``.  One process, one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

from weft.cluster import load as load_cluster
from weft.layout.text import format_layout
from weft.model import resolve_job
from weft.search import Space, plan

CALCULON_CONFIGURATIONS = 7_276_848
CALCULON_PER_CPU_SECOND = (180, 270)

SPACE = Space(
    name="calculon",
    schedules=("1f1b", "interleaved"),
    zero=(0, 1, 2),
    recompute=("none", "selective", "full"),
    partial_recompute=False,
    sequence_parallel=(False, True),
    overlap_tensor=("none", "backward", "full"),
    overlap_reduce=(False, True),
    overlap_gather=(False, True),
    offload_optimizer=(False, True),
    offload_activations=(False, True),
    fixed={"context": (1,), "z": (1,)},
)


def main() -> None:
    """Time the search and print what it did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sharded", action="store_true", help="also split data parallelism over z (FSDP)")
    arguments = parser.parse_args()
    space = SPACE if not arguments.sharded else SPACE.__class__(**(_fields(SPACE) | {"fixed": {"context": (1,)}}))
    wall, cpu = time.perf_counter(), time.process_time()
    found = plan(resolve_job("megatron-1t"), load_cluster("a100-4096"), space=space)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rate = found.evaluated / cpu
    print(f"evaluated {found.evaluated:,} layouts ({found.evaluated / CALCULON_CONFIGURATIONS:.2f}x Calculon's)")
    print(f"feasible  {found.feasible:,}")
    print(f"time      {cpu:.1f} CPU-s, {wall:.1f} s wall, peak memory {memory:.2f} GB")
    slow, fast = (rate / each for each in CALCULON_PER_CPU_SECOND)
    print(f"rate      {rate:,.0f} evaluations per CPU-second ({fast:,.0f} to {slow:,.0f} times Calculon's)")
    best = found.layouts[0]
    print(f"best      {best.iteration_s:.1f} s, MFU {best.mfu:.1%}: {format_layout(best.layout)}")


def _fields(space: Space) -> dict[str, object]:
    return {name: getattr(space, name) for name in space.__dataclass_fields__}


if __name__ == "__main__":
    main()
