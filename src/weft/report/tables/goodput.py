"""A run under failures for people: what is left, what takes the rest, and what could be done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from weft.fabric.transport import crossing
from weft.layout.text import format_layout
from weft.report.tables.breakdown import print_subject
from weft.report.tables.grid import Column, heading, paragraph, print_grid
from weft.report.tables.training import training_table
from weft.units import counted, format_seconds

if TYPE_CHECKING:
    from weft.search.goodput import ClassRow, GoodputReport


def goodput_table(found: GoodputReport, console: Console) -> None:
    """Print a run under failures."""
    print_subject(found.job, found.cluster, console, routing=crossing(found.routing) if found.routing else "")
    paragraph(console, f"Layout:  {format_layout(found.layout)}", hang=9)
    training_table(found.run, console)
    _print_chance(found, console)
    _print_classes(found, console)
    _print_spares(found, console)
    if found.simultaneous:
        _print_simultaneous(found, console)


def _print_chance(found: GoodputReport, console: Console) -> None:
    failing = found.failing
    heading(console, f"By chance: {_days(found.low_s)} to {_days(found.high_s)} days in nine runs of ten")
    paragraph(
        console,
        f"{found.runs} random runs have a goodput of {found.drawn_goodput:.2%}, the closed form"
        f" {found.goodput:.2%}. Policy: {failing.policy}, with {count_of(found.spares, 'spare host')} of"
        f" {counted(failing.host_size, 'accelerator')}.",
        indent=2,
    )
    if found.saving.every > 1:
        every = found.saving.every
        paragraph(
            console,
            f"Checkpoints stay with peers ({format_seconds(found.saving.stall_s)} each); every {every}th goes to"
            f" storage, every {format_seconds(every * found.saving.segment_s)}.",
            indent=2,
        )
    if found.saving.lag_s > 0:
        lag = format_seconds(found.saving.lag_s)
        paragraph(console, f"A checkpoint in storage can be used {lag} after it is begun.", indent=2)


def _print_classes(found: GoodputReport, console: Console) -> None:
    rows = found.classes
    heading(console, f"What each class of {found.failing.book.name} costs on {found.fabric.name}")
    columns = [
        Column(heading="class", cells=[one.name for one in rows], left=True),
        Column(heading="of", cells=[_part(one) for one in rows], left=True),
        Column(heading="events", cells=[_events(one.events) for one in rows]),
        Column(heading="takes", cells=[_takes(one, found.simulated) for one in rows], left=True),
        Column(heading="costs", cells=[f"{one.share:.2%}" for one in rows]),
        Column(heading="rework", cells=[_share(one.rework) for one in rows], drop=2),
        Column(heading="restart", cells=[_share(one.restart) for one in rows], drop=3),
        Column(heading="waiting", cells=[_share(one.waiting) for one in rows], drop=4),
        Column(heading="slower", cells=[_share(one.reduced) for one in rows], drop=5),
        Column(heading="planned", cells=[_share(one.planned) for one in rows], drop=1),
    ]
    print_grid(console, columns)
    note = "" if found.simulated else " x1 where traffic goes around: not simulated without --fabric."
    paragraph(
        console,
        "costs: share of the expected time; takes: hosts that go into repair, or the job's speed while one lasts."
        + note,
        indent=2,
    )


def _print_spares(found: GoodputReport, console: Console) -> None:
    rows = found.spare_rows
    heading(console, f"Spares: {count_of(found.best_spares, 'host')} cost least")
    print_grid(
        console,
        [
            Column(heading="spares", cells=[f"{one.spares:,}" for one in rows]),
            Column(heading="goodput", cells=[f"{one.goodput:.2%}" for one in rows]),
            Column(heading="accelerator-hours", cells=[f"x{one.cost:.4f}" for one in rows]),
        ],
    )
    paragraph(console, "accelerator-hours: spares included, over those of a run that never fails.", indent=2)


def _print_simultaneous(found: GoodputReport, console: Console) -> None:
    rows = found.simultaneous
    heading(console, f"Parts of {found.fabric.name} failed at once, {count_of(rows[0].draws, 'draw')} each")
    print_grid(
        console,
        [
            Column(heading="failed", cells=[f"{one.failed:,}" for one in rows]),
            Column(heading="draws that stop the job", cells=[str(one.cut) for one in rows]),
            Column(heading="stranded at most", cells=[f"{one.stranded:,}" for one in rows]),
            Column(heading="slowdown", cells=[_slowdown(one.slowdown) for one in rows]),
            Column(heading="worst", cells=[_slowdown(one.worst) for one in rows]),
        ],
    )


def count_of(number: int, name: str) -> str:
    """A number of things."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _part(one: ClassRow) -> str:
    return "the job" if one.component == "job" else f"{one.components:,.0f} {one.component}"


def _events(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _takes(one: ClassRow, simulated: bool) -> str:
    if one.speed is not None:
        return f"x{one.speed:.3f}" if simulated or one.speed < 1 else "x1"
    return count_of(one.hosts, "host") if one.hosts else "no host"


def _share(value: float) -> str:
    return f"{value:.2%}" if value >= 5e-5 else "-"


def _slowdown(value: float | None) -> str:
    return "-" if value is None else f"x{value:.3f}"


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f}"
