"""Plans for one network, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.fabric.transport import crossing
from weft.layout.text import format_degrees, format_layout
from weft.units import format_seconds
from weft.views import words
from weft.views.blocks import Block, Column, Copied, Fact, Grid, Heading, Paragraph
from weft.views.breakdown import memory, subject
from weft.views.ranking import counts, rejected

if TYPE_CHECKING:
    from weft.layout.spec import Layout
    from weft.search.network_plan import NetworkPlan


def network_plan_view(plan: NetworkPlan) -> Iterator[Block]:
    """The layouts, what was proved of the first, and where it spends memory."""
    yield from subject(plan.job, plan.cluster, routing=crossing(plan.routing))
    yield from counts(plan)
    yield Fact("Network:", plan.fabric)
    yield Heading("Fastest layouts at flow level that were evaluated")
    yield Grid(_columns(plan))
    yield Copied(f"--layout {format_layout(plan.layouts[0].layout)}", "Best, to copy")
    yield Paragraph(proof_sentence(plan), indent=2)
    yield Paragraph(_choice_sentence(plan), indent=2)
    yield from memory(plan.layouts[0])
    yield from rejected(plan)


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
    lost = plan.first_choice_s / plan.simulated_s[0] - 1
    if lost < 5e-4:
        return "The closed form's first choice is as fast on this network."
    return (
        f"The closed form's first choice takes {format_seconds(plan.first_choice_s)} on this network, {lost:.1%} more."
    )


def _columns(plan: NetworkPlan) -> list[Column]:
    layouts = [one.layout for one in plan.layouts]
    orders = [_order_words(one) for one in layouts]
    columns = [
        Column(heading="#", cells=[str(rank) for rank in range(1, len(layouts) + 1)]),
        Column(heading="layout", cells=[format_degrees(one) for one in layouts], left=True),
        Column(heading="order", cells=orders, left=True, drop=5),
        Column(heading="mbs", cells=[str(one.micro_batch) for one in layouts], drop=2),
        Column(heading="schedule", cells=[words.schedule_words(one) for one in layouts], drop=3, left=True),
        Column(heading="recompute", cells=[words.recompute_words(one) for one in layouts], drop=4, left=True),
        Column(heading="simulated", cells=[format_seconds(seconds) for seconds in plan.simulated_s]),
        Column(heading="closed form", cells=[format_seconds(one.iteration_s) for one in plan.layouts], drop=1),
        Column(heading="mem GiB", cells=[f"{one.memory_bytes / 2**30:.1f}" for one in plan.layouts], drop=6),
    ]
    return [
        column
        for column in columns
        if column.heading != "order" or {one.order for one in layouts} != {plan.space.order}
    ]


def _order_words(layout: Layout) -> str:
    """The axes that are longer than 1, inner to outer."""
    return "/".join(axis for axis in layout.order if getattr(layout, axis) > 1)
