"""How long the 13,200 simulations of ``examples/studies/simulations.toml`` take, from a seeded sample of them.

The sample has all networks of some models and clusters in some states, so that points share plans as in the study.
One worker gives the seconds of a plan (the first point of a model on a cluster, less the middle of its others) and
those of a point beside.  The whole takes, on N workers, (points x seconds + plans x repeats x seconds of a plan) / N /
efficiency.  A worker plans anew what another has planned, so that a plan is repeated by every worker, or by every
batch of its points where these are fewer.  The efficiency is measured with two workers: what this formula says of the
sample over what it took.  For 100 the same efficiency is assumed.

Run: ``python benchmarks/study.py``.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import bench

from weft.commands import sweep as verbs
from weft.studies.run import BATCH_S, StudyRun, StudyState
from weft.studies.runners import runner
from weft.studies.study import Points, study_from_dict

STUDY = Path(__file__).parents[1] / "examples" / "studies" / "simulations.toml"
WARM = {"model": ["gpt2-124m"], "cluster": ["h100-8"], "batch": [64], "seed": list(range(8))}
TIMES: dict[tuple[Any, Any], list[float]] = {}
"""Seconds of the points that this process computed, in order, by model and cluster."""


def compute(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a point; the seconds that it took go to ``TIMES``."""
    begin = time.perf_counter()
    try:
        return verbs.compute(name, values)
    finally:
        TIMES.setdefault((values["model"], values["cluster"]), []).append(time.perf_counter() - begin)


def sampled(axes: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """The axes with so many values each of some of them, drawn in their order."""
    dice = random.Random(0)
    drawn = {name: sorted(dice.sample(range(len(axes[name])), size)) for name, size in sizes.items()}
    return {name: [some[i] for i in drawn[name]] if name in drawn else some for name, some in axes.items()}


def seconds(document: Mapping[str, Any], workers: int, folder: str) -> tuple[float, int]:
    """Wall seconds of a study, workers started and kernels loaded before, and how many points had no iteration."""
    chosen = runner(workers)
    try:
        for number, one in enumerate((dict(document) | {"axes": WARM}, document)):
            begin = time.perf_counter()
            study = study_from_dict(one, verbs.computation)
            run = StudyRun(
                points=Points(study), kept=StudyState(Path(folder, f"{workers}-{number}")), compute="study:compute"
            )
            run.go(chosen)
            took = time.perf_counter() - begin
            run.kept.close()
    finally:
        chosen.close()
    return took, run.counts.failed


def main() -> None:
    """Measure, print and record."""
    options = bench.parser(__doc__).parse_args()
    document = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    whole = len(Points(study_from_dict(document, verbs.computation)))
    plans = len(document["axes"]["model"]) * len(document["axes"]["cluster"])
    sizes = {"model": 1, "cluster": 1, "failed": 1} if options.tiny else {"model": 4, "cluster": 3, "failed": 2}
    document["axes"] = sampled(document["axes"], sizes)
    sample = len(Points(study_from_dict(document, verbs.computation)))
    with tempfile.TemporaryDirectory() as folder:
        one, failed = seconds(document, 1, folder)
        two, _ = seconds(document, 2, folder)
    times: dict[tuple[Any, Any], list[float]] = import_module("study").TIMES
    groups = [found for (model, _), found in times.items() if model not in WARM["model"]]
    plan_s = statistics.fmean(max(first - statistics.median(rest), 0.0) for first, *rest in groups)
    point_s = sum(map(sum, groups)) / sample - plan_s * len(groups) / sample

    def work_s(points: int, planned: int, workers: int) -> float:
        repeats = min(workers, math.ceil(points / planned * point_s / BATCH_S))
        return (points * point_s + planned * repeats * plan_s) / workers

    share = work_s(sample, len(groups), 2) / two
    figures: dict[str, float | str] = {
        "points": whole,
        "plans": plans,
        "sample_points": sample,
        "sample_plans": len(groups),
        "sample_without_iteration": failed,
        "plan_s": plan_s,
        "point_s": point_s,
        "seconds_1_worker": one,
        "seconds_2_workers": two,
        "speedup_2_workers": one / two,
        "efficiency_2_workers": share,
        "hours_2_cores": work_s(whole, plans, 2) / share / 3600,
        "minutes_100_cores": work_s(whole, plans, 100) / share / 60,
        "plan_share_100_cores": 1 - whole * point_s / 100 / work_s(whole, plans, 100),
    }
    for name, value in figures.items():
        print(f"{name:>26} {value:,.4g}" if isinstance(value, float) else f"{name:>26} {value:,}")
    bench.record(options, figures)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
