"""Every format of fabrics that Weft reads or writes: how its content looks, and who reads and writes it.

Formats that name ports are read as a wiring, whose fabric follows; the others as a fabric.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName
from weft.fabric.files import SCHEMA, fabric_from_json, fabric_from_toml, fabric_to_json, fabric_to_toml
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, fabric_of, wiring_of, wiring_of_fabric
from weft.files import LARGEST_FILE_BYTES, read_text
from weft.interop.fabrics import ibnetdiscover, lldp, nccl_topology, point_to_point, slurm_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFileHints:
    """What a file may leave out, and where it is.

    Attributes:
        capacity_Bps: of links without one, bytes/s per direction.
        hosts: patterns of names of hosts, where the file does not tell.
        host_map: hosts by GUIDs of adapters, for InfiniBand (``ibnetdiscover.read_host_map``).
        exclude: patterns of names of adapters that are no accelerator's, for InfiniBand.
        scale_up_Bps: bytes/s per accelerator and direction inside a host, where the format tells of cables only; joins
            the accelerators of a host by a scale-up switch.
    """

    where: str
    capacity_Bps: float | None = None
    hosts: Sequence[str] = ()
    host_map: Mapping[int, str] | None = None
    exclude: Sequence[str] = ()
    scale_up_Bps: float | None = None


class _Glance:
    """A text, and what it is as JSON where it is an object or a list."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.start = text.lstrip()[:1]

    @cached_property
    def json(self) -> Any:
        is_json = self.start == "{" or re.match(r"\s*+\[\s*+[\[{\]]", self.text) is not None
        return parse_json(self.text, self.where) if is_json else None

    @property
    def table(self) -> dict[str, Any]:
        return self.json if isinstance(self.json, dict) else {}

    def has_line(self, pattern: str) -> bool:
        return self.start not in ("{", "<") and re.search(pattern, self.text, re.MULTILINE | re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format; one of ``fabric`` and ``wiring`` reads it, both where ports have names that fabrics have not."""

    looks: Callable[[_Glance], bool]
    fabric: Callable[[str, FabricFileHints], Fabric] | None = None
    wiring: Callable[[str, FabricFileHints], Wiring] | None = None
    write: Callable[[Fabric], str] | None = None


def _wires(read: Callable[..., Wiring]) -> Callable[[str, FabricFileHints], Wiring]:
    return lambda text, asked: read(text, where=asked.where, hosts=asked.hosts)


def _links(read: Callable[..., Fabric]) -> Callable[[str, FabricFileHints], Fabric]:
    return lambda text, asked: read(text, where=asked.where, capacity_Bps=asked.capacity_Bps)


def _whole(read: Callable[..., Fabric]) -> Callable[[str, FabricFileHints], Fabric]:
    return lambda text, asked: read(text, where=asked.where)


def _ibnetdiscover(text: str, asked: FabricFileHints) -> Fabric:
    return ibnetdiscover.read(
        text, where=asked.where, host_map=asked.host_map, exclude=asked.exclude, scale_up_Bps=asked.scale_up_Bps
    )


def _ibnetdiscover_wiring(text: str, asked: FabricFileHints) -> Wiring:
    return ibnetdiscover.read_wiring(text, where=asked.where, host_map=asked.host_map, exclude=asked.exclude)


def _is_lldp(glance: _Glance) -> bool:
    nodes = [glance.table, *glance.table.values()]
    told = [isinstance(node, dict) and "lldp" in node for node in nodes]
    return told[0] or (len(told) > 1 and all(told[1:]))


FORMATS: dict[str, Format] = {
    "json": Format(looks=lambda g: "schema" in g.table, fabric=_whole(fabric_from_json), write=fabric_to_json),
    "lldp": Format(looks=_is_lldp, wiring=_wires(lldp.read_wiring)),
    "nccl": Format(looks=lambda g: g.start == "<", fabric=_whole(nccl_topology.read)),
    "ibnetdiscover": Format(
        looks=lambda g: g.has_line(r'^(Switch|Ca|Rt)[ \t]*+\d++[ \t]*+"[SHR]-'),
        fabric=_ibnetdiscover,
        wiring=_ibnetdiscover_wiring,
    ),
    "p2p": Format(
        looks=lambda g: point_to_point.looks(g.text),
        wiring=_wires(point_to_point.read_wiring),
        write=point_to_point.write,
    ),
    "slurm": Format(
        looks=lambda g: g.has_line(r"^[ \t]*+(-?[ \t]*topology[ \t]*:|(Switch|Block)Name[ \t]*=)|^blocks[ \t]*:"),
        fabric=_whole(slurm_topology.read),
        write=slurm_topology.write,
    ),
    "toml": Format(
        looks=lambda g: g.has_line(r"^[ \t]*+schema[ \t]*="), fabric=_whole(fabric_from_toml), write=fabric_to_toml
    ),
}
"""The formats by name; a text is in the first whose look it has."""
WRITERS = tuple(name for name, one in FORMATS.items() if one.write is not None)
_WITH_GUIDS = ("ibnetdiscover",)
MOST_FILES = 100_000


def read_fabric(path: str | os.PathLike[str], *, kind: str | None = None, **asked: Any) -> Fabric:
    """The fabric of a file, or of a folder whose files tell of cables.

    Args:
        kind: one of ``FORMATS``; what the content looks like, by default.
        asked: what the file leaves out, as fields of ``FabricFileHints``.

    Raises:
        BadInput: the file cannot be read, or is in none of the formats, or in another than ibnetdiscover's with
            ``host_map`` or ``exclude``.
    """
    found = FabricFileHints(where=os.fspath(path), **asked)
    if os.path.isdir(path):
        return _joined(_of_folder(found), found)
    return fabric_in(_text(found), found, kind)


def fabric_in(text: str, asked: FabricFileHints, kind: str | None = None) -> Fabric:
    """The fabric of a text, as ``read_fabric``."""
    form = _form(text, asked, kind)
    if form.fabric is not None:
        return form.fabric(text, asked)
    assert form.wiring is not None
    return _joined(form.wiring(text, asked), asked)


def _joined(wiring: Wiring, asked: FabricFileHints) -> Fabric:
    return fabric_of(wiring, where=asked.where, capacity_Bps=asked.capacity_Bps, scale_up_Bps=asked.scale_up_Bps)


def read_wiring(asked: FabricFileHints) -> tuple[Wiring, Fabric | None]:
    """The cables of a file or folder; with its fabric, where the format says more of it than cables do.

    Raises:
        BadInput: as ``read_fabric``.
    """
    if os.path.isdir(asked.where):
        return _of_folder(asked), None
    text = _text(asked)
    form = _form(text, asked, None)
    if form.wiring is not None:
        return form.wiring(text, asked), None
    assert form.fabric is not None
    fabric = form.fabric(text, asked)
    return wiring_of_fabric(fabric), fabric


def write_fabric(fabric: Fabric, kind: str = "json") -> str:
    """The fabric as text in one of the formats in ``WRITERS``.

    Raises:
        UnknownName: another format.
        Unsupported: the format cannot hold the fabric.
    """
    form = FORMATS.get(kind)
    if form is None or form.write is None:
        raise UnknownName("format to write fabrics in", kind, WRITERS)
    return form.write(fabric)


def _of_folder(asked: FabricFileHints) -> Wiring:
    """The cables of all files of a folder: a plan in parts, and what every node hears (LLDP), by names of files."""
    parts: list[Wiring] = []
    heard: dict[str, Any] = {}
    for path in _files(asked.where):
        here = replace(asked, where=os.fspath(path))
        text = _text(here)
        form = _form(text, here, None)
        if form is FORMATS["lldp"]:
            table = parse_json(text, here.where)
            heard |= {lldp.node_of(path.name): table} if "lldp" in table else table
        elif form.wiring is None:
            raise BadInput("tells of no ports", where=here.where, remedy="leave files of cables in the folder")
        else:
            parts.append(form.wiring(text, here))
    if heard:
        parts.append(lldp.read_wiring(json.dumps(heard), where=asked.where, hosts=asked.hosts))
    cables: dict[object, PortCable] = {}
    told: dict[str, bool] = {}
    for part in parts:
        told |= {device: device in part.hosts for device in part.devices if device in part.hosts or not part.unknown}
        for cable in part.cables:
            cables.setdefault(frozenset(cable.ends) if cable.port and cable.other_port else len(cables), cable)
    return wiring_of("cables", list(cables.values()), told=told, hosts=asked.hosts, where=asked.where)


def _files(folder: str) -> list[Path]:
    """The files of a folder in order, hidden ones left out."""
    try:
        paths = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
        held = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=folder) from None
    if not paths or len(paths) > MOST_FILES or held > LARGEST_FILE_BYTES:
        problem = f"holds {len(paths):,} files of {held / 1e6:,.0f} MB"
        raise BadInput(
            problem, where=folder, remedy=f"give 1 to {MOST_FILES:,} files of {LARGEST_FILE_BYTES // 10**6} MB"
        )
    return paths


def _text(asked: FabricFileHints) -> str:
    return read_text(asked.where, where=asked.where, coloured=True)


def _form(text: str, asked: FabricFileHints, kind: str | None) -> Format:
    kind = kind or _kind(_Glance(text, asked.where))
    if kind not in FORMATS:
        raise UnknownName("format of fabrics", kind, FORMATS)
    if (asked.host_map or asked.exclude) and kind not in _WITH_GUIDS:
        problem = f"has no adapters with GUIDs: it is {kind}"
        raise BadInput(problem, where=asked.where, remedy="drop --host-map and --exclude")
    return FORMATS[kind]


def _kind(glance: _Glance) -> str:
    for name, form in FORMATS.items():
        if form.looks(glance):
            return name
    raise BadInput(
        "is in no format of fabrics that Weft reads",
        where=glance.where,
        remedy=f'use {", ".join(FORMATS)}; our own begins with schema = "{SCHEMA}"',
    )
