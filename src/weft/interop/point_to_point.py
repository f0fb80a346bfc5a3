"""Cabling plans as CSV: a row for each cable, with device and port of both ends, and its speed.

The heading names the columns ``source_device``, ``source_port``, ``destination_device``, ``destination_port`` and
(where told) ``speed``; other columns are left out.  A cable may be listed from both of its ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, wiring_of, wiring_of_fabric
from weft.interop.cabling import device_name, written_speed_Bps

HEADINGS = ("source_device", "source_port", "destination_device", "destination_port", "speed")
MOST_CABLES = 2_000_000


def looks(text: str) -> bool:
    """Whether the first line is a heading of cables."""
    return {"source_device", "destination_device"} <= set(text.partition("\n")[0].replace(" ", "").strip().split(","))


def read_wiring(text: str, *, where: str = "cabling plan", hosts: Sequence[str] = ()) -> Wiring:
    """The cables of a plan.

    Args:
        hosts: patterns of names of hosts; words of the names tell, by default.
    """
    cables: dict[object, PortCable] = {}
    for row, place in csv_rows(text, where, HEADINGS[:4]):
        if not (row["source_device"] and row["destination_device"]):
            continue  # a port that nothing is plugged into
        device, port, other, other_port = (device_name(row[name], place) if row[name] else "" for name in HEADINGS[:4])
        cable = PortCable(
            device=device,
            port=port,
            other=other,
            other_port=other_port,
            capacity_Bps=written_speed_Bps(row.get("speed", ""), place),
            place=place.rpartition(": ")[2],
        )
        cables.setdefault(frozenset(cable.ends) if port and other_port else len(cables), cable)
        if len(cables) > MOST_CABLES:
            raise BadInput(f"has more than {MOST_CABLES:,} cables", where=where, remedy="split the plan")
    return wiring_of("cabling plan", list(cables.values()), told={}, hosts=hosts, where=where)


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
