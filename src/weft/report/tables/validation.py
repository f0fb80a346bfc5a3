"""Predictions against measured runs, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from weft.validation.summary import Errors, Validation


def validation_table(found: Validation, screen: Console) -> None:
    """Errors by family, what they come to, and why runs were skipped."""
    table = Table(title="Predicted against measured iteration time", title_justify="left")
    for name in ("family", "runs", "predicted", "mean", "median", "bias", "worst", "rank corr.", "memory"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for one in found.families:
        table.add_row(*_cells(one))
    table.add_section()
    table.add_row(*_cells(found.pooled))
    screen.print(table)
    if found.headline is not None:
        screen.print(f"Mean over families of the mean absolute error: {found.headline:.1%}")
    if found.reasons:
        screen.print("\nSkipped", style="bold")
        for why in found.reasons:
            screen.print(f"{why.runs:5d}  {why.family}: {why.reason}", markup=False)


def _cells(one: Errors) -> tuple[str, ...]:
    worst = "-" if one.max_ape is None else f"{one.max_ape:.1%}"
    rank = "-" if one.spearman is None else f"{one.spearman:.3f}"
    shares = (_percent(one.mape), _percent(one.median_ape), _percent(one.bias, signed=True))
    return (one.family, str(one.runs), str(one.predicted), *shares, worst, rank, _percent(one.memory_mape))


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"
