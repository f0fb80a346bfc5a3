"""What a step communicates: as the runtime logs it, as PyTorch is asked for it, and as it is predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import models
import pytest
import torch.distributed as dist
from models import BATCH, DATA_INSIDE, OFF, SEQUENCE, layout_of
from ranks import grid_of
from tests.axonn import REFERENCE_COUNTS

from weft.errors import BadInput, Unsupported
from weft.layout.mesh import coordinates
from weft.layout.spec import Layout
from weft.layout.step import step_collectives
from weft.model import Attention, Block, BlockRun, FeedForward, Job, Model, Recipe, resolve_job
from weft.runtime.core.machine import Precision
from weft.runtime.measure.trace import extrapolate, trace
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.session import RunSettings, Session

INTERLEAVED = {"virtual_stages": 2, "schedule": "interleaved"}
MODELS = {
    "gpt": replace(models.gpt(), head_bias=True),
    "tied": models.gpt(layers=4, tied=True),
    "llama": models.llama(),
    "gemma": models.gemma(),
    "chunks": models.llama(layers=4),
}


def job_of(model, precision="fp32"):
    return Job(model=MODELS[model], recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision=precision))


def predicted(job, layout, rank=0):
    return step_collectives(job.model, job.recipe, layout, stage=coordinates(layout, rank)["pipeline"])


def traced(job, layout, rank=0):
    return trace(job, layout, rank=rank, precision=Precision.of(job.recipe.precision))


def logged(layout, model, precision):
    """What this rank issues in the second step."""
    job = job_of(model, precision)
    corpus = markov_corpus(job.model.vocab, tokens=2000, seed=0)
    settings = RunSettings(precision=Precision.of(precision))
    running = Session(job, grid_of(layout), settings, corpus)
    running.step()
    with running.machine.collectives.logged() as log:
        running.step()
    return Counter(log.issued)


def test_widths_are_those_of_the_precision(ranks):
    """Elements are compared in ``test_parity``, of gradients in fp64."""
    job, layout = job_of("llama", "bf16"), layout_of((2, 2, 1, 2), micro_batches=1)
    found = ranks.run(logged, layout, "llama", "bf16")
    assert found == [predicted(job, layout, rank) for rank in range(layout.world)]
    assert found[5] == traced(job, layout, rank=5)


def test_gradients_that_are_scattered_in_every_micro_batch():
    """ZeRO-2."""
    layout = layout_of((2, 1, 1, 4), zero=2, micro_batches=4)
    issued, short = extrapolate(job_of("llama"), layout)
    assert len(short) == 2
    assert issued == predicted(job_of("llama"), layout)


def test_weights_that_do_not_divide_over_z_are_padded():
    """In a world of 6, where no weight of the model divides over z = 3."""
    layout = Layout(x=2, z=3, micro_batch=1)
    model = models.gpt(hidden=16, heads=2)
    job = Job(model=model, recipe=Recipe(global_batch=3, sequence=SEQUENCE, precision="fp32"))
    found = predicted(job, layout)
    assert found == traced(job, layout, rank=4)
    gathered = {issue.elements for issue in found if issue.kind == "all-gather"}
    assert all(elements % 3 == 0 for elements in gathered)
    assert -(-16 * 48 // 2 // 3) * 3 in gathered


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tied", "chunks"])
@pytest.mark.parametrize("order", [Layout().order, DATA_INSIDE], ids=["inner", "outer"])
def test_every_rank_of_a_pipeline(model, order):
    layout = Layout(x=2, z=2, data=2, pipeline=2, micro_batch=1, order=order, **INTERLEAVED)
    for rank in range(layout.world):
        job = job_of(model)
        assert traced(job, layout, rank) == predicted(job, layout, rank)


# AxoNN's reference (axonn.md, 5.B) ----------------------------------------------------------------

REFERENCE = Block(
    hidden=64,
    attention=Attention(heads=8, kv_heads=8, head_dim=8),
    feed_forward=FeedForward(intermediate=256, gated=False),
)
LINEARS = 4


def of_one_block(layout):
    """What a second block adds to the step of a model of one: collectives of its linear layers, and elements
    of their gradients that are reduced over data.

    In bf16 what linear layers issue has 2 bytes, sums of norms and the reduction of gradients have 4.
    """
    steps, reduced = [], []
    for count in (1, 2):
        model = Model(name="m", hidden=64, vocab=64, runs=(BlockRun(block=REFERENCE, count=count),))
        job = Job(model=model, recipe=Recipe(global_batch=8, sequence=16))
        step = traced(job, layout, layout.world - 1)
        kept = {
            i: n for i, n in step.items() if i.element_bytes == 2 or (i.axes == ("z",) and i.kind == "reduce-scatter")
        }
        steps.append(Counter(kept))
        over_data = [issue.elements for issue in step if issue.axes == ("data",) and issue.kind == "all-reduce"]
        reduced.append(max(over_data, default=0))
    return steps[1] - steps[0], reduced[1] - reduced[0]


def reference_layout(grid, **switches):
    x, y, z, data = grid
    return Layout(x=x, y=y, z=z, data=data, **{"micro_batch": 8 // (z * data), "zero": 0, **switches})


@pytest.mark.slow_but(3)
@pytest.mark.parametrize("grid", REFERENCE_COUNTS, ids=str)
def test_reference_counts_are_traced(grid):
    """The reference counts the input of gathers, and a reduction over data for each linear layer."""
    found, elements = of_one_block(reference_layout(grid))
    for issue, times in found.items():
        elements += times * issue.elements // (grid[2] if issue.kind == "all-gather" else 1)
    assert (found.total() + (LINEARS if grid[3] > 1 else 0), elements) == REFERENCE_COUNTS[grid]


# Without hardware ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "rank"),
    [
        ("axonn-80b", Layout(x=4, y=4, z=16, data=16, micro_batch=4), 0),
        ("axonn-80b", Layout(x=4, y=2, z=64, data=8, micro_batch=16, recompute="full", zero=0), 4095),
        (
            "llama-3.1-405b",
            Layout(x=8, z=32, pipeline=16, micro_batch=1, sequence_parallel=True, recompute="full"),
            1234,
        ),
    ],
)
def test_thousands_of_ranks(name, layout, rank):
    job = resolve_job(name)
    found = traced(job, layout, rank)
    assert layout.world == 4096
    assert found == predicted(job, layout, rank)


@pytest.mark.slow
@pytest.mark.parametrize("overlaps", [{}, OFF], ids=["usual", "off"])
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("gpt", Layout(x=2, y=2, z=2, micro_batch=1)),
        ("llama", Layout(x=2, z=2, zero=0, micro_batch=1, sequence_parallel=True, recompute="full")),
        pytest.param("tied", Layout(pipeline=2, x=2, z=2, micro_batch=1), marks=pytest.mark.slow),
        ("tied", Layout(pipeline=2, z=2, data=2, micro_batch=1, recompute="full", recompute_layers=1)),
        ("chunks", Layout(pipeline=2, z=2, micro_batch=1, **INTERLEAVED)),
    ],
)
def test_two_short_steps_give_a_long_one(model, layout, overlaps):
    layout = replace(layout, **overlaps)
    job = job_of(model)
    for rank in (0, layout.world - 1):
        issued, short = extrapolate(job, layout, rank=rank)
        assert max(short) < BATCH // layout.dp
        assert issued == trace(job, layout, rank=rank)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    "layout",
    [
        Layout(pipeline=2, z=2, micro_batch=1, schedule="zb1p"),
        Layout(pipeline=2, x=2, micro_batch=1, virtual_stages=2, schedule="zbv", sequence_parallel=True),
    ],
    ids=["zb1p", "zbv"],
)
def test_zero_bubble_schedules_issue_what_is_predicted(layout):
    for rank in (0, layout.world - 1):
        assert extrapolate(job_of("chunks"), layout, rank=rank)[0] == predicted(job_of("chunks"), layout, rank)


def test_a_trace_leaves_nothing_behind():
    job = job_of("gpt")
    with pytest.raises(Unsupported):
        trace(job, Layout(data=2, offload_optimizer=True))
    assert not dist.is_initialized()
    assert traced(job, layout_of((2, 2, 2, 1))) == traced(job, layout_of((2, 2, 2, 1)))
    assert not dist.is_initialized()


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_that_is_not_there_is_refused(rank):
    with pytest.raises(BadInput, match=f"there is no rank {rank} -- choose 0 to 7"):
        trace(job_of("gpt"), layout_of((2, 2, 2, 1)), rank=rank)


def within_a_run():
    with pytest.raises(BadInput, match="in use -- trace in a new process"):
        trace(job_of("gpt"), layout_of((2, 2, 2, 1)))


def test_a_trace_within_a_run_is_refused(ranks):
    ranks.run(within_a_run)
