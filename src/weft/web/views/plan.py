"""A plan as a page shows it: summary, layouts, time and memory of the best, why others lost, what to launch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from weft import __version__
from weft.estimation.contrast import WITHIN
from weft.layout.check import REASONS
from weft.layout.text import format_degrees, format_layout
from weft.search.comparison import Side
from weft.search.comparison import compare as held
from weft.units import counted, format_bytes, format_seconds
from weft.views import words
from weft.views.charts.charts import embedded
from weft.views.charts.comparison import comparison_chart
from weft.views.charts.layouts import breakdown_chart, pareto_chart
from weft.views.comparison import PART_LABELS, WORTH, significance
from weft.views.ranking import degrees, results, settings
from weft.web.views.parts import Cell, Column, Fact, Parts, Picture, Table
from weft.web.views.ranking import shares

if TYPE_CHECKING:
    from weft.estimation.result import Estimate
    from weft.search.comparison import Change, Comparison
    from weft.search.ranking import Plan

COMPARED = 5
"""Layouts that are held against each other: the first ones."""
_TOKENS = 1e12
_MEANINGS = words.MEANINGS | {
    "#": "rank",
    "mbs": "micro-batch in sequences",
    "MFU": "model FLOP/s of peak",
    "TF/s": "model TFLOP/s per accelerator",
    "mem GiB": "memory of the fullest stage",
    "chance": f"probability to take at most {WITHIN:.0%} longer than the best of these",
    "largest losses": "idle time and exposed communication, of the iteration",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch file to copy; ``notes`` say what the tool does otherwise, or why it cannot run the layout."""

    tool: str
    file: str = ""
    text: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What a page says of a plan.

    Attributes:
        summary: sentences, the most important first.
        parts: time and memory of the best layout.
        bound: the lower bound, in a sentence.
        compared: each of the first layouts against the first of them; None where there is one layout or none.
        reasons: what makes the difference, a sentence for each layout.
        inputs: job, cluster, search and constants as JSON.
    """

    title: str
    summary: tuple[str, ...]
    facts: tuple[Fact, ...]
    layouts: Table | None
    parts: tuple[Parts, ...]
    bound: str
    pictures: tuple[Picture, ...]
    compared: Table | None
    comparison: Picture | None
    reasons: tuple[Fact, ...]
    rejected: Table
    advice: str
    launches: tuple[Launch, ...]
    assumptions: tuple[str, ...]
    provenance: tuple[Fact, ...]
    inputs: str


def view(plan: Plan, launches: Sequence[Launch] = (), *, drawn: bool = True) -> PlanView:
    """A plan as a page shows it, with pictures where it is ``drawn``; ``launches`` start its best layout."""
    best = plan.layouts[0] if plan.layouts else None
    comparison = _comparison(plan)
    document = plan.to_dict()
    kept = ("job", "cluster", "stack", "space", "search", "calibration")
    return PlanView(
        title=f"{words.printable(plan.job.model.name)} on {words.printable(plan.cluster.name)}",
        summary=_summary(plan, best),
        facts=_facts(plan),
        layouts=_layouts(plan) if plan.layouts else None,
        parts=() if best is None else (_time(best), _memory(best)),
        bound="" if best is None else _bound(best),
        pictures=_pictures(plan) if drawn and plan.layouts else (),
        compared=None if comparison is None else _compared(comparison),
        comparison=_picture_of(comparison) if drawn and comparison is not None else None,
        reasons=() if comparison is None else _reasons(comparison),
        rejected=_rejected(plan),
        advice="" if plan.advice is None else words.advice_sentence(plan.advice, best),
        launches=tuple(launches),
        assumptions=tuple(words.printable(one) for one in (*plan.job.defaults, *plan.cluster.defaults)),
        provenance=(
            Fact(name="Weft", text=__version__),
            Fact(name="Software planned for", text=words.software(plan.stack, plan.space.name, plan.job)),
            Fact(name="Constants", text="shipped, fitted to measured runs" if plan.constants.shipped else "given"),
            Fact(name="Plan, SHA-256", text=sha256(plan.to_json().encode()).hexdigest()),
        ),
        inputs=json.dumps({name: document[name] for name in kept}, indent=1, sort_keys=True),
    )


def _summary(plan: Plan, best: Estimate | None) -> tuple[str, ...]:
    if best is None:
        return (f"No layout fits: {plan.shortage}.",)
    first = (
        f"{format_layout(best.layout, whole=True)}: an iteration takes {format_seconds(best.iteration_s)}"
        f" at an MFU of {best.mfu:.1%}, with {format_bytes(best.memory_bytes)} of"
        f" {format_bytes(best.capacity_bytes)} of memory."
    )
    chosen = () if plan.choice is None else words.choice(plan.choice, best, [tie.group for tie in plan.ties])
    known = words.published(plan.job, plan.cluster, best.mfu) if best.error is not None else ""
    split = words.straddling([one.layout for one in plan.layouts], plan.cluster)
    return (first, *([split] if split else []), *words.trust(best.error), *chosen, *([known] if known else []))


def _facts(plan: Plan) -> tuple[Fact, ...]:
    counts = (
        f"{plan.space.name} space, {counted(plan.considered, 'layout')}:"
        f" {plan.considered - plan.evaluated:,} cannot run,"
        f" {plan.evaluated:,} estimated, {plan.feasible:,} fit in memory"
    )
    return (
        Fact(name="Job", text=words.job_sentence(plan.job)),
        Fact(name="Cluster", text=words.cluster_sentence(plan.cluster)),
        Fact(name="Search", text=counts),
    )


def _layouts(plan: Plan) -> Table:
    found = plan.layouts
    keys = {
        "time": [one.iteration_s for one in found],
        "MFU": [one.mfu for one in found],
        "TF/s": [one.model_tflops for one in found],
        "mem GiB": [one.memory_bytes for one in found],
        "tokens/s": [one.tokens_per_s for one in found],
    }
    shared = [one for one in settings(found) if len(found) > 1 and len(set(one.cells)) == 1]
    varying = [one for one in settings(found) if one not in shared]
    alike = f"; in all of them: {', '.join(f'{one.heading} {one.cells[0]}' for one in shared)}" if shared else ""
    shown = [(one.heading, one.cells, not one.left) for one in (*degrees(found), *varying, *results(found))]
    if plan.ties:
        beside = 1 + [name for name, _, _ in shown].index("time")
        shown.insert(beside, ("chance", [f"{tie.chance:.0%}" for tie in plan.ties], True))
        keys["chance"] = [tie.chance for tie in plan.ties]
    simulated: Sequence[float] = getattr(plan, "simulated_s", ())
    if simulated:
        shown.append(("on network", [format_seconds(one) for one in simulated], True))
        keys["on network"] = list(simulated)
    known = [keys.get(name, [None] * len(found)) for name, _, _ in shown]
    return Table(
        name="ranking",
        caption=f"Layouts that fit, best first{alike}",
        columns=tuple(
            Column(heading=name, meaning=_MEANINGS.get(name, ""), number=number) for name, _, number in shown
        ),
        rows=tuple(
            tuple(
                Cell(text=cells[i] if i < len(cells) else "-", key=key[i] if i < len(key) else None)
                for (_, cells, _), key in zip(shown, known, strict=True)
            )
            for i in range(len(found))
        ),
    )


def _time(best: Estimate) -> Parts:
    caption = f"Time: {format_seconds(best.iteration_s)} per iteration; communication: its exposed part"
    return shares(caption, best.time, best.iteration_s, words.TIME_LABELS, True)


def _memory(best: Estimate) -> Parts:
    caption = f"Memory of the fullest stage: {format_bytes(best.memory_bytes)} of {format_bytes(best.capacity_bytes)}"
    return shares(caption, best.memory, best.capacity_bytes, words.MEMORY_LABELS, False)


def _bound(best: Estimate) -> str:
    return (
        f"Lower bound {format_seconds(best.lower_bound_s)}: the slowest stage's arithmetic at peak, or its busiest"
        f" network axis at peak bandwidth. The estimate is {best.iteration_s / best.lower_bound_s:.2f} times that."
    )


def _pictures(plan: Plan) -> tuple[Picture, ...]:
    found = [Picture(svg=embedded(breakdown_chart(plan)), caption="Where time and memory go")]
    if plan.pareto:
        found.append(Picture(svg=embedded(pareto_chart(plan)), caption="Less memory for more time"))
    return tuple(found)


def _comparison(plan: Plan) -> Comparison | None:
    sides = [
        Side(
            label=f"{rank}. {format_degrees(one.layout)}",
            job=plan.job,
            cluster=plan.cluster,
            estimate=one,
            constants=plan.constants,
            stack=plan.stack,
        )
        for rank, one in enumerate(plan.layouts[:COMPARED], 1)
    ]
    return held(sides, _TOKENS) if len(sides) > 1 else None


def _picture_of(found: Comparison) -> Picture:
    return Picture(svg=embedded(comparison_chart(found)), caption="From the first layout's time to each other's")


def _compared(found: Comparison) -> Table:
    rows = []
    for side, one in zip(found.sides[1:], found.differences, strict=True):
        memory = side.estimate.memory_bytes - found.sides[0].estimate.memory_bytes
        sign = "-" if memory < 0 else "+"
        rows.append(
            (
                Cell(text=side.label),
                Cell(text=f"{one.ratio - 1:+.1%}", key=one.ratio),
                Cell(text=f"{sign}{format_bytes(abs(memory))}", key=memory),
                Cell(text=significance(one)),
            )
        )
    return Table(
        name="compared",
        caption=f"Against {found.sides[0].label}",
        columns=(
            Column(heading="layout", number=False),
            Column(heading="time"),
            Column(heading="memory"),
            Column(heading="how sure", number=False),
        ),
        rows=tuple(rows),
    )


def _reasons(found: Comparison) -> tuple[Fact, ...]:
    """What makes the largest differences to the first layout, and what changed."""

    def told(one: Change) -> str:
        sign = "-" if one.difference < 0 else "+"
        why = f" ({'; '.join(one.why)})" if one.why else ""
        return f"{PART_LABELS[one.part]} {sign}{format_seconds(abs(one.difference))}{why}"

    facts = []
    for side, one in zip(found.sides[1:], found.differences, strict=True):
        least = WORTH * side.iteration_s
        largest = sorted(one.time, key=lambda change: -abs(change.difference))[:3]
        worth = [told(change) for change in largest if abs(change.difference) > least]
        facts.append(Fact(name=side.label, text="; ".join(worth) or "no part differs by much"))
    return tuple(facts)


def _rejected(plan: Plan) -> Table:
    return Table(
        name="rejected",
        caption="Rejected layouts, by rule",
        columns=(Column(heading="rule", number=False), Column(heading="layouts"), Column(heading="why", number=False)),
        rows=tuple(
            (Cell(text=one.code), Cell(text=f"{one.layouts:,}", key=one.layouts), Cell(text=REASONS.get(one.code, "")))
            for one in plan.rejected
        ),
    )
