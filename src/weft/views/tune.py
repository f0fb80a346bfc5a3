"""A measured run for people: what it should reach, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.interop.step_trace import COMPUTATIONS
from weft.layout.spec import word_of
from weft.layout.text import format_layout
from weft.units import format_seconds
from weft.views import words
from weft.views.blocks import Blank, Block, Column, Copied, Heading, Paragraph, Table, headline, notes
from weft.views.breakdown import time

if TYPE_CHECKING:
    from weft.search.tune import LayoutChange, StepGap, Tuning

MOST = 4
"""Settings that are named one by one."""


def tune_view(result: Tuning, *, verbose: bool = False) -> Iterator[Block]:
    """A tuned run: how far it is from what it should reach, and the changes, simplest first.

    Args:
        verbose: add where the time of the run's own layout should go.
    """
    yield from headline(verdict(result))
    if result.network:
        yield from notes(f"Network: {line}" for line in result.network)
        yield Blank()
    if result.changes:
        yield _table(sorted(result.changes, key=lambda change: (len(change.settings), -change.speedup)))
        best = result.changes[0]
        written = [flag for flag in best.flags if not flag.startswith("without ")]
        dropped = [flag.removeprefix("without ") for flag in best.flags if flag.startswith("without ")]
        for title, flags in (("Set", written), ("Remove", dropped)):
            if flags:
                yield Paragraph(f"{title} in your file: {' '.join(flags)}", indent=2, hang=2)
        yield Copied(f"--layout {format_layout(best.estimate.layout)}", "Its layout")
    yield from notes(_notes(result))
    yield from notes(words.setting(result.job, result.cluster, result.stack), style="dim")
    if result.gap is not None:
        yield from gap_view(result.gap)
    if verbose:
        yield from time(result.expected, title="Expected time of the run's own layout")


def verdict(result: Tuning) -> str:
    """Where the run is, where it should be, whether its layout is the cause, and the best change."""
    expected, error = result.expected, None if result.expected.error is None else result.expected.error.error
    now = f"You run at {result.measured_mfu:.0%} MFU ({format_seconds(result.measured_s)} per step)"
    reached = f"{expected.mfu:.0%}{words.estimate_error(expected)}"
    if expected.memory_bytes > TOO_LARGE * expected.capacity_bytes:
        need, most = expected.memory_bytes / 2**30, expected.capacity_bytes / 2**30
        return (
            f"{now}, but this layout needs {need:.0f} of {most:.0f} GiB, so the run is another: check recomputation,"
            " ZeRO, offloading and the batch first."
        )
    if error is not None and abs(result.measured_mfu / expected.mfu - 1.0) <= error:
        text = f"{now}, normal for this layout, which should reach {reached}."
    elif result.slower < 0:
        text = f"{now}, more than expected of this layout, {reached}: check the value, the model and the batch."
    elif result.slower > FAULT:
        text = (
            f"{now}; this layout should reach {reached}. No layout explains a step {1 + result.slower:.1f} times as"
            f" long as expected: look at the {OUTSIDE} first."
        )
    else:
        text = f"{now}; this layout should reach {reached}. Look outside the layout first: {OUTSIDE}."
    if not result.changes:
        return f"{text} No change of the layout is expected to be faster."
    best = result.changes[0]
    sure = best.interval[0] >= 1.0
    return f"{text} {'Change' if sure else 'What may gain:'} {_settings(best)}: {_gain(best)}."


TOO_LARGE = 1.25
"""Share of the memory from which on an estimate's error does not explain that the run fits."""
FAULT = 1.0
"""Share by which a step is longer than expected that is a fault of the machine or the software, not of the layout."""
OUTSIDE = "network (weft bench), clocks, data loading, kernels"
"""Causes of a slow step that are not the layout."""


def _gain(change: LayoutChange) -> str:
    low, high = change.interval
    memory, capacity = change.estimate.memory_bytes / 2**30, change.estimate.capacity_bytes / 2**30
    return f"{change.speedup:.2f}x faster ({low:.2f} to {high:.2f}), {memory:.0f} of {capacity:.0f} GiB"


def _notes(result: Tuning) -> Iterator[str]:
    """What the run's memory says of the inputs, and what changes of the recipe gain."""
    expected = result.expected
    if not expected.fits and expected.memory_bytes <= TOO_LARGE * expected.capacity_bytes:
        need, most = expected.memory_bytes / 2**30, expected.capacity_bytes / 2**30
        yield (
            f"Warning: the run's layout needs {need:.0f} of {most:.0f} GiB by the estimate. Check the layout,"
            " recomputation, ZeRO and the batch"
        )
    if result.changes:
        mfu = result.measured_mfu * result.changes[0].speedup
        if (line := words.published(result.job, result.cluster, mfu)).startswith("Warning"):
            yield f"{line} of the change"
    if result.recipe:
        gains = [f"{each.name} {each.before} -> {each.after} {each.speedup:.2f}x" for each in result.recipe]
        yield f"If the recipe may change (and the learning rate with it): {', '.join(gains).replace('_', ' ')}"
    if result.unknown:
        yield f"Not in the estimate, and often of use: {'; '.join(result.unknown)}"


def _table(changes: list[LayoutChange]) -> Table:
    # How to get to each change: by flags of the run's file, or by its layout.
    flags = any(change.flags for change in changes)
    reached = [" ".join(change.flags) if flags else format_layout(change.estimate.layout) for change in changes]
    return Table(
        Column("change", [_settings(change) for change in changes], left=True),
        Column("step", [format_seconds(change.iteration_s) for change in changes]),
        Column("faster", [f"{change.speedup:.2f}x" for change in changes]),
        Column("interval", ["{:.2f} to {:.2f}".format(*change.interval) for change in changes], drop=2),
        Column("GiB", [f"{change.estimate.memory_bytes / 2**30:.1f}" for change in changes], drop=1),
        Column("flags" if flags else "layout", reached, drop=3, left=True),
    )


def _settings(change: LayoutChange) -> str:
    if len(change.settings) > MOST:
        return f"to {format_layout(change.estimate.layout)}"
    return ", ".join(f"{word_of(one.name)} {_value(one.before)} -> {_value(one.after)}" for one in change.settings)


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def gap_view(gap: StepGap) -> Iterator[Block]:
    """Where a traced step's time goes beside the estimate, and what each loss is likely to come from."""
    lost, shares = [part for part in gap.parts if part.cause], [part.lost_s / gap.step_s for part in gap.parts]
    title = f"Where the step goes: {format_seconds(gap.step_s)} traced"
    yield Heading(
        f"{title} ({', '.join(gap.sources)})"
        if len(gap.sources) <= MOST
        else f"{title} (mean of {len(gap.sources)} ranks)"
    )
    yield Table(
        Column("part", [part.name for part in gap.parts], left=True),
        Column("traced", [format_seconds(part.measured_s) for part in gap.parts]),
        Column("expected", [format_seconds(part.expected_s) for part in gap.parts]),
        Column("lost", ["-" if abs(share) < 0.0005 else f"{share:+.1%}" for share in shares]),
    )
    kinds = ", ".join(
        f"{name} {format_seconds(seconds)}" for name, seconds in zip(COMPUTATIONS, gap.kinds, strict=True)
    )
    yield Paragraph(f"computation: {kinds}; tp, dp, ...: communication that nothing hides", indent=2, hang=2)
    for part in lost:
        yield Paragraph(f"{part.lost_s / gap.step_s:.0%} in {part.name}: {part.cause}", indent=2, hang=2)
    if gap.slower is not None:
        yield Paragraph(
            f"Rank {gap.slow_rank} computes {gap.slower:.0%} longer than the median: clocks, power or a failing GPU",
            indent=2,
            hang=2,
        )
