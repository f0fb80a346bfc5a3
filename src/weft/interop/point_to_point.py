"""Cabling plans as CSV: a row for each cable, with device and port of both ends, and its speed.

Columns are known by the words of their headings: one that means an end (source, start, from, a, local; destination,
end, to, b, peer) and one that means a device (device, host, node) or a port (port, interface); a speed, bandwidth or
rate.  So the plans of UFM's network definition (NDT: ``#StartDevice,StartPort,EndDevice,EndPort``), SONiC's test beds
(``sonic_*_links.csv``: BandWidth in Mb/s) and NetBox's cables (``side_a_device,side_a_name``) are read as they are.
Separators are commas, semicolons, tabs or bars.  A cable may be listed from both of its ends.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence

from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, wiring_of, wiring_of_fabric
from weft.interop.cabling import device_name, written_speed_Bps

HEADINGS = ("source_device", "source_port", "destination_device", "destination_port", "speed")
_SIDES = (
    re.compile("start|source|src|from|local|near|a|left|1"),
    re.compile("end|destination|dest|dst|to|remote|far|b|z|right|2|peer|neighbou?r|target"),
)
_DEVICE = re.compile("device|dev|host|hostname|node|system|switch|equipment")
_PORT = re.compile("port|interface|intf|iface|ifname|termination")
_NOT_AN_END = re.compile(
    "location|rack|type|role|height|unit|ip|address|mac|model|vendor|serial|room|position|label|vlan|status"
)
_SPEED = re.compile(r"speed|bandwidth|linkrate|^rate|gbps|mbps")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBERED = re.compile(r"(?:port)?\s*(\d+)", re.IGNORECASE)
_FIRST_ROWS, MOST_CABLES = 20, 2_000_000
_DOWN = frozenset(("down", "disabled", "planned", "decommissioning"))


def looks(text: str) -> bool:
    """Whether one of the first lines is a heading of cables."""
    return _heading(text) is not None


def read_wiring(text: str, *, where: str = "cabling plan", hosts: Sequence[str] = ()) -> Wiring:
    """The cables of a plan.

    Args:
        hosts: patterns of names of hosts; words of the names tell, by default.
    """
    heading = _heading(text)
    if heading is None:
        raise BadInput("has no heading of cables", where=where, remedy=f"begin with {','.join(HEADINGS)}")
    first, columns, unit = heading
    cables: list[PortCable] = []
    seen: set[frozenset[tuple[str, str]]] = set()
    for number, row in enumerate(_rows(text, where), start=1):
        if number <= first or not row or row[0].lstrip().startswith("#"):
            continue
        row_place = f"{where}: row {number}"
        cells = {key: row[at].strip() if at < len(row) else "" for key, at in columns.items()}
        ends = [_end(cells, side) for side in "ab"]
        if not (ends[0][0] and ends[1][0]):
            continue  # a port that nothing is plugged into
        (device, port), (far_end, other_port) = (
            (device_name(name, row_place), device_name(port, row_place) if port else "") for name, port in ends
        )
        cable = PortCable(
            device=device,
            port=port,
            other=far_end,
            other_port=other_port,
            capacity_Bps=written_speed_Bps(cells.get("speed", ""), row_place, unit),
            up=cells.get("state", "").lower() not in _DOWN,
            place=f"row {number}",
        )
        both = frozenset(cable.ends)
        if port and other_port and len(both) == 2:
            if both in seen:
                continue
            seen.add(both)
        cables.append(cable)
        if len(cables) > MOST_CABLES:
            raise BadInput(f"has more than {MOST_CABLES:,} cables", where=where, remedy="split the plan")
    return wiring_of("cabling plan", cables, told={}, hosts=hosts, where=where)


def write(fabric: Fabric) -> str:
    """The scale-out cables of a fabric as CSV; failed ones are in it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(HEADINGS)
    for cable in wiring_of_fabric(fabric, ports=True).cables:
        assert cable.capacity_Bps is not None
        speed = f"{cable.capacity_Bps * 8 / 1e9:.6f}".rstrip("0").rstrip(".") + "G"
        rows.writerow((cable.device, cable.port, cable.other, cable.other_port, speed))
    return text.getvalue()


def _rows(text: str, where: str) -> Iterator[list[str]]:
    lines = text[:10_000].splitlines()[:_FIRST_ROWS]
    delimiter = max(",;\t|", key=lambda row: max((line.count(row) for line in lines), default=0))
    try:
        yield from csv.reader(io.StringIO(text), delimiter=delimiter)
    except csv.Error as error:
        raise BadInput(f"is no CSV: {error}", where=where) from None


def _heading(text: str) -> tuple[int, dict[str, int], str] | None:
    """The row with the heading, from 1, its columns, and the unit of speeds."""
    if text.lstrip()[:1] in "{[<":
        return None
    try:
        for number, row in zip(range(1, _FIRST_ROWS + 1), _rows(text[:20_000], "heading"), strict=False):
            columns, unit = _columns(row) if 2 <= len(row) <= 200 else ({}, "")
            if {"a device", "b device"} <= set(columns):
                return number, columns, unit
    except BadInput:
        pass
    return None


def _columns(row: list[str]) -> tuple[dict[str, int], str]:
    """The columns of device and port of both ends ("a device", "b port"), of speed and state; and the speed's unit."""
    columns: dict[str, int] = {}
    unit = ""
    for column, heading in enumerate(row):
        words = [word.lower() for word in _WORD.findall(heading[:80])]
        flat = "".join(words)
        if "speed" not in columns and _SPEED.search(flat):
            columns["speed"], unit = column, "g" if "gbps" in flat else "m" if "mbps" in flat else ""
        elif flat in ("state", "status"):
            columns["state"] = column
        elif not any(map(_NOT_AN_END.fullmatch, words)):
            key = _end_column([word for word in words if word not in ("side", "fields", "id")])
            columns.setdefault(key, column)
    columns.pop("", None)
    if "a device" not in columns and " device" in columns:  # the first end is named by no word
        columns |= {f"a{key}": at for key, at in list(columns.items()) if key[0] == " "}
    return {key: at for key, at in columns.items() if key[0] != " "}, unit


def _end_column(words: list[str]) -> str:
    """What a heading stands for: end (a, b or a blank where it names none) and device or port; "" for neither."""
    side = next((i for i in (0, 1) if any(map(_SIDES[i].fullmatch, words))), 2)
    end = ("a ", "b ", " ")[side]
    candidates = [word for word in words if side == 2 or not _SIDES[side].fullmatch(word)]
    if any(map(_PORT.fullmatch, candidates)):
        return f"{end}port"
    if any(map(_DEVICE.fullmatch, candidates)) or (side < 2 and not candidates):
        return f"{end}device"
    if side < 2 and candidates == ["name"]:  # NetBox writes side_a_name beside side_a_device
        return f"{end}port" if {"a", "b"} & set(words) else f"{end}device"
    return ""


def _end(cells: Mapping[str, str], side: str) -> tuple[str, str]:
    """Device and port; NDT repeats the one in the other ("node1", "node1 ibp1"; "Server 1 IB Port 1", "IB Port 1")."""
    device, port = cells[f"{side} device"], cells.get(f"{side} port", "")
    if f"{side} port" not in cells and device.count(":") == 1:
        device, port = (part.strip() for part in device.split(":"))
    if port.startswith(f"{device} "):
        port = port[len(device) + 1 :]
    elif port and device.endswith(f" {port}"):
        device = device[: -len(port) - 1].strip()
    number = _NUMBERED.fullmatch(port)
    return device, number[1] if number else port
