"""What a step communicates: as the runtime logs it, as PyTorch is asked for it, and as it is predicted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import models
import pytest
import torch.distributed as dist
from models import BATCH, DATA_INSIDE, EVERY, OFF, SEQUENCE, layout_of
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


CASES = [
    ("gpt", layout_of((2, 2, 2, 1), micro_batches=1)),
    ("gpt", layout_of((2, 1, 2, 2), zero=0, sequence_parallel=True, recompute="full")),
    ("llama", layout_of((4, 1, 2, 1), sequence_parallel=True, recompute="selective")),
    ("gpt", layout_of((1, 2, 2, 2), recompute="full", recompute_layers=1, order=DATA_INSIDE, **OFF)),
    ("gpt", layout_of((2, 1, 1, 4), zero=2, micro_batches=4)),
    ("llama", layout_of((1, 2, 2, 2), zero=2, recompute="full", **OFF)),
    ("gemma", layout_of((2, 2, 2, 1))),
    ("gemma", layout_of((2, 1, 2, 2), sequence_parallel=True, recompute="full")),
    ("gemma", layout_of((1, 4, 1, 2), recompute="selective")),
    ("tied", Layout(pipeline=2, x=2, z=2, micro_batch=2, recompute="full", **INTERLEAVED)),
    ("chunks", Layout(pipeline=4, x=2, micro_batch=2, sequence_parallel=True)),
]


def check(ranks, model, layout, asked, precision="fp32"):
    job = job_of(model, precision)
    found = ranks.run(logged, layout, model, precision)
    for rank, issued in enumerate(found):
        assert issued == predicted(job, layout, rank)
    for rank in asked:
        assert found[rank] == traced(job, layout, rank)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layout"), CASES)
def test_log_trace_and_prediction_agree(ranks, model, layout):
    check(ranks, model, layout, asked=(2, 7))


def test_gradients_that_are_scattered_in_every_micro_batch(ranks):
    """ZeRO-2."""
    layout = layout_of((2, 1, 2, 2), zero=2)
    check(ranks, "llama", layout, asked=(5,))
    issued, short = extrapolate(job_of("llama"), layout_of((2, 1, 1, 4), zero=2, micro_batches=4))
    assert len(short) == 2
    assert issued == predicted(job_of("llama"), layout_of((2, 1, 1, 4), zero=2, micro_batches=4))


@pytest.mark.parametrize("precision", ["bf16"])
def test_they_agree_on_widths(ranks, precision):
    check(ranks, "llama", layout_of((2, 2, 1, 2), micro_batches=1), asked=(5,), precision=precision)


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
@pytest.mark.parametrize("grid", EVERY, ids=str)
def test_they_agree_on_every_grid(ranks, grid):
    sharded = grid[0] > 1 and grid[1] == 1
    again = layout_of(grid, recompute="full", zero=0, micro_batches=1)
    check(ranks, "gpt", again, asked=(0, 6))
    check(ranks, "llama", layout_of(grid, sequence_parallel=sharded), asked=(3,))


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid",
    [(2, 2, 2, 1), *(pytest.param(grid, marks=pytest.mark.slow) for grid in [(1, 4, 2, 1), (4, 1, 2, 1)])],
    ids=str,
)
def test_recomputation_changes_what_the_reference_says(grid):
    """5.7: recomputation gathers and reduces each linear layer once more."""
    x, y, z, _ = grid
    plain, _ = of_one_block(reference_layout(grid))
    again, _ = of_one_block(reference_layout(grid, recompute="full"))
    rows = 8 // z * 16
    gathers, reduced = Counter(), Counter()
    for linear in REFERENCE.linears():
        gathers["all-gather", ("z",), linear.inputs * linear.outputs // (x * y), 2] += 1
        axis, cut = ("y", x) if linear.kind == "normal" else ("x", y)
        if {"x": x, "y": y}[axis] > 1:
            reduced["all-reduce", (axis,), rows * linear.outputs // cut, 2] += 1

    def of(issues):
        return Counter({(i.kind, i.axes, i.elements, i.element_bytes): n for i, n in issues.items()})

    assert of(again - plain) == gathers + reduced
    assert not plain - again


# Without hardware ---------------------------------------------------------------------------------


def peak_bytes(work):
    """What ``work`` returns, and by how much it raises this process's memory at its highest."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")
    except OSError:
        pytest.skip("the peak of memory cannot be reset here")

    def kib(field):
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    before = kib("VmRSS")
    result = work()
    return result, 1024 * (kib("VmHWM") - before)


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
    start = time.perf_counter()
    found, taken = peak_bytes(lambda: traced(job, layout, rank))
    print(f"{layout.world} ranks: {time.perf_counter() - start:.1f} s, {taken / 2**20:.0f} MiB more")
    assert layout.world == 4096
    assert found == predicted(job, layout, rank)
    assert taken < 2**29


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


def test_a_short_step_is_traced_itself():
    assert extrapolate(job_of("gpt"), Layout(z=2, micro_batch=4))[1] == (2,)


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
