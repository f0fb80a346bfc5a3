"""Memory of pipeline stages, counted while they run, against what their schedules are planned to hold."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import models  # noqa: E402

from weft.layout.mesh import groups  # noqa: E402
from weft.layout.schedule import held, orders  # noqa: E402
from weft.layout.spec import Layout  # noqa: E402
from weft.model.job import Job, Recipe  # noqa: E402
from weft.runtime.measure.alive import alive  # noqa: E402

JOB = Job(model=models.llama(layers=8), recipe=Recipe(global_batch=8, sequence=16, precision="fp32"))
COUNT = 8


def measured(stages, **schedule):
    """Of some stages: bytes at the peak, and chunks that the schedule holds at most."""
    layout = Layout(pipeline=4, micro_batch=1, **schedule)
    ranks, order = groups(layout, "pipeline")[0], orders(layout, COUNT)
    peaks = [alive(JOB, layout, rank=int(ranks[stage]), device="meta").peak_bytes for stage in stages]
    return peaks, [int(held(layout, order[stage]).max()) for stage in stages]


def test_stages_keep_what_their_order_holds():
    """Between two inner stages the peaks differ by the chunks that one holds more."""
    (first, second), plan = measured((1, 2))
    assert plan == [3, 2]
    chunk = first - second
    (first, second), plan = measured((1, 2), schedule="interleaved", virtual_stages=2)
    assert plan == [9, 7]
    assert first - second == pytest.approx(chunk, rel=0.02), "two chunks of half the blocks"


@pytest.mark.slow
def test_zero_bubble_schedules_keep_as_much_on_every_stage():
    (plain, _), _ = measured((0, 3))
    peaks, plan = measured((0, 1, 2, 3), schedule="zbv", virtual_stages=2)
    assert plan == [8] * 4
    assert max(peaks) <= 1.1 * plain, "as 1F1B does on its first stage"
    assert min(peaks) >= 0.9 * max(peaks)
    peaks, plan = measured((0, 1, 2, 3), schedule="zb1p")
    assert plan == [4] * 4
    assert max(peaks) <= 1.1 * plain, "weight gradients that wait keep less than whole passes"
