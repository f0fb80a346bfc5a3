"""Fabrics in any format that Weft knows, by content; and the formats that it writes."""

from __future__ import annotations

import os
import re

from weft.errors import BadInput, UnknownName
from weft.fabric.edge import parse_json, read_text
from weft.fabric.files import SCHEMA, fabric_from_json, fabric_from_toml, fabric_to_json, fabric_to_toml
from weft.fabric.spec import Fabric
from weft.interop import graph_files, ibnetdiscover, nccl_topology, slurm_export, slurm_topology

FORMATS = ("json", "toml", "node-link", "graphml", "nccl", "ibnetdiscover", "slurm")
WRITERS = {
    "json": fabric_to_json,
    "toml": fabric_to_toml,
    "node-link": graph_files.write_node_link,
    "graphml": graph_files.write_graphml,
    "slurm": slurm_export.write,
}


def read_fabric(path: str | os.PathLike[str], *, kind: str | None = None) -> Fabric:
    """The fabric of a file.

    Args:
        kind: one of ``FORMATS``; what the content looks like, by default.

    Raises:
        BadInput: the file cannot be read, or is in none of the formats.
    """
    where = os.fspath(path)
    text = read_text(path, where=where)
    kind = kind or _kind(text, where)
    if kind not in FORMATS:
        raise UnknownName("format of fabrics", kind, FORMATS)
    if kind == "json":
        return fabric_from_json(text, where=where)
    if kind == "toml":
        return fabric_from_toml(text, where=where)
    if kind == "node-link":
        return graph_files.read_node_link(text, where=where)
    if kind == "graphml":
        return graph_files.read_graphml(text, where=where)
    if kind == "nccl":
        return nccl_topology.read(text, where=where)
    return ibnetdiscover.read(text, where=where) if kind == "ibnetdiscover" else _slurm(text, where)


def _slurm(text: str, where: str) -> Fabric:
    return slurm_topology.read(text, where=where)


def write_fabric(fabric: Fabric, kind: str = "json") -> str:
    """The fabric as text in a format: json, toml, node-link, graphml or slurm.

    Raises:
        UnknownName: another format.
        Unsupported: the format cannot hold the fabric.
    """
    if kind not in WRITERS:
        raise UnknownName("format to write fabrics in", kind, WRITERS)
    return WRITERS[kind](fabric)


def _kind(text: str, where: str) -> str:
    start = text.lstrip()
    if start.startswith("{"):
        table = parse_json(text, where)
        ours = isinstance(table, dict) and "schema" in table
        return "json" if ours else "node-link"
    if start.startswith("<"):
        return "graphml" if "<graphml" in text[:10_000] else "nccl"
    if re.search(r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-', text, re.MULTILINE):
        return "ibnetdiscover"
    if re.search(r"^\s*(-?\s*topology\s*:|(SwitchName|BlockName)\s*=)", text, re.MULTILINE | re.IGNORECASE):
        return "slurm"
    if re.search(r"^\s*schema\s*=", text, re.MULTILINE):
        return "toml"
    raise BadInput(
        "is in no format of fabrics that Weft reads",
        where=where,
        remedy=f'use {", ".join(FORMATS)}; our own begins with schema = "{SCHEMA}"',
    )
