"""Memory of pipeline stages, counted while they run, against what is planned."""

from __future__ import annotations

import models
import numpy as np
import pytest
from alive import alive

from weft.cluster import calibration, load
from weft.estimation import Estimator, of_runtime
from weft.estimation.frame import StageMemory
from weft.layout.mesh import groups
from weft.layout.spec import Layout
from weft.layout.stages import held, most_held, orders
from weft.layout.table import LayoutTable
from weft.model.job import Job, Recipe
from weft.runtime.core.machine import Precision

COUNT, STAGES = 8, 4
SCHEDULES = {
    "1f1b": {},
    "interleaved": {"schedule": "interleaved", "virtual_stages": 2},
    "zb1p": {"schedule": "zb1p"},
    "zbv": {"schedule": "zbv", "virtual_stages": 2},
}


def job_of(precision):
    model = models.llama(layers=8, hidden=64, vocab=256)
    return Job(model=model, recipe=Recipe(global_batch=COUNT, sequence=64, precision=precision))


def peaks(name, stages, precision="fp32", **more):
    """Bytes of some stages at the peak of a step, as counted and as planned, and chunks that each holds at most."""
    job, layout = job_of(precision), Layout(pipeline=STAGES, micro_batch=1, **SCHEDULES[name], **more)
    ranks, order = groups(layout, "pipeline")[0], orders(layout, COUNT)
    chip = load("a100-80gb-4")
    (frame,) = Estimator(job, chip, of_runtime(calibration("a100-80gb"))).frames(LayoutTable.of([layout]))
    frame.model.workspace_bytes = 0.0  # the CPU has no cuBLAS
    memory, kinds = StageMemory(frame), frame.stages.stage.T[:, frame.line]
    found = []
    for stage in stages:
        # The stage table has the first stage, one of those between, and the last.
        kind = next(k for k in reversed(frame.stage_kinds) if frame.stages.repeats[0, k] and kinds[k, 0] <= stage)
        parts = memory.parts(kind, most_held(frame.table, frame.micro_batches, np.array([float(stage)])))
        plan = float(parts["activations_bytes"][0] + parts["buffers_bytes"][0])
        if precision != "fp32":  # the step casts weights once and keeps them
            plan += float(parts["weights_bytes"][0])
        counted = alive(job, layout, rank=int(ranks[stage]), precision=Precision.of(precision)).peak_bytes
        found.append((counted, plan, int(held(layout, order[stage]).max())))
    return found


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("1f1b", 1),
        ("zb1p", 3),
        *(
            pytest.param(name, stage, marks=pytest.mark.slow)
            for name in SCHEDULES
            for stage in range(STAGES)
            if (name, stage) not in {("1f1b", 1), ("zb1p", 3)}
        ),
    ],
)
def test_a_stage_holds_what_is_planned(name, stage):
    """Saved rows, outputs and temporaries, to a tenth; also the head's logits."""
    ((counted, plan, _),) = peaks(name, [stage])
    assert 0.9 * plan <= counted <= 1.1 * plan


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_stage_holds_what_is_planned_in_16_bits(name):
    for counted, plan, _ in peaks(name, range(STAGES), "bf16"):
        assert 0.9 * plan <= counted <= 1.1 * plan


@pytest.mark.slow
def test_stages_keep_what_their_order_holds():
    """Between two inner stages the peaks differ by the chunks that one holds more."""
    (first, _, more), (second, _, fewer) = peaks("1f1b", (1, 2))
    assert (more, fewer) == (3, 2)
    chunk = first - second
    (first, _, more), (second, _, fewer) = peaks("interleaved", (1, 2))
    assert (more, fewer) == (9, 7)
    output = 64 * 64 * 4
    assert first - second - 2 * output == pytest.approx(chunk - output, rel=0.02), "two chunks of half the blocks"
