"""Fabrics from NetBox's cables.

The input is what the API gives: a list of cables, {"results": [cables]}, or {"cables": ..., "devices": ...,
"interfaces": ...} with lists (or results) of each, since cables alone tell neither roles nor speeds.  A cable
has ``a_terminations`` and ``b_terminations`` of object type dcim.interface, with the interface (its name and
device) as ``object``, or its ``object_id`` among the interfaces.  Cables whose status is neither connected
nor active are left out, and so are those that join no interface (power, console).

A device is a host if a word of its role (slug or name) means one (host, server, gpu, compute, node, worker) and none
means a switch; other devices with a role are switches.  An interface has its ``speed`` (kbit/s) or what its ``type``
says (400gbase-x-osfp); a cable has the slower of its ends.  A breakout cable from one interface to several is a cable
to each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, Unsupported
from weft.fabric.wiring import PortCable, Wiring, host_by_name, wiring_of
from weft.interop.fabrics.cabling import device_name, speed_Bps

LIVE = ("connected", "active")
_REMEDY = "give NetBox's list of cables, and of devices and interfaces beside it"
Row = dict[str, Any]


def read_wiring(text: str, *, where: str = "NetBox", hosts: Sequence[str] = ()) -> Wiring:
    """The cables that are connected.

    Args:
        hosts: patterns of names of hosts; with them, all other devices are switches.

    Raises:
        BadInput: not in this form.
        Unsupported: a cable from an interface to something else (a patch panel, a circuit).
    """
    table = parse_json(text, where)
    parts = table if isinstance(table, dict) and "cables" in table else {"cables": table}
    cables, devices, interfaces = (
        _rows(parts.get(key, []), f"{where}: {key}") for key in ("cables", "devices", "interfaces")
    )
    reader = _Reader(devices, interfaces)
    found = [cable for i, row in enumerate(cables) for cable in reader.cables(row, f"cables[{i}]", where)]
    if not found:
        raise BadInput("no cable between interfaces is connected", where=where, remedy=_REMEDY)
    told = {name: host_by_name(role) or False for name, role in reader.roles.items()}
    return wiring_of("NetBox fabric", found, told=told, hosts=hosts, where=where)


class _Reader:
    """What the lists beside the cables tell: interfaces by number, and roles of devices by name."""

    def __init__(self, devices: list[Row], interfaces: list[Row]) -> None:
        self.interfaces = {row["id"]: row for row in interfaces if isinstance(row.get("id"), int)}
        self.roles: dict[str, str] = {}
        for row in devices:
            self._note(row)

    def cables(self, row: Row, place: str, where: str) -> Iterator[PortCable]:
        here = f"{where}: {place}"
        status = row.get("status", LIVE[0])
        if (status.get("value") if isinstance(status, dict) else status) not in LIVE:
            return
        sides = [_rows(row.get(key), f"{here}: {key}") for key in ("a_terminations", "b_terminations")]
        kinds = [{end.get("object_type") == "dcim.interface" for end in side} for side in sides]
        if not any(True in kind for kind in kinds):
            return
        if any(False in kind for kind in kinds):
            raise Unsupported(
                "joins an interface with something else",
                where=here,
                remedy="give a cable between the interfaces at both ends of patch panels",
            )
        left, right = ([self._end(end, here) for end in side] for side in sides)
        alike = len(left) == len(right) or 1 in (len(left), len(right))
        if not (left and right and alike):
            raise Unsupported(
                f"joins {len(left)} with {len(right)} interfaces", where=here, remedy="give cables one by one"
            )
        count = max(len(left), len(right))
        left, right = (_shared(side, count) for side in (left, right))
        for (device, port, speed), (other, other_port, back) in zip(left, right, strict=True):
            told = sorted(each for each in (speed, back) if each is not None)
            yield PortCable(
                device=device,
                port=port,
                other=other,
                other_port=other_port,
                capacity_Bps=told[0] if told else None,
                other_Bps=told[-1] if told and told[0] < told[-1] else None,
                place=place,
            )

    def _note(self, device: Row) -> None:
        role = device.get("role") or device.get("device_role")
        word = (role.get("slug") or role.get("name")) if isinstance(role, dict) else role
        if isinstance(word, str) and isinstance(device.get("name"), str):
            self.roles[device["name"]] = word

    def _end(self, end: Row, place: str) -> tuple[str, str, float | None]:
        """Device, port and speed of a termination."""
        number, brief = end.get("object_id"), end.get("object")
        listed = self.interfaces.get(number, {}) if isinstance(number, int) else {}
        row = {**(brief if isinstance(brief, dict) else {}), **listed}
        device = row.get("device")
        if not isinstance(device, dict):
            raise BadInput(f"interface {str(number)[:20]} has no device", where=place, remedy=_REMEDY)
        name = device_name(device.get("name") or device.get("display"), f"{place}: device")
        self._note({**device, "name": name})
        return name, device_name(row.get("name"), f"{place}: interface"), _speed(row, place)


def _rows(value: object, place: str) -> list[Row]:
    rows = value.get("results") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput("is no list of objects", where=place, remedy=_REMEDY)
    return rows


def _shared(side: list[tuple[str, str, float | None]], count: int) -> list[tuple[str, str, float | None]]:
    """One end per cable; an interface that breaks out gives each cable a lane with its share of the speed."""
    if len(side) == count:
        return side
    device, port, speed = side[0]
    share = None if speed is None else speed / count
    return [(device, f"{port}:{lane}", share) for lane in range(1, count + 1)]


def _speed(row: Row, place: str) -> float | None:
    speed, kind = row.get("speed"), row.get("type")
    if speed is not None:
        if isinstance(speed, bool) or not isinstance(speed, int) or not 0 < speed < 10**12:
            raise BadInput(f"speed is {str(speed)[:40]}", where=place, remedy="give it in kbit/s")
        return speed * 1e3 / 8
    word = kind.get("value") if isinstance(kind, dict) else kind
    return speed_Bps(word) if isinstance(word, str) else None
