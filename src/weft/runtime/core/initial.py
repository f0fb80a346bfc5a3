"""Initial values that do not depend on the grid: each tile of a parameter has its own random numbers."""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import torch
from torch import Tensor

from weft.model.spec import Model
from weft.runtime.core.parameters import Holding

TILE = 256
"""Rows and columns of one tile; a rank draws only the tiles that it holds a part of."""
DEVIATION = 0.02
"""Standard deviation of weights (GPT-2)."""


class Initial:
    """Whole initial parameters of a model, rectangle by rectangle.

    Matrices and the position table are normal with a deviation of 0.02, those that write to the residual
    stream divided by sqrt(2 layers) (GPT-2); gains are 1 and biases 0.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self._seed = seed
        self._residual = 1.0 / sqrt(2 * max(model.layers, 1))

    def __call__(self, name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Values of a rectangle of a whole parameter, fp32."""
        if len(shape) == 1:
            return torch.full(sizes, 0.0 if name.endswith("bias") else 1.0)
        scale = DEVIATION * (self._residual if name.endswith(("proj.weight", "fc2.weight")) else 1.0)
        values = torch.empty(sizes)
        (top, left), (height, width) = offsets, sizes
        for row in range(top // TILE, -(-(top + height) // TILE)):
            for column in range(left // TILE, -(-(left + width) // TILE)):
                self._draw(name, row, column, values, top, left)
        return values * scale

    def _draw(self, name: str, row: int, column: int, values: Tensor, top: int, left: int) -> None:
        """Copy the part of one tile that lies in a rectangle at (top, left)."""
        digest = blake2b(f"{self._seed}:{name}:{row}:{column}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        tile = torch.randn(TILE, TILE, generator=generator)
        height, width = values.shape
        first, start = max(row * TILE, top), max(column * TILE, left)
        last, stop = min((row + 1) * TILE, top + height), min((column + 1) * TILE, left + width)
        values[first - top : last - top, start - left : stop - left] = tile[
            first - row * TILE : last - row * TILE, start - column * TILE : stop - column * TILE
        ]


def initialize(held: list[Holding], model: Model, seed: int) -> None:
    """Fill what a rank holds with a model's initial values."""
    whole = Initial(model, seed)
    for holding in held:
        holding.fill(whole)
