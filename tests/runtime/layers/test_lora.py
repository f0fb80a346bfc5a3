"""Adapters and frozen parameters over grids against plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import models
import pytest

torch = pytest.importorskip("torch")

import serial  # noqa: E402
from compare import Run, pieces, tokens, worst  # noqa: E402
from models import BATCH, SEQUENCE, layout_of  # noqa: E402
from ranks import grid_of  # noqa: E402

from weft.errors import BadInput  # noqa: E402
from weft.layout.spec import Layout  # noqa: E402
from weft.model import Job, Recipe  # noqa: E402
from weft.model.spec import BlockRun, MixtureOfExperts  # noqa: E402
from weft.runtime.core.grid import Grid  # noqa: E402
from weft.runtime.core.machine import Machine  # noqa: E402
from weft.runtime.core.parameters import holdings  # noqa: E402
from weft.runtime.core.precision import Precision  # noqa: E402
from weft.runtime.layers.lora import LoRA  # noqa: E402
from weft.runtime.run.data import markov_corpus  # noqa: E402
from weft.runtime.run.optimizer import AdamSettings  # noqa: E402
from weft.runtime.run.partial import add_adapters, freeze  # noqa: E402
from weft.runtime.run.pipeline import build_stages  # noqa: E402
from weft.runtime.run.session import RunSettings, Session  # noqa: E402

EXACT = 1e-12
MODEL = models.llama()
LORA = LoRA(rank=3, alpha=6.0)


def narrow_matrices(held_shapes):
    """Random values of both matrices by name."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: (0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for name, shape in sorted(held_shapes.items())
    }


def merged(parameters, added):
    """Parameters with what the adapters add: of each part of a fused layer its own product."""
    found = {name: one.detach() for name, one in parameters.items()}
    for layer in {name.rsplit(".", 3)[0] for name in added}:
        count = sum(name.startswith(f"{layer}.") for name in added) // 2
        products = [added[f"{layer}.{i}.lora_b.weight"] @ added[f"{layer}.{i}.lora_a.weight"] for i in range(count)]
        found[f"{layer}.weight"] = found[f"{layer}.weight"] + LORA.scale * torch.cat(products)
    return found


class Adapted(Run):
    """A rank's model with adapters."""

    def prepare(self):
        add_adapters(self.machine, self.stages, LORA)
        held = [one for one in holdings(self.stages) if "lora" in one.name]
        self.added = narrow_matrices({one.name: one.placement.shape for one in held})

    def whole(self, name, shape, offsets, sizes):
        if name not in self.added:
            return super().whole(name, shape, offsets, sizes)
        window = tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
        return self.added[name].detach()[window]


def adapted_step(layout):
    """This rank's errors of loss and gradients, and names of what it trains."""
    run = Adapted(layout, MODEL)
    ids, targets = tokens(MODEL)
    loss = serial.loss(merged(run.serial.parameters, run.added), MODEL, ids, targets)
    loss.backward()
    errors = [abs(run.step() - float(loss.detach()))]
    names = set()
    for name, window, values in pieces(run.flat, lambda leaf: leaf.grad):
        names.add(name)
        errors.append(worst(values, run.added[name].grad[window]))
    norm = torch.cat([one.grad.flatten() for one in run.added.values()]).norm()
    return max(*errors, abs(float(run.flat.norm()) - float(norm))), names == set(run.added)


@pytest.mark.parametrize(
    "layout",
    [
        layout_of((2, 2, 2, 1)),
        layout_of((4, 1, 1, 2), sequence_parallel=True),
        layout_of((1, 2, 2, 2), recompute="full"),
    ],
    ids=["x2y2z2", "x4data2-sp", "y2z2data2-recompute"],
)
def test_gradients_of_adapters_are_those_of_their_products(ranks, layout):
    for error, only_adapters in ranks.run(adapted_step, layout):
        assert error <= EXACT
        assert only_adapters


def frozen_step(layout):
    run = Run(layout, MODEL, prepare=lambda held: freeze(held, ("embedding", r"norm1", r"blocks\.0\.qkv")))
    error = abs(run.step() - run.serial.loss)
    names = {name for name, _, _ in run.gradients()}
    return max(error, run.gradient_error()), sorted(set(serial.shapes(MODEL)) - names)


def test_what_is_frozen_gets_no_gradient_and_the_rest_its_own(ranks):
    frozen = ["blocks.0.norm1.weight", "blocks.0.qkv.weight", "blocks.1.norm1.weight", "embedding.weight"]
    for error, missing in ranks.run(frozen_step, layout_of((2, 2, 2, 1))):
        assert error <= EXACT
        assert missing == frozen


def session(grid, precision="fp64", model=MODEL, **settings):
    job = Job(model=model, recipe=Recipe(global_batch=BATCH, sequence=SEQUENCE, precision="fp32"))
    corpus = markov_corpus(MODEL.vocab, tokens=2000, seed=0)
    adam = AdamSettings(rate=1e-2)
    return Session(job, grid, RunSettings(adam=adam, precision=Precision.of(precision), **settings), corpus)


def run_on(layout, folder, before=None):
    """Losses of two steps on from a checkpoint, and the collectives of the second."""
    running = session(grid_of(layout), lora=LORA, frozen=(r"blocks\.0\..*lora_a",))
    if before is not None:
        running.load(Path(before))
    first = running.step().loss
    with running.machine.collectives.logged() as log:
        second = running.step().loss
    running.save(Path(folder))
    return (first, second), sorted({(one.kind, one.axes) for one in log.issued})


def test_a_run_goes_on_over_other_grids(ranks, tmp_path):
    """Frozen matrices are in the checkpoint, without moments; nothing of theirs is scattered or summed."""
    alone = session(Grid.of(Layout(micro_batch=BATCH)), lora=LORA, frozen=(r"blocks\.0\..*lora_a",))
    want = [alone.step().loss for _ in range(4)]
    found = ranks.run(run_on, layout_of((2, 2, 2, 1)), str(tmp_path / "one"))
    for losses, issued in found:
        assert losses == pytest.approx(want[:2], rel=1e-10)
        assert ("reduce-scatter", ("z",)) not in issued
    for losses, _ in ranks.run(run_on, layout_of((1, 2, 1, 4)), str(tmp_path / "two"), str(tmp_path / "one")):
        assert losses == pytest.approx(want[2:], rel=1e-10)
    assert want[3] < want[0]
    plain = session(Grid.of(Layout(micro_batch=BATCH)))
    with pytest.raises(BadInput, match="was trained with"):
        plain.load(tmp_path / "two")


def staged(layout):
    running = session(grid_of(layout), lora=LORA)
    return [running.step().gradient_norm for _ in range(2)]


def test_adapters_over_pipeline_stages(ranks):
    """The first stage's embedding is frozen, and its output still has a gradient."""
    alone = session(Grid.of(Layout(micro_batch=BATCH)), lora=LORA)
    want = [alone.step().gradient_norm for _ in range(2)]
    for norms in ranks.run(staged, Layout(pipeline=2, x=2, z=2, micro_batch=2)):
        assert norms == pytest.approx(want, rel=1e-9)


def frozen_experts(layout):
    block = MODEL.kinds[0]
    moe = MixtureOfExperts(experts=4, top_k=2, expert=block.feed_forward)
    model = replace(MODEL, runs=(BlockRun(block=replace(block, feed_forward=moe), count=2),))
    running = session(grid_of(layout), model=model, frozen=("expert",))
    with running.machine.collectives.logged() as log:
        norm = running.step().gradient_norm
    frozen = [one for one in running.flat.frozen if "expert" in one.name]
    scattered = [one for one in log.issued if one.kind == "reduce-scatter" and "expert_shard" in one.axes]
    return norm, len(frozen), all(one.parameter.grad is None for one in frozen), scattered


def test_frozen_experts_give_no_gradient(ranks):
    found = ranks.run(frozen_experts, Layout(z=2, data=4, expert=2, micro_batch=2))
    assert len({round(norm, 9) for norm, *_ in found}) == 1
    for _, count, bare, scattered in found:
        assert count == 4
        assert bare
        assert not scattered


def test_frozen_matrices_are_held_in_the_format_of_gathering():
    running = session(Grid.of(Layout(micro_batch=BATCH)), precision="bf16", lora=LORA)
    kinds = {one.name: one.parameter.dtype for one in holdings(running.stages)}
    assert kinds["blocks.0.qkv.weight"] == torch.bfloat16
    assert kinds["blocks.0.qkv.0.lora_a.weight"] == torch.float32
    before = running.stages[0].blocks[0].attention.qkv.weight.shard.clone()
    running.step()
    assert torch.equal(running.stages[0].blocks[0].attention.qkv.weight.shard, before)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(BadInput, match="rank 0"):
        LoRA(rank=0, alpha=1.0)
    stages = build_stages(Machine.of(Grid.of(Layout())), MODEL, sequence=SEQUENCE)
    with pytest.raises(BadInput, match=r"no layer is called \('q',\).*fc1, fc2, proj, qkv"):
        add_adapters(Machine.of(Grid.of(Layout())), stages, LoRA(rank=2, alpha=1.0, targets=("q",)))
    with pytest.raises(BadInput, match="'nothing' is found in no name"):
        session(Grid.of(Layout(micro_batch=BATCH)), frozen=("nothing",))
    with pytest.raises(BadInput, match="is no regular expression"):
        session(Grid.of(Layout(micro_batch=BATCH)), frozen=("(",))
    with pytest.raises(BadInput, match="nothing is left to train"):
        session(Grid.of(Layout(micro_batch=BATCH)), frozen=(".",))
