"""Cables as NVIDIA Air, NetQ and UFM list them.

Forms: NVIDIA Air's documentation ("Custom Topology", JSON), topograph's recorded answer of NetQ
(NVIDIA/topograph, tests/output/netq/topologyGraph.json), NetQ's LLDP table (docs.nvidia.com, "netq show lldp"), and
UFM's "Links REST API" (docs.nvidia.com); names are others.
"""

import json

import pytest

from weft.errors import BadInput
from weft.interop.fabrics import managers
from weft.interop.fabrics.formats import Asked, read_fabric, read_wiring


def link(*ends):
    return [{"node": node, "interface": port} for node, port in ends]


CABLES = [(("leaf01", "swp1"), ("gpu01", "eth1")), (("leaf01", "swp2"), ("spine01", "swp1"))]
OUT_OF_BAND = (("oob-mgmt-switch", "swp9"), ("leaf01", "eth0"))
AIR = {
    "format": "JSON",
    "title": "Lab",
    "content": {
        "nodes": {"leaf01": {"cpu": 2, "os": "cumulus-vx-5.16.1"}, "gpu01": {"cpu": 2, "function": "server"}},
        "links": [*(link(*cable) for cable in [*CABLES, OUT_OF_BAND]), [*link(("leaf01", "swp48")), "exit"]],
    },
}


def tier(number, *devices):
    rows = [{"id": node, "name": name, "device_type": kind, "tier": number} for node, name, kind in devices]
    return {"id": f"tier{number}", "node_type": "tier", "tier": number, "compounded_nodes": rows}


def compounded(one, other):
    return {"id": f"{one}-*-{other}", "interfaces": link(one, other)}


NETQ_GRAPH = [
    {
        "nodes": [
            tier(1, ("node0", "leaf01", "switch")),
            tier(2, ("node1", "spine01", "switch")),
            tier(-1, ("node2", "gpu01", "discovered_via_lldp")),
        ],
        "links": [
            {"id": "a", "compounded_links": [compounded(("node0", "swp1"), ("node2", "eth1"))]},
            {"id": "b", "compounded_links": [compounded(("node0", "swp2"), ("node1", "swp1"))]},
        ],
    }
]
NETQ_LLDP = {
    "lldp": [
        {"hostname": a[0], "ifname": a[1], "peerHostname": b[0], "peerIfname": b[1], "lastChanged": 1.5}
        for pair in [*CABLES, OUT_OF_BAND]
        for a, b in (pair, pair[::-1])
    ]
}


def ufm_link(source, source_port, destination, destination_port, **more):
    ends = (("source", source, source_port), ("destination", destination, destination_port))
    row = {f"{side}_{key}": "5" for side, _, _ in ends for key in ("guid", "port")}
    row |= {f"{side}_port_node_description": text for side, text, _ in ends}
    return row | {f"{side}_port_dname": port for side, _, port in ends} | {"width": "4x", "severity": "Info", **more}


UFM = [
    ufm_link("leaf01:1/1/1", "1/1/1", "gpu01 mlx5_0", "1", active_speed="NDR"),
    ufm_link("MF0;leaf01:MQM9700/U1", "2", "spine01:1/3/1", "1/3/1"),
]


@pytest.mark.parametrize("table", [AIR, AIR["content"], NETQ_GRAPH, NETQ_LLDP, NETQ_LLDP["lldp"]])
def test_the_same_cables(table, tmp_path):
    path = tmp_path / "links.json"
    path.write_text(json.dumps(table))
    wiring, fabric = read_wiring(Asked(where=str(path)))
    assert fabric is None
    assert [cable.ends for cable in wiring.cables] == CABLES
    assert (wiring.hosts, wiring.unknown) == ({"gpu01"}, "")
    assert read_fabric(path, capacity_Bps=50e9).names == ("gpu01", "leaf01", "spine01")


def test_links_of_ufm(tmp_path):
    path = tmp_path / "links.json"
    path.write_text(json.dumps(UFM))
    wiring, _ = read_wiring(Asked(where=str(path)))
    ends = [(("leaf01", "1/1/1"), ("gpu01", "mlx5_0")), (("leaf01", "2"), ("spine01", "1/3/1"))]
    assert [cable.ends for cable in wiring.cables] == ends
    assert [cable.capacity_Bps for cable in wiring.cables] == [50e9, None]
    assert wiring.hosts == {"gpu01"}


@pytest.mark.parametrize(
    ("read", "table", "words"),
    [
        (managers.read_air, {"content": {"nodes": {}}}, "no content with links"),
        (managers.read_air, {"links": [link(("a", "1"), ("b", 2))]}, r"links\[0\]: '2' is no name"),
        (managers.read_air, {"links": [link(("a", "1"), ("b", "2"))] * 2}, "a 1 has two cables"),
        (managers.read_netq_graph, [{"nodes": []}], "no topology graph"),
        (managers.read_netq_graph, [NETQ_GRAPH[0] | {"nodes": []}], "'None' is no name"),
        (managers.read_netq_lldp, {"lldp": [{"hostname": "a"}]}, "no rows with hostname"),
        (managers.read_ufm, [{"source_port": "1"}], "no links with source_port"),
        (managers.read_ufm, [{"source_port": "1", "destination_port": "2"}], "'None' is no name"),
        (managers.read_ufm, 3, "no links with source_port"),
    ],
)
def test_lists_that_cannot_be_used(read, table, words):
    with pytest.raises(BadInput, match=words):
        read(json.dumps(table))
