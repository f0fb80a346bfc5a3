"""CPU time of the commands that a user types first, the least of several runs.

Run: ``python benchmarks/startup.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import bench

WEFT = str(Path(sys.executable).parent / "weft")
COMMANDS = (
    ("help", ["--help"], 10),
    ("plan_8b", ["plan", "llama-3.1-8b", "h100-64"], 5),
    ("plan_405b", ["plan", "llama-3.1-405b", "h100-16384"], 5),
)


def least(command: list[str], repeats: int) -> tuple[float, float]:
    """Least CPU and wall seconds of a command."""
    cpu, wall = [], []
    for _ in range(repeats):
        before, start = os.times(), time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        wall.append(time.perf_counter() - start)
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(cpu), min(wall)


def main() -> None:
    """Print CPU and wall time of each command."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    for name, arguments, repeats in COMMANDS:
        cpu, wall = least([WEFT, *arguments], 1 if options.tiny else repeats)
        figures |= {f"{name}_cpu_s": cpu, f"{name}_wall_s": wall}
        print(f"weft {' '.join(arguments):40s} {cpu * 1e3:6.0f} ms CPU {wall * 1e3:6.0f} ms wall")
    bench.record(options, figures)


if __name__ == "__main__":
    main()
