"""Flows from CSV tables and connection matrices."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.interop.traffic.events import arrival_line, read_event
from weft.interop.traffic.flow_tables import read_csv, read_matrix
from weft.routing.traffic import JobTraffic, check_traffic

FABRIC = clos.build(16, radix=8, bandwidth_Bps=50e9, tiers=2)
TABLE = """source,target,bytes,job,collective,rounds,queue_pair,rate
accelerator-0,accelerator-9,1 GB,a,ring,6,,
9,0,2GiB,a,ring,6,1,400 Gb/s

accelerator-3,12,5e8,b,,,,50 GB/s
4,11,100,a,,,,
5,12,7,b,flows,,,1e9
"""


@pytest.fixture
def table(tmp_path: Path):
    def read(text: str | bytes) -> JobTraffic:
        path = tmp_path / "flows.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_csv(path, FABRIC)

    return read


@pytest.fixture
def matrix(tmp_path: Path):
    def read(text: str) -> JobTraffic:
        path = tmp_path / "flows.cm"
        path.write_text(text)
        return read_matrix(path)

    return read


def test_jobs_collectives_and_units(table) -> None:
    found = table(TABLE)
    assert found.jobs == ("a", "b")
    assert found.source.tolist() == [0, 9, 3, 4, 5]
    assert found.target.tolist() == [9, 0, 12, 11, 12]
    assert found.bytes.tolist() == [1e9, 2 * 2**30, 5e8, 100, 7]
    assert found.cap_Bps.tolist() == [np.inf, 50e9, 50e9, np.inf, 1e9]
    assert found.queue_pair.tolist() == [0, 1, 0, 0, 0]
    groups = [(found.jobs[found.job[c]], found.names[c]) for c in found.collective.tolist()]
    assert groups == [("a", "ring"), ("a", "ring"), ("b", "flows"), ("a", "flows"), ("b", "flows")]
    assert [int(found.rounds[c]) for c in found.collective.tolist()] == [6, 6, 1, 1, 1]
    assert len(set(found.collective.tolist())) == 3
    check_traffic(FABRIC, found)


def test_columns_in_any_order_with_any_line_ends(table) -> None:
    text = "bytes,source,target\n5,1,2\n6,2,1\n"
    for found in (table(text), table(text.replace("\n", "\r\n")), table(text.replace("\n", "\r"))):
        assert (found.source.tolist(), found.bytes.tolist()) == ([1, 2], [5, 6])
    assert table("\ufeff" + text).bytes.tolist() == [5, 6]
    assert table('"bytes","source","target"\n" 5 kB"," 1 ","2"\n').bytes.tolist() == [5000]


def test_jobs_of_a_table_go_through_events(table) -> None:
    found = table(TABLE)
    for job in range(2):
        one = found.only([job])
        again = read_event(arrival_line(one, FABRIC, 0.0), FABRIC, "x").traffic
        assert again is not None
        for field in ("source", "target", "bytes", "cap_Bps", "queue_pair", "rounds", "names", "jobs"):
            assert list(getattr(one, field)) == list(getattr(again, field)), field
        assert one.collective.tolist() == again.collective.tolist()


HEAD = "source,target,bytes\n"
WIDE = "source,target,bytes,rounds,queue_pair,rate\n"
BAD_TABLES = {
    "empty": ("", "line 1: lacks the column source"),
    "no target": ("source,bytes\n0,1\n", "line 1: lacks the column target"),
    "strange": ("source,target,bytes,byte\n", "line 1: has the column 'byte'"),
    "twice": ("source,target,bytes,bytes\n", "line 1: has the column 'bytes' twice"),
    "no flow": (HEAD, "holds no flow"),
    "short": (HEAD + "\n0,1\n", "line 3: 2 values for 3 columns"),
    "long": (HEAD + "0,1,2,3\n", "line 2: 4 values for 3 columns"),
    "host": (HEAD + "0,1,2\n0,accelerator-16,2\n", "line 3: target: 'accelerator-16'"),
    "switch": (HEAD + "leaf-0,1,2\n", "line 2: source: 'leaf-0'"),
    "number": (HEAD + "16,1,2\n", "line 2: source: '16'"),
    "negative host": (HEAD + "-1,1,2\n", "line 2: source: '-1'"),
    "other digits": (HEAD + "²,1,2\n", "line 2: source: '²'"),
    "many digits": (HEAD + "9" * 5000 + ",1,2\n", "line 2: source"),
    "size": (HEAD + "0,1,big\n", "line 2: bytes: 'big'"),
    "unit": (HEAD + "0,1,5 km\n", "line 2: bytes"),
    "bits": (HEAD + "0,1,5 Gb\n", "line 2: bytes"),
    "no size": (HEAD + "0,1,\n", "line 2: bytes"),
    "huge size": (HEAD + "0,1,1e999\n", "line 2: bytes"),
    "rounds": (WIDE + "0,1,2,0,,\n", "line 2: rounds: '0'"),
    "half a round": (WIDE + "0,1,2,1.5,,\n", "line 2: rounds"),
    "queue pair": (WIDE + "0,1,2,,-1,\n", "line 2: queue_pair"),
    "rate": (WIDE + "0,1,2,,,fast\n", "line 2: rate"),
    "two rounds": (WIDE + "0,1,2,1,,\n1,2,2,2,,\n", "several numbers of rounds"),
    "long field": (HEAD + "0,1," + "1" * 200_000 + "\n", "line 2: is no CSV"),
    "open quote": (HEAD + '0,"1,2\n', "line 2: 2 values"),
    "binary": (bytes(range(128, 256)), "UTF-8"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_named_with_their_line(table, name: str) -> None:
    text, message = BAD_TABLES[name]
    with pytest.raises(BadInput) as caught:
        table(text)
    assert message in str(caught.value)
    assert "flows.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 6000


MATRIX = """Nodes 16
Connections 5
# of htsim
0->5 id 1 start 0 size 1000
5->0 id 2 start 0 size 2000

0->5 id 3 start 0 size 3000
1->2 start 1000000000000 size 1
1->2 start 1000000000001 size 2
"""


def test_a_matrix(matrix) -> None:
    found = matrix(MATRIX)
    assert found.jobs == ("matrix",)
    assert found.source.tolist() == [0, 5, 0, 1, 1]
    assert found.target.tolist() == [5, 0, 5, 2, 2]
    assert found.bytes.tolist() == [1000, 2000, 3000, 1, 2]
    assert found.collective.tolist() == [0, 0, 0, 1, 2]
    assert found.queue_pair.tolist() == [0, 0, 1, 0, 0]
    assert len(set(found.names)) == 3
    check_traffic(FABRIC, found)


def test_triggers_start_with_the_first(matrix) -> None:
    text = "Nodes 4\nConnections 2\nTriggers 1\n0->1 id 1 start 0 size 5\n1->2 id 2 start trigger 1 size 5\n"
    with pytest.raises(BadInput, match="line 5"):
        matrix(text)
    text = text.replace("start trigger 1", "trigger 1") + "trigger id 1 oneshot\n"
    assert matrix(text).collective.tolist() == [0, 0]


BAD_MATRICES = {
    "empty": ("", "announces 0 connections, holds 0"),
    "no connection": ("Nodes 4\nConnections 0\n", "holds no connection"),
    "fewer": ("Nodes 4\nConnections 2\n0->1 start 0 size 5\n", "announces 2 connections, holds 1"),
    "no nodes": ("Connections 1\n0->1 start 0 size 5\n", "line 2: node 1 of 0"),
    "node": ("Nodes 4\nConnections 1\n0->4 start 0 size 5\n", "line 3: node 4 of 4"),
    "count": ("Nodes four\n", "line 1: 'four'"),
    "negative count": ("Nodes -4\n", "line 1: '-4'"),
    "words": ("Nodes 4\nConnections 1\nhello\n", "line 3: 'hello'"),
    "no size": ("Nodes 4\nConnections 1\n0->1 start 0\n", "line 3"),
    "half": ("Nodes 4\nConnections 1\n0->1 start 0 size\n", "line 3"),
    "size": ("Nodes 4\nConnections 1\n0->1 start 0 size -5\n", "line 3: '-5'"),
    "float size": ("Nodes 4\nConnections 1\n0->1 start 0 size 1e9\n", "line 3: '1e9'"),
    "other digits": ("Nodes 4\nConnections 1\n0->1 start ² size 5\n", "line 3: '²'"),
    "many digits": ("Nodes 4\nConnections 1\n0->" + "1" * 5000 + " start 0 size 5\n", "line 3"),
}


@pytest.mark.parametrize("name", BAD_MATRICES)
def test_bad_matrices_are_named_with_their_line(matrix, name: str) -> None:
    text, message = BAD_MATRICES[name]
    with pytest.raises(BadInput) as caught:
        matrix(text)
    assert message in str(caught.value)
    assert "flows.cm" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["", "Nodes 4\nConnections 1\n0->1 "]))
def test_any_matrix_is_read_or_refused(matrix, text: str, head: str) -> None:
    with suppress(BadInput):
        matrix(head + text)
