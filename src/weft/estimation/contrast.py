"""How far predictions of two layouts of one job are off against each other, by how far the layouts differ.

What two layouts share, errors share: only mechanisms in which they differ count.  The variance of the difference
of two logarithmic errors grows with the steps between the layouts,

    Var(e_i - e_j) = v_other + sum over traits t of v_t |step_t(i) - step_t(j)|,

which is that of a random walk along each trait, so that errors of any set of layouts have a covariance.  The
``v`` are fitted to the measured jobs that ran in several layouts, every source weighing the same, every job of one
too, and outliers less;
a trait in which hardly any pair differs has about the mean of the others, and none less than ``v_other``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.estimation.trust import COVERED, Known, shipped_runs, weighted_quantile
from weft.layout.spec import Layout
from weft.layout.table import Floats, Mask
from weft.layout.text import parse_layout

WITHIN = 0.03
"""Layouts whose times differ by less are as good as each other."""
DRAWS = 4000
"""Draws of the errors of a set of layouts."""
OUTLIER = 2.0
"""Standard deviations from which a pair counts by its size, not by its square."""
USUAL = 0.08
"""Standard deviation, of a step of a trait, from which the fit begins."""
PULL = 2.0
"""Jobs that a trait's pull towards the mean of all traits is worth."""
LEAST = 0.005
"""Least standard deviation of a step during the fit."""
ROUNDS = 20
NORMAL = 1.2815515655446004
"""Standard deviations within which ``COVERED`` of a normal distribution lie."""
OTHER = "other"
"""What layouts that differ at all differ in besides the traits."""


def steps(layout: Layout) -> dict[str, float]:
    """Where a layout stands along each trait; degrees count by doublings."""
    share = {"none": 0.0, "selective": 0.5, "full": 1.0}[layout.recompute]
    overlaps = {"none": 0.0, "backward": 0.5, "full": 1.0}[layout.overlap_tensor]
    switched = (layout.overlap_reduce, layout.overlap_gather, layout.offload_optimizer, layout.offload_activations)
    return {
        "tensor": float(np.log2(layout.x * layout.y)),
        "pipeline": float(np.log2(layout.pipeline)),
        "context": float(np.log2(layout.context)),
        "expert": float(np.log2(layout.expert * layout.expert_tensor)),
        "sharding": float(np.log2(layout.z)),
        "micro-batch": float(np.log2(layout.micro_batch)),
        "schedule": float(np.log2(layout.virtual_stages)) + layout.schedule.splits_backward,
        "recompute": share,
        "switches": overlaps + sum(switched),
    }


TRAITS = tuple(steps(Layout()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The error between layouts of one job, from ``pairs`` of ``jobs`` of ``sources``.

    ``variances`` are those of a step of each trait, and of ``OTHER``, scaled so that ``COVERED`` of the pairs lie
    within ``NORMAL`` standard deviations.
    """

    variances: Mapping[str, float]
    pairs: int
    jobs: int
    sources: int

    def between(self, layouts: Sequence[Layout]) -> Floats:
        """Standard deviations of the logarithmic errors of layouts against each other, shape (n, n)."""
        deviations: Floats = np.sqrt(self._variances(layouts))
        return deviations

    def covered(self, layouts: Sequence[Layout]) -> Floats:
        """Shares within which ``COVERED`` of such pairs had the ratio of their times predicted, shape (n, n)."""
        shares: Floats = np.expm1(NORMAL * self.between(layouts))
        return shares

    def chances(self, layouts: Sequence[Layout], seconds: Sequence[float] | Floats, within: float = WITHIN) -> Floats:
        """Probability of each of the layouts of one job, with their predicted times, to take at most the share
        ``within`` longer than the best of them.

        By ``DRAWS`` normal draws of the errors from a fixed seed.
        """
        drawn = np.log(np.asarray(seconds, dtype=np.float64)) - self._draws(layouts)
        chances: Floats = np.mean(drawn <= drawn.min(axis=1, keepdims=True) + np.log1p(within), axis=0)
        return chances

    def _variances(self, layouts: Sequence[Layout]) -> Floats:
        places = np.array([list(steps(one).values()) for one in layouts]).reshape(-1, len(TRAITS))
        apart = np.abs(places[:, None] - places[None])
        known = np.array([self.variances[name] for name in TRAITS])
        unlike = np.array([[a != b for b in layouts] for a in layouts])
        variances: Floats = apart @ known + self.variances[OTHER] * unlike
        return variances

    def _draws(self, layouts: Sequence[Layout]) -> Floats:
        """Logarithmic errors against the first layout, shape (draws, n)."""
        apart = self._variances(layouts)
        values, vectors = np.linalg.eigh((apart[:1] + apart[:, :1] - apart) / 2.0)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        errors: Floats = np.random.default_rng(0).standard_normal((DRAWS, len(layouts))) @ root.T
        return errors


@cache
def shipped_contrast() -> Contrast | None:
    """The error between layouts by the runs with which the shipped constants were set."""
    return contrast(shipped_runs())


def contrast(known: Sequence[Known]) -> Contrast | None:
    """The error between layouts, fitted to runs; None where no job is known in several layouts."""
    pairs = _pairs(known)
    if pairs is None:
        return None
    columns = np.column_stack([np.ones(len(pairs.errors)), pairs.apart])
    variances = _fitted(columns, pairs)
    sizes = np.abs(pairs.errors) / np.sqrt(columns @ variances)
    scale = weighted_quantile(sizes, pairs.weights, COVERED) / NORMAL
    return Contrast(
        variances=dict(zip((OTHER, *TRAITS), (scale**2 * variances).tolist(), strict=True)),
        pairs=len(pairs.errors),
        jobs=pairs.jobs,
        sources=pairs.sources,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Pairs of runs of one job in different layouts: the difference of their logarithmic errors, the steps between
    them, and weights that add up to 1, every source's alike, and every job's of one."""

    errors: Floats
    apart: Floats
    weights: Floats
    jobs: int
    sources: int


def _pairs(known: Sequence[Known]) -> _Pairs | None:
    jobs: dict[tuple[str, int], list[Known]] = {}
    for one in known:
        jobs.setdefault((one.family, one.job), []).append(one)
    errors, apart, weights, families = [], [], [], []
    for (family, _), runs in jobs.items():
        layouts = [one.layout for one in runs]
        first, second = np.triu_indices(len(runs), 1)
        unlike: Mask = np.array([layouts[i] != layouts[j] for i, j in zip(first, second, strict=True)], dtype=bool)
        if not unlike.any():
            continue
        first, second = first[unlike], second[unlike]
        places = np.array([list(steps(layout_of(text)).values()) for text in layouts])
        logs = np.log1p([one.error for one in runs])
        errors.append(logs[first] - logs[second])
        apart.append(np.abs(places[first] - places[second]))
        weights.append(np.full(len(first), 1.0 / len(first)))
        families.append(family)
    if not errors:
        return None
    weights = [job / families.count(family) for job, family in zip(weights, families, strict=True)]
    return _Pairs(
        errors=np.concatenate(errors),
        apart=np.concatenate(apart),
        weights=np.concatenate(weights) / len(set(families)),
        jobs=len(weights),
        sources=len(set(families)),
    )


@cache
def layout_of(text: str) -> Layout:
    """The layout of a run."""
    return parse_layout(text).complete()


def _fitted(columns: Floats, pairs: _Pairs) -> Floats:
    """Variances by least squares of squared errors, each weighed by what the last round expects of it."""
    variances = np.full(columns.shape[1], USUAL**2)
    for _ in range(ROUNDS):
        expected = columns @ variances
        squares = np.minimum(pairs.errors**2, OUTLIER * np.sqrt(expected) * np.abs(pairs.errors))
        weights = pairs.weights * pairs.jobs / expected**2
        mean = variances.mean()
        pull = PULL / mean**2
        weighed = (columns * weights[:, None]).T
        matrix = weighed @ columns + pull * np.eye(len(variances))
        variances = _positive(matrix, weighed @ squares + pull * mean, variances)
        variances = np.maximum(variances, LEAST**2)
    least: Floats = np.maximum(variances, variances[0])
    return least


def _positive(matrix: Floats, vector: Floats, start: Floats) -> Floats:
    """The solution of least squares without negative values, by coordinate descent."""
    found = start.copy()
    for _ in range(200):
        for i in range(len(found)):
            rest = vector[i] - matrix[i] @ found + matrix[i, i] * found[i]
            found[i] = max(rest / matrix[i, i], 0.0)
    return found
