"""PyTorch's profiles and execution traces told apart, whatever else their files hold."""

import gzip
import json

import pytest

from weft.errors import BadInput
from weft.interop.torch_traces import PEEK_BYTES, read_kineto, read_pytorch_trace, read_torch_trace

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 10,
    "dur": 5,
    "args": {"device": 0, "stream": 7, "correlation": 0},
}
NODE = {
    "id": 3,
    "name": "record_param_comms",
    "ctrl_deps": 1,
    "inputs": {"values": [], "shapes": [], "types": []},
    "outputs": {"values": [], "shapes": [], "types": []},
    "attrs": [
        {"name": name, "type": "string", "value": value}
        for name, value in {
            "collective_name": "allreduce",
            "dtype": "Float",
            "in_msg_nelems": 100,
            "out_msg_nelems": 100,
            "pg_name": "0",
            "pg_size": 4,
            "global_rank_start": 0,
            "global_rank_stride": 1,
        }.items()
    ],
}
PROFILE = {"schemaVersion": 1, "traceEvents": [KERNEL]}
EXECUTION = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [NODE]}


@pytest.fixture
def write(tmp_path):
    def made(whole, packed=False, name="trace.json", **more):
        path = tmp_path / (name + (".gz" if packed else ""))
        text = whole if isinstance(whole, bytes) else json.dumps(whole, **more).encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        return path

    return made


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_each_is_read_by_its_reader(write, packed, indent):
    profile = write(PROFILE, packed, indent=indent)
    assert read_torch_trace(profile) == read_kineto(profile)
    assert read_torch_trace(profile).compute_s == pytest.approx(5e-6)
    execution = write(EXECUTION, packed, indent=indent)
    assert read_torch_trace(execution) == read_pytorch_trace(execution)
    (task,) = read_torch_trace(execution).tasks
    assert (task.communication.kind, task.communication.bytes) == ("all-reduce", 400.0)
    assert task.communication.ranks == (0, 1, 2, 3)


def test_a_profile_may_speak_of_nodes(write):
    told = {"nodes": 4, "distributedInfo": {"nodes": []}, **PROFILE}
    assert read_torch_trace(write(told)) == read_kineto(write(told))


def test_a_bare_list_of_events_is_a_profile(write):
    path = write([KERNEL])
    assert read_torch_trace(path) == read_kineto(path)


def test_an_execution_trace_may_have_a_long_head(write):
    path = write({"pid": 1, "notes": "x" * (PEEK_BYTES // 2), "nodes": [NODE]})
    assert len(read_torch_trace(path).tasks) == 1


def test_a_file_name_says_nothing(write):
    path = write(EXECUTION, name="profile.pt.trace.json")
    assert read_torch_trace(path) == read_pytorch_trace(path)
    packed = write(EXECUTION, True)
    plain = packed.with_name("renamed.json")
    plain.write_bytes(packed.read_bytes())
    assert len(read_torch_trace(plain).tasks) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"nodes": []}',
        b'{"nodes": 3}',
        b'{"traceEvents": []}',
        b'{"traceEvents": 3, "nodes": []}',
        b"[" * 100_000,
        b'{"nodes": ' + b"[" * 100_000,
        bytes(range(256)),
        b"\x1f\x8b",
        b"\x1f\x8b" + bytes(50),
        gzip.compress(b'{"nodes": [', mtime=0)[:-6],
        gzip.compress(json.dumps(EXECUTION).encode(), mtime=0)[:-3],
    ],
    ids=range(16),
)
def test_files_that_are_none(write, content):
    path = write(content)
    with pytest.raises(BadInput) as error:
        read_torch_trace(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
