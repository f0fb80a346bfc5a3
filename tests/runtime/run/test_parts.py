"""Optimizers of torch on a grid, layers without gradients, and what is refused because a rank has a part."""

from __future__ import annotations

import plain
import pytest
import torch
from compare import pieces, worst
from ranks import grid_of, on_ranks
from torch import nn
from torch.optim.lr_scheduler import StepLR

from weft.errors import Unsupported
from weft.layout.spec import Layout
from weft.runtime.convert.parallelize import GPT2_PLAN, easy_plan, parallelize
from weft.runtime.convert.roles import Normal, Transposed
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer, torch_optimizer

GRIDS = (Layout(x=2, y=2, data=2, zero=1), Layout(z=2, data=4, zero=1), Layout(x=2, z=2, data=2, zero=0))
PLAN = {"up": Normal(), "down": Transposed(), "spare": Normal(), "late": Transposed()}
STEPS = 4


class Spared(nn.Module):
    """One layer is never used, another one after some steps."""

    def __init__(self):
        super().__init__()
        self.begins = 2
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.spare, self.late = nn.Linear(16, 32), nn.Linear(32, 16)
        self.steps = 0

    def forward(self, rows):
        hidden = torch.relu(self.up(rows))
        out = self.down(hidden)
        return out + self.late(hidden) if self.steps >= self.begins else out


def made():
    torch.manual_seed(2)
    model = Spared().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def rows():
    return torch.randn(16, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def groups(model, decay):
    one = [each for each in model.parameters() if each.ndim > 1]
    other = [each for each in model.parameters() if each.ndim == 1]
    return [{"params": one, "weight_decay": decay}, {"params": other, "weight_decay": 0.0}]


def step_of(model, given, slope, step):
    model.steps = step
    model(given).backward(slope)


BEGINS = {"sgd": 2, "adam": 0, "adagrad": 2}
"""Adam's correction counts the steps of all parameters together."""
KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.05}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}


def serial(which):
    """The plain model after some steps of a plain optimizer with a plain schedule and clip."""
    model = made()
    model.begins = BEGINS[which]
    kind, settings = KINDS[which]
    optimizer = kind(groups(model, 0.2), **settings)
    schedule = StepLR(optimizer, 2, 0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        step_of(model, rows(), rows() / 16, step)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
    return model.state_dict()


def part_of(layout):
    """A rank's model, what trains it, its rows, and their features."""
    machine = Machine.of(grid_of(layout), precision=Precision.of("fp64"))
    model = parallelize(made(), machine, PLAN)
    grid, whole = machine.grid, rows()
    own = whole.chunk(grid.size("z", "data"))[grid.index("z", "data")]
    own = own.chunk(grid.size("y"), 1)[grid.index("y")]
    return model, Flat(machine, model, holdings(model)), own


@pytest.mark.slow_but(4)
@pytest.mark.parametrize("which", KINDS)
@pytest.mark.parametrize("layout", GRIDS, ids=["x y data", "z data, zero 1", "x z data, zero 0"])
@on_ranks
def test_optimizers_of_torch_train_as_on_one_process(layout, which):
    """With schedules and clipping; layers without gradients are as they were, decay and all."""
    model, flat, own = part_of(layout)
    model.begins = BEGINS[which]
    kind, settings = KINDS[which]
    optimizer = torch_optimizer(flat, kind, weight_decay=0.2, **settings)
    schedule = StepLR(optimizer, 2, 0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        with flat.step(1, loss="sum"):
            step_of(model, own, own / 16, step)
        flat.clip(0.5)
        optimizer.step()
        schedule.step()
    assert_equal(flat, serial(which))


def assert_equal(flat, state):
    for name, window, values in pieces(flat, lambda leaf: leaf.detach()):
        assert worst(values, state[name][window]) < 1e-12, name


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("layout", GRIDS, ids=["x y data", "z data, zero 1", "x z data, zero 0"])
@on_ranks
def test_layers_without_gradients_do_not_decay(layout):
    """By Weft's own optimizer, which is torch's on one process."""
    model, flat, own = part_of(layout)
    settings = AdamSettings(rate=0.05, weight_decay=0.2, clip=None)
    optimizer, plainly = Optimizer(flat, settings), made()
    other = torch.optim.AdamW(groups(plainly, 0.2), lr=0.05, betas=settings.betas, eps=settings.epsilon)
    for step in range(2):
        with flat.step(1, loss="sum"):
            step_of(model, own, own / 16, step)
        optimizer.step()
        other.zero_grad()
        step_of(plainly, rows(), rows() / 16, step)
        other.step()
    assert_equal(flat, plainly.state_dict())
    for name, before in made().state_dict().items():
        assert plainly.state_dict()[name].equal(before) == name.startswith(("spare", "late"))


@on_ranks
def test_what_one_rank_uses_is_trained_on_all():
    """A layer that the rows of one rank of data alone use."""
    model, flat, own = part_of(Layout(x=2, z=2, data=2, zero=0))
    optimizer = torch_optimizer(flat, torch.optim.SGD, lr=0.1)
    before = model.late.layer.weight.shard.detach().clone()
    with flat.step(1, loss="sum"):
        step_of(model, own, own, 2 if flat.machine.grid.coordinates["data"] == 1 else 0)
    optimizer.step()
    assert not torch.equal(before, model.late.layer.weight.shard)


def attempted(action):
    """What is said to it."""
    try:
        action()
    except Unsupported as error:
        return str(error)
    return ""


@on_ranks
def test_norms_and_updates_of_parts_are_refused():
    def said(layout):
        model, flat, own = part_of(layout)
        optimizer = torch.optim.AdamW(model.parameters())
        with flat.step(1, loss="sum"):
            step_of(model, own, own, 0)
        return attempted(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)), attempted(optimizer.step)

    clip, update = said(GRIDS[0])
    assert "is not the model's -- call clip() or norm() of the model's Flat" in clip
    assert "AdamW: with zero > 0" in update
    assert "give prepare(" in update
    clip, update = said(GRIDS[2])
    assert clip
    assert not update, "each rank has the sums of what it holds"
    assert said(Layout(data=8, zero=0)) == ("", ""), "each rank has all"


@pytest.mark.parametrize("easy", [False, True])
@on_ranks
def test_parameters_without_an_owner_are_not_updated(easy):
    """Before there is a Flat, and when it has gone: nothing would sum their gradients over ranks."""
    layout = Layout(x=2, z=2, data=2, zero=0)
    machine, model = Machine.of(grid_of(layout), precision=Precision.of("fp64")), made()
    parallelize(model, machine, easy_plan(model) if easy else PLAN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = attempted(optimizer.step)
    flat = Flat(machine, model, holdings(model))
    owned = attempted(optimizer.step)
    del flat
    assert "SGD: nothing sums the gradients of these parameters over ranks" in before
    assert "give prepare(..., optimizer=functools.partial(torch.optim.SGD, lr=0.1))" in before
    assert (owned, attempted(optimizer.step)) == ("", before)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("easy", [False, True], ids=["plan", "easy"])
@on_ranks
def test_losses_of_both_kinds_give_the_gradients_of_the_whole_batch(easy, reduction):
    """``loss.mean()`` of each rank, as with DistributedDataParallel, and parts of the whole batch's loss."""
    layout = Layout(x=2, z=2, data=2) if easy else Layout(x=2, z=2, data=2, zero=0)
    machine, model = Machine.of(grid_of(layout), precision=Precision.of("fp64")), made()
    parallelize(model, machine, easy_plan(model) if easy else PLAN)
    flat, grid, given = Flat(machine, model, holdings(model)), machine.grid, rows()
    over = ("x", "y", "z", "data") if easy else ("z", "data")
    own = given.chunk(grid.size(*over))[grid.index(*over)]
    with flat.step(2, loss=reduction):
        for part in own.chunk(2):
            losses = model(part).square().sum(1)
            (losses.mean() if reduction == "mean" else losses.sum() / len(given)).backward()
    plainly = made()
    plainly(given).square().sum(1).mean().backward()
    whole = {name: one.grad for name, one in plainly.named_parameters() if one.grad is not None}
    for name, window, values in pieces(flat, lambda leaf: leaf.grad):
        assert name not in whole or worst(values, whole[name][window]) < 1e-12, name


def test_optimizers_that_need_whole_parameters_are_refused():
    machine = Machine.of(Grid.of(Layout()), precision=Precision.of("fp64"))
    model = parallelize(made(), machine, easy_plan(made()))
    flat = Flat(machine, model, holdings(model))
    with pytest.raises(Unsupported, match="Adafactor: updates an element by others"):
        torch_optimizer(flat, torch.optim.Adafactor)


def test_the_same_parameters_decay_in_both_modes():
    decayed = []
    for plan_of in (lambda model: GPT2_PLAN, easy_plan):
        model = plain.GPT2LMHeadModel().double()
        machine = Machine.of(Grid.of(Layout()), precision=Precision.of("fp64"))
        parallelize(model, machine, plan_of(model))
        decayed.append({one.name for one in holdings(model) if one.decayed})
    assert (
        decayed[0] == decayed[1] == {name for name, one in plain.GPT2LMHeadModel().named_parameters() if one.ndim > 1}
    )
