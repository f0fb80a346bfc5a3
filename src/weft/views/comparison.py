"""A comparison for people: which side is faster, the sides, what differs part by part and why, and equal prices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.layout.text import format_layout
from weft.units import format_bytes, format_count, format_seconds, listed
from weft.views.blocks import Blank, Block, Column, Heading, Paragraph, Table, cell, headline
from weft.views.charts import MUTED, Chart, alt, data, finished, linear, titled
from weft.views.words import PARTS, WORTH, recipe_words, signed, straddling

if TYPE_CHECKING:
    from weft.estimation.result import TrainingRun
    from weft.search.comparison import Change, Comparison, Difference, Side


NOTHING = 1e-6
"""Differences below this share of the larger side's total count as zero."""
LONGEST = 24
"""Longest label, in characters, beside a side's letter in the table."""
MOST_PARTS = 3
"""Parts that the line of a difference names."""


def comparison_view(result: Comparison, *, verbose: bool = False) -> Iterator[Block]:
    """Which side is faster, the sides, and what the others do differently from the first.

    Args:
        verbose: add every part of time and memory, with the reasons of differences.
    """
    yield from headline(comparison_verdict(result))
    yield Table(*_sides(result))
    alike = len({side.job.recipe for side in result.sides}) == 1
    for letter, side in zip(ascii_uppercase, result.sides, strict=False):
        recipe = "" if alike else f", {recipe_words(side.job.recipe)}"
        yield Paragraph(f"{letter}: {_setting(side)}{recipe}", indent=2, hang=2, style="dim")
        if line := straddling([side.estimate.layout], side.cluster):
            yield Paragraph(line, indent=2, hang=2)
    break_evens = list(map(_break_even, result.differences, result.runs[1:]))
    for letter, difference, price in zip(ascii_uppercase[1:], result.differences, break_evens, strict=False):
        turn = f". Break-even: price of {difference.label} {price[1]}" if price else ""
        yield Paragraph(f"{letter} against A: {_summary(difference)}{turn}", indent=2, hang=2)
    spares = "; +: spares, paid for" if any(side.cluster.spares for side in result.sides) else ""
    basis = "tokens without failures; prices may include a network; energy at board power"
    yield Paragraph(f"Training: {format_count(result.tokens)} {basis}{spares}", indent=2, hang=2, style="dim")
    if verbose:
        rows = zip(ascii_uppercase[1:], result.sides[1:], result.differences, break_evens, strict=False)
        for letter, side, difference, price in rows:
            yield from _details(letter, result.sides[0], side, difference)
            if price:
                text = f"Break-even price of {difference.label}: {price[0]}, {price[1]}."
                yield Paragraph(text, indent=2, hang=2)


def comparison_verdict(result: Comparison) -> str:
    """Which sides fit; then the fastest of these against the first, or the first against the next: speed, whether that
    is sure, and cost."""
    sides = result.sides
    fitting = [number for number, side in enumerate(sides) if side.estimate.fits]
    pool = fitting if len(fitting) > 1 else range(len(sides))
    order = sorted(pool, key=lambda number: -sides[number].tokens_per_s)
    fast, slow = (order[0], 0) if order[0] else (0, order[1])
    speed = sides[fast].tokens_per_s / sides[slow].tokens_per_s
    names = [ascii_uppercase[number] for number in (fast, slow)]
    which = "" if len(pool) == len(sides) else " that fit"
    among = f", the fastest of {len(pool)}{which}," if len(sides) > 2 else ""
    difference = result.differences[max(fast, slow) - 1]
    if len({side.job.recipe.tokens for side in sides}) == 1:
        first, second = (format_seconds(sides[number].iteration_s) for number in (fast, slow))
        speeds = f"{first} per step against {second}"
    else:
        first, second = (format_count(sides[number].tokens_per_s) for number in (fast, slow))
        speeds = f"{first} tokens/s against {second}"
    if round(speed, 2) == 1:
        text = f"{names[0]} and {names[1]} are equally fast: {speeds}"
    elif difference.tied:
        text = f"{names[0]}{among} ties with {names[1]}: {speed:.2f}x faster, {speeds} ({_error(difference)})"
    else:
        text = f"{names[0]}{among} is {speed:.2f}x faster than {names[1]}: {speeds} ({_error(difference)})"
    paid = [result.runs[number].usd for number in (fast, slow)]
    if paid[0] and paid[1] and round(paid[0] / paid[1], 2) != 1:
        share = paid[0] / paid[1] - 1
        text += f"; {names[0]} costs {abs(share):.0%} {'more' if share > 0 else 'less'}"
    return f"{_fits(sides, fitting)}{text}."


def _fits(sides: Sequence[Side], fitting: Sequence[int]) -> str:
    """Which sides fit in memory; empty where all do."""
    if len(fitting) < 2:
        return f"{f'Only {ascii_uppercase[fitting[0]]}' if fitting else 'No side'} fits in memory. If all did: "
    short = [ascii_uppercase[number] for number in range(len(sides)) if number not in fitting]
    return f"{listed(short)} {'does' if len(short) == 1 else 'do'} NOT fit in memory. " if short else ""


def _error(difference: Difference) -> str:
    return "error unknown" if difference.error is None else f"difference ±{difference.error:.0%}"


def _sides(result: Comparison) -> list[Column]:
    sides, runs = result.sides, result.runs
    ratios = [1.0, *(difference.ratio for difference in result.differences)]
    labels = [side.label if len(side.label) <= LONGEST else "" for side in sides]
    names = [f"{letter} {label}".rstrip() for letter, label in zip(ascii_uppercase, labels, strict=False)]
    counts = [f"{side.cluster.count:,}" + f" +{side.cluster.spares:,}".removesuffix(" +0") for side in sides]
    memory = [format_bytes(side.estimate.memory_bytes) + ("" if side.estimate.fits else " !") for side in sides]
    mfu = [side.estimate.mfu * side.estimate.iteration_s / side.iteration_s for side in sides]
    return [
        Column("side", names, left=True),
        Column("accelerators", counts, drop=2),
        Column("per step", [format_seconds(side.iteration_s) for side in sides]),
        Column("tokens/s", [format_count(side.tokens_per_s) for side in sides], drop=3),
        Column("time over A", [f"{ratio:.3f}" for ratio in ratios]),
        Column("MFU", [f"{share:.1%}" for share in mfu]),
        Column("memory", memory),
        Column("training", [format_seconds(run.training_s) for run in runs]),
        Column("cost", [cell(run.usd, lambda usd: f"${format_count(usd)}") for run in runs]),
        Column("energy", [f"{run.energy_mwh:,.0f} MWh" for run in runs], drop=1),
    ]


def _setting(side: Side) -> str:
    """What a side is, in a line."""
    layout = format_layout(side.estimate.layout, whole=True)
    network = f", on {side.fabric}" if side.fabric else ""
    fits = "" if side.estimate.fits else "; does NOT fit in memory (!)"
    return f"{side.job.model.name} on {side.cluster.name}, {layout}, {side.stack}{network}{fits}"


def _faster(difference: Difference) -> str:
    """How much faster or slower a side is than the first."""
    faster = difference.ratio < 1
    share = 1 / difference.ratio - 1 if faster else difference.ratio - 1
    return "as fast" if share < NOTHING else f"{share:.1%} {'faster' if faster else 'slower'} per token"


def _summary(difference: Difference) -> str:
    """The speed of a side against the first, and the parts that differ most."""
    total = max(sum(change.before for change in difference.time), sum(change.after for change in difference.time))
    worth = [change for change in difference.time if abs(change.difference) > WORTH * total]
    largest = sorted(worth, key=lambda change: -abs(change.difference))[:MOST_PARTS]
    parts = ", ".join(f"{PARTS[part.part].label} {_signed(part.difference, format_seconds)}" for part in largest)
    return _faster(difference) + (f": {parts}" if parts else "")


def _break_even(difference: Difference, run: TrainingRun) -> tuple[str, str] | None:
    """The factor and the price at which a side costs as much as the first; None where there is none."""
    equal, paid = difference.break_even_usd_per_hour, run.usd_per_accelerator_hour
    if equal is None or paid is None:
        return None
    return f"x{equal / paid:.3g}", f"${equal:.2f} per accelerator-hour (now ${paid:.2f})"


def _details(letter: str, first: Side, side: Side, difference: Difference) -> Iterator[Block]:
    """Every part of a difference."""
    yield Heading(f"{letter} ({side.label}) against A ({first.label}): {_faster(difference)}")
    if abs(difference.ratio - 1) >= NOTHING:
        place = "inside" if difference.tied else "larger than"
        known = f"The difference is {place} its error ({_error(difference)})."
        unknown = "Nothing similar was measured, so the error of this difference is unknown."
        yield Paragraph(unknown if difference.error is None else known, indent=2, hang=2)
    if first.job.recipe.tokens != side.job.recipe.tokens:
        tokens = format_count(first.job.recipe.tokens)
        yield Paragraph(f"Seconds are for {tokens} tokens, a step of A.", indent=2, hang=2)
    yield from _changes(difference.time, letter, format_seconds)
    yield Blank()
    yield from _changes(difference.memory, letter, format_bytes)


def _changes(changes: Sequence[Change], letter: str, form: Callable[[float], str]) -> Iterator[Block]:
    """The parts that either side has, and the reasons of the larger differences."""
    sums = [sum(change.before for change in changes), sum(change.after for change in changes)]
    total = max(sums)
    least = NOTHING * total
    rows = [change for change in changes if max(abs(change.before), abs(change.after)) > least]
    differences = [_signed(change.difference if abs(change.difference) > least else 0.0, form) for change in rows]
    parts = [PARTS[change.part].label for change in rows]
    yield Table(
        Column("part", [*parts, "in all"], left=True),
        Column("A", [*(_value(change.before, least, form) for change in rows), form(sums[0])]),
        Column(letter, [*(_value(change.after, least, form) for change in rows), form(sums[1])]),
        Column("difference", [*differences, _signed(sums[1] - sums[0], form)]),
    )
    explained = zip(rows, parts, differences, strict=True)
    for change, part, text in sorted(explained, key=lambda row: -abs(row[0].difference)):
        if change.why and abs(change.difference) > WORTH * total:
            yield Paragraph(f"{part} {text}: {'; '.join(change.why)}", indent=2, hang=4)


def _value(value: float, least: float, form: Callable[[float], str]) -> str:
    return form(value) if abs(value) > least else "-"


def _signed(value: float, form: Callable[[float], str]) -> str:
    return signed(value, form) if value else "-"


# Chart ---------------------------------------------------------------------------------------------------------

_WIDTH = 620
"""Pixels of the longest bar."""
_LANE = 26
"""Pixels from step to step of a waterfall."""
WHOLE, SLOWER, FASTER = "#8c959f", "#d55e00", "#0072b2"
CUT = 0.7
"""Share of the longest total that all steps lie above where the axis does not begin at 0."""


def comparison_chart(result: Comparison) -> Chart:
    """A waterfall for each side held against the first."""
    first = result.sides[0].label
    falls = [_difference(first, difference) for difference in result.differences]
    chart = alt.vconcat(*falls, spacing=34).resolve_scale(x="independent", y="independent")
    tokens = format_count(result.sides[0].job.recipe.tokens)
    title = f"What makes the difference from {first}"
    return finished(
        chart, title, f"seconds for {tokens} tokens; orange: longer, blue: shorter; communication: exposed"
    )


def _difference(first: str, difference: Difference) -> Chart:
    """The bars of one side: the first's time, every part that differs, the side's time."""
    before, after = (sum(getattr(part, name) for part in difference.time) for name in ("before", "after"))
    worth = [part for part in difference.time if abs(part.difference) > WORTH * max(before, after)]
    steps = [(PARTS[one.part].label, one.difference) for one in sorted(worth, key=lambda one: -abs(one.difference))]
    rest = after - before - sum(value for _, value in steps)
    if abs(rest) > 1e-6 * max(before, after):
        steps.append(("all other parts", rest))
    coloured = [_Step(name, seconds, SLOWER if seconds > 0 else FASTER) for name, seconds in steps]
    return _waterfall(_Step(first, before, WHOLE), coloured, difference.label)


class _Step(NamedTuple):
    """What adds to a time, or takes from it."""

    name: str
    seconds: float
    colour: str


def _waterfall(first: _Step, steps: Sequence[_Step], last: str) -> Chart:
    """The first total, every step, and the total that they lead to."""
    rows = [_bar(first.name, 0.0, first.seconds, first.colour, format_seconds(first.seconds))]
    at = first.seconds
    for name, seconds, colour in steps:
        rows.append(_bar(name, at, at + seconds, colour, signed(seconds)))
        at += seconds
    rows.append(_bar(last, 0.0, at, WHOLE, format_seconds(at)))
    for number, row in enumerate(rows):
        row["row"] = number
    changing = [end for row in rows[1:-1] for end in (row["begin"], row["end"])] or [first.seconds]
    least, longest = min(changing), max(*changing, first.seconds, at)
    # Totals begin off the chart where differences are small beside them, so that the differences can be seen.
    low = max(0.0, least - 0.6 * (longest - least)) if least > CUT * longest else 0.0
    for row in (rows[0], rows[-1]):
        row["begin"] = low
    high = longest + 0.14 * (longest - low)
    y = alt.Y("row:O", sort=[row["row"] for row in rows], axis=None)
    x = alt.X("begin:Q", title=titled("seconds", low), scale=linear(low, high), axis=alt.Axis(tickCount=6))
    base = alt.Chart(data(rows))
    bars = base.mark_bar(height=_LANE - 9).encode(
        x=x, x2="end:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=["name:N", "words:N"]
    )
    names = base.mark_text(align="right", dx=-6).encode(x=alt.value(0), y=y, text="name:N")
    words = base.mark_text(align="left", dx=6).encode(x="right:Q", y=y, text="words:N")
    links = [{"row": i, "next": i + 1, "at": rows[i]["end"]} for i in range(len(rows) - 1)]
    rules = alt.Chart(data(links)).mark_rule(color=MUTED, strokeWidth=0.8)
    layers = [rules.encode(x="at:Q", y=y, y2="next:O"), bars, names, words]
    return alt.layer(*layers).properties(width=_WIDTH, height=_LANE * len(rows))


def _bar(name: str, begin: float, end: float, colour: str, words: str) -> dict[str, Any]:
    return {"name": name, "begin": begin, "end": end, "right": max(begin, end), "colour": colour, "words": words}
