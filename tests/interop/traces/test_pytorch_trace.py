"""PyTorch's execution traces: collectives, groups, durations, and files that are none."""

import json

import pytest

from weft.errors import BadInput, Unsupported
from weft.interop.torch_traces import read_pytorch_trace


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


@pytest.fixture
def write(tmp_path):
    def made(nodes, **top):
        path = tmp_path / "et.json"
        whole = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 0, "nodes": nodes} | top
        path.write_text(json.dumps(whole))
        return path

    return made


def positional(number, name, sent, received, *, group=7001):
    """A collective of schema 1.0.2: tensors are [id, storage, offset, elements, bytes each, device]."""

    def tensors(counts):
        return [[100 + i, 200 + i, 0, count, 2, "cuda:0"] for i, count in enumerate(counts)]

    inputs = [tensors(sent), 12, group, 0, name, [], [], 4] if sent else [12, 0, 0, name, [], [], 1]
    outputs = [[tensors(received)]] if received else []
    return node(
        number,
        "record_param_comms",
        inputs={"values": inputs, "shapes": [], "types": []},
        outputs={"values": outputs, "shapes": [], "types": []},
    )


def test_collectives_of_schema_1_0_2(write):
    listed = [
        {"pg_name": "0", "backend_id": 7001, "backend_config": "cuda:nccl", "ranks": [], "group_size": 4},
        {"pg_name": "1", "backend_id": 7002, "backend_config": "cuda:nccl", "ranks": [1, 3], "group_size": 2},
    ]
    nodes = [
        groups(2, listed),
        positional(3, "all_gather", [10], [10, 10, 10, 10]),
        positional(4, "wait", [], []),
        positional(5, "allreduce", [6, 7], [6, 7], group=7002),
        positional(6, "barrier", [1], []),
        positional(7, "reduce_scatter", [16], [4]),
        positional(8, "broadcast", [5], [5], group=1),
    ]
    found = read_pytorch_trace(write(nodes, schema="1.0.2-chakra.0.0.4"))
    kinds = [(task.communication.kind, task.communication.bytes) for task in found.tasks]
    assert kinds == [
        ("all-gather", 80.0),
        ("all-reduce", 26.0),
        ("barrier", 0.0),
        ("reduce-scatter", 32.0),
        ("broadcast", 10.0),
    ]
    assert [task.communication.ranks for task in found.tasks] == [None, (1, 3), None, None, (1, 3)]
    bare = positional(3, "allreduce", [6], [6])
    bare["inputs"]["values"][0], bare["outputs"]["values"] = [], []
    with pytest.raises(BadInput, match="node 3: the all-reduce does not say its size: it has no tensors"):
        read_pytorch_trace(write([bare]))
    for values in ([12, 0, 0, [], [], 1], [], None, "x"):
        with pytest.raises(BadInput, match="neither an attribute nor an input that names it"):
            read_pytorch_trace(write([bare | {"inputs": {"values": values}}]))


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
        ([node(1, "record_param_comms")], "names it"),
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
def test_files_that_are_no_traces(write, nodes, match):
    with pytest.raises(BadInput, match=match):
        read_pytorch_trace(write(nodes))


def test_what_is_not_modelled(write):
    with pytest.raises(Unsupported, match="'gather'"):
        read_pytorch_trace(write([collective(1, "gather", 1, 1)]))
    broken = collective(1, "allreduce", 1, 1)
    broken["attrs"] = [one for one in broken["attrs"] if one["name"] != "in_msg_nelems"]
    with pytest.raises(BadInput, match="'in_msg_nelems' is missing"):
        read_pytorch_trace(write([broken]))
