"""Where the parts of a network stand: racks in rows, and how long the cables between them are.

Accelerators fill racks in rank order, as many as the power of a rack allows, racks fill rows, and rows columns beside
each other.  Switches stand in the rack of the accelerators below them, in network racks in the middle of their row, or
in rows of network racks in the middle of the room.  A cable runs up to the tray above the racks, along rows and across
them, and down again.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from weft.documents import parse_toml, validate
from weft.errors import BadInput, UnknownName
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.files import read_text
from weft.units import counted

Place = Literal["rack", "row", "room"]
ROLES = ("leaf", "spine", "core", "rail", "rail-spine", "rail-core", "router", "switch", "scale-up")
"""Roles that a floor may name though a fabric has none of them."""
MAX_FILE_BYTES = 100_000
_Positive = Annotated[float, Field(ge=1e-3, le=1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A floor plan, and what energy costs there.

    Lengths in meters, powers in kilowatts.  ``rows`` stand one behind the other before the next begin beside them; by
    default the room is as near to a square as can be.  ``rise_m`` is from the lowest unit of a rack to the tray above.
    ``switches`` says where those of a role stand: in the "rack" of the accelerators below, in their "row", or in the
    middle of the "room"; by default switches above accelerators stand in the row, all others in the room.  ``media``
    are the names of those that may be used, in order; all by default.
    """

    name: str
    racks_per_row: int
    rack_pitch_m: float
    row_pitch_m: float
    rise_m: float
    units_per_rack: int
    kw_per_rack: float
    kw_per_accelerator: float
    pue: float
    usd_per_kwh: float
    years: float
    source: str = ""
    rows: int | None = None
    switches: Mapping[str, Place] = field(default_factory=dict)
    media: tuple[str, ...] = ()

    def accelerators_per_rack(self, domain: int) -> int:
        """As many as a rack can power: whole domains of that size, or an even part of one.

        Raises:
            BadInput: a rack cannot power one accelerator.
        """
        most = int(self.kw_per_rack / self.kw_per_accelerator + 1e-9)
        if most < 1:
            raise BadInput(
                f"a rack of {self.kw_per_rack:g} kW cannot power an accelerator of {self.kw_per_accelerator:g} kW",
                where=f"{self.name}: kw_per_rack",
                remedy="give racks more, or correct kw_per_accelerator",
            )
        return most // domain * domain if most >= domain else -(-domain // -(-domain // most))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """Where nodes stand: the rack of each, and every rack's row, place in the row, place in the room and power.

    Racks ``0 .. servers-1`` hold accelerators, the rest switches alone.  Scale-up switches stand with their domain.
    """

    floor: Floor
    servers: int
    rack: Ints
    row: Ints
    slot: Ints
    x_m: Floats
    y_m: Floats
    kw: Floats

    def length_m(self, a: Ints, b: Ints) -> Floats:
        """Meters of a cable between nodes: along rows and across, and up and down at both ends."""
        first, second = self.rack[a], self.rack[b]
        along = np.abs(self.x_m[first] - self.x_m[second])
        across = np.abs(self.y_m[first] - self.y_m[second])
        ends = np.where(first == second, 1, 2) * self.floor.rise_m
        return np.asarray(along + across + ends, dtype=np.float64)


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    name: str | None = Field(None, min_length=1, max_length=100)
    rows: int | None = Field(None, ge=1, le=1_000_000)
    racks_per_row: int | None = Field(None, ge=1, le=10_000)
    rack_pitch_m: _Positive | None = None
    row_pitch_m: _Positive | None = None
    rise_m: _Positive | None = None
    units_per_rack: int | None = Field(None, ge=1, le=1000)
    kw_per_rack: _Positive | None = None
    kw_per_accelerator: _Positive | None = None
    pue: float | None = Field(None, ge=1, le=100)
    usd_per_kwh: float | None = Field(None, ge=0, le=1000)
    years: _Positive | None = None
    source: str | None = Field(None, max_length=2000)
    switches: dict[str, Place] | None = Field(None, max_length=1000)
    media: list[str] | None = Field(None, min_length=1, max_length=100)


def default_floor(domain: int) -> Floor:
    """The plan that Weft ships for scale-up domains of that size."""
    for name, table in _tables().items():
        if domain <= table["up_to_domain"]:
            return Floor(name=name, **{key: value for key, value in table.items() if key != "up_to_domain"})
    raise BadInput(f"domains of {domain:,} are too large", where="floor")


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("weft.fabric").joinpath("data", "floors.toml").read_text(encoding="utf-8")
    return parse_toml(text, "floors.toml")


def read_floor(path: str | os.PathLike[str], domain: int) -> Floor:
    """The floor plan of a TOML file; fields that it leaves out are those of ``default_floor``.

    Raises:
        BadInput: the file cannot be read, or a field is unknown or out of range.
    """
    where = os.fspath(path)
    return floor_from_toml(read_text(path, where=where, largest=MAX_FILE_BYTES), domain, where=where)


def floor_from_toml(text: str, domain: int, *, where: str = "floor") -> Floor:
    """The floor plan of a TOML text, as ``read_floor``."""
    given = validate(_Fields, parse_toml(text, where), where).model_dump(exclude_none=True)
    if not given:
        raise BadInput("says nothing of a floor", where=where, remedy="set a field, or leave --floor out")
    base = default_floor(domain)
    if "media" in given:
        given["media"] = tuple(given["media"])
    rest = f"{where}; what it leaves out is {base.name}: {base.source}"
    return Floor(**asdict(base) | {"name": where, "source": rest} | given)


def stand(fabric: Fabric, floor: Floor, units: Ints, switch_kw: Floats) -> Standing:
    """Put a fabric on a floor.

    Args:
        units: rack units of each node; only those of switches count.
        switch_kw: kilowatts of each node; only those of switches count.

    Raises:
        BadInput: the floor names a role that the fabric does not have, or a rack cannot hold a switch.
    """
    policy = _policies(fabric, floor)
    hosts = fabric.accelerators
    rack = np.full(fabric.nodes, -1, dtype=np.int64)
    rack[:hosts] = _server_racks(fabric, floor)
    servers = int(rack[:hosts].max()) + 1
    per_row = floor.racks_per_row
    row, slot = [r // per_row for r in range(servers)], [r % per_row for r in range(servers)]
    home = _homes(fabric, rack[:hosts])
    beside = np.flatnonzero(policy == "row")
    beside = beside[np.argsort(home[beside] // per_row, kind="stable")]
    first = np.searchsorted(home[beside] // per_row, np.arange(-(-servers // per_row) + 1))
    inside = policy == "rack"
    rack[inside] = home[inside]
    rows = -(-servers // per_row)
    # Network racks go into the middle of a row: racks behind them make room.
    half = [min(per_row, servers - r * per_row) // 2 for r in range(rows)]
    for r in range(rows):
        groups = _fill(beside[first[r] : first[r + 1]], units, switch_kw, floor, fabric)
        for s in range(r * per_row, min(servers, (r + 1) * per_row)):
            slot[s] += len(groups) if slot[s] >= half[r] else 0
        for number, group in enumerate(groups):
            rack[group] = len(row)
            row.append(r)
            slot.append(half[r] + number)
    groups = _fill(np.flatnonzero(policy == "room"), units, switch_kw, floor, fabric)
    more = -(-len(groups) // per_row)
    deep, wide_m = _columns(floor, rows + more, max(slot) + 1)
    middle = min(rows, (rows + more - 1) // deep // 2 * deep + max(0, min(deep, rows + more) - more) // 2)
    row = [r + more if r >= middle else r for r in row]
    for number, group in enumerate(groups):
        rack[group] = len(row)
        row.append(middle + number // per_row)
        slot.append(number % per_row)
    servers_kw = np.bincount(rack[:hosts], minlength=len(row)) * floor.kw_per_accelerator
    kw = np.bincount(rack[hosts:], switch_kw[hosts:], len(row)) + servers_kw
    column, behind = np.divmod(np.array(row, dtype=np.int64), deep)
    return Standing(
        floor=floor,
        servers=servers,
        rack=rack,
        row=np.array(row, dtype=np.int64),
        slot=np.array(slot, dtype=np.int64),
        x_m=column * wide_m + np.array(slot) * floor.rack_pitch_m,
        y_m=behind * floor.row_pitch_m,
        kw=np.asarray(kw, dtype=np.float64),
    )


def _columns(floor: Floor, rows: int, racks: int) -> tuple[int, float]:
    """Rows of a column, and meters from a column to the next: the longest row and a gangway as wide as a row."""
    wide_m = racks * floor.rack_pitch_m + floor.row_pitch_m
    return floor.rows or max(1, math.ceil(math.sqrt(rows * wide_m / floor.row_pitch_m))), wide_m


def _policies(fabric: Fabric, floor: Floor) -> np.ndarray:
    """Where each node stands by its role; "" for accelerators, whose scale-up switches stand with them."""
    for role in floor.switches:
        if role not in ROLES and role not in fabric.roles:
            raise UnknownName("role of switches", role, ROLES, where=f"{floor.name}: switches")
    first = fabric.target[(fabric.source < fabric.accelerators) & (fabric.tier > SCALE_UP)]
    near = {fabric.roles[int(one)] for one in np.unique(fabric.role[first])}
    usual = {role: "row" if role in near else "room" for role in fabric.roles} | {"scale-up": "rack"}
    by_role = np.array([(usual | dict(floor.switches))[role] for role in fabric.roles])
    found = by_role[fabric.role]
    found[: fabric.accelerators] = ""
    return found


def _server_racks(fabric: Fabric, floor: Floor) -> Ints:
    """The rack of each accelerator: domains in order, none split over more racks than it needs."""
    _, domain = np.unique(fabric.domain, return_inverse=True)
    sizes = np.bincount(domain)
    per_rack = floor.accelerators_per_rack(fabric.largest_domain)
    racks_each = np.maximum(1, -(-sizes // per_rack))
    together = max(1, per_rack // fabric.largest_domain)
    if int(racks_each.max()) == 1:
        return np.asarray(domain // together, dtype=np.int64)
    order = np.argsort(domain, kind="stable")
    within = np.empty(len(domain), dtype=np.int64)
    within[order] = np.arange(len(domain)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray((np.cumsum(racks_each) - racks_each)[domain] + within // per_rack, dtype=np.int64)


def _homes(fabric: Fabric, server_rack: Ints) -> Ints:
    """The rack in the middle of the accelerators that hang from a switch, at any number of links."""
    place = np.full(fabric.nodes, np.nan)
    place[: fabric.accelerators] = server_rack
    while np.isnan(place).any():
        known = ~np.isnan(place[fabric.source]) & np.isnan(place[fabric.target])
        into = fabric.target[known]
        if not len(into):
            break
        total = np.bincount(into, place[fabric.source[known]], fabric.nodes)
        count = np.bincount(into, minlength=fabric.nodes)
        place = np.where(count > 0, total / np.maximum(count, 1), place)
    return np.asarray(np.nan_to_num(place), dtype=np.int64)


def _fill(members: Ints, units: Ints, switch_kw: Floats, floor: Floor, fabric: Fabric) -> list[Ints]:
    """Switches in order into as few racks as their height and power allow."""
    groups: list[Ints] = []
    begin, height, power = 0, 0, 0.0
    for number, node in enumerate(members.tolist()):
        tall, hot = int(units[node]), float(switch_kw[node])
        if tall > floor.units_per_rack or hot > floor.kw_per_rack:
            raise BadInput(
                f"{fabric.names[node]} takes {counted(tall, 'unit')} and {hot:.1f} kW, a rack has"
                f" {floor.units_per_rack} and {floor.kw_per_rack:g} kW",
                where=f"{floor.name}: units_per_rack, kw_per_rack",
                remedy="give racks more, or choose smaller switches",
            )
        if height + tall > floor.units_per_rack or power + hot > floor.kw_per_rack:
            groups.append(members[begin:number])
            begin, height, power = number, 0, 0.0
        height, power = height + tall, power + hot
    return [*groups, members[begin:]] if len(members) else groups
