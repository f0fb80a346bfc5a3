"""Counters of ports as networks give them, against the links that they are of."""

from __future__ import annotations

import json

import pytest

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.interop.fabrics.ibnetdiscover import read, read_subnet
from weft.interop.netops.counters import event_lines
from weft.interop.traffic.events import read_event

FABRIC = clos.build(8, radix=4, bandwidth_Bps=1e9, tiers=2)
NANOSECONDS = 1_700_000_000_000_000_000
PATH = "interfaces/interface[name=eth3]/state/counters"
LEAVES = {"out-octets": "123", "out-unicast-pkts": "7", "out-discards": "2", "in-errors": "4", "in-octets": "9"}
GNMIC = {
    "source": "leaf-0:57400",
    "subscription-name": "ports",
    "timestamp": NANOSECONDS,
    "updates": [{"Path": PATH, "values": {PATH: LEAVES}}],
}
GNMIC_EVENT = {
    "name": "ports",
    "timestamp": NANOSECONDS,
    "tags": {"source": "leaf-0", "interface_name": "eth3"},
    "values": {f"/interfaces/interface/state/counters/{name}": value for name, value in LEAVES.items()},
}
PROTOBUF = {
    "update": {
        "timestamp": str(NANOSECONDS),
        "prefix": {"target": "leaf-0", "elem": [{"name": "interfaces"}]},
        "update": [
            {
                "path": {
                    "elem": [{"name": "interface", "key": {"name": "eth3"}}, {"name": "state"}, {"name": "counters"}]
                },
                "val": {"jsonIetfVal": {f"openconfig-interfaces:{name}": value for name, value in LEAVES.items()}},
            },
            {"path": {"elem": [{"name": "interface", "key": {"name": "mgmt0"}}]}, "val": {"uintVal": "5"}},
        ],
    }
}
OUT = {"link": ["leaf-0", "spine-0"], "lost": 2, "packets": 7, "sent_bytes": 123}
IN = {"link": ["spine-0", "leaf-0"], "damaged": 4}
SNMP = """# HELP ifHCOutOctets The total number of octets transmitted out of the interface
# TYPE ifHCOutOctets counter
ifHCOutOctets{ifIndex="3",ifName="eth3",instance="leaf-0"} 123
ifHCOutUcastPkts{ifName="eth3",instance="leaf-0"} 7
ifOutDiscards{ifName="eth3",instance="leaf-0"} 2
ifInErrors{ifName="eth3",instance="leaf-0"} 4
ifHCOutOctets{ifName="lo",instance="leaf-0"} 99
ifSpeed{ifName="eth3",instance="leaf-0"} 1e9
"""
NODE = """node_network_transmit_bytes_total{device="eth3",instance="leaf-0:9100"} 123 1700000000000
node_network_transmit_packets_total{device="eth3",instance="leaf-0:9100"} 7 1700000000000
node_network_transmit_drop_total{device="eth3",instance="leaf-0:9100"} 2 1700000000000
node_network_receive_errs_total{device="eth3",instance="leaf-0:9100"} 4 1700000000000
node_network_receive_drop_total{device="eth3",instance="leaf-0:9100"} 40 1700000000000
"""


def links(text: str, **options) -> list[dict]:
    found = []
    for time_s, line in event_lines(text, FABRIC, where="given", **options):
        event = read_event(line, FABRIC, "given")
        assert (event.kind, event.time_s) == ("counters", time_s)
        found += json.loads(line)["links"]
    return found


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GNMIC),
        json.dumps(GNMIC, indent=2),
        json.dumps([GNMIC]),
        json.dumps(GNMIC_EVENT),
        json.dumps(GNMIC | {"updates": GNMIC["updates"] * 2}) + "\n" + json.dumps({"sync-response": True}) + "\n",
        json.dumps(PROTOBUF),
        SNMP,
        NODE,
        NODE.replace("leaf-0:9100", "leaf-0.dc1.example:9100"),
    ],
)
def test_the_same_port_in_every_form(text: str) -> None:
    assert links(text, time_s=1.7e9) == [OUT, IN]


def test_total_packets_count_once() -> None:
    both = SNMP.replace("ifHCOutUcastPkts", "ifOutPkts") + 'ifHCOutUcastPkts{ifName="eth3",instance="leaf-0"} 6\n'
    assert links(both, time_s=0.0)[0]["packets"] == 7


def test_ports_by_a_table() -> None:
    table = "device,interface,node,peer\nsw-1,Ethernet0,leaf-0,spine-1\n"
    text = 'ifHCOutOctets{ifName="Ethernet0",instance="sw-1:161"} 5\n'
    assert links(text, time_s=0.0, ports=table) == [{"link": ["leaf-0", "spine-1"], "sent_bytes": 5}]


def test_a_replay() -> None:
    text = "time_s,source,target,load,loss\n2,leaf-0,spine-0,0.5,\n1,leaf-0,spine-0,,0.1\n2,spine-0,leaf-0,1.0,0\n"
    found = event_lines(text, FABRIC, where="given")
    assert [time_s for time_s, _ in found] == [1, 2]
    assert [one["link"][0] for one in json.loads(found[1][1])["links"]] == ["leaf-0", "spine-0"]


def test_ports_of_parallel_links_come_together() -> None:
    from dataclasses import replace

    import numpy as np

    pair = [FABRIC.names.index(name) for name in ("leaf-0", "spine-0")]
    own = [int(np.flatnonzero((FABRIC.source == a) & (FABRIC.target == b))[0]) for a, b in (pair, pair[::-1])]
    order = np.array([*range(FABRIC.links), *own])
    each = ("source", "target", "capacity_Bps", "latency_s", "cables", "tier", "up")
    fabric = replace(FABRIC, **{name: getattr(FABRIC, name)[order] for name in each})
    text = 'ifHCOutOctets{ifName="eth3",instance="leaf-0"} 5\n'
    with pytest.raises(BadInput, match="1 of 2 ports between leaf-0 and spine-0"):
        event_lines(text, fabric, where="given", time_s=0.0)
    more = text + text.replace("eth3", "eth5")
    assert '"sent_bytes": 10' in event_lines(more, fabric, where="given", time_s=0.0)[0][1]


IB = """switchguid=0x20(20)
Switch\t3 "S-0000000000000020"\t\t# "Leaf" base port 0 lid 9 lmc 0
[1]\t"H-0000000000000010"[1](11) \t\t# "h0" lid 5 4xEDR
[2]\t"H-0000000000000012"[1](13) \t\t# "h1" lid 6 4xEDR

caguid=0x10
Ca\t1 "H-0000000000000010"\t\t# "h0"
[1](11) \t"S-0000000000000020"[1]\t\t# lid 5 lmc 0 "Leaf" lid 9 4xEDR

caguid=0x12
Ca\t1 "H-0000000000000012"\t\t# "h1"
[1](13) \t"S-0000000000000020"[2]\t\t# lid 6 lmc 0 "Leaf" lid 9 4xEDR
"""
PERFQUERY = """# Port extended counters: Lid 9 port 2 (CapMask: 0x5300)
PortSelect:......................2
CounterSelect:...................0x0000
PortXmitData:....................5000000000
PortRcvData:.....................17
PortXmitPkts:....................40
PortRcvPkts:.....................50
PortUnicastXmitPkts:.............39
# Port counters: Lid 9 port 2 (CapMask: 0x5300)
PortRcvErrors:...................3
PortXmitDiscards:................1
"""


def test_perfquery() -> None:
    fabric, subnet = read(IB), read_subnet(IB)
    ((_, line),) = event_lines(PERFQUERY, fabric, where="given", time_s=4.0, subnet=subnet)
    (first, second) = json.loads(line)["links"]
    assert first == {"link": ["Leaf", "h1"], "lost": 1, "packets": 40, "sent_bytes": 2e10}
    assert second == {"link": ["h1", "Leaf"], "damaged": 3, "received": 50}
    short = PERFQUERY.replace(" extended", "").replace("5000000000", "4294967295")
    with pytest.raises(BadInput, match="PortXmitData is full"):
        event_lines(short, fabric, where="given", time_s=4.0, subnet=subnet)
    with pytest.raises(BadInput, match="give ibnetdiscover's output as --fabric"):
        event_lines(PERFQUERY, fabric, where="given", time_s=4.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no counter"),
        (SNMP, "no time"),
        (SNMP.replace("leaf-0", "tor-9"), "'tor-9 eth3' is no port of the fabric"),
        (SNMP.replace("} 123", "} NaN"), "'NaN' is no figure"),
        (SNMP.replace("instance", "where"), "names no device"),
        ("what is this\n", "is no metric"),
        ('{"a": 1', "not valid JSON"),
        ("[1]", "is no update"),
        (json.dumps(GNMIC | {"timestamp": "x"}), "no figure"),
        ("time_s,source,target,load\n1,leaf-0,spine-9,1\n", "'spine-9'"),
        ("time_s,source,target,load\n1,leaf-0,spine-0,-1\n", "no figure"),
        ("time_s,source,target,watts\n1,leaf-0,spine-0,1\n", "'watts'"),
        ("time_s,source,target\n1,leaf-0\n", "2 values for 3"),
    ],
)
def test_what_cannot_be_used(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        event_lines(text, FABRIC, where="given")


def test_a_table_of_ports_that_are_not_there() -> None:
    with pytest.raises(BadInput, match="no link joins 'leaf-0' and 'leaf-1'"):
        event_lines(SNMP, FABRIC, where="x", ports="device,interface,node,peer\na,b,leaf-0,leaf-1\n")
