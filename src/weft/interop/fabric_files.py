"""Files of fabrics: which of the formats a content looks like, and what is read of it.

Formats that name ports are read as a wiring, whose fabric follows; the others as a fabric.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.cluster.spec import Cluster
from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.files import SCHEMA
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, fabric_of, wiring_of, wiring_of_fabric
from weft.files import LARGEST_FILE_BYTES, read_text
from weft.interop import cabling, lldp
from weft.interop.formats import Format, formats_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFileHints:
    """What a file may leave out, and where it is.

    Attributes:
        capacity_Bps: of links without one, bytes/s per direction.
        hosts: patterns of names of hosts, where the file does not tell.
        host_map: hosts by GUIDs of adapters, for InfiniBand (``cabling.read_host_map``).
        exclude: patterns of names of adapters that are not accelerators', for InfiniBand.
        scale_up_Bps: bytes/s per accelerator and direction inside a host, where the format tells of cables only; joins
            the accelerators of a host by a scale-up switch.
        cluster, oversubscription: see ``slurm_topology.read``.
    """

    where: str
    capacity_Bps: float | None = None
    hosts: Sequence[str] = ()
    host_map: Mapping[int, str] | None = None
    exclude: Sequence[str] = ()
    scale_up_Bps: float | None = None
    cluster: Cluster | None = None
    oversubscription: Sequence[float] = ()


_HINTS = {
    "ibnetdiscover": ("host_map", "exclude"),
    "lldp": ("hosts",),
    "p2p": ("hosts",),
    "slurm": ("cluster", "oversubscription"),
}
"""The hints that the reader of a format takes; of ibnetdiscover's, the one of fabrics takes ``scale_up_Bps``, too."""
READABLE = ("json", "lldp", "nccl", "ibnetdiscover", "p2p", "slurm", "toml")
"""The formats by name, in the order in which the look of a text is tried."""
_FABRICS, _WIRINGS = formats_of("fabric"), formats_of("wiring")
_LINES = {
    "ibnetdiscover": r'^(Switch|Ca|Rt)[ \t]*+\d++[ \t]*+"[SHR]-',
    "slurm": r"^[ \t]*+(-?[ \t]*topology[ \t]*:|(Switch|Block)Name[ \t]*=)",
    "toml": r"^[ \t]*+schema[ \t]*=",
}
"""A line that texts of a format have."""
MOST_FILES = 100_000


def read_fabric(path: str | os.PathLike[str], **hints: Any) -> Fabric:
    """The fabric of a file, or of a folder whose files tell of cables.

    Args:
        hints: what the file leaves out, as fields of ``FabricFileHints``.
    """
    given = FabricFileHints(where=os.fspath(path), **hints)
    if os.path.isdir(path):
        wiring = _of_folder(given)
    else:
        text = _text(given)
        kind = _kind(text, given)
        if kind in _FABRICS:
            fabric: Fabric = _read(_FABRICS[kind], text, given)
            return fabric
        wiring = _read(_WIRINGS[kind], text, given)
    return fabric_of(wiring, where=given.where, capacity_Bps=given.capacity_Bps, scale_up_Bps=given.scale_up_Bps)


def read_wiring(hints: FabricFileHints) -> tuple[Wiring, Fabric | None]:
    """The cables of a file or folder; with its fabric, where the format says more of it than cables do."""
    if os.path.isdir(hints.where):
        return _of_folder(hints), None
    text = _text(hints)
    kind = _kind(text, hints)
    if kind in _WIRINGS:
        return _read(_WIRINGS[kind], text, hints), None
    fabric = _read(_FABRICS[kind], text, hints)
    return wiring_of_fabric(fabric), fabric


def _read(form: Format, text: str, hints: FabricFileHints) -> Any:
    names = _HINTS.get(form.name, ()) + (("scale_up_Bps",) if form is _FABRICS["ibnetdiscover"] else ())
    return form.read(text, where=hints.where, **{name: getattr(hints, name) for name in names})


def _of_folder(hints: FabricFileHints) -> Wiring:
    """The cables of all files of a folder: a plan in parts, and what every node hears (LLDP), by names of files."""
    parts: list[Wiring] = []
    heard: dict[str, Any] = {}
    for path in _files(hints.where):
        local = replace(hints, where=os.fspath(path))
        text = _text(local)
        kind = _kind(text, local)
        if kind == "lldp":
            table = parse_json(text, local.where)
            heard |= {lldp.node_of(path.name): table} if "lldp" in table else table
        elif kind not in _WIRINGS:
            raise BadInput("tells of no ports", where=local.where, remedy="leave files of cables in the folder")
        else:
            parts.append(_read(_WIRINGS[kind], text, local))
    if heard:
        parts.append(lldp.read_wiring(json.dumps(heard), where=hints.where, hosts=hints.hosts))
    cables: dict[object, PortCable] = {}
    roles: dict[str, bool] = {}
    for part in parts:
        roles |= {device: device in part.hosts for device in part.devices if device in part.hosts or not part.unknown}
        for cable in part.cables:
            cables.setdefault(frozenset(cable.ends) if cable.port and cable.other_port else len(cables), cable)
    return wiring_of("cables", list(cables.values()), told=roles, hosts=hints.hosts, where=hints.where)


def _files(folder: str) -> list[Path]:
    """The files of a folder in order, hidden ones left out."""
    try:
        paths = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
        bytes_ = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=folder) from None
    if not paths or len(paths) > MOST_FILES or bytes_ > LARGEST_FILE_BYTES:
        problem = f"holds {len(paths):,} files of {bytes_ / 1e6:,.0f} MB"
        raise BadInput(
            problem, where=folder, remedy=f"give 1 to {MOST_FILES:,} files of {LARGEST_FILE_BYTES // 10**6} MB"
        )
    return paths


def _text(hints: FabricFileHints) -> str:
    return read_text(hints.where, where=hints.where, coloured=True)


def _kind(text: str, hints: FabricFileHints) -> str:
    """The format that a text looks like."""
    start = text.lstrip()[:1]
    is_json = start == "{" or re.match(r"\s*+\[\s*+[\[{\]]", text) is not None
    table = parse_json(text, hints.where) if is_json else None
    table = table if isinstance(table, dict) else {}
    nodes = [isinstance(node, dict) and "lldp" in node for node in table.values()]
    if "schema" in table:
        kind = "json"
    elif "lldp" in table or (nodes and all(nodes)):
        kind = "lldp"
    elif start == "<":
        kind = "nccl"
    else:
        lines = {} if start == "{" else _LINES
        looks = [name for name, line in lines.items() if re.search(line, text, re.MULTILINE | re.IGNORECASE)]
        looks += ["p2p"] if cabling.looks(text) else []
        kind = min(looks, key=READABLE.index, default="")
    if not kind:
        remedy = f'use {", ".join(READABLE)}; our own begins with schema = "{SCHEMA}"'
        raise BadInput("is in no format of fabrics that Weft reads", where=hints.where, remedy=remedy)
    if (hints.host_map or hints.exclude) and kind != "ibnetdiscover":
        problem = f"has no adapters with GUIDs: it is {kind}"
        raise BadInput(problem, where=hints.where, remedy="drop --host-map and --exclude")
    return kind
