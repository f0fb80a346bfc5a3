"""How well ``weft tune`` predicts a layout from a measured run of another layout of the same job.

Estimates are those of constants that had seen no run of the source (``weft validate --fit --errors``); the error
between layouts, by which the measured run counts, was fitted to all of them.

Run: ``python benchmarks/tuning.py``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import bench
import numpy as np

from weft.estimation.trust import NORMAL, Known, layout_of, shipped_runs
from weft.search.tune import Anchors


class Score(NamedTuple):
    """Mean errors of a source's runs, each from every other of its job, and the share inside the stated interval.

    ``anchored`` as ``weft tune`` predicts, by the ``ratio`` of two estimates, and by the estimate ``alone``.
    """

    runs: int
    anchored: float
    ratio: float
    alone: float
    covered: float


def score(runs: list[Known]) -> Score:
    """Every run of a job predicted from every other one; seconds are relative to the measured ones."""
    rows = []
    estimated = 1.0 + np.array([run.error for run in runs])
    layouts = [layout_of(run.layout) for run in runs]
    for i, layout in enumerate(layouts):
        others = [j for j in range(len(runs)) if layouts[j] != layout]
        if others:
            anchors = Anchors([layout], [1.0], [estimated[i]])
            seconds, deviations = anchors.corrected([layouts[j] for j in others], estimated[others])
            inside = np.abs(np.log(seconds)) <= NORMAL * deviations
            errors = (seconds - 1.0, estimated[others] / estimated[i] - 1.0, estimated[others] - 1.0)
            rows.append([*(np.abs(error).mean() for error in errors), inside.mean()])
    return Score(len(rows), *np.mean(rows, axis=0).tolist())


def scores() -> dict[str, Score]:
    """By source, the mean over its jobs, every run of them weighing the same."""
    jobs: dict[tuple[str, int], list[Known]] = defaultdict(list)
    for run in shipped_runs():
        jobs[run.family, run.job].append(run)
    families: dict[str, list[Score]] = defaultdict(list)
    for (family, _), runs in jobs.items():
        if len({run.layout for run in runs}) > 1:
            families[family].append(score(runs))
    return {family: mean(each) for family, each in sorted(families.items())} | {
        "all": mean([each for some in families.values() for each in some])
    }


def mean(each: list[Score]) -> Score:
    runs = [score.runs for score in each]
    return Score(sum(runs), *np.average([score[1:] for score in each], axis=0, weights=runs).tolist())


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    made = scores()
    print("source             runs  anchored  by ratio  unmeasured  covered")
    for name, each in made.items():
        shown = f"{each.anchored:8.1%}  {each.ratio:8.1%}  {each.alone:10.1%}  {each.covered:7.0%}"
        print(f"{name:16s}  {each.runs:5d}  {shown}")
    bench.record(options, made["all"]._asdict())


if __name__ == "__main__":
    main()
