"""Easy mode on eight ranks: plain models as on one process, and the bytes that it exchanges."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from cases import CASES, CONVOLUTIONS, EASY, Case, Part, assert_states, errors, linear
from models import EVERY, FEW, MORE, OFF, layout_of
from ranks import on_ranks
from torch import nn

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.layout.step import Issue
from weft.runtime.convert.parallelize import easy_plan, parallelize
from weft.runtime.convert.roles import Easy, Norm, Whole
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.measure.trace import on_fake_ranks
from weft.runtime.run.flat import Flat
from weft.runtime.run.optimizer import AdamSettings, Optimizer

EXACT = 1e-12
MODELS = (*EASY, *CONVOLUTIONS)
"""Of easy mode, and of convolutions with roles."""


class WithParameter(nn.Module):
    """A parameter of its own beside a norm."""

    def __init__(self, *shape):
        super().__init__()
        self.extra, self.norm = nn.Parameter(torch.zeros(shape)), nn.LayerNorm(8)


def check(layout, models=MODELS):
    """Outputs, all gradients, and those clipped at a norm of 1e-3."""
    for case in models:
        for name, error in errors(layout, case).items():
            assert error <= EXACT, (case, name)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("grid", FEW, ids=str)
@on_ranks
def test_plain_models(grid):
    """With all overlaps, and states in and out."""
    check(layout_of(grid))
    if grid == FEW[0]:
        for case in MODELS:
            assert_states(layout_of(grid), CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize("overlaps", [{}, OFF])
@pytest.mark.parametrize("grid", EVERY, ids=str)
@on_ranks
def test_plain_models_on_every_grid(grid, overlaps):
    check(layout_of(grid, **overlaps))


@on_ranks
def test_without_overlap():
    check(layout_of((2, 2, 1, 2), **OFF), ("attention, easy", "chain"))


# What is exchanged ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 64), (64, 32)])
@pytest.mark.parametrize("grid", MORE, ids=str)
@on_ranks
def test_rows_are_exchanged_for_features(grid, inputs, outputs):
    """No sizes are exchanged, and no element is sent to a rank that does not need it."""
    x, y, *_ = grid
    own = 2
    normal = inputs * x + outputs * y <= inputs * y + outputs * x
    over_in, over_out = ("y", "x") if normal else ("x", "y")
    degrees = {"x": x, "y": y}
    gathered, scattered = own * inputs * degrees[over_out], own * outputs * degrees[over_in]
    wanted = Counter()
    for kind, axis, elements, times in (
        ("all-to-all", over_in, own * inputs, 2),
        ("all-gather", over_out, gathered, 2),
        ("reduce-scatter", over_out, gathered, 1),
        ("all-to-all", over_out, own * outputs, 2),
        ("reduce-scatter", over_in, scattered, 1),
        ("all-gather", over_in, scattered, 1),
    ):
        if degrees[axis] > 1:
            wanted[Issue(kind, (axis,), elements, 8)] += times
    part = Part(layout_of(grid), Case(make=linear(inputs, outputs, bias=False), shape=(16, inputs)))
    with part.machine.collectives.logged() as log:
        part.step()
    assert Counter(issue for issue in log.issued if not {"z", "data"} & {*issue.axes}) == wanted, "without weights"


# Plans and refusals --------------------------------------------------------------------------------


def means(**degrees):
    return Machine.of(Grid(Layout(**degrees), torch.device("cpu"), None, 0))


def test_plan_cuts_linear_layers_and_keeps_the_rest():
    model = CASES["tied, easy"].make()
    plan = easy_plan(model)
    assert {name for name, role in plan.items() if role == Easy()} == {"qkv", "out", "up", "down"}
    assert plan["head"] == plan["embedding"] == plan[""] == Whole()
    parallelize(model, means(), plan)
    assert model.head.weight is model.embedding.weight
    named = {name: one for name, one in ((held.name, held) for held in holdings(model)) if not one.matrix}
    assert named["embedding.weight"].sum_over == ("x", "y", "context", "z", "data")
    assert "head.weight" not in named


@pytest.mark.parametrize("layout", [Layout(z=8), Layout(x=2, z=4, zero=1)], ids=["z", "x z"])
@on_ranks
def test_weights_that_do_not_divide_over_z(layout):
    """Blocks of 15 weights."""
    case = Case(make=linear(5, 6, bias=True), shape=(16, 5))
    assert_states(layout, case)
    assert max(errors(layout, case).values()) <= EXACT


def test_a_layer_in_two_places_stays_whole():
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.Linear(8, 8), layer)
    assert easy_plan(model) == {"0": Whole(), "1": Easy()}
    assert parallelize(model, means(), easy_plan(model))[2] is layer


def test_number_formats_between_layers_are_the_models_own():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    machine = Machine.of(Grid.of(Layout()), precision=Precision.of("bf16"))
    plain = model(torch.ones(2, 8)).detach()
    found = parallelize(model, machine, easy_plan(model))(torch.ones(2, 8))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("model", "more", "match"),
    [
        (nn.Sequential(nn.Linear(10, 9)), {}, "0: inputs = 10 cannot be divided over y=4|outputs = 9"),
        (nn.Sequential(nn.Conv2d(8, 8, 3, groups=2)), {}, "0: has groups = 2"),
        (nn.Sequential(nn.Conv2d(8, 8, 3, padding="same")), {}, "0: has padding = 'same'"),
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), {}, "1: would take the statistics of one rank"),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), {"1": Norm()}, "0 is in easy mode, 1 is not"),
        (CASES["tied, easy"].make(), {"head": Easy()}, r"embedding\.weight, head\.weight are one parameter"),
        (CASES["mlp, easy"].make().requires_grad_(False), {}, "is frozen"),
        (nn.Sequential(nn.Embedding(9, 8, max_norm=1.0)), {}, "0: has max_norm = 1"),
        (nn.Sequential(nn.Embedding(9, 8, scale_grad_by_freq=True)), {}, "0: has scale_grad_by_freq on"),
        (nn.Sequential(nn.EmbeddingBag(9, 8, max_norm=2.0)), {}, "0: has max_norm = 2"),
        (
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False)),
            {},
            r"1: would take the statistics of one rank's rows alone \(BatchNorm1d\) -- use a LayerNorm",
        ),
        (
            nn.Sequential(nn.Conv2d(8, 8, 3), nn.Sequential(nn.InstanceNorm2d(8, track_running_stats=True))),
            {},
            r"1\.0: .* \(InstanceNorm2d\) -- set track_running_stats=False",
        ),
        (WithParameter(0), {}, r"extra: is empty: \(0,\)"),
    ],
)
def test_what_is_refused(model, more, match):
    before = list(model.modules())
    with pytest.raises(BadInput, match=match):
        parallelize(model, means(x=2, y=4), easy_plan(model) | more)
    assert list(model.modules()) == before


def on_one_rank(model):
    return parallelize(model, means(), easy_plan(model))


@pytest.mark.parametrize(
    ("layer", "shape", "match"),
    [
        (nn.Linear(8, 4), (2, 6), "0: got 6 features, but it takes 8$"),
        (nn.Linear(8, 4), (), r"0: got the shape \(\), but it takes \(\.\.\., 8\)$"),
        (nn.Conv2d(8, 4, 3), (2, 6, 5, 5), "0: got 6 features, but it takes 8$"),
        (nn.Conv2d(8, 4, 3), (5, 5), r"got the shape \(5, 5\), but it takes \(\.\.\., 8, height, width\)"),
        (
            nn.Conv2d(8, 4, (3, 2), padding=(1, 0), dilation=(2, 1)),
            (1, 8, 2, 5),
            "0: got images of 2 x 5, but the kernel spans 5, padding is 1",
        ),
    ],
)
def test_inputs_that_do_not_fit(layer, shape, match):
    with pytest.raises(BadInput, match=match):
        on_one_rank(nn.Sequential(layer))(torch.ones(shape))


def test_a_model_is_parallelized_once():
    for model in (on_one_rank(nn.Sequential(nn.Linear(8, 8))), on_one_rank(nn.Sequential(nn.LayerNorm(8)))):
        with pytest.raises(BadInput, match="Sequential: has been parallelized already"):
            on_one_rank(model)


def test_weights_that_are_cut_are_named():
    model = on_one_rank(nn.Sequential(nn.Linear(8, 8)))
    for key in ("weight", "bias"):
        with pytest.raises(Unsupported, match=rf"0\.{key}: is cut over the grid, .* state_dict\(\) of the step"):
            getattr(model[0], key)


def test_encoder_layers_compute_in_eval_as_before():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    rows, mask = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = [plain(rows, src_key_padding_mask=one)[:, :3] for one in (None, mask)]
        model = on_one_rank(plain)
        for one, wanted in zip((None, mask), expected, strict=True):
            found = model(rows, src_key_padding_mask=one)[:, :3]
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_second_derivatives_on_one_rank_are_those_of_pytorch():
    given = torch.ones(2, 8, requires_grad=True)
    plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    model = on_one_rank(copy.deepcopy(plain))
    flat = Flat(means(), model, holdings(model))
    with flat.step(1, loss="sum"):
        for each in (plain, model):
            (slope,) = torch.autograd.grad(each(given).sum(), given, create_graph=True)
            slope.sum().backward()
    gradients = {holding.name: holding.parameter.grad for holding in holdings(model)}
    assert torch.allclose(gradients["0.weight"].view(8, 8), plain[0].weight.grad)


@pytest.mark.parametrize("degrees", [{"x": 2}, {"y": 2}, {"z": 2}], ids=str)
def test_second_derivatives_beside_other_ranks_are_refused(degrees):
    """They would leave out what gradients of weights depend on."""
    with on_fake_ranks(Layout(**degrees), 0, "cpu") as grid:
        plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        model = parallelize(plain, Machine.of(grid), easy_plan(plain))
        given = torch.ones(2, 8, requires_grad=True)
        with pytest.raises((RuntimeError, Unsupported), match=r"once_differentiable|second derivatives"):
            torch.autograd.grad(model(given).sum(), given, create_graph=True)[0].sum().backward()


def test_a_model_without_matrices_trains():
    model = on_one_rank(nn.Sequential(nn.LayerNorm(8)))
    flat = Flat(means(), model, holdings(model))
    optimizer = Optimizer(flat, AdamSettings(rate=0.1, clip=None))
    with flat.step(1, loss="sum"):
        model(torch.arange(8.0).view(1, 8))[0, 0].backward()
    optimizer.step()
    assert model[0].bias.tolist() == pytest.approx([-0.1] + [0.0] * 7)
    assert {piece.name for piece in optimizer.pieces()} >= {"0.weight", "0.bias/exp_avg"}


def test_a_layer_called_twice_in_a_pass_is_named():
    model = on_one_rank(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    flat = Flat(means(), model, holdings(model))
    match = r"1\.weight: gave more gradients .* call each module once"
    with pytest.raises(BadInput, match=match), flat.step(1, loss="sum"):
        model[0](model[1](model[1](torch.ones(2, 8)))).sum().backward()


def test_hooks():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    model[1].register_forward_hook(lambda *_: None)
    parallelize(model, means(), easy_plan(model))
    model = nn.Sequential(nn.Linear(8, 8))
    model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="0: has a forward hook"):
        parallelize(model, means(), easy_plan(model))
