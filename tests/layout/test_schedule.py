"""Orders of pipeline stages: complete, within the memory that is charged, with the bubbles that are claimed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.stages import Durations, Op, bubble_s, following, held, most_held, orders, stage_of, stepped_s
from weft.layout.table import LayoutTable

SCHEDULES = ["1f1b", "interleaved", "zb1p", "zbv"]
seconds = st.floats(0.3, 3.0)


def layout_of(schedule: str, stages: int, virtual: int = 2) -> Layout:
    chunks = PipelineSchedule(schedule).chunks
    return Layout(pipeline=stages, schedule=schedule, virtual_stages=virtual if chunks is None else chunks)


@st.composite
def pipelines(draw: st.DrawFn, *, schedules: list[str] = SCHEDULES, least: int = 1) -> tuple[Layout, int]:
    """A layout, and micro-batches that its schedule takes, at least ``least`` for each stage."""
    layout = layout_of(draw(st.sampled_from(schedules)), draw(st.integers(2, 7)), draw(st.integers(2, 4)))
    if layout.schedule.rounds:
        return layout, layout.pipeline * draw(st.integers(least, 4))
    return layout, draw(st.integers(least * layout.pipeline, 5 * layout.pipeline))


def of_chunk(layout: Layout, stage: Durations) -> list[Durations]:
    """Equal chunks of stages that take so long."""
    names = ("forward_s", "input_gradient_s", "weight_gradient_s")
    share = {name: getattr(stage, name) / layout.virtual_stages for name in names}
    return [Durations(**share)] * (layout.pipeline * layout.virtual_stages)


def closed(layout: Layout, count: int, one: Durations) -> float:
    others = layout.pipeline - 1.0
    return float(
        bubble_s(
            LayoutTable.of([layout]),
            np.array([float(count)]),
            forward_s=np.array([others * one.forward_s]),
            input_gradient_s=np.array([others * one.input_gradient_s]),
            weight_gradient_s=np.array([others * one.weight_gradient_s]),
        )[0]
    )


def stepped(layout: Layout, count: int, one: Durations) -> float:
    return stepped_s(layout, count, of_chunk(layout, one)) - count * (one.forward_s + one.backward_s)


@given(pipelines())
def test_every_pass_runs_once_on_its_stage_behind_what_it_needs(case: tuple[Layout, int]) -> None:
    layout, count = case
    found = orders(layout, count)
    passes = ["forward", "backward"] + ["weight-gradient"] * layout.schedule.splits_backward
    chunks = layout.pipeline * layout.virtual_stages
    wanted = {Op(what, c, i) for what in passes for c in range(chunks) for i in range(count)}  # type: ignore[arg-type]
    assert Counter(op for order in found for op in order) == Counter(wanted)
    assert all(stage_of(layout, op.chunk) == stage for stage, order in enumerate(found) for op in order)
    for order in found:
        place = {op: i for i, op in enumerate(order)}
        for op in order:
            if (after := following(layout, op)) in place:
                assert place[after] > place[op]
            if op.what == "weight-gradient":
                assert place[op] > place[Op("backward", op.chunk, op.micro_batch)]


@given(pipelines())
def test_stages_hold_what_memory_is_charged_for(case: tuple[Layout, int]) -> None:
    layout, count = case
    table = LayoutTable.of([layout] * layout.pipeline)
    stages = np.arange(layout.pipeline, dtype=np.float64)
    charged = most_held(table, np.full(layout.pipeline, float(count)), stages)
    found = [held(layout, order) for order in orders(layout, count)]
    assert all(chunks[-1] == 0 and chunks.min() >= 0 for chunks in found)
    peaks = np.array([chunks.max() for chunks in found]) / layout.virtual_stages
    if layout.schedule.wraps and count < 2 * layout.pipeline - 1:
        # Early stages of a pipeline that never fills hold fewer.
        assert (peaks <= charged).all()
        assert peaks.max() == charged.max()
    else:
        assert peaks.tolist() == pytest.approx(charged.tolist())


@pytest.mark.parametrize(("schedule", "most"), [("1f1b", 8), ("zb1p", 8), ("zbv", 8), ("interleaved", 11.5)])
def test_the_fullest_of_eight_stages(schedule: str, most: float) -> None:
    """Zero-bubble schedules keep 1F1B's memory: p micro-batches (arXiv 2401.10241, table 1 and section 6)."""
    layout = layout_of(schedule, 8)
    peaks = [held(layout, order).max() / layout.virtual_stages for order in orders(layout, 64)]
    assert max(peaks) == most


@given(pipelines(schedules=["1f1b", "interleaved"]), seconds, seconds, seconds)
def test_1f1b_bubbles_are_exact(case: tuple[Layout, int], forward: float, inputs: float, weights: float) -> None:
    """arXiv 2104.04473, section 2.2."""
    layout, count = case
    one = Durations(forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights)
    assert stepped(layout, count, one) == pytest.approx(closed(layout, count, one))
    published = (layout.pipeline - 1) * (forward + inputs + weights) / layout.virtual_stages
    assert closed(layout, count, one) == pytest.approx(published)


@given(pipelines(schedules=["zb1p"]), seconds, seconds, seconds)
def test_zb1p_bubbles_are_exact(case: tuple[Layout, int], forward: float, inputs: float, weights: float) -> None:
    layout, count = case
    one = Durations(forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights)
    assert stepped(layout, count, one) == pytest.approx(closed(layout, count, one))
    if weights <= min(forward, inputs):
        assert closed(layout, count, one) == pytest.approx((layout.pipeline - 1) * (forward + inputs - weights))


@given(pipelines(schedules=["zbv"]), seconds, st.floats(0.5, 2.5), st.floats(0.2, 1.0))
def test_zbv_bubbles_are_as_near_as_is_said(
    case: tuple[Layout, int], forward: float, inputs: float, share: float
) -> None:
    layout, count = case
    one = Durations(
        forward_s=forward, input_gradient_s=inputs * forward, weight_gradient_s=share * min(1.0, inputs) * forward
    )
    filled = count >= 2 * layout.pipeline - 1
    assume(filled or inputs >= 1.0)
    more = (layout.pipeline - 1) * max(one.forward_s - one.input_gradient_s, 0.0)
    if not filled:
        # Exact where weight gradients are at most half of the others: what they fill is idle in any case.
        more = (one.forward_s + one.backward_s) / 6 * (one.weight_gradient_s > one.input_gradient_s / 2)
    least = closed(layout, count, one)
    assert least - 1e-9 <= stepped(layout, count, one) <= least + more + 1e-9


@pytest.mark.parametrize("stages", range(2, 8))
def test_zbv_fills_its_bubble_by_a_weight_gradient_for_each_micro_batch_after_the_first_p(stages: int) -> None:
    one = Durations(forward_s=1.0, input_gradient_s=2.0, weight_gradient_s=1.0)
    for count in range(stages, 2 * stages + 2):
        idle = 2.0 * (stages - 1) - min(count - stages, stages - 1)
        assert stepped(layout_of("zbv", stages), count, one) == pytest.approx(idle)
        assert closed(layout_of("zbv", stages), count, one) == pytest.approx(idle)


@pytest.mark.parametrize(("schedule", "part"), [("interleaved", 1 / 2), ("zb1p", 1 / 3), ("zbv", 1 / 6)])
def test_published_shares_of_the_bubble_of_1f1b(schedule: str, part: float) -> None:
    """Of equal F, B and W: ZB-H1 a third (arXiv 2401.10241, table 1); ZB-V its skew of (p - 1) F / 2."""
    one = Durations(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    for stages, count in ((2, 8), (4, 8), (8, 64)):
        plain = stepped(layout_of("1f1b", stages), count, one)
        assert stepped(layout_of(schedule, stages), count, one) == pytest.approx(part * plain)


def test_blocking_sends_cost_two_a_micro_batch_and_two_a_stage() -> None:
    layout, one = layout_of("1f1b", 4), Durations(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    longer = stepped_s(layout, 8, [one] * 4, 0.1) - stepped_s(layout, 8, [one] * 4)
    assert longer == pytest.approx((2 * 7 + 2 * 3) * 0.1, abs=0.2)
