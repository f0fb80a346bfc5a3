"""A training run for people: days, cost, energy, and how much time failures take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import format_count, format_seconds
from weft.views.blocks import Blank, Block, Fact

if TYPE_CHECKING:
    from weft.estimation.training import TrainingRun


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


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_seconds(seconds)


def _large(value: float) -> str:
    return format_count(value) if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
