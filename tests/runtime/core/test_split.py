"""Dropout on a grid: the same where ranks hold the same, and replicas that part are found."""

from __future__ import annotations

import plain
import pytest
import torch
from ranks import WORLD, grid_of
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


def trained(layout, which):
    """Three steps with dropout; what the ranks dropped last, and whether copies are still equal."""
    machine = machine_of(layout)
    plans = {
        "gpt2": (plain.GPT2LMHeadModel(dropout=0.3), GPT2_PLAN),
        "functions": (Dropping(), {"up": Normal(), "down": Transposed()}),
    }
    model, plan = plans[which]
    model = converted(machine, model, plan)
    flat = Flat(machine, model, holdings(model))
    optimizer = Optimizer(flat, AdamSettings(rate=0.1))
    index = machine.grid.index("z", "data")
    generator = torch.Generator().manual_seed(index)
    given = torch.randint(53, (2, 6), generator=generator) if which == "gpt2" else None
    if given is None:
        whole = torch.randn(4, 16, generator=generator, dtype=torch.float64)
        width = 16 // machine.grid.size("y")
        given = whole[:, machine.grid.index("y") * width :][:, :width]
    for _ in range(3):
        with flat.step(1, loss="sum"):
            out = model(given)
            out.square().sum().backward()
        optimizer.step()
    check_replicas(machine, holdings(model))
    same_rows = machine.grid.index("z", "data"), machine.grid.index("y")
    return same_rows, out.detach().tolist()


@pytest.mark.parametrize("which", ["gpt2", "functions"])
@pytest.mark.parametrize("layout", GRIDS, ids=str)
def test_dropout_leaves_replicas_alike(ranks, layout, which):
    found = ranks.run(trained, layout, which)
    if which == "functions":
        by_rows = dict(found)
        assert all(by_rows[key] == out for key, out in found), "copies of rows of a rank of y are alike"


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


def recomputed(layout, ways):
    """Whether gradients of two passes, the later one's first, are those without recomputed activations."""
    found = []
    for block, whole in [(None, None), *ways]:
        machine = machine_of(layout)
        model = converted(machine, Dropping(), {"up": Normal(), "down": Transposed()})
        model.recomputed = block
        given = torch.ones(4, 16 // layout.y, dtype=torch.float64, requires_grad=True)
        flat = Flat(machine, model, holdings(model))
        with flat.step(2, loss="sum"):
            passes = [model(given) if whole is None else checkpoint(model, given, use_reentrant=whole) for _ in "ab"]
            passes[1].square().sum().backward()
            passes[0].square().sum().backward()
        found.append([one.leaf.grad.clone() for one in flat.owned] + [given.grad])
    return [all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True)) for other in found[1:]]


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


def kept_by_plan(layouts):
    """For each layout: elements that a forward pass keeps; gradients are those of the first."""
    kept, first = [], None
    for layout in layouts:
        machine = machine_of(layout)
        model, sizes = converted(machine, Blocks(), BLOCKS), {}
        given = torch.ones(2, 6, 16 // layout.y, dtype=torch.float64, requires_grad=True)
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
        assert all(map(torch.equal, gradients, first)), layout
        kept.append(sum(sizes.values()))
    return kept


def test_plain_models_recompute_what_the_layout_says(ranks):
    """Dropout is the same again, and less is kept."""
    grid = {"x": 2, "y": 2, "data": 2}
    ways = [{}, {"recompute": "full", "recompute_layers": 2}, {"recompute": "full"}]
    for kept in ranks.run(kept_by_plan, [Layout(**grid, **way) for way in ways]):
        assert kept == sorted(kept, reverse=True)
        assert len(set(kept)) == 3
        assert kept[2] < kept[0] / 3


def test_what_is_recomputed_drops_the_same(ranks):
    """Blocks, and the model as a whole."""
    ways = [(False, None), (True, None), (None, False), (None, True)]
    assert ranks.run(recomputed, Layout(x=2, y=2, data=2), ways) == [[True] * 4] * WORLD


def forgetful(layout):
    """A block that is computed again from tensors that hooks have saved."""
    machine = machine_of(layout)
    model = converted(machine, Blocks(), BLOCKS)
    block, given = model.layers[1].forward, torch.ones(2, 6, 8, dtype=torch.float64)
    model.layers[1].forward = lambda rows: checkpoint(block, rows, use_reentrant=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda values: values, lambda values: values):
        out = model(given)
    with pytest.raises(Unsupported, match=r"layers\.1\.ln_1: what it takes is not known to be split"):
        out.sum().backward()


def test_other_masks_are_not_drawn_in_silence(ranks):
    ranks.run(forgetful, Layout(y=2, data=4))


def parted(layout):
    """One copy is changed by the smallest step."""
    machine = machine_of(layout)
    model = converted(machine, plain.GPT2LMHeadModel(), GPT2_PLAN)
    held = holdings(model)
    check_replicas(machine, held)
    if machine.grid.rank == 5:
        with torch.no_grad():
            values = held[3].parameter.view(-1)
            values[0] = torch.nextafter(values[0], torch.tensor(9.0, dtype=torch.float64))
    with pytest.raises(Diverged) as found:
        check_replicas(machine, held)
    return held[3].name, str(found.value)


def test_replicas_that_part_are_found_on_every_rank(ranks):
    found = ranks.run(parted, Layout(x=2, y=2, data=2))
    assert len(set(found)) == 1
    name, text = found[0]
    assert f"copies of {name} along " in text
