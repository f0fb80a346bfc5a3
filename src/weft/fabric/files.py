"""Fabrics in our own JSON and TOML: every node and link, or the generator that builds them.

    schema = "weft.fabric/1"
    name = "two nodes"
    nodes = [{ name = "gpu0", role = "accelerator" }, { name = "gpu1", role = "accelerator" },
             { name = "leaf0", role = "leaf" }]
    links = [{ source = "gpu0", target = "leaf0", capacity = "400 Gb/s", latency = "1 us", cables = 1 },
             { source = "gpu1", target = "leaf0", capacity = "400 Gb/s" }]

A link stands for both directions unless ``both = false``; ``tier`` (0 inside a scale-up domain, 1, 2, ...
outwards), ``domain`` and ``rail`` may be left out.  Instead of nodes and links:

    generator = { kind = "rail-only", cluster = "dgx-h100-1024", radix = 64 }
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from weft.codec import Coded, Range, decode, encode
from weft.documents import parse_json, parse_toml
from weft.errors import BadInput
from weft.fabric.assemble import MOST_LINKS, MOST_NODES, Cable, Label, Node, assemble, parts_of_fabric
from weft.fabric.spec import Fabric

SCHEMA = "weft.fabric/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorEntry:
    """What builds the fabric of a file that lists no nodes."""

    kind: Label
    cluster: Label
    radix: Annotated[int, Range(2, 65536)] = 64
    oversubscription: Annotated[float, Range(1, 1000)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFile:
    """A fabric file."""

    schema: Literal["weft.fabric/1"]
    name: Label
    roles: Annotated[tuple[Label, ...], Range(0, 1000)] = ()
    nodes: Annotated[tuple[Node, ...], Range(0, MOST_NODES)] = ()
    links: Annotated[tuple[Cable, ...], Range(0, MOST_LINKS)] = ()
    generator: GeneratorEntry | None = None


def fabric_from_json(text: str, *, where: str = "fabric") -> Fabric:
    """The fabric of a JSON text."""
    return _fabric(parse_json(text, where), where)


def fabric_from_toml(text: str, *, where: str = "fabric") -> Fabric:
    """The fabric of a TOML text."""
    return _fabric(parse_toml(text, where), where)


def fabric_to_json(fabric: Fabric) -> str:
    """JSON that ``fabric_from_json`` turns into an equal fabric; one node or link a line."""
    head = json.dumps({"schema": SCHEMA, "name": fabric.name, "roles": list(fabric.roles)})[1:-1]
    every, cables = parts_of_fabric(fabric)
    nodes = ",\n  ".join(json.dumps(encode(node)) for node in every)
    links = ",\n  ".join(json.dumps(_link(cable)) for cable in cables)
    return f'{{{head},\n "nodes": [\n  {nodes}],\n "links": [\n  {links}]}}\n'


def _link(cable: Cable) -> dict[str, Any]:
    link: dict[str, Any] = {"source": cable.source, "target": cable.target, "capacity": cable.capacity_Bps}
    link |= {"latency": cable.latency_s, "cables": cable.cables, "tier": cable.tier}
    return link | ({} if cable.up else {"up": False}) | ({} if cable.both else {"both": False})


def _fabric(table: Any, where: str) -> Fabric:
    fields = decode(FabricFile, table, where)
    if fields.generator is not None:
        if fields.nodes or fields.links:
            raise BadInput("has a generator and nodes or links", where=where, remedy="keep one of the two")
        return _generated(fields.generator, where)
    nodes = [replace(node, place=f"nodes[{i}]") for i, node in enumerate(fields.nodes)]
    links = [replace(link, place=f"links[{i}]") for i, link in enumerate(fields.links)]
    return assemble(fields.name, nodes, links, where=where, roles=fields.roles)


WrittenFabric = Annotated[
    Fabric, Coded(lambda raw: _fabric(raw, ""), lambda fabric: json.loads(fabric_to_json(fabric)), FabricFile)
]
"""A fabric in a document."""


def _generated(fields: GeneratorEntry, where: str) -> Fabric:
    from weft.cluster.catalogue import load
    from weft.fabric.catalogue import for_cluster

    try:
        return for_cluster(
            fields.kind, load(fields.cluster), radix=fields.radix, oversubscription=fields.oversubscription
        )
    except BadInput as error:
        raise BadInput(str(error), where=f"{where}: generator") from None
