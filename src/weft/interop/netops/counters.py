"""Counters of ports as networks give them, as lines of events ("counters") for the route controller.

- gNMI updates as JSON, one a line or a list: gnmic's formats ``event`` and ``json``, or a Notification as protobuf
  writes it.  Leaves of OpenConfig's ``/interfaces/interface/state/counters``.
- Prometheus' text format, of SNMP, gNMI and node exporters: what a name ends with says what it counts.
- ``perfquery`` and ``perfquery -x``, port after port; needs the subnet (``ibnetdiscover``).
- CSV, as one replays it: ``time_s``, ``source``, ``target`` (names of nodes) and columns of a "counters" event.

A port is a device and an interface: names of nodes and of interfaces as the exports have them (eth1, eth2, ... in the
order of the links), or those of a table with the columns device, interface, node and peer.  What an interface sends is
its link's; damaged packets that it receives are those of the link to it.  Interfaces without a link are left out.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from weft.documents import csv_rows, parse_json, parse_line
from weft.errors import BadInput
from weft.fabric.spec import SCALE_UP, Fabric
from weft.interop.netops.addressing import addressing
from weft.interop.netops.subnet import SWITCH, Subnet, matched
from weft.routing.telemetry import FIGURES

MOST = 2.0**64
_WORD_BYTES = 4.0
"""InfiniBand counts data in words."""
_FULL = 2.0**32 - 1
"""Where InfiniBand's short counters of data stay."""
_NAMES = {
    "sent_bytes": ("outoctets", "transmitbytes", "datatransmittedbytes"),
    "packets": ("outpkts", "outunicastpkts", "outucastpkts", "transmitpackets", "packetstransmitted", "portxmitpkts"),
    "lost": (
        *("outdiscards", "outerrors", "transmitdrop", "transmiterrs", "transmitdiscards", "discardstransmitted"),
        "portxmitdiscards",
    ),
    "received": ("inpkts", "inunicastpkts", "inucastpkts", "receivepackets", "packetsreceived", "portrcvpkts"),
    "damaged": ("inerrors", "receiveerrs", "errorsreceived", "portrcverrors"),
}
_SENT = ("sent_bytes", "packets", "lost")
_FIGURES = {name: figure for figure, names in _NAMES.items() for name in names}
_EXACT = {"outunicastpkts": "outpkts", "outucastpkts": "outpkts", "inunicastpkts": "inpkts", "inucastpkts": "inpkts"}
"""Counters that say less than another, which goes first."""
_DEVICES = ("source", "target", "instance", "node", "hostname", "sysname", "device_name", "switch")
_INTERFACES = ("interface_name", "interface", "ifname", "ifdescr", "device", "name", "port")
_METRIC = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d{1,16}))?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_KEYED = re.compile(r"interface\[name=([^\]]+)\]")
_PORT = re.compile(r"# Port (extended )?counters: Lid (\d{1,6}) port (\d{1,4})\b.*")
_COUNTER = re.compile(r"(\w+):\.*(\d{1,20})\s*")


class Reading(NamedTuple):
    """What a port says at a time in s (None: the file does not say)."""

    time_s: float | None
    device: str
    interface: str
    counter: str
    value: float


def event_lines(
    text: str,
    fabric: Fabric,
    *,
    where: str,
    time_s: float | None = None,
    ports: str = "",
    subnet: Subnet | None = None,
) -> list[tuple[float, str]]:
    """The "counters" events of a file in order of time, each as a line and its time.

    Args:
        time_s: of what the file gives no time; beginnings in files that do stay as they are.
        ports: a table (CSV) of device, interface, node and peer.
        subnet: of ``perfquery``'s LIDs.

    Raises:
        BadInput: in none of the formats, a value that cannot be used, no port of the fabric, or no time.
    """
    found: dict[float, dict[tuple[str, str], dict[str, float]]] = defaultdict(dict)
    for at, ends, figures in _samples(text, fabric, where, ports, subnet):
        when = time_s if at is None else at
        if when is None:
            raise BadInput("says no time", where=where, remedy="give it: --at SECONDS")
        row = found[when].setdefault(ends, {})
        for name, value in figures.items():
            row[name] = row.get(name, 0.0) + value
    if not found:
        raise BadInput(
            "holds no counter of a link", where=where, remedy="give gNMI JSON, Prometheus, perfquery or CSV"
        )
    lines = []
    for when, rows in sorted(found.items()):
        links = [{"link": list(ends)} | figures for ends, figures in sorted(rows.items())]
        lines.append((when, json.dumps({"time_s": when, "event": "counters", "links": links})))
    return lines


Samples = Iterator[tuple[float | None, tuple[str, str], dict[str, float]]]


def _samples(text: str, fabric: Fabric, where: str, ports: str, subnet: Subnet | None) -> Samples:
    """Times, ends of links and what is known of them."""
    head = text.lstrip()[:4096]
    if "# Port " in head and _PORT.search(head):
        if subnet is None:
            raise BadInput("has LIDs and ports", where=where, remedy="give ibnetdiscover's output as --fabric FILE")
        yield from _linked(_perfquery(text, where), _subnet_ports(subnet, fabric), where)
    elif head.startswith(("{", "[")):
        yield from _linked(_gnmi(text, where), _ports(fabric, ports), where)
    elif "source" in (first := head.split("\n", 1)[0]) and "," in first and "{" not in first:
        yield from _replayed(text, fabric, where)
    else:
        yield from _linked(_prometheus(text, where), _ports(fabric, ports), where)


def _linked(readings: Iterable[Reading], ports: Mapping[tuple[str, str], tuple[str, str]], where: str) -> Samples:
    """The readings of ports by the links that they are of."""
    held: dict[tuple[float | None, str, str], dict[str, float]] = defaultdict(dict)
    strange = ""
    for one in readings:
        device = next((name for name in _called(one.device) if (name, one.interface) in ports), "")
        if not device:
            strange = strange or f"{one.device} {one.interface}"
            continue
        counters = held[one.time_s, device, one.interface]
        counters[one.counter] = one.value
    if strange and not held:
        raise BadInput(
            f"{strange[:80]!r} is no port of the fabric",
            where=where,
            remedy="say which ports are which: --ports FILE.csv",
        )
    width: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (_, interface), ends in ports.items():
        width[ends].add(interface)
    told: dict[tuple[float | None, tuple[str, str], bool], list[dict[str, float]]] = defaultdict(list)
    for (time_s, device, interface), counters in held.items():
        here, there = ports[device, interface]
        sums: dict[str, float] = defaultdict(float)
        for counter, value in counters.items():
            if _EXACT.get(counter) not in counters:
                sums[_FIGURES[counter]] += value
        for sent in (True, False):
            if mine := {name: value for name, value in sums.items() if (name in _SENT) == sent}:
                told[time_s, (here, there) if sent else (there, here), sent].append(mine)
    for (time_s, ends, _), each in told.items():
        if len(each) < len(width[ends]):
            problem = f"tells at one time of {len(each)} of {len(width[ends])} ports between {' and '.join(ends)}"
            raise BadInput(problem, where=where, remedy="give the ports of parallel links together")
        names = sorted({name for one in each for name in one})
        yield time_s, ends, {name: math.fsum(one.get(name, 0.0) for one in each) for name in names}


def _called(device: str) -> tuple[str, ...]:
    """A device's name as given, without its port, and without its domain."""
    plain = device.rpartition(":")[0] or device
    return device, plain, plain.partition(".")[0]


def _ports(fabric: Fabric, text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """The ends of the link behind every port."""
    names = fabric.names
    if text:
        return dict(_table(text, fabric))
    plan = addressing(fabric)
    found = {}
    for link, (a, b) in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        if fabric.tier[link] > SCALE_UP:
            for device in (plan.names[a], names[a]):
                found[device, plan.interfaces[link]] = (names[a], names[b])
    return found


def _table(text: str, fabric: Fabric) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """The rows of a table of ports."""
    where, needed = "--ports", ("device", "interface", "node", "peer")
    joined = {
        (fabric.names[a], fabric.names[b]) for a, b in zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)
    }
    for row, place in csv_rows(text, where, needed):
        ends = row["node"], row["peer"]
        if ends not in joined:
            raise BadInput(
                f"no link joins {ends[0][:40]!r} and {ends[1][:40]!r}", where=place, remedy="name two nodes"
            )
        yield (row["device"], row["interface"]), ends


def _replayed(text: str, fabric: Fabric, where: str) -> Samples:
    known = set(fabric.names)
    needed = ("time_s", "source", "target")
    for row, place in csv_rows(text, where, needed, (*needed, *FIGURES)):
        for name in ("source", "target"):
            if row[name] not in known:
                raise BadInput(f"there is no node {row[name][:60]!r}", where=f"{place}: {name}", remedy="use its name")
        figures = {name: _number(row[name], f"{place}: {name}") for name in FIGURES if row.get(name)}
        yield _number(row["time_s"], f"{place}: time_s"), (row["source"], row["target"]), figures


def _prometheus(text: str, where: str) -> Iterator[Reading]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"{where}: line {number}"
        match = _METRIC.fullmatch(line)
        if match is None:
            raise BadInput(f"{line[:40]!r} is no metric", where=place, remedy="give Prometheus' text format")
        counter = _counter(match[1])
        if counter is None:
            continue
        labels = {key.lower(): value for key, value in _LABEL.findall(match[2] or "")}
        device = next((labels[name] for name in _DEVICES if name in labels), "")
        interface = next((labels[name] for name in _INTERFACES if name in labels), "")
        if not device or not interface:
            raise BadInput(
                f"{match[1][:60]} names no device or no interface",
                where=place,
                remedy=f"keep the labels {', '.join(_DEVICES[:3])} and {', '.join(_INTERFACES[:3])}",
            )
        when = None if match[4] is None else int(match[4]) / 1000
        yield Reading(when, device, interface, counter, _number(match[3], place))


@lru_cache(maxsize=4096)
def _counter(name: str) -> str | None:
    """The counter that a name ends with."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("total")
    return next((known for known in sorted(_FIGURES, key=len, reverse=True) if plain.endswith(known)), None)


def _perfquery(text: str, where: str) -> Iterator[Reading]:
    lid, port, wide = "", "", False
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{where}: line {number}"
        if head := _PORT.match(line):
            wide, lid, port = bool(head[1]), head[2], head[3]
        elif (match := _COUNTER.fullmatch(line)) and lid:
            value = _number(match[2], place)
            if match[1] in ("PortXmitData", "XmtData", "PortXmitPkts", "XmtPkts") and not wide and value >= _FULL:
                raise BadInput(
                    f"{match[1]} is full", where=place, remedy="read perfquery -x, or clear it: perfquery -R"
                )
            if match[1] in ("PortXmitData", "XmtData"):
                yield Reading(None, lid, port, "outoctets", value * _WORD_BYTES)
            elif counter := _counter(match[1].replace("Xmt", "PortXmit") if match[1][:3] == "Xmt" else match[1]):
                yield Reading(None, lid, port, counter, value)
    if not lid:
        raise BadInput("has no port", where=where, remedy="give the output of perfquery, port after port")


def _subnet_ports(subnet: Subnet, fabric: Fabric) -> dict[tuple[str, str], tuple[str, str]]:
    """The ends of the link behind every LID and port."""
    match = matched(subnet, fabric)
    ends: dict[tuple[int, int], tuple[str, str]] = {}
    for link, number in enumerate(match.wires):
        a, b = fabric.names[fabric.source[link]], fabric.names[fabric.target[link]]
        here = match.device[int(fabric.source[link])]
        if number >= 0:
            wire = match.subnet.wires[number]
            ends[here, wire.port if wire.device == here else wire.other_port] = (a, b)
    found = {}
    for end in match.subnet.ends:
        switch = match.subnet.devices[end.device].kind == SWITCH
        every = [port for device, port in ends if device == end.device] if switch else [end.port]
        for port in every:
            if (end.device, port) in ends:
                found[str(end.lid), str(port)] = ends[end.device, port]
    return found


def _gnmi(text: str, where: str) -> Iterator[Reading]:
    whole = text.lstrip()
    if whole.startswith("["):
        tables = [(one, f"{where}: [{number}]") for number, one in enumerate(_listed(parse_json(text, where)))]
    else:
        lines = [(line, f"{where}: line {at}") for at, line in enumerate(text.split("\n"), 1) if line.strip()]
        try:
            tables = [(parse_line(line, place), place) for line, place in lines]
        except BadInput:
            tables = [(parse_json(text, where), where)]
    for table, place in tables:
        if not isinstance(table, dict):
            raise BadInput("is no update", where=place, remedy="give gNMI updates as JSON objects")
        yield from _update(table, place)


def _update(table: dict[str, Any], place: str) -> Iterator[Reading]:
    """The counters of an update, in any of the three forms."""
    inner = table.get("update")
    if isinstance(inner, dict):
        table = inner
    tags = table.get("tags")
    prefix = table.get("prefix")
    origin = tags if isinstance(tags, dict) else table
    device = (
        origin.get("source") or (prefix.get("target") if isinstance(prefix, dict) else None) or table.get("target")
    )
    when = None
    if "timestamp" in table:
        when = _number(table["timestamp"], f"{place}: timestamp") / 1e9
    start = _path(prefix)
    parts: list[tuple[str, object]] = []
    if isinstance(tags, dict):
        parts.append((f"interface[name={tags.get('interface_name', '')}]", table.get("values")))
    updates = [*_listed(table.get("updates")), *_listed(table.get("update"))]
    parts += [
        (_path(one.get("path", one.get("Path"))), one.get("values", one.get("val")))
        for one in updates
        if isinstance(one, dict)
    ]
    for path, value in parts:
        for at, leaf in _leaves(f"{start}/{path}", value):
            named, counter = _KEYED.search(at), _counter(at.rpartition("/")[2])
            if named and counter and isinstance(device, str):
                yield Reading(when, device, named[1], counter, _number(leaf, f"{place}: {at[-60:]}"))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _path(value: object) -> str:
    """A path as text, also of elements with keys."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else ""
    words = []
    for one in _listed(value.get("elem")):
        if isinstance(one, dict):
            keys = one.get("key")
            named = [f"[{key}={name}]" for key, name in keys.items()] if isinstance(keys, dict) else []
            words.append(f"{one.get('name')}{''.join(named)}")
    return "/".join(words)


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    """The leaves below a path, with theirs."""
    waiting: list[tuple[str, object]] = [(path, value)]
    while waiting:
        at, one = waiting.pop()
        if isinstance(one, dict):
            scalar = next((one[kind] for kind in ("uintVal", "intVal", "doubleVal", "stringVal") if kind in one), None)
            inner = one.get("jsonIetfVal", one.get("jsonVal")) if scalar is None else None
            if scalar is not None:
                yield at, scalar
            elif inner is not None:
                waiting.append((at, inner))
            else:
                waiting += [(f"{at}/{key}", each) for key, each in reversed(one.items())]
        elif isinstance(one, str | int | float) and not isinstance(one, bool):
            yield at, one


def _number(value: object, place: str) -> float:
    """A figure of a counter.

    Raises:
        BadInput: it is none, or out of range.
    """
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not 0 <= found <= MOST:
        raise BadInput(f"{str(value)[:40]!r} is no figure of a counter", where=place, remedy="give a number from 0")
    return found
