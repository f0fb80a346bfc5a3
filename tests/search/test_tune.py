"""Changes of a measured run: all single ones are tried, the measured step corrects them, and what is kept stays."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.cluster import load as load_cluster
from weft.errors import BadInput
from weft.estimation import estimate
from weft.estimation.trust import shipped_contrast
from weft.layout import Layout
from weft.layout.check import explain
from weft.layout.text import parse_layout
from weft.model import RecipeChanges, resolve_job
from weft.search.enumeration import STANDARD, Enumeration
from weft.search.tune import SPREAD, Anchors, Tuning, differences, neighbours, tune

JOB = resolve_job("gpt2-124m", RecipeChanges(global_batch=32, sequence=1024))
CLUSTER = load_cluster("h100-16")


def tuned(layout: str, measured_s: float, **options: object) -> Tuning:
    whole = parse_layout(layout).complete(CLUSTER.count)
    return tune(JOB, CLUSTER, whole, measured_s, space=STANDARD, stack="megatron-core", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def free() -> Tuning:
    return tuned("tp=8,pp=2,recompute=full", 0.5)


def follows(layout: Layout, other: Layout) -> bool:
    """Whether the layouts are alike in what ``differences`` leaves out, or need not be."""
    return (other.zero == layout.zero or other.z > 1) and explain(JOB, CLUSTER.count, other) is None


@pytest.mark.parametrize("text", ["tp=2,pp=2,mbs=2,sp", "fsdp=8,mbs=1", "tp=4,pp=4,vpp=3", "cp=2,tp=2,recompute=full"])
def test_every_layout_of_the_space_that_differs_in_one_setting_is_tried(text: str) -> None:
    layout = parse_layout(text).complete(CLUSTER.count)
    space = replace(STANDARD, partial_recompute=False)
    tried = set(neighbours(layout, JOB))
    count = 0
    for part in Enumeration(JOB, CLUSTER.count, space).parts():
        for batch in part.batches(np.arange(len(part.frames))):
            for other in map(batch.table.row, range(len(batch.table))):
                if len(differences(layout, other)) == 1 and follows(layout, other):
                    assert other in tried, other
                    count += 1
    assert count > 3


def test_a_measured_step_is_that_of_its_own_layout_and_moves_those_like_it_most() -> None:
    layout = Layout(x=2, data=8)
    near, far = replace(layout, micro_batch=2), Layout(x=8, pipeline=2, recompute="full")
    seconds, deviations = Anchors([layout], [1.1], [1.0]).corrected([layout, near, far], np.array([1.0, 2.0, 3.0]))
    assert seconds[0] == pytest.approx(1.1)
    assert deviations[0] == pytest.approx(0.0)
    assert 0 < deviations[1] <= deviations[2]
    assert 1.1 >= seconds[1] / 2.0 >= seconds[2] / 3.0 >= 1.0
    slow, _ = Anchors([layout], [3.0], [1.0]).corrected([far], np.array([3.0]))
    assert slow[0] / 3.0 > 3.0 / 1.3, "what no layout explains slows all of them"


@pytest.mark.slow
def test_several_measured_runs_correct_as_scikit_learn_does() -> None:
    gaussian_process = pytest.importorskip("sklearn.gaussian_process")
    layouts = [
        parse_layout(text).complete(16) for text in ("tp=2", "tp=4,mbs=2", "pp=4,vpp=3", "tp=8", "fsdp=8", "cp=2")
    ]
    contrast = shipped_contrast()
    assert contrast is not None

    class Errors(gaussian_process.kernels.Kernel):  # type: ignore[misc,name-defined]
        """The covariance of the module's docstring, of layouts by their number."""

        def __init__(self) -> None:
            pass

        def __call__(self, X, Y=None, eval_gradient=False):  # type: ignore[no-untyped-def]
            some, others = ([layouts[int(row[0])] for row in rows] for rows in (X, X if Y is None else Y))
            return SPREAD**2 * np.exp(-contrast.variances_between(some, others) / SPREAD**2)

        def diag(self, X):  # type: ignore[no-untyped-def]
            return np.full(len(X), SPREAD**2)

        def is_stationary(self) -> bool:
            return False

    measured, estimated = np.array([1.1, 0.9, 1.05]), np.ones(3)
    process = gaussian_process.GaussianProcessRegressor(Errors(), alpha=1e-12, optimizer=None)
    process.fit(np.arange(3)[:, None], np.log(measured))
    expected, deviations = process.predict(np.arange(6)[:, None], return_std=True)
    seconds, found = Anchors(layouts[:3], measured.tolist(), estimated.tolist()).corrected(layouts, np.ones(6))
    assert np.log(seconds) == pytest.approx(expected, abs=1e-6)
    assert found == pytest.approx(deviations, abs=1e-4)
    assert seconds[:3] == pytest.approx(measured)


def test_more_measured_runs_narrow_the_intervals() -> None:
    layouts = [parse_layout(text).complete(16) for text in ("tp=2", "tp=4,mbs=2", "pp=4", "tp=8")]
    widths = [
        Anchors(layouts[:count], [1.05] * count, [1.0] * count).corrected(layouts[3:], np.ones(1))[1][0]
        for count in (1, 2, 3)
    ]
    assert widths == sorted(widths, reverse=True)
    # A layout that was measured twice is the mean of both.
    twice, _ = Anchors([layouts[0]] * 2, [1.0, 1.21], [1.0, 1.0]).corrected(layouts[:1], np.ones(1))
    assert twice[0] == pytest.approx(1.1)


def test_a_measured_run_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import tuning

    sys.modules.pop("tuning")
    found = tuning.scores()["all"]
    assert found.runs > 900
    assert found.anchored < min(found.ratio, found.alone)
    assert 0.76 <= found.covered <= 0.84


def test_changes_run_fit_gain_and_leave_what_is_kept(free: Tuning) -> None:
    result = tuned("tp=8,pp=2,recompute=full", 0.5, keep=("pipeline", "micro_batch"))
    best = estimate(JOB, CLUSTER, [Layout(data=16)])[0]
    assert result.slower == pytest.approx(0.5 / result.expected.iteration_s - 1)
    assert [change.speedup for change in result.changes] == sorted(
        (change.speedup for change in result.changes), reverse=True
    )
    for change in result.changes:
        layout = change.estimate.layout
        assert explain(JOB, CLUSTER.count, layout) is None
        assert change.estimate.fits
        assert (layout.pipeline, layout.micro_batch) == (2, 1)
        assert change.interval[0] <= change.speedup <= change.interval[1]
        assert change.speedup == pytest.approx(0.5 / change.iteration_s)
        assert change.estimate.iteration_s < result.expected.iteration_s
    assert free.changes[0].estimate.iteration_s <= 1.01 * best.iteration_s
    assert len(free.changes[0].settings) > 1


def test_nothing_near_the_best_that_the_framework_runs_is_faster(free: Tuning) -> None:
    """Where it runs none of the best of the space: here those with micro-batches of an even number of rows."""

    def flags(layout: Layout) -> tuple[str, ...] | None:
        return (str(layout),) if layout.micro_batch % 2 else None

    best = tuned("tp=8,pp=2,recompute=full", 0.5, flags=flags).changes[0]
    assert free.changes[0].estimate.layout.micro_batch % 2 == 0
    assert len(best.settings) > 2
    near = [each for each in neighbours(best.estimate.layout, JOB) if flags(each) and not explain(JOB, 16, each)]
    seconds, _ = Anchors([free.layout], [0.5], [free.expected.iteration_s]).corrected(
        near, np.array([each.iteration_s for each in estimate(JOB, CLUSTER, near)])
    )
    assert min(seconds) > best.iteration_s * 0.99


def test_the_best_layout_has_nothing_to_change(free: Tuning) -> None:
    best = free.changes[0].estimate
    result = tune(JOB, CLUSTER, best.layout, best.iteration_s, space=STANDARD, stack="megatron-core")
    assert all(change.speedup < 1.05 for change in result.changes)


def test_a_step_faster_than_the_hardware_is_refused() -> None:
    with pytest.raises(BadInput, match="times as fast as"):
        tuned("tp=2", 1e-6)
