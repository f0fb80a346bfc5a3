"""Orders of pipeline stages, and the phases that they become."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.simulation.flows.graph import Graph
from weft.simulation.iteration.demand import stage_of
from weft.simulation.iteration.pipeline import Clock, StepTimes, timed
from weft.simulation.iteration.schedule import Durations, Op, orders

FORWARD, BACKWARD, WEIGHTS = 1.0, 2.0, 1.0
NOTHING = StepTimes(reduce_s=0.0, gather_s=0.0, last=1.0, update_s=0.0, tied_s=0.0, host_s=0.0)


def layout_of(schedule, stages):
    virtual = {"interleaved": 2, "zbv": 2}.get(schedule, 1)
    return Layout(pipeline=stages, schedule=schedule, virtual_stages=virtual)


def clock_of(layout, count, *, hop_s=0.0, step=NOTHING):
    virtual = layout.virtual_stages
    chunk = Durations(forward=FORWARD / virtual, backward=BACKWARD / virtual, weight_gradient=WEIGHTS / virtual)
    chunks = layout.pipeline * virtual
    return Clock(
        chunks=(chunk,) * chunks,
        exposed=((0.0, 0.0),) * chunks,
        hop_s=hop_s,
        overlap_cost=0.0,
        micro_batches=count,
        step=step,
    )


def seconds(schedule, stages, count, **changes):
    layout = layout_of(schedule, stages)
    return timed(layout, clock_of(layout, count, **changes))[0]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb1p", "zbv"])
@pytest.mark.parametrize(("stages", "count"), [(1, 3), (2, 2), (2, 8), (4, 4), (4, 12), (8, 16)])
def test_every_pass_runs_once_on_its_stage(schedule, stages, count):
    layout = layout_of(schedule, stages)
    if schedule == "interleaved" and stages == 1:
        return
    clock = clock_of(layout, count)
    found = orders(layout, count, clock.chunks, 0.0)
    passes = ["forward", "backward"] + ["weight-gradient"] * schedule.startswith("zb")
    seen = Counter(op for order in found for op in order)
    wanted = {Op(what, c, i) for what in passes for c in range(len(clock.chunks)) for i in range(count)}
    assert set(seen) == wanted
    assert set(seen.values()) == {1}
    assert all(stage_of(layout, op.chunk) == stage for stage, order in enumerate(found) for op in order)
    assert np.isfinite(timed(layout, clock)[0])


@pytest.mark.parametrize(("stages", "count"), [(1, 4), (2, 4), (4, 8), (8, 32)])
def test_bubbles_are_the_published_ones(stages, count):
    """arXiv 2104.04473, section 2.2; arXiv 2401.10241, table 1, with B = B_input + W."""
    work, whole = count * (FORWARD + BACKWARD), FORWARD + BACKWARD
    assert seconds("1f1b", stages, count) == pytest.approx(work + (stages - 1) * whole)
    if stages > 1:
        assert seconds("interleaved", stages, count) == pytest.approx(work + (stages - 1) * whole / 2)
        saved = (stages - 1) * (whole - 2 * WEIGHTS)
        assert seconds("zb1p", stages, count) == pytest.approx(work + saved, rel=0.06)
        assert seconds("zbv", stages, count) <= seconds("zb1p", stages, count) + 1e-9


def test_blocking_sends_cost_two_a_micro_batch_and_two_a_stage():
    stages, count, hop = 4, 8, 0.1
    longer = seconds("1f1b", stages, count, hop_s=hop) - seconds("1f1b", stages, count)
    assert longer == pytest.approx((2 * (count - 1) + 2 * (stages - 1)) * hop, abs=2 * hop)


def test_gradients_hide_behind_the_last_backward_pass():
    step = StepTimes(reduce_s=1.0, gather_s=0.5, last=0.25, update_s=0.5, tied_s=0.0, host_s=0.125)
    base = seconds("1f1b", 1, 4)
    hidden = seconds("1f1b", 1, 4, step=step)
    assert hidden == pytest.approx(base + 0.25 * 1.0 + 0.25 * 0.5 + 0.5 + 0.125)
    open_layout = Layout(overlap_reduce=False, overlap_gather=False)
    shown = timed(open_layout, clock_of(open_layout, 4, step=step))[0]
    assert shown == pytest.approx(base + 1.0 + 0.5 + 0.5 + 0.125)


def test_timeline_never_overlaps_on_a_stage():
    layout = layout_of("zb1p", 4)
    _, spans = timed(layout, clock_of(layout, 8, hop_s=0.05))
    for stage in range(4):
        bars = sorted((s.begin_s, s.end_s) for s in spans if s.stage == stage and s.track == "compute")
        assert len(bars) >= 24
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(bars))


def test_a_circle_is_named():
    graph = Graph()
    first = graph.add("hen", 1.0)
    graph.wait(first, graph.add("egg", 1.0, [first]))
    with pytest.raises(BadInput, match="hen"):
        graph.times()
