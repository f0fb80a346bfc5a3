"""Traces of PyTorch's profiler and execution traces: which is which, what waits for what, sizes, and files that are
none."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported
from weft.interop import torch_records
from weft.interop.kineto import read_kineto
from weft.interop.torch_traces import PEEK_BYTES, read_pytorch_trace, read_torch_trace

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


def node(number, name, parent=1, **more):
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": [], "shapes": [], "types": []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": "rf_id", "type": "uint64", "value": number}],
    } | more


def collective(number, name, sent, received, **attributes):
    values = {
        "collective_name": name,
        "dtype": "Float",
        "in_msg_nelems": sent,
        "out_msg_nelems": received,
        "in_split_size": "[]",
        "out_split_size": "[]",
        "global_rank_start": 0,
        "global_rank_stride": 1,
        "pg_name": "0",
        "pg_desc": "default_pg",
        "pg_size": 4,
    } | attributes
    attrs = [{"name": key, "type": "string", "value": value} for key, value in values.items()]
    return node(number, "record_param_comms", attrs=attrs)


def groups(number, listed):
    values = [json.dumps(listed)]
    return node(number, "## process_group:init ##", inputs={"values": values, "shapes": [[]], "types": ["String"]})


PROFILE = {"schemaVersion": 1, "traceEvents": [kernel("gemm", 10, 5)]}
EXECUTION = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [collective(3, "allreduce", 100, 100)]}


@pytest.fixture
def write(tmp_path):
    """A file of a document, of events, or of bytes, compressed where its name says so."""

    def made(whole, name="trace.json", **more):
        path = tmp_path / name
        if isinstance(whole, list):
            first = "nodes" if whole and isinstance(whole[0], dict) and "id" in whole[0] else "traceEvents"
            whole = {first: whole}
        text = whole if isinstance(whole, bytes) else json.dumps(whole, **more).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return made


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "profile.pt.trace.json"])
@pytest.mark.parametrize("indent", [None, 2])
def test_each_is_read_by_its_reader(write, name, indent):
    profile = write(PROFILE, name, indent=indent)
    assert read_torch_trace(profile) == read_kineto(profile)
    assert read_torch_trace(profile).compute_s == pytest.approx(5e-6)
    execution = write(EXECUTION, name, indent=indent)
    assert read_torch_trace(execution) == read_pytorch_trace(execution)
    (task,) = read_torch_trace(execution).tasks
    assert (task.communication.kind, task.communication.bytes) == ("all-reduce", 400.0)
    assert task.communication.ranks == (0, 1, 2, 3)


def test_what_else_a_file_may_hold(write):
    """A profile that speaks of nodes, a bare list of events, a long head, and a compressed file by another name."""
    told = write({"nodes": 4, "distributedInfo": {"nodes": []}, **PROFILE})
    assert read_torch_trace(told) == read_kineto(told)
    bare = write(json.dumps(PROFILE["traceEvents"]).encode())
    assert read_torch_trace(bare) == read_kineto(bare)
    long = write({"pid": 1, "notes": "x" * (PEEK_BYTES // 2), "nodes": EXECUTION["nodes"]})
    assert len(read_torch_trace(long).tasks) == 1
    assert len(read_torch_trace(write(gzip.compress(json.dumps(EXECUTION).encode()))).tasks) == 1


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"null", "no list"),
        (b"[]", "no kernels"),
        (b"{}", "no list"),
        (b'{"nodes": []}', "neither"),
        (b'{"nodes": 3}', "no list"),
        (b'{"traceEvents": []}', "no kernels"),
        (b'{"traceEvents": {}}', "no list"),
        (b'{"traceEvents": [1]}', "no list"),
        (b'{"traceEvents": [{"ts": NaN}]}', "NaN"),
        (b'{"traceEvents": 3, "nodes": []}', "no list"),
        (b"[" * 100_000, "nested"),
        (b'{"nodes": ' + b"[" * 100_000, "nested"),
        (bytes(range(256)), "JSON"),
        (b"\x1f\x8b", "gzip"),
        (b"\x1f\x8b" + bytes(50), "gzip"),
        (gzip.compress(b"[]" * 1000, mtime=0)[:30], "gzip"),
        (gzip.compress(b'{"nodes": [', mtime=0)[:-6], "gzip"),
        (gzip.compress(json.dumps(EXECUTION).encode(), mtime=0)[:-3], "gzip"),
    ],
    ids=range(20),
)
def test_files_that_are_none(write, content, match):
    path = write(content)
    with pytest.raises(BadInput, match=match) as error:
        read_torch_trace(path)
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
        ({"ts": None}, "ts"),
        ({"dur": -1}, "before"),
        ({"dur": 1e300}, "number"),
        ({"args": []}, "table"),
        ({"args": {"stream": "x"}}, "stream"),
        ({"args": {"device": True}}, "device"),
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


def test_collectives_in_program_order(write):
    listed = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4, "group_count": 2},
        {"pg_name": "7", "pg_desc": "tp", "ranks": [0, 2], "group_size": 2, "group_count": 2},
    ]
    nodes = [
        collective(9, "_reduce_scatter_base", 100, 25),
        collective(5, "all_gather_into_tensor_coalesced", 25, 50, pg_name="7"),
        groups(2, listed),
        collective(3, "init", 0, 0),
        collective(8, "wait", 0, 0),
        node(1, "[pytorch|profiler|execution_trace|process]", parent=1),
        collective(10, "send", 6, 6, global_rank_start=-1, dtype="BFloat16"),
    ]
    found = read_pytorch_trace(write(nodes))
    kinds = [(task.communication.kind, task.communication.bytes) for task in found.tasks]
    assert kinds == [("all-gather", 200), ("reduce-scatter", 400), ("send", 12)]
    assert [task.communication.ranks for task in found.tasks] == [(0, 2), (0, 1, 2, 3), None]
    assert [task.waits for task in found.tasks] == [(), (0,), (1,)]
    assert any("0 s" in text for text in found.assumptions)


def test_durations_of_the_innermost_nodes_count(write):
    nodes = [
        node(1, "process", parent=0),
        node(2, "forward", dur=500),
        node(3, "aten::mm", parent=2, dur=200),
        node(4, "aten::add", parent=2, dur=100.5),
        node(5, "c10d::allreduce_", dur=70),
        collective(6, "allreduce", 8, 8) | {"ctrl_deps": 5, "dur": 60},
        node(7, "aten::mul", dur=50),
    ]
    found = read_pytorch_trace(write(nodes))
    assert [(task.name, task.waits) for task in found.tasks] == [
        ("compute", ()),
        ("allreduce", (0,)),
        ("compute", (1,)),
    ]
    assert [task.seconds for task in found.tasks] == pytest.approx([300.5e-6, 0, 50e-6])
    assert not any("0 s" in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ([], "neither"),
        (None, "no list of nodes"),
        ([1], "id and name"),
        ([{"id": "1", "name": "x"}], "id and name"),
        ([node(1, "a"), node(1, "b")], "twice"),
        ([node(10**400, "a"), node(10**400, "b")], "twice"),
        ([node(1, "record_param_comms")], "no attribute collective_name"),
        ([node(1, "record_param_comms", attrs=3)], "attrs"),
        ([collective(1, "allreduce", -1, 1)], "elements"),
        ([collective(1, "allreduce", "1", 1)], "number"),
        ([node(1, "a", dur=-1)], "no time"),
        ([node(1, "a", dur="x")], "dur"),
        ([groups(1, 5), collective(2, "allreduce", 1, 1)], "process groups"),
        ([node(1, "## process_group:init ##", inputs={"values": ["["]})], "process groups"),
        ([node(1, "## process_group:init ##", inputs=7)], "process groups"),
    ],
)
def test_execution_traces_that_are_none(write, nodes, match):
    with pytest.raises(BadInput, match=match):
        read_pytorch_trace(write({"nodes": nodes}))


def test_what_is_not_modelled(write):
    with pytest.raises(Unsupported, match="'gather'"):
        read_pytorch_trace(write([collective(1, "gather", 1, 1)]))
    broken = collective(1, "allreduce", 1, 1)
    broken["attrs"] = [one for one in broken["attrs"] if one["name"] != "in_msg_nelems"]
    with pytest.raises(BadInput, match="'in_msg_nelems' is missing"):
        read_pytorch_trace(write([broken]))
