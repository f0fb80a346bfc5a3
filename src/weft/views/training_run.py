"""A training run in lines, JSON records and tables of measured beside predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

from weft.layout.measured import StepRecord
from weft.layout.step import Issue
from weft.units import counted, format_bytes, format_seconds
from weft.views.blocks import Blank, Block, Heading, Paragraph, Table, cell, rows_grid
from weft.views.words import axis_words

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep(StepRecord):
    """A step with what was communicated, and the seconds that computation waited, by axes; None: not timed."""

    issued: tuple[Issue, ...]
    exposed_s: Mapping[Axes, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTime:
    """A step as it was predicted, in seconds; ``exposed_s`` by axes, where it is known."""

    seconds: float
    exposed_s: Mapping[Axes, float] | None


def step_header() -> str:
    """Names over the columns of ``step_line``."""
    return f"{'step':>9} {'loss':>8} {'gradient':>9} {'s/step':>8} {'tokens/s':>10} {'MFU':>6} {'waiting':>8}"


def step_line(step: MeasuredStep, steps: int) -> str:
    """One line of progress."""
    waiting = "-" if step.exposed_s is None else f"{sum(step.exposed_s.values()) / step.seconds:.0%}"
    number = f"{step.step}/{steps}"
    return (
        f"{number:>9} {step.loss:8.4f} {step.gradient_norm:9.3f} {step.seconds:8.3f} "
        f"{step.tokens_per_s:10,.0f} {cell(step.mfu):>6} {waiting:>8}"
    )


def eval_line(step: MeasuredStep) -> str:
    """The evaluation after a step."""
    return f"{'held out':>9} {step.eval_loss:8.4f}  perplexity {step.perplexity:,.4g}"


def run_verdict(steps: Sequence[MeasuredStep]) -> str:
    """The last loss, and the median speed of some steps."""
    last, middle = steps[-1], [f"{median(step.tokens_per_s for step in steps):,.0f} tokens/s"]
    known = [step.mfu for step in steps if step.mfu is not None]
    if known:
        middle.append(f"MFU {median(known):.1%}")
    seconds = format_seconds(median(step.seconds for step in steps))
    return f"Loss {last.loss:.4f} after {counted(last.step, 'step')}; {seconds} per step, {', '.join(middle)}"


def step_record(step: MeasuredStep) -> dict[str, Any]:
    """A step for metrics files; seconds and bytes in SI.  Every number is finite: a step whose loss or
    gradients are not ends the run."""
    return {field.name: getattr(step, field.name) for field in fields(StepRecord)} | {
        "axes": [
            {"axes": list(axes), "collectives": count, "bytes": size}
            | ({} if step.exposed_s is None else {"exposed_s": step.exposed_s.get(axes, 0.0)})
            for axes, (count, size) in by_axes(step.issued).items()
        ]
    }


def by_axes(issued: Iterable[Issue]) -> dict[Axes, tuple[int, int]]:
    """Number of collectives and bytes of their full buffers, by axes, in order of the axes' names."""
    result: dict[Axes, tuple[int, int]] = {}
    for issue in issued:
        count, size = result.get(issue.axes, (0, 0))
        result[issue.axes] = (count + 1, size + issue.bytes)
    return dict(sorted(result.items()))


def side_by_side(predicted: Counter[Issue], issued: Counter[Issue]) -> Iterator[tuple[Axes, Any, Any]]:
    """Axes with how many collectives were predicted and issued over them, and the bytes of both."""
    known, seen = by_axes(predicted.elements()), by_axes(issued.elements())
    for axes in sorted(known.keys() | seen.keys()):
        counts, sizes = zip(known.get(axes, (0, 0)), seen.get(axes, (0, 0)), strict=True)
        yield axes, counts, sizes


def comparison_view(
    *,
    predicted: Counter[Issue],
    steady: Sequence[MeasuredStep],
    ranks_equal: int,
    ranks: int,
    time: PredictedTime | None,
) -> Iterator[Block]:
    """Collectives by axes and the step's time, predicted and measured.

    Args:
        steady: the steps to compare with; times are their medians.
        ranks_equal: ranks whose every step issued exactly what was predicted for them.
        time: None where no machine was described.
    """
    differing = ranks - ranks_equal
    where = f"on {differing or ranks} of {counted(ranks, 'rank')}"
    yield Blank()
    yield _verdict(equal=not differing, where=where)
    yield Heading("Collectives of one step of the reporting rank")
    yield _collectives(predicted, Counter(steady[-1].issued))
    yield Heading(f"Time of the reporting rank (median of {counted(len(steady), 'step')})")
    yield _times(steady, time)
    if time is None:
        yield Paragraph("To predict the time, measure this machine with weft bench and add --cluster", indent=2)


def dry_run_view(run: Any) -> Iterator[Block]:
    """Collectives of the traced ranks of a ``DryRun`` beside those predicted for their pipeline stages."""
    ends = [end for end in run.ends if run.equal or not end.equal]
    ranks = " and ".join(str(end.rank) for end in ends)
    where = f"on {'ranks' if len(ends) > 1 else 'rank'} {ranks} of {run.layout.world:,}"
    yield _verdict(equal=run.equal, where=where)
    for end in run.ends:
        yield Heading(f"Rank {end.rank} (pipeline stage {end.stage})")
        yield _collectives(end.predicted, end.found)
    last = run.ends[-1]
    if list(last.traced) != [last.micro_batches]:
        traced = " and ".join(map(str, last.traced))
        text = f"Traced with {traced} micro-batches, which determine those of {last.micro_batches:,} exactly"
        yield Paragraph(text, indent=2)


def _verdict(*, equal: bool, where: str) -> Paragraph:
    text = f"Collectives are {'' if equal else 'NOT '}equal to the prediction {where} (kind, axes, elements, width)"
    return Paragraph(text, style="bold")


def _collectives(predicted: Counter[Issue], issued: Counter[Issue]) -> Table:
    rows = [
        (axis_words(axes), *(f"{count:,}" for count in counts), *map(format_bytes, sizes))
        for axes, counts, sizes in side_by_side(predicted, issued)
    ]
    return rows_grid(("axes", "predicted", "issued", "bytes predicted", "bytes issued"), rows, left=("axes",))


def _times(steady: Sequence[MeasuredStep], time: PredictedTime | None) -> Table:
    exposed = [step.exposed_s or {} for step in steady]
    axes = sorted({axes for waits in exposed for axes in waits})
    seconds: list[tuple[str, float | None, float]] = [
        ("step", time.seconds if time else None, median(step.seconds for step in steady))
    ]
    for each in axes:
        waited = median(waits.get(each, 0.0) for waits in exposed)
        known = time.exposed_s if time else None
        seconds.append((f"waiting for {axis_words(each)}", None if known is None else known.get(each, 0.0), waited))
    rows = []
    for name, expected, measured in seconds:
        ratio = f"{measured / expected:.2f}" if expected else "-"
        rows.append((name, cell(expected, format_seconds), format_seconds(measured), ratio))
    return rows_grid(("", "predicted", "measured", "measured / predicted"), rows, left=("",))
