"""All-reduce times of routers over failed spines, as groups of bars: a plot for every workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from weft.report.pictures.svg import CHARACTER, INK, document, grid_line, text, ticks
from weft.report.tables.route_evaluation import workload_words

if TYPE_CHECKING:
    from weft.simulation.routes.evaluation import Evaluation, Row

COLOURS = (
    "#bbbbbb",
    "#e69f00",
    "#0072b2",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#332288",
    "#882255",
    "#44aa99",
    "#999933",
)
_BAR, _GAP, _HIGH = 27.0, 22.0, 210.0
_LEFT, _RIGHT, _ABOVE, _BELOW = 52.0, 20.0, 34.0, 56.0
_TOP, _WIDEST, _NARROWEST = 124.0, 1180.0, 620.0


@dataclass(frozen=True, slots=True)
class _Plot:
    """Where a plot lies, what is on its axes, and the colour of each router."""

    left: float
    top: float
    failed: tuple[int, ...]
    y: tuple[float, ...]
    colours: dict[str, str]

    @property
    def group(self) -> float:
        return len(self.colours) * _BAR + _GAP

    @property
    def right(self) -> float:
        return self.left + len(self.failed) * self.group

    @property
    def floor(self) -> float:
        return self.top + _HIGH

    def up(self, value: float) -> float:
        return self.floor - value / self.y[-1] * _HIGH


def evaluation_svg(evaluation: Evaluation) -> str:
    """Groups of bars, one for each number of failed spines; a dashed line is the time without collisions.

    All plots share one scale, and stand beside each other as far as there is room.
    """
    rows = evaluation.rows
    if not rows:
        return document(400, 60, [text(16, 34, "Nothing to draw", size=14)], "no evaluation")
    workloads = list(dict.fromkeys(row.workload.name for row in rows))
    routers = list(dict.fromkeys(row.replay.router for row in rows))
    failed = tuple(dict.fromkeys(row.failed_spines for row in rows))
    scale = tuple(ticks(0.0, 1.04 * max(float(row.replay.mean_s.mean()) for row in rows)))
    colours = {router: COLOURS[i % len(COLOURS)] for i, router in enumerate(routers)}
    wide = _LEFT + len(failed) * (len(routers) * _BAR + _GAP) + _RIGHT
    across = max(1, min(len(workloads), int(_WIDEST // wide)))
    width = max(across * wide, _NARROWEST) + 16
    legend, tall = _legend(colours, width)
    items = [text(16, 30, "All-reduce time by router", size=17, bold=True), *legend]
    items.append(text(16, 52, f"{evaluation.fabric}, mean over {evaluation.epochs} epochs and all jobs"))
    for at, name in enumerate(workloads):
        plot = _Plot(
            8 + at % across * wide + _LEFT,
            _TOP + tall + at // across * (_ABOVE + _HIGH + _BELOW),
            failed,
            scale,
            colours,
        )
        items += _drawn(plot, [row for row in rows if row.workload.name == name])
    lines = -(-len(workloads) // across)
    height = _TOP + tall + lines * (_ABOVE + _HIGH + _BELOW) - _ABOVE
    return document(width, height, items, "All-reduce time by router")


def _legend(colours: dict[str, str], width: float) -> tuple[list[str], float]:
    """Colours of routers in lines, and the height of the lines beyond the first."""
    items: list[str] = []
    x, y = 16.0, 66.0
    for name, colour in [*colours.items(), ("no collision", "")]:
        room = 42 + len(name) * CHARACTER
        if x + room > width:
            x, y = 16.0, y + 20
        if colour:
            items.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="13" height="13" fill="{colour}"/>')
        else:
            items.append(_dashes(x, y + 7, x + 14))
        items.append(text(x + 19, y + 11, name))
        x += room
    return items, y - 66.0


def _drawn(plot: _Plot, rows: Sequence[Row]) -> list[str]:
    """A plot: grid, bars with their values, what they would be without collisions."""
    middle = (plot.left + plot.right) / 2
    items = [text(middle, plot.top - 14, workload_words(rows[0]), size=13, bold=True, anchor="middle")]
    for tick in plot.y:
        items.append(grid_line(plot.left, plot.up(tick), plot.right, plot.up(tick)))
        items.append(text(plot.left - 7, plot.up(tick) + 4, f"{tick:g}", anchor="end", size=11))
    for at, count in enumerate(plot.failed):
        x = plot.left + (at + 0.5) * plot.group
        items.append(text(x, plot.floor + 17, str(count), anchor="middle"))
    items.append(text(middle, plot.floor + 35, "failed spines", anchor="middle", size=11))
    turned = f'transform="rotate(-90 {plot.left - 34:.1f} {plot.floor - _HIGH / 2:.1f})"'
    items.append(text(plot.left - 34, plot.floor - _HIGH / 2, "seconds", anchor="middle", size=11, extra=turned))
    order = list(plot.colours)
    for row in rows:
        items += _bar(plot, order.index(row.replay.router), row)
    best = plot.up(float(rows[0].replay.alone_s.mean()))
    items.append(_dashes(plot.left, best, plot.right))
    items.append(
        f'<line x1="{plot.left:.1f}" y1="{plot.floor:.1f}" x2="{plot.right:.1f}" y2="{plot.floor:.1f}"'
        f' stroke="{INK}"/>'
    )
    return items


def _bar(plot: _Plot, turn: int, row: Row) -> list[str]:
    value = float(row.replay.mean_s.mean())
    x = plot.left + plot.failed.index(row.failed_spines) * plot.group + _GAP / 2 + turn * _BAR
    top = plot.up(value)
    hover = escape(
        f"{row.replay.router}, {row.failed_spines} spines down: {value:.4g} s, {row.replay.ratio.mean():.3f} x alone"
    )
    return [
        f'<rect x="{x + 1:.1f}" y="{top:.1f}" width="{_BAR - 2:.1f}" height="{plot.floor - top:.1f}"'
        f' fill="{plot.colours[row.replay.router]}"><title>{hover}</title></rect>',
        text(x + _BAR / 2, top - 4, f"{value:.{2 if value < 1 else 3}g}", size=10, anchor="middle"),
    ]


def _dashes(left: float, y: float, right: float) -> str:
    return (
        f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="{INK}"'
        ' stroke-width="1.2" stroke-dasharray="5 3"/>'
    )
