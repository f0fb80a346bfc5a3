"""Measurements for people: predictions against measured runs, a fit of constants, and a measured machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, floor, log10
from statistics import mean
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from weft.cluster.files import write_cluster
from weft.codec import encode
from weft.estimation.trust import COVERED, shipped_runs
from weft.interop.kernel_times import Traced
from weft.layout.text import format_layout
from weft.units import counted, format_bytes, format_seconds, format_si
from weft.validation.fit import Fitted
from weft.validation.measured import peak_flops
from weft.validation.summary import APART, INDENT, Errors, PredictedRun, Validation
from weft.views import words
from weft.views.blocks import Blank, Block, Column, Heading, Paragraph, Table, cell, headline, rows_grid
from weft.views.charts import INK, MUTED, Chart, colours, data, finished, linear, tooltip
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.validation.measured import Described
    from weft.validation.summary import Validation


FARTHEST, WORST = 10, 3
"""Runs with the largest errors: in their table, and in the line that stands for it."""
_DROPS = {"memory": 3, "rank corr.": 2, "runs": 1}


def validation_verdict(result: Validation, *, shipped: bool) -> str:
    """How far to trust an estimate: with ``shipped`` runs and constants by sources left out of the fit."""
    if result.headline is None:
        return f"No run can be predicted ({counted(len(result.rows), 'run')} skipped)"
    families = [family for family in result.families if family.predicted]
    runs = f"{counted(result.pooled.predicted, 'run')} from {counted(len(families), 'source')}"
    if not shipped:
        return f"Mean error {result.headline:.1%} (bias {result.pooled.bias:+.1%}; {runs})"
    unseen = {run.run: abs(run.error) for run in shipped_runs()}
    errors: dict[str, list[float]] = {}
    for outcome in result.outcomes:
        errors.setdefault(outcome.prepared.run.family, []).append(unseen[outcome.prepared.run.name])
    left_out = mean(map(mean, errors.values()))
    return (
        f"Expect errors of {left_out:.1%}: the mean over sources of runs that were left out of the fit"
        f" ({result.headline:.1%} with all fitted; {runs})"
    )


def validation_view(result: Validation, *, shipped: bool = False, verbose: bool = True) -> Iterator[Block]:
    """The mean error, errors by family, the runs farthest off, and why runs were skipped.

    Args:
        shipped: the runs and constants are those that Weft comes with, fitted to each other.
        verbose: show the last two as tables, not in a line each.
    """
    yield from headline(validation_verdict(result, shipped=shipped))
    names = ("family", "runs", "predicted", "mean", "median", "bias", "worst", "rank corr.", "memory")
    families = [family.family for family in result.families]
    grid = rows_grid(names, [*map(_cells, result.families), _cells(result.pooled)], left=("family",))
    columns = [replace(column, drop=_DROPS.get(column.heading, 0)) for column in grid.columns]
    yield Table(replace(columns[0], values=[*families, ""]), *columns[1:])
    fitted = "by constants fitted to these runs; " if shipped else ""
    yield Paragraph(
        f"Errors of the time of a step, {fitted}mean and median without sign, bias with it (-: predicted too fast);"
        " rank corr.: 1 where runs are in the measured order; memory: error of peak memory. First line: every family"
        " weighs the same; all runs: every run does.",
        indent=2,
    )
    worst = sorted(result.outcomes, key=lambda outcome: -abs(outcome.error))[:FARTHEST]
    if verbose:
        yield from _farthest(worst)
    elif worst:
        runs = ", ".join(f"{outcome.prepared.run.name} {outcome.error:+.0%}" for outcome in worst[:WORST])
        yield Paragraph(f"Largest errors: {runs}", indent=2)
    for title, reasons in (("Skipped", result.reasons), ("Measured time uncertain", result.warnings)):
        if not reasons:
            continue
        if verbose:
            yield Heading(title)
            for why in reasons:
                yield Paragraph(f"{why.runs:5d}  {why.family}: {why.reason}", hang=7)
        else:
            count = sum(why.runs for why in reasons)
            yield Paragraph(f"{title}: {counted(count, 'run')} (reasons: --verbose)", indent=2)


def _farthest(worst: Sequence[PredictedRun]) -> Iterator[Block]:
    yield Heading("Largest errors")
    rows = [
        (
            outcome.prepared.run.name,
            outcome.prepared.run.family,
            f"{outcome.prepared.measured_s:.4g} s",
            f"{outcome.predicted_s:.4g} s",
            f"{outcome.error:+.1%}",
        )
        for outcome in worst
    ]
    yield rows_grid(("run", "family", "measured", "predicted", "error"), rows, left=("run", "family"))


def choice_view(result: Validation) -> Iterator[Block]:
    """How much time is lost by taking the layout that Weft ranks first, among the measured layouts of a job."""
    choices = result.choices
    if not choices:
        yield Heading("Choice of layout: no job was measured in several layouts")
        return
    rows = []
    for choice in choices:
        shares = map(cell, (choice.regret, choice.worst, choice.random))
        counts = (str(choice.jobs), str(choice.layouts))
        rows.append((choice.family, *counts, *shares, str(choice.pairs), cell(choice.ordered)))
    regret, random = (mean(values) for values in zip(*((c.regret, c.random) for c in choices), strict=True))
    worst = max(choice.worst for choice in choices)
    rows.append(("mean over families", "", "", cell(regret), cell(worst), cell(random), "", ""))
    yield Heading(f"Layout ranked first: {regret:.1%} slower than the fastest measured; at random: {random:.0%}")
    names = ("family", "jobs", "layouts", "regret", "worst", "random pick", "pairs", "in order")
    yield rows_grid(names, rows, left=("family",))
    yield Paragraph(
        "Regret: how much longer the layout predicted fastest took than the fastest measured."
        f" In order: share of pairs more than {APART:.0%} apart.",
        indent=2,
    )


def _cells(one: Errors) -> tuple[str, ...]:
    shares = (cell(one.mape), cell(one.median_ape), cell(one.bias, "+.1%"), cell(one.max_ape))
    return (one.family, str(one.runs), str(one.predicted), *shares, cell(one.spearman, ".3f"), cell(one.memory_mape))


COLUMNS = ("family", "runs", "fitted", "source left out", "its bias", "worst", "rank corr.", "kind left out")


def fit_view(result: Fitted) -> Iterator[Block]:
    """The error of the fit, and by family: as fitted, and with its source or its kind left out of the fit."""
    fitted, by_family, by_kind = result.by_family()
    rows = []
    for seen, unseen, alone in zip(fitted, by_family, by_kind, strict=True):
        shares = (cell(seen.mape), cell(unseen.mape), cell(unseen.bias, "+.1%"), cell(unseen.max_ape))
        rows.append((unseen.family, str(unseen.predicted), *shares, cell(unseen.spearman, ".3f"), cell(alone.mape)))
    means = [_mean(errors) for errors in (fitted, by_family, by_kind)]
    rows.append(("mean over families", "", means[0], means[1], "", "", "", means[2]))
    runs = counted(len(result.fit.seconds), "run")
    yield from headline(
        f"Mean error {means[1]} for a source left out of the fit, {means[0]} fitted"
        f" ({len(result.fit.values)} constants, {runs})"
    )
    yield rows_grid(COLUMNS, rows, left=("family",))
    yield Paragraph(
        "Left out: predicted with constants fitted without the run's source, or without it and all runs of its kind"
        " (accelerator generation, framework, and dense, experts, state-space or long context).",
        indent=2,
    )


def _mean(errors: Sequence[Errors]) -> str:
    known = [error.mape for error in errors if not error.family.startswith(INDENT) and error.mape is not None]
    return cell(sum(known) / len(known) if known else None)


def calibration_view(result: Fitted) -> Iterator[Block]:
    """Each fitted constant beside what it was before."""
    rows = [
        (row["table"], row["constant"], f"{row['before']:.4g}", f"{row['fitted']:.4g}", row["unit"])
        for row in result.to_dicts()
    ]
    yield Heading("Fitted constants")
    names = ("table", "constant", "before", "fitted", "unit")
    yield rows_grid(names, rows, left=("table", "constant", "unit"))


def traced_view(result: Traced) -> Iterator[Block]:
    """The shapes of a trace, the longest in all first."""
    rows = []
    for row in sorted(result.to_dicts(), key=lambda row: -row["seconds"] * row["calls"]):
        if row["kind"] == "product":
            groups = f"{row['groups']:.0f} x " if row["groups"] > 1 else ""
            shape = f"{groups}({row['m']:.0f} x {row['k']:.0f}) by ({row['k']:.0f} x {row['n']:.0f})"
        else:
            heads = f"{row['heads']:.0f}/{row['kv_heads']:.0f} heads of {row['qk_dim']:.0f}/{row['v_dim']:.0f}"
            shape = f"{row['batch']:.0f} x {row['sequence']:.0f} tokens, {heads}"
        times = (format_seconds(row["seconds"]), format_seconds(row["seconds"] * row["calls"]))
        rows.append((row["kind"], row["phase"], shape, row.get("precision", ""), f"{row['calls']:,}", *times))
    total_s = sum(row["seconds"] * row["calls"] for row in result.to_dicts())
    source = printable(result.source)
    yield from headline(f"{counted(len(rows), 'kernel')} in {source}: {format_seconds(total_s)} in all")
    names = ("kernel", "phase", "shape", "precision", "calls", "median", "in all")
    yield rows_grid(names, rows, left=names[:4])


def described_view(result: Described, *, verbose: bool = False) -> Iterator[Block]:
    """The bandwidth and speed of a machine: tiers, best products, and a rank's share.

    Args:
        verbose: add each collective and product as it was measured, and the fits to them.
    """
    measured = result.measured
    yield from headline(_machine_verdict(result))
    if measured.axes:
        yield _tiers(result)
        yield Blank()
    yield _rates(result)
    yield Paragraph(
        f"Medians of at most {counted(measured.repeats, 'call')} after a warm-up, all ranks busy, the slowest rank"
        f" counts; {format_seconds(result.network.launch_s)} to launch a collective",
        indent=2,
        style="dim",
    )
    for note in result.notes:
        yield Paragraph(f"Note: {note}", indent=2, hang=2)
    if verbose:
        made = result.kernels
        sections = (
            ("Collectives (algorithm and bus bandwidth as in nccl-tests)", result.samples),
            ("Fits: time = latency + bytes that a ring sends / bandwidth", result.lines),
            ("Products (m x k) by (k x n)", result.products),
            ("Causal attention", measured.attention),
        )
        for title, records in sections:
            if records:
                yield Heading(title)
                rows = [encode(record) for record in records]
                axes = [{"axis": words.axis_words((row["axis"],))} if "axis" in row else {} for row in rows]
                yield words.records_table([row | axis for row, axis in zip(rows, axes, strict=True)])
        yield Paragraph(
            f"Fit of products: {made.gemm_efficiency:.0%} of the best, depth {made.gemm_depth:.0f},"
            f" {format_seconds(made.kernel_s)} a kernel; worst residual {made.worst:.0%}.",
            indent=2,
        )


def _machine_verdict(result: Described) -> str:
    measured = result.measured
    ranks = f"{counted(measured.layout.world, 'rank')} of {printable(measured.rank.name)}"
    best = [f"{precision} {format_si(flops, 'FLOP/s')}" for precision, flops in _best(result).items()]
    axes = [f"{words.axis_words((axis.axis,))} {format_si(axis.achieved_Bps, 'B/s')}" for axis in result.network.axes]
    return f"{ranks}: {', '.join([*best, *axes])}"


def _best(result: Described) -> dict[str, float]:
    """The fastest product of each precision, in FLOP/s of a rank."""
    products = result.measured.products
    return {product.precision: peak_flops(products, product.precision) for product in products}


def _rates(result: Described) -> Table:
    rank = result.measured.rank
    rows = (
        *((f"{precision} products", format_si(flops, "FLOP/s")) for precision, flops in _best(result).items()),
        ("memory", format_bytes(rank.memory_bytes)),
        ("memory copy, read and write", format_si(rank.copy_Bps, "B/s")),
        ("copy from host memory", format_si(rank.host_Bps, "B/s")),
        ("launch of a small kernel", format_seconds(rank.launch_s)),
    )
    return rows_grid(("each rank", "best"), rows, left=("each rank",))


def _tiers(result: Described) -> Table:
    axes = result.network.axes
    return Table(
        Column("axis", [words.axis_words((axis.axis,)) for axis in axes], left=True),
        Column("ranks", [f"{axis.ranks:,}" for axis in axes]),
        Column("latency of a hop", [format_seconds(axis.latency_s) for axis in axes]),
        Column("bandwidth", [format_si(axis.achieved_Bps, "B/s") for axis in axes]),
        Column("worst residual", [f"{axis.worst:.0%}" for axis in axes]),
    )


def cluster_file(result: Described, *, constants: str | None) -> str:
    """TOML of the cluster; ``constants`` is the file to be read with it."""
    measured = result.measured
    head = [
        f"# Measured by weft bench: {format_layout(measured.layout)} on {measured.device}, medians of at"
        f" most {counted(measured.repeats, 'call')}."
    ]
    if constants is not None:
        head.append(f"# To be read with --calibration {printable(constants)}.")
    return "\n".join(head) + "\n" + write_cluster(result.cluster)


# Chart ---------------------------------------------------------------------------------------------------------

BAND = 0.10
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_SIDE, _SPREAD, _STEP = 500, 300, 22
"""Pixels: of the scatter, of the errors' axis, and from family to family."""


def validation_chart(result: Validation) -> Chart:
    """A scatter and errors by family, a colour and a shape each.

    The scatter has logarithmic axes, the diagonal and a band of 10 % around it.  The bars span the signed errors of
    ``COVERED`` of a family's runs, as many left out below as above; the point is the median.
    """
    names = {
        family.family: f"{family.family} ({family.predicted})" for family in result.families if family.mape is not None
    }
    families = list(names.values())
    shapes = alt.Scale(domain=families, range=[_SHAPES[i % len(_SHAPES)] for i in range(len(families))])
    look: dict[str, Any] = {"color": colours("family", families)}
    look |= {"shape": alt.Shape("family:N", scale=shapes, legend=None)}
    plots = alt.hconcat(_scatter(result, names, look), _spread(result, names, look), spacing=24)
    pooled = "" if result.headline is None else f"mean error {result.headline:.1%} over families; "
    words = f"{pooled}grey: within {BAND:.0%}; bars: errors of {COVERED:.0%} of a family's runs, and their median"
    return finished(plots, "Predicted against measured time", words)


def _scatter(result: Validation, names: dict[str, str], look: dict[str, Any]) -> Chart:
    """Predicted over measured seconds, a point a run."""
    rows: list[dict[str, Any]] = [
        {
            "measured": one.prepared.measured_s,
            "predicted": one.predicted_s,
            "run": one.prepared.run.id,
            "family": names[one.prepared.run.family],
            "error": f"{one.error:+.1%}",
        }
        for one in result.outcomes
    ]
    values = [value for row in rows for value in (row["measured"], row["predicted"])] or [1.0]
    low, high = 0.8 * min(values), 1.25 * max(values)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=[10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)], format="~g")
    x = alt.X("measured:Q", title="measured time of an iteration (s)", scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title="predicted time of an iteration (s)", scale=scale, axis=axis)
    band = [
        {"measured": at, "least": max((1 - BAND) * at, low), "most": min((1 + BAND) * at, high)}
        for at in (low, low / (1 - BAND), high / (1 + BAND), high)
    ]
    ends = [{"measured": end, "predicted": end} for end in (low, high)]
    told = tooltip(run="run", family="family", measured="measured", predicted="predicted", error="error")
    return alt.layer(
        alt.Chart(data(band)).mark_area(color=MUTED, opacity=0.18).encode(x=x, y="least:Q", y2="most:Q"),
        alt.Chart(data(ends)).mark_line(color=INK, strokeWidth=1).encode(x=x, y=y),
        alt.Chart(data(rows)).mark_point(filled=True, size=34, opacity=0.75).encode(x=x, y=y, tooltip=told, **look),
    ).properties(width=_SIDE, height=_SIDE)


def _spread(result: Validation, names: dict[str, str], look: dict[str, Any]) -> Chart:
    """Signed errors by family, which is also what tells colours and shapes."""
    errors: dict[str, list[float]] = {}
    for one in result.outcomes:
        errors.setdefault(names[one.prepared.run.family], []).append(one.error)
    tail = (1 - COVERED) / 2
    rows = [
        dict(zip(("low", "median", "high"), np.quantile(errors[name], (tail, 0.5, 1 - tail)).tolist(), strict=True))
        | {"family": name}
        for name in names.values()
    ]
    for row in rows:
        row["words"] = f"{row['median']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%})"
    most = 1.05 * max([BAND, *(abs(row[end]) for row in rows for end in ("low", "high"))])
    x = alt.X(
        "median:Q",
        title="predicted / measured - 1",
        scale=linear(-most, most),
        axis=alt.Axis(format="+.0%", tickCount=5),
    )
    y = alt.Y(
        "family:N",
        title=None,
        sort=list(names.values()),
        axis=alt.Axis(orient="right", ticks=False, domain=False, labelPadding=8, labelLimit=0),
    )
    base = alt.Chart(data(rows)).encode(y=y, tooltip=tooltip(family="family", words="errors"))
    return alt.layer(
        alt.Chart(data([{"low": -BAND, "high": BAND}]))
        .mark_rect(color=MUTED, opacity=0.18)
        .encode(x=alt.X("low:Q", scale=linear(-most, most)), x2="high:Q"),
        alt.Chart(data([{"median": 0.0}])).mark_rule(color=INK, strokeWidth=1).encode(x=x),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", color=look["color"]),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x, **look),
    ).properties(width=_SPREAD, height=max(_STEP * len(rows), _STEP))
