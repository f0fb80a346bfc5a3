"""SVG by hand: text, axes with ticks, point labels, and the document around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from weft.report.tables.words import printable

INK, PALE = "#222222", "#dddddd"
CHARACTER = 6.6


@dataclass(frozen=True, slots=True)
class Axes:
    """The frame of a plot, with ticks on both sides."""

    x: Sequence[float]
    y: Sequence[float]
    LEFT = 76.0
    RIGHT = 860.0
    TOP = 56.0
    BOTTOM = 500.0

    def across(self, value: float) -> float:
        return self.LEFT + (value - self.x[0]) / (self.x[-1] - self.x[0]) * (self.RIGHT - self.LEFT)

    def up(self, value: float) -> float:
        return self.BOTTOM - (value - self.y[0]) / (self.y[-1] - self.y[0]) * (self.BOTTOM - self.TOP)

    def drawn(self, x_title: str, y_title: str) -> list[str]:
        """Grid lines, tick labels and titles."""
        items = []
        for tick in self.x:
            at = self.across(tick)
            items.append(grid_line(at, self.TOP, at, self.BOTTOM))
            items.append(text(at, self.BOTTOM + 18, f"{tick:g}", anchor="middle"))
        for tick in self.y:
            at = self.up(tick)
            items.append(grid_line(self.LEFT, at, self.RIGHT, at))
            items.append(text(self.LEFT - 8, at + 4, f"{tick:g}", anchor="end"))
        middle = (self.LEFT + self.RIGHT) / 2
        items.append(text(middle, self.BOTTOM + 42, x_title, anchor="middle", bold=True))
        upright = f'transform="rotate(-90 22 {(self.TOP + self.BOTTOM) / 2:.0f})"'
        centre = (self.TOP + self.BOTTOM) / 2
        items.append(text(22, centre, y_title, anchor="middle", bold=True, extra=upright))
        return items


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round values that enclose the range."""
    span = max(high - low, 0.02 * abs(high), 1e-12)
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * 6 >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil((low + span) / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{PALE}"/>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    bold: bool = False,
    anchor: str = "start",
    colour: str = INK,
    extra: str = "",
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{weight} {extra}>{escape(printable(words))}</text>"


def document(width: float, height: float, items: Sequence[str], title: str) -> str:
    body = "\n".join(items)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        ' font-family="DejaVu Sans, Verdana, Arial, sans-serif">\n'
        f"<title>{escape(printable(title))}</title>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def point_labels(points: Sequence[tuple[float, float]], labels: Sequence[str], limit: float) -> list[str]:
    """Labels right of and above their points (below on the line at ``limit``); those that would cover another
    or a point are left out."""
    taken: list[tuple[float, float, float]] = []
    items = []
    for (x, y), label in zip(points, labels, strict=True):
        left, right = x + 8, x + 8 + len(label) * CHARACTER
        base = y + 15 if abs(y - 11 - limit) < 10 else y - 7
        crossed = any(left < b and a < right and abs(base - c) < 15 for a, b, c in taken)
        others = (point for point in points if point != (x, y))
        covered = any(left - 5 < px < right + 5 and base - 15 < py < base + 6 for px, py in others)
        if not (crossed or covered or right > Axes.RIGHT + 30):
            taken.append((left, right, base))
            items.append(text(left, base, label, size=11))
    return items
