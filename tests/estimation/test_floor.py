"""Floors against the stepped pipeline, on layouts drawn from whole spaces."""

import numpy as np
import pytest

from weft.cluster import load
from weft.estimation.iteration import Estimator, estimate_rows, floor_s
from weft.model import resolve_job
from weft.search.enumeration import SPACES, Enumeration
from weft.simulation.iteration.stepping import Clocks, Stepped

LONGEST = 4_000
"""Passes of the longest pipeline that is stepped."""


def drawn(job, count, space, rows, seed):
    """Some layouts of a space."""
    draw = np.random.default_rng(seed)
    for part in Enumeration(job, count, SPACES[space]).parts(5_000):
        frames = np.sort(draw.choice(len(part.frames), min(len(part.frames), 12), replace=False))
        for batch in part.batches(frames):
            yield batch.table.take(np.sort(draw.choice(len(batch.table), min(len(batch.table), rows), replace=False)))


CASES = [("gpt2-124m", "a100-16", "wide", 40), ("llama-3.1-8b", "h100-64", "standard", 12)]
LARGE = [("llama-3.1-70b", "h100-512", "wide", 20), ("deepseek-v3", "h800-256", "wide", 8)]


@pytest.mark.parametrize(
    ("model", "name", "space", "rows"), [*CASES, *(pytest.param(*one, marks=pytest.mark.slow) for one in LARGE)]
)
def test_nothing_steps_faster_than_its_floor(model, name, space, rows):
    job, cluster = resolve_job(model), load(name)
    estimator, compared, tight = Estimator(job, cluster), 0, 0
    for table in drawn(job, cluster.count, space, rows, seed=7):
        for frame in estimator.frames(table):
            estimates, clocks = estimate_rows(frame), Clocks(frame)
            floors = floor_s(frame, estimates)
            for row, least in enumerate(floors.tolist()):
                layout = frame.table.row(row)
                if frame.micro_batches[row] * layout.pipeline * layout.virtual_stages > LONGEST:
                    continue
                seconds = Stepped(layout, clocks.of(row, layout, float(estimates.offload_s[row]))).seconds
                assert least <= seconds * (1 + 1e-9), layout
                compared, tight = compared + 1, tight + (least > 0.9 * seconds)
    assert compared >= 15
    assert tight > 0.6 * compared


def test_the_floor_of_one_stage_without_overlap_is_its_time():
    job, cluster = resolve_job("gpt2-124m"), load("a100-8")
    space = SPACES["wide"].constrained({"pipeline": 1, "overlap_reduce": False, "overlap_gather": False}, {})
    estimator = Estimator(job, cluster)
    part = next(iter(Enumeration(job, 8, space).parts()))
    table = next(iter(part.batches(np.arange(0, len(part.frames), 5)))).table.take(np.arange(0, 60, 3))
    for frame in estimator.frames(table):
        estimates, clocks = estimate_rows(frame), Clocks(frame)
        floors = floor_s(frame, estimates)
        for row in np.flatnonzero(frame.table.zero < 2).tolist():
            layout = frame.table.row(row)
            seconds = Stepped(layout, clocks.of(row, layout, float(estimates.offload_s[row]))).seconds
            assert floors[row] == pytest.approx(seconds, rel=1e-9)
