"""Predictions against measured runs, for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from weft.validation.summary import APART, Errors, Validation
from weft.views.blocks import Block, Heading, Paragraph, rows_grid

FARTHEST = 10
"""Runs that are listed by name, those with the largest errors."""


def validation_view(found: Validation) -> Iterator[Block]:
    """Errors by family, what they come to, and why runs were skipped."""
    yield Heading("Predicted against measured iteration time")
    names = ("family", "runs", "predicted", "mean", "median", "bias", "worst", "rank corr.", "memory")
    families = [family.family for family in found.families]
    grid = rows_grid(names, [*map(_cells, found.families), _cells(found.pooled)], left=("family",))
    yield replace(grid, columns=[replace(grid.columns[0], values=[*families, ""]), *grid.columns[1:]])
    if found.headline is not None:
        yield Paragraph(f"Mean over families of the mean absolute error: {found.headline:.1%}", indent=2)
    yield Heading("Farthest off")
    worst = sorted(found.outcomes, key=lambda outcome: -abs(outcome.error))[:FARTHEST]
    yield rows_grid(
        ("run", "family", "measured", "predicted", "error"),
        [
            (
                outcome.prepared.run.name,
                outcome.prepared.run.family,
                f"{outcome.prepared.measured_s:.4g} s",
                f"{outcome.predicted_s:.4g} s",
                f"{outcome.error:+.1%}",
            )
            for outcome in worst
        ],
        left=("run", "family"),
    )
    for title, reasons in (("Skipped", found.reasons), ("In doubt", found.warnings)):
        if reasons:
            yield Heading(title)
        for why in reasons:
            yield Paragraph(f"{why.runs:5d}  {why.family}: {why.reason}", hang=7)


def cause_view(found: Validation) -> Iterator[Block]:
    """Errors by what runs have in common, the values of each cause together."""
    rows, shown = [], ""
    for cause in found.causes:
        name, shown = ("" if cause.cause == shown else cause.cause), cause.cause
        shares = (_percent(cause.mape), _percent(cause.bias, signed=True), _percent(cause.excess, signed=True))
        rows.append((name, cause.value, str(cause.runs), str(cause.families), *shares))
    yield Heading("Errors by what runs have in common")
    names = ("cause", "value", "runs", "families", "mean", "bias", "over others")
    yield rows_grid(names, rows, left=("cause", "value"))
    yield Paragraph(
        "Every family weighs the same; over others: how much larger the mean error is than that of the same"
        " families' other runs.",
        indent=2,
    )


def choice_view(found: Validation) -> Iterator[Block]:
    """What taking the layout that Weft ranks first costs, among layouts of one job that were measured."""
    known = found.choices
    if not known:
        yield Paragraph("No job was measured in several layouts.")
        return
    rows = []
    for choice in known:
        shares = (_percent(choice.regret), _percent(choice.worst), _percent(choice.random))
        counts = (str(choice.jobs), str(choice.layouts))
        rows.append((choice.family, *counts, *shares, str(choice.pairs), _percent(choice.ordered)))
    regret, random = (_percent(mean(values)) for values in zip(*((c.regret, c.random) for c in known), strict=True))
    worst = _percent(max(choice.worst for choice in known))
    rows.append(("mean over families", "", "", regret, worst, random, "", ""))
    yield Heading("The choice among measured layouts of one job")
    names = ("family", "jobs", "layouts", "regret", "worst", "random pick", "pairs", "in order")
    yield rows_grid(names, rows, left=("family",))
    yield Paragraph(
        "Regret: how much longer the layout that is predicted fastest took than the fastest;"
        f" in order: of the pairs more than {APART:.0%} apart.",
        indent=2,
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
