"""What the choice of a layout by predictions is worth, among layouts of one job that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.validation.inputs import Prepared

APART = 0.05
"""Relative difference of two measured times from which their order counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choices of a family: ``jobs`` were measured in several layouts (``layouts`` in all).

    Of layouts with the same predicted time any may be taken: losses are means over them, and half of their pairs count
    as ordered.

    Attributes:
        regret: mean over jobs of how much longer the layout with the least predicted time took than the best.
        worst: the largest of these.
        random: the mean of them for a layout picked at random.
        pairs: of layouts of one job whose measured times are more than ``APART`` apart.
        ordered: the share of these that the predictions put in the right order; None without pairs.
        level: the median of predicted / measured.
        ratio_error: mean over jobs of the mean error of how many times longer a layout takes than another.
        optimism: mean over jobs of the share by which predictions favour the layout with the least predicted time over
            the job's layouts on average: what being first of many costs a prediction.
    """

    family: str
    jobs: int
    layouts: int
    regret: float
    worst: float
    random: float
    pairs: int
    ordered: float | None
    level: float
    ratio_error: float
    optimism: float


Timed = tuple[Prepared, float]
"""A run and the seconds that are predicted of it."""


def choices(runs: Iterable[Timed]) -> tuple[Choice, ...]:
    """The choices of each family that measured some job in several layouts."""
    jobs: dict[str, dict[object, list[Timed]]] = {}
    for run, predicted_s in runs:
        jobs.setdefault(run.run.family, {}).setdefault(run.same_job, []).append((run, predicted_s))
    found = []
    for family, groups in sorted(jobs.items()):
        several = [group for group in groups.values() if len({run.layout for run, _ in group}) > 1]
        if several:
            found.append(_choice(family, several))
    return tuple(found)


def _choice(family: str, jobs: Sequence[Sequence[Timed]]) -> Choice:
    regrets, randoms, ratios, shares, gains, right, pairs = [], [], [], [], [], 0.0, 0
    for job in jobs:
        measured = np.array([run.measured_s for run, _ in job])
        predicted = np.array([seconds for _, seconds in job])
        loss = measured / measured.min() - 1.0
        first = predicted == predicted.min()
        regrets.append(float(loss[first].mean()))
        randoms.append(float(loss.mean()))
        slower = measured[:, None] > (1.0 + APART) * measured
        pairs += int(slower.sum())
        after = (1.0 + np.sign(predicted[:, None] - predicted)) / 2.0
        right += float(after[slower].sum())
        share = predicted / measured
        ratios.append(float(np.abs(share[:, None] / share - 1.0).sum() / (share.size * (share.size - 1))))
        shares.append(share)
        gains.append(float(np.log(share).mean() - np.log(share[first]).mean()))
    return Choice(
        family=family,
        jobs=len(jobs),
        layouts=sum(map(len, jobs)),
        regret=float(np.mean(regrets)),
        worst=max(regrets),
        random=float(np.mean(randoms)),
        pairs=pairs,
        ordered=right / pairs if pairs else None,
        level=float(np.median(np.concatenate(shares))),
        ratio_error=float(np.mean(ratios)),
        optimism=float(np.mean(gains)),
    )
