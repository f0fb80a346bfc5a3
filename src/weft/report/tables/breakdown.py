"""One estimate for people: its time and memory part by part, its bound, and what the hardware is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from weft.layout.text import format_layout
from weft.report.tables import words
from weft.report.tables.grid import Column, bar, heading, paragraph, print_grid
from weft.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from weft.cluster.spec import Cluster
    from weft.estimation.report import EstimateReport
    from weft.estimation.result import Estimate, Part
    from weft.estimation.single import Sensitivity
    from weft.model.job import Job
    from weft.simulation.iteration.memory import MemoryTimeline

BAR = 40
"""Widest bar, in characters."""


def estimate_table(found: EstimateReport, console: Console) -> None:
    """Print one estimate in full."""
    estimate = found.estimate
    print_subject(found.job, found.cluster, console)
    paragraph(console, f"Layout:  {format_layout(estimate.layout, whole=True)}", hang=9)
    if line := words.straddling([estimate.layout], found.cluster):
        paragraph(console, line, hang=9)
    print_totals(estimate, console)
    if estimate.error is not None and (line := words.published(found.job, found.cluster, estimate.mfu)):
        paragraph(console, line)
    print_time(estimate, console)
    print_memory(estimate, console)
    print_bound(estimate, console)
    if found.sensitivities:
        print_sensitivities(estimate, found.sensitivities, console)


def print_subject(job: Job, cluster: Cluster, console: Console, *, routing: str = "") -> None:
    """Print how flows find their paths, where any were simulated, the job, the cluster, and every assumed value."""
    if routing:
        paragraph(console, f"Routing: {routing}", hang=9)
    paragraph(console, f"Job:     {words.job_sentence(job)}", hang=9)
    paragraph(console, f"Cluster: {words.cluster_sentence(cluster)}", hang=9)
    print_defaults((*job.defaults, *cluster.defaults), console)


def print_defaults(defaults: Sequence[str], console: Console) -> None:
    """Print the values that nobody gave, one a line."""
    for default in defaults:
        paragraph(console, f"Assumed: {words.printable(default)}", hang=9, style="dim")


def print_totals(estimate: Estimate, console: Console) -> None:
    """Print iteration time, rates, and the memory against what an accelerator has."""
    room = estimate.capacity_bytes - estimate.memory_bytes
    fit = _fit(room)
    lines = (
        f"Iteration {format_seconds(estimate.iteration_s)} ({estimate.provenance}),"
        f" {format_count(estimate.tokens_per_s)} tokens/s",
        *words.trust(estimate.error),
        f"MFU {estimate.mfu:.1%} ({estimate.mfu_unmasked:.1%} if masked attention is not counted),"
        f" HFU {estimate.hfu:.1%},"
        f" {estimate.model_tflops:.0f} TFLOP/s per accelerator",
        f"Memory {format_bytes(estimate.memory_bytes)} of {format_bytes(estimate.capacity_bytes)}: {fit}",
        *_host_memory(estimate),
    )
    console.print()
    for line in lines:
        paragraph(console, line)


def _fit(room: float) -> str:
    return f"fits, {format_bytes(room)} left" if room >= 0 else f"DOES NOT FIT, {format_bytes(-room)} missing"


def _host_memory(estimate: Estimate) -> tuple[str, ...]:
    """What is offloaded, where anything is."""
    if not estimate.host_bytes:
        return ()
    used, most = format_bytes(estimate.host_bytes), estimate.host_capacity_bytes
    if most is None:
        return (f"Host memory {used} per accelerator, pinned; how much there is, is not known",)
    fit = _fit(most - estimate.host_bytes)
    return (f"Host memory {used} of {format_bytes(most)} that an accelerator can pin: {fit}",)


def print_time(estimate: Estimate, console: Console, *, title: str = "Time") -> None:
    """Print the parts of the iteration, those of zero left out, and exposed communication in all."""
    heading(console, f"{title}: {format_seconds(estimate.iteration_s)} per iteration")
    parts = [part for part in estimate.time if part.value > 0]
    _print_parts(
        parts, estimate.iteration_s, [format_seconds(part.value) for part in parts], words.TIME_LABELS, console
    )
    exposed = sum(part.value for part in estimate.time if part.name in words.COMMUNICATION)
    text = f"Exposed communication in all: {exposed / estimate.iteration_s:.1%}. {words.EXPOSED}"
    paragraph(console, text, indent=2, style="dim")


def print_memory(estimate: Estimate, console: Console) -> None:
    """Print the parts of the memory of the fullest stage; shares are of the accelerator's memory."""
    used, capacity = format_bytes(estimate.memory_bytes), format_bytes(estimate.capacity_bytes)
    heading(console, f"Memory: {used} of {capacity} on the fullest stage ({estimate.fullest_stage}; the first is 0)")
    parts = [part for part in estimate.memory if part.value > 0]
    _print_parts(
        parts, estimate.capacity_bytes, [format_bytes(part.value) for part in parts], words.MEMORY_LABELS, console
    )


def peak_table(timeline: MemoryTimeline, console: Console) -> None:
    """Print where a stage's memory peaks, and what is there then."""
    peak = timeline.peak
    console.print()
    text = (
        f"Peak of stage {timeline.stage}: {format_bytes(peak.total_bytes)} after {format_seconds(peak.time_s)},"
        f" in {timeline.peak_operator}"
    )
    paragraph(console, text)


def print_bound(estimate: Estimate, console: Console) -> None:
    """Print the lower bound and the distance to it."""
    ratio = estimate.iteration_s / estimate.lower_bound_s
    text = (
        f"Lower bound {format_seconds(estimate.lower_bound_s)}: the slowest stage's arithmetic at peak, or"
        " its busiest network axis at peak bandwidth, whichever is longer."
        f" The estimate is {ratio:.2f} times that."
    )
    console.print()
    paragraph(console, text)


def print_sensitivities(estimate: Estimate, sensitivities: Sequence[Sensitivity], console: Console) -> None:
    """Print what each change of the hardware would do, the most useful first."""
    heading(console, "What if (everything else unchanged)")
    ordered = sorted(sensitivities, key=lambda one: (one.iteration_s, one.change))
    seconds = [one.iteration_s - estimate.iteration_s for one in ordered]
    columns = [
        Column(heading="change", cells=[words.printable(one.change) for one in ordered], left=True),
        Column(heading="iteration", cells=[format_seconds(one.iteration_s) for one in ordered]),
        Column(heading="difference", cells=[_signed(value) for value in seconds]),
        Column(heading="speed", cells=[f"x{one.speedup:.3f}" for one in ordered], drop=1),
    ]
    print_grid(console, columns)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _print_parts(
    parts: Sequence[Part], whole: float, values: Sequence[str], labels: dict[str, str], console: Console
) -> None:
    shares = [part.value / whole for part in parts]
    width = max(0, min(BAR, console.width - 60))
    columns = [
        Column(heading="", cells=[labels[part.name] for part in parts], left=True),
        Column(heading="", cells=values),
        Column(heading="", cells=[f"{share:.1%}" for share in shares]),
        Column(heading="", cells=[bar(console, share, width) for share in shares], drop=1, left=True),
    ]
    print_grid(console, columns)
