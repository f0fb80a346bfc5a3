"""A comparison for people: the sides, what differs part by part and why, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from weft.layout.text import format_layout
from weft.units import format_bytes, format_count, format_seconds
from weft.views.blocks import Blank, Block, Column, Grid, Heading, Paragraph
from weft.views.words import MEMORY_LABELS, TIME_LABELS, straddling

if TYPE_CHECKING:
    from weft.search.comparison import Change, Comparison, Difference, Side

NETWORK_LABEL = "contention on the network"
PART_LABELS = TIME_LABELS | MEMORY_LABELS | {"network_s": NETWORK_LABEL}
"""What each part of a comparison is called."""
WORTH = 0.005
"""Share of the larger side's total below which a difference is not explained."""
NOTHING = 1e-6
"""Share of the larger side's total that is no difference."""


def comparison_view(result: Comparison) -> Iterator[Block]:
    """The sides, then each held against the first."""
    yield Heading("Side by side")
    yield Grid(_sides(result))
    for side in result.sides:
        yield Paragraph(f"{side.label}: {_cut(side)}", indent=2, hang=2, style="dim")
        if line := straddling([side.estimate.layout], side.cluster):
            yield Paragraph(line, indent=2, hang=2)
    spares = "; +: spares, paid for" if any(one.cluster.spares for one in result.sides) else ""
    yield Paragraph(
        f"time, cost, energy: of {format_count(result.tokens)} tokens without failures; cost of accelerator-hours at"
        f" their price, which may have a network in it; energy of the accelerators at their board limit{spares}.",
        indent=2,
        hang=2,
        style="dim",
    )
    for side, difference in zip(result.sides[1:], result.differences, strict=True):
        yield from _difference(result.sides[0], side, difference)


def _sides(result: Comparison) -> list[Column]:
    sides, runs = result.sides, result.runs
    ratios = [1.0, *(one.ratio for one in result.differences)]
    return [
        Column(heading="side", cells=[one.label for one in sides], left=True),
        Column(
            heading="accelerators",
            cells=[f"{one.cluster.count:,}" + f" +{one.cluster.spares:,}".removesuffix(" +0") for one in sides],
            drop=2,
        ),
        Column(heading="iteration", cells=[format_seconds(one.iteration_s) for one in sides]),
        Column(heading="tokens/s", cells=[format_count(one.tokens_per_s) for one in sides], drop=3),
        Column(heading="ratio", cells=[f"{one:.3f}" for one in ratios]),
        Column(
            heading="MFU",
            cells=[f"{one.estimate.mfu * one.estimate.iteration_s / one.iteration_s:.1%}" for one in sides],
        ),
        Column(
            heading="memory",
            cells=[format_bytes(one.estimate.memory_bytes) + ("" if one.estimate.fits else " !") for one in sides],
        ),
        Column(heading="time", cells=[format_seconds(run.training_s) for run in runs]),
        Column(heading="cost", cells=["-" if run.usd is None else f"${format_count(run.usd)}" for run in runs]),
        Column(heading="energy", cells=[f"{run.energy_mwh:,.0f} MWh" for run in runs], drop=1),
    ]


def _cut(side: Side) -> str:
    """What a side is, in a line."""
    layout = format_layout(side.estimate.layout, whole=True)
    network = f", on {side.fabric}" if side.fabric else ""
    fits = "" if side.estimate.fits else "; DOES NOT FIT the memory (!)"
    return f"{side.job.model.name} on {side.cluster.name}, {layout}, {side.stack}{network}{fits}"


def _difference(first: Side, side: Side, difference: Difference) -> Iterator[Block]:
    faster = difference.ratio < 1
    share = 1 / difference.ratio - 1 if faster else difference.ratio - 1
    same = share < NOTHING
    words = "as fast" if same else f"{share:.1%} {'faster' if faster else 'slower'}"
    yield Heading(f"{side.label} against {first.label}: {words} per token")
    if not same:
        yield Paragraph(significance(difference), indent=2, hang=2)
    if first.job.recipe.tokens != side.job.recipe.tokens:
        tokens = format_count(first.job.recipe.tokens)
        yield Paragraph(f"Seconds are for {tokens} tokens, an iteration of {first.label}.", indent=2, hang=2)
    yield from _changes(difference.time, first.label, side.label, format_seconds)
    yield Blank()
    yield from _changes(difference.memory, first.label, side.label, format_bytes)
    for turn in difference.turns:
        if turn.factor is None:
            yield Paragraph(f"Order does not turn with {turn.figure} within {turn.within}.", indent=2, hang=2)
        else:
            text = f"Order turns with {turn.figure} x{turn.factor:.3g}: {turn.value}."
            yield Paragraph(text, indent=2, hang=2)


def significance(difference: Difference) -> str:
    """Whether two sides tie."""
    if difference.error is None:
        return "Nothing similar was measured, so the error of this difference is unknown."
    if difference.tied:
        return f"A tie: the difference is inside its typical error of ±{difference.error:.0%}."
    return f"The difference is larger than its typical error of ±{difference.error:.0%}."


def _changes(changes: Sequence[Change], before: str, after: str, form: Callable[[float], str]) -> Iterator[Block]:
    """The parts that are not nothing on both sides, and the reasons of the differences that are worth one."""
    sums = [sum(one.before for one in changes), sum(one.after for one in changes)]
    total = max(sums)
    least = NOTHING * total
    rows = [one for one in changes if max(abs(one.before), abs(one.after)) > least]
    differences = [_signed(one.difference if abs(one.difference) > least else 0.0, form) for one in rows]
    yield Grid(
        [
            Column(heading="part", cells=[*(PART_LABELS[one.part] for one in rows), "in all"], left=True),
            Column(heading=before, cells=[*(_value(one.before, least, form) for one in rows), form(sums[0])]),
            Column(heading=after, cells=[*(_value(one.after, least, form) for one in rows), form(sums[1])]),
            Column(heading="difference", cells=[*differences, _signed(sums[1] - sums[0], form)]),
        ]
    )
    worth = [(one, text) for one, text in zip(rows, differences, strict=True) if abs(one.difference) > WORTH * total]
    for one, text in sorted(worth, key=lambda row: -abs(row[0].difference)):
        if one.why:
            yield Paragraph(f"{PART_LABELS[one.part]} {text}: {'; '.join(one.why)}", indent=2, hang=4)


def _value(value: float, least: float, form: Callable[[float], str]) -> str:
    return form(value) if abs(value) > least else "-"


def _signed(value: float, form: Callable[[float], str]) -> str:
    if not value:
        return "-"
    return f"{'+' if value > 0 else '-'}{form(abs(value))}"
