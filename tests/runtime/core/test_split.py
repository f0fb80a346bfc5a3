"""Dropout on a grid: the same where ranks hold the same, and replicas that part are found."""

from __future__ import annotations

from dataclasses import replace

import plain
import pytest
import torch
from ranks import WORLD, grid_of, on_ranks
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from weft.errors import Unsupported
from weft.layout.spec import Layout
from weft.runtime.convert.parallelize import GPT2_PLAN, easy_plan, parallelize
from weft.runtime.convert.roles import Norm, Normal, Transposed
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import Diverged, check_replicas, holdings
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer

GRIDS = (Layout(x=2, y=2, data=2), Layout(y=2, z=2, data=2, zero=1), Layout(x=2, z=2, data=2))


class Dropping(nn.Module):
    """Dropout as a function in both kinds of activations, and noise in what is whole."""

    recomputed = None

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, rows):
        if self.recomputed is not None:
            return checkpoint(self._block, rows, use_reentrant=self.recomputed)
        return self._block(rows)

    def _block(self, rows):
        hidden = functional.dropout(torch.relu(self.up(rows)), 0.5)
        return rows + functional.dropout(self.down(hidden), 0.5) * (1.0 + torch.rand(()))


def machine_of(layout):
    return Machine.of(grid_of(layout), precision=Precision.of("fp64"))


def converted(machine, model, plan):
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = parallelize(model.double(), machine, plan)
    torch.manual_seed(100 + machine.grid.rank)  # as programs that seed their data by rank do
    return model


@pytest.mark.parametrize("which", ["gpt2", "functions"])
@pytest.mark.parametrize("layout", GRIDS, ids=["x y data", "y z data", "x z data"])
@on_ranks
def test_dropout_leaves_replicas_alike(layout, which):
    """After three steps."""
    machine = machine_of(layout)
    plans = {
        "gpt2": (plain.GPT2LMHeadModel(dropout=0.3), GPT2_PLAN),
        "functions": (Dropping(), {"up": Normal(), "down": Transposed()}),
    }
    model = converted(machine, *plans[which])
    flat = Flat(machine, model, holdings(model))
    optimizer = Optimizer(flat, AdamSettings(rate=0.1))
    generator = torch.Generator().manual_seed(machine.grid.index("z", "data"))
    given = torch.randint(53, (2, 6), generator=generator)
    if which == "functions":
        whole = torch.randn(4, 16, generator=generator, dtype=torch.float64)
        given = whole.chunk(layout.y, 1)[machine.grid.index("y")]
    for _ in range(3):
        with flat.step(1, loss="sum"):
            model(given).square().sum().backward()
        optimizer.step()
    check_replicas(machine, holdings(model))


def easily_dropped(layout):
    machine = machine_of(layout)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    model = converted(machine, model, easy_plan(model))
    with torch.no_grad():
        return (model(torch.ones(4, 8, dtype=torch.float64)) == 0).tolist()


class Masked(nn.Module):
    """Dropout of ones in the shapes of all kinds of values, by a function and by a module."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 512), nn.Linear(512, 512)
        self.drop = nn.Dropout(0.5)

    def forward(self, rows):
        stream = self.norm(rows)
        hidden = self.up(stream)
        heads = torch.stack([one.exp() for one in hidden.view(8, -1, 128)]).transpose(0, 1)
        scores = heads @ heads.transpose(1, 2)
        after = self.down(hidden)
        values = (stream, hidden, scores, after + rows, torch.ones(8, 64), scores.new_ones(8, 64))
        return [self._mask(one) for one in values]

    def _mask(self, values):
        ones = torch.ones_like(values)
        both = (functional.dropout(ones, 0.5), self.drop(ones))
        return torch.stack(both).detach() != 0


def masks(layout):
    machine = machine_of(layout)
    model = converted(machine, Masked(), {"norm": Norm(), "up": Normal(), "down": Transposed()})
    found, again = (model(torch.ones(8, 512 // layout.y, dtype=torch.float64)) for _ in range(2))
    assert not torch.equal(found[1], again[1]), "each pass drops others"
    assert all(type(one) is torch.Tensor for one in found)
    return machine.grid.coordinates, [one.flatten().numpy() for one in found]


def test_parts_that_are_split_drop_their_own_and_replicas_the_same(ranks):
    """Along other axes than that over which a value is split, masks are the same bits; else as of fair coins."""
    found = ranks.run(masks, Layout(x=2, y=2, data=2))
    split = ["y", "x", "x", "y", None, "x"]
    pairs = [(one, other) for i, one in enumerate(found) for other in found[:i]]
    for (place, here), (elsewhere, there) in pairs:
        differs = {axis for axis in place if place[axis] != elsewhere[axis]}
        for axis, one, other in zip(split, here, there, strict=True):
            if not differs & {"data", axis}:
                assert (one == other).all(), (axis, differs)
            else:
                assert abs((one == other).mean() - 0.5) < 4.5 * 0.5 / one.size**0.5, (axis, differs)


def test_in_easy_mode_all_ranks_drop_others(ranks):
    found = ranks.run(easily_dropped, Layout(x=2, y=2, z=2))
    assert len(set(map(str, found))) == WORLD


@on_ranks
def test_what_is_recomputed_drops_the_same():
    """Blocks, and the model as a whole; of two passes the later one's gradients come first."""
    machine, found = machine_of(GRIDS[0]), []
    for block, whole in ((None, None), (False, None), (True, None), (None, False), (None, True)):
        model = converted(machine, Dropping(), {"up": Normal(), "down": Transposed()})
        model.recomputed = block
        given = torch.ones(4, 8, dtype=torch.float64, requires_grad=True)
        flat = Flat(machine, model, holdings(model))
        with flat.step(2, loss="sum"):
            passes = [model(given) if whole is None else checkpoint(model, given, use_reentrant=whole) for _ in "ab"]
            passes[1].square().sum().backward()
            passes[0].square().sum().backward()
        found.append([one.leaf.grad.clone() for one in flat.owned] + [given.grad])
        assert all(map(torch.equal, found[0], found[-1])), (block, whole)


class Blocks(nn.Module):
    """Blocks with dropout in their attention cores and behind them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(plain.GPT2Block(16, 4, 0.3) for _ in range(3))

    def forward(self, rows):
        for layer in self.layers:
            rows = layer(rows)
        return rows


BLOCKS = {name.removeprefix("transformer.").replace("h.", "layers."): role for name, role in GPT2_PLAN.items()}
BLOCKS = {name: role for name, role in BLOCKS.items() if name.startswith("layers")}


@on_ranks
def test_plain_models_recompute_what_the_layout_says():
    """Dropout is the same again, so that gradients are, and less is kept."""
    kept, first = [], None
    for way in ({}, {"recompute": "full", "recompute_layers": 2}, {"recompute": "full"}):
        machine = machine_of(replace(GRIDS[0], **way))
        model, sizes = converted(machine, Blocks(), BLOCKS), {}
        given = torch.ones(2, 6, 8, dtype=torch.float64, requires_grad=True)
        flat = Flat(machine, model, holdings(model))

        def keep(values, sizes=sizes):
            sizes[values.data_ptr()] = values.numel()
            return values

        with flat.step(2, loss="sum"):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
                passes = [model(given), model(given)]
            assert not torch.equal(*passes), "dropout is on"
            for out in reversed(passes):
                out.square().sum().backward()
        gradients = [one.leaf.grad.clone() for one in flat.owned] + [given.grad]
        first = first or gradients
        assert all(map(torch.equal, gradients, first)), way
        kept.append(sum(sizes.values()))
    assert kept[0] > kept[1] > kept[2]
    assert kept[2] < kept[0] / 3


@on_ranks
def test_other_masks_are_not_drawn_in_silence():
    """A block that is computed again from tensors that hooks have saved."""
    model = converted(machine_of(Layout(y=2, data=4)), Blocks(), BLOCKS)
    block, given = model.layers[1].forward, torch.ones(2, 6, 8, dtype=torch.float64)
    model.layers[1].forward = lambda rows: checkpoint(block, rows, use_reentrant=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda values: values, lambda values: values):
        out = model(given)
    with pytest.raises(Unsupported, match=r"layers\.1\.ln_1: what it takes is not known to be split"):
        out.sum().backward()


@on_ranks
def test_replicas_that_part_are_found_on_every_rank():
    """One copy is changed by the smallest step."""
    machine = machine_of(GRIDS[0])
    held = holdings(converted(machine, plain.GPT2LMHeadModel(), GPT2_PLAN))
    check_replicas(machine, held)
    if machine.grid.rank == 5:
        with torch.no_grad():
            values = held[3].parameter.view(-1)
            values[0] = torch.nextafter(values[0], torch.tensor(9.0, dtype=torch.float64))
    with pytest.raises(Diverged, match=f"copies of {held[3].name} along "):
        check_replicas(machine, held)
