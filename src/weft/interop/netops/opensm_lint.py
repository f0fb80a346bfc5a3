"""What is wrong with forwarding tables before OpenSM loads them.

OpenSM's file engine loads whatever the file holds: LIDs and switches that it lacks become unreachable, and
nothing says so.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import BadInput
from weft.fabric.checks import some
from weft.fabric.spec import Ints, Mask
from weft.interop.netops.subnet import ADAPTER, SWITCH, TOP_LID, TOP_LMC, Subnet, Switching, switching

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
    """The tables of a dump, as ``dump_fts`` and OpenSM write it.

    Raises:
        BadInput: no such dump, or a line that OpenSM cannot read.
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


def check(text: str, subnet: Subnet, *, where: str = "tables") -> None:
    """Refuse tables that OpenSM must not load.

    Raises:
        BadInput: ``lint`` finds problems; names the first ones.
    """
    problems = lint(text, subnet, where=where)
    if problems:
        more = f"; and {len(problems) - 3:,} more problems" if len(problems) > 3 else ""
        raise BadInput("; ".join(problems[:3]) + more, where=where, remedy="do not load it; write the tables again")


def lint(text: str, subnet: Subnet, *, where: str = "tables") -> tuple[str, ...]:
    """Problems of the tables of a dump on a subnet; empty where there are none.

    Problems are switches and LIDs that are missing or unknown, ports that lead nowhere or are down, LIDs that
    do not reach their ports from some switch, loops and, where the switches stand in levels, ways between
    adapters that go down and then up (credits may wait for each other in a circle).  Between switches, which
    only management crosses, such ways pass: between the roots of a tree there are no others.

    A LID belongs to the port whose GUID stands behind it, as OpenSM takes it; without one, to the port that
    has it in the subnet.
    """
    try:
        tables = parse(text, where=where)
    except BadInput as error:
        return (str(error),)
    net = switching(subnet)
    rows, problems = _rows(tables, subnet, net)
    owner, strange = _owners(tables, subnet)
    problems += strange + _addresses(owner, subnet, net)
    lids = sorted(lid for lid, end in owner.items() if end in net.attached)
    walk = _Walk(subnet, net, rows, lids, [owner[lid] for lid in lids])
    problems += [*walk.entries(), *walk.ways(), *walk.turns()]
    return tuple(problems)


def _rows(tables: Sequence[Table], subnet: Subnet, net: Switching) -> tuple[dict[int, Table], list[str]]:
    """The table of each switch in reach, and problems."""
    index = {d.guid: i for i, d in enumerate(subnet.devices) if d.kind == SWITCH}
    rows: dict[int, Table] = {}
    problems = []
    for table in tables:
        title = f"switch 0x{table.guid:016x} ({table.name}) of line {table.line}"
        if table.guid not in index:
            problems.append(f"{title} is not in the subnet")
        elif index[table.guid] in rows:
            problems.append(f"{title} is given twice")
        else:
            rows[index[table.guid]] = table
    missing = [subnet.devices[s].name for s in net.switches if s not in rows]
    if missing:
        problems.insert(0, f"{len(missing):,} switches have no table: {some(missing)}")
    return rows, problems


def _owners(tables: Sequence[Table], subnet: Subnet) -> tuple[dict[int, int], list[str]]:
    """The end that each LID of the tables belongs to, and problems."""
    by_guid = {end.guid: i for i, end in enumerate(subnet.ends)}
    named: dict[int, set[int]] = defaultdict(set)
    for table in tables:
        for lid in table.ports:
            named[lid] |= {table.owners[lid]} if lid in table.owners else set()
    of_subnet = {lid: i for i, e in enumerate(subnet.ends) for lid in range(e.lid, e.lid + 2**e.lmc) if e.lid}
    owner, problems = {}, []
    for lid, guids in sorted(named.items()):
        end = by_guid.get(min(guids)) if guids else of_subnet.get(lid)
        if len(guids) > 1:
            problems.append(f"LID 0x{lid:04x} is given to {len(guids)} ports")
        elif not 1 <= lid <= TOP_LID:
            problems.append(f"LID 0x{lid:04x} is no unicast LID")
        elif end is None:
            problems.append(f"LID 0x{lid:04x} belongs to no port of the subnet")
        else:
            owner[lid] = end
    return owner, problems


def _addresses(owner: dict[int, int], subnet: Subnet, net: Switching) -> list[str]:
    """Ends whose LIDs are not 1 (of a switch) or 2^LMC in a row, aligned (of another port)."""
    held: dict[int, list[int]] = defaultdict(list)
    for lid, end in sorted(owner.items()):
        held[end].append(lid)
    kinds = [subnet.devices[end.device].kind for end in subnet.ends]
    most = max([len(lids) for end, lids in held.items() if kinds[end] != SWITCH], default=1)
    size = 1 << (most - 1).bit_length()
    problems = [] if size <= 2**TOP_LMC else [f"a port has {most} LIDs, more than LMC {TOP_LMC} allows"]
    for end in net.attached:
        count = 1 if kinds[end] == SWITCH else size
        lids = held[end]
        if len(lids) != count or lids[0] % count or lids[-1] - lids[0] != count - 1:
            shown = some([f"0x{lid:04x}" for lid in lids]) or "none"
            name = _name(subnet, end)
            problems.append(f"{name} needs {count} LIDs in a row from a multiple of {count}, and has {shown}")
    return problems


def _name(subnet: Subnet, end: int) -> str:
    port = subnet.ends[end]
    name = subnet.devices[port.device].name
    return f"{name} port {port.port}" if port.port > 1 else name


class _Walk:
    """Every LID from every switch at once, as arrays: a row per switch, a column per LID.

    A step leads to a row; row ``S`` stands for the port of the LID, ``S + 1`` for anything else.
    """

    def __init__(
        self, subnet: Subnet, net: Switching, rows: dict[int, Table], lids: Sequence[int], owner: Sequence[int]
    ) -> None:
        self.subnet, self.net, self.lids, self.owner = subnet, net, lids, owner
        self.count = len(net.switches)
        self.ports = np.full((self.count, len(lids)), -1, dtype=np.int64)
        for row, switch in enumerate(net.switches):
            if switch in rows:
                table = rows[switch].ports
                self.ports[row] = [table.get(lid, -1) for lid in lids]
        self.state, self.peer = self._wiring()
        self.after = self._steps()

    def _wiring(self) -> tuple[Ints, Ints]:
        """Per switch and port: 1 with a cable that is up, 0 down, -1 without; and the row behind the port.

        An adapter's port is ``S + 2`` and its end.
        """
        row = {switch: i for i, switch in enumerate(self.net.switches)}
        end = {(e.device, e.port): i for i, e in enumerate(self.subnet.ends)}
        state = np.full((self.count, 256), -1, dtype=np.int64)
        peer = np.full((self.count, 256), self.count + 1, dtype=np.int64)
        for wire in self.subnet.wires:
            here, there = (wire.device, wire.port), (wire.other, wire.other_port)
            for (a, port), (b, back) in ((here, there), (there, here)):
                if a in row:
                    state[row[a], port] = int(wire.up)
                    peer[row[a], port] = row[b] if b in row else self.count + 2 + end.get((b, back), -1)
        return state, peer

    def _steps(self) -> Ints:
        rows = np.arange(self.count)[:, None]
        port = np.clip(self.ports, 0, 255)
        good = self.state[rows, port] == 1
        after = np.where(good, self.peer[rows, port], self.count + 1)
        arrived = after == self.count + 2 + np.array(self.owner, dtype=np.int64)
        after[(after > self.count) & ~arrived] = self.count + 1
        after[arrived] = self.count
        after[self._own() & (self.ports == 0)] = self.count
        return after

    def _own(self) -> Mask:
        """Where a LID is the switch's own."""
        devices = np.array([self.subnet.ends[end].device for end in self.owner], dtype=np.int64)
        switches: Mask = np.array(self.net.switches, dtype=np.int64)[:, None] == devices
        return switches

    def entries(self) -> Iterator[str]:
        """Entries that are missing, or whose port is none that may stand there."""
        rows = np.arange(self.count)[:, None]
        port = np.clip(self.ports, 0, 255)
        missing, own = self.ports == -1, self._own()
        state = self.state[rows, port]
        zero = ~missing & ((self.ports == 0) != own)
        nowhere = ~missing & ~zero & ~own & (state == -1)
        down = ~missing & ~zero & ~own & (state == 0)
        for row, switch in enumerate(self.net.switches):
            name = self.subnet.devices[switch].name
            for wrong, what in (
                (missing, "no entry for"),
                (zero, "port 0 for a LID that is not its own, or another port for its own:"),
                (nowhere, "a port that leads nowhere for"),
                (down, "a port that is down for"),
            ):
                columns = np.flatnonzero(wrong[row]).tolist()
                if columns:
                    shown = [self._entry(row, column) for column in columns]
                    yield f"{name} has {what} {some(shown)}"

    def _entry(self, row: int, column: int) -> str:
        port = int(self.ports[row, column])
        return f"LID 0x{self.lids[column]:04x}" + (f" (port {port})" if port >= 0 else "")

    def ways(self) -> Iterator[str]:
        """LIDs that go round in a loop or end elsewhere, with the switches that this holds for."""
        fixed = np.array([[self.count], [self.count + 1]]) * np.ones((1, len(self.lids)), dtype=np.int64)
        to = np.concatenate([self.after, fixed])
        for _ in range(self.count.bit_length()):
            to = np.take_along_axis(to, to, axis=0)
        for column in np.flatnonzero((to[:-2] != self.count).any(axis=0)).tolist():
            lid, name = f"LID 0x{self.lids[column]:04x}", _name(self.subnet, self.owner[column])
            round_ = np.flatnonzero(to[:-2, column] < self.count)
            if len(round_):
                yield f"{lid} ({name}) loops: {' > '.join(self._loop(int(round_[0]), column))}"
            lost = np.flatnonzero(to[:-2, column] == self.count + 1).tolist()
            if lost:
                names = [self.subnet.devices[self.net.switches[row]].name for row in lost]
                yield f"{lid} does not reach {name} from {some(names)}"

    def _loop(self, row: int, column: int) -> list[str]:
        seen: list[int] = []
        while row not in seen:
            seen.append(row)
            row = int(self.after[row, column])
        return [self.subnet.devices[self.net.switches[r]].name for r in [*seen[seen.index(row) :], row]]

    def turns(self) -> Iterator[str]:
        """Turns from down to up on ways that begin at adapters."""
        if self.net.level is None or not self.lids:
            return
        level = np.array([self.net.level[switch] for switch in self.net.switches])
        columns = np.arange(len(self.lids))
        inner = self.after < self.count
        onward = np.where(inner, self.after, 0)
        up = inner & (level[onward] > level[:, None])
        turn = inner & ~up & up[onward, columns]
        used = self._used(inner, onward)
        found = Counter((row, int(self.after[row, column])) for row, column in np.argwhere(turn & used).tolist())
        for (row, middle), times in sorted(found.items()):
            names = [self.subnet.devices[self.net.switches[r]].name for r in (row, middle)]
            yield f"{times} LIDs go down from {names[0]} to {names[1]} and then up: credits can deadlock"

    def _used(self, inner: Mask, onward: Ints) -> Mask:
        """Entries, by switch and LID, that the ways between adapters use."""
        of_adapter = [self.subnet.devices[end.device].kind == ADAPTER for end in self.subnet.ends]
        edge = {switch for end, (switch, _) in self.net.attached.items() if of_adapter[end]}
        used: Mask = np.array([[switch in edge] for switch in self.net.switches]) & np.array(
            [of_adapter[end] for end in self.owner]
        )
        grown = used
        while grown.any():
            rows, columns = np.nonzero(grown & inner)
            reached = np.zeros_like(used)
            reached[onward[rows, columns], columns] = True
            grown = reached & ~used
            used |= grown
        return used
