"""What the first use of compiled kernels costs: commands with an empty folder of kernels, and with a full one.

Run: ``python benchmarks/first_use.py``.

Cold is the one run that compiles, warm the least of those after it; both are whole commands, with start-up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench

WEFT = str(Path(sys.executable).parent / "weft")
COMMANDS = {
    "simulate": "simulate llama-3.1-8b h100-64 --layout tp=8,dp=8,sp",
    "route_export": "route export json --generate BLOOM:4,GPT_3:4",
    "schedule": "schedule all-reduce 1GiB --cluster h100-1024",
    "design": "design llama-3.1-8b h100-64",
    "plan": "plan llama-3.1-8b h100-64",
}
TINY = {"schedule": "schedule all-reduce 1MiB --cluster h100-64"}


def seconds(arguments: list[str], kernels: str) -> tuple[float, float]:
    """CPU and wall seconds of a command with its kernels in a folder."""
    environment = os.environ | {"NUMBA_CACHE_DIR": kernels}
    before, start = os.times(), time.perf_counter()
    subprocess.run([WEFT, *arguments], env=environment, capture_output=True, check=True)
    after, wall = os.times(), time.perf_counter() - start
    return after.children_user + after.children_system - before.children_user - before.children_system, wall


def main() -> None:
    """Print CPU and wall time of each command, cold and warm."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    for name, words in (TINY if options.tiny else COMMANDS).items():
        with tempfile.TemporaryDirectory() as kernels:
            cold, *warm = (seconds(words.split(), kernels) for _ in range(2 if options.tiny else 4))
        for kind, (cpu, wall) in {"cold": cold, "warm": tuple(map(min, zip(*warm, strict=True)))}.items():
            figures |= {f"{name}_{kind}_cpu_s": cpu, f"{name}_{kind}_wall_s": wall}
            print(f"weft {words:55s} {kind}: {cpu:5.1f} s CPU {wall:5.1f} s wall", flush=True)
    bench.record(options, figures)


if __name__ == "__main__":
    main()
