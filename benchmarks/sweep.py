"""How well a sweep uses the cores, what a point costs beside its computation, and what memory a million points take.

Parallel efficiency: seconds of points that each compute for 0.1 s, with one worker over N times those with N.
The overhead is that of points that compute nothing, on one worker and on N, with the state on the disk.

Run: ``python benchmarks/sweep.py``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench

from weft.studies.result import Sweep
from weft.studies.run import StudyRun, StudyState
from weft.studies.runners import runner
from weft.studies.study import AxisKind, Computation, Points, study_from_dict
from weft.units import parse_whole

WORKERS = 2
BUSY_S = 0.1


def compute(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing, or so many operations as take about ``BUSY_S`` of processor time."""
    if name == "busy":
        until = time.process_time() + BUSY_S
        while time.process_time() < until:
            pass
    return {"sum": values["a"] + values["b"]}


def computation(name: str, where: str) -> Computation:
    """Two axes of whole numbers."""
    axes = {axis: AxisKind(axis, parse_whole, "whole") for axis in ("a", "b")}
    return Computation(name=name, axes=axes, needed=("a", "b"))


def timed(name: str, count: int, workers: int, folder: str) -> tuple[float, float]:
    """Seconds of a run and of writing its result, workers started before."""
    axes = {"a": list(range(max(count // 1000, 1))), "b": list(range(min(count, 1000)))}
    document = {"schema": "weft.study/1", "compute": name, "axes": axes}
    chosen = runner(workers)
    warm = {"schema": "weft.study/1", "compute": "busy", "axes": {"a": [0], "b": list(range(10 * workers))}}
    try:
        for number, one in enumerate((warm, document)):
            begin = time.perf_counter()
            points = Points(study_from_dict(one, computation))
            kept = StudyState(Path(folder, f"{name}-{workers}-{number}"))
            run = StudyRun(points=points, kept=kept, compute="sweep:compute")
            run.go(chosen)
            computed = time.perf_counter() - begin
            found = Sweep(run.points, run.kept, run.keys, run.counts)
            with open(Path(folder, "out"), "w", encoding="utf-8") as file:
                file.writelines(f"{row['sum']}\n" for row in found.rows())
            written = time.perf_counter() - begin - computed
            found.close()
    finally:
        chosen.close()
    return computed, written


def main() -> None:
    """Measure, print and record."""
    options, figures = bench.parser(__doc__).parse_args(), dict[str, float | str]()
    busy, trivial = (20, 2000) if options.tiny else (400, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        one, _ = timed("busy", busy, 1, folder)
        many, _ = timed("busy", busy, WORKERS, folder)
        figures[f"efficiency_{WORKERS}_workers"] = one / many / WORKERS
        alone, written = timed("none", trivial, 1, folder)
        figures |= {"overhead_ms": 1e3 * alone / trivial, "written_ms": 1e3 * written / trivial}
        spread, _ = timed("none", trivial // 10, WORKERS, folder)
        figures[f"overhead_{WORKERS}_workers_ms"] = 1e3 * spread / (trivial // 10)
    figures |= {"points": trivial, "peak_GB": bench.peak_GB()}
    for name, value in figures.items():
        print(f"{name:>24} {value:,.4g}" if isinstance(value, float) else f"{name:>24} {value:,}")
    bench.record(options, figures)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
