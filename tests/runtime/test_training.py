"""Sessions on eight ranks against AdamW on one; checkpoints that go on on other grids."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import models
import pytest
import serial
import torch
from compare import worst
from models import BATCH, MORE, SEQUENCE, layout_of
from ranks import grid_of

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.model.job import Job, Recipe
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Precision
from weft.runtime.layers.decoder import Details
from weft.runtime.run.data import Batches, markov_corpus
from weft.runtime.run.optimizer import AdamSettings
from weft.runtime.run.session import RunSettings, Session

MODELS = {
    "gpt": replace(models.gpt(layers=1), head_bias=True),
    "tied": models.gpt(layers=1, tied=True),
    "llama": models.llama(),
    "stages": models.gpt(layers=2, tied=True),
    "chunks": models.gpt(layers=4, tied=True),
    "mixture": models.mixture(shared=True),
}
STEPS = 20
ADAM = AdamSettings(rate=1e-2, warmup=5, steps=15, clip=1.2, weight_decay=0.1)
SEED = 3
DEALT = (
    Layout(context=2, z=2, data=2, expert=2, micro_batch=4),
    Layout(x=2, z=2, data=2, expert=4, micro_batch=2, sequence_parallel=True, zero=0),
)
STAGES = Layout(pipeline=2, z=2, data=2, micro_batch=2)


def corpus(model):
    return markov_corpus(model.vocab, tokens=4000, seed=1)


def session(grid, name, **settings):
    model = MODELS[name]
    job = Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))
    chosen = RunSettings(**{"seed": SEED, "adam": ADAM, "precision": Precision.of("fp64"), **settings})
    return Session(job, grid, chosen, corpus(model))


def curve(running, count):
    """Losses and norms; losses are None but on the last stage."""
    results = [running.step() for _ in range(count)]
    last = running.stages[-1].stage.last
    return [(result.loss if last else None, result.gradient_norm) for result in results]


def train(layout, name, count):
    return curve(session(grid_of(layout), name), count)


@cache
def expected(name, count=STEPS):
    model = MODELS[name]
    batches = Batches(corpus=corpus(model), sequence=SEQUENCE, rows=BATCH, seed=SEED, vocabulary=model.vocab)
    return serial.trained(model, batches, ADAM, seed=SEED, steps=count)


def assert_curve(found, wanted, bound):
    """Of every rank that has the loss, one at least; norms of all."""
    assert any(rank[0][0] is not None for rank in found)
    losses, norms = zip(*wanted, strict=True)
    errors = [
        max(abs(has - want) for (has, _), want in zip(rank, losses, strict=True))
        for rank in found
        if rank[0][0] is not None
    ]
    wrong = [max(abs(has / want - 1) for (_, has), want in zip(rank, norms, strict=True)) for rank in found]
    print(max(errors), max(wrong))
    assert max(errors) <= bound
    assert max(wrong) <= 1e-8


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("gpt", layout_of((2, 2, 2, 1), micro_batches=1)),
        pytest.param("gpt", layout_of((1, 2, 2, 2)), marks=pytest.mark.slow),
        ("gpt", layout_of((1, 2, 1, 4), zero=2)),
        ("gpt", layout_of((2, 1, 2, 2), micro_batches=1, sequence_parallel=True, zero=0)),
    ],
)
def test_twenty_steps_are_those_of_adamw(ranks, name, layout):
    """Clipped, with warm-up and decay, matrices alone decayed, the hidden features of LayerNorm split."""
    wanted, _ = expected(name)
    assert min(norm for _, norm in wanted) < ADAM.clip < max(norm for _, norm in wanted)
    assert wanted[-1][0] < wanted[0][0] - 0.5, "it learns"
    assert_curve(ranks.run(train, layout, name, STEPS), wanted, 1e-10)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    ("layout", "steps"),
    [(DEALT[0], ADAM.warmup + 3), *((layout, STEPS) for layout in DEALT)],
    ids=["few steps", "context, z, data", "x, z, data"],
)
def test_experts_learn_as_on_one_rank(ranks, layout, steps):
    """Past the warm-up at least."""
    assert_curve(ranks.run(train, layout, "mixture", steps), expected("mixture", steps)[0], 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied", "llama"])
@pytest.mark.parametrize("grid", MORE, ids=str)
def test_twenty_steps_on_more_grids(ranks, grid, name):
    sharded = grid[0] > 1 and grid[1] == 1
    layout = layout_of(grid, sequence_parallel=sharded, micro_batches=1)
    assert_curve(ranks.run(train, layout, name, STEPS), expected(name)[0], 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [STAGES, replace(STAGES, virtual_stages=2, schedule="interleaved"), Layout(pipeline=4, x=2, micro_batch=4)],
    ids=["2 stages", "2 stages, 2 chunks", "4 stages"],
)
def test_twenty_steps_in_stages(ranks, layout):
    """Both ends of the pipeline have the embedding."""
    assert_curve(ranks.run(train, layout, "chunks", STEPS), expected("chunks")[0], 1e-10)


def test_one_rank_needs_no_process_group():
    running = session(Grid.of(Layout(micro_batch=4)), "llama")
    wanted, parameters = expected("llama", 5)
    assert_curve([curve(running, 5)], wanted, 1e-12)
    assert running.steps_done == 5
    values = {piece.name: piece.values for piece in running.optimizer.pieces()}
    for name, whole in parameters.items():
        assert worst(values[name].view_as(whole), whole.detach()) <= 1e-12


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(BadInput, match=r"global batch 16, micro-batch 3 \* dp 1 = 3"):
        session(Grid.of(Layout(micro_batch=3)), "gpt")


def test_layouts_that_break_a_rule_are_refused_with_the_words_of_plans():
    with pytest.raises(BadInput, match="needs tp > 1 and y = 1: tp = 1, y = 1"):
        session(Grid.of(Layout(micro_batch=4, sequence_parallel=True)), "gpt")
    with pytest.raises(Unsupported, match="offloading -- set offload_optimizer=false"):
        session(Grid.of(Layout(micro_batch=4, offload_optimizer=True)), "gpt")


def test_a_run_that_diverges_stops_before_its_update():
    running = session(Grid.of(Layout(micro_batch=4)), "gpt")
    running.step()
    for value in (float("nan"), float("inf")):
        running.flat.owned[0].leaf.data[0] = value
        before = [piece.values.clone() for piece in running.optimizer.pieces()]
        with pytest.raises(BadInput, match=r"step 2: the loss is nan -- .* a lower rate"):
            running.step()
        after = [piece.values for piece in running.optimizer.pieces()]
        for one, other in zip(before, after, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        assert running.steps_done == 1


def lose(layout):
    """What this rank says where the last stage's loss alone is infinite."""
    running = session(grid_of(layout), "stages")
    run = running._passes.run
    running._passes.run = lambda *given: run(*given) + (torch.inf if running._passes.has_head else 0.0)
    with pytest.raises(BadInput) as stopped:
        running.step()
    return running.steps_done, str(stopped.value)


def test_an_infinite_loss_stops_every_stage_before_its_update(ranks):
    found = ranks.run(lose, Layout(pipeline=2, x=2, z=2, micro_batch=4))
    assert {done for done, _ in found} == {0}
    assert sum("step 1: the loss is inf" in text for _, text in found) == 4
    assert sum("step 1: the norm of the gradients is nan" in text for _, text in found) == 4


# Padding ------------------------------------------------------------------------------------------


# Checkpoints --------------------------------------------------------------------------------------


def save(layout, name, folder, before, after):
    """Some steps, a checkpoint, and the steps that follow."""
    running = session(grid_of(layout), name)
    curve(running, before)
    running.save(Path(folder))
    return curve(running, after)


def resume(layout, name, folder, after):
    running = session(grid_of(layout), name)
    state = running.load(Path(folder))
    return state.step, curve(running, after)


FLAT = layout_of((2, 2, 2, 1), micro_batches=1)
WAYS = {
    "from (2, 2, 2, 1)": (
        "stages",
        FLAT,
        [
            layout_of((1, 1, 4, 2), micro_batches=1),
            layout_of((8, 1, 1, 1), micro_batches=1, sequence_parallel=True),
            STAGES,
        ],
    ),
    "experts": ("mixture", DEALT[0], [DEALT[1], Layout(data=8, expert=8, micro_batch=1)]),
    "from stages": ("stages", STAGES, [layout_of((1, 2, 2, 2), zero=0)]),
    "between stages": (
        "chunks",
        replace(STAGES, virtual_stages=2, schedule="interleaved"),
        [Layout(pipeline=4, x=2, micro_batch=4), STAGES, FLAT],
    ),
}


@pytest.mark.parametrize(
    "way", [name if name == "from stages" else pytest.param(name, marks=pytest.mark.slow) for name in WAYS]
)
def test_a_run_goes_on_on_another_grid(ranks, way, tmp_path):
    """With the next losses of the run that was never interrupted, on one rank too."""
    name, layout, others = WAYS[way]
    before, after, folder = 2, 2, tmp_path / "checkpoint"
    wanted = expected(name, before + after)[0][before:]
    assert_curve(ranks.run(save, layout, name, str(folder), before, after), wanted, 1e-12)
    for other in others:
        found = ranks.run(resume, other, name, str(folder), after)
        assert {step for step, _ in found} == {before}
        assert_curve([results for _, results in found], wanted, 1e-12)
    alone = session(Grid.of(Layout(micro_batch=8)), name)
    assert alone.load(folder).step == before
    assert_curve([curve(alone, after)], wanted, 1e-12)


def test_a_checkpoint_of_another_run_fills_nothing(tmp_path):
    grid = Grid.of(Layout(micro_batch=16))
    session(grid, "gpt").save(tmp_path / "saved")
    other = session(grid, "gpt", seed=4)
    before = [piece.values.clone() for piece in other.optimizer.pieces()]
    with pytest.raises(BadInput, match="was trained with seed = 3, this run has 4 -- give the same --seed"):
        other.load(tmp_path / "saved")
    single = Precision.of("fp32")
    with pytest.raises(BadInput, match=r"precision\.master = float64, .* float32 -- give the same --precision"):
        session(grid, "gpt", precision=single).load(tmp_path / "saved")
    with pytest.raises(BadInput, match=r"with details.rotary_theta = 10000.0, this run has 5"):
        session(grid, "gpt", details=Details(rotary_theta=5.0)).load(tmp_path / "saved")
    for one, piece in zip(before, other.optimizer.pieces(), strict=True):
        assert torch.equal(one, piece.values)
    slower = replace(ADAM, rate=1e-3, steps=30)
    before = session(grid, "gpt", adam=slower).load(tmp_path / "saved").adam
    assert before == ADAM
    assert slower.changes_from(before) == [
        "rate 0.01 -> 0.001",
        "steps 15 -> 30 (where the cosine ends: other rates from here on)",
    ]
