"""The memory of a stage over an iteration: its peak is the estimate's, whatever runs when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import estimate
from weft.layout.check import explain
from weft.layout.spec import Layout
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model
from weft.simulation.iteration.memory import PARTS, MemoryTimeline, memory_timeline

CLUSTER = load_cluster("h100-16")
MODELS = {name: load_model(name).model for name in ("llama-3-8b", "gpt2-xl", "deepseek-v2-lite", "gemma-2-2b")}
SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb1p", 1), ("zbv", 2)]


def job(name: str = "llama-3-8b", batch: int = 32, sequence: int = 2048) -> Job:
    return Job(model=MODELS[name], recipe=Recipe(global_batch=batch, sequence=sequence))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pipeline = draw(st.sampled_from([1, 2, 4, 8]))
    schedule, virtual = draw(st.sampled_from(SCHEDULES)) if pipeline > 1 else ("1f1b", 1)
    x = draw(st.sampled_from([1, 2]))
    rest = 16 // (pipeline * x)
    z = draw(st.sampled_from([1, rest]))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    return Layout(
        x=x,
        z=z,
        data=rest // z,
        pipeline=pipeline,
        virtual_stages=virtual,
        schedule=schedule,
        sequence_parallel=x > 1,
        recompute=recompute,
        recompute_layers=draw(st.sampled_from([0, 1, 3])) if recompute == "full" else 0,
        offload_activations=draw(st.booleans()),
    )


CASES = st.tuples(
    layouts(),
    st.sampled_from(sorted(MODELS)),
    st.sampled_from([32, 64]),
    st.sampled_from([64, 2048]),
    st.sampled_from([None, "torchtitan-2024"]),
)


@settings(max_examples=10)
@given(CASES)
def test_the_peak_is_the_estimate_s(case: tuple[Layout, str, int, int, str | None]) -> None:
    check_peak(*case)


@pytest.mark.slow
@settings(max_examples=1000)
@given(CASES)
def test_the_peak_is_the_estimate_s_on_many(case: tuple[Layout, str, int, int, str | None]) -> None:
    check_peak(*case)


def check_peak(layout: Layout, name: str, batch: int, sequence: int, stack: str | None) -> None:
    asked = job(name, batch, sequence)
    assume(explain(asked, 16, layout) is None)
    constants = calibration("h100", *([stack] if stack else []))
    found = estimate(asked, CLUSTER, [layout], constants)[0]
    timeline = memory_timeline(asked, CLUSTER, layout, constants=constants)
    assert timeline.peak.total_bytes == pytest.approx(found.memory_bytes, rel=1e-9)
    assert timeline.stage == found.fullest_stage
    check(timeline)


def check(timeline: MemoryTimeline) -> None:
    """Every level is at least what lives all the time; operators do not overlap; something runs at the peak."""
    always = sum(one.bytes for one in timeline.allocations if one.end_s - one.begin_s == timeline.seconds)
    assert all(level.total_bytes >= always * (1 - 1e-9) for level in timeline.levels)
    assert timeline.levels[-1].total_bytes == pytest.approx(always)
    assert timeline.levels[0].time_s == 0
    for one, after in zip(timeline.operators[:-1], timeline.operators[1:], strict=True):
        assert one.begin_s <= one.end_s <= after.begin_s + 1e-12
    assert timeline.peak_operator in {one.name for one in timeline.operators}


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
def test_no_other_stage_is_fuller(schedule: str, virtual: int) -> None:
    layout = Layout(pipeline=4, data=4, schedule=schedule, virtual_stages=virtual)
    found = estimate(job(), CLUSTER, [layout])[0]
    peaks = [memory_timeline(job(), CLUSTER, layout, stage=stage).peak.total_bytes for stage in range(4)]
    assert max(peaks) == pytest.approx(found.memory_bytes, rel=1e-9)
    assert peaks[found.fullest_stage] == max(peaks)


def test_1f1b_holds_a_micro_batch_less_on_each_stage() -> None:
    """Activations at the peak: p - i micro-batches of a stage's blocks."""
    layout = Layout(pipeline=4, data=4)
    at = PARTS.index("activations")
    held = [
        max(level.bytes[at] for level in memory_timeline(job(), CLUSTER, layout, stage=stage).levels)
        for stage in range(4)
    ]
    assert [one / held[3] for one in held] == pytest.approx([4, 3, 2, 1])


def test_the_operator_at_the_peak_is_named() -> None:
    """Long vocabularies peak at the loss, or where the head's gradient is made; wide blocks where the last block's
    gradients are; a first stage cannot peak at a loss that it does not hold; a few tokens peak where embedding and
    head, one unit of FSDP2, are reduced."""
    layout = Layout(pipeline=4, data=4)
    assert memory_timeline(job(), CLUSTER, layout).peak_operator == "backward of layer 7, micro-batch 0"
    last = memory_timeline(job(), CLUSTER, layout, stage=3).peak_operator
    assert last in ("loss, micro-batch 0", "backward of head, micro-batch 0")
    eager = calibration("h100", "torchtitan-2024")
    alone = Layout(z=16, recompute="full")
    for sequence, operator in ((8192, "loss, micro-batch 0"), (256, "backward of embedding, micro-batch 0")):
        found = memory_timeline(job(sequence=sequence), CLUSTER, alone, constants=eager)
        assert found.peak_operator == operator


def test_activations_live_from_forward_to_backward() -> None:
    timeline = memory_timeline(job(), CLUSTER, Layout(z=16))
    kept = [one for one in timeline.allocations if one.part == "activations"]
    runs = {one.name: one for one in timeline.operators}
    assert len(kept) == 32 * 2
    for one in kept:
        assert runs[f"forward of {one.name}"].begin_s == one.begin_s
        assert runs[f"backward of {one.name}"].end_s == one.end_s


def test_offloading_keeps_two_blocks() -> None:
    plain, moved = (
        memory_timeline(job(), CLUSTER, Layout(pipeline=2, data=8, offload_activations=flag)) for flag in (0, 1)
    )
    at = PARTS.index("activations")
    most = [max(level.bytes[at] for level in one.levels) for one in (plain, moved)]
    assert most[1] == pytest.approx(most[0] * 2 / (2 * 16))


def test_a_stage_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="stage 4 of 4"):
        memory_timeline(job(), CLUSTER, Layout(pipeline=4, data=4), stage=4)


def test_a_timeline_that_is_too_long() -> None:
    many = replace(job(), recipe=replace(job().recipe, global_batch=16 * 100_000))
    with pytest.raises(Unsupported, match="micro-batches"):
        memory_timeline(many, CLUSTER, Layout(z=16))
