"""Flat buffers: the norm of the whole model's gradient, clipping, buckets, and the shares of ZeRO-1."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from math import prod
from unittest.mock import patch

import models
import pytest
import serial
import torch
from compare import Run, pieces, worst
from models import layout_of
from ranks import on_ranks
from torch import nn

from weft.errors import BadInput
from weft.layout import step
from weft.layout.spec import Layout
from weft.model import resolve_job
from weft.runtime.convert.parallelize import easy_plan, parallelize
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import holdings
from weft.runtime.layers.linear import Linear4D
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer, torch_optimizer
from weft.runtime.run.session import RunSettings, Session

MODEL = replace(models.gpt(), head_bias=True)


@pytest.mark.slow_but(3)
@pytest.mark.parametrize(
    ("layout", "maximum"),
    [
        (layout_of((2, 2, 2, 1), micro_batches=1), 1e-3),
        (layout_of((2, 1, 2, 2), micro_batches=1, sequence_parallel=True), 1e-3),
        (layout_of((1, 2, 2, 2), micro_batches=1, zero=0), 1e-3),
        (layout_of((1, 1, 1, 8)), 1e-3),
        (layout_of((2, 1, 1, 4), micro_batches=1), 1e3),
    ],
    ids=["(2, 2, 2, 1)", "tokens cut", "zero 0", "(1, 1, 1, 8)", "unclipped"],
)
@on_ranks
def test_clipping_is_that_of_the_whole_model(layout, maximum):
    """Every parameter counts once, whatever ranks have copies of it."""
    run = Run(layout, MODEL)
    run.step()
    norm = float(run.flat.clip(maximum))
    parameters = {name: values.clone().requires_grad_() for name, values in run.serial.gradients.items()}
    for values in parameters.values():
        values.grad = values.detach().clone()
    wanted = float(nn.utils.clip_grad_norm_(parameters.values(), maximum))
    assert norm == pytest.approx(wanted, rel=1e-12)
    for name, window, values in run.gradients():
        want = parameters[name].grad
        assert worst(values, want[window]) <= 1e-6 * float(want.abs().max()), name
    if maximum < 1.0:
        assert float(run.flat.norm()) == pytest.approx(maximum, rel=1e-5)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("zero", [2, 0, 1])
@pytest.mark.parametrize("grid", [(1, 2, 2, 2), (1, 1, 1, 8)], ids=str)
@on_ranks
def test_buckets_cut_through_parameters(grid, zero):
    """Gradients of many small buckets are those of one."""
    with patch.multiple(step, BUCKET_ELEMENTS=700, BUCKET_ELEMENTS_PER_RANK=1):
        run = Run(layout_of(grid, zero=zero), MODEL)
    with run.machine.collectives.logged() as log:
        run.step()
    assert abs(float(run.flat.norm()) - run.serial.norm) <= 1e-12
    run.flat.publish()
    assert run.gradient_error() <= 1e-12
    assert not run.uncovered()
    assert sum(issue.axes == ("data",) for issue in log.issued) > 8


def updated(layout):
    """Elements of each parameter that this rank updates."""
    found = Counter()
    for name, _, values in pieces(Run(layout, MODEL).flat, lambda leaf: leaf):
        found[name] += values.numel()
    return found


@pytest.mark.parametrize(("zero", "copies"), [(0, 2), (1, 1), (2, 1)])
def test_zero_1_cuts_the_updates_of_matrices(ranks, zero, copies):
    """Each element of a matrix is updated once, without it by each of the two ranks of data; a vector by all
    ranks that have it."""
    found = sum(ranks.run(updated, layout_of((2, 1, 2, 2), zero=zero)), Counter())
    for name, shape in serial.shapes(MODEL).items():
        if len(shape) == 2 and name != "positions":
            assert found[name] == copies * prod(shape)
        else:
            cut = 2 if name.endswith(("qkv.bias", "fc1.bias", "head.bias")) else 1
            assert found[name] == 8 // cut * prod(shape)


@pytest.mark.parametrize(("zero", "share"), [(1, 1), (2, 4)])
@on_ranks
def test_zero_2_keeps_the_gradients_of_a_share(zero, share):
    """Of matrices, after a step."""
    run = Run(layout_of((2, 1, 1, 4), zero=zero), MODEL)
    run.step()
    run.flat.clip(1e9)
    matrices = [holding.parameter for holding in run.flat.holdings if holding.matrix]
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() // 8
        for one in (
            *(one.grad for one in matrices if one.grad is not None),
            *(owned.gradient for owned in run.flat.owned if owned.matrix),
        )
    }
    held = sum(one.numel() for one in matrices)
    assert sum(storages.values()) == -(-held // 4) * 4 // share


def in_bf16(layout, count):
    """Losses of some steps, and a digest of the values that this rank updates."""
    run = Run(layout, MODEL, precision="bf16")
    optimizer = Optimizer(run.flat, AdamSettings(rate=1e-2, clip=None))
    losses = []
    for seed in range(count):
        losses.append(run.step(seed))
        optimizer.step()
    masters = {name: values for name, _, values in pieces(run.flat, lambda leaf: leaf.detach())}
    rounded = all(torch.equal(values, values.bfloat16().float()) for values in masters.values())
    return losses, rounded


def test_zero_1_changes_no_bit_in_bf16(ranks):
    """Others' updates arrive in bf16, in which weights are gathered anyhow; a rank's own stay in fp32."""
    copied, shared = (ranks.run(in_bf16, layout_of((2, 2, 1, 2), zero=zero, micro_batches=1), 4) for zero in (0, 1))
    assert copied == shared
    assert len(set(copied[0][0])) == 4
    assert not any(rounded for _, rounded in shared)


# One rank -----------------------------------------------------------------------------------------


def one_rank(**layout):
    return Machine.of(Grid.of(Layout(**layout)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Linear4D(one_rank(), "first", 4, 4)
        self.second = nn.Linear(4, 4)


def test_parameters_of_other_modules_are_refused():
    """They would be neither summed nor saved."""
    with pytest.raises(BadInput, match=r"Mixed: parameter second\.weight is in no layer"):
        holdings(Mixed())


@pytest.fixture
def uncollected():
    """Cycles stay where they are, but for those of PyTorch's first optimizer, which imports what it needs."""
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def tensors(flat):
    """All that a rank holds, to be seen when it has gone; the first has the others' storage."""
    buffers = {owned.buffer for owned in flat.owned}
    found = [flat, *(buffer.values for buffer in buffers), *(holding.parameter for holding in flat.holdings)]
    return [weakref.ref(one) for one in found]


def test_nothing_of_a_session_outlives_it(uncollected):
    job = resolve_job("tiny-gpt")
    layout = Layout(micro_batch=job.recipe.global_batch)
    session = Session(job, Grid.of(layout), RunSettings(), markov_corpus(job.model.vocab, tokens=10_000, seed=1))
    for _ in range(2):
        session.step()
    left = tensors(session.flat)
    assert all(one() is not None for one in left)
    del session
    assert not any(one() is not None for one in left)


def test_nothing_of_a_converted_model_outlives_it(uncollected):
    plain, machine = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), one_rank()
    model = parallelize(plain, machine, easy_plan(plain))
    optimizer = torch_optimizer(Flat(machine, model, holdings(model)), torch.optim.SGD, lr=0.1)
    del optimizer
    flat = Flat(machine, model, holdings(model))
    optimizer = torch_optimizer(flat, torch.optim.SGD, lr=0.1)
    for _ in range(2):
        with flat.step(1, loss="mean"):
            model(torch.ones(2, 8)).mean().backward()
        optimizer.step()
    left = tensors(flat)
    del plain, model, flat, optimizer, machine
    assert not any(one() is not None for one in left)


def test_gradients_outside_a_step_are_refused():
    """Of vectors as of matrices: nothing would sum them."""
    plain, machine = nn.Sequential(nn.LayerNorm(8)), one_rank()
    model = parallelize(plain, machine, easy_plan(plain))
    flat = Flat(machine, model, holdings(model))
    with pytest.raises(BadInput, match=r"0\.weight: gave more gradients .* count every backward pass"):
        model(torch.arange(8.0)).sum().backward()
    del flat


def test_how_a_loss_was_reduced_is_said():
    stage = nn.Sequential(nn.Identity())
    flat = Flat(one_rank(), stage, holdings(stage))
    with pytest.raises(TypeError, match="'loss'"), flat.step(1):
        pass
    with pytest.raises(BadInput, match='loss = \'average\' -- give "mean" or "sum"'), flat.step(1, loss="average"):
        pass


def test_a_stage_without_parameters_steps():
    machine = one_rank()
    stage = nn.Sequential(nn.Identity())
    optimizer = Optimizer(Flat(machine, stage, holdings(stage)), AdamSettings())
    with optimizer.flat.step(1, loss="sum"):
        pass
    assert float(optimizer.step()) == 0.0
    assert (optimizer.updates, optimizer.pieces()) == (1, [])
