"""Fragments of SONiC's ``config_db.json``: underlay (addresses, BGP), RoCE's queues, how switches hash, and their
SRv6 micro-segments, as SONiC's public YANG models take them (tests/interop/netops/test_sonic_yang.py).

Ports are Ethernet0, Ethernet4, ... (Ethernet8 where links have more than 100 Gb/s), as platforms with so many lanes
a port name them; ``ports.csv`` says which is which link.

To follow source ports (``roce``) a switch hashes the five-tuple alone; with ``queue_pairs`` it also hashes the RoCE
destination queue pair, which spreads queue pairs that share a port but moves planned ones (tables by kind of packet
are newer than the YANG models).  Which fields and algorithms a switch can do stands in its STATE_DB under
SWITCH_CAPABILITY; seed and offset of the hash cannot be set there.

``two-tables`` is the newer form of segments (SRV6_MY_LOCATORS, SRV6_MY_SIDS), ``one-table`` the first draft's
(SRV6_MY_SID_TABLE).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_interface
from typing import Any, Literal

from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import addressing
from weft.interop.netops.plan_paths import network_paths
from weft.interop.netops.underlay import (
    MARKED_PERCENT,
    NOTIFY_DSCP,
    NOTIFY_PRIORITY,
    ROCE_DSCP,
    ROCE_PRIORITY,
    Switch,
    ports_table,
    switches,
)
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
    switch_hash: dict[str, Any] = {"ecmp_hash": fields, "ecmp_hash_algorithm": algorithm}
    if queue_pairs:
        switch_hash |= {f"ecmp_hash_{kind}_rdma": [*fields, "RDMA_BTH_DEST_QP"] for kind in ("ipv4", "ipv6")}
    files: dict[str, str] = {}
    ports: dict[int, str] = {}
    for one in switches(fabric, plan):
        node = one.node
        names = port_names(one)
        ports |= {port.link: name for port, name in zip(one.ports, names, strict=True)}
        table = _underlay(one, names) | _queues(one, names) | {"SWITCH_HASH": {"GLOBAL": switch_hash}}
        if segments == "one-table":
            table["SRV6_MY_SID_TABLE"] = {plan.segment(node).upper(): {"action": "uN"}}
        else:
            table["SRV6_MY_LOCATORS"] = {"MAIN": {"prefix": plan.segment(node)}}
            sid = {"action": "uN", "decap_dscp_mode": "pipe"}
            table["SRV6_MY_SIDS"] = {f"MAIN|{plan.locator(node)}": sid}
        files[f"{plan.names[node]}.json"] = json.dumps(table, indent=2) + "\n"
    return files | ({"ports.csv": ports_table(fabric, ports)} if ports else {})


def port_names(one: Switch) -> list[str]:
    """The names of a switch's ports."""
    lanes = 8 if max((port.speed_bps for port in one.ports), default=0) > _FOUR_LANES_BPS else 4
    return [f"Ethernet{lanes * port.index}" for port in one.ports]


def _underlay(one: Switch, names: list[str]) -> dict[str, Any]:
    """Who the switch is, its addresses and its BGP neighbours."""
    interfaces: dict[str, Any] = {}
    neighbours: dict[str, Any] = {}
    for port, name in zip(one.ports, names, strict=True):
        interfaces[name] = {}
        interfaces[f"{name}|{port.address}"] = {}
        neighbours[port.peer_address] = {
            "name": port.peer,
            "asn": str(port.peer_as),
            "local_addr": port.address.partition("/")[0],
            "admin_status": "up" if port.up else "down",
            "holdtime": "10",
            "keepalive": "3",
        }
    role = {"leaf": "ToRRouter", "rail": "ToRRouter"}.get(
        one.role, "LeafRouter" if one.role == "spine" else "SpineRouter"
    )
    about = {"hostname": one.name, "bgp_asn": str(one.number), "type": role, "docker_routing_config_mode": "separated"}
    return {
        "DEVICE_METADATA": {"localhost": about | {"default_bgp_status": "up"}},
        "LOOPBACK_INTERFACE": {"Loopback0": {}, f"Loopback0|{one.loopback}": {}},
        "INTERFACE": interfaces,
        "BGP_NEIGHBOR": neighbours,
    }


def _queues(one: Switch, names: list[str]) -> dict[str, Any]:
    """RoCE's lossless priority with ECN and a watchdog, and notifications of congestion before all else."""
    same = {str(each): str(each) for each in range(8)}
    special = {ROCE_DSCP: ROCE_PRIORITY, NOTIFY_DSCP: NOTIFY_PRIORITY}
    profiles, queues = {}, {}
    for port, name in zip(one.ports, names, strict=True):
        low, high = port.marks_bytes
        profile = f"ROCE-{max(1, round(port.speed_bps / 1e9))}G"
        colours = {f"{c}_{end}_threshold": str(v) for c in _COLOURS for end, v in (("min", low), ("max", high))}
        colours |= {f"wred_{c}_enable": "true" for c in _COLOURS}
        colours |= {f"{c}_drop_probability": str(MARKED_PERCENT) for c in _COLOURS}
        profiles[profile] = {"ecn": "ecn_all"} | colours
        queues[f"{name}|0"] = {"scheduler": "OTHERS"}
        queues[f"{name}|{ROCE_PRIORITY}"] = {"scheduler": "ROCE", "wred_profile": profile}
        queues[f"{name}|{NOTIFY_PRIORITY}"] = {"scheduler": "NOTIFY"}
    mapped = {
        "dscp_to_tc_map": "ROCE",
        "tc_to_queue_map": "ROCE",
        "tc_to_pg_map": "ROCE",
        "pfc_to_queue_map": "ROCE",
        "pfc_enable": str(ROCE_PRIORITY),
    }
    watch = {"action": "drop", "detection_time": "400", "restoration_time": "400"}
    groups = {tc: "0" if tc != str(ROCE_PRIORITY) else tc for tc in same}
    return {
        "DSCP_TO_TC_MAP": {"ROCE": {str(dscp): str(special.get(dscp, 0)) for dscp in range(64)}},
        "TC_TO_QUEUE_MAP": {"ROCE": same},
        "TC_TO_PRIORITY_GROUP_MAP": {"ROCE": groups},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"ROCE": same},
        "SCHEDULER": {
            "OTHERS": {"type": "DWRR", "weight": "10"},
            "ROCE": {"type": "DWRR", "weight": "90"},
            "NOTIFY": {"type": "STRICT"},
        },
        "WRED_PROFILE": profiles,
        "QUEUE": queues,
        "PORT_QOS_MAP": dict.fromkeys(names, mapped),
        "PFC_WD": {"GLOBAL": {"POLL_INTERVAL": "200"}} | dict.fromkeys(names, watch),
    }


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


def _referred(rows: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """Rows of ports that have no interface, and names of maps, schedulers and profiles that are not there."""
    found = []
    interfaces = table.get("INTERFACE", {})
    for key, row in rows.items():
        name = key.partition("|")[0]
        if name.startswith("Ethernet") and isinstance(interfaces, dict) and name not in interfaces:
            found.append(f"{key[:60]}: there is no interface {name[:40]}")
        for field, other in _REFERS.items():
            there = table.get(other, {})
            if field in row and isinstance(there, dict) and str(row[field]) not in there:
                found.append(f"{key[:60]}: {field} {str(row[field])[:40]!r} is not in {other}")
    return found


def _neighbours(rows: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """Neighbours that are no addresses, or that no interface reaches."""
    found, nets = [], []
    interfaces = table.get("INTERFACE", {})
    for key in interfaces if isinstance(interfaces, dict) else ():
        try:
            nets += [ip_interface(key.partition("|")[2]).network] if "|" in key else []
        except ValueError:
            found.append(f"INTERFACE: {key[:60]} has no address")
    for key, row in rows.items():
        asn = str(row.get("asn"))
        if not (asn.isascii() and asn.isdigit() and len(asn) < 11 and 0 < int(asn) < 2**32):
            found.append(f"{key[:60]}: {asn[:20]!r} is no autonomous system")
        try:
            address = ip_address(key)
            if not any(address in net for net in nets):
                found.append(f"{key[:60]}: no interface reaches it")
        except ValueError:
            found.append(f"{key[:60]}: is no address")
    return found


_COLOURS = ("green", "yellow", "red")
_FOUR_LANES_BPS = 100e9
_REFERS = {
    "dscp_to_tc_map": "DSCP_TO_TC_MAP",
    "tc_to_queue_map": "TC_TO_QUEUE_MAP",
    "tc_to_pg_map": "TC_TO_PRIORITY_GROUP_MAP",
    "pfc_to_queue_map": "MAP_PFC_PRIORITY_TO_QUEUE",
    "scheduler": "SCHEDULER",
    "wred_profile": "WRED_PROFILE",
}
_CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], list[str]]] = {
    **dict.fromkeys(("DEVICE_METADATA", "LOOPBACK_INTERFACE", "SCHEDULER", "WRED_PROFILE"), _referred),
    **dict.fromkeys(_REFERS.values(), _referred),
    **dict.fromkeys(("INTERFACE", "QUEUE", "PORT_QOS_MAP", "PFC_WD"), _referred),
    "BGP_NEIGHBOR": _neighbours,
    "SWITCH_HASH": _switch_hash,
    "SRV6_MY_LOCATORS": _locators,
    "SRV6_MY_SIDS": _sids,
    "SRV6_MY_SID_TABLE": _old_sids,
}
