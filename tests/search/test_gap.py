"""Traced steps beside estimates: whose group a collective is, what is lost, and traces of other jobs."""

from dataclasses import replace

import pytest

import weft
from weft.cluster import load
from weft.cluster.calibration import calibration
from weft.errors import BadInput
from weft.interop.step_trace import StepTrace, TracedGroup
from weft.layout.mesh import rank_groups
from weft.layout.text import parse_layout
from weft.search.tune import EXPECTED, axis_of, step_gap

CLUSTER = load("h100-64")
ESTIMATE = weft.estimate("llama-3.1-8b", "h100-64", "tp=4,pp=2,sp").estimate
LAYOUT = ESTIMATE.layout
CONSTANTS = calibration(CLUSTER.accelerator.name, "megatron-core")


def group(name="", kind="all-reduce", ranks=None, size=None, **more):
    size = len(ranks or ()) if size is None else size
    zeros = dict.fromkeys(("calls", "busy_s", "exposed_s", "large_bytes", "large_Bps"), 0.0)
    return TracedGroup(group=name, kind=kind, size=size, ranks=ranks, **zeros | more)


def trace(**more):
    """A step that takes exactly what is expected."""
    time = {part.name: part.value for part in ESTIMATE.time}
    expected = {name: sum(time[part] for part in parts) for name, parts in EXPECTED.items()}
    names = {"tp": "TENSOR_MODEL_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP", "pp": "PIPELINE_MODEL_PARALLEL_GROUP"}
    step = StepTrace(
        source="rank0.json",
        rank=0,
        world=64,
        steps=2,
        step_s=ESTIMATE.iteration_s,
        computation_s=(expected["computation"], 0.0, 0.0),
        copies_s=0.0,
        host_gaps_s=expected["host gaps"],
        gaps_s=0.0,
        groups=tuple(group(word, size=4, exposed_s=expected[name]) for name, word in names.items()),
    )
    return replace(step, **more)


def gap(*traces):
    return step_gap(traces, ESTIMATE, LAYOUT, CLUSTER, CONSTANTS)


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EMBEDDING_GROUP", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("mesh_dp_shard_cp", "fsdp"),
        ("mesh_dp_replicate", "dp"),
        ("mesh_tp", "tp"),
        ("mesh_ep", "ep"),
        ("mesh_cp", "cp"),
        ("deep_ep", "ep"),
        ("0", None),
    ],
)
def test_groups_by_their_names(name, axis):
    assert axis_of(group(name, size=3), LAYOUT) == axis


def test_groups_by_their_ranks():
    """Every group of every axis of a layout with six of them is found by its ranks alone."""
    layout = parse_layout("tp=2,cp=2,pp=2,fsdp=2,dp=8,ep=2").complete(64)
    for name, axes in {"tp": ("x",), "cp": ("context",), "pp": ("pipeline",), "dp": ("data",)}.items():
        for ranks in rank_groups(layout, axes).tolist():
            assert axis_of(group("7", ranks=tuple(sorted(ranks))), layout) == name
    assert axis_of(group("7", "send", size=2), layout) == "pp"
    assert axis_of(group("", "all-to-all"), layout) == "ep"
    assert axis_of(group("", "all-reduce", ranks=(0, 63)), layout) is None


def test_a_step_as_expected_has_no_cause():
    result = gap(trace())
    assert result.step_s == pytest.approx(ESTIMATE.iteration_s)
    assert [part.lost_s for part in result.parts] == pytest.approx([0.0] * len(result.parts), abs=1e-12)
    assert {part.cause for part in result.parts} == {""}
    assert (result.slow_rank, result.slower) == (None, None)


def test_losses_come_first_with_their_causes():
    late = trace(host_gaps_s=0.2 * ESTIMATE.iteration_s)
    result = gap(late)
    assert result.parts[0].name == "host gaps"
    assert "CUDA graphs" in result.parts[0].cause
    assert not any(part.cause for part in result.parts[1:])


def test_a_slow_link_is_named_with_both_bandwidths():
    slow = group("DATA_PARALLEL_GROUP", size=8, exposed_s=1.0, large_bytes=2**28, large_Bps=5e9)
    (part,) = [part for part in gap(trace(groups=(slow,))).parts if part.name == "dp"]
    assert part.cause.startswith("all-reduce over dp reaches 5 GB/s of ")
    assert "NIC" in part.cause
    fast = replace(slow, large_Bps=1e12)
    (part,) = [part for part in gap(trace(groups=(fast,))).parts if part.name == "dp"]
    assert "overlap-grad-reduce" in part.cause


def test_a_slow_rank_is_named():
    computation = trace().computation_s[0]
    others = [trace(rank=rank, source=f"rank{rank}.json") for rank in (0, 1, 2)]
    slow = trace(rank=37, computation_s=(1.09 * computation, 0.0, 0.0))
    result = gap(*others, slow)
    assert (result.slow_rank, result.slower) == (37, pytest.approx(0.09))


@pytest.mark.parametrize(
    ("traces", "problem"),
    [
        ([trace(world=16)], "16 ranks, the layout has 64"),
        ([trace(groups=())], "no communication"),
        ([trace(), trace()], "the same rank"),
        ([trace(), trace(rank=1, source="other.json", step_s=1.0)], "give traces of one job"),
    ],
)
def test_traces_of_other_jobs_are_refused(traces, problem):
    with pytest.raises(BadInput, match=problem):
        gap(*traces)
