"""What a fit of constants came to: errors with and without having seen a source, and the constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.interop.kernel_times import Traced
from weft.units import format_seconds
from weft.validation.fit import Fitted
from weft.validation.summary import INDENT, Errors
from weft.views.blocks import Block, Heading, Paragraph, rows_grid
from weft.views.words import printable

COLUMNS = ("family", "runs", "fitted", "source left out", "its bias", "worst", "rank corr.", "kind left out")


def fit_view(found: Fitted) -> Iterator[Block]:
    """Errors by family: as fitted, and of each family and each kind by constants fitted to the others."""
    fitted, by_family, by_kind = found.by_family()
    rows = []
    for seen, unseen, alone in zip(fitted, by_family, by_kind, strict=True):
        rank = "-" if unseen.spearman is None else f"{unseen.spearman:.3f}"
        bias = "-" if unseen.bias is None else f"{unseen.bias:+.1%}"
        shares = (_percent(seen.mape), _percent(unseen.mape), bias, _percent(unseen.max_ape))
        rows.append((unseen.family, str(unseen.predicted), *shares, rank, _percent(alone.mape)))
    means = [_mean(errors) for errors in (fitted, by_family, by_kind)]
    rows.append(("mean over families", "", means[0], means[1], "", "", "", means[2]))
    yield Heading("Mean absolute error of iteration time")
    yield rows_grid(COLUMNS, rows, left=("family",))
    yield Paragraph(
        "Left out: predicted by constants that were fitted without the run's source, or without it and all runs of its"
        " kind (generation of accelerators, framework, and dense, experts, state-space or long context).",
        indent=2,
    )


def _mean(errors: Sequence[Errors]) -> str:
    known = [error.mape for error in errors if not error.family.startswith(INDENT) and error.mape is not None]
    return _percent(sum(known) / len(known) if known else None)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def calibration_view(found: Fitted) -> Iterator[Block]:
    """Each fitted constant beside what it was before."""
    rows = [
        (row["table"], row["constant"], f"{row['before']:.4g}", f"{row['fitted']:.4g}", row["unit"])
        for row in found.to_dicts()
    ]
    yield Heading("Constants")
    names = ("table", "constant", "before", "fitted", "unit")
    yield rows_grid(names, rows, left=("table", "constant", "unit"))


def traced_view(found: Traced) -> Iterator[Block]:
    """The shapes of a trace, the longest in all first."""
    rows = []
    for row in sorted(found.to_dicts(), key=lambda row: -row["seconds"] * row["calls"]):
        if row["kind"] == "product":
            groups = f"{row['groups']:.0f} x " if row["groups"] > 1 else ""
            shape = f"{groups}({row['m']:.0f} x {row['k']:.0f}) by ({row['k']:.0f} x {row['n']:.0f})"
        else:
            heads = f"{row['heads']:.0f}/{row['kv_heads']:.0f} heads of {row['qk_dim']:.0f}/{row['v_dim']:.0f}"
            shape = f"{row['batch']:.0f} x {row['sequence']:.0f} tokens, {heads}"
        times = (format_seconds(row["seconds"]), format_seconds(row["seconds"] * row["calls"]))
        rows.append((row["kind"], row["phase"], shape, row.get("precision", ""), f"{row['calls']:,}", *times))
    yield Heading(f"Kernels of {printable(found.source)}, medians")
    names = ("kernel", "phase", "shape", "precision", "calls", "time", "in all")
    yield rows_grid(names, rows, left=names[:4])
