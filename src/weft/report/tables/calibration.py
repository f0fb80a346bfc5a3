"""What a fit of constants came to: errors with and without having seen a source, and the constants."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from weft.interop.traces.kernel_times import Traced
from weft.report.tables.words import printable
from weft.units import format_seconds
from weft.validation.fit import Fitted
from weft.validation.summary import INDENT, Errors

COLUMNS = ("family", "runs", "fitted", "source left out", "its bias", "worst", "rank corr.", "kind left out")


def fit_table(found: Fitted, screen: Console) -> None:
    """Errors by family: as fitted, and of each family and each kind by constants fitted to the others."""
    fitted, by_family, by_kind = found.by_family()
    table = Table(title="Mean absolute error of iteration time", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "family" else "right")
    for seen, unseen, alone in zip(fitted, by_family, by_kind, strict=True):
        rank = "-" if unseen.spearman is None else f"{unseen.spearman:.3f}"
        bias = "-" if unseen.bias is None else f"{unseen.bias:+.1%}"
        shares = (_percent(seen.mape), _percent(unseen.mape), bias, _percent(unseen.max_ape))
        table.add_row(unseen.family, str(unseen.predicted), *shares, rank, _percent(alone.mape))
    means = [_mean(errors) for errors in (fitted, by_family, by_kind)]
    table.add_section()
    table.add_row("mean over families", "", means[0], means[1], "", "", "", means[2])
    screen.print(table)
    screen.print(
        "Left out: predicted by constants that were fitted without the run's source, or without it and all runs of its"
        " kind (generation of accelerators, framework, and dense, experts, state-space or long context)."
    )


def _mean(errors: Sequence[Errors]) -> str:
    whole = (one for one in errors if not one.family.startswith(INDENT))
    known = [one.mape for one in whole if one.mape is not None]
    return _percent(sum(known) / len(known) if known else None)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def calibration_table(found: Fitted, screen: Console) -> None:
    """Each fitted constant beside what it was before."""
    table = Table(title="Constants", title_justify="left")
    for name in ("table", "constant", "before", "fitted", "unit"):
        table.add_column(name, justify="right" if name in ("before", "fitted") else "left")
    for row in found.to_dicts():
        table.add_row(row["table"], row["constant"], f"{row['before']:.4g}", f"{row['fitted']:.4g}", row["unit"])
    screen.print(table)


def traced_table(found: Traced, screen: Console) -> None:
    """The shapes of a trace, the longest in all first."""
    table = Table(title=f"Kernels of {printable(found.source)}, medians", title_justify="left")
    for name in ("kernel", "phase", "shape", "precision", "calls", "time", "in all"):
        table.add_column(name, justify="right" if name in ("calls", "time", "in all") else "left")
    for row in sorted(found.to_dicts(), key=lambda row: -row["seconds"] * row["calls"]):
        if row["kind"] == "product":
            groups = f"{row['groups']:.0f} x " if row["groups"] > 1 else ""
            shape = f"{groups}({row['m']:.0f} x {row['k']:.0f}) by ({row['k']:.0f} x {row['n']:.0f})"
        else:
            heads = f"{row['heads']:.0f}/{row['kv_heads']:.0f} heads of {row['qk_dim']:.0f}/{row['v_dim']:.0f}"
            shape = f"{row['batch']:.0f} x {row['sequence']:.0f} tokens, {heads}"
        times = (format_seconds(row["seconds"]), format_seconds(row["seconds"] * row["calls"]))
        table.add_row(row["kind"], row["phase"], shape, row.get("precision", ""), f"{row['calls']:,}", *times)
    screen.print(table)
