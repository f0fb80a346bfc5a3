"""How long ``weft design`` takes by the number of accelerators, and how much memory.

For each size: wall and CPU seconds of three networks (rail-only, rail-optimized, fat-tree) with the failure of one
component of each role, kernels compiled, and the peak of the process so far.

Run: ``python benchmarks/design.py``.
"""

from __future__ import annotations

import resource
import time

import bench

import weft

TINY = (("llama-3.1-8b", 64),)
CASES = (("llama-3.1-405b", 16_384), ("llama-3.1-405b", 32_768), ("llama-3.1-405b", 131_072))


def main() -> None:
    """Design the networks of every size."""
    options = bench.parser(__doc__).parse_args()
    figures: dict[str, float] = {}
    weft.design("llama-3.1-8b", "h100-64", fabrics="rail-only")
    for model, count in TINY if options.tiny else CASES:
        wall, cpu = time.perf_counter(), time.process_time()
        found = weft.design(model, f"h100-{count}", oversubscription="none")
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{model} on {count:,}: {len(found.designs)} networks, {sum(len(one.failures) for one in found.designs)}"
            f" failures: {wall_s:.1f} s, {cpu_s:.1f} CPU-s, at most {peak_bytes / 1e9:.2f} GB",
            flush=True,
        )
        figures |= {f"{count}_cpu_s": cpu_s, f"{count}_peak_bytes": float(peak_bytes)}
    bench.record(options, figures)


if __name__ == "__main__":
    main()
