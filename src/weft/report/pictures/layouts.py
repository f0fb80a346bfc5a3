"""Pictures as SVG text: where the time and the memory of layouts go, and the trade between the two.

The colours keep apart for colour-blind readers (Okabe and Ito's, and P. Tol's muted scheme); parts are also
labelled, and separated by white lines.  All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from weft.report.pictures.svg import CHARACTER, INK, Axes, document, point_labels, text, ticks
from weft.report.tables.words import MEMORY_LABELS, TIME_LABELS, layout_words, recompute_words, schedule_words
from weft.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from weft.estimation.result import Estimate, Part
    from weft.search.ranking import Plan

TIME_COLOURS = {
    "forward_s": "#0072b2",
    "backward_s": "#56b4e9",
    "recompute_s": "#332288",
    "tensor_s": "#e69f00",
    "context_s": "#d55e00",
    "expert_s": "#882255",
    "weights_s": "#f0e442",
    "stage_send_s": "#cc79a7",
    "bubble_s": "#bbbbbb",
    "data_s": "#009e73",
    "optimizer_s": "#44aa99",
    "offload_s": "#999933",
    "host_s": "#555555",
}
MEMORY_COLOURS = {
    "weights_bytes": "#0072b2",
    "gradients_bytes": "#56b4e9",
    "optimizer_bytes": "#44aa99",
    "activations_bytes": "#e69f00",
    "buffers_bytes": "#cc79a7",
    "reserve_bytes": "#bbbbbb",
}
_LIGHT_TEXT = ("#0072b2", "#332288", "#d55e00", "#882255", "#009e73", "#555555", "#999933")
_NAMES, _TIME, _TOTALS, _MEMORY, _USED = 150, 480, 145, 190, 125
"""Pixels for the names, the bars of time and their totals, the bars of memory and theirs."""
_WIDTH = _NAMES + _TIME + _TOTALS + _MEMORY + _USED
_ROW, _BAR, _TOP, _LEGEND = 44, 26, 78, 22
"""Width of a 12-pixel character, on the safe side."""


@dataclass(frozen=True, slots=True)
class _Bars:
    """One column of stacked bars: its left edge, pixels per unit, and the look of its parts."""

    left: float
    scale: float
    colours: dict[str, str]
    labels: dict[str, str]


def breakdown_svg(subject: Plan | Sequence[Estimate], *, top: int = 10, title: str = "") -> str:
    """Stacked bars of the time and memory of the fastest layouts of a plan, or of estimates in their order.

    Args:
        subject: what to draw; an empty one gives a picture that says so.
        top: most bars.
        title: heading; model and cluster of a plan by default.
    """
    estimates = tuple(subject if isinstance(subject, Sequence) else subject.layouts)[:top]
    if not isinstance(subject, Sequence):
        title = title or f"{subject.job.model.name} on {subject.cluster.name}"
    if not estimates:
        return document(400, 60, [text(16, 34, "No layout to draw", size=14)], "no layout")
    time = _Bars(_NAMES, _TIME / max(one.iteration_s for one in estimates), TIME_COLOURS, TIME_LABELS)
    most = max(max(one.memory_bytes, one.capacity_bytes) for one in estimates)
    memory = _Bars(_NAMES + _TIME + _TOTALS, _MEMORY / most, MEMORY_COLOURS, MEMORY_LABELS)
    items = [
        text(16, 30, title or "Iteration time and memory", size=17, bold=True),
        text(time.left, _TOP - 16, "Seconds per iteration (communication: exposed part only)", bold=True),
        text(memory.left, _TOP - 16, "Memory of the fullest stage", bold=True),
    ]
    for row, estimate in enumerate(estimates):
        items += _row(_TOP + row * _ROW, row + 1, estimate, time, memory)
    bottom = _TOP + len(estimates) * _ROW + 16
    used = [part.name for part in estimates[0].time if any(_value(one.time, part.name) for one in estimates)]
    held = [part.name for part in estimates[0].memory if any(_value(one.memory, part.name) for one in estimates)]
    items += _legend(time.left, bottom, used, time, columns=2)
    items += _legend(memory.left, bottom, held, memory, columns=1)
    height = bottom + _LEGEND * max(math.ceil(len(used) / 2), len(held)) + 10
    return document(_WIDTH, height, items, title or "Iteration time and memory")


def _row(top: float, rank: int, estimate: Estimate, time: _Bars, memory: _Bars) -> list[str]:
    layout = estimate.layout
    detail = f"micro-batch {layout.micro_batch}, {schedule_words(layout)}, recompute {recompute_words(layout)}"
    middle = top + _BAR / 2 + 4
    full = memory.left + estimate.capacity_bytes * memory.scale
    total = f"{format_seconds(estimate.iteration_s)}, MFU {estimate.mfu:.0%}"
    used = f"{estimate.memory_bytes / 2**30:.1f} of {format_bytes(estimate.capacity_bytes)}"
    room = memory.left + max(estimate.memory_bytes, estimate.capacity_bytes) * memory.scale
    end = time.left + estimate.iteration_s * time.scale
    return [
        text(16, top + 11, f"{rank}. {layout_words(layout)}", bold=True),
        text(16, top + 26, detail, size=11),
        *_stack(top, estimate.time, estimate.iteration_s, time),
        text(end + 8, middle, total),
        *_stack(top, estimate.memory, estimate.capacity_bytes, memory),
        f'<line x1="{full:.1f}" y1="{top - 4}" x2="{full:.1f}" y2="{top + _BAR + 4}"'
        f' stroke="{INK}" stroke-width="2"/>',
        text(room + 8, middle, used),
    ]


def _stack(top: float, parts: Sequence[Part], whole: float, bars: _Bars) -> list[str]:
    """One stacked bar; parts wide enough carry their share of the whole."""
    items, left = [], bars.left
    for part in parts:
        width = part.value * bars.scale
        if width > 0:
            colour = bars.colours[part.name]
            share = f"{part.value / whole:.0%}"
            items.append(
                f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" fill="{colour}"'
                f' stroke="#ffffff" stroke-width="{min(1.0, width / 4):.2f}">'
                f"<title>{escape(bars.labels[part.name])}: {share}</title></rect>"
            )
            if width > len(share) * CHARACTER + 6:
                ink = "#ffffff" if colour in _LIGHT_TEXT else INK
                items.append(text(left + width / 2, top + _BAR / 2 + 4, share, anchor="middle", colour=ink))
        left += width
    return items


def _value(parts: Sequence[Part], name: str) -> float:
    return next(part.value for part in parts if part.name == name)


def _legend(left: float, top: float, names: Sequence[str], bars: _Bars, *, columns: int) -> list[str]:
    items, rows = [], math.ceil(len(names) / columns)
    for i, name in enumerate(names):
        x, y = left + (i // rows) * 250, top + (i % rows) * _LEGEND
        items.append(
            f'<rect x="{x:.1f}" y="{y}" width="13" height="13" fill="{bars.colours[name]}" stroke="{INK}"'
            ' stroke-width="0.5"/>'
        )
        items.append(text(x + 20, y + 11, bars.labels[name]))
    return items


def pareto_svg(plan: Plan) -> str:
    """Memory against iteration time of the layouts that no other beats in both, up to twice the shortest
    time."""
    fastest = plan.pareto[0].iteration_s if plan.pareto else 0.0
    shown = [one for one in plan.pareto if one.iteration_s <= 2 * fastest]
    if not shown:
        return document(400, 60, [text(16, 34, "No layout to draw", size=14)], "no layout")
    title = f"{plan.job.model.name} on {plan.cluster.name}: memory against iteration time"
    axes = Axes(
        x=ticks(shown[0].iteration_s, max(one.iteration_s for one in shown)),
        y=ticks(0.0, max(one.capacity_bytes for one in shown) / 2**30),
    )
    points = [(axes.across(one.iteration_s), axes.up(one.memory_bytes / 2**30)) for one in shown]
    steps = f"M{points[0][0]:.1f},{points[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
    limit = axes.up(shown[0].capacity_bytes / 2**30)
    items = [
        text(16, 30, title, size=17, bold=True),
        *axes.drawn("seconds per iteration", "GiB per accelerator"),
        f'<line x1="{Axes.LEFT}" y1="{limit:.1f}" x2="{Axes.RIGHT}" y2="{limit:.1f}" stroke="#d55e00"'
        ' stroke-width="1.5" stroke-dasharray="6 4"/>',
        text(Axes.RIGHT, limit - 6, "capacity", anchor="end", colour="#d55e00"),
        f'<path d="{steps}" fill="none" stroke="#56b4e9" stroke-width="1.5"/>',
        *(_point(x, y, one) for (x, y), one in zip(points, shown, strict=True)),
        *point_labels(points, [layout_words(one.layout) for one in shown], limit),
    ]
    return document(900, 560, items, title)


def _point(x: float, y: float, estimate: Estimate) -> str:
    time, memory = format_seconds(estimate.iteration_s), format_bytes(estimate.memory_bytes)
    hover = escape(f"{layout_words(estimate.layout)}: {time}, {memory}")
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#0072b2"><title>{hover}</title></circle>'
