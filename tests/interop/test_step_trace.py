"""Steps of traces: the split of the time against a painter, group by group, and files that are none."""

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.interop.test_kineto import kernel, launch, nccl

from weft.errors import BadInput
from weft.interop.step_trace import COMPUTATIONS, read_step_trace

GEMM, FLASH, NORM = "nvjet_hsh_128x256_64x4", "flash_fwd_kernel<cutlass::half_t>", "vectorized_elementwise_kernel<4>"


def annotation(number):
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": 0, "dur": 9, "args": {}}


def copy(ts, dur):
    return kernel("Memcpy HtoD (Pinned -> Device)", ts, dur, 9) | {"cat": "gpu_memcpy"}


@pytest.fixture
def write(tmp_path):
    def made(events, name="trace.json", **head):
        path = tmp_path / name
        text = json.dumps({**head, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return made


def parts(step):
    """All parts of a step, in the order in which a moment is theirs."""
    return [*step.computation_s, *(group.exposed_s for group in step.groups), step.copies_s]


def test_a_step_by_hand(write):
    """Two steps: a product hides half of an all-reduce; a late launch, and a gap that the host did not make."""
    events = [
        annotation(3),
        annotation(4),
        launch(5, 45.0),
        kernel(GEMM, 0, 10),
        nccl("AllReduce", 5, 10, 1 << 20, 1 << 20, **{"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}),
        kernel(FLASH, 15, 5),
        kernel(NORM, 20, 10),
        kernel(GEMM, 50, 10, correlation=5),
        copy(64, 6),
    ]
    step = read_step_trace(write(events, "rank3.json.gz", distributedInfo={"rank": 3, "world_size": 8}))
    assert (step.source, step.rank, step.world, step.steps) == ("rank3.json.gz", 3, 8, 2)
    assert step.step_s == pytest.approx(35e-6)
    assert dict(zip(COMPUTATIONS, step.computation_s, strict=True)) == pytest.approx(
        {"products": 10e-6, "attention": 2.5e-6, "other kernels": 5e-6}
    )
    (group,) = step.groups
    assert (group.group, group.kind, group.size, group.ranks) == (
        "TENSOR_MODEL_PARALLEL_GROUP",
        "all-reduce",
        4,
        (0, 1, 2, 3),
    )
    assert (group.calls, group.busy_s, group.exposed_s) == pytest.approx((0.5, 5e-6, 2.5e-6))
    assert group.large_bytes == 2 << 20
    assert group.large_Bps == pytest.approx(1.5 * (2 << 20) / 10e-6)
    assert step.copies_s == pytest.approx(3e-6)
    assert step.host_gaps_s == pytest.approx(7.5e-6)  # from 30 to 45 us
    assert step.gaps_s == pytest.approx(4.5e-6)  # from 45 to 50 and from 60 to 64 us
    assert sum(parts(step)) + step.host_gaps_s + step.gaps_s == pytest.approx(step.step_s)


KERNELS = st.lists(
    st.tuples(
        st.sampled_from([GEMM, FLASH, NORM, "AllReduce", "AllGather", "copy"]), st.integers(0, 60), st.integers(0, 9)
    ),
    min_size=1,
    max_size=25,
)


@given(KERNELS)
def test_parts_are_those_of_a_painter(tmp_path_factory, kernels):
    """Every microsecond is painted in the colour of the first part that runs then."""
    events, order = [], [GEMM, FLASH, NORM]
    for name, ts, dur in kernels:
        made = copy(ts, dur) if name == "copy" else kernel(name, ts, dur)
        events.append(nccl(name, ts, dur, 4, 4, name.lower()) if name.startswith("All") else made)
        if name not in (*order, "copy"):
            order.append(name)
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    step = read_step_trace(path)
    running = [{name for name, ts, dur in kernels if ts <= moment < ts + dur} for moment in range(70)]
    painted = [next((name for name in (*order, "copy") if name in names), None) for names in running]
    assert parts(step) == pytest.approx([1e-6 * painted.count(name) for name in (*order, "copy")])
    span = max(ts + dur for _, ts, dur in kernels) - min(ts for _, ts, _ in kernels)
    assert step.step_s == pytest.approx(1e-6 * span)
    assert step.host_gaps_s + step.gaps_s == pytest.approx(1e-6 * (span - len([name for name in painted if name])))


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", ("", "send", 0)),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", ("deep_ep", "all-to-all", 0)),
        ("userbuffers_fp16_sum_inplace_gpu_rr_ag", ("", None, 0)),
    ],
)
def test_communication_of_old_traces_and_other_libraries(write, name, group):
    (traced,) = read_step_trace(write([kernel(name, 0, 5)])).groups
    assert (traced.group, traced.kind, traced.size) == group
    assert (traced.large_bytes, traced.large_Bps) == (0, 0)


def test_a_long_trace_takes_little_memory(tmp_path):
    """4 MB of events on the host are read in a fifth of what their dictionaries take."""
    path, event = (
        tmp_path / "long.json",
        json.dumps({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "args": {"a": 1}}),
    )
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [' + json.dumps(kernel(GEMM, 0, 1)) + ",\n")
        file.writelines(event + ",\n" for _ in range(50_000))
        file.write(json.dumps(kernel(GEMM, 2, 1)) + '], "traceName": "x"}')
    tracemalloc.start()
    step = read_step_trace(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert step.step_s == pytest.approx(3e-6)
    assert peak < 8e6


def test_traces_that_end_early_or_have_no_gpu(write):
    path = write([kernel(GEMM, 0, 5)] * 4_000, "whole.json.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="not a whole gzip file"):
        read_step_trace(path)
    path.write_bytes(gzip.decompress(whole)[:-1000])
    with pytest.raises(BadInput, match="is the file complete"):
        read_step_trace(path)
    with pytest.raises(BadInput, match="no kernels of a GPU -- profile"):
        read_step_trace(write([launch(1, 2)]))
