"""The runtime's own steps over emulated links, against the step that ``weft.simulation.step`` predicts.

In emulated time they must agree to rounding: that holds only if the runtime issues, computes and waits in the
predicted order.  By the wall's clock they must agree within 5 % (axonn.md, section 5, case 15).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from emulation import Emulation, Link, emulated, measure_steps, ring_times
from models import EVERY, OFF, gpt, layout_of, llama

import weft.layout.step
from weft.layout.spec import Layout
from weft.model.job import Job, Recipe
from weft.simulation.step import StepTime, predict_step, step_program

LINKS = {
    "x": Link(latency_s=3e-3, bandwidth_Bps=2e6),
    "y": Link(latency_s=2e-3, bandwidth_Bps=1.5e6),
    "z": Link(latency_s=5e-3, bandwidth_Bps=1e6),
    "data": Link(latency_s=6e-3, bandwidth_Bps=5e5),
}
FLOPS = 3e7
"""So slow that a step of the smallest model takes 0.14 to 0.37 s, in which Python's part is small; the three
fastest grids are 3 % apart or more."""
OVERLAPS = {
    "off": OFF,
    "OAR": OFF | {"overlap_tensor": "backward"},
    "ORS": OFF | {"overlap_reduce": True},
    "OAG": OFF | {"overlap_gather": True},
    "OAR, ORS": {"overlap_gather": False},
    "all": {},
}


def gemm_s(m: float, n: float, k: float) -> float:
    return 2 * m * n * k / FLOPS


def job_of(model=None):
    """All model sizes divide over eight ranks."""
    return Job(model=model or gpt(layers=1, vocab=64), recipe=Recipe(global_batch=16, sequence=8, precision="fp32"))


def predicted(job: Job, layout: Layout) -> StepTime:
    times = ring_times(layout, LINKS)
    return predict_step(job, layout, gemm_s=gemm_s, collective_s=times)


@contextmanager
def rank_of(layout: Layout, *, paced: bool) -> Iterator[Emulation]:
    times = ring_times(layout, LINKS)
    with emulated(layout, gemm_s=gemm_s, collective_s=times, paced=paced) as rank:
        yield rank


# In emulated time ---------------------------------------------------------------------------------


def check(job: Job, layout: Layout, steps: int = 2) -> None:
    """All steps but the first are as predicted."""
    expected, program = predicted(job, layout), step_program(job, layout)
    with rank_of(layout, paced=False) as rank:
        _, *found = measure_steps(job, rank, steps)
    for step in found:
        assert list(step.issued) == program.issued
        assert step.seconds == pytest.approx(expected.seconds, rel=1e-9)
        for axes, seconds in expected.exposed_s.items():
            assert step.exposed_s[axes] == pytest.approx(seconds, rel=1e-9, abs=1e-9)


FEW = [(1, 1, 8, 1), (2, 1, 2, 2), (1, 2, 2, 2), (4, 1, 2, 1), (8, 1, 1, 1)]


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(
    "grid", [pytest.param(grid, marks=() if grid in FEW else pytest.mark.slow) for grid in EVERY], ids=str
)
def test_every_grid_as_predicted(grid):
    for switches in OVERLAPS.values():
        check(job_of(), layout_of(grid, micro_batches=1, **switches))
    layout = layout_of(grid, recompute="full")
    check(job_of(gpt(vocab=64, tied=True)), layout)
    check(job_of(gpt(vocab=64, tied=True)), replace(layout, zero=0))


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    "grid",
    [(2, 1, 2, 2), *(pytest.param(grid, marks=pytest.mark.slow) for grid in [(8, 1, 1, 1), (4, 1, 2, 1)])],
    ids=str,
)
@pytest.mark.parametrize("switches", OVERLAPS.values(), ids=OVERLAPS)
def test_sequence_parallelism_and_recomputation_as_predicted(grid, switches):
    job = job_of(llama(layers=3))
    layout = layout_of(grid, sequence_parallel=True, **switches)
    for recompute in ("none", "selective", "full"):
        check(job, replace(layout, recompute=recompute))
    check(job, replace(layout, recompute="full", recompute_layers=1))


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_buckets_as_predicted(monkeypatch, zero):
    """Of a few thousand gradients, while at most eight matrices are scattered."""
    monkeypatch.setattr(weft.layout.step, "BUCKET_ELEMENTS", 5000.0)
    monkeypatch.setattr(weft.layout.step, "BUCKET_ELEMENTS_PER_RANK", 1.0)
    for grid in ((1, 1, 2, 4), (1, 1, 1, 8), (2, 2, 1, 2)):
        layout = layout_of(grid, zero=zero)
        check(job_of(gpt(vocab=64, layers=4)), layout, steps=4)
        check(job_of(gpt(vocab=64, layers=4)), replace(layout, overlap_reduce=False))


def test_one_rank_computes_only():
    layout = Layout(micro_batch=16)
    with rank_of(layout, paced=False) as rank:
        step = measure_steps(job_of(), rank, 1)[0]
    assert step.seconds == pytest.approx(predicted(job_of(), layout).compute_s)
    assert not step.issued


# By the wall's clock ------------------------------------------------------------------------------

ATTEMPTS = 12
"""Other processes only ever add to a step's time, so that the fastest of some steps counts."""


def measured_s(job: Job, layout: Layout, expected_s: float) -> float:
    """Seconds of a step by the wall's clock; more steps where one was disturbed."""
    best = np.inf
    with rank_of(layout, paced=True) as rank:
        for _ in range(ATTEMPTS):
            step = measure_steps(job, rank, 2)[1]
            assert step.wall_s > 0.999 * step.seconds
            best = min(best, step.wall_s)
            if best < 1.01 * expected_s:
                break
    return best


def compared(grids, switches):
    """Predicted and measured seconds of each grid."""
    job, layouts = job_of(), [layout_of(grid, micro_batches=1, **switches) for grid in grids]
    expected = [predicted(job, layout).seconds for layout in layouts]
    found = [measured_s(job, layout, seconds) for layout, seconds in zip(layouts, expected, strict=True)]
    return np.array(expected), np.array(found)


def spearman(first, second):
    """Correlation of the ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.slow
def test_some_grids_by_the_wall_s_clock():
    expected, found = compared(FEW, OVERLAPS["all"])
    assert np.max(np.abs(found / expected - 1)) < 0.05
    assert np.argmin(found) == np.argmin(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["off", "OAR", "all"])
def test_all_grids_by_the_wall_s_clock(name):
    expected, found = compared(EVERY, OVERLAPS[name])
    worst, alike = float(np.max(np.abs(found / expected - 1))), spearman(expected, found)
    print(f"{name}: Spearman {alike:.4f}, worst {worst:.2%}")
    assert worst < 0.05
    assert alike >= 0.98
    assert list(np.argsort(found)[:3]) == list(np.argsort(expected)[:3])
