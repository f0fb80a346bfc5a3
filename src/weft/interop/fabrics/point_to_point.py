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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, wiring_of, wiring_of_fabric
from weft.interop.fabrics.cabling import device_name, port_name, speed_text, written_speed_Bps

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
_FIRST_ROWS, MOST_CABLES = 20, 2_000_000
_DOWN = frozenset(("down", "disabled", "planned", "decommissioning"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    devices: tuple[int, int]
    ports: tuple[int | None, int | None]
    speed: int | None
    unit: str
    state: int | None


def looks(text: str) -> bool:
    """Whether one of the first lines is a heading of cables."""
    return _heading(text) is not None


def read_wiring(text: str, *, where: str = "cabling plan", hosts: Sequence[str] = ()) -> Wiring:
    """The cables of a plan.

    Args:
        hosts: patterns of names of hosts; words of the names tell, by default.

    Raises:
        BadInput: no heading that names both ends, a name or speed that cannot be used, or a port with two cables.
    """
    heading = _heading(text)
    if heading is None:
        raise BadInput("has no heading of cables", where=where, remedy=f"begin with {','.join(HEADINGS)}")
    first, columns = heading
    found: list[PortCable] = []
    seen: set[frozenset[tuple[str, str]]] = set()
    for number, row in enumerate(_rows(text, where), start=1):
        if number <= first or not row or row[0].lstrip().startswith("#"):
            continue
        cable = _cable(row, columns, f"row {number}", where)
        if cable is None:
            continue
        ends = frozenset(cable.ends)
        if all(port for _, port in ends) and len(ends) == 2:
            if ends in seen:
                continue
            seen.add(ends)
        found.append(cable)
        if len(found) > MOST_CABLES:
            raise BadInput(f"has more than {MOST_CABLES:,} cables", where=where, remedy="split the plan")
    return wiring_of("cabling plan", found, told={}, hosts=hosts, where=where)


def write(fabric: Fabric) -> str:
    """The scale-out cables of a fabric as CSV; failed ones are in it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(HEADINGS)
    for cable in wiring_of_fabric(fabric, ports=True).cables:
        assert cable.capacity_Bps is not None
        rows.writerow((cable.device, cable.port, cable.other, cable.other_port, speed_text(cable.capacity_Bps)))
    return text.getvalue()


def _rows(text: str, where: str) -> Iterator[list[str]]:
    lines = text[:10_000].splitlines()[:_FIRST_ROWS]
    delimiter = max(",;\t|", key=lambda one: max((line.count(one) for line in lines), default=0))
    try:
        yield from csv.reader(io.StringIO(text), delimiter=delimiter)
    except csv.Error as error:
        raise BadInput(f"is no CSV: {error}", where=where) from None


def _heading(text: str) -> tuple[int, _Columns] | None:
    """The row with the heading, from 1, and its columns."""
    if text.lstrip()[:1] in "{[<":
        return None
    try:
        for number, row in zip(range(1, _FIRST_ROWS + 1), _rows(text[:20_000], "heading"), strict=False):
            columns = _columns(row) if 2 <= len(row) <= 200 else None
            if columns is not None:
                return number, columns
    except BadInput:
        pass
    return None


def _columns(row: list[str]) -> _Columns | None:
    ends: dict[tuple[int, str], int] = {}
    speed, unit, state = None, "", None
    for column, heading in enumerate(row):
        words = [word.lower() for word in _WORD.findall(heading[:80])]
        flat = "".join(words)
        if speed is None and _SPEED.search(flat):
            speed, unit = column, "g" if "gbps" in flat else "m" if "mbps" in flat else ""
        elif flat in ("state", "status"):
            state = column
        elif not any(map(_NOT_AN_END.fullmatch, words)):
            for place in _places([word for word in words if word not in ("side", "fields", "id")]):
                ends.setdefault(place, column)
    if (0, "device") not in ends and (2, "device") in ends:
        ends |= {(0, kind): at for (side, kind), at in list(ends.items()) if side == 2}
    devices = [ends.get((side, "device")) for side in (0, 1)]
    if devices[0] is None or devices[1] is None:
        return None
    ports = (ends.get((0, "port")), ends.get((1, "port")))
    return _Columns(devices=(devices[0], devices[1]), ports=ports, speed=speed, unit=unit, state=state)


def _places(words: list[str]) -> Iterator[tuple[int, str]]:
    """What a heading may stand for: (0 or 1 for an end, 2 where it names none; device or port)."""
    side = next((i for i in (0, 1) if any(map(_SIDES[i].fullmatch, words))), 2)
    rest = [word for word in words if side == 2 or not _SIDES[side].fullmatch(word)]
    if any(map(_PORT.fullmatch, rest)):
        yield side, "port"
    elif any(map(_DEVICE.fullmatch, rest)) or (side < 2 and not rest):
        yield side, "device"
    elif side < 2 and rest == ["name"]:  # NetBox writes side_a_name beside side_a_device
        yield side, "port" if {"a", "b"} & set(words) else "device"


def _cable(row: list[str], columns: _Columns, place: str, where: str) -> PortCable | None:
    here = f"{where}: {place}"

    def cell(column: int | None) -> str:
        return row[column].strip() if column is not None and column < len(row) else ""

    ends = [
        _end(cell(device), cell(port), port is None)
        for device, port in zip(columns.devices, columns.ports, strict=True)
    ]
    if not (ends[0][0] and ends[1][0]):
        return None  # a port that nothing is plugged into
    (device, port), (other, other_port) = (
        (device_name(name, here), device_name(port, here) if port else "") for name, port in ends
    )
    return PortCable(
        device=device,
        port=port,
        other=other,
        other_port=other_port,
        capacity_Bps=written_speed_Bps(cell(columns.speed), here, columns.unit),
        up=cell(columns.state).lower() not in _DOWN,
        place=place,
    )


def _end(device: str, port: str, joined: bool) -> tuple[str, str]:
    """Device and port; NDT repeats the one in the other ("node1", "node1 ibp1"; "Server 1 IB Port 1", "IB Port 1")."""
    if joined and device.count(":") == 1:
        device, port = (part.strip() for part in device.split(":"))
    if port.startswith(f"{device} "):
        port = port[len(device) + 1 :]
    elif port and device.endswith(f" {port}"):
        device = device[: -len(port) - 1].strip()
    return device, port_name(port)
