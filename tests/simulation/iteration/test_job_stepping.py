"""The compiled stepping against the same iteration built as phases and timed one by one."""

from graphlib import TopologicalSorter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.layout.spec import Layout
from weft.layout.stages import Durations
from weft.simulation.iteration.simulate import Pipeline, Placed
from weft.simulation.iteration.stepping import PhaseTimes, Stepped, StepTimes

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


class Wired(Pipeline):
    """The phases of one column: collectives are part of its durations, no flows run."""

    def __init__(self, layout, clock):
        self.wire(layout, clock)

    def columns(self, stage):
        return range(1)

    def receivers(self, stage, column, other):
        return range(1)

    def work(self, stage, column, op, seconds):
        phase = self.graph.add(op.what, seconds)
        return Placed(phase, phase)

    def send(self, stage, column, op, other, waits):
        return self.graph.add("send", self.clock.hop_s, [waits])

    def synchronise(self, stage, column, what, share, waits):
        seconds = self.clock.step.reduce_s if what == "gradients" else self.clock.step.gather_s
        return self.graph.add(what, share * seconds, waits)


def times(graph):
    """Begin (when the waiting is over) and end of each phase, its flows left aside."""
    begin, end = np.zeros(len(graph.delays)), np.zeros(len(graph.delays))
    for phase in TopologicalSorter(dict(enumerate(graph.waits))).static_order():
        begin[phase] = max((end[other] for other in graph.waits[phase]), default=0.0)
        end[phase] = begin[phase] + graph.delays[phase]
    return begin, end


@given(iterations())
def test_stepping_equals_phases_to_the_bit(iteration):
    layout, clock = iteration
    phases = Wired(layout, clock)
    last = phases.build()
    begin, end = times(phases.graph)
    stepped = Stepped(layout, clock)
    assert stepped.seconds == float(end[last])
    assert tuple(stepped) == phases.spans(begin.tolist(), end.tolist())
