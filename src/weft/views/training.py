"""A training run for people: days, cost, energy, and what failures and checkpoints take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import counted, format_count, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Fact, Grid, Heading
from weft.views.breakdown import defaults

if TYPE_CHECKING:
    from weft.estimation.training import Failures, TrainingRun

BAR = 40


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
