"""Plans for people: ranked layouts, where the best one spends time and memory, why not the others, and its launch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from weft.errors import BadInput
from weft.fabric.transport import crossing
from weft.layout.check import REASONS
from weft.layout.text import DEGREES, format_degrees, format_layout
from weft.units import counted, format_bytes, format_seconds
from weft.views import words
from weft.views.blocks import Block, Column, Copied, Fact, Heading, Paragraph, Table, headline, notes
from weft.views.breakdown import (
    bound,
    breakdown_chart,
    memory,
    settings_words,
    subject,
    tied_rows,
    time,
    training_view,
)
from weft.views.charts import GRID, Chart, alt, data, finished, linear, margin_labels, titled, tooltip

if TYPE_CHECKING:
    from weft.estimation.result import Estimate
    from weft.interop.launch import LaunchArguments
    from weft.search.network_plan import NetworkPlan
    from weft.search.ranking import Plan


_Item = TypeVar("_Item")


def plan_view(plan: Plan, *, verbose: bool = False, command: str | None = None, size: str = "") -> Iterator[Block]:
    """A plan: which layout to use, the table, and what decides between its rows.

    Args:
        verbose: add every part of time and memory, the rejections, and what was assumed with its sources.
        command: shows one layout of the plan, with its ``--layout``; the plan's job and cluster by name if None.
        size: the cluster of the kind that would do better: on which something fits, or a part that is faster.
    """
    yield from headline(words.plan_verdict(plan))
    if plan.layouts:
        yield from ranking(plan)
        yield from notes((*filter(None, [size]), *_notes(plan)))
        command = command or _estimate_command(plan)
        yield Copied(f"{command} --layout {format_layout(plan.layouts[0].layout)}", "Details")
    elif size:
        yield Paragraph(size, indent=2)
    yield from notes(words.setting(plan.job, plan.cluster, plan.stack), style="dim")
    if verbose:
        yield from _details(plan)
    elif not plan.layouts:
        yield from rejected(plan)
    yield from _first_run(plan)


def _estimate_command(plan: Plan) -> str:
    """The command that shows a layout of a plan in full, without the layout, by the names of model and cluster."""
    recipe = plan.job.recipe
    options: dict[str, object] = {
        "--batch": recipe.global_batch,
        "--sequence": recipe.sequence,
        "--precision": recipe.precision,
    }
    options |= {"--stack": plan.stack} | ({} if recipe.attention == "flash" else {"--attention": recipe.attention})
    given = [word for name, value in options.items() for word in (name, str(value))]
    given += ["--reduce-bf16"] if recipe.gradient_bytes == 2 else []
    return shlex.join(["weft", "estimate", plan.job.model.name, plan.cluster.name, *given])


def _first_run(plan: Plan) -> Iterator[Block]:
    """The whole training run with the first layout, where one was asked for."""
    if plan.ranked and plan.ranked[0].run is not None:
        yield from training_view(plan.ranked[0].run)


def _notes(plan: Plan) -> Iterator[str]:
    """What decides between the layouts, and what would change the answer, a line each."""
    best = plan.layouts[0]
    yield from words.tie_sentences(plan)
    if plan.advice is not None:
        yield words.advice_sentence(plan, plan.advice)
    if line := words.straddling([estimate.layout for estimate in plan.layouts], plan.cluster):
        yield line
    if best.error is not None and (line := words.published(plan.job, plan.cluster, best.mfu)):
        yield line
    yield from words.outside(best.error)


def _details(plan: Plan) -> Iterator[Block]:
    """The parts of the best layout, what was searched, and what was assumed."""
    if plan.layouts:
        best = plan.layouts[0]
        yield Heading("Layouts, for --layout")
        for rank, estimate in enumerate(plan.layouts, 1):
            yield Paragraph(f"{rank:>3}  {format_layout(estimate.layout)}", hang=5)
        yield from time(best, title="Time of the best layout")
        yield from memory(best)
        yield from bound(best)
        for line in words.trust(best.error)[:1]:
            yield Paragraph(line)
    if plan.choice is not None:
        pairs = f"{counted(plan.choice.pairs, 'pair')} of runs of {counted(plan.choice.jobs, 'job')}"
        yield Paragraph(f"Error between layouts: from {pairs}, from {counted(plan.choice.sources, 'source')}")
    yield from rejected(plan)
    used = {short for short, name in DEGREES if any(_degree(estimate, name) > 1 for estimate in plan.layouts)}
    yield Heading("Columns")
    yield Paragraph(words.legend(used))
    yield Heading("Search")
    counts = f"{plan.considered - plan.evaluated:,} cannot run, {plan.evaluated:,} estimated, {plan.feasible:,} fit"
    yield Paragraph(f"{plan.space.name} space, {counted(plan.considered, 'layout')}: {counts} in memory")
    yield Fact("Framework:", words.software(plan.stack, plan.space.name, plan.job), width=11)
    yield from subject(plan.job, plan.cluster)


def ranking(plan: Plan) -> Iterator[Block]:
    """A table with one layout a line.

    Degrees that are 1 in all layouts are left out; what all layouts share otherwise is below.
    """
    estimates = plan.layouts
    columns = settings(estimates)
    shared = [column for column in columns if len(estimates) > 1 and len(set(column.cells)) == 1]
    varying = [column for column in columns if column not in shared]
    marks = ["=" if tie.tied else "" for tie in plan.ranked]
    ties = [Column("tie", marks, left=True, front=True)] if len(set(marks)) > 1 else []
    yield Table(*degrees(estimates), *varying, *results(estimates, ties))
    if facts := ", ".join(f"{column.heading} {column.cells[0]}" for column in shared if column.cells[0] != "-"):
        yield Paragraph(f"All have {facts}.", indent=2)


def degrees(estimates: Sequence[Estimate]) -> list[Column]:
    """Rank and degrees of layouts, without the degrees that are 1 in all of them."""
    ranks = Column(
        "#",
        [str(rank) for rank in range(1, len(estimates) + 1)],
        values=[format_layout(estimate.layout) for estimate in estimates],
    )
    degrees = [Column(short, [str(_degree(estimate, name)) for estimate in estimates]) for short, name in DEGREES]
    return [ranks, *(column for column in degrees if set(column.cells) != {"1"})]


def settings(estimates: Sequence[Estimate]) -> list[Column]:
    """What layouts are beside their degrees; narrow tables drop them last, so that rows can be reproduced."""
    layouts = [estimate.layout for estimate in estimates]
    return [
        Column("mbs", [str(layout.micro_batch) for layout in layouts], drop=1),
        Column("schedule", [words.schedule_words(layout) for layout in layouts], drop=3, left=True),
        Column("zero", [words.zero_words(layout) for layout in layouts], drop=5),
        Column("recompute", [words.recompute_words(layout) for layout in layouts], drop=4, left=True),
        Column("options", [words.option_words(layout) for layout in layouts], drop=6, left=True),
    ]


def results(estimates: Sequence[Estimate], ties: Sequence[Column]) -> list[Column]:
    """Time, MFU, memory and losses of layouts; ``ties`` come after the time."""
    return [
        Column("time", [format_seconds(estimate.iteration_s) for estimate in estimates], front=True),
        *ties,
        Column("MFU", [f"{estimate.mfu:.1%}" for estimate in estimates], front=True),
        Column("TF/s", [f"{estimate.model_tflops:.0f}" for estimate in estimates], drop=8),
        Column("mem GiB", [f"{estimate.memory_bytes / 2**30:.1f}" for estimate in estimates], front=True),
        Column("largest losses", [_losses(estimate, 2) for estimate in estimates], drop=7, left=True),
        Column("tokens/s", [f"{estimate.tokens_per_s:,.0f}" for estimate in estimates], drop=9),
    ]


def _degree(estimate: Estimate, name: str) -> int:
    degree: int = getattr(estimate.layout, name)
    return degree


def _losses(estimate: Estimate, most: int) -> str:
    losses = words.largest_losses(estimate, most)
    return ", ".join(f"{words.PARTS[name].short} {share:.0%}" for name, share in losses) or "none"


def thinned(estimates: Sequence[_Item], most: int) -> list[_Item]:
    """Up to ``most`` of them at even distances, the first and the last included."""
    if len(estimates) <= most:
        return list(estimates)
    return [estimates[round(i * (len(estimates) - 1) / (most - 1))] for i in range(most)]


def rejected(plan: Plan) -> Iterator[Block]:
    """How many layouts each rule took, and what the rule says."""
    if not plan.rejected:
        return
    yield Heading("Rejected layouts")
    indent = 4 + max(len(f"{count.layouts:,}") for count in plan.rejected)
    for count in plan.rejected:
        number = f"{count.layouts:,}".rjust(indent - 2)
        yield Paragraph(f"{number}  {count.code}: {REASONS[count.code]}", hang=indent)


def network_plan_view(plan: NetworkPlan, *, verbose: bool = False) -> Iterator[Block]:
    """The fastest layout on a network, the layouts that were simulated, and what was proved."""
    yield from headline(words.plan_verdict(plan))
    yield Table(*_network_columns(plan))
    yield Paragraph(proof_sentence(plan), indent=2, hang=2)
    yield Paragraph(_choice_sentence(plan), indent=2, hang=2)
    yield Copied(f"--layout {format_layout(plan.layouts[0].layout)}", "To copy")
    setting = words.setting(plan.job, plan.cluster, plan.stack)
    yield from notes((f"On {plan.fabric}, {crossing(plan.routing)}", *setting), style="dim")
    if verbose:
        yield from _details(plan)
    yield from _first_run(plan)


def proof_sentence(plan: NetworkPlan) -> str:
    """What is proved of the first layout."""
    proof = plan.proof
    told = f"{proof.evaluated:,} of {proof.considered:,} layouts that fit were evaluated at flow level"
    if proof.proved:
        return f"Proved: {told}; the others cannot be faster than the first (gap 0)."
    return (
        f"Not proved: {told}; no layout takes less than {format_seconds(proof.bound_s)}, so that the first is"
        f" within {proof.gap:.2%} of the best."
    )


def _choice_sentence(plan: NetworkPlan) -> str:
    """What the choice without a network would cost."""
    lost = plan.first_choice_s / plan.ranked[0].iteration_s - 1
    if lost < 5e-4:
        return "The closed form's first choice is as fast on this network."
    return (
        f"The closed form's first choice takes {format_seconds(plan.first_choice_s)} on this network, {lost:.1%} more."
    )


def _network_columns(plan: NetworkPlan) -> list[Column]:
    layouts = [layout.layout for layout in plan.layouts]
    orders = ["/".join(axis for axis in layout.order if getattr(layout, axis) > 1) for layout in layouts]
    columns = [
        Column("#", [str(rank) for rank in range(1, len(layouts) + 1)]),
        Column("layout", [format_degrees(layout) for layout in layouts], left=True),
        Column("order", orders, left=True, drop=5),
        Column("mbs", [str(layout.micro_batch) for layout in layouts], drop=2),
        Column("schedule", [words.schedule_words(layout) for layout in layouts], drop=3, left=True),
        Column("recompute", [words.recompute_words(layout) for layout in layouts], drop=4, left=True),
        Column("simulated", [format_seconds(row.iteration_s) for row in plan.ranked]),
        Column("closed form", [format_seconds(layout.iteration_s) for layout in plan.layouts], drop=1),
        Column("mem GiB", [f"{layout.memory_bytes / 2**30:.1f}" for layout in plan.layouts], drop=6),
    ]
    return [
        column
        for column in columns
        if column.heading != "order" or {layout.order for layout in layouts} != {plan.space.order}
    ]


def launch_view(arguments: LaunchArguments) -> Iterator[Block]:
    """What a tool reads, how it starts, and what to know."""
    yield Heading(f"Launch with {arguments.tool}: save this as {arguments.file}")
    yield Copied(arguments.text, arguments.file)
    yield Copied(f"\n{arguments.command}\n", "command")
    for note in arguments.notes:
        yield Paragraph(f"note: {note}")


# Chart ---------------------------------------------------------------------------------------------------------

_NAMED = 12
"""Points of the trade of memory for time that are named."""


def plan_chart(plan: Plan, *, pareto: bool = False) -> Chart:
    """The bars of a plan, or its trade of memory for time."""
    return (pareto_chart if pareto else breakdown_chart)(plan)


def pareto_chart(plan: Plan) -> Chart:
    """Memory against iteration time of the layouts that no other beats in both, up to twice the shortest time."""
    shown = [point for point in plan.pareto if point.iteration_s <= 2 * plan.pareto[0].iteration_s]
    if not shown:
        raise BadInput("there is no layout to draw", where="chart")
    width, height = 640, 420
    first, last = shown[0].iteration_s, max(one.iteration_s for one in shown)
    room = 0.2 * (last - first) or 0.2 * last
    low, high = first - room, last + room
    capacity = max(one.capacity_bytes for one in shown) / 2**30
    tied = [plan.layouts[i].iteration_s for i in tied_rows(plan, len(plan.layouts))]
    x = alt.X("seconds:Q", title=titled("time of an iteration (s)", low), scale=linear(low, high))
    y = alt.Y("memory:Q", title="memory of the fullest stage (GiB)", scale=linear(0, 1.08 * capacity))
    rows = [
        {
            "seconds": one.iteration_s,
            "memory": one.memory_bytes / 2**30,
            "layout": format_degrees(one.layout),
            "details": settings_words(one),
            "time": format_seconds(one.iteration_s),
            "MFU": f"{one.mfu:.1%}",
            "held": format_bytes(one.memory_bytes),
        }
        for one in shown
    ]
    named = thinned(rows, _NAMED)
    told = tooltip(layout="layout", details="details", time="time", MFU="MFU", held="memory")
    frontier = alt.Chart(data(rows)).encode(x=x, y=y)
    limit = alt.Chart(data([{"at": capacity}])).encode(y="at:Q")
    layers = [
        *_tied_times(tied, low, high),
        *margin_labels(
            named, [str(row["layout"]) for row in named], "seconds", "memory", (0, 1.08 * capacity, height), width
        ),
        limit.mark_rule(color="#d55e00", strokeDash=[6, 4], strokeWidth=1.5),
        limit.mark_text(align="right", dy=-8, color="#d55e00").encode(
            x=alt.value(width), text=alt.value(f"memory of one accelerator: {format_bytes(capacity * 2**30)}")
        ),
        frontier.mark_line(interpolate="step-after", color="#56b4e9", strokeWidth=1.5),
        frontier.mark_circle(size=70, color="#0072b2", opacity=1).encode(tooltip=told),
    ]
    title = f"{plan.job.model.name} on {plan.cluster.name}: memory against time"
    chart = alt.layer(*layers).properties(width=width, height=height)
    words = "layouts that no other beats in both, up to twice the shortest time"
    return finished(chart, title, f"{words}; shaded: tie with the fastest" if tied else words)


def _tied_times(seconds: Sequence[float], low: float, high: float) -> list[alt.Chart]:
    """A pale band over the times of layouts that tie with the fastest."""
    if not seconds:
        return []
    band = alt.Chart(data([{"begin": max(min(seconds), low), "end": min(max(seconds), high)}]))
    return [band.mark_rect(color=GRID, opacity=0.45).encode(x="begin:Q", x2="end:Q")]
