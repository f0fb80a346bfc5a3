"""Sobol points: equal to another implementation's, even, and the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import BadInput
from weft.studies.sobol import MOST, sobol


def test_unscrambled_points_are_scipy_s() -> None:
    qmc = pytest.importorskip("scipy.stats.qmc")
    expected = qmc.Sobol(MOST, scramble=False).random(1024)
    assert np.array_equal(sobol(1024, MOST, None), expected)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_scrambled_points_fill_every_interval_once(seed: int) -> None:
    points = sobol(512, MOST, seed)
    assert points.min() >= 0
    assert points.max() < 1
    for column in points.T:
        assert sorted((column * 512).astype(int)) == list(range(512))


@pytest.mark.parametrize("seed", range(4))
def test_two_dimensions_are_a_net(seed: int) -> None:
    x, y = sobol(256, 2, seed).T
    for parts in (2, 4, 16, 64, 128):  # every elementary box holds as many points
        boxes = (x * parts).astype(int) * (256 // parts) + (y * (256 // parts)).astype(int)
        assert np.array_equal(np.bincount(boxes, minlength=256), np.ones(256))


def test_seeds_differ_and_repeat() -> None:
    assert np.array_equal(sobol(100, 5, 7), sobol(100, 5, 7))
    assert not np.array_equal(sobol(100, 5, 7), sobol(100, 5, 8))


def test_too_many_dimensions_are_refused() -> None:
    with pytest.raises(BadInput, match="at most 21"):
        sobol(10, MOST + 1, 0)
