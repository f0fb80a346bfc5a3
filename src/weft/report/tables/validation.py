"""Predictions against measured runs, for people."""

from __future__ import annotations

from statistics import mean

from rich.console import Console
from rich.table import Table

from weft.validation.summary import APART, Errors, Validation

FARTHEST = 10
"""Runs that are listed by name, those with the largest errors."""


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
    _farthest(found, screen)
    for title, reasons in (("Skipped", found.reasons), ("In doubt", found.warnings)):
        if reasons:
            screen.print(f"\n{title}", style="bold")
        for why in reasons:
            screen.print(f"{why.runs:5d}  {why.family}: {why.reason}", markup=False)


def cause_table(found: Validation, screen: Console) -> None:
    """Errors by what runs have in common, the values of each cause together."""
    table = Table(title="Errors by what runs have in common", title_justify="left")
    for name in ("cause", "value", "runs", "families", "mean", "bias", "over others"):
        table.add_column(name, justify="left" if name in ("cause", "value") else "right")
    shown = ""
    for one in found.causes:
        if shown and one.cause != shown:
            table.add_section()
        name, shown = ("" if one.cause == shown else one.cause), one.cause
        shares = (_percent(one.mape), _percent(one.bias, signed=True), _percent(one.excess, signed=True))
        table.add_row(name, one.value, str(one.runs), str(one.families), *shares)
    screen.print(table)
    screen.print(
        "Every family weighs the same; over others: how much larger the mean error is than that of the same"
        " families' other runs."
    )


def _farthest(found: Validation, screen: Console) -> None:
    worst = sorted(found.outcomes, key=lambda one: -abs(one.error))[:FARTHEST]
    table = Table(title="Farthest off", title_justify="left")
    for name in ("run", "family", "measured", "predicted", "error"):
        table.add_column(name, justify="left" if name in ("run", "family") else "right")
    for one in worst:
        run = one.prepared.run
        times = (f"{one.prepared.measured_s:.4g} s", f"{one.predicted_s:.4g} s", f"{one.error:+.1%}")
        table.add_row(run.name, run.family, *times)
    screen.print(table)


def choice_table(found: Validation, screen: Console) -> None:
    """What taking the layout that Weft ranks first costs, among layouts of one job that were measured."""
    table = Table(title="The choice among measured layouts of one job", title_justify="left")
    for name in ("family", "jobs", "layouts", "regret", "worst", "random pick", "pairs", "in order"):
        table.add_column(name, justify="left" if name == "family" else "right")
    known = found.choices
    for one in known:
        shares = (_percent(one.regret), _percent(one.worst), _percent(one.random))
        table.add_row(one.family, str(one.jobs), str(one.layouts), *shares, str(one.pairs), _percent(one.ordered))
    if not known:
        screen.print("No job was measured in several layouts.")
        return
    table.add_section()
    regret, random = (_percent(mean(values)) for values in zip(*((c.regret, c.random) for c in known), strict=True))
    worst = _percent(max(one.worst for one in known))
    table.add_row("mean over families", "", "", regret, worst, random, "", "")
    screen.print(table)
    screen.print(
        "Regret: how much longer the layout that is predicted fastest took than the fastest;"
        f" in order: of the pairs more than {APART:.0%} apart."
    )


def _cells(one: Errors) -> tuple[str, ...]:
    worst = "-" if one.max_ape is None else f"{one.max_ape:.1%}"
    rank = "-" if one.spearman is None else f"{one.spearman:.3f}"
    shares = (_percent(one.mape), _percent(one.median_ape), _percent(one.bias, signed=True))
    return (one.family, str(one.runs), str(one.predicted), *shares, worst, rank, _percent(one.memory_mape))


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"
