"""Probes: which switches packets with a UDP source port were seen to pass.

A probe file is CSV: columns src_ip, dst_ip and udp_sport, then any columns (spine, or hop1, hop2, ...) with
the names of the nodes seen, in order; cells may stay empty.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from weft.errors import BadInput
from weft.fabric.spec import Fabric

COLUMNS = ["src_ip", "dst_ip", "udp_sport"]
MOST_ROWS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Of every (source, destination) address, the nodes seen with each UDP source port."""

    seen: dict[tuple[str, str], dict[int, tuple[str, ...]]]

    def on(self, ends: tuple[str, str], path: list[str], needed: set[str]) -> list[int]:
        """Ports with which all of ``needed`` were seen, and nothing but nodes of the path in its order."""
        found = []
        for port, names in sorted(self.seen.get(ends, {}).items()):
            rest = iter(path)
            if needed <= set(names) and all(name in rest for name in names):
                found.append(port)
        return found


def read_probes(text: str, fabric: Fabric, *, where: str = "probes") -> Probes:
    """The probes of a file.

    Raises:
        BadInput: other columns, no address or port, a node that the fabric lacks, or contradictions.
    """
    try:
        rows = csv.reader(io.StringIO(text), strict=True)
        header = next(rows, [])
        if header[:3] != COLUMNS or len(header) < 4:
            raise BadInput(
                f"the columns are not {','.join(COLUMNS)} and then nodes",
                where=f"{where}: line 1",
                remedy="begin with src_ip,dst_ip,udp_sport,spine",
            )
        return _probes(rows, set(fabric.names), where)
    except csv.Error as error:
        raise BadInput(f"not valid CSV: {error}", where=where) from None


def _probes(rows: Iterable[list[str]], nodes: set[str], where: str) -> Probes:
    seen: dict[tuple[str, str], dict[int, tuple[str, ...]]] = defaultdict(dict)
    for number, row in enumerate(rows, start=2):
        place = f"{where}: row {number}"
        if not row:
            continue
        if number > MOST_ROWS:
            raise BadInput(f"has more than {MOST_ROWS:,} rows", where=where)
        if len(row) < 4:
            raise BadInput(f"has {len(row)} cells", where=place, remedy="give addresses, port and nodes")
        ends = _address(row[0], place), _address(row[1], place)
        names = tuple(cell.strip() for cell in row[3:] if cell.strip())
        strange = [name for name in names if name not in nodes]
        if strange:
            raise BadInput(f"there is no node {strange[0][:60]!r}", where=place, remedy="use the names of the fabric")
        before = seen[ends].setdefault(_port(row[2], place), names)
        if before != names:
            raise BadInput(
                "contradicts an earlier row",
                where=place,
                remedy="probe again while nothing changes, and give each port once",
            )
    return Probes(seen=dict(seen))


def _address(text: str, place: str) -> str:
    try:
        return str(IPv4Address(text.strip()))
    except AddressValueError:
        raise BadInput(f"{text[:40]!r} is no IPv4 address", where=place) from None


def _port(text: str, place: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0xC000 <= int(text) <= 0xFFFF):
        raise BadInput(f"port {text[:20]!r} is not in 49152 to 65535", where=place)
    return int(text)
