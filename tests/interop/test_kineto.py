"""Traces of PyTorch's profiler: what waits for what, sizes, and files that are none."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported
from weft.interop import torch_records
from weft.interop.kineto import read_kineto

COMMUNICATION = 20


def kernel(name, ts, dur, stream=7, correlation=0, **args):
    own = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": own}


def launch(correlation, ts):
    args = {"correlation": correlation, "External id": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts, "dur": 1, "args": args}


def nccl(what, ts, dur, nelems_in, nelems_out, collective=None, correlation=0, stream=COMMUNICATION, **more):
    args = {
        "Collective name": collective or what.lower(),
        "In msg nelems": nelems_in,
        "Out msg nelems": nelems_out,
        "dtype": "BFloat16",
        "Group size": 4,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3]",
    } | more
    name = f"ncclDevKernel_{what}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return kernel(name, ts, dur, stream, correlation, **args)


PROFILE = {"schemaVersion": 1, "traceEvents": [kernel("gemm", 10, 5)]}


@pytest.fixture
def write(tmp_path):
    """A file of a document, of events, or of bytes, compressed where its name says so."""

    def made(whole, name="trace.json", **more):
        path = tmp_path / name
        whole = {"traceEvents": whole} if isinstance(whole, list) else whole
        text = whole if isinstance(whole, bytes) else json.dumps(whole, **more).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return made


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "profile.pt.trace.json"])
def test_files_with_and_without_more(write, name):
    """Plain and compressed, with other keys, and a bare list of events."""
    contents = (PROFILE, {"nodes": 4, "distributedInfo": {}, **PROFILE}, json.dumps(PROFILE["traceEvents"]).encode())
    for content in contents:
        assert read_kineto(write(content, name, indent=2)).compute_s == pytest.approx(5e-6)
    assert read_kineto(write(gzip.compress(json.dumps(PROFILE).encode()))).compute_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "no list"),
        (b"[]", "no kernels"),
        (b'{"traceEvents": {}}', "no list"),
        (b'{"traceEvents": [1]}', "list of traceEvents holds"),
        (b'{"traceEvents": [{"ts": NaN}]}', "NaN"),
        (b"[" * 100_000, "nested"),
        (bytes(range(256)), "JSON"),
        (b"\x1f\x8b", "gzip"),
        (gzip.compress(json.dumps(PROFILE).encode(), mtime=0)[:-3], "gzip"),
    ],
    ids=range(9),
)
def test_files_that_are_none(write, content, match):
    path = write(content)
    with pytest.raises(BadInput, match=match) as error:
        read_kineto(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_two_computations_hide_a_collective(write):
    """A gradient's all-reduce runs beside the next computation; the optimizer waits for it."""
    events = [
        launch(1, 0),
        launch(2, 2),
        launch(3, 3),
        launch(4, 4),
        kernel("gemm_1", 10, 10, correlation=1),
        kernel("gemm_1b", 20, 5, correlation=1),
        nccl("AllReduce_Sum_bf16", 25, 30, 1000, 1000, correlation=2),
        kernel("gemm_2", 25, 20, correlation=3),
        kernel("adam", 60, 5, correlation=4),
    ]
    found = read_kineto(write(events))
    first, reduce, second, adam = found.tasks
    if first.communication is None and reduce.communication is None:
        reduce, second = second, reduce
    assert first.seconds == pytest.approx(15e-6)
    assert second.seconds == pytest.approx(20e-6)
    assert adam.seconds == pytest.approx(5e-6)
    assert reduce.communication.kind == "all-reduce"
    assert reduce.communication.bytes == 2000
    assert reduce.communication.ranks == (0, 1, 2, 3)
    place = {id(task): i for i, task in enumerate(found.tasks)}
    assert reduce.waits == (place[id(first)],)
    assert second.waits == (place[id(first)],)
    assert set(adam.waits) == {place[id(reduce)], place[id(second)]}
    assert found.compute_s == pytest.approx(40e-6)
    assert found.assumptions


def test_what_was_launched_later_is_not_waited_for(write):
    events = [launch(1, 5), launch(2, 1), kernel("gemm", 10, 5, correlation=1)]
    events.append(nccl("AllReduce_Sum_f32", 20, 5, 8, 8, correlation=2))
    tasks = read_kineto(write(events)).tasks
    assert [task.waits for task in tasks] == [(), ()]
    without_launches = [event for event in events if event["cat"] == "kernel"]
    assert [task.waits for task in read_kineto(write(without_launches)).tasks] == [(), (0,)]


def test_streams_run_in_order(write):
    events = [
        nccl("AllGather_RING", 0, 5, 4, 16),
        nccl("AllGather_RING", 5, 5, 4, 16),
        nccl("ReduceScatter", 5, 5, 16, 4, stream=21),
        kernel("copy", 0, 4, stream=9),
        kernel("gemm", 10, 4),
    ]
    tasks = read_kineto(write(events, "trace.json.gz")).tasks
    by_name = {}
    for i, task in enumerate(tasks):
        by_name.setdefault(task.name, []).append(i)
    gathers = by_name["ncclDevKernel_AllGather_RING_RING_LL"]
    (scatter,) = by_name["ncclDevKernel_ReduceScatter_RING_LL"]
    assert tasks[gathers[1]].waits[0] in (gathers[0], by_name["compute on stream 9"][0])
    assert gathers[0] in tasks[gathers[1]].waits
    assert gathers[0] not in tasks[scatter].waits
    assert set(tasks[by_name["compute on stream 7"][0]].waits) == {gathers[1], scatter}


@pytest.mark.parametrize(
    ("what", "collective", "sent", "received", "kind", "elements"),
    [
        ("AllReduce_Sum_bf16", "allreduce", 10, 10, "all-reduce", 10),
        ("AllGather", "_allgather_base", 10, 40, "all-gather", 40),
        ("AllGather", "all_gather_into_tensor_coalesced", 10, 40, "all-gather", 40),
        ("ReduceScatter_Sum_f32", "_reduce_scatter_base", 40, 10, "reduce-scatter", 40),
        ("SendRecv", "all_to_allv", 40, 40, "all-to-all", 40),
        ("SendRecv", "send", 7, 7, "send", 7),
        ("Broadcast", "broadcast", 0, 9, "broadcast", 9),
        ("Reduce_Sum_bf16", "reduce", 9, 9, "reduce", 9),
        ("AllReduce_Sum_bf16", "barrier", 1, 1, "barrier", 0),
        ("AllReduce_Sum_bf16", "unheard of", 10, 10, "all-reduce", 10),
    ],
)
def test_kinds_and_sizes(write, what, collective, sent, received, kind, elements):
    (task,) = read_kineto(write([nccl(what, 0, 1, sent, received, collective)])).tasks
    assert (task.communication.kind, task.communication.bytes) == (kind, 2 * elements)


def test_long_lists_of_ranks_are_cut_in_traces(write):
    text = {"Process Group Ranks": "[0, 1, 2, ..., 63]"}
    (task,) = read_kineto(write([nccl("AllReduce_Sum_bf16", 0, 1, 4, 4, **text)])).tasks
    assert task.communication.ranks is None


def test_collectives_without_sizes_say_what_is_missing(write):
    old = kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 0, 5)
    with pytest.raises(BadInput, match="'In msg nelems', 'Out msg nelems', 'dtype' is missing"):
        read_kineto(write([old]))
    with pytest.raises(Unsupported, match="not modelled"):
        read_kineto(write([kernel("ncclDevKernel_Generic(...)", 0, 5)]))
    with pytest.raises(Unsupported, match="no known size"):
        read_kineto(write([nccl("AllReduce", 0, 5, 1, 1, dtype="QUInt4x2")]))


def test_one_device_and_several_steps(write):
    events = [kernel("a", 0, 5), kernel("b", 0, 5, device=1), {"ph": "i", "name": "ProfilerStep#1"}]
    events += [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}"} for i in (2, 3)]
    found = read_kineto(write(events))
    assert found.compute_s == pytest.approx(5e-6)
    assert any("3 profiled steps" in text for text in found.assumptions)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_records, "LARGEST_FILE_BYTES", 10_000)
    for name, content in (("a.json", b" " * 10_001), ("b.json.gz", gzip.compress(bytes(10**7)))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=r"holds more than|is larger than"):
            read_kineto(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ts": "1"}, "ts"),
        ({"dur": -1}, "before"),
        ({"dur": 1e300}, "number"),
        ({"args": []}, "table"),
        ({"args": {"stream": "x"}}, "stream"),
    ],
)
def test_kernels_with_bad_values(write, changes, match):
    with pytest.raises(BadInput, match=match):
        read_kineto(write([kernel("a", 0, 1) | changes]))


@pytest.mark.parametrize("value", [-1, 1.5, "4", 10**16, True, None, [4], 10**400])
def test_sizes_that_cannot_be(write, value):
    with pytest.raises(BadInput, match="In msg nelems"):
        read_kineto(write([nccl("AllReduce", 0, 5, value, 1)]))


def test_too_many_streams(write):
    with pytest.raises(BadInput, match="streams"):
        read_kineto(write([kernel("a", 0, 1, stream=i) for i in range(300)]))


times = st.integers(0, 6).map(float)
computations = st.builds(kernel, st.just("gemm"), times, times, st.sampled_from([7, 8]), st.integers(0, 6))
collectives = st.builds(
    nccl,
    st.sampled_from(["AllReduce", "AllGather", "ReduceScatter"]),
    times,
    times,
    st.integers(0, 99),
    st.integers(0, 99),
    correlation=st.integers(0, 6),
    stream=st.sampled_from([20, 21]),
)
launches = st.builds(launch, st.integers(1, 6), times)


@given(events=st.lists(st.one_of(computations, collectives, launches), max_size=25))
def test_any_times_give_tasks_without_circles(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps(events))
    kernels = [event for event in events if event["cat"] == "kernel"]
    if not kernels:
        with pytest.raises(BadInput, match="no kernels"):
            read_kineto(path)
        return
    found = read_kineto(path)
    assert sum(task.communication is not None for task in found.tasks) == sum(
        event["name"].startswith("nccl") for event in kernels
    )
    busy = sum(event["dur"] for event in kernels if event["name"] == "gemm")
    assert found.compute_s <= busy * 1e-6 + 1e-12
