"""Where a rank's piece of a parameter lies in the whole parameter.

A whole matrix is fused of ``parts`` along its rows (queries, keys, values; gate and value), each of which is
split on its own, so that one rank's block is a list of row ranges and one column range.  The block,
flattened, is cut once more over z (and by the optimizer over data): a piece is a range of that flat block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A rectangle of a whole parameter, and where it starts in the flat piece."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRange:
    """The flat range ``start`` to ``stop`` of the block ``rows`` x ``columns`` of a whole of ``shape``.

    ``rows`` are ranges of whole rows in the order of the block; flat positions past them are padding.
    Vectors have a shape of one dimension and ``columns`` (0, 1).
    """

    shape: tuple[int, ...]
    rows: tuple[Range, ...]
    columns: Range
    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]

    def part(self, start: int, stop: int) -> FlatRange:
        """A range of this piece, as a piece."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def rectangles(self) -> Iterator[Rectangle]:
        """The piece as rectangles of the whole, at most three per range of rows."""
        before = 0
        for first, last in self.rows:
            size = (last - first) * self.width
            low, high = max(self.start - before, 0), min(self.stop - before, size)
            if low < high:
                yield from self._within(first, low, high, before - self.start)
            before += size

    def _within(self, first: int, low: int, high: int, shift: int) -> Iterator[Rectangle]:
        """Flat positions ``low`` to ``high`` of the rows from ``first``: a part of a row, rows, a part."""
        width = self.width
        while low < high:
            row, column = divmod(low, width)
            whole_rows = (high - low) // width if column == 0 else 0
            taken = whole_rows * width or min(width - column, high - low)
            offsets: tuple[int, ...] = (first + row, self.columns[0] + column)
            sizes: tuple[int, ...] = (max(whole_rows, 1), taken // max(whole_rows, 1))
            dimensions = len(self.shape)
            yield Rectangle(offsets=offsets[:dimensions], sizes=sizes[:dimensions], start=low + shift)
            low += taken


def share(size: int, degree: int, index: int) -> Range:
    """The ``index``-th of ``degree`` equal parts of a range from 0."""
    return index * (size // degree), (index + 1) * (size // degree)


def fused(parts: tuple[int, ...], degree: int, index: int) -> tuple[Range, ...]:
    """One rank's rows of a matrix that is fused of parts."""
    result, start = [], 0
    for part in parts:
        low, high = share(part, degree, index)
        result.append((start + low, start + high))
        start += part
    return tuple(result)
