"""The phases that the orders of pipeline stages become."""

from itertools import pairwise

import pytest

from weft.layout.spec import Layout
from weft.layout.stages import Durations, stepped_s
from weft.simulation.iteration.stepping import PhaseTimes, Stepped, StepTimes

NOTHING = StepTimes(reduce_s=0.0, gather_s=0.0, last=1.0, update_s=0.0, tied_s=0.0, host_s=0.0)


def layout_of(schedule, stages):
    virtual = {"interleaved": 2, "zbv": 2}.get(schedule, 1)
    return Layout(pipeline=stages, schedule=schedule, virtual_stages=virtual)


def clock_of(layout, count, *, hop_s=0.0, step=NOTHING):
    virtual = layout.virtual_stages
    chunk = Durations(forward_s=1.0 / virtual, input_gradient_s=1.0 / virtual, weight_gradient_s=1.0 / virtual)
    chunks = layout.pipeline * virtual
    return PhaseTimes(
        chunks=(chunk,) * chunks,
        exposed=((0.0, 0.0),) * chunks,
        hop_s=hop_s,
        overlap_cost=0.0,
        micro_batches=count,
        step=step,
    )


def seconds(schedule, stages, count, **changes):
    layout = layout_of(schedule, stages)
    return Stepped(layout, clock_of(layout, count, **changes)).seconds


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb1p", "zbv"])
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 8), (4, 4), (4, 12), (8, 16)])
@pytest.mark.parametrize("hop_s", [0.0, 0.05])
def test_phases_last_as_long_as_the_stepped_order(schedule, stages, count, hop_s):
    layout = layout_of(schedule, stages)
    clock = clock_of(layout, count, hop_s=hop_s)
    assert Stepped(layout, clock).seconds == pytest.approx(stepped_s(layout, count, clock.chunks, hop_s))


def test_gradients_hide_behind_the_last_backward_pass():
    step = StepTimes(reduce_s=1.0, gather_s=0.5, last=0.25, update_s=0.5, tied_s=0.0, host_s=0.125)
    base = seconds("1f1b", 1, 4)
    hidden = seconds("1f1b", 1, 4, step=step)
    assert hidden == pytest.approx(base + 0.25 * 1.0 + 0.25 * 0.5 + 0.5 + 0.125)
    open_layout = Layout(overlap_reduce=False, overlap_gather=False)
    shown = Stepped(open_layout, clock_of(open_layout, 4, step=step)).seconds
    assert shown == pytest.approx(base + 1.0 + 0.5 + 0.5 + 0.125)


def test_timeline_never_overlaps_on_a_stage():
    layout = layout_of("zb1p", 4)
    spans = Stepped(layout, clock_of(layout, 8, hop_s=0.05))
    for stage in range(4):
        bars = sorted((s.begin_s, s.end_s) for s in spans if s.stage == stage and s.track == "compute")
        assert len(bars) >= 24
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(bars))
