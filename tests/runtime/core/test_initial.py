"""Initial values: the same on every cut and grid, as GPT-2's."""

from __future__ import annotations

import models
import pytest
import serial
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import DATA_INSIDE, EVERY, layout_of

from weft.layout.spec import Layout
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import TILE, Initial, holdings, initialize
from weft.runtime.run.pipeline import build_stages

MODEL = models.gpt(layers=4)
SHAPE = (2 * TILE + 30, TILE + 77)
WHOLE = Initial(MODEL, 5)("wide.weight", SHAPE, (0, 0), SHAPE)


@given(st.data())
def test_a_rectangle_is_that_of_the_whole(data):
    """Across the edges of tiles, down to single elements."""
    spans = []
    for size in SHAPE:
        start = data.draw(st.integers(0, size - 1) | st.sampled_from([TILE - 1, TILE]))
        spans.append((start, data.draw(st.integers(start + 1, size))))
    offsets, sizes = tuple(low for low, _ in spans), tuple(high - low for low, high in spans)
    found = Initial(MODEL, 5)("wide.weight", SHAPE, offsets, sizes)
    assert torch.equal(found, WHOLE[tuple(slice(low, high) for low, high in spans)])


def assembled(layout, seed=5):
    """Whole parameters of what each rank of a layout begins with; copies agree."""
    found = {name: torch.full(shape, torch.nan) for name, shape in serial.shapes(MODEL).items()}
    for rank in range(layout.world):
        machine = Machine.of(Grid(layout, torch.device("cpu"), None, rank))
        held = holdings(build_stages(machine, MODEL, sequence=8))
        initialize(held, MODEL, seed)
        for holding in held:
            flat = holding.parameter.detach().view(-1)
            beside = torch.ones_like(flat, dtype=torch.bool)
            for one in holding.placement.rectangles():
                window = tuple(slice(o, o + s) for o, s in zip(one.offsets, one.sizes, strict=True))
                part = flat[one.start :][: torch.Size(one.sizes).numel()].view(one.sizes)
                before = found[holding.name][window]
                assert (before.isnan() | (before == part)).all()
                found[holding.name][window] = part
                beside[one.start : one.start + part.numel()] = False
            assert not flat[beside].any(), "padding is zero"
    assert not any(values.isnan().any() for values in found.values())
    return found


@pytest.mark.slow
def test_every_grid_begins_with_the_same_model():
    alone = assembled(Layout())
    layouts = [layout_of(grid) for grid in EVERY]
    layouts += [Layout(pipeline=2, x=2, z=2, order=DATA_INSIDE), Layout(pipeline=4, y=2)]
    for layout in layouts:
        found = assembled(layout)
        assert all(torch.equal(found[name], values) for name, values in alone.items())


def test_values_are_those_of_gpt_2():
    """Normal with a deviation of 0.02, divided by sqrt(2 layers) where the residual stream is written to."""
    layers = MODEL.layers
    found = assembled(Layout())
    assert layers == 4
    for name, values in found.items():
        if values.ndim == 1:
            assert (values == (0.0 if name.endswith("bias") else 1.0)).all()
            continue
        deviation = 0.02 / (8**0.5 if name.endswith(("proj.weight", "fc2.weight")) else 1.0)
        spread = 1.0 / (2 * values.numel()) ** 0.5
        assert float(values.std()) == pytest.approx(deviation, rel=4 * spread)
        assert abs(float(values.mean())) < 4 * deviation / values.numel() ** 0.5
    normal = torch.sort(WHOLE.flatten() / 0.02).values
    for share, quantile in ((0.1587, -1.0), (0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0)):
        assert float(normal[int(share * len(normal))]) == pytest.approx(quantile, abs=0.03)


def test_seeds_names_and_tiles_have_their_own_numbers():
    drawn = [
        Initial(MODEL, seed)(name, (2 * TILE, 2 * TILE), at, (TILE, TILE))
        for seed in (5, 6)
        for name in ("a.weight", "b.weight")
        for at in ((0, 0), (0, TILE), (TILE, 0))
    ]
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            correlation = float((one * other).mean() / (one.std() * other.std()))
            assert abs(correlation) < 5 / TILE
