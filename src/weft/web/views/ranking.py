"""Ranked layouts as a table, and one layout as bars of time and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.estimation.contrast import WITHIN
from weft.layout.check import REASONS
from weft.layout.text import DEGREES, format_degrees, format_layout
from weft.units import counted, format_bytes, format_seconds
from weft.views import words
from weft.views.charts.palette import MEMORY_COLOURS, TIME_COLOURS
from weft.views.comparison import PART_LABELS, WORTH
from weft.web.views.parts import Cell, Column, Fact, Part, Parts, Table

if TYPE_CHECKING:
    from weft.estimation.result import Estimate
    from weft.estimation.result import Part as Share
    from weft.search.comparison import Comparison
    from weft.search.ranking import Plan

Link = Callable[[str], str]


def ranking(plan: Plan, shown: str, link: Link, against: Link) -> Table:
    """The layouts of a plan, the one of text ``shown`` being looked at; ``link`` and ``against`` make the addresses of
    a layout and of a comparison with it."""
    degrees = [(s, n) for s, n in DEGREES if any(getattr(one.layout, n) > 1 for one in plan.layouts)]
    columns = [
        Column(heading="#", meaning="rank; leads to the layout"),
        *(Column(heading=short, meaning=words.MEANINGS[short]) for short, _ in degrees),
        Column(heading="mbs", meaning="micro-batch, in sequences"),
        Column(heading="schedule", number=False),
        Column(heading="recompute", number=False),
        Column(heading="switches", number=False),
        Column(heading="time", meaning="of an iteration"),
        Column(heading="MFU", meaning="model FLOP/s of peak"),
        Column(heading="mem GiB", meaning="of the fullest stage"),
    ]
    if plan.ties:
        columns.append(Column(heading="tie", meaning="layouts of one number cannot be told apart"))
        columns.append(Column(heading="chance", meaning=f"to take at most {WITHIN:.0%} longer than the best of these"))
    columns.append(Column(heading="compare", meaning="with the layout that is shown", number=False))
    rows, marks = [], []
    near = sum(one.group == 1 for one in plan.ties) > 1
    for rank, one in enumerate(plan.layouts, 1):
        layout, text = one.layout, format_layout(one.layout)
        cells = [
            Cell(text=str(rank), key=rank, link=link(text)),
            *(Cell(text=str(getattr(layout, name)), key=getattr(layout, name)) for _, name in degrees),
            Cell(text=str(layout.micro_batch), key=layout.micro_batch),
            Cell(text=words.schedule_words(layout)),
            Cell(text=words.recompute_words(layout)),
            Cell(text=words.switch_words(layout)),
            Cell(text=format_seconds(one.iteration_s), key=one.iteration_s),
            Cell(text=f"{one.mfu:.1%}", key=one.mfu),
            Cell(text=f"{one.memory_bytes / 2**30:.1f}", key=one.memory_bytes),
        ]
        if plan.ties:
            tie = plan.ties[rank - 1] if rank <= len(plan.ties) else None
            cells.append(Cell(text="-") if tie is None else Cell(text=str(tie.group), key=tie.group))
            cells.append(Cell(text="-") if tie is None else Cell(text=f"{tie.chance:.0%}", key=tie.chance))
        cells.append(Cell(text="shown") if text == shown else Cell(text=f"with {rank}", link=against(text)))
        tied = near and rank <= len(plan.ties) and plan.ties[rank - 1].group == 1
        rows.append(tuple(cells))
        marks.append(" ".join(["tied"] * tied + ["shown"] * (text == shown)))
    caption = "Layouts that fit" + ("; marked: those that cannot be told apart from the fastest" if near else "")
    return Table(name="layouts", caption=caption, columns=tuple(columns), rows=tuple(rows), marks=tuple(marks))


def frontier(plan: Plan, link: Link) -> Table:
    """The layouts that no other beats in both time and memory; ``link`` makes the address of a layout."""
    columns = (
        Column(heading="layout", number=False),
        Column(heading="time"),
        Column(heading="mem GiB"),
        Column(heading="mbs"),
        Column(heading="recompute", number=False),
        Column(heading="switches", number=False),
    )
    rows = tuple(
        (
            Cell(text=format_degrees(one.layout), link=link(format_layout(one.layout))),
            Cell(text=format_seconds(one.iteration_s), key=one.iteration_s),
            Cell(text=f"{one.memory_bytes / 2**30:.1f}", key=one.memory_bytes),
            Cell(text=str(one.layout.micro_batch), key=one.layout.micro_batch),
            Cell(text=words.recompute_words(one.layout)),
            Cell(text=words.switch_words(one.layout)),
        )
        for one in plan.pareto
    )
    return Table(name="frontier", caption="Less memory for more time", columns=columns, rows=rows)


def effect(plan: Plan, as_it_is: Plan) -> str:
    """What other hardware changes, in a sentence."""
    if not plan.layouts:
        return "On the hardware as it is, " + ("nothing fits either" if not as_it_is.layouts else "layouts fit")
    if not as_it_is.layouts:
        return "On the hardware as it is, nothing fits"
    best, before = plan.layouts[0], as_it_is.layouts[0]
    same = "the same layout" if best.layout == before.layout else "another layout"
    change = round(best.iteration_s / before.iteration_s - 1, 3) + 0.0
    return (
        f"What if: {format_seconds(best.iteration_s)} per iteration in place of {format_seconds(before.iteration_s)}"
        f" ({change:+.1%}); on the hardware as it is, {same} is first"
    )


def summary(plan: Plan) -> tuple[Fact, ...]:
    """What was planned, and how many layouts were looked at."""
    assumed = "; ".join((*plan.job.defaults, *plan.cluster.defaults))
    counts = f"{counted(plan.considered, 'layout')}, {plan.evaluated:,} estimated, {plan.feasible:,} fit in memory"
    facts = [
        Fact(name="Job", text=words.job_sentence(plan.job)),
        Fact(name="Cluster", text=f"{words.printable(plan.cluster.name)}: {words.cluster_sentence(plan.cluster)}"),
        Fact(name="Search", text=f"{plan.space.name} space: {counts}"),
        Fact(name="Software", text=plan.stack),
    ]
    return (*facts, Fact(name="Assumed", text=words.printable(assumed))) if assumed else tuple(facts)


def rejections(plan: Plan) -> Table:
    """How many layouts each rule took."""
    columns = (
        Column(heading="rule", number=False),
        Column(heading="layouts"),
        Column(heading="what it says", number=False),
    )
    rows = tuple(
        (Cell(text=one.code), Cell(text=f"{one.layouts:,}", key=one.layouts), Cell(text=REASONS[one.code]))
        for one in plan.rejected
    )
    return Table(name="rejected", caption="Layouts that cannot run, by rule", columns=columns, rows=rows)


def choice(plan: Plan) -> tuple[str, ...]:
    """What being first is worth, in sentences."""
    if not plan.layouts:
        return ()
    best = plan.layouts[0]
    told = () if plan.choice is None else words.choice(plan.choice, best, [tie.group for tie in plan.ties])
    advice = () if plan.advice is None else (words.advice_sentence(plan.advice, best),)
    split = words.straddling([one.layout for one in plan.layouts], plan.cluster)
    return (*([split] if split else []), *words.trust(best.error), *told, *advice)


def shares(caption: str, found: Sequence[Share], whole: float, labels: dict[str, str], seconds: bool) -> Parts:
    """Parts of a time in seconds, or of a memory in bytes, as bars of the whole."""
    colours, form = (TIME_COLOURS, format_seconds) if seconds else (MEMORY_COLOURS, format_bytes)
    parts = [
        Part(label=labels[one.name], text=form(one.value), share=one.value / whole, colour=colours[one.name])
        for one in found
        if one.value > 0
    ]
    return Parts(caption=caption, parts=tuple(parts))


def bars(one: Estimate) -> tuple[Parts, Parts]:
    """Time and memory of a layout, part by part."""
    used, capacity = format_bytes(one.memory_bytes), format_bytes(one.capacity_bytes)
    return (
        shares(f"{format_seconds(one.iteration_s)} per iteration", one.time, one.iteration_s, words.TIME_LABELS, True),
        shares(
            f"{used} of {capacity} on stage {one.fullest_stage}",
            one.memory,
            one.capacity_bytes,
            words.MEMORY_LABELS,
            False,
        ),
    )


def differences(found: Comparison) -> Table:
    """The parts in which two layouts differ, and why."""
    (difference,) = found.differences
    columns = (
        Column(heading="part", number=False),
        Column(heading="this"),
        Column(heading="other"),
        Column(heading="difference"),
        Column(heading="why", number=False),
    )
    rows = []
    for changes, form in ((difference.time, format_seconds), (difference.memory, format_bytes)):
        total = max(sum(one.before for one in changes), sum(one.after for one in changes))
        worth = [one for one in changes if abs(one.difference) > WORTH * total]
        for one in sorted(worth, key=lambda change: -abs(change.difference)):
            sign = "+" if one.difference > 0 else "-"
            cells = (
                Cell(text=PART_LABELS[one.part]),
                Cell(text=form(one.before), key=one.before),
                Cell(text=form(one.after), key=one.after),
                Cell(text=f"{sign}{form(abs(one.difference))}", key=one.difference),
                Cell(text="; ".join(one.why) or "-"),
            )
            rows.append(cells)
    caption = f"The other takes {difference.ratio:.3f} times as long"
    if difference.chance is not None:
        caption += f"; it is the faster one with a probability of {difference.chance:.0%}"
    return Table(name="differences", caption=caption, columns=columns, rows=tuple(rows))
