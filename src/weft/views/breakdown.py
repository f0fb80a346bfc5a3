"""One estimate for people: its parts, its bound, what the hardware is worth, and a whole training run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.errors import BadInput
from weft.layout.text import format_degrees, format_layout
from weft.units import format_bytes, format_count, format_seconds
from weft.views import words
from weft.views.blocks import Blank, Block, Column, Fact, Heading, Paragraph, Table, notes, rows_grid
from weft.views.charts import GRID, INK, MUTED, PAPER, Chart, alt, colours, data, finished, ink_on, linear, tooltip
from weft.views.words import PARTS, recompute_words, schedule_words

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.estimation.report import EstimateReport, Sensitivity
    from weft.estimation.result import Estimate, Part, TrainingRun
    from weft.model.job import Job
    from weft.search.goodput import GoodputReport
    from weft.search.ranking import Plan


def estimate_view(
    result: EstimateReport, *, fitting: Estimate | None = None, verbose: bool = False
) -> Iterator[Block]:
    """One estimate: its totals, its parts, and what the hardware is worth.

    Args:
        fitting: the layout with the changes that let it fit, where it does not.
        verbose: add the lower bound, other ways to count MFU, and what was assumed with its sources.
    """
    estimate = result.estimate
    yield Paragraph(words.estimate_verdict(estimate, fitting), style="bold")
    yield from notes(_notes(result))
    yield from time(estimate)
    yield from memory(estimate)
    if result.sensitivities:
        yield from sensitivities(estimate, result.sensitivities)
    yield Blank()
    for line in (f"Layout: {format_layout(estimate.layout, whole=True)}", *words.setting(result.job, result.cluster)):
        yield Paragraph(line, hang=2, style="dim")
    if verbose:
        yield from _details(result)
    if result.run is not None:
        yield from training_view(result.run)


def layout_view(estimate: Estimate) -> Iterator[Block]:
    """One layout of a plan: its totals and its parts."""
    yield Paragraph(words.estimate_verdict(estimate), style="bold")
    yield from time(estimate)
    yield from memory(estimate)


def _notes(result: EstimateReport) -> Iterator[str]:
    """What to think of an estimate, a line each."""
    estimate = result.estimate
    if line := words.straddling([estimate.layout], result.cluster):
        yield line
    if estimate.error is not None and (line := words.published(result.job, result.cluster, estimate.mfu)):
        yield line
    yield from words.outside(estimate.error)
    yield from _host_memory(estimate)


def _details(result: EstimateReport) -> Iterator[Block]:
    """The bound, other ways to count, and where assumptions come from."""
    estimate = result.estimate
    yield from bound(estimate)
    lines = (
        *words.trust(estimate.error)[:1],
        f"{format_count(estimate.tokens_per_s)} tokens/s, {estimate.model_tflops:.0f} TFLOP/s per accelerator",
        f"MFU {estimate.mfu:.1%} ({estimate.mfu_unmasked:.1%} if masked attention is not counted),"
        f" HFU {estimate.hfu:.1%}",
    )
    for line in lines:
        yield Paragraph(line)
    yield Blank()
    yield from subject(result.job, result.cluster)


def subject(job: Job, cluster: Cluster, *, routing: str = "") -> Iterator[Block]:
    """How flows find their paths, where any were simulated, the job, the cluster, and every assumed value."""
    if routing:
        yield Fact("Routing:", routing)
    yield Fact("Job:", words.job_sentence(job))
    yield Fact("Cluster:", words.cluster_sentence(cluster))
    yield from defaults((*job.defaults, *cluster.defaults))


def defaults(defaults: Sequence[str]) -> Iterator[Block]:
    """The values that nobody gave, one a line."""
    for default in defaults:
        yield Fact("Assumed:", words.printable(default), style="dim")


def _host_memory(estimate: Estimate) -> tuple[str, ...]:
    """What is offloaded, where anything is."""
    if not estimate.host_bytes:
        return ()
    used, most = format_bytes(estimate.host_bytes), estimate.host_capacity_bytes
    if most is None:
        return (f"Host memory {used} per accelerator, pinned; how much there is, is not known",)
    room = most - estimate.host_bytes
    fit = f"fits, {format_bytes(room)} left" if room >= 0 else f"DOES NOT FIT, {format_bytes(-room)} missing"
    return (f"Host memory {used} of {format_bytes(most)} that an accelerator can pin: {fit}",)


def time(estimate: Estimate, *, title: str = "Time") -> Iterator[Block]:
    """The parts of the iteration, those of zero left out, and exposed communication in all."""
    yield Heading(f"{title}: {format_seconds(estimate.iteration_s)} per iteration")
    parts = [part for part in estimate.time if part.value > 0]
    yield from _parts(parts, estimate.iteration_s, [format_seconds(part.value) for part in parts])
    exposed = sum(part.value for part in estimate.time if part.name in words.COMMUNICATION)
    text = f"Exposed communication in all: {exposed / estimate.iteration_s:.1%}. {words.EXPOSED}"
    yield Paragraph(text, indent=2, style="dim")


def memory(estimate: Estimate) -> Iterator[Block]:
    """The parts of the memory of the fullest stage; shares are of the accelerator's memory."""
    used, capacity = format_bytes(estimate.memory_bytes), format_bytes(estimate.capacity_bytes)
    stage = f" on pipeline stage {estimate.fullest_stage}, the fullest" if estimate.layout.pp > 1 else ""
    yield Heading(f"Memory: {used} of {capacity}{stage}")
    parts = [part for part in estimate.memory if part.value > 0]
    yield from _parts(parts, estimate.capacity_bytes, [format_bytes(part.value) for part in parts])


def bound(estimate: Estimate) -> Iterator[Block]:
    """The lower bound and the distance to it."""
    ratio = estimate.iteration_s / estimate.lower_bound_s
    text = (
        f"Lower bound {format_seconds(estimate.lower_bound_s)}: the slowest stage's arithmetic at peak, or"
        " its busiest network axis at peak bandwidth, whichever is longer."
        f" The estimate is {ratio:.2f} times that."
    )
    yield Blank()
    yield Paragraph(text)


def sensitivities(estimate: Estimate, sensitivities: Sequence[Sensitivity]) -> Iterator[Block]:
    """What each change of the hardware would do, the most useful first."""
    yield Heading("What if (everything else unchanged)")
    ordered = sorted(sensitivities, key=lambda one: (one.iteration_s, one.change))
    seconds = [one.iteration_s - estimate.iteration_s for one in ordered]
    columns = [
        Column("change", [words.printable(one.change) for one in ordered], left=True),
        Column("iteration", [format_seconds(one.iteration_s) for one in ordered]),
        Column("difference", [words.signed(value) for value in seconds]),
        Column("speed", [f"x{one.speedup:.3f}" for one in ordered], drop=1),
    ]
    yield Table(*columns)


def _parts(parts: Sequence[Part], whole: float, values: Sequence[str]) -> Iterator[Block]:
    shares = [part.value / whole for part in parts]
    columns = [
        Column("", [words.PARTS[part.name].label for part in parts], left=True),
        Column("", values),
        Column("", [f"{share:.1%}" for share in shares]),
        Column("", shares=shares, room=60, drop=1, left=True),
    ]
    yield Table(*columns)


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


# Chart ---------------------------------------------------------------------------------------------------------

_STEP, _BAR, _ROOM, _TIME, _MEMORY = 60, 24, 132, 620, 340
"""Pixels: from bar to bar, height of a bar, room for the words behind the longest one, widths of the two panels."""


def breakdown_chart(subject: Plan | Sequence[Estimate], *, top: int = 10, title: str = "") -> Chart:
    """Stacked bars of the time and memory of the fastest layouts of a plan, or of estimates in their order.

    Args:
        subject: what to draw.
        top: most bars.
        title: model and cluster of a plan by default."""
    estimates = tuple(subject if isinstance(subject, Sequence) else subject.layouts)[:top]
    if not isinstance(subject, Sequence):
        title = title or f"{subject.job.model.name} on {subject.cluster.name}"
    if not estimates:
        raise BadInput("there is no layout to draw", where="chart")
    names = [
        (f"{rank}. {format_degrees(one.layout)}", settings_words(one)) for rank, one in enumerate(estimates, start=1)
    ]
    tied = [] if isinstance(subject, Sequence) else tied_rows(subject, len(estimates))
    bars = alt.layer(*_band(tied), _time(estimates), _names(names))
    both = alt.hconcat(bars, _memory(estimates, _MEMORY), spacing=28).resolve_scale(color="independent")
    heading = f"{title}: time and memory by layout" if title else "Time and memory by layout"
    words = "communication: its exposed part only; upright line: memory of one accelerator"
    return finished(both, heading, f"{words}; shaded: tie with the fastest" if tied else words)


def estimate_chart(report: EstimateReport) -> Chart:
    """The bars of one estimate."""
    return breakdown_chart([report.estimate], title=f"{report.job.model.name} on {report.cluster.name}")


def _rows() -> alt.Y:
    """The axis on which layouts stand below each other."""
    return alt.Y("row:O", axis=None, scale=alt.Scale(padding=0))


def _time(estimates: Sequence[Estimate]) -> Chart:
    return _bars(
        parts=[[(part.name, part.value) for part in estimate.time] for estimate in estimates],
        ends=[f"{format_seconds(estimate.iteration_s)}, MFU {estimate.mfu:.0%}" for estimate in estimates],
        marks=(),
        title="time of an iteration (s)",
        unit="s",
        width=_TIME,
    )


def _memory(estimates: Sequence[Estimate], width: int) -> Chart:
    return _bars(
        parts=[[(part.name, part.value / 2**30) for part in estimate.memory] for estimate in estimates],
        ends=[
            f"{estimate.memory_bytes / 2**30:.1f} of {format_bytes(estimate.capacity_bytes)}" for estimate in estimates
        ],
        marks=[estimate.capacity_bytes / 2**30 for estimate in estimates],
        title="memory of the fullest stage (GiB)",
        unit="GiB",
        width=width,
    )


def tied_rows(plan: Plan, shown: int) -> list[int]:
    """Rows of the layouts that tie with the fastest, where there are several."""
    rows = [i for i, row in enumerate(plan.ranked[:shown]) if row.tied]
    return rows if len(rows) > 1 else []


def _band(rows: Sequence[int]) -> list[alt.Chart]:
    """A pale band behind rows."""
    marks = alt.Chart(data({"row": row} for row in rows)).mark_rect(color=GRID, opacity=0.45)
    return [marks.encode(y=_rows(), x=alt.value(-8), x2=alt.value(_TIME + 8))] if rows else []


def settings_words(one: Estimate) -> str:
    layout = one.layout
    pipeline = f", schedule {schedule_words(layout)}" if layout.pipeline > 1 else ""
    return f"micro-batch {layout.micro_batch}{pipeline}, recompute {recompute_words(layout)}"


def _names(names: Sequence[tuple[str, str]]) -> Chart:
    """Name and details of every layout, above its bar."""
    rows = data({"row": i, "name": name, "details": details} for i, (name, details) in enumerate(names))
    chart = alt.Chart(rows).encode(y=_rows())
    name = chart.mark_text(align="left", dy=-19, fontWeight=600, fontSize=12).encode(x=alt.value(0), text="name:N")
    details = chart.mark_text(align="right", dy=-19, color=MUTED).encode(x=alt.value(_TIME), text="details:N")
    return alt.layer(name, details)


def _bars(
    *,
    parts: Sequence[Sequence[tuple[str, float]]],
    ends: Sequence[str],
    marks: Sequence[float],
    title: str,
    unit: str,
    width: int,
) -> Chart:
    """Stacked bars of one quantity: parts by bar in order of stacking, with words at the ends of the bars."""
    totals = [sum(value for _, value in bar) for bar in parts]
    lasts = [max(pair) for pair in zip(totals, marks or totals, strict=True)]
    limit = max(lasts) * width / (width - _ROOM)
    rows = []
    for i, bar in enumerate(parts):
        end = 0.0
        for name, value in bar:
            begin, end = end, end + value
            share = f"{value / totals[i]:.0%}"
            wide = value / limit * width > 9 * len(share)
            if value > 0:
                rows.append(
                    {
                        "row": i,
                        "part": PARTS[name].label,
                        "begin": begin,
                        "end": end,
                        "middle": (begin + end) / 2,
                        "share": share,
                        "value": f"{value:.3g} {unit}",
                        "words": share if wide else "",
                        "ink": ink_on(PARTS[name].colour),
                    }
                )
    used = {row["part"] for row in rows}
    order = [name for name, _ in parts[0] if PARTS[name].label in used]
    x = alt.X("begin:Q", title=title, scale=linear(0, limit), axis=alt.Axis(tickCount=5, grid=False))
    names, shades = [PARTS[name].label for name in order], [PARTS[name].colour for name in order]
    colour = colours("part", names, shades, orient="bottom", columns=2, direction="vertical")
    parts_chart = alt.Chart(data(rows))
    told = tooltip(part="part", value="value", share="share")
    bars = parts_chart.mark_bar(height=_BAR, yOffset=6, stroke=PAPER, strokeWidth=0.7).encode(
        x=x, x2="end:Q", y=_rows(), color=colour, tooltip=told
    )
    shares = parts_chart.mark_text(dy=6).encode(
        x="middle:Q", y=_rows(), text="words:N", color=alt.Color("ink:N", scale=None)
    )
    points = data({"row": i, "at": lasts[i], "words": ends[i]} for i in range(len(lasts)))
    words = alt.Chart(points).mark_text(align="left", dx=8, dy=6).encode(x="at:Q", y=_rows(), text="words:N")
    layers: list[alt.Chart] = [bars, shares, words]
    if marks:
        limits = data({"row": i, "at": value} for i, value in enumerate(marks))
        mark = alt.Chart(limits).mark_tick(thickness=2.5, height=_BAR + 10, yOffset=6, color=INK)
        layers.append(mark.encode(x="at:Q", y=_rows()))
    return alt.layer(*layers).properties(width=width, height=_STEP * len(totals))
