"""Products: every arrangement of operands gives the same, and the fastest is remembered."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import models  # noqa: E402
import serial  # noqa: E402

from weft.layout.spec import Layout  # noqa: E402
from weft.runtime.core import matmul  # noqa: E402
from weft.runtime.core.grid import Grid  # noqa: E402
from weft.runtime.core.machine import Machine  # noqa: E402
from weft.runtime.core.matmul import VARIANTS, Matmul  # noqa: E402
from weft.runtime.core.parameters import holdings  # noqa: E402
from weft.runtime.core.precision import Precision  # noqa: E402
from weft.runtime.layers.decoder import Decoder4D  # noqa: E402


def operands(turned, m=5, k=7, n=3):
    """Operands, each as it is stored or as the transpose of what is."""
    generator = torch.Generator().manual_seed(0)

    def made(rows, columns, turn):
        shape = (columns, rows) if turn else (rows, columns)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.t() if turn else values

    return made(m, k, turned[0]), made(k, n, turned[1])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_every_variant_is_the_product(turned, variant):
    a, b = operands(turned)
    wanted = torch.einsum("ik,kj->ij", a, b)
    found = VARIANTS[variant](a, b)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-14)
    torch.testing.assert_close(Matmul()(a, b), wanted, rtol=0.0, atol=1e-14)


def test_the_fastest_is_chosen_once_for_each_signature(monkeypatch):
    """Shapes, strides and formats make a signature."""
    timed = []

    def seconds(variant, a, b):
        timed.append(variant)
        return 1.0 if variant is VARIANTS["NT flipped"] else 2.0

    monkeypatch.setattr(matmul, "_seconds", seconds)
    products = Matmul(tuned=True)
    a, b = operands((False, False))
    signatures = [(a, b), (a, operands((False, True))[1]), (a[:4], b), (a.float(), b.float())]
    for count, (one, other) in enumerate(signatures, start=1):
        for _ in range(3):
            torch.testing.assert_close(products(one, other), one @ other)
        assert len(timed) == count * len(VARIANTS)
        assert list(products.chosen.values()) == ["NT flipped"] * count


def test_clocks_choose_one_of_them():
    products = Matmul(tuned=True)
    a, b = operands((False, True), m=64, k=32, n=48)
    for _ in range(2):
        torch.testing.assert_close(products(a, b), a @ b)
    assert set(products.chosen.values()) <= set(VARIANTS)
    assert len(products.chosen) == 1


def gradients(tuned):
    model = models.llama(layers=1)
    grid = Grid.of(Layout())
    machine = Machine.of(grid, precision=Precision.of("fp64"), tuned=tuned)
    decoder = Decoder4D(machine, model, sequence=8)
    parameters = serial.random_parameters(model, torch.float64)
    for holding in holdings(decoder):
        holding.fill(
            lambda name, shape, offsets, sizes: parameters[name].detach()[
                tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))
            ]
        )
    ids = torch.arange(16).view(2, 8)
    decoder.losses(decoder(ids), ids + 1).sum().backward()
    return {holding.name: holding.parameter.grad for holding in holdings(decoder)}, machine.matmul


def test_a_tuned_model_computes_the_same():
    plain, _ = gradients(tuned=False)
    tuned, products = gradients(tuned=True)
    for name, wanted in plain.items():
        torch.testing.assert_close(tuned[name], wanted, rtol=1e-10, atol=1e-12)
    assert len(products.chosen) >= 12, "three products for each layer"
