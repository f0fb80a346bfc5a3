"""Chakra's execution traces: what is read, written and refused, against a decoder of the wire format."""

import contextlib
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput, MissingExtra, UnknownName, Unsupported, WeftError
from weft.interop import chakra
from weft.interop.chakra import read_groups, read_trace, write_traces
from weft.model.workload import Communication, Task

VARINT, FIXED64, TEXT = 0, 1, 2
COMPUTE, COLLECTIVE = 4, 7


def varint(value):
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number, wire, value):
    """One field in protobuf's wire format."""
    key = varint(number << 3 | wire)
    if wire == VARINT:
        return key + varint(value)
    return key + (struct.pack("<d", value) if wire == FIXED64 else varint(len(value)) + value)


def framed(*messages):
    return b"".join(varint(len(message)) + message for message in messages)


def take_varint(raw, at):
    value = shift = 0
    while True:
        byte, at = raw[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(raw):
    """All fields of a message as (number, wire type, value)."""
    found, at = [], 0
    while at < len(raw):
        key, at = take_varint(raw, at)
        if key & 7 == VARINT:
            value, at = take_varint(raw, at)
        elif key & 7 == FIXED64:
            value, at = struct.unpack("<d", raw[at : at + 8])[0], at + 8
        else:
            assert key & 7 == TEXT
            length, at = take_varint(raw, at)
            value, at = raw[at : at + length], at + length
        found.append((key >> 3, key & 7, value))
    return found


def unframed(raw):
    messages, at = [], 0
    while at < len(raw):
        length, at = take_varint(raw, at)
        messages.append(fields(raw[at : at + length]))
        at += length
    return messages


def attributes(message):
    """Attributes of a node: name to (field number, wire type, value)."""
    parts = [fields(value) for number, _, value in message if number == 10]
    return {part[0][2].decode(): part[1] for part in parts}


METADATA = field(1, TEXT, b"0.0.4")
"""A trace's first message."""
NUMBERS = {"is_cpu_op": 27, "involved_dim": 28, "pg_name": 29, "tensor_size": 13}
"""Fields of the attributes' values; others are int64."""


def attribute(name, value, number=None):
    number = number or NUMBERS.get(name, 9)
    wire = {3: FIXED64, 28: TEXT, 29: TEXT}.get(number, VARINT)
    if number == 28:
        value = field(1, TEXT, bytes(value))
    return field(10, TEXT, field(1, TEXT, name.encode()) + field(number, wire, value))


def node(number, kind, *, name="n", waits=(), ctrl=(), micros=0, **values):
    parts = [field(1, VARINT, number), field(2, TEXT, name.encode()), field(3, VARINT, kind)]
    parts += [field(4, VARINT, other) for other in ctrl] + [field(5, VARINT, other) for other in waits]
    parts += [field(7, VARINT, micros)] + [attribute(key, value) for key, value in values.items()]
    return b"".join(parts)


def trace(*nodes):
    return framed(METADATA, *nodes)


PATHS = []
"""The file that ``read`` uses."""


@pytest.fixture(autouse=True, scope="module")
def _path(tmp_path_factory):
    PATHS[:] = [tmp_path_factory.mktemp("chakra") / "x.et"]


def read(raw, **options):
    PATHS[0].write_bytes(raw)
    return read_trace(PATHS[0], **options)


def only(raw, **options):
    (task,) = read(raw, **options).tasks
    return task


def test_nodes_become_tasks():
    raw = trace(
        node(10, 1, name="start"),
        node(7, COMPUTE, name="forward", waits=[10], micros=1500, is_cpu_op=0),
        node(8, COLLECTIVE, name="reduce", waits=[7], ctrl=[10, 7], comm_type=0, comm_size=4096),
        node(9, 6, ctrl=[8], comm_src=1, comm_size=5),
        node(11, 2, micros=3),
    )
    found = read(raw)
    assert found.name == "x.et"
    assert found.tasks == (
        Task(name="start"),
        Task(name="forward", seconds=1.5e-3, waits=(0,)),
        Task(name="reduce", communication=Communication(kind="all-reduce", bytes=4096), waits=(1, 0)),
        Task(name="n", waits=(2,)),
        Task(name="n", seconds=3e-6),
    )
    assert found.assumptions == (
        "1 messages that are received take no time: what comes from other ranks is not waited for",
        "1 loads and stores of memory run among the computations",
    )


def test_nodes_may_wait_for_later_ones_and_have_no_name():
    found = read(trace(node(1, COMPUTE, name="", waits=[2], micros=1), node(2, COMPUTE, micros=1)))
    assert found.tasks[0] == Task(name="node 1", seconds=1e-6, waits=(1,))
    packed = field(5, TEXT, varint(1) + varint(300))
    assert read(trace(node(1, 1), node(300, 1), node(3, 1) + packed)).tasks[2].waits == (0, 1)


KINDS = (
    "all-reduce",
    "reduce",
    "all-gather",
    None,
    None,
    "broadcast",
    "all-to-all",
    *["reduce-scatter"] * 2,
    "barrier",
)


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
def test_collectives(number, kind):
    raw = trace(node(1, COLLECTIVE, comm_type=number, comm_size=64))
    if kind is None:
        with pytest.raises(Unsupported, match=r"node 1 \(n\): a (gather|scatter) is not modelled"):
            read(raw)
        return
    expected = {"barrier": 0, "all-gather": 64 * 12}.get(kind, 64)
    assert only(raw, sizes=(4, 3)).communication == Communication(kind=kind, bytes=expected)


def test_a_group_in_some_dimensions():
    def gather(flags):
        return trace(node(1, COLLECTIVE, comm_type=2, comm_size=10, involved_dim=flags))

    one = only(gather([1, 0, 1, 0]), sizes=(4, 3, 2)).communication
    assert one == Communication(kind="all-gather", bytes=80, dimensions=(0, 2))
    assert only(gather([1, 1, 1, 1]), sizes=(4, 3)).communication.dimensions is None
    assert only(gather([1]), sizes=(4, 3)).communication == Communication(kind="all-gather", bytes=40, dimensions=(0,))
    with pytest.raises(BadInput, match="involves no dimension"):
        read(gather([0, 0, 1]), sizes=(4, 3))


def test_a_process_group(tmp_path):
    raw = trace(node(1, COLLECTIVE, comm_type=2, comm_size=10, pg_name=b"3"))
    (tmp_path / "groups.json").write_text('{"3": [0, 4, 8]}')
    groups = read_groups(tmp_path / "groups.json")
    expected = Communication(kind="all-gather", bytes=30, ranks=(0, 4, 8))
    assert only(raw, groups=groups).communication == expected
    with pytest.raises(BadInput, match=r"process group '3'.*pass groups"):
        read(raw)
    with pytest.raises(UnknownName, match="unknown process group '3'"):
        read(raw, groups={"1": (0, 1)})
    for name in (b"", b"0"):
        everyone = trace(node(1, COLLECTIVE, comm_type=0, comm_size=10, pg_name=name))
        assert only(everyone).communication.ranks is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a table of"),
        ('{"a": [0]}', "no number as its name"),
        ('{"1": []}', r": 1: \[\] should have at least 1 item"),
        ('{"1": [0, 0]}', "names a rank twice"),
        ('{"1": [-1]}', r": 1\[0\]: -1 should be greater than or equal to 0"),
        ("{", "not valid JSON"),
    ],
)
def test_groups_that_cannot_be_used(tmp_path, text, words):
    (tmp_path / "groups.json").write_text(text)
    with pytest.raises(BadInput, match=words):
        read_groups(tmp_path / "groups.json")


def test_messages(tmp_path):
    raw = trace(node(1, 5, comm_size=7, comm_dst=3), node(2, 5, comm_size=7))
    assert only(trace(node(1, 5, comm_size=7, comm_src=2, comm_dst=3))).communication == Communication(
        kind="send", bytes=7, ranks=(2, 3)
    )
    (tmp_path / "run.5.et").write_bytes(raw)
    found = [task.communication.ranks for task in read_trace(tmp_path / "run.5.et").tasks]
    assert found == [(5, 3), None], "the sender is the file's rank"


def test_work_without_durations():
    raw = trace(node(1, COMPUTE, num_ops=6000, tensor_size=100))
    assert only(raw, peak_flops=1e3, memory_Bps=1e3).seconds == 6.0
    assert only(raw, peak_flops=1e6, memory_Bps=1.0).seconds == 100.0
    with pytest.raises(BadInput, match=r"node 1 \(n\): has work but no duration -- pass peak_flops"):
        read(raw)
    with pytest.raises(BadInput, match="pass memory_Bps"):
        read(raw, peak_flops=1e3)
    assert only(trace(node(1, 3, tensor_size=100)), memory_Bps=50.0).seconds == 2.0
    with pytest.raises(BadInput, match="has neither a duration nor a tensor_size"):
        read(trace(node(1, 2)))
    nothing = read(trace(node(1, COMPUTE, is_cpu_op=1)))
    assert nothing.tasks[0].seconds == 0
    assert nothing.assumptions == (
        "1 operations of the host run among the accelerator's",
        "1 nodes without duration and without work take no time",
    )
    for rates in ({"peak_flops": 0}, {"memory_Bps": float("nan")}):
        with pytest.raises(BadInput, match="not a finite number above 0"):
            read(raw, **rates)


CALL, WORK_FIRST = node(1, COLLECTIVE, micros=85, is_cpu_op=1), node(1, COMPUTE, micros=7)
KERNEL = {"waits": [1], "is_cpu_op": 0}
ASSUMED = {
    "recorded durations of 1 communications are not used": [node(1, COLLECTIVE, comm_type=0, comm_size=1, micros=5)],
    # PyTorch's converter gives the host's call a collective's type; the kernel's node has the kind and size.
    "1 operations of the host run among the accelerator's": [CALL, node(2, 7, comm_type=5, comm_size=64, **KERNEL)],
    # As in the traces of mlcommons/chakra's own tests, whose NCCL kernels state neither kind nor size.
    "1 communications say neither kind nor size, and take the time that was recorded": [
        WORK_FIRST,
        node(2, COLLECTIVE, micros=28, **KERNEL),
    ],
    # As in tests/data/chakra.0.et of mlcommons/chakra, whose thread nodes the converter has dropped.
    "2 control dependencies on nodes that the trace does not have are left out": [
        node(1, COMPUTE, micros=7, ctrl=[3]),
        node(2, COMPUTE, waits=[1], ctrl=[1, 3], micros=7),
    ],
    "control dependencies are left out: with those on data they make a circle": [
        node(1, COMPUTE, micros=7, ctrl=[2]),
        node(2, COMPUTE, waits=[1], micros=7),
    ],
}
SECONDS = ([0], [85e-6, 0], [7e-6, 28e-6], [7e-6, 7e-6], [7e-6, 7e-6])


@pytest.mark.parametrize(("assumption", "seconds"), list(zip(ASSUMED, SECONDS, strict=True)))
def test_what_real_traces_lack_is_assumed_and_said(assumption, seconds):
    found = read(trace(*ASSUMED[assumption]))
    assert [task.seconds for task in found.tasks] == seconds
    assert [task.waits for task in found.tasks] == [(), (0,)][: len(seconds)]
    assert found.assumptions == (assumption,)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node(1, 9)], "has type 9, which Chakra does not have"),
        ([node(1, COMPUTE, micros=1), node(1, COMPUTE, micros=1)], "the id of an earlier node"),
        ([node(1, 1, waits=[5])], r"node 1 \(n\): waits for node 5, which the trace does not have"),
        ([node(4, 1, waits=[4])], r"node 4 \(n\): is one of 1 nodes that wait for each other"),
        ([node(1, 1), node(5, 1, waits=[6]), node(6, 1, waits=[5, 1])], r"node [56] \(n\): is one of 2 nodes"),
        ([node(1, COLLECTIVE, comm_size=1)], "has no comm_type"),
        ([node(1, COLLECTIVE, comm_type=12, comm_size=1)], "has comm_type 12"),
        ([node(1, COLLECTIVE, comm_type=0)], "has no comm_size"),
        ([node(1, COLLECTIVE, comm_type=2, comm_size=1)], "pass sizes"),
        ([node(1, COLLECTIVE, comm_type=0, comm_size=2**64 - 1)], "comm_size is -1"),
        ([node(1, COLLECTIVE, comm_type=0) + attribute("comm_size", b"x", 29)], "comm_size is 'x'"),
        ([node(1, COLLECTIVE, comm_type=0) + attribute("comm_size", 1.5, 3)], "give a whole number"),
        ([node(1, COLLECTIVE, comm_type=0, comm_size=1) + attribute("comm_size", 1)], "two attributes comm_size"),
        ([node(1, COLLECTIVE, comm_type=0, comm_size=1) + attribute("pg_name", 1, 9)], "pg_name is not a text"),
        ([node(1, COLLECTIVE, comm_type=0, comm_size=1, involved_dim=[])], "involved_dim is not a list"),
        ([node(1, COMPUTE, micros=10**16)], r"takes 1e\+10 s"),
        ([], "holds no nodes"),
    ],
)
def test_nodes_that_cannot_be_used(nodes, words):
    with pytest.raises(BadInput, match=words):
        read(trace(*nodes))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"\x80", "metadata: is not a message of a Chakra trace"),
        (framed(METADATA) + b"\x07\x08\x01", "message 1: is not a message"),
        (b"\x1f\x8b\x08\x00", "compressed with gzip"),
        (framed(node(1, COMPUTE, micros=1)), "not a message of a Chakra trace|does not begin with"),
        (framed(field(1, VARINT, 3)), "does not begin with a trace's metadata"),
        (framed(METADATA, field(1, VARINT, 1) + field(2, TEXT, b"\xff")), "message 1: is not a message"),
    ],
)
def test_bytes_that_are_no_trace(raw, words):
    with pytest.raises(BadInput, match=words):
        read(raw)


@pytest.mark.parametrize(
    ("module", "name", "limit", "words"),
    [
        (chakra, "LARGEST_TRACE_BYTES", 20, "is larger than 20 bytes"),
        (chakra, "MOST_WAITS", 5, "more than 5 dependencies"),
        (chakra, "MOST_NODES", 3, "more than 3 nodes"),
    ],
)
def test_what_is_too_large(monkeypatch, module, name, limit, words):
    raw = trace(*[node(number, 1, waits=range(number)) for number in range(4)])
    assert len(read(raw).tasks) == 4
    monkeypatch.setattr(module, name, limit)
    with pytest.raises(BadInput, match=words):
        read(raw)


def test_without_protobuf(monkeypatch):
    raw = trace(node(1, COMPUTE, micros=1))
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    chakra.schema.cache_clear()
    with pytest.raises(MissingExtra, match=r"weft\[chakra\]"):
        read(raw)
    monkeypatch.undo()
    assert len(read(raw).tasks) == 1


@pytest.mark.parametrize(
    ("kind", "number", "size"), [("all-reduce", 0, 96), ("all-gather", 2, 4), ("broadcast", 5, 96)]
)
def test_traces_are_written_and_read(tmp_path, kind, number, size):
    """Field numbers and wire types as a decoder sees them that knows no schema."""
    paths = write_traces(kind, 96.0, tmp_path / "run", (4, 3, 2))
    assert [path.name for path in paths] == [f"trace.{rank}.et" for rank in range(24)]
    metadata, collective = unframed(paths[5].read_bytes())
    assert metadata == [(1, TEXT, b"0.0.4")]
    assert collective[:2] == [(2, TEXT, kind.encode()), (3, VARINT, COLLECTIVE)], "an id of 0 is left out"
    assert attributes(collective) == {
        "is_cpu_op": (27, VARINT, 0),
        "comm_type": (9, VARINT, number),
        "comm_priority": (7, VARINT, 0),
        "involved_dim": (28, TEXT, field(1, TEXT, b"\1\1\1")),
        "comm_size": (9, VARINT, size),
    }
    call = Communication(kind=kind, bytes=96.0)
    assert [task.communication for task in read_trace(paths[5], sizes=(4, 3, 2)).tasks] == [call]
    with pytest.raises(BadInput, match="cannot be written"):
        write_traces(kind, 96.0, tmp_path / "none" / "run", (4, 3, 2))


@given(
    st.sampled_from([2, 3, 4, 5, 7]),
    st.dictionaries(
        st.sampled_from(["comm_type", "comm_size", "num_ops", "comm_src", "comm_dst"]),
        st.integers(0, 2**64 - 1) | st.floats(),
        max_size=5,
    ),
    st.integers(0, 2**64 - 1),
)
def test_any_numbers_give_a_workload_or_an_error(kind, values, micros):
    raw = node(1, kind, micros=micros)
    raw += b"".join(attribute(name, value, 3 if type(value) is float else 9) for name, value in values.items())
    with contextlib.suppress(WeftError):
        assert read(trace(raw), sizes=(2**11, 2**11), peak_flops=1e-300, memory_Bps=1.0).tasks
