"""What plain models communicate on a grid: as logged, as PyTorch is asked for it, and as predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import plain
import pytest
import torch
from cases import CASES
from ranks import grid_of

from weft.layout.spec import Layout
from weft.layout.step import Issue, StepOptions, step_collectives
from weft.model import Attention, Block, BlockRun, FeedForward, Model, Recipe
from weft.runtime.convert.parallelize import GPT2_PLAN, LLAMA_PLAN, easy_plan, parallelize
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import holdings
from weft.runtime.layers.vocabulary import cross_entropy
from weft.runtime.measure.trace import trace_step
from weft.runtime.run.flat import Flat

VOCAB, BATCH, SEQUENCE, LAYERS = 53, 16, 6, 2
GRIDS = (
    Layout(x=2, y=2, z=2),
    Layout(y=2, z=2, data=2, zero=1),
    Layout(x=4, z=2, zero=0),
    Layout(x=2, data=4, zero=0),
    Layout(x=2, y=2, z=2, recompute="full", recompute_layers=1),
    Layout(x=2, y=2, data=2, zero=0, recompute="full"),
)
MODELS = {"llama": (plain.LlamaForCausalLM, LLAMA_PLAN), "gpt2": (plain.GPT2LMHeadModel, GPT2_PLAN)}


def described(which):
    """The model as Weft describes it."""
    if which == "llama":
        block = Block(
            hidden=16, attention=Attention(heads=8, kv_heads=4, head_dim=4), feed_forward=FeedForward(intermediate=24)
        )
        return Model(name="llama", hidden=16, vocab=VOCAB, runs=(BlockRun(block=block, count=LAYERS),))
    block = Block(
        hidden=16,
        attention=Attention(heads=4, kv_heads=4, head_dim=4, qkv_bias=True, out_bias=True, rotary=False),
        feed_forward=FeedForward(intermediate=64, gated=False, bias=True),
        norm_bias=True,
    )
    runs = (BlockRun(block=block, count=LAYERS),)
    return Model(name="gpt2", hidden=16, vocab=VOCAB, runs=runs, positions=8, norm_bias=True, tied_embeddings=True)


def converted(grid, which):
    """A model with what trains it."""
    machine, (make, plan) = Machine.of(grid), MODELS[which]
    model = parallelize(make(), machine, plan)
    return model, Flat(machine, model, holdings(model))


def step_of(model, flat):
    """Both ways over two micro-batches, as a training loop does."""
    machine = flat.machine
    own = BATCH // machine.grid.size("z", "data") // 2
    ids = torch.zeros(own, SEQUENCE, dtype=torch.int64, device=machine.grid.device)
    with flat.step(2, loss="sum"):
        for _ in range(2):
            out = model(ids)
            logits = out if isinstance(out, torch.Tensor) else out.logits
            cross_entropy(machine, logits.flatten(0, 1), ids.flatten(), VOCAB).sum().backward()
    flat.clip(1.0)
    flat.publish()


def logged(layout, which):
    model, flat = converted(grid_of(layout), which)
    step_of(model, flat)
    with flat.machine.collectives.logged() as log:
        step_of(model, flat)
    return Counter(log.issued)


def predicted(layout, which):
    recipe = Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32")
    own = BATCH // (layout.z * layout.data) // 2
    options = StepOptions(separate=which == "llama", loss=False)
    return step_collectives(described(which), recipe, replace(layout, micro_batch=own), options=options)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("layout", GRIDS, ids=str)
@pytest.mark.parametrize("which", MODELS)
def test_plain_models_communicate_what_is_predicted(ranks, which, layout):
    wanted = predicted(layout, which)
    for issued in ranks.run(logged, layout, which):
        assert issued == wanted
    assert trace_step(layout, lambda grid: step_of(*converted(grid, which)), rank=3) == wanted


def test_a_block_sums_over_x_four_times(ranks):
    """As Weft's own decoder: both ways before attention and before the feed-forward layer."""
    found = ranks.run(logged, Layout(x=4, data=2, zero=0), "llama")[0]
    rows = BATCH // 2 // 2 * SEQUENCE
    sums = sum(n for issue, n in found.items() if (issue.axes, issue.elements) == (("x",), rows * 16))
    embedding_and_head = 2
    assert sums == 2 * (4 * LAYERS + embedding_and_head)


def easy_step(grid, make, rows, micro_batches=1):
    """A step of a plain model in easy mode; what was logged."""
    machine, plain_model = Machine.of(grid), make()
    model = parallelize(plain_model, machine, easy_plan(plain_model))
    flat = Flat(machine, model, holdings(model))
    with machine.collectives.logged() as log:
        with flat.step(micro_batches, loss="sum"):
            for _ in range(micro_batches):
                out = model(rows.to(grid.device))
                logits = out if isinstance(out, torch.Tensor) else out.logits
                logits.float().square().mean().backward()
        flat.clip(1.0)
        flat.publish()
    return Counter(log.issued)


IDS = torch.zeros(2, SEQUENCE, dtype=torch.int64)
EASY = {
    "llama": (lambda: plain.LlamaForCausalLM(vocab=56), IDS),
    "gpt2": (plain.GPT2LMHeadModel, IDS),
    "mlp": (CASES["mlp, easy"].make, torch.ones(3, 24)),
    "images": (CASES["images, easy"].make, torch.ones(2, 8, 6, 6)),
}
EASY_GRIDS = (
    Layout(x=2, y=2, data=2, zero=1),
    Layout(x=2, y=2, z=2),
    Layout(x=4, z=2, zero=0),
    Layout(y=4, data=2, zero=0),
    Layout(x=2, data=4, zero=1),
)


def logged_easily(layout, which):
    return easy_step(grid_of(layout), *EASY[which], micro_batches=2)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("layout", EASY_GRIDS, ids=str)
@pytest.mark.parametrize("which", EASY)
def test_easy_mode_issues_the_same_on_every_rank_as_traced(ranks, which, layout):
    """What the exchange around one layer is, is in ``test_easy``."""
    make, rows = EASY[which]
    traced = trace_step(layout, lambda grid: easy_step(grid, make, rows, micro_batches=2), rank=5)
    for found in ranks.run(logged_easily, layout, which):
        assert found == traced


def test_layers_of_one_input_exchange_it_once_and_sum_its_gradient_once():
    """Queries, keys and values; gate and up: both ways in two blocks, and the head, in each of two micro-batches."""
    tokens, hidden, micro_batches = 2 * SEQUENCE, 16, 2
    layout = Layout(x=2, y=2, data=2, zero=1)
    traced = trace_step(layout, lambda grid: easy_step(grid, *EASY["llama"], micro_batches), rank=5)
    inputs = 2 * LAYERS + 1
    assert traced[Issue("all-to-all", ("y",), tokens * hidden, 4)] == 2 * inputs * micro_batches
    assert traced[Issue("reduce-scatter", ("x",), tokens * hidden * layout.x, 4)] == inputs * micro_batches
