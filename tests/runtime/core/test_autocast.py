"""``torch.autocast`` around models on a grid: products in its format, as around plain ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import plain  # noqa: E402
from compare import pieces  # noqa: E402
from ranks import grid_of  # noqa: E402
from torch.nn import functional  # noqa: E402

from weft.layout.spec import Layout  # noqa: E402
from weft.runtime.convert.parallelize import GPT2_PLAN, LLAMA_PLAN, easy_plan, parallelize  # noqa: E402
from weft.runtime.core.machine import Machine  # noqa: E402
from weft.runtime.core.parameters import holdings  # noqa: E402
from weft.runtime.layers.linear import Linear4D  # noqa: E402
from weft.runtime.layers.vocabulary import cross_entropy  # noqa: E402
from weft.runtime.run.flat import Flat  # noqa: E402

VOCAB, BATCH, SEQUENCE = 53, 8, 6
MODELS = {
    "llama": (plain.LlamaForCausalLM, LLAMA_PLAN),
    "gpt2": (plain.GPT2LMHeadModel, GPT2_PLAN),
    "gpt2, easy": (plain.GPT2LMHeadModel, None),
}


def made(which):
    model = MODELS[which][0]().float()
    plain.randomize(model)
    return model


def batch():
    both = torch.randint(VOCAB, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(5))
    return both[:, :-1], both[:, 1:]


def logits_of(out):
    return out if isinstance(out, torch.Tensor) else out.logits


def serial(which, *, cast):
    """Loss and gradients of a plain model in one process."""
    model, (ids, targets) = made(which), batch()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        logits = logits_of(model(ids)).flatten(0, 1)
        loss = functional.cross_entropy(logits.float(), targets.flatten())
    loss.backward()
    return loss.item(), {name: one.grad for name, one in model.named_parameters()}


def cast(layout, which, inside):
    """The loss, and the distance of all gradients from those in fp32, relative to these."""
    machine = Machine.of(grid_of(layout))
    model, plan = made(which), MODELS[which][1]
    model = parallelize(model, machine, easy_plan(model) if plan is None else plan)
    flat = Flat(machine, model, holdings(model))
    over = ("x", "y", "z", "data") if plan is None else ("z", "data")
    ids, targets = (part.chunk(machine.grid.size(*over))[machine.grid.index(*over)] for part in batch())
    with flat.step(1, loss="sum"):
        with torch.autocast("cpu", torch.bfloat16):
            logits = logits_of(model(ids)).flatten(0, 1)
            assert plan is None or logits.dtype == torch.bfloat16
            if plan is None:
                losses = functional.cross_entropy(logits.float(), targets.flatten(), reduction="none")
            else:
                losses = cross_entropy(machine, logits, targets.flatten(), VOCAB)
            loss = losses.sum() / (BATCH * SEQUENCE)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
    exact, total, wrong = serial(which, cast=False)[1], 0.0, 0.0
    for name, window, values in pieces(flat, lambda leaf: leaf.grad):
        whole = exact[name].t() if MODELS[which][0] is plain.GPT2LMHeadModel and "c_" in name else exact[name]
        whole = whole if whole.ndim > 1 or not name.endswith("bias") else exact[name]
        total += float(whole[window].square().sum())
        wrong += float((values - whole[window]).square().sum())
    summed = machine.collectives.all_reduce(loss.detach().double().view(1), *over).wait()
    return float(summed), (wrong / total) ** 0.5


@pytest.mark.parametrize("which", MODELS)
def test_autocast_computes_as_around_plain_models(ranks, which):
    wanted, plainly = serial(which, cast=True)
    exact = serial(which, cast=False)[1]
    total = sum(float(one.square().sum()) for one in exact.values())
    usual = (sum(float((plainly[name] - exact[name]).square().sum()) for name in exact) / total) ** 0.5
    assert usual > 1e-4, "bf16 is seen"
    for inside in (False, True):
        for loss, wrong in ranks.run(cast, Layout(x=2, y=2, data=2), which, inside):
            assert loss == pytest.approx(wanted, rel=2e-2)
            assert wrong < 4 * usual


def test_products_are_in_the_format_of_autocast():
    from weft.runtime.core.grid import Grid

    layer = Linear4D(Machine.of(Grid.of(Layout())), "layer", 8, 4)
    rows = torch.ones(2, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(rows)
    out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert rows.grad.dtype == layer.weight.shard.grad.dtype == torch.float32
