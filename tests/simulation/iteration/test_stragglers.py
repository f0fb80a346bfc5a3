"""Slow ranks in an iteration: hand-made sums, and who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.cluster import resolve
from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.layout.stages import Durations
from weft.layout.text import parse_layout
from weft.simulation.iteration.simulate import columns, slowed
from weft.simulation.iteration.stepping import PhaseTimes, Stepped, StepTimes


def seconds(layout: str, *slow: str, cluster: str = "h100-64", **more: object) -> float:
    return weft.simulate("llama-3.1-8b", resolve(cluster), layout, slow=slow, **more).iteration_s


def clocked(pipeline: int, micro_batches: int) -> tuple[Layout, PhaseTimes]:
    """Stages of 1 s forward and 2 s backward, half a second of each exposed."""
    once = StepTimes(reduce_s=0.0, gather_s=0.0, last=0.0, update_s=0.0, tied_s=0.0, host_s=0.0)
    chunk = Durations(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    clock = PhaseTimes(
        chunks=(chunk,) * pipeline,
        exposed=((0.5, 0.5),) * pipeline,
        hop_s=0.0,
        overlap_cost=0.0,
        micro_batches=micro_batches,
        step=once,
    )
    return Layout(pipeline=pipeline), clock


def test_only_what_is_computed_lasts_longer():
    layout, clock = clocked(1, 4)
    assert Stepped(layout, clock).seconds == pytest.approx(4 * 3.0)
    slow = Stepped(layout, slowed(layout, clock, np.array([2.0]))).seconds
    assert slow == pytest.approx(4 * (0.5 + 2 * 0.5 + 0.5 + 2 * 0.5 + 2 * 1.0))


@given(st.integers(2, 6), st.integers(0, 5), st.floats(1.0, 4.0))
def test_a_slow_stage_sets_the_pace_of_a_pipeline(stages, at, factor):
    """1F1B: the slow stage works through all micro-batches, and the others' first and last passes come before and
    after."""
    layout, clock = clocked(stages, 40)
    factors = np.ones(stages)
    factors[at % stages] = factor
    found = Stepped(layout, slowed(layout, clock, factors)).seconds
    slow_s = 1.0 + 2.0 * factor
    assert found == pytest.approx(40 * slow_s + (stages - 1) * 3.0, rel=0.02 + 0.1 * (factor - 1) * stages / 40)
    assert found >= 40 * slow_s


def test_who_waits_for_whom():
    layout = parse_layout("tp=2,pp=2,dp=2").complete(8)
    slow = np.ones(8)
    slow[0] = 1.5
    found = columns(layout, slow)
    assert found.shape == (1, 2)
    assert sorted(found[0].tolist()) == [1.0, 1.5]
    assert columns(layout, np.full(8, 1.2)).tolist() == [[1.2, 1.2]]
    apart = np.ones(8)
    apart[[0, 7]] = 1.5, 1.4  # another stage of another replica
    assert len(columns(layout, apart)) == 2
    for text in ("pp=2,dp=4,ep=2", "pp=2,fsdp=4"):
        together = parse_layout(text).complete(8)
        assert sorted(columns(together, apart)[0].tolist()) == [1.4, 1.5]


def test_one_slow_rank_is_a_slow_group():
    plain = seconds("tp=8,dp=8,sp")
    one, other = seconds("tp=8,dp=8,sp", "rank=3:1.3"), seconds("tp=8,dp=8,sp", "rank=61:1.3")
    assert one == pytest.approx(other)
    assert plain < one < 1.3 * plain
    assert seconds("tp=8,dp=8,sp", "host=0:1.3") == pytest.approx(one)
    assert seconds("tp=8,dp=8,sp", "rank=3:1") == pytest.approx(plain)
    both = seconds("tp=8,dp=8,sp", "rank=3:1.3", "rank=9:1.2")
    assert both == pytest.approx(one)


def test_random_ranks_follow_the_seed():
    first, again = seconds("tp=2,pp=4,dp=8", "random=0.05", seed=4), seconds("tp=2,pp=4,dp=8", "random=0.05", seed=4)
    assert first == again
    assert seconds("tp=2,pp=4,dp=8", "random=0.05", seed=5) != first
    assert first > seconds("tp=2,pp=4,dp=8", seed=4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3:1.3", "says no slow rank"),
        ("rank=3:fast", "says no slow rank"),
        ("rank=3:1.2.3", "says no slow rank"),
        ("rank=64:1.3", "no rank 64"),
        ("host=8:1.3", "no host 8"),
        ("rank=3:0.5", "out of range"),
        ("random=2", "out of range"),
    ],
)
def test_bad_input(text, told):
    with pytest.raises(BadInput, match=told):
        seconds("tp=8,dp=8,sp", text)


def test_not_with_every_flow():
    with pytest.raises(BadInput, match="--full"):
        seconds("tp=8,dp=8,sp", "rank=3:1.3", full=True)
