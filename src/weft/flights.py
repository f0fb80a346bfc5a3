"""Flight records: what each rank of a run did last, and which of them kept the others waiting.

A rank that fails, is ended or stands for too long leaves ``flight-0001/rank-3.json`` in the folder of its run.  Fields
are called as in PyTorch's flight recorder where they mean the same.  Nothing here needs torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.documents import parse_json, validate
from weft.errors import BadInput
from weft.files import read_text

KEPT = 2000
"""Last entries of a rank that are kept."""
LARGEST_BYTES = 64_000_000
MESSAGES = {"send": "receive", "receive": "send"}
"""What goes between two ranks, and what answers it."""
PASSES = ("forward", "backward", "weight-gradient", "checkpoint")
UNEVEN = "all-to-all"
"""Its bytes may differ from rank to rank."""

_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Entry(_Strict):
    """A collective, a message between stages, or a pass.

    Attributes:
        record_id: how many came before it.
        process_group: axes of a collective, empty for others.
        collective_seq_id: its number over these axes, from 1.
        of: what a message carries, or the micro-batch of a pass.
        size_bytes: of the full buffer.
        state: ``waiting``: the rank stands until it has ended.
        time_created_s: since 1970.
        seconds: from there until the rank had the result; None where it has it not.
    """

    record_id: _Count
    step: _Count
    kind: str
    process_group: str = ""
    collective_seq_id: _Count = 0
    of: str = ""
    size_bytes: _Count = 0
    peer: _Count | None = None
    state: Literal["scheduled", "waiting", "completed"]
    time_created_s: _Seconds
    seconds: _Seconds | None = None

    @property
    def words(self) -> str:
        """As "all-reduce 17 over x" or "forward of micro-batch 3"."""
        if self.process_group:
            return f"{self.kind} {self.collective_seq_id} over {self.process_group}"
        return f"{self.kind} of {self.of}" if self.of else self.kind

    @property
    def last_s(self) -> float:
        """When the rank was last seen at it."""
        return self.time_created_s + (self.seconds or 0.0)


class Flight(_Strict):
    """What one rank leaves.

    Attributes:
        cause: it failed by itself (``error``), was ended (SIGTERM), or stood for long.
        time_s: when it was written, since 1970.
        groups: ranks of its process groups, by their axes.
        issued: how many collectives it issued, by the same.
    """

    format: Literal["weft flight 1"] = "weft flight 1"
    rank: _Count
    world: Annotated[int, Field(ge=1, le=10**6)]
    host: str
    pid: _Count
    cause: Literal["error", "ended", "stood"]
    reason: str
    time_s: _Seconds
    step: _Count
    groups: dict[str, list[_Count]]
    issued: dict[str, _Count]
    entries: list[Entry]

    @property
    def stands_at(self) -> Entry | None:
        """What it waits for, if it does: a collective, or outside of passes a message of the step."""
        inside = False
        for entry in self.entries:
            if entry.state == "waiting":
                return entry
            inside = inside or (entry.kind in PASSES and entry.state != "completed")
        messages = (e for e in self.entries if e.kind in MESSAGES and e.state != "completed" and e.step == self.step)
        return None if inside else next(messages, None)

    @property
    def last(self) -> Entry | None:
        """What it did last."""
        return max(self.entries, key=lambda entry: entry.last_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where one rank stopped: ``at`` what it waits in, and for which ranks, which have not come to it."""

    rank: int
    flight: Flight | None
    at: Entry | None = None
    waits_for: tuple[int, ...] = ()

    @property
    def since_s(self) -> float:
        """When it stopped; a rank without record before all others."""
        if self.flight is None:
            return 0.0
        if self.at is not None:
            return self.at.time_created_s
        return self.flight.last.last_s if self.flight.last is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first collective of a group that is not the same on two of its ranks."""

    ranks: tuple[int, int]
    entries: tuple[Entry, Entry]

    @property
    def words(self) -> str:
        what = (
            f"rank {r} issued {e.kind} of {e.size_bytes:,} bytes"
            for r, e in zip(self.ranks, self.entries, strict=True)
        )
        first = self.entries[0]
        return (
            f"collective {first.collective_seq_id} over {first.process_group} (step {first.step}): {', '.join(what)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why a run stopped: ``first`` are the ranks for which others wait and which wait for nobody, the first to stop
    first; ``circle`` are ranks that wait for each other."""

    folder: str
    world: int
    stands: tuple[Stand, ...]
    first: tuple[int, ...]
    circle: tuple[int, ...]
    mismatch: Mismatch | None

    def waiters(self, rank: int) -> tuple[Stand, ...]:
        """Who waits for a rank, the first to come first."""
        found = (stand for stand in self.stands if rank in stand.waits_for)
        return tuple(sorted(found, key=lambda stand: (stand.since_s, stand.rank)))


def next_folder(run: str | os.PathLike[str]) -> Path:
    """Where the next records of a run go."""
    return Path(run) / f"flight-{max(_folders(run), default=0) + 1:04d}"


def record_file(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"rank-{rank}.json"


def _folders(run: str | os.PathLike[str]) -> dict[int, Path]:
    if not os.path.isdir(run):
        return {}
    names = (re.fullmatch(r"flight-([0-9]{4,9})", path.name) for path in Path(run).iterdir())
    return dict(sorted((int(name[1]), Path(run) / name[0]) for name in names if name))


def read_flights(where: str | os.PathLike[str]) -> tuple[str, dict[int, Flight]]:
    """The records of a folder, by rank, and the folder: of a run the newest that it has.

    Raises:
        BadInput: there are none, or they are not what ranks of one run wrote.
    """
    folders = _folders(where)
    folder = folders[max(folders)] if folders else Path(where)
    paths = sorted(folder.glob("rank-*.json")) if folder.is_dir() else []
    found: dict[int, Flight] = {}
    for path in paths:
        one = read_flight(path)
        if one.rank in found or one.rank >= one.world or any(one.world != other.world for other in found.values()):
            raise BadInput("is not of the same run as the records beside it", where=str(path), remedy="remove it")
        found[one.rank] = one
    if not found:
        raise BadInput(
            "holds no flight records", where=str(where), remedy="give the --out of a run that failed on several ranks"
        )
    return str(folder), found


def read_flight(path: str | os.PathLike[str]) -> Flight:
    """One rank's record.

    Raises:
        BadInput: it is none.
    """
    where = os.fspath(path)
    table = parse_json(read_text(path, where=where, largest=LARGEST_BYTES), where)
    return validate(Flight, table, where)


def explain(folder: str, flights: Mapping[int, Flight]) -> Explained:
    """Which rank stopped first, in which collective, and who waits for it."""
    world = next(iter(flights.values())).world
    stands = {rank: _stand(rank, flights) for rank in range(world)}
    awaited = {rank for stand in stands.values() for rank in stand.waits_for}
    first = [rank for rank, one in stands.items() if not one.waits_for and (rank in awaited or one.flight is None)]
    circle = () if first else _circle(stands)
    if not first and not circle:
        failed = [one.rank for one in flights.values() if one.cause == "error"]
        first = sorted(failed, key=lambda rank: flights[rank].time_s)[:1]
    return Explained(
        folder=folder,
        world=world,
        stands=tuple(stands.values()),
        first=tuple(sorted(first, key=lambda rank: (stands[rank].since_s, rank))),
        circle=circle,
        mismatch=_mismatch(flights.values()),
    )


def _stand(rank: int, flights: Mapping[int, Flight]) -> Stand:
    own = flights.get(rank)
    at = None if own is None else own.stands_at
    if own is None or at is None:
        return Stand(rank=rank, flight=own)
    return Stand(rank=rank, flight=own, at=at, waits_for=tuple(_absent(own, at, flights)))


def _absent(own: Flight, at: Entry, flights: Mapping[int, Flight]) -> Iterator[int]:
    """Ranks that have not come to what one waits for."""
    if at.peer is not None:
        other = flights.get(at.peer)
        answer = (MESSAGES.get(at.kind), at.of, at.step, own.rank)
        if other is None or all((e.kind, e.of, e.step, e.peer) != answer for e in other.entries):
            yield at.peer
        return
    for rank in own.groups.get(at.process_group, ()):
        other = flights.get(rank)
        if rank != own.rank and (other is None or other.issued.get(at.process_group, 0) < at.collective_seq_id):
            yield rank


def _circle(stands: Mapping[int, Stand]) -> tuple[int, ...]:
    """Ranks each of which waits for the next, the last for the first; none where somebody waits for nobody."""
    rank = next((rank for rank, stand in stands.items() if stand.waits_for), None)
    seen: list[int] = []
    while rank is not None and rank not in seen:
        seen.append(rank)
        rank = next((one for one in stands[rank].waits_for if one in stands), None)
    return () if rank is None else tuple(seen[seen.index(rank) :])


def _mismatch(flights: Iterable[Flight]) -> Mismatch | None:
    """The earliest collective that two ranks of a group issued differently."""
    firsts: dict[tuple[object, ...], tuple[int, Entry]] = {}
    found: list[tuple[float, Mismatch]] = []
    for flight in flights:
        for entry in flight.entries:
            if not entry.process_group:
                continue
            group = tuple(flight.groups.get(entry.process_group, ()))
            rank, other = firsts.setdefault(
                (group, entry.process_group, entry.collective_seq_id), (flight.rank, entry)
            )
            if _signature(entry) != _signature(other):
                one = Mismatch(ranks=(rank, flight.rank), entries=(other, entry))
                found.append((min(other.time_created_s, entry.time_created_s), one))
    return min(found, key=lambda pair: pair[0], default=(0.0, None))[1]


def _signature(entry: Entry) -> tuple[str, int]:
    return entry.kind, 0 if entry.kind == UNEVEN else entry.size_bytes
