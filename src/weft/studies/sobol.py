"""Scrambled Sobol points: samples that fill a box evenly, the same for a seed.

Direction numbers: S. Joe and F. Y. Kuo, "Constructing Sobol sequences with better two-dimensional projections",
SIAM J. Sci. Comput. 30 (2008), new-joe-kuo-6.21201. Scrambling: random lower triangular matrices and a digital
shift (J. Matousek, "On the L2-discrepancy for anchored boxes", J. Complexity 14, 1998).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import BadInput

BITS = 30
"""Of a coordinate, and of the number of a point."""
_POLYNOMIALS = (
    *((1, 0, (1,)), (2, 1, (1, 3)), (3, 1, (1, 3, 1)), (3, 2, (1, 1, 1)), (4, 1, (1, 1, 3, 3))),
    *((4, 4, (1, 3, 5, 13)), (5, 2, (1, 1, 5, 5, 17)), (5, 4, (1, 1, 5, 5, 5)), (5, 7, (1, 1, 7, 11, 19))),
    *((5, 11, (1, 1, 5, 1, 1)), (5, 13, (1, 1, 1, 3, 11)), (5, 14, (1, 3, 5, 5, 31)), (6, 1, (1, 3, 3, 9, 7, 49))),
    *((6, 13, (1, 1, 1, 15, 21, 21)), (6, 16, (1, 3, 1, 13, 27, 49)), (6, 19, (1, 1, 1, 15, 7, 5))),
    *((6, 22, (1, 3, 1, 15, 13, 25)), (6, 25, (1, 1, 5, 5, 19, 61)), (7, 1, (1, 3, 7, 11, 23, 15, 103))),
    (7, 4, (1, 3, 7, 13, 13, 15, 69)),
)
"""Degree, coefficients and initial numbers of each dimension after the first."""
MOST = len(_POLYNOMIALS) + 1
"""Dimensions that there are numbers for."""


def sobol(count: int, dimensions: int, seed: int | None) -> NDArray[np.float64]:
    """The first points of the sequence.

    Args:
        seed: of the scrambling; None leaves the points as they are.

    Returns:
        Shape (count, dimensions), at least 0 and less than 1.

    Raises:
        BadInput: more dimensions than there are numbers for.
    """
    if dimensions > MOST:
        raise BadInput(f"{dimensions} axes are sampled", where="sample", remedy=f"sample at most {MOST}")
    directions = np.array([_directions(number) for number in range(dimensions)], dtype=np.int64)
    shift = np.zeros(dimensions, dtype=np.int64)
    if seed is not None:
        draw = np.random.Generator(np.random.PCG64(seed))
        directions = _scrambled(directions, draw)
        shift = draw.integers(0, 1 << BITS, size=dimensions)
    number = np.arange(count, dtype=np.int64)
    gray = number ^ (number >> 1)
    found = np.zeros((count, dimensions), dtype=np.int64)
    for bit in range(max(count - 1, 1).bit_length()):
        found ^= np.where((gray[:, None] >> bit) & 1, directions[:, bit], 0)
    return (found ^ shift) / float(1 << BITS)


def _directions(dimension: int) -> list[int]:
    """Direction numbers, most significant bit first."""
    if dimension == 0:
        return [1 << (BITS - 1 - bit) for bit in range(BITS)]
    degree, coefficients, first = _POLYNOMIALS[dimension - 1]
    found = [one << (BITS - 1 - bit) for bit, one in enumerate(first)]
    for bit in range(degree, BITS):
        value = found[bit - degree] ^ (found[bit - degree] >> degree)
        for step in range(1, degree):
            if (coefficients >> (degree - 1 - step)) & 1:
                value ^= found[bit - step]
        found.append(value)
    return found


def _scrambled(directions: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.int64]:
    """The direction numbers, those of each dimension multiplied by a random unit lower triangular matrix of bits."""
    found = np.zeros_like(directions)
    for dimension, numbers in enumerate(directions):
        for row in range(BITS):
            above = (1 << row) - 1
            mask = ((int(draw.integers(0, 1 << BITS)) & above) << (BITS - row)) | (1 << (BITS - 1 - row))
            parity = np.array([(int(one) & mask).bit_count() & 1 for one in numbers], dtype=np.int64)
            found[dimension] |= parity << (BITS - 1 - row)
    return found
