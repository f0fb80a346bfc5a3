"""Where the ranks of a job run on a fabric, and the files that say so."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.fabric.spec import Fabric, Ints
from weft.files import read_text

_SLOTS = re.compile(r"(?P<name>[^\s,:=]+)(?:\s+slots=|\s*,\s*|:)(?P<slots>[0-9]{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Rank r of a job runs on ``accelerators[r]`` of a fabric."""

    accelerators: Ints

    @classmethod
    def in_order(cls, ranks: int, *, first: int = 0) -> Placement:
        """Rank 0 on accelerator ``first``, and the others on those that follow."""
        return cls(accelerators=np.arange(first, first + ranks, dtype=np.int64))

    def check(self, ranks: int, fabric: Fabric) -> None:
        """Refuse a placement that does not give every rank a separate accelerator."""
        if ranks > fabric.accelerators:
            raise BadInput(
                f"{ranks} ranks do not fit on the {fabric.accelerators} accelerators of {fabric.name}",
                where="placement",
                remedy="use a larger fabric or a smaller layout",
            )
        placed = self.accelerators
        inside = (placed >= 0) & (placed < fabric.accelerators)
        if placed.shape != (ranks,) or not inside.all() or len(np.unique(placed)) != ranks:
            problem = f"it must name {ranks} different accelerators of {fabric.accelerators}"
            raise BadInput(problem, where="placement", remedy="use a larger network or smaller jobs")


class _HostLine(NamedTuple):
    """A host or an accelerator, and how many ranks it takes (None: the line does not tell)."""

    name: str
    slots: int | None
    where: str


def host_names(fabric: Fabric) -> tuple[str, ...]:
    """The host of every accelerator, which is its scale-up domain.

    An accelerator named "host/port" says its host's name; a domain of one has its accelerator's name; the
    others are host-0, host-1, ... in the order of their domains.
    """
    names = fabric.names[: fabric.accelerators]
    sizes = np.bincount(fabric.domain)
    result = []
    for name, domain in zip(names, fabric.domain.tolist(), strict=True):
        host, cut, _ = name.rpartition("/")
        result.append(host if cut else name if sizes[domain] == 1 else f"host-{domain}")
    return tuple(result)


def read_placement(path: str | os.PathLike[str], fabric: Fabric, ranks: int) -> Placement:
    """The accelerators of ``ranks`` ranks from a list of hosts in rank order.

    A hostfile as MPI and DeepSpeed take it ("node-1 slots=8", "node-1:8"), one host a line, or one line a rank
    (the host is repeated, or accelerators are named).  A host without slots that is listed once takes as many ranks
    as it has accelerators, unless another host is repeated.  Places beyond the last rank stay free.

    Raises:
        BadInput: the file cannot be read, a line is none of these, an accelerator is given twice or a host more
            ranks than it has accelerators, or there are fewer places than ranks.
        UnknownName: the fabric has no such host or accelerator.
    """
    where = os.fspath(path)
    lines = _lines(read_text(path, where=where), where)
    repeated = max(Counter(line.name for line in lines).values(), default=1) > 1
    number = {name: i for i, name in enumerate(fabric.names[: fabric.accelerators])}
    members: dict[str, list[int]] = {}
    for accelerator, host in enumerate(host_names(fabric)):
        members.setdefault(host, []).append(accelerator)
    free = {host: iter(held) for host, held in members.items()}
    placed: dict[int, None] = {}
    for line in lines:
        if line.name in members:
            held = members[line.name]
            count = line.slots if line.slots is not None else 1 if repeated else len(held)
            chosen = list(islice(free[line.name], count))
            if len(chosen) < count:
                problem = f"{line.name} has {len(held)} accelerators, fewer than the file places on it"
                raise BadInput(problem, where=line.where, remedy="name each host as often as it has accelerators")
        elif line.name in number:
            chosen = [number[line.name]]
        else:
            raise UnknownName("host or accelerator", line.name, [*members, *number], where=line.where)
        for accelerator in chosen:
            if accelerator in placed:
                name = fabric.names[accelerator]
                raise BadInput(f"{name} is given twice", where=line.where, remedy="give each rank its own")
            placed[accelerator] = None
    if len(placed) < ranks:
        problem = f"{len(placed)} places for {ranks} ranks"
        raise BadInput(problem, where=where, remedy="list more hosts, or more slots")
    return Placement(accelerators=np.array(list(placed)[:ranks], dtype=np.int64))


def _lines(text: str, where: str) -> list[_HostLine]:
    lines = []
    for number, row in enumerate(text.splitlines(), start=1):
        line, place = row.partition("#")[0].strip(), f"{where}: line {number}"
        if slots := _SLOTS.match(line):
            lines.append(_HostLine(slots["name"], int(slots["slots"]), place))
        elif len(line.split()) > 1 or "," in line:
            problem = f"{line[:60]!r} is not a host with slots"
            raise BadInput(problem, where=place, remedy="write it like node-1 slots=8")
        elif line:
            lines.append(_HostLine(line, None, place))
    if not lines:
        raise BadInput("lists no host", where=where, remedy="write one host a line, in rank order")
    return lines
