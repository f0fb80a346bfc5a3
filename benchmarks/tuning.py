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

APART = 0.05


class Score(NamedTuple):
    """Mean errors of a source's runs, each from every other of its job, and the share inside the stated interval.

    ``anchored`` as ``weft tune`` predicts, by the ``ratio`` of two estimates, and by the estimate ``alone``.
    ``ordered`` is the share of pairs more than ``APART`` apart that are in the right order, ``regret`` by how much
    the layout that is predicted to be the fastest is slower than the fastest.
    """

    runs: int
    anchored: float
    ratio: float
    alone: float
    covered: float
    ordered: float
    regret: float


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
            # Steps of one job are as the inverse of the MFU; the measured one is known.
            true_s = 1.0 / np.array([runs[j].mfu for j in (i, *others)])
            told_s = true_s * np.append(1.0, seconds)
            first, second = np.triu_indices(len(true_s), 1)
            apart = np.log(true_s[first] / true_s[second])
            right = (apart * np.log(told_s[first] / told_s[second]) > 0)[np.abs(apart) > np.log1p(APART)]
            regret = true_s[np.argmin(told_s)] / true_s.min() - 1.0
            order = right.mean() if len(right) else np.nan
            rows.append([*(np.abs(error).mean() for error in errors), inside.mean(), order, regret])
    means = np.ma.masked_invalid(rows).mean(axis=0)
    return Score(len(rows), *np.ma.filled(means, np.nan).tolist())


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
    values = np.ma.masked_invalid([score[1:] for score in each])
    return Score(sum(runs), *np.ma.average(values, axis=0, weights=runs).filled(np.nan).tolist())


def main() -> None:
    options = bench.parser(__doc__).parse_args()
    made = scores()
    print("source             runs  anchored  by ratio  unmeasured  covered  ordered  regret")
    for name, each in made.items():
        shown = f"{each.anchored:8.1%}  {each.ratio:8.1%}  {each.alone:10.1%}  {each.covered:7.0%}"
        shown += f"  {each.ordered:7.1%}  {each.regret:6.1%}"
        print(f"{name:16s}  {each.runs:5d}  {shown}".replace("nan%", "   -"))
    bench.record(options, made["all"]._asdict())


if __name__ == "__main__":
    main()
