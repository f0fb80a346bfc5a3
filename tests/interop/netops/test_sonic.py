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
    assert sorted(files) == sorted(f"{name}.json" for name in fabric.names[8:])
    assert not [problem for text in files.values() for problem in sonic.lint(text)]
    table = json.loads(files["leaf-0.json"])
    hashed = table["SWITCH_HASH"]["GLOBAL"]
    assert hashed["ecmp_hash_algorithm"] == "CRC_XOR"
    assert ("RDMA_BTH_DEST_QP" in hashed["ecmp_hash_ipv4_rdma"]) is queue_pairs
    if segments == "one-table":
        assert table["SRV6_MY_SID_TABLE"] == {"FCBB:BBBB:9::": {"action": "uN"}}
    else:
        assert table["SRV6_MY_LOCATORS"] == {"MAIN": {"prefix": "fcbb:bbbb:9::"}}
        assert list(table["SRV6_MY_SIDS"]) == ["MAIN|fcbb:bbbb:9::/48"]


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
