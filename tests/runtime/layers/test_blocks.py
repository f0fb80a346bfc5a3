"""torch.compile by block: values, collectives and their order are those of the same blocks eager."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from compiled_at_work import CLOSE, MOST_GRAPHS, compared, faked

from weft.errors import Unsupported
from weft.layout.spec import Layout
from weft.model import Recipe, resolve_job
from weft.runtime.core.grid import Grid
from weft.runtime.run.data import markov_corpus
from weft.runtime.run.ranks import run_ranks
from weft.runtime.run.session import RunSettings, Session

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def forgotten():
    """Graphs, and what they hold, end with a test."""
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["llama", "gpt2"])
def test_a_block_is_one_graph(which):
    compared(Layout(micro_batch=4), which)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_recomputed_is_compiled(recompute):
    compared(Layout(micro_batch=4, recompute=recompute), "llama")


@pytest.mark.slow_but(1)
@pytest.mark.parametrize(
    ("which", "layout", "precision"),
    [
        ("llama", Layout(x=2, y=2), "fp64"),
        ("gpt2", Layout(x=2, y=2), "bf16"),
        ("gpt2", Layout(x=2, z=2, data=2, sequence_parallel=True), "fp64"),
    ],
    ids=["x2y2", "x2y2-bf16", "x2z2data2-sp"],
)
def test_collectives_keep_their_order(which, layout, precision):
    """On one rank beside others that are not there; what sums and scatters give has no values then."""
    (events, gradients, graphs), (eagerly, wanted, _) = (
        faked(layout, which, precision, backend) for backend in ("aot_eager", None)
    )
    assert 1 < graphs <= MOST_GRAPHS
    assert events == eagerly
    assert len(events) > 100
    if precision == "fp64" and layout.z == 1:
        assert (gradients - wanted).abs().max() < CLOSE


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles with g++")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_of_inductor():
    compared(Layout(micro_batch=4), "llama", "inductor")


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        Layout(x=2, micro_batch=4),
        Layout(y=2, micro_batch=4),
        Layout(z=2, micro_batch=4),
        Layout(x=2, y=2, micro_batch=4),
        Layout(x=2, z=2, micro_batch=4, sequence_parallel=True, recompute="full"),
        Layout(x=2, pipeline=2, micro_batch=4, recompute="selective"),
    ],
    ids=["x2", "y2", "z2", "x2y2", "x2z2-sp", "x2p2"],
)
@pytest.mark.parametrize("which", ["llama", "gpt2"])
def test_over_grids(layout, which):
    run_ranks(compared, (layout, which), layout.world)


@pytest.mark.slow
def test_a_run_is_compiled():
    """The losses are those of an eager run, training and not."""
    job = replace(resolve_job("tiny-llama"), recipe=Recipe(global_batch=2, sequence=8, precision="fp32"))
    corpus, losses = markov_corpus(256, tokens=2000, seed=0), []
    for backend in (None, "aot_eager"):
        grid = Grid.of(Layout(micro_batch=2, recompute="full", recompute_layers=1))
        session = Session(job, grid, RunSettings(compiled=backend), corpus, corpus)
        losses.append([session.step().loss, session.step().loss, session.evaluate(1)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_what_is_not_compiled_is_refused_by_name():
    job, corpus = resolve_job("tiny-mixtral"), markov_corpus(256, tokens=2000, seed=0)
    with pytest.raises(Unsupported, match=r"model: blocks with experts \(shapes depend on data\) are not compiled"):
        Session(job, Grid.of(Layout(micro_batch=16)), RunSettings(compiled="aot_eager"), corpus)
