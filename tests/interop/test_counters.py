"""Counters of links as a CSV table."""

from __future__ import annotations

import json

import pytest

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.interop.events import read_counters

FABRIC = clos.build(8, radix=4, bandwidth_Bps=1e9, tiers=2)


def test_rows_become_events_in_order_of_time() -> None:
    text = (
        "time_s,source,target,load,loss,lost\n"
        "2,leaf-0,spine-0,0.5,,\n"
        "1,leaf-0,spine-0,,0.1,7\n"
        "\n"
        "2,spine-0,leaf-0,1.0,0,\n"
    )
    events = read_counters(text, FABRIC, where="counters.csv")
    assert [(event.kind, event.time_s) for event in events] == [("counters", 1), ("counters", 2)]
    assert [json.loads(event.text)["event"] for event in events] == ["counters", "counters"]
    ends = [[[FABRIC.names[node] for node in sample.ends] for sample in event.samples] for event in events]
    assert ends == [[["leaf-0", "spine-0"]], [["leaf-0", "spine-0"], ["spine-0", "leaf-0"]]]
    first, *later = (sample for event in events for sample in event.samples)
    assert (first.load, first.loss, first.lost) == (None, 0.1, 7)
    assert [(sample.load, sample.loss) for sample in later] == [(0.5, None), (1.0, 0.0)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "lacks the column time_s"),
        ("time_s,source,target,load\n", "no counter"),
        ("time_s,source,target,load\n1,leaf-0,spine-9,1\n", "'spine-9'"),
        ("time_s,source,target,load\n1,leaf-0,leaf-1,1\n", "leaf-0 -> leaf-1 is not a link"),
        ("time_s,source,target,load\n1,leaf-0,spine-0,-1\n", "'-1' is not a value"),
        ("time_s,source,target,load\n1,leaf-0,spine-0,NaN\n", "'NaN' is not a value"),
        ("time_s,source,target,load\n1,leaf-0,spine-0,1\n1.0,leaf-0,spine-0,0\n", "leaf-0 -> spine-0 at 1 s"),
        ("time_s,source,target\n1,leaf-0\n", "2 values for 3"),
        ('ifHCOutOctets{ifName="eth3",instance="leaf-0"} 123\n', "lacks the column time_s"),
    ],
)
def test_refused_tables(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        read_counters(text, FABRIC, where="counters.csv")
