"""Pipeline stages on eight ranks: losses and gradients of the serial model, and the predicted sends."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from unittest.mock import patch

import models
import pytest
import torch
from alive import alive, alive_on
from compare import Run
from models import BATCH, SEQUENCE
from ranks import grid_of
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from whole import check

from weft.errors import BadInput
from weft.layout.mesh import coordinates, groups
from weft.layout.spec import Layout
from weft.layout.stages import Op, orders
from weft.model.job import Job, Recipe
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.run.pipeline import StepPasses, build_stages

MODELS = {
    "gpt": replace(models.gpt(layers=4), head_bias=True),
    "tied": models.gpt(layers=4, tied=True),
    "llama": models.llama(layers=5),
}
INTERLEAVED = {"virtual_stages": 2, "schedule": "interleaved"}
WAVE = {"virtual_stages": 2, "schedule": "zbv"}
LAYOUTS = {
    "2 stages, z, data": Layout(pipeline=2, z=2, data=2, micro_batch=2),
    "2 stages, x, y": Layout(pipeline=2, x=2, y=2, micro_batch=4),
    "4 stages, tokens cut": Layout(pipeline=4, x=2, micro_batch=4, sequence_parallel=True),
    "2 stages, 2 chunks, x": Layout(pipeline=2, x=2, z=2, micro_batch=2, **INTERLEAVED),
    "2 stages, 2 chunks, recomputed": Layout(pipeline=2, z=2, data=2, micro_batch=1, recompute="full", **INTERLEAVED),
    "4 stages, 2 micro-batches": Layout(pipeline=4, x=2, micro_batch=8),
    "2 stages, ZeRO-2": Layout(pipeline=2, data=4, micro_batch=1, zero=2),
    "2 stages, zbv, ZeRO-2": Layout(pipeline=2, x=2, data=2, micro_batch=1, zero=2, **WAVE),
    "2 stages, 2 chunks, ZeRO-2": Layout(pipeline=2, z=2, data=2, micro_batch=1, zero=2, **INTERLEAVED),
    "2 stages, 1 micro-batch": Layout(pipeline=2, y=2, data=2, micro_batch=8, zero=0),
    "2 stages, zb1p, x": Layout(pipeline=2, x=2, z=2, micro_batch=2, schedule="zb1p"),
    "4 stages, zb1p, tokens cut": Layout(pipeline=4, x=2, micro_batch=2, sequence_parallel=True, schedule="zb1p"),
    "2 stages, zbv, x": Layout(pipeline=2, x=2, data=2, micro_batch=1, **WAVE),
    "2 stages, zbv, recomputed": Layout(pipeline=2, y=2, z=2, micro_batch=1, recompute="full", **WAVE),
    "4 stages outside in": Layout(
        pipeline=4, z=2, micro_batch=2, order=("pipeline", "z", "x", "y", "data", "context")
    ),
}


USUAL = {
    ("2 stages, z, data", "gpt"),
    ("2 stages, x, y", "llama"),
    ("4 stages, tokens cut", "tied"),
    ("2 stages, 2 chunks, x", "llama"),
}


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        pytest.param(layout, model, marks=() if (layout, model) in USUAL else pytest.mark.slow)
        for layout, model in product(LAYOUTS, MODELS)
        if LAYOUTS[layout].schedule != "zbv" or model != "tied"  # one rank would have both ends
    ],
)
def test_stages_compute_and_send_what_is_expected(ranks, layout, model):
    check(ranks, LAYOUTS[layout], MODELS[model])


def held_on(layout, job):
    """Bytes at a step's peak on this rank."""
    return alive_on(grid_of(layout), job).peak_bytes


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("schedule", [INTERLEAVED, {"schedule": "zb1p"}])
def test_messages_are_kept_no_longer_than_needed(ranks, schedule):
    """Gloo keeps what is sent until somebody waits, ranks that are not there keep nothing; few of 16 are under way."""
    layout = Layout(pipeline=2, data=4, micro_batch=1, **schedule)
    recipe = Recipe(global_batch=32, sequence=SEQUENCE, precision="fp32")
    job = Job(model=models.llama(layers=4), recipe=recipe)
    message = SEQUENCE * 32 * 4
    firsts = [groups(layout, "pipeline")[0, stage] for stage in range(layout.pipeline)]
    alone = [alive(job, layout, rank=int(rank)).peak_bytes for rank in firsts]
    for rank, peak in enumerate(ranks.run(held_on, layout, job)):
        assert peak <= alone[coordinates(layout, rank)["pipeline"]] + 6 * message


ORDERED = (
    *("2 stages, z, data", "4 stages, tokens cut", "2 stages, 2 chunks, x"),
    *("4 stages, zb1p, tokens cut", "2 stages, zbv, x"),
)

# Orders -------------------------------------------------------------------------------------------


def ran(layout):
    """The passes of this rank, in the order in which it runs them."""
    found = []

    def noted(method):
        def run(pipeline, op, *given, **more):
            found.append(op)
            return method(pipeline, op, *given, **more)

        return run

    passes = ("_forward", "_backward", "_weight_gradient")
    with patch.multiple(StepPasses, **{name: noted(getattr(StepPasses, name)) for name in passes}):
        Run(layout, MODELS["gpt"]).step()
    return found


@pytest.mark.parametrize("layout", list(ORDERED))
def test_stages_run_in_the_order_that_is_predicted(ranks, layout):
    layout = replace(LAYOUTS[layout], micro_batch=1)
    wanted = orders(layout, BATCH // layout.dp)
    for rank, found in enumerate(ranks.run(ran, layout)):
        assert found == wanted[coordinates(layout, rank)["pipeline"]]


@pytest.mark.parametrize(
    ("schedule", "virtual", "theirs"),
    [
        ("interleaved", 2, ScheduleInterleaved1F1B),
        ("interleaved", 3, ScheduleInterleaved1F1B),
        ("zb1p", 1, ScheduleInterleavedZeroBubble),
        ("zbv", 2, ScheduleZBVZeroBubble),
    ],
)
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 6), (4, 4), (4, 8), (4, 12), (8, 16)])
def test_orders_are_those_of_torch(schedule, virtual, theirs, stages, count):
    names = {"F": "forward", "B": "backward", "I": "backward", "W": "weight-gradient"}
    of = SimpleNamespace(
        pp_group_size=stages,
        n_local_stages=virtual,
        num_stages=stages * virtual,
        microbatches_per_round=stages,
        _n_microbatches=count,
    )
    layout = Layout(pipeline=stages, virtual_stages=virtual, schedule=schedule)
    for rank, order in enumerate(orders(layout, count)):
        actions = [one for one in theirs._calculate_single_rank_operations(of, rank) if one]
        known = [one for one in actions if one.computation_type.value in names]
        assert order == [Op(names[o.computation_type.value], o.stage_index, o.microbatch_index) for o in known]


# What cannot be cut -------------------------------------------------------------------------------


def machine(layout, rank=0):
    """Without process groups: nothing is sent."""
    return Machine.of(Grid(layout, torch.device("cpu"), None, rank))


@pytest.mark.parametrize(
    ("inputs", "targets", "match"),
    [
        ((3, SEQUENCE), (4, SEQUENCE), r"inputs of a step: \(3, \d+\) does not have 4 rows"),
        ((4, SEQUENCE), (6, SEQUENCE), "targets of a step: .* 2 micro-batches together"),
        ((4, SEQUENCE), (), r"targets of a step: \(\) does not have 4 rows"),
    ],
)
def test_rows_are_those_of_all_micro_batches(inputs, targets, match):
    one = machine(Layout())
    stages = build_stages(one, MODELS["llama"], sequence=SEQUENCE)
    passes = StepPasses(one, stages, micro_batch=2, micro_batches=2, tokens=4 * SEQUENCE)
    with pytest.raises(BadInput, match=match):
        passes.run(*(torch.zeros(shape, dtype=torch.int64) for shape in (inputs, targets)))
