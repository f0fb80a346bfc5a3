"""Flows from CSV tables and connection matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.interop.flow_tables import read_csv
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


HEAD = "source,target,bytes\n"
WIDE = "source,target,bytes,rounds,queue_pair,rate\n"
BAD_TABLES = {
    "empty": ("", "line 1: lacks the column source"),
    "no target": ("source,bytes\n0,1\n", "line 1: lacks the column target"),
    "twice": ("source,target,bytes,bytes\n", "line 1: has the column 'bytes' twice"),
    "no flow": (HEAD, "holds no flow"),
    "short": (HEAD + "\n0,1\n", "line 3: 2 values for 3 columns"),
    "host": (HEAD + "0,1,2\n0,accelerator-16,2\n", "line 3: target: 'accelerator-16'"),
    "switch": (HEAD + "leaf-0,1,2\n", "line 2: source: 'leaf-0'"),
    "other digits": (HEAD + "²,1,2\n", "line 2: source: '²'"),
    "many digits": (HEAD + "9" * 5000 + ",1,2\n", "line 2: source"),
    "size": (HEAD + "0,1,big\n", "line 2: bytes: 'big'"),
    "bits": (HEAD + "0,1,5 Gb\n", "line 2: bytes"),
    "huge size": (HEAD + "0,1,1e999\n", "line 2: bytes"),
    "rounds": (WIDE + "0,1,2,0,,\n", "line 2: rounds: '0'"),
    "queue pair": (WIDE + "0,1,2,,-1,\n", "line 2: queue_pair"),
    "rate": (WIDE + "0,1,2,,,fast\n", "line 2: rate"),
    "two rounds": (WIDE + "0,1,2,1,,\n1,2,2,2,,\n", "several numbers of rounds"),
    "long field": (HEAD + "0,1," + "1" * 200_000 + "\n", "line 2: is no CSV"),
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
