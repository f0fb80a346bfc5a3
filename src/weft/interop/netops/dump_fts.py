"""Forwarding tables of InfiniBand switches, as ``dump_fts`` and OpenSM write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import BadInput

_SWITCH = re.compile(r"Unicast lids\b(?:.*? Lid (\d{1,5}))?.*? guid 0x([0-9a-fA-F]{1,16})\s*(?:\((.*)\))?\s*:?\s*$")
_ENTRY = re.compile(r"0x([0-9a-fA-F]{1,4})\s+(\d{1,3})\s(?:.*? portguid 0x([0-9a-fA-F]{1,16}))?")
LONGEST_LINE = 1000
"""Characters of a line that OpenSM reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A switch's table in a file: the output port of each LID, and the port's GUID of each that names one."""

    guid: int
    name: str
    lid: int
    """LID of the switch itself; 0 where the file does not say."""
    line: int
    ports: dict[int, int]
    owners: dict[int, int]


def parse(text: str, *, where: str = "tables") -> tuple[Table, ...]:
    """The tables of a dump.

    Raises:
        BadInput: no such dump, or a line that cannot be read.
    """
    tables: list[Table] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.strip(), f"{where}: line {number}"
        if line.startswith("Unicast lids"):
            match = _SWITCH.match(line[:LONGEST_LINE])
            if match is None:
                raise BadInput("names no switch", where=place, remedy="expected ... of switch Lid 1 guid 0x...")
            lid, guid, name = match.groups()
            tables.append(
                Table(guid=int(guid, 16), name=name or "", lid=int(lid or 0), line=number, ports={}, owners={})
            )
        elif line.startswith("0x"):
            entry = _ENTRY.match(line[:LONGEST_LINE] + " ")
            if entry is None or not tables:
                problem = "is no entry" if tables else "stands before any switch"
                raise BadInput(f"{line[:60]!r} {problem}", where=place, remedy="expected 0x0007 006 : (...)")
            lid_here = int(entry[1], 16)
            if lid_here in tables[-1].ports:
                raise BadInput(f"LID 0x{lid_here:04x} is given twice", where=place, remedy="remove one")
            tables[-1].ports[lid_here] = int(entry[2])
            if entry[3]:
                tables[-1].owners[lid_here] = int(entry[3], 16)
    if not tables:
        raise BadInput("holds no table of a switch", where=where, remedy="give a dump of dump_fts or weft")
    return tuple(tables)
