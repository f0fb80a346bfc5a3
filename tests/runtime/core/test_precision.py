"""Number formats, and the settings of products."""

import pytest
import torch

from weft.errors import Unsupported
from weft.layout.spec import Layout
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision, numerics
from weft.runtime.layers.linear import Linear4D


def settings():
    return torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def test_numerics_are_as_before_afterwards():
    before = settings()
    with numerics(tf32=True, deterministic=True):
        assert settings() == ("high", True)
    assert settings() == before
    with numerics():
        assert settings() == before


def test_tf32_is_a_way_to_multiply_fp32():
    assert Precision.of("tf32") == Precision.of("fp32")


def test_autocast_is_refused():
    layer = Linear4D(Machine.of(Grid.of(Layout())), "layer", 8, 4)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(Unsupported, match=r'layer: .*precision="bf16"'):
        layer(torch.ones(2, 8))
