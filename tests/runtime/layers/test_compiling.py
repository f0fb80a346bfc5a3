"""torch.compile by block: one graph each, the values, the collectives and their order of the same blocks eager."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

import plain  # noqa: E402
from compare import Run, worst  # noqa: E402
from models import gpt, llama  # noqa: E402
from ranks import grid_of  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from weft.errors import Unsupported  # noqa: E402
from weft.layout.spec import Layout  # noqa: E402
from weft.layout.step import step_collectives  # noqa: E402
from weft.model import Recipe, resolve_job  # noqa: E402
from weft.runtime.convert.parallelize import GPT2_PLAN, LLAMA_PLAN, parallelize  # noqa: E402
from weft.runtime.core.collectives import Collectives, Pending  # noqa: E402
from weft.runtime.core.grid import Grid  # noqa: E402
from weft.runtime.core.machine import Machine  # noqa: E402
from weft.runtime.core.parameters import holdings  # noqa: E402
from weft.runtime.core.precision import Precision  # noqa: E402
from weft.runtime.layers.compiling import compile_blocks  # noqa: E402
from weft.runtime.layers.vocabulary import cross_entropy  # noqa: E402
from weft.runtime.run.data import markov_corpus  # noqa: E402
from weft.runtime.run.flat import Flat  # noqa: E402
from weft.runtime.run.ranks import run_ranks  # noqa: E402
from weft.runtime.run.session import RunSettings, Session  # noqa: E402

LAYERS = 3
CLOSE = 1e-10
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@contextmanager
def ordered():
    """The issues and waits inside, in order."""
    events, issue, wait = [], Collectives._issued, Pending.wait

    def issued(self, kind, axes, full, *rest):
        events.append(("issue", kind, axes, full.numel()))
        return issue(self, kind, axes, full, *rest)

    def waited(self):
        if self.under_way:
            events.append(("wait", self._axes, self._result.numel()))
        return wait(self)

    Collectives._issued, Pending.wait = issued, waited
    try:
        yield events
    finally:
        Collectives._issued, Pending.wait = issue, wait


def counter_of(backend):
    torch._dynamo.reset()
    return None if backend is None else CompileCounterWithBackend(backend)


def decoder(layout, model, backend):
    """What three steps of Weft's decoder give: worst error, the order of collectives, graphs."""
    run, counter = Run(layout, model), counter_of(backend)
    if counter is not None:
        for stage in run.stages:
            compile_blocks(stage, run.machine, counter)
    with ordered() as events:
        loss = [run.step(seed) for seed in (1, 2, 0)][-1]
    with run.machine.collectives.logged() as log:
        run.step()
    recipe = Recipe(global_batch=layout.micro_batch * run.micro_batches * layout.data_parallel, sequence=6)
    if not layout.data > 1:
        want = step_collectives(model, recipe, layout, stage=run.grid.coordinates["pipeline"])
        passes = {"pipeline"}
        assert Counter(one for one in log.issued if not passes & set(one.axes)) <= want
    error = run.gradient_error() if loss is None else max(run.gradient_error(), abs(loss - run.serial.loss))
    return error, events, counter.frame_count if counter else 0


def converted(layout, which, backend):
    """What a plain model converted gives: losses and gradients, the order of collectives, graphs."""
    make, plan = {"llama": (plain.LlamaForCausalLM, LLAMA_PLAN), "gpt2": (plain.GPT2LMHeadModel, GPT2_PLAN)}[which]
    model, machine = make().double(), Machine.of(grid_of(layout), precision=Precision.of("fp64"))
    plain.randomize(model, 0)
    model, counter = parallelize(model, machine, plan), counter_of(backend)
    if counter is not None:
        compile_blocks(model, machine, counter)
    flat, found = Flat(machine, model, holdings(model)), []
    ids = torch.arange(24).view(4, 6) * 7 % 53
    with ordered() as events:
        for _ in range(3):
            with flat.step(1):
                out = model(ids)
                logits = out if isinstance(out, torch.Tensor) else out.logits
                loss = cross_entropy(machine, logits.flatten(0, 1), ids.flatten(), 53).mean()
                loss.backward()
            found.append(loss.detach())
    gradients = [one.leaf.grad.detach().clone() for one in flat.owned]
    return [*found, *gradients], events, counter.frame_count if counter else 0


def compared(layout, which, backend="aot_eager"):
    """Of a rank: both ways of building models agree compiled and eager, in values and in the order of collectives."""
    model = {"llama": llama, "gpt2": gpt}[which](layers=LAYERS)
    (error, events, graphs), (_, eagerly, _) = (decoder(layout, model, one) for one in (backend, None))
    assert error < CLOSE
    assert events == eagerly
    assert graphs == 1, "one graph for all blocks"
    if layout.recompute != "none" or layout.sequence_parallel or layout.pipeline > 1:
        return
    (values, events, graphs), (wanted, eagerly, _) = (converted(layout, which, one) for one in (backend, None))
    assert max(worst(one, other) for one, other in zip(values, wanted, strict=True)) < CLOSE
    assert events == eagerly
    assert graphs == 1


@pytest.mark.parametrize("which", ["llama", "gpt2"])
def test_a_block_is_one_graph(which):
    compared(Layout(micro_batch=4), which)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_recomputed_is_compiled(recompute):
    compared(Layout(micro_batch=4, recompute=recompute), "llama")


@pytest.mark.slow
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


def test_what_is_not_compiled_is_refused_by_name():
    job, corpus = resolve_job("tiny-mixtral"), markov_corpus(256, tokens=2000, seed=0)
    with pytest.raises(Unsupported, match=r"model: blocks with experts \(shapes depend on data\) are not compiled"):
        Session(job, Grid.of(Layout(micro_batch=16)), RunSettings(compiled="aot_eager"), corpus)
