"""Fabrics in any format that Weft knows, by content; and the formats that it writes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName
from weft.fabric.files import SCHEMA, fabric_from_json, fabric_from_toml, fabric_to_json, fabric_to_toml
from weft.fabric.spec import Fabric
from weft.files import read_text
from weft.interop.fabrics import containerlab, graph_files, ibnetdiscover, lldp, nccl_topology, netbox, slurm_topology

FORMATS = ("json", "toml", "node-link", "graphml", "nccl", "ibnetdiscover", "slurm", "lldp", "netbox", "containerlab")
WRITERS = {
    "json": fabric_to_json,
    "toml": fabric_to_toml,
    "node-link": graph_files.write_node_link,
    "graphml": graph_files.write_graphml,
    "slurm": slurm_topology.write,
    "containerlab": containerlab.write,
}

_WITHOUT_SPEEDS = {
    "node-link": graph_files.read_node_link,
    "graphml": graph_files.read_graphml,
    "containerlab": containerlab.read,
}
_WITHOUT_ROLES = {"lldp": lldp.read, "netbox": netbox.read}


def read_fabric(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    capacity_Bps: float | None = None,
    hosts: Sequence[str] = (),
    host_map: Mapping[int, str] | None = None,
    exclude: Sequence[str] = (),
) -> Fabric:
    """The fabric of a file.

    Args:
        kind: one of ``FORMATS``; what the content looks like, by default.
        capacity_Bps: of links without one, bytes/s per direction, where the format may leave it out.
        hosts: patterns of names of hosts, for LLDP and NetBox where they do not tell.
        host_map: hosts by GUIDs of adapters, for ibnetdiscover (``ibnetdiscover.read_host_map``).
        exclude: patterns of names of adapters that are no accelerator's, for ibnetdiscover.

    Raises:
        BadInput: the file cannot be read, or is in none of the formats, or in another than ibnetdiscover's with
            ``host_map`` or ``exclude``.
    """
    where = os.fspath(path)
    return fabric_of(
        read_text(path, where=where),
        where=where,
        kind=kind,
        capacity_Bps=capacity_Bps,
        hosts=hosts,
        host_map=host_map,
        exclude=exclude,
    )


def fabric_of(
    text: str,
    *,
    where: str,
    kind: str | None = None,
    capacity_Bps: float | None = None,
    hosts: Sequence[str] = (),
    host_map: Mapping[int, str] | None = None,
    exclude: Sequence[str] = (),
) -> Fabric:
    """The fabric of a text, as ``read_fabric``; ``where`` names it in messages."""
    kind = kind or _kind(text, where)
    if kind not in FORMATS:
        raise UnknownName("format of fabrics", kind, FORMATS)
    if kind == "ibnetdiscover":
        return ibnetdiscover.read(text, where=where, host_map=host_map, exclude=exclude)
    if host_map or exclude:
        problem = f"has no adapters with GUIDs: it is {kind}"
        raise BadInput(problem, where=where, remedy="drop --host-map and --exclude")
    if kind == "json":
        return fabric_from_json(text, where=where)
    if kind == "toml":
        return fabric_from_toml(text, where=where)
    if kind in _WITHOUT_SPEEDS:
        return _WITHOUT_SPEEDS[kind](text, where=where, capacity_Bps=capacity_Bps)
    if kind in _WITHOUT_ROLES:
        return _WITHOUT_ROLES[kind](text, where=where, capacity_Bps=capacity_Bps, hosts=hosts)
    return nccl_topology.read(text, where=where) if kind == "nccl" else slurm_topology.read(text, where=where)


def write_fabric(fabric: Fabric, kind: str = "json") -> str:
    """The fabric as text in a format: json, toml, node-link, graphml, slurm or containerlab.

    Raises:
        UnknownName: another format.
        Unsupported: the format cannot hold the fabric.
    """
    if kind not in WRITERS:
        raise UnknownName("format to write fabrics in", kind, WRITERS)
    return WRITERS[kind](fabric)


def _kind_of_object(table: dict[str, object]) -> str:
    if "schema" in table:
        return "json"
    if "cables" in table or "results" in table:
        return "netbox"
    nodes = list(table.values())
    if nodes and all(isinstance(node, dict) and "lldp" in node for node in nodes):
        return "lldp"
    return "node-link"


def _kind(text: str, where: str) -> str:
    start = text.lstrip()
    if start.startswith("{"):
        return _kind_of_object(parse_json(text, where))
    if re.match(r"\[\s*[{\]]", start):
        return "netbox"
    if start.startswith("<"):
        return "graphml" if "<graphml" in text[:10_000] else "nccl"
    if re.search(r'^(Switch|Ca|Rt)[ \t]+\d+[ \t]+"[SHR]-', text, re.MULTILINE):
        return "ibnetdiscover"
    if re.search(r"^topology[ \t]*+:[ \t]*+(#.*)?$", text, re.MULTILINE):
        return "containerlab"
    if re.search(r"^[ \t]*+(-?[ \t]*topology[ \t]*:|(Switch|Block)Name[ \t]*=)", text, re.MULTILINE | re.IGNORECASE):
        return "slurm"
    if re.search(r"^[ \t]*+schema[ \t]*=", text, re.MULTILINE):
        return "toml"
    raise BadInput(
        "is in no format of fabrics that Weft reads",
        where=where,
        remedy=f'use {", ".join(FORMATS)}; our own begins with schema = "{SCHEMA}"',
    )
