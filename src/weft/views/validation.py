"""Measurements for people: predictions against measured runs, a fit of constants, and a measured machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

from weft.cluster.files import write_cluster
from weft.interop.kernel_times import Traced
from weft.layout.text import format_layout
from weft.units import counted, format_bytes, format_seconds, format_si
from weft.validation.fit import Fitted
from weft.validation.summary import APART, INDENT, Errors, Validation
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph, rows_grid
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.validation.measured import Described

FARTHEST = 10
"""Runs that are listed by name, those with the largest errors."""


def validation_view(result: Validation) -> Iterator[Block]:
    """Errors by family, what they come to, and why runs were skipped."""
    yield Heading("Predicted against measured iteration time")
    names = ("family", "runs", "predicted", "mean", "median", "bias", "worst", "rank corr.", "memory")
    families = [family.family for family in result.families]
    grid = rows_grid(names, [*map(_cells, result.families), _cells(result.pooled)], left=("family",))
    yield replace(grid, columns=[replace(grid.columns[0], values=[*families, ""]), *grid.columns[1:]])
    if result.headline is not None:
        yield Paragraph(f"Mean over families of the mean absolute error: {result.headline:.1%}", indent=2)
    yield Heading("Farthest off")
    worst = sorted(result.outcomes, key=lambda outcome: -abs(outcome.error))[:FARTHEST]
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
    for title, reasons in (("Skipped", result.reasons), ("In doubt", result.warnings)):
        if reasons:
            yield Heading(title)
        for why in reasons:
            yield Paragraph(f"{why.runs:5d}  {why.family}: {why.reason}", hang=7)


def cause_view(result: Validation) -> Iterator[Block]:
    """Errors by what runs have in common, the values of each cause together."""
    rows, shown = [], ""
    for cause in result.causes:
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


def choice_view(result: Validation) -> Iterator[Block]:
    """What taking the layout that Weft ranks first costs, among layouts of one job that were measured."""
    known = result.choices
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


COLUMNS = ("family", "runs", "fitted", "source left out", "its bias", "worst", "rank corr.", "kind left out")


def fit_view(result: Fitted) -> Iterator[Block]:
    """Errors by family: as fitted, and of each family and each kind by constants fitted to the others."""
    fitted, by_family, by_kind = result.by_family()
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


def calibration_view(result: Fitted) -> Iterator[Block]:
    """Each fitted constant beside what it was before."""
    rows = [
        (row["table"], row["constant"], f"{row['before']:.4g}", f"{row['fitted']:.4g}", row["unit"])
        for row in result.to_dicts()
    ]
    yield Heading("Constants")
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
    yield Heading(f"Kernels of {printable(result.source)}, medians")
    names = ("kernel", "phase", "shape", "precision", "calls", "time", "in all")
    yield rows_grid(names, rows, left=names[:4])


def described_view(result: Described) -> Iterator[Block]:
    """Collectives by axis as nccl-tests does, fits, products, and a rank's share of the machine."""
    measured = result.measured
    count = measured.layout.world
    yield Paragraph(
        f"{counted(count, 'rank')} of {printable(measured.rank.name)}, layout"
        f" {format_layout(measured.layout)}: medians of at most {counted(measured.repeats, 'call')} after a warm-up,"
        " all ranks busy, the slowest counts"
    )
    for axis in measured.axes:
        yield from _axis(result, axis)
    if measured.axes:
        yield from _fits(result)
    yield from _products(result)
    yield from _one_rank(result)
    for note in result.notes:
        yield Paragraph(f"note: {note}", hang=6)


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


def _axis(result: Described, axis: str) -> Iterator[Block]:
    samples = result.measured.of(axis)
    lines = [result.line(one.axis, one.kind) for one in samples]
    fits = [format_seconds(line.seconds(one.bytes)) for one, line in zip(samples, lines, strict=True)]
    yield Heading(f"{axis}: {samples[0].ranks} ranks")
    first = [i == 0 or samples[i - 1].kind != one.kind for i, one in enumerate(samples)]
    kinds = [one.kind if new else "" for one, new in zip(samples, first, strict=True)]
    yield Grid(
        [
            Column(heading="collective", cells=kinds, left=True),
            Column(heading="size", cells=[format_bytes(one.bytes, least=1.0) for one in samples]),
            Column(heading="time", cells=[format_seconds(one.seconds) for one in samples]),
            Column(heading="algbw", cells=[format_si(one.bytes / one.seconds, "B/s") for one in samples]),
            Column(heading="busbw", cells=[format_si(result.bus_Bps(one), "B/s") for one in samples]),
            Column(heading="fit", cells=fits, drop=1),
        ]
    )


def _fits(result: Described) -> Iterator[Block]:
    yield Heading("Fits: time = latency + bytes that a ring sends / bandwidth")
    yield Grid(
        [
            Column(heading="axis", cells=[one.axis for one in result.lines], left=True),
            Column(heading="collective", cells=[one.kind for one in result.lines], left=True),
            Column(heading="latency", cells=[format_seconds(one.latency_s) for one in result.lines]),
            Column(heading="bandwidth", cells=[format_si(one.Bps, "B/s") for one in result.lines]),
            Column(heading="r2", cells=[f"{one.r2:.3f}" for one in result.lines], drop=1),
            Column(heading="worst residual", cells=[f"{one.worst:.0%}" for one in result.lines]),
        ]
    )
    yield Heading("Tiers that plans read: one model for all collectives of an axis")
    axes = result.network.axes
    yield Grid(
        [
            Column(heading="tier", cells=[one.axis for one in axes], left=True),
            Column(heading="size", cells=[f"{one.ranks:,}" for one in axes]),
            Column(heading="hop", cells=[format_seconds(one.latency_s) for one in axes]),
            Column(heading="achieved", cells=[format_si(one.achieved_Bps, "B/s") for one in axes]),
            Column(heading="worst residual", cells=[f"{one.worst:.0%}" for one in axes]),
        ]
    )
    yield Paragraph(f"Besides, {format_seconds(result.network.launch_s)} to launch a collective.", indent=2)


def _products(result: Described) -> Iterator[Block]:
    products = result.measured.products
    yield Heading("Products (m x k) by (k x n)")
    first = [i == 0 or products[i - 1].precision != one.precision for i, one in enumerate(products)]
    names = [one.precision if new else "" for one, new in zip(products, first, strict=True)]
    peaks = result.cluster.accelerator
    shares = [one.achieved_flops / peaks.peak_flops(one.precision) for one in products]
    yield Grid(
        [
            Column(heading="precision", cells=names, left=True),
            *(Column(heading=side, cells=[f"{getattr(one, side):,}" for one in products]) for side in ("m", "n", "k")),
            Column(heading="time", cells=[format_seconds(one.seconds) for one in products]),
            Column(heading="achieved", cells=[format_si(one.achieved_flops, "FLOP/s") for one in products]),
            Column(heading="of the best", cells=[f"{share:.0%}" for share in shares], drop=1),
        ]
    )
    made = result.kernels
    yield Paragraph(
        f"Fit: {made.gemm_efficiency:.0%} of the best, depth {made.gemm_depth:.0f},"
        f" {format_seconds(made.kernel_s)} a kernel; worst residual {made.worst:.0%}.",
        indent=2,
    )


def _one_rank(result: Described) -> Iterator[Block]:
    rank = result.measured.rank
    yield Heading("One rank")
    rows = (
        ("memory", format_bytes(rank.memory_bytes)),
        ("copy, bytes read and written", format_si(rank.copy_Bps, "B/s")),
        ("from host memory", format_si(rank.host_Bps, "B/s")),
        ("to issue a small kernel", format_seconds(rank.launch_s)),
    )
    yield Grid(
        [
            Column(heading="", cells=[name for name, _ in rows], left=True),
            Column(heading="", cells=[value for _, value in rows]),
        ]
    )
