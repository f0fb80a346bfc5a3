"""A training run for people: days, cost, energy, and what failures and checkpoints take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.fabric.transport import crossing
from weft.layout.text import format_layout
from weft.units import counted, format_count, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Fact, Grid, Heading, Paragraph
from weft.views.breakdown import defaults, subject

if TYPE_CHECKING:
    from weft.estimation.training import Failures, TrainingRun
    from weft.search.goodput import ClassRow, GoodputReport


def training_view(run: TrainingRun) -> Iterator[Block]:
    """One training run."""
    yield Heading(f"Training on {format_count(run.tokens)} tokens with {counted(run.accelerators, 'accelerator')}")
    facts = [("iterations", f"{run.iterations:,}"), ("time without failures", _days(run.training_s))]
    if run.failures is not None:
        facts.append(("expected time with failures", _days(run.expected_s)))
    facts.append(("accelerator-hours", _large(run.accelerator_hours)))
    if run.usd is not None:
        price = f"at ${run.usd_per_accelerator_hour:g} per accelerator-hour"
        facts.append(("cost", f"${_large(run.usd)} {price}"))
    facts.append(("energy", f"{_large(run.energy_mwh)} MWh (accelerators at their limit x PUE {run.pue:g})"))
    yield from _facts(facts)
    if run.failures is not None:
        yield from failures(run.failures)
    if run.defaults:
        yield Blank()
        yield from defaults(run.defaults)


def failures(failures: Failures) -> Iterator[Block]:
    """How often the job fails, when to checkpoint, and where the expected time goes."""
    yield Heading(f"Failures: goodput {failures.goodput:.1%} of the expected time is training")
    interval = (
        f"every {counted(failures.interval_iterations, 'iteration')} = {format_seconds(failures.interval_s)}"
        f" (optimum {format_seconds(failures.daly_interval_s)};"
        f" first order {format_seconds(failures.young_interval_s)})"
    )
    facts = [
        (
            "mean time between failures",
            f"{format_seconds(failures.mtbf_s)} of one, {format_seconds(failures.job_mtbf_s)} of all",
        ),
        ("expected failures", _large(failures.expected_failures)),
        ("checkpoint", f"{format_si(failures.checkpoint_bytes, 'B')} in {format_seconds(failures.checkpoint_s)}"),
        ("checkpoint interval", interval),
        ("restart", format_seconds(failures.restart_s)),
    ]
    yield from _facts(facts)
    shares = [
        ("training", failures.goodput),
        ("writing checkpoints", failures.checkpoint_share),
        ("work done again", failures.rework_share),
        ("restarting", failures.restart_share),
    ]
    if failures.other_share > 0:
        shares.append(("waiting, slow or planned", failures.other_share))
    columns = [
        Column(heading="", cells=[name for name, _ in shares], left=True),
        Column(heading="", cells=[f"{share:.2%}" for _, share in shares]),
        Column(heading="", shares=[share for _, share in shares], room=40, drop=1, left=True),
    ]
    yield Blank()
    yield Grid(columns)


def _facts(facts: list[tuple[str, str]]) -> Iterator[Block]:
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        yield Fact(name, value, width=width, indent=2)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_seconds(seconds)


def _large(value: float) -> str:
    return format_count(value) if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def goodput_view(result: GoodputReport) -> Iterator[Block]:
    """A run under failures."""
    yield from subject(result.job, result.cluster, routing=crossing(result.routing) if result.routing else "")
    yield Fact("Layout:", format_layout(result.layout))
    yield from training_view(result.run)
    yield from _chance(result)
    yield from _classes(result)
    yield from _spares(result)
    if result.simultaneous:
        yield from _simultaneous(result)


def _chance(result: GoodputReport) -> Iterator[Block]:
    failing = result.failing
    yield Heading(f"By chance: {_round_days(result.low_s)} to {_round_days(result.high_s)} days in nine runs of ten")
    yield Paragraph(
        f"{result.runs} random runs have a goodput of {result.drawn_goodput:.2%}, the closed form"
        f" {result.goodput:.2%}. Policy: {failing.policy}, with {count_of(result.spares, 'spare host')} of"
        f" {counted(failing.host_size, 'accelerator')}.",
        indent=2,
    )
    if result.saving.every > 1:
        every = result.saving.every
        yield Paragraph(
            f"Checkpoints stay with peers ({format_seconds(result.saving.stall_s)} each); every {every}th goes to"
            f" storage, every {format_seconds(every * result.saving.segment_s)}.",
            indent=2,
        )
    if result.saving.lag_s > 0:
        lag = format_seconds(result.saving.lag_s)
        yield Paragraph(f"A checkpoint in storage can be used {lag} after it is begun.", indent=2)


def _classes(result: GoodputReport) -> Iterator[Block]:
    rows = result.classes
    yield Heading(f"What each class of {result.failing.book.name} costs on {result.fabric.name}")
    columns = [
        Column(heading="class", cells=[one.name for one in rows], left=True),
        Column(heading="of", cells=[_part(one) for one in rows], left=True),
        Column(heading="events", cells=[_events(one.events) for one in rows]),
        Column(heading="takes", cells=[_takes(one, result.simulated) for one in rows], left=True),
        Column(heading="costs", cells=[f"{one.share:.2%}" for one in rows]),
        Column(heading="rework", cells=[_share(one.rework) for one in rows], drop=2),
        Column(heading="restart", cells=[_share(one.restart) for one in rows], drop=3),
        Column(heading="waiting", cells=[_share(one.waiting) for one in rows], drop=4),
        Column(heading="slower", cells=[_share(one.reduced) for one in rows], drop=5),
        Column(heading="planned", cells=[_share(one.planned) for one in rows], drop=1),
    ]
    yield Grid(columns)
    note = "" if result.simulated else " x1 where traffic goes around: not simulated without --fabric."
    yield Paragraph(
        "costs: share of the expected time; takes: hosts that go into repair, or the job's speed while one lasts."
        + note,
        indent=2,
    )


def _spares(result: GoodputReport) -> Iterator[Block]:
    rows = result.spare_rows
    yield Heading(f"Spares: {count_of(result.best_spares, 'host')} cost least")
    yield Grid(
        [
            Column(heading="spares", cells=[f"{one.spares:,}" for one in rows]),
            Column(heading="goodput", cells=[f"{one.goodput:.2%}" for one in rows]),
            Column(heading="accelerator-hours", cells=[f"x{one.cost:.4f}" for one in rows]),
        ]
    )
    yield Paragraph("accelerator-hours: spares included, over those of a run that never fails.", indent=2)


def _simultaneous(result: GoodputReport) -> Iterator[Block]:
    rows = result.simultaneous
    yield Heading(f"Parts of {result.fabric.name} failed at once, {count_of(rows[0].draws, 'draw')} each")
    yield Grid(
        [
            Column(heading="failed", cells=[f"{one.failed:,}" for one in rows]),
            Column(heading="draws that stop the job", cells=[str(one.cut) for one in rows]),
            Column(heading="stranded at most", cells=[f"{one.stranded:,}" for one in rows]),
            Column(heading="slowdown", cells=[_slowdown(one.slowdown) for one in rows]),
            Column(heading="worst", cells=[_slowdown(one.worst) for one in rows]),
        ]
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


def _round_days(seconds: float) -> str:
    return f"{seconds / 86400:.1f}"
