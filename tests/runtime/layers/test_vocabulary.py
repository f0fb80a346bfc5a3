"""Embedding, head and cross-entropy over eight ranks against plain ones, for any size of the vocabulary."""

from __future__ import annotations

import pytest
import torch
from compare import worst
from models import DATA_INSIDE, EVERY, Z_INSIDE, layout_of
from ranks import grid_of, on_ranks
from torch.nn import functional

from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import share
from weft.runtime.layers import vocabulary
from weft.runtime.layers.vocabulary import IGNORED, Embedding4D, Head4D, cross_entropy

EXACT = 1e-12
TOKENS = 32
VOCABULARIES = [53, 64, 5]
"""Odd; a multiple of all ranks; fewer tokens than ranks, some of which have padding alone."""


PADDING = 3
"""A row that is not trained; and every fourth target does not count."""


class Whole:
    """Plain tables, the loss of hidden states and of tokens, and all gradients."""

    def __init__(self, vocab, hidden, dtype, spread):
        generator = torch.Generator().manual_seed(0)

        def values(*shape):
            return torch.randn(shape, generator=generator, dtype=dtype)

        self.table, self.head, self.bias = values(vocab, hidden), values(vocab, hidden), values(vocab)
        self.rows = values(TOKENS, hidden) * spread
        self.slope = values(TOKENS, hidden)
        self.ids, self.targets = torch.randint(vocab, (2, TOKENS), generator=generator)
        self.ids[0] = self.targets[0] = vocab - 1
        self.ids[1], self.targets[2::4] = PADDING, IGNORED
        for parameter in (self.table, self.head, self.bias, self.rows):
            parameter.requires_grad_()
        (functional.embedding(self.ids, self.table, PADDING) * self.slope).sum().backward()
        self.logits = functional.linear(self.rows, self.head, self.bias)
        self.losses = functional.cross_entropy(self.logits, self.targets, reduction="none")
        (self.losses.sum() / TOKENS).backward()

    def value(self, name, shape, offsets, sizes):
        whole = {"table": self.table, "head": self.head, "head.bias": self.bias}[name.removesuffix(".weight")]
        return whole.detach()[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]


def compared(layout, vocab, hidden, precision="fp64", spread=1.0):
    """What this rank computes, and the same part of the whole, by name."""
    machine = Machine.of(grid_of(layout), precision=Precision.of(precision))
    grid, plain = machine.grid, Whole(vocab, hidden, machine.precision.master, spread)
    own = slice(*share(TOKENS, grid.size("z", "data"), grid.index("z", "data")))
    cut = slice(None)
    if machine.rows_cut:
        cut = slice(*share(TOKENS // grid.size("z", "data"), grid.size("x"), grid.index("x")))
    features = slice(*share(hidden, grid.size("y"), grid.index("y")))

    def part(whole):
        return whole[own][cut][:, features].contiguous()

    embedding = Embedding4D(machine, "table", vocab, hidden, padding_index=PADDING)
    head = Head4D(machine, "head", vocab, hidden, bias=True)
    for holding in (embedding.table.holding, head.table.holding, head.bias.holding):
        holding.fill(plain.value)
    found = embedding(plain.ids[own])
    found.backward(part(plain.slope))
    yield "embedded", found.detach(), part(functional.embedding(plain.ids, plain.table.detach()))
    rows = part(plain.rows.detach()).requires_grad_()
    logits = head(rows)
    losses = cross_entropy(machine, logits, plain.targets[own], vocab)
    (losses.sum() / TOKENS).backward()
    start, stop = head.table.placement.rows[0]
    yield "logits", logits.detach()[:, : stop - start], plain.logits.detach()[own, start:stop]
    yield "losses", losses.detach(), plain.losses.detach()[own]
    yield "rows", rows.grad, part(plain.rows.grad)
    for name, whole, table in (("table", plain.table, embedding.table), ("head", plain.head, head.table)):
        found = machine.collectives.all_reduce(table.shard.grad, "data").wait()
        wanted = torch.zeros_like(found)
        for one in table.placement.rectangles():
            (top, left), (height, width) = one.offsets, one.sizes
            block = whole.grad[top : top + height, left : left + width]
            wanted[one.start : one.start + block.numel()] = block.flatten()
        yield name, found, wanted
    found = machine.collectives.all_reduce(head.bias.values.grad, "z", "data").wait()
    yield "bias", found[: stop - start], plain.bias.grad[start:stop]


def check(layout, vocabularies, hidden):
    for vocab in vocabularies:
        for name, found, want in compared(layout, vocab, hidden):
            assert worst(found, want) <= EXACT, (vocab, name)


LAYOUTS = {
    "(2, 2, 2, 1)": layout_of((2, 2, 2, 1)),
    "(8, 1, 1, 1), tokens cut": layout_of((8, 1, 1, 1), sequence_parallel=True),
    "(1, 8, 1, 1)": layout_of((1, 8, 1, 1)),
    "(2, 2, 1, 2), tokens cut": layout_of((2, 2, 1, 2), sequence_parallel=True),
    "(2, 2, 1, 2), tokens cut, y inside": layout_of((2, 2, 1, 2), sequence_parallel=True, order=Z_INSIDE),
    "(2, 2, 2, 1), y inside": layout_of((2, 2, 2, 1), order=DATA_INSIDE),
    "(1, 2, 4, 1)": layout_of((1, 2, 4, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@on_ranks
def test_any_vocabulary(layout):
    """With few hidden features blocks are padded until they divide over z."""
    check(LAYOUTS[layout], VOCABULARIES, 6 if LAYOUTS[layout].y == 2 else 24)


@on_ranks
def test_great_logits_do_not_overflow():
    """Where they reach into the thousands, in fp32."""
    layout = layout_of((4, 2, 1, 1))
    parts = {name: (found, want) for name, found, want in compared(layout, 53, 24, "fp32", spread=300.0)}
    for name in ("losses", "rows"):
        torch.testing.assert_close(*parts[name], rtol=1e-4, atol=1e-4)
    assert parts["logits"][1].abs().max() > 1000.0
    assert 1000.0 < parts["losses"][0].max() < 1e5


@pytest.mark.parametrize("piece", [1, 130, 1000])
def test_a_loss_in_pieces_of_rows_is_pytorchs(monkeypatch, piece):
    """One row, two, and all at once; of the logits' columns the last eleven are padding."""
    monkeypatch.setattr(vocabulary, "WIDENED_LOGITS", piece)
    machine = Machine.of(Grid.of(Layout()), precision=Precision.of("fp64"))
    torch.manual_seed(0)
    logits = torch.randn(7, 64, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 52, IGNORED, 7, 7, 30, IGNORED])
    weights = torch.rand(7, dtype=torch.float64)
    wanted = functional.cross_entropy(logits[:, :53], targets, reduction="none")
    losses = cross_entropy(machine, logits, targets, 53)
    slope, want = (torch.autograd.grad((loss * weights).sum(), logits)[0] for loss in (losses, wanted))
    assert worst(losses.detach(), wanted.detach()) <= EXACT
    assert worst(slope, want) <= EXACT


def test_an_embeddings_gradients_are_added_in_place():
    """The second micro-batch adds to the first one's rows, and its gradient is nowhere as large as the table."""
    embedding = Embedding4D(Machine.of(Grid.of(Layout())), "table", 53, 24)
    embedding.table.shard.data.normal_()
    ids = torch.tensor([3, 3, 50])
    embedding(ids).sum().backward()
    accumulated = embedding.table.shard.grad
    embedding(ids).sum().backward()
    assert embedding.table.shard.grad is accumulated
    assert accumulated.view(53, 24).sum(1).nonzero().flatten().tolist() == [3, 50]
    assert accumulated.view(53, 24)[[3, 50]].eq(torch.tensor([[4.0], [2.0]])).all()


# Tokens that are not trained, and those that there are not ------------------------------------------


def counted(layout, ignored):
    """Collectives of a loss, both ways, with targets that count and with some that do not."""
    machine = Machine.of(grid_of(layout))
    head, rows = Head4D(machine, "head", 53, 24), torch.ones(8, 24 // layout.y, requires_grad=True)
    targets = torch.arange(8)
    targets[:ignored] = IGNORED
    with machine.collectives.logged() as log:
        losses = cross_entropy(machine, head(rows), targets, 53)
        losses.sum().backward()
    assert losses[:ignored].eq(0).all()
    assert losses[ignored:].gt(0).all()
    assert rows.grad[:ignored].eq(0).all()
    return log.issued


def test_ignored_targets_cost_nothing(ranks):
    layout = layout_of((2, 4, 1, 1))
    assert ranks.run(counted, layout, 0) == ranks.run(counted, layout, 3) == ranks.run(counted, layout, 8)


@pytest.mark.parametrize("grid", [(4, 2, 1, 1), (1, 1, 4, 2)], ids=str)
@on_ranks
def test_unknown_tokens_are_refused_before_anything_is_communicated(grid):
    layout = layout_of(grid)
    machine = Machine.of(grid_of(layout))
    embedding, head = Embedding4D(machine, "words", 53, 24), Head4D(machine, "head", 53, 24)
    logits = head(torch.ones(2, 24 // layout.y))
    with machine.collectives.logged() as log:
        for given in (-1, 53, 10**12):
            with pytest.raises(BadInput, match=f"words: ids: {given:,} is outside .* of 53 -- give 0 to 52"):
                embedding(torch.tensor([5, given]))
            with pytest.raises(BadInput, match=f"targets: {given:,} is outside .* or -100 for what is not to count"):
                cross_entropy(machine, logits, torch.tensor([IGNORED, given]), 53)
    assert not log.issued


def test_a_padding_index_outside_the_vocabulary_is_refused():
    machine = Machine.of(Grid.of(Layout()))
    with pytest.raises(BadInput, match="words: padding_index: 53 is outside the vocabulary of 53"):
        Embedding4D(machine, "words", 53, 24, padding_index=53)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [32_000, 50_304, 128_256, 50_257])
@pytest.mark.parametrize("grid", [grid for grid in EVERY if grid[0] * grid[1] > 1], ids=str)
@on_ranks
def test_vocabularies_of_real_models(grid, vocab):
    check(layout_of(grid), [vocab], 8)
    if grid[0] > 1 and grid[1] == 1:
        check(layout_of(grid, sequence_parallel=True), [vocab], 8)
