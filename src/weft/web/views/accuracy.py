"""Predictions against measured runs as a page shows them: families, the scatter, runs, and one run part by part."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape, unescape

from weft.cluster.calibration import calibration
from weft.estimation.iteration import Estimator
from weft.estimation.single import estimate_of
from weft.layout.table import LayoutTable
from weft.layout.text import format_layout
from weft.units import format_bytes, format_seconds
from weft.validation.predict import with_stated
from weft.validation.summary import Errors, Outcome, Reason, Validation
from weft.views import words
from weft.views.charts.charts import embedded
from weft.views.charts.validation import validation_chart
from weft.views.words import printable
from weft.web.views.parts import Cell, Column, Fact, Parts, Picture, Table
from weft.web.views.ranking import bars

MOST_RUNS = 100
"""Listed of all families; of one family all are."""
Link = Callable[..., str]
"""Makes the address of a family, or of a family and a run."""
_MARK = re.compile(r"<path[^>]*><title>run: (.*?)&#xA;.*?</title></path>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run.

    Attributes:
        facts: what was run, measured and predicted.
        assumptions: what its source leaves open, in sentences.
        bars: predicted time and memory, part by part.
        warning: why the measured time may be wrong, or empty.
    """

    title: str
    facts: tuple[Fact, ...]
    assumptions: tuple[str, ...]
    bars: tuple[Parts, Parts]
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyView:
    """What a page says of a validation.

    Attributes:
        places: name and address of each family.
        families: errors of those that are shown.
        picture: None where no run could be predicted.
        run: the one that is looked at.
    """

    summary: str
    places: tuple[tuple[str, str], ...]
    families: Table
    picture: Picture | None
    runs: Table | None
    skipped: Table | None
    run: RunView | None


def view(found: Validation, families: Sequence[str], run: str, link: Link) -> AccuracyView:
    """A validation as a page shows it.

    Args:
        found: of the runs that are shown.
        families: that there are.
        run: name of the run that is looked at, or empty.
        link: makes the address of a family and a run.
    """
    chosen = next((one for one in found.outcomes if one.prepared.run.name == run), None)
    pooled = found.pooled
    text = f"{pooled.predicted:,} of {pooled.runs:,} runs are predicted"
    if found.headline is not None:
        of = "" if len(found.families) == 1 else ", mean over families"
        text += f"; mean absolute error of iteration time{of}: {found.headline:.1%}"
    return AccuracyView(
        summary=f"{text}.",
        places=tuple((printable(name), link(name)) for name in families),
        families=_families(found.families, link),
        picture=_picture(found, link) if found.outcomes else None,
        runs=_runs(found, link) if found.outcomes else None,
        skipped=_reasons(found.reasons) if found.reasons else None,
        run=None if chosen is None else _run(chosen),
    )


def _picture(found: Validation, link: Link) -> Picture:
    """The scatter, each point of which leads to its run; who uses keys has the links of the table."""
    known = {one.prepared.run.name: one.prepared.run.family for one in found.outcomes}

    def linked(mark: re.Match[str]) -> str:
        name = unescape(mark[1])
        if name not in known:
            return mark[0]
        return f'<a href="{escape(link(known[name], name))}" tabindex="-1" aria-label="{mark[1]}">{mark[0]}</a>'

    svg = _MARK.sub(linked, embedded(validation_chart(found))).replace('role="img"', 'role="group"', 1)
    return Picture(svg=svg, caption="Above the diagonal Weft predicts longer than it took; a point leads to its run")


def _families(families: tuple[Errors, ...], link: Link) -> Table:
    columns = (
        Column(heading="family", number=False),
        Column(heading="runs"),
        Column(heading="predicted"),
        Column(heading="mean error", meaning="mean absolute error of iteration time"),
        Column(heading="median"),
        Column(heading="bias", meaning="mean signed error; above 0: predicted too slow"),
        Column(heading="worst"),
        Column(heading="rank corr.", meaning="Spearman's rank correlation"),
        Column(heading="memory", meaning="mean absolute error of peak memory, where it was measured"),
    )
    return Table(
        name="families",
        caption="Errors by family: who measured, with which software",
        columns=columns,
        rows=tuple(
            (
                Cell(text=printable(one.family), link=link(one.family)),
                Cell(text=f"{one.runs:,}", key=one.runs),
                Cell(text=f"{one.predicted:,}", key=one.predicted),
                _share(one.mape),
                _share(one.median_ape),
                _share(one.bias, signed=True),
                _share(one.max_ape),
                Cell(text="-") if one.spearman is None else Cell(text=f"{one.spearman:.3f}", key=one.spearman),
                _share(one.memory_mape),
            )
            for one in families
        ),
    )


def _share(value: float | None, *, signed: bool = False) -> Cell:
    if value is None:
        return Cell(text="-")
    return Cell(text=f"{value:+.1%}" if signed else f"{value:.1%}", key=value)


def _runs(found: Validation, link: Link) -> Table:
    listed = sorted(found.outcomes, key=lambda one: -abs(one.error))
    shown = listed if len(found.families) == 1 else listed[:MOST_RUNS]
    first = "farthest off first" if shown is listed else f"the {MOST_RUNS} that are farthest off of {len(listed):,}"
    columns = (
        Column(heading="run", number=False),
        Column(heading="family", number=False),
        Column(heading="model", number=False),
        Column(heading="accelerator", number=False),
        Column(heading="count", meaning="of accelerators"),
        Column(heading="measured"),
        Column(heading="predicted"),
        Column(heading="error", meaning="of the predicted time; above 0: predicted too slow"),
        Column(heading="memory", meaning="error of the predicted peak memory"),
    )
    return Table(
        name="measured", caption=f"Runs, {first}", columns=columns, rows=tuple(_row(one, link) for one in shown)
    )


def _row(one: Outcome, link: Link) -> tuple[Cell, ...]:
    prepared = one.prepared
    return (
        Cell(text=printable(prepared.run.name), link=link(prepared.run.family, prepared.run.name)),
        Cell(text=printable(prepared.run.family)),
        Cell(text=printable(prepared.run.model)),
        Cell(text=prepared.cluster.accelerator.name),
        Cell(text=f"{prepared.cluster.count:,}", key=prepared.cluster.count),
        Cell(text=format_seconds(prepared.measured_s), key=prepared.measured_s),
        Cell(text=format_seconds(one.predicted_s), key=one.predicted_s),
        _share(one.error, signed=True),
        _share(one.memory_error, signed=True),
    )


def _reasons(reasons: tuple[Reason, ...]) -> Table:
    columns = (Column(heading="family", number=False), Column(heading="runs"), Column(heading="why", number=False))
    rows = tuple(
        (Cell(text=printable(one.family)), Cell(text=f"{one.runs:,}", key=one.runs), Cell(text=printable(one.reason)))
        for one in reasons
    )
    return Table(name="skipped", caption="Runs that are not predicted", columns=columns, rows=rows)


def _run(one: Outcome) -> RunView:
    prepared = one.prepared
    run, job, cluster = prepared.run, prepared.job, prepared.cluster
    constants = calibration(cluster.accelerator.name, prepared.stack.name)
    estimator = Estimator(job, cluster, with_stated(constants, prepared.stack.stated))
    found = estimate_of(estimator, prepared.layout, estimator.evaluate(LayoutTable.of([prepared.layout])), 0)
    rates = f"{one.measured_tflops:,.0f} TFLOP/s of the model per accelerator, predicted {one.predicted_tflops:,.0f}"
    how = " (from the rate that its source states)" if prepared.derived else ""
    facts = [
        Fact(name="Measured", text=f"{format_seconds(prepared.measured_s)} per iteration{how}"),
        Fact(name="Predicted", text=f"{format_seconds(one.predicted_s)}, {one.error:+.1%}"),
        *(Fact(name="To be expected", text=text.removeprefix("Error: ")) for text in words.trust(found.error)),
        Fact(name="Rate", text=rates),
    ]
    if prepared.measured_bytes is not None:
        held = f"{format_bytes(prepared.measured_bytes)} measured, {format_bytes(one.predicted_bytes)} predicted"
        facts.append(Fact(name="Peak memory", text=f"{held}, {one.memory_error:+.1%}"))
    facts += [
        Fact(name="Job", text=words.job_sentence(job)),
        Fact(name="Cluster", text=words.cluster_sentence(cluster)),
        Fact(name="Layout", text=format_layout(prepared.layout, whole=True)),
        Fact(name="Software", text=prepared.stack.name),
    ]
    told = (("Source", run.source), ("Where", run.source_url), ("Notes", run.notes))
    facts += [Fact(name=name, text=printable(text)) for name, text in told if text]
    return RunView(
        title=f"{printable(run.name)} ({printable(run.family)})",
        facts=tuple(facts),
        assumptions=tuple(printable(one) for one in prepared.assumptions),
        bars=bars(found),
        warning=printable(prepared.warning),
    )
