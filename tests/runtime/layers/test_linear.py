"""Linear layers over eight ranks against plain ones: outputs, gradients, and what is communicated."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from compare import worst
from models import FEW, MORE, layout_of
from ranks import grid_of, on_ranks
from torch.nn import functional

from weft.layout.step import Issue
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import fused, share
from weft.runtime.layers.linear import Linear4D
from weft.runtime.layers.norm import Norm4D

EXACT = 1e-12


class Layer:
    """A layer of one rank, the whole one, and this rank's parts of whole tensors."""

    def __init__(self, layout, inputs, outputs, *, kind="normal", bias=True, seed=0):
        self.machine = Machine.of(grid_of(layout), precision=Precision.of("fp64"))
        self.grid = self.machine.grid
        self.parts = (outputs,) if isinstance(outputs, int) else outputs
        self.layer = Linear4D(self.machine, "layer", inputs, outputs, kind=kind, bias=bias)
        generator = torch.Generator().manual_seed(seed)
        dtype = self.machine.precision.master
        self.weight = torch.randn(sum(self.parts), inputs, generator=generator, dtype=dtype) / inputs**0.5
        self.bias = torch.randn(sum(self.parts), generator=generator, dtype=dtype)
        for parameter in (self.weight, self.bias):
            parameter.requires_grad_()
        self.layer.weight.holding.fill(self._weight)
        if bias:
            self.layer.bias.holding.fill(self._bias)

    def _weight(self, name, shape, offsets, sizes):
        assert name == "layer.weight"
        (top, left), (height, width) = offsets, sizes
        return self.weight.detach()[top : top + height, left : left + width]

    def _bias(self, name, shape, offsets, sizes):
        assert name == "layer.bias"
        return self.bias.detach()[offsets[0] : offsets[0] + sizes[0]]

    def whole(self, rows):
        return torch.nn.functional.linear(rows, self.weight, self.bias if self.layer.bias is not None else None)

    def rows_of(self, whole, *, cut):
        """This rank's tokens; with sequence parallelism its share of those of its x group."""
        own = slice(*share(len(whole), self.grid.size("z", "data"), self.grid.index("z", "data")))
        if not (cut and self.machine.rows_cut):
            return whole[own]
        return whole[own][slice(*share(len(whole[own]), self.grid.size("x"), self.grid.index("x")))]

    def input_of(self, whole):
        axis = self.layer.over_in
        columns = slice(*share(whole.shape[1], self.grid.size(axis), self.grid.index(axis)))
        return self.rows_of(whole, cut=not self.layer.transposed)[:, columns].contiguous()

    def output_of(self, whole):
        axis = self.layer.over_out
        ranges = fused(self.parts, self.grid.size(axis), self.grid.index(axis))
        rows = self.rows_of(whole, cut=self.layer.transposed)
        return torch.cat([rows[:, start:stop] for start, stop in ranges], dim=1)

    def gradients(self):
        """This rank's gradients of weight (this rank's piece, summed over data too) and bias, and the whole's
        parts."""
        holding = self.layer.weight.holding
        found = self.machine.collectives.all_reduce(self.layer.weight.shard.grad, *holding.sum_over).wait()
        want = torch.zeros_like(found)
        for one in holding.placement.rectangles():
            (top, left), (height, width) = one.offsets, one.sizes
            part = self.weight.grad[top : top + height, left : left + width]
            want[one.start : one.start + part.numel()] = part.flatten()
        yield "weight", found, want
        if self.layer.bias is not None:
            holding = self.layer.bias.holding
            found = self.machine.collectives.all_reduce(holding.parameter.grad, *holding.sum_over).wait()
            yield "bias", found, torch.cat([self.bias.grad[slice(*rows)] for rows in holding.placement.rows])


def values(layer, seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=layer.machine.precision.master)


def compared(layout, tokens, shape, *, overlapped):
    """What this rank computes and the same part of the whole, by name."""
    inputs, outputs, options = SHAPES[shape]
    layer = Layer(layout, inputs, outputs, **options)
    whole = values(layer, 1, tokens, inputs).requires_grad_()
    wanted = layer.whole(whole)
    slope = values(layer, 2, *wanted.shape)
    wanted.backward(slope)
    rows = layer.input_of(whole).detach().requires_grad_()
    with layer.machine.overlap.step() if overlapped else nullcontext():
        found = layer.layer(rows)
        found.backward(layer.output_of(slope))
    yield "output", found.detach(), layer.output_of(wanted.detach())
    yield "input", rows.grad, layer.input_of(whole.grad)
    yield from layer.gradients()


def check(layout, tokens, *, overlapped=True):
    """Everything that this rank computes for each shape is the same part of the whole."""
    for shape in SHAPES:
        for name, found, want in compared(layout, tokens, shape, overlapped=overlapped):
            assert worst(found, want) <= EXACT, (shape, name)


SHAPES = {
    "normal": (48, 80, {}),
    "transposed": (80, 48, {"kind": "transposed"}),
    "fused": (48, (64, 16, 16), {}),
    "fused, transposed, no bias": (48, (16, 24), {"kind": "transposed", "bias": False}),
}


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("grid", FEW, ids=str)
@on_ranks
def test_outputs_and_all_gradients(grid, overlapped):
    """Within a step as outside of one."""
    check(layout_of(grid), 32, overlapped=overlapped)


@pytest.mark.parametrize("grid", [(8, 1, 1, 1), (2, 1, 2, 2)], ids=str)
@on_ranks
def test_tokens_that_are_cut_over_x(grid):
    """Sequence parallelism."""
    check(layout_of(grid, sequence_parallel=True), 64)


@pytest.mark.parametrize("grid", MORE, ids=str)
@on_ranks
def test_a_transposed_layer_takes_what_a_normal_one_gives(grid):
    """Both communicate as AxoNN's algorithm says (axonn.md, 1.3), and nothing comes between them."""
    tokens, hidden, inner = 32, 48, 64
    first = Layer(layout_of(grid), hidden, inner)
    second = Layer(layout_of(grid), inner, hidden, kind="transposed", seed=1)
    whole = values(first, 2, tokens, hidden).requires_grad_()
    wanted = second.whole(torch.relu(first.whole(whole)))
    slope = values(first, 3, *wanted.shape)
    wanted.backward(slope)
    rows = first.input_of(whole).detach().requires_grad_()
    with first.machine.collectives.logged() as one, second.machine.collectives.logged() as other:
        found = second.layer(torch.relu(first.layer(rows)))
        found.backward(second.output_of(slope))
    pairs = [(found.detach(), second.output_of(wanted.detach())), (rows.grad, first.input_of(whole.grad))]
    issued = Counter([*one.issued, *other.issued])
    pairs += [pair for layer in (first, second) for _, *pair in layer.gradients()]
    assert max(worst(*pair) for pair in pairs) <= EXACT
    x, y, z, data = grid
    rows, wanted = tokens // (z * data), Counter()
    for kind, axis, elements, times in (
        ("all-gather", "z", hidden * inner // (x * y), 4),
        ("reduce-scatter", "z", hidden * inner // (x * y), 2),
        ("all-reduce", "y", rows * inner // x, 2),
        ("all-reduce", "x", rows * hidden // y, 2),
    ):
        if {"x": x, "y": y, "z": z}[axis] > 1:
            wanted[Issue(kind, (axis,), elements, 8)] += times
    assert issued == wanted


# Norms over features that are split ----------------------------------------------------------------


def normed(layout, features, centred, precision, shift):
    """What this rank computes and the same part of the whole, by name; values lie around ``shift``."""
    machine = Machine.of(grid_of(layout), precision=Precision.of(precision))
    norm = Norm4D(machine, "norm", features, centred=centred)
    generator = torch.Generator().manual_seed(0)
    dtype = machine.precision.master
    rows, slope = torch.randn(2, 12, features, generator=generator, dtype=dtype)
    gain, bias = torch.randn(2, features, generator=generator, dtype=dtype)
    whole = [(rows + shift).requires_grad_(), gain.requires_grad_(), bias.requires_grad_()]
    if centred:
        wanted = functional.layer_norm(whole[0], (features,), gain, bias)
    else:
        wanted = functional.rms_norm(whole[0], (features,), gain, 1e-5)
    wanted.backward(slope)
    own = slice(*share(features, machine.grid.size("y"), machine.grid.index("y")))
    with torch.no_grad():
        norm.gain.values.copy_(gain[own])
        if centred:
            norm.bias.values.copy_(bias[own])
    part = whole[0].detach()[:, own].contiguous().requires_grad_()
    found = norm(part)
    found.backward(slope[:, own])
    yield "output", found.detach(), wanted.detach()[:, own]
    yield "rows", part.grad, whole[0].grad[:, own]
    yield "gain", norm.gain.values.grad, gain.grad[own]
    if centred:
        yield "bias", norm.bias.values.grad, bias.grad[own]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("grid", [(1, 8, 1, 1), (2, 2, 2, 1), (8, 1, 1, 1)], ids=str)
@on_ranks
def test_norms_are_exact(grid, centred):
    for name, found, want in normed(layout_of(grid), 48, centred, "fp64", 1.0):
        assert worst(found, want) <= EXACT, name


@on_ranks
def test_norms_in_single_precision():
    """A mean of ten deviations costs a LayerNorm two digits, as its squares are summed before it is known."""
    layout = layout_of((1, 4, 1, 2))
    for centred, shift in ((False, 10.0), (True, 1.0)):
        for _, found, want in normed(layout, 256, centred, "fp32", shift):
            torch.testing.assert_close(found, want)
    for _, found, want in normed(layout, 256, True, "fp32", 10.0):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
