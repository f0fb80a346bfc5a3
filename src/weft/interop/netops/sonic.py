"""Fragments of SONiC's ``config_db.json``: how switches hash, and their SRv6 micro-segments.

To follow source ports (``roce``) a switch hashes the five-tuple alone; with ``queue_pairs`` it also hashes
the RoCE destination queue pair, which spreads queue pairs that share a port but moves planned ones.  Which
fields and algorithms a switch can do stands in its STATE_DB under SWITCH_CAPABILITY; seed and offset of the
hash cannot be set there.

``two-tables`` is the newer form of segments (SRV6_MY_LOCATORS, SRV6_MY_SIDS), ``one-table`` the first draft's
(SRV6_MY_SID_TABLE).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Literal

from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import addressing
from weft.interop.netops.plan_paths import network_paths
from weft.routing.traffic import JobTraffic

Segments = Literal["two-tables", "one-table"]
FIVE_TUPLE = ("SRC_IP", "DST_IP", "IP_PROTOCOL", "L4_SRC_PORT", "L4_DST_PORT")
FIELDS = frozenset(
    {
        *("IN_PORT", "DST_MAC", "SRC_MAC", "ETHERTYPE", "VLAN_ID", *FIVE_TUPLE),
        *("INNER_DST_MAC", "INNER_SRC_MAC", "INNER_ETHERTYPE", "INNER_IP_PROTOCOL", "INNER_DST_IP"),
        *("INNER_SRC_IP", "INNER_L4_DST_PORT", "INNER_L4_SRC_PORT"),
        *("IPV6_FLOW_LABEL", "RDMA_BTH_OPCODE", "RDMA_BTH_DEST_QP"),
    }
)
ALGORITHMS = ("CRC", "XOR", "RANDOM", "CRC_32LO", "CRC_32HI", "CRC_CCITT", "CRC_XOR")
PACKETS = ("ipv4", "ipv6", "ipnip", "ipv4_rdma", "ipv6_rdma")
ACTIONS = ("uN", "uDT46", "uA")
_HASHES = {f"{kind}_hash{suffix}" for kind in ("ecmp", "lag") for suffix in ("", *(f"_{p}" for p in PACKETS))}
_LENGTHS = ("block_len", "node_len", "func_len", "arg_len")
_LOCATOR = {"prefix", "vrf", *_LENGTHS}
_SID = {"action", "decap_vrf", "decap_dscp_mode", "interface", "adj"}
_OLD_SID = {"action", "vrf", "dscp_mode", *_LENGTHS}


def write(
    fabric: Fabric,
    traffic: JobTraffic,
    routes: Routes,
    *,
    algorithm: str = "CRC",
    queue_pairs: bool = False,
    segments: Segments = "two-tables",
) -> dict[str, str]:
    """A fragment for every switch of the scale-out network, by file name.

    Raises:
        Unsupported: a flow is not on one path.
        BadInput: an algorithm that SONiC does not have, or the routes are not of this traffic and fabric.
    """
    if algorithm not in ALGORITHMS:
        raise BadInput(f"{algorithm[:40]!r} is no hash of SONiC", where="SONiC", remedy=f"use {', '.join(ALGORITHMS)}")
    network_paths(fabric, traffic, routes, where="SONiC")
    plan = addressing(fabric)
    fields = [*FIVE_TUPLE]
    rdma = [*fields, *(["RDMA_BTH_DEST_QP"] if queue_pairs else [])]
    switch_hash = {
        "ecmp_hash": fields,
        "ecmp_hash_ipv4_rdma": rdma,
        "ecmp_hash_ipv6_rdma": rdma,
        "ecmp_hash_algorithm": algorithm,
    }
    scale_out = set(fabric.source[fabric.tier > SCALE_UP].tolist())
    files = {}
    for node in sorted(node for node in scale_out if node >= fabric.accelerators):
        table: dict[str, Any] = {"SWITCH_HASH": {"GLOBAL": switch_hash}}
        if segments == "one-table":
            table["SRV6_MY_SID_TABLE"] = {plan.segment(node).upper(): {"action": "uN"}}
        else:
            table["SRV6_MY_LOCATORS"] = {"MAIN": {"prefix": plan.segment(node)}}
            sid = {"action": "uN", "decap_dscp_mode": "pipe"}
            table["SRV6_MY_SIDS"] = {f"MAIN|{plan.locator(node)}": sid}
        files[f"{plan.names[node]}.json"] = json.dumps(table, indent=2) + "\n"
    return files


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a fragment: tables, fields, algorithms and segments that SONiC does not take."""
    try:
        table = parse_json(text, "config_db.json")
    except BadInput as error:
        return (str(error),)
    if not isinstance(table, dict):
        return ("is not a table of tables",)
    found = []
    for name, rows in table.items():
        if name not in _CHECKS:
            found.append(f"{name[:60]}: is no table of this fragment")
        elif not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            found.append(f"{name}: is not a table of rows")
        else:
            found += [f"{name}: {problem}" for problem in _CHECKS[name](rows, table)]
    return tuple(found)


def _switch_hash(rows: dict[str, Any], _: dict[str, Any]) -> list[str]:
    found = [f"{key[:60]}: only GLOBAL is known" for key in rows if key != "GLOBAL"]
    for key, value in rows.get("GLOBAL", {}).items():
        if key in ("ecmp_hash_algorithm", "lag_hash_algorithm"):
            found += [] if value in ALGORITHMS else [f"{key}: {str(value)[:40]!r} is no algorithm"]
        elif key not in _HASHES:
            found.append(f"{key[:60]}: is no field")
        elif not isinstance(value, list) or not value:
            found.append(f"{key}: is no list of fields")
        else:
            strange = [str(each)[:40] for each in value if not isinstance(each, str) or each not in FIELDS]
            found += [f"{key}: {', '.join(strange)} is no field of packets"] if strange else []
            found += [f"{key}: a field is given twice"] if len(set(map(str, value))) < len(value) else []
    return found


def _locators(rows: dict[str, Any], _: dict[str, Any]) -> list[str]:
    found = []
    for name, row in rows.items():
        found += _fields(name, row, _LOCATOR) + _lengths(name, row)
        if _address(row.get("prefix")) is None:
            found.append(f"{name[:60]}: prefix {str(row.get('prefix'))[:60]!r} is no IPv6 address")
    return found


def _sids(rows: dict[str, Any], table: dict[str, Any]) -> list[str]:
    locators = table.get("SRV6_MY_LOCATORS")
    found = []
    for key, row in rows.items():
        name, _, prefix = key.partition("|")
        found += _fields(key, row, _SID) + _action(key, row, "decap_vrf")
        if row.get("decap_dscp_mode", "pipe") not in ("pipe", "uniform"):
            found.append(f"{key[:80]}: decap_dscp_mode is neither pipe nor uniform")
        if row.get("action") == "uA" and not row.get("interface"):
            found.append(f"{key[:80]}: uA needs an interface")
        locator = locators.get(name) if isinstance(locators, dict) else None
        if not isinstance(locator, dict):
            found.append(f"{key[:80]}: there is no locator {name[:60]!r}")
            continue
        block = _address(locator.get("prefix"))
        found += _placed(key, prefix, block, _bits(locator, "block_len"), _bits(locator, "node_len"), row)
    return found


def _placed(
    key: str, prefix: str, block: IPv6Address | None, block_len: int, node_len: int, row: dict[str, Any]
) -> list[str]:
    try:
        sid = IPv6Network(prefix)
    except ValueError:
        return [f"{key[:80]}: {prefix[:60]!r} is no IPv6 prefix"]
    bits = block_len if row.get("action") == "uA" else block_len + node_len
    if block is None or not 0 < bits <= 128:
        return []
    inside = sid.prefixlen >= bits and sid.subnet_of(IPv6Network((block, bits), strict=False))
    return [] if inside else [f"{key[:80]}: is not in its locator"]


def _old_sids(rows: dict[str, Any], _: dict[str, Any]) -> list[str]:
    found = []
    for key, row in rows.items():
        found += _fields(key, row, _OLD_SID) + _lengths(key, row) + _action(key, row, "vrf")
        if _address(key) is None:
            found.append(f"{key[:60]!r} is no IPv6 address")
    return found


def _fields(name: str, row: dict[str, Any], known: set[str]) -> list[str]:
    return [f"{name[:80]}: {key[:60]} is no field" for key in row if key not in known]


def _action(name: str, row: dict[str, Any], vrf: str) -> list[str]:
    found = []
    if row.get("action") not in ACTIONS:
        found.append(f"{name[:80]}: action {str(row.get('action'))[:40]!r} is not in {', '.join(ACTIONS)}")
    if vrf in row and row.get("action") != "uDT46":
        found.append(f"{name[:80]}: {vrf} is for uDT46 only")
    return found


def _lengths(name: str, row: dict[str, Any]) -> list[str]:
    lengths = [_bits(row, key) for key in _LENGTHS]
    if min(lengths) < 0 or sum(lengths) > 128:
        return [f"{name[:80]}: the lengths are no bits of an IPv6 address"]
    return []


def _bits(row: dict[str, Any], key: str) -> int:
    """A length in bits, with SONiC's default; -1 where it is none."""
    value = row.get(key, {"block_len": 32, "arg_len": 0}.get(key, 16))
    text = str(value)
    digits = isinstance(value, str | int) and not isinstance(value, bool) and len(text) < 4
    return int(text) if digits and text.isascii() and text.isdigit() else -1


def _address(value: object) -> IPv6Address | None:
    try:
        return IPv6Address(value) if isinstance(value, str) else None
    except ValueError:
        return None


_CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], list[str]]] = {
    "SWITCH_HASH": _switch_hash,
    "SRV6_MY_LOCATORS": _locators,
    "SRV6_MY_SIDS": _sids,
    "SRV6_MY_SID_TABLE": _old_sids,
}
