"""Pieces of parameters against index arrays."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.core.parameters import FlatRange, fused, share

DEGREES = st.sampled_from([1, 2, 3, 4])


def block_of(whole, placement):
    """The flat block of a placement, cut out by index arrays."""
    rows = np.concatenate([np.arange(low, high) for low, high in placement.rows] or [np.arange(0)])
    if whole.ndim == 1:
        return whole[rows]
    return whole[rows][:, slice(*placement.columns)].reshape(-1)


def values_of(whole, placement, padding=-1):
    """The piece itself, padded."""
    block = block_of(whole, placement)
    block = np.concatenate([block, np.full(max(placement.stop - len(block), 0), padding)])
    return block[placement.start : placement.stop]


def from_rectangles(whole, placement, padding=-1):
    values = np.full(placement.stop - placement.start, padding)
    for one in placement.rectangles():
        window = tuple(slice(low, low + size) for low, size in zip(one.offsets, one.sizes, strict=True))
        assert whole[window].shape == one.sizes
        assert (values[one.start : one.start + prod(one.sizes)] == padding).all(), "overlap"
        values[one.start : one.start + prod(one.sizes)] = whole[window].reshape(-1)
    return values


@st.composite
def matrices(draw):
    """A block of a matrix fused of parts, cut in both dimensions."""
    x, y = draw(DEGREES), draw(DEGREES)
    parts = tuple(x * draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3))))
    columns = y * draw(st.integers(1, 5))
    rows = fused(parts, x, draw(st.integers(0, x - 1)))
    return (sum(parts), columns), rows, share(columns, y, draw(st.integers(0, y - 1)))


@given(matrices(), st.data())
def test_rectangles_of_a_matrix_are_its_piece(matrix, data):
    shape, rows, columns = matrix
    size = sum(high - low for low, high in rows) * (columns[1] - columns[0])
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size + 7))
    placement = FlatRange(shape=shape, rows=rows, columns=columns, start=start, stop=stop)
    whole = np.arange(prod(shape)).reshape(shape)
    np.testing.assert_array_equal(from_rectangles(whole, placement), values_of(whole, placement))
    assert len(list(placement.rectangles())) <= 3 * len(rows)


@given(st.integers(1, 30), DEGREES, st.data())
def test_rectangles_of_a_vector_are_its_piece(size, degree, data):
    rows = (share(size * degree, degree, data.draw(st.integers(0, degree - 1))),)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size + 5))
    placement = FlatRange(shape=(size * degree,), rows=rows, columns=(0, 1), start=start, stop=stop)
    whole = np.arange(size * degree)
    np.testing.assert_array_equal(from_rectangles(whole, placement), values_of(whole, placement))


@given(matrices(), st.integers(1, 5), st.integers(1, 3))
def test_parts_of_a_piece_are_pieces(matrix, z, data):
    """The block cut over z, each piece cut over data, padded to equal sizes: together the block, in order."""
    shape, rows, columns = matrix
    size = sum(high - low for low, high in rows) * (columns[1] - columns[0])
    padded = -(-size // (z * data)) * z * data
    block = FlatRange(shape=shape, rows=rows, columns=columns, start=0, stop=padded)
    whole = np.arange(prod(shape)).reshape(shape)
    pieces = [block.part(*share(padded, z, index)) for index in range(z)]
    parts = [piece.part(*share(padded // z, data, index)) for piece in pieces for index in range(data)]
    found = np.concatenate([from_rectangles(whole, part) for part in parts])
    np.testing.assert_array_equal(found, values_of(whole, block))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), DEGREES)
def test_fused_rows_are_every_row_once(parts, degree):
    whole = tuple(part * degree for part in parts)
    rows = [row for index in range(degree) for low, high in fused(whole, degree, index) for row in range(low, high)]
    assert sorted(rows) == list(range(sum(whole)))
