"""Steps between the decoder's products against PyTorch's own operations with their automatic gradients."""

from __future__ import annotations

import pytest
import serial
import torch
from compare import worst
from torch.nn import functional

from weft.layout.spec import Layout
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.layers.decoder import Details, Rotary, frequencies, split_heads
from weft.runtime.layers.experts import GatedSilu


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def angles(width, theta=1e4):
    machine = Machine.of(Grid.of(Layout()), precision=Precision.of("fp64"))
    return Rotary(machine, frequencies(width, Details(rotary_theta=theta)), 64)()


def outputs_and_gradient(function, given):
    """What it gives, and the gradient of what it takes for one of its outputs."""
    given = given.clone().requires_grad_()
    made = function(given)
    made = made if isinstance(made, tuple) else (made,)
    torch.autograd.backward(made, [random(*one.shape) for one in made])
    return (*(one.detach() for one in made), given.grad)


def check(fused, plain, given):
    for ours, theirs in zip(outputs_and_gradient(fused, given), outputs_and_gradient(plain, given), strict=True):
        assert ours.shape == theirs.shape
        assert worst(ours, theirs) <= 1e-13


@pytest.mark.parametrize("shape", [(1, 2), (7, 12), (64, 30)])
def test_gated_silu(shape):
    def plain(both):
        gate, value = both.chunk(2, dim=1)
        return functional.silu(gate) * value

    check(GatedSilu.apply, plain, random(*shape))


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 4, 8), (6, 2, 16), (1, 1, 2)])
@pytest.mark.parametrize("rotated", [False, True])
def test_heads_are_split_and_rotated(heads, kv_heads, width, rotated):
    def turned(part):
        if not rotated:
            return part
        cosine, sine = (table[:5].repeat(1, 2) for table in angles(width))
        first, second = part.chunk(2, dim=-1)
        return part * cosine + torch.cat((-second, first), dim=-1) * sine

    def plain(fused):
        queries, keys, values = fused.transpose(1, 2).split((heads, kv_heads, kv_heads), dim=1)
        return turned(queries), turned(keys), values

    def ours(fused):
        return split_heads(fused, heads, kv_heads, angles(width) if rotated else None)

    check(ours, plain, random(3, 5, heads + 2 * kv_heads, width))


def rotated_queries(heads, width, theta):
    """Queries (batch, heads, sequence, width) after ``split_heads``."""
    fused = torch.cat((heads, heads[:, :2]), dim=1).transpose(1, 2)
    return split_heads(fused, heads.shape[1], 1, angles(width, theta))[0]


@pytest.mark.parametrize(("width", "theta"), [(4, 10_000.0), (64, 10_000.0), (128, 500_000.0)])
def test_rotary_positions_are_complex_rotations(width, theta):
    heads = random(2, 3, 64, width)
    wanted = serial.rotate(heads, Details(rotary_theta=theta))
    assert worst(rotated_queries(heads, width, theta), wanted) <= 1e-13
