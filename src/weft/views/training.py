"""A training run for people: days, cost, energy, and how much time failures take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import format_count, format_seconds
from weft.views import words
from weft.views.blocks import Blank, Block, Fact, Paragraph, rows_grid

if TYPE_CHECKING:
    from weft.estimation.result import TrainingRun
    from weft.search.goodput import GoodputReport


def training_view(run: TrainingRun) -> Iterator[Block]:
    """One training run in a sentence."""
    parts = [f"{format_count(run.tokens)} tokens in {_days(run.expected_s)}"]
    if run.failures is not None:
        lost, goodput = _days(run.expected_s - run.training_s), f"goodput {run.failures.goodput:.1%}"
        parts[0] += f", of which failures and checkpoints take {lost} ({goodput}; failures: {run.failures.source})"
    if run.usd is not None:
        parts.append(f"${_large(run.usd)} at ${run.usd_per_accelerator_hour:g} per GPU-hour")
    parts.append(f"{_large(run.energy_mwh)} MWh")
    yield Blank()
    yield Fact("Run:", ", ".join(parts))


def goodput_view(report: GoodputReport) -> Iterator[Block]:
    """A training run under failures: its goodput, days and cost, and what each class of failures costs."""
    days = f"{_days(report.run.expected_s)} for {_days(report.run.training_s)} of training"
    yield Paragraph(f"Goodput {report.goodput:.1%}: {days}", style="bold")
    yield from training_view(report.run)
    rows = report.to_dicts()
    yield rows_grid(tuple(rows[0]), [[words.told(name, value) for name, value in row.items()] for row in rows])


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_seconds(seconds)


def _large(value: float) -> str:
    return format_count(value) if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
