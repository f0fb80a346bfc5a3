"""One estimate for people: its parts, its bound, what the hardware is worth, and a whole training run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.layout.text import format_layout
from weft.units import format_bytes, format_count, format_seconds
from weft.views import words
from weft.views.blocks import Blank, Block, Column, Fact, Heading, Paragraph, Table, notes, rows_grid

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.estimation.report import EstimateReport, Sensitivity
    from weft.estimation.result import Estimate, Part, TrainingRun
    from weft.model.job import Job
    from weft.search.goodput import GoodputReport


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
        Column("difference", [_signed(value) for value in seconds]),
        Column("speed", [f"x{one.speedup:.3f}" for one in ordered], drop=1),
    ]
    yield Table(*columns)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


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
