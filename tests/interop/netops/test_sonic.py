"""Fragments of SONiC's configuration, and what their check finds."""

import json

import pytest

from weft.errors import BadInput, Unsupported
from weft.interop.netops import sonic


@pytest.mark.parametrize("segments", ["two-tables", "one-table"])
@pytest.mark.parametrize("queue_pairs", [False, True])
def test_fragments_pass_their_check(planned, segments, queue_pairs):
    fabric, traffic, routed = planned(8)
    files = sonic.write(fabric, traffic, routed, segments=segments, queue_pairs=queue_pairs, algorithm="CRC_XOR")
    ports = files.pop("ports.csv").splitlines()
    assert ports[:2] == ["device,interface,node,peer", "leaf-0,Ethernet0,leaf-0,accelerator-0"]
    assert sorted(files) == sorted(f"{name}.json" for name in fabric.names[8:])
    assert not [problem for text in files.values() for problem in sonic.lint(text)]
    table = json.loads(files["leaf-0.json"])
    hashed = table["SWITCH_HASH"]["GLOBAL"]
    assert hashed["ecmp_hash_algorithm"] == "CRC_XOR"
    assert ("RDMA_BTH_DEST_QP" in hashed.get("ecmp_hash_ipv4_rdma", [])) is queue_pairs
    if segments == "one-table":
        assert table["SRV6_MY_SID_TABLE"] == {"FCBB:BBBB:9::": {"action": "uN"}}
    else:
        assert table["SRV6_MY_LOCATORS"] == {"MAIN": {"prefix": "fcbb:bbbb:9::"}}
        assert list(table["SRV6_MY_SIDS"]) == ["MAIN|fcbb:bbbb:9::/48"]


def test_underlay_and_queues(planned):
    """Both ends of every link: addresses of one /31, each the other's neighbour with the other's number."""
    fabric, traffic, routed = planned(8)
    files = sonic.write(fabric, traffic, routed)
    files.pop("ports.csv")
    tables = {name.removesuffix(".json"): json.loads(text) for name, text in files.items()}
    for name, table in tables.items():
        rows = [(key, row) for key, row in table["BGP_NEIGHBOR"].items() if row["name"] in tables]
        assert rows
        for address, row in rows:
            other = tables[row["name"]]
            assert other["DEVICE_METADATA"]["localhost"]["bgp_asn"] == row["asn"]
            assert any(key.endswith(f"|{address}/31") for key in other["INTERFACE"])
            assert other["BGP_NEIGHBOR"][row["local_addr"]]["name"] == name
        ports = [key for key in table["INTERFACE"] if "|" not in key]
        assert set(table["PORT_QOS_MAP"]) == set(ports) == set(table["PFC_WD"]) - {"GLOBAL"}
        assert {row["pfc_enable"] for row in table["PORT_QOS_MAP"].values()} == {"3"}
        assert (table["DSCP_TO_TC_MAP"]["ROCE"]["26"], table["DSCP_TO_TC_MAP"]["ROCE"]["48"]) == ("3", "6")
    profile = tables["leaf-0"]["WRED_PROFILE"]["ROCE-400G"]
    assert (profile["green_min_threshold"], profile["red_max_threshold"]) == ("1600000", "6400000")
    assert list(tables["leaf-0"]["PORT_QOS_MAP"])[1] == "Ethernet8"


def test_what_cannot_be_written(planned):
    with pytest.raises(BadInput, match="no hash of SONiC"):
        sonic.write(*planned(8), algorithm="SHA")
    with pytest.raises(Unsupported, match="split over several"):
        sonic.write(*planned(8, mode="spray"))


def test_examples_of_the_design_documents_pass():
    text = """{"SWITCH_HASH": {"GLOBAL": {
        "ecmp_hash": ["DST_MAC", "SRC_IP", "INNER_DST_IP", "IPV6_FLOW_LABEL", "RDMA_BTH_OPCODE"],
        "lag_hash_ipnip": ["IP_PROTOCOL"], "ecmp_hash_algorithm": "CRC", "lag_hash_algorithm": "CRC_CCITT"}},
      "SRV6_MY_LOCATORS": {"loc2": {"prefix": "FCBB:BBBB:21::", "func_len": 0}},
      "SRV6_MY_SIDS": {"loc2|FCBB:BBBB:21::/48": {"action": "uN", "decap_dscp_mode": "pipe"},
        "loc2|FCBB:BBBB:21:FE24::/64": {"action": "uA", "interface": "Ethernet24", "adj": "2001:db8::5"},
        "loc2|FCBB:BBBB:21:F1::/64": {"action": "uDT46", "decap_vrf": "Vrf01"}},
      "SRV6_MY_SID_TABLE": {"FCBB:BBBB:20::": {"action": "uN"}, "FCBB:BBBB:20:F1::": {"action": "uDT46"}}}"""
    assert sonic.lint(text) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a table"),
        ('{"PORT": {}}', "no table of this fragment"),
        ('{"QUEUE": {"Ethernet0|3": {"scheduler": "X"}}, "INTERFACE": {}, "SCHEDULER": {}}', "no interface Ethernet0"),
        ('{"QUEUE": {"CPU|3": {"wred_profile": "X"}}, "WRED_PROFILE": {}}', "'X' is not in WRED_PROFILE"),
        ('{"BGP_NEIGHBOR": {"10.0.0.1": {"asn": "0"}}}', "no autonomous system"),
        ('{"BGP_NEIGHBOR": {"10.0.0.1": {"asn": "1"}}, "INTERFACE": {"E|10.1.0.0/31": {}}}', "no interface reaches"),
        ('{"BGP_NEIGHBOR": {"x": {"asn": "1"}}, "INTERFACE": {"E|y": {}}}', "is no address"),
        ('{"SWITCH_HASH": {"GLOBAL": 1}}', "not a table of rows"),
        ('{"SWITCH_HASH": {"LOCAL": {}}}', "only GLOBAL"),
        ('{"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": ["SPORT"]}}}', "no field of packets"),
        ('{"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": [["SRC_IP"]]}}}', "no field of packets"),
        ('{"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": ["SRC_IP", "SRC_IP"]}}}', "twice"),
        ('{"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": "SRC_IP"}}}', "no list"),
        ('{"SWITCH_HASH": {"GLOBAL": {"ecmp_hash_tcp": ["SRC_IP"]}}}', "is no field"),
        ('{"SWITCH_HASH": {"GLOBAL": {"ecmp_hash_algorithm": "MD5"}}}', "no algorithm"),
        ('{"SRV6_MY_LOCATORS": {"a": {"prefix": "10.0.0.1"}}}', "no IPv6 address"),
        ('{"SRV6_MY_LOCATORS": {"a": {"prefix": "fc::", "node_len": 99, "func_len": 99}}}', "no bits"),
        ('{"SRV6_MY_LOCATORS": {"a": {"prefix": "fc::", "block_len": "x"}}}', "no bits"),
        ('{"SRV6_MY_LOCATORS": {"a": {"prefix": "fc::", "mtu": 1}}}', "is no field"),
        ('{"SRV6_MY_SIDS": {"a|fc::/48": {"action": "uN"}}}', "no locator 'a'"),
        (
            '{"SRV6_MY_LOCATORS": {"a": {"prefix": "fcbb:bbbb:1::"}},'
            ' "SRV6_MY_SIDS": {"a|fcbb:bbbb:2::/48": {"action": "uN"}}}',
            "not in its locator",
        ),
        (
            '{"SRV6_MY_LOCATORS": {"a": {"prefix": "fcbb:bbbb:1::"}},'
            ' "SRV6_MY_SIDS": {"a|fcbb:bbbb:1::": {"action": "uX", "decap_dscp_mode": 1}}}',
            "uX",
        ),
        (
            '{"SRV6_MY_LOCATORS": {"a": {"prefix": "fcbb:bbbb:1::"}},'
            ' "SRV6_MY_SIDS": {"a|here": {"action": "uA", "decap_vrf": "v"}}}',
            "no IPv6 prefix",
        ),
        ('{"SRV6_MY_SID_TABLE": {"here": {"action": "uN"}}}', "no IPv6 address"),
        ('{"SRV6_MY_SID_TABLE": {"fc::": {"action": "uN", "vrf": "v"}}}', "for uDT46 only"),
    ],
)
def test_what_the_check_finds(text, words):
    assert words in " ".join(sonic.lint(text))
