"""The compiled stepping against the same iteration built as phases and timed one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.layout.spec import Layout
from weft.layout.stages import Durations
from weft.simulation.iteration.pipeline import PhaseTimes, Pipeline, StepTimes
from weft.simulation.iteration.stepping import Stepped, timed

SECONDS = st.one_of(st.just(0.0), st.floats(0.001, 3.0))


@st.composite
def iterations(draw):
    schedule = draw(st.sampled_from(["1f1b", "interleaved", "zb1p", "zbv"]))
    stages = draw(st.integers(1 if schedule == "1f1b" else 2, 6))
    virtual = {"interleaved": draw(st.integers(2, 3)), "zbv": 2}.get(schedule, 1)
    layout = Layout(
        pipeline=stages,
        schedule=schedule,
        virtual_stages=virtual,
        zero=draw(st.integers(0, 2)),
        overlap_reduce=draw(st.booleans()),
        overlap_gather=draw(st.booleans()),
    )
    chunk = st.builds(Durations, forward_s=SECONDS, input_gradient_s=SECONDS, weight_gradient_s=SECONDS)
    chunks = stages * virtual
    step = StepTimes(
        reduce_s=draw(SECONDS),
        gather_s=draw(SECONDS),
        last=draw(st.sampled_from([1.0, 0.25, 0.1])),
        update_s=draw(SECONDS),
        tied_s=draw(SECONDS) if stages > 1 and schedule != "zbv" else 0.0,
        host_s=draw(SECONDS),
    )
    return layout, PhaseTimes(
        chunks=tuple(draw(st.lists(chunk, min_size=chunks, max_size=chunks))),
        exposed=((0.0, 0.0),) * chunks,
        hop_s=draw(SECONDS) if stages > 1 else 0.0,
        overlap_cost=draw(st.sampled_from([0.0, 0.3])),
        micro_batches=draw(st.integers(1, 9)) * (stages if schedule == "interleaved" else 1),
        step=step,
    )


@settings(max_examples=60, deadline=None)
@given(iterations())
def test_stepping_equals_phases_to_the_bit(iteration):
    layout, clock = iteration
    phases = Pipeline(layout, clock)
    last = phases.build()
    begin, end = phases.graph.times()
    stepped = Stepped(layout, clock)
    assert stepped.seconds == timed(layout, clock)[0] == float(end[last])
    assert tuple(stepped) == phases.spans(begin.tolist(), end.tolist())
