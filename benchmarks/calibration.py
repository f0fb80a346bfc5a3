"""Weft's constants from its runs: whether ``weft validate --fit`` writes the shipped files again, and how
long it takes.

Run: ``python benchmarks/calibration.py`` (a quarter of an hour on two cores).  It ends with an error where a byte
differs.
"""

from __future__ import annotations

import sys
import time
from importlib.resources import files

import bench

import weft
from weft.estimation.trust import covered, runs_to_json

TINY = "simumax"


def main() -> int:
    """Fit, compare with the shipped files, and record errors and seconds."""
    options = bench.parser(__doc__).parse_args()
    start = time.perf_counter()
    if options.tiny:
        from weft.validation.runs import shipped_runs

        runs = [run for run in shipped_runs() if run.family == TINY]
        found = weft.calibrate(runs, progress=print)
    else:
        found = weft.calibrate(progress=print)
    seconds = time.perf_counter() - start
    places = {
        ("weft.cluster", "calibration.toml"): found.to_toml(),
        ("weft.estimation", "errors.json"): runs_to_json(found.errors()),
    }
    same = all(
        files(package).joinpath("data", name).read_text(encoding="utf-8") == text
        for (package, name), text in places.items()
    )
    names = ("fitted", "source_left_out", "kind_left_out")
    means = {
        f"{name}_mean_error": sum(one.mape or 0.0 for one in errors if one.family[0] != " ")
        / sum(one.family[0] != " " for one in errors)
        for name, errors in zip(names, found.by_family(), strict=True)
    }
    inside = covered(found.errors())
    figures = means | {"covered": sum(inside.values()) / len(inside), "wall_s": seconds, "as_shipped": float(same)}
    for name, value in figures.items():
        print(f"{name:28s} {value:.4g}")
    bench.record(options, figures)
    return 0 if same or options.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
