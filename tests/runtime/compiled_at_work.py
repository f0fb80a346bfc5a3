"""Blocks compiled and eager, on one rank of a grid."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import plain
import torch
from compare import Run, worst
from models import BATCH, SEQUENCE, gpt, llama
from ranks import grid_of
from torch._dynamo.testing import CompileCounterWithBackend

from weft.layout.step import StepOptions, step_collectives
from weft.model import Recipe
from weft.runtime.convert.parallelize import GPT2_PLAN, LLAMA_PLAN, parallelize
from weft.runtime.core.collectives import Collectives, Pending
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings, initialize
from weft.runtime.layers.blocks import compile_blocks
from weft.runtime.layers.vocabulary import cross_entropy
from weft.runtime.measure.trace import on_fake_ranks
from weft.runtime.run.flat import Flat
from weft.runtime.run.pipeline import StepPasses, build_stages

LAYERS = 3
CLOSE = 1e-10
LOSSES = 3
"""Graphs of the losses, which break on the CPU where ids are checked."""
MOST_GRAPHS = 12
"""Of blocks that break where layers communicate, however many blocks there are."""


@contextmanager
def ordered():
    """The issues and waits inside, in order."""
    events, issue, wait = [], Collectives._issued, Pending.wait

    def issued(self, kind, axes, full, *rest):
        events.append(("issue", kind, axes, full.numel()))
        return issue(self, kind, axes, full, *rest)

    def waited(self):
        if self._work is not None:
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


def counted(issues):
    """Without bytes, which are those of fp64 here."""
    return Counter((one.kind, one.axes, one.elements) for one in issues)


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
    recipe = Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32")
    stage = run.grid.coordinates["pipeline"]
    want = step_collectives(model, recipe, layout, stage=stage, options=StepOptions(clip=False))
    assert counted(log.issued) == counted(want.elements())
    error = run.gradient_error() if loss is None else max(run.gradient_error(), abs(loss - run.serial.loss))
    return error, events, counter.frame_count if counter else 0


def faked(layout, which, precision, backend):
    """As ``decoder``, on a rank beside others that are not there."""
    model = {"llama": llama, "gpt2": gpt}[which](layers=LAYERS)
    with on_fake_ranks(layout, 0, "cpu") as grid:
        machine = Machine.of(grid, precision=Precision.of(precision))
        stages, counter = build_stages(machine, model, sequence=SEQUENCE), counter_of(backend)
        held = holdings(stages)
        initialize(held, model, 0)
        if counter is not None:
            compile_blocks(stages[0], machine, counter)
        flat = Flat(machine, stages, held)
        passes = StepPasses(machine, stages, micro_batch=2, micro_batches=2, tokens=4 * SEQUENCE)
        ids = torch.arange(4 * SEQUENCE).view(4, -1) % 53
        with ordered() as events:
            for _ in range(2):
                with flat.step(2, loss="sum"):
                    passes.run(ids, ids)
    gradients = torch.cat([one.leaf.grad.detach().flatten() for one in flat.owned])
    return events, gradients, counter.frame_count if counter else 0


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
            with flat.step(1, loss="sum"):
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
    _check_graphs(layout, graphs, LOSSES * (layout.x * layout.y == 1 and layout.pipeline == 1))
    if layout.recompute == "selective" or layout.sequence_parallel or layout.pipeline > 1:
        return
    (values, events, graphs), (wanted, eagerly, _) = (converted(layout, which, one) for one in (backend, None))
    assert max(worst(one, other) for one, other in zip(values, wanted, strict=True)) < CLOSE
    assert events == eagerly
    _check_graphs(layout, graphs, 0)


def _check_graphs(layout, graphs, of_losses):
    """One for all blocks where no layer communicates."""
    assert graphs == 1 + of_losses if layout.world == 1 else 1 < graphs - of_losses <= MOST_GRAPHS
