"""JSON Schemas of the files that Weft reads and of the documents that it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, get_args

from weft.errors import UnknownName

if TYPE_CHECKING:
    from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SHARED = "_shared"
"""The file of what several documents have: jobs, clusters, layouts, estimates, runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """Where the pydantic model of a file is; ``inner`` names the models of fields that are checked later."""

    title: str
    module: str
    model: str
    inner: dict[str, str] = field(default_factory=dict)


INPUTS = {
    "cluster": _Input(
        title="A cluster file (TOML)",
        module="weft.cluster.files",
        model="_ClusterFields",
        inner={"accelerator": "_AcceleratorFields"},
    ),
    "fabric": _Input(title="A fabric file (JSON or TOML)", module="weft.fabric.files", model="_FabricFields"),
    "failures": _Input(
        title="Failures and recovery (TOML)",
        module="weft.reliability.classes",
        model="_BookFields",
        inner={"classes": "_ClassFields"},
    ),
    "prices": _Input(title="Prices of network parts (TOML)", module="weft.fabric.cost", model="_PriceFields"),
    "site": _Input(title="A site and its jobs (TOML)", module="weft.arrangement.site", model="_SiteFields"),
    "study": _Input(title="A study (TOML)", module="weft.studies.study", model="_Study"),
}
"""Files that people write, whose schemas are made from the models that check them."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file that Weft reads or of a document that it writes.

    >>> import weft
    >>> weft.schema("plan")["properties"]["schema"]
    {'const': 'weft.plan/1'}

    Args:
        name: as ``weft info schemas`` lists them; also the whole ``schema`` of a document, as "weft.plan/1".

    Raises:
        UnknownName: there is no schema of this name.
    """
    short = re.sub(r"^weft\.([\w-]+)/\d+$", r"\1", name)
    if short in INPUTS:
        return _of_input(INPUTS[short])
    if short in _outputs():
        return _of_output(short)
    raise UnknownName("schema", name, tuple(names()), listed="weft info schemas")


def names() -> dict[str, str]:
    """The name of every schema and what it describes, sorted."""
    titles = {name: one.title for name, one in INPUTS.items()}
    return dict(sorted((titles | {name: _read(name)["title"] for name in _outputs()}).items()))


@cache
def _outputs() -> frozenset[str]:
    folder = resources.files("weft").joinpath("schemas")
    return frozenset(path.name.removesuffix(".json") for path in folder.iterdir()) - {_SHARED}


def _read(name: str) -> dict[str, Any]:
    text = resources.files("weft").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _of_output(name: str) -> dict[str, Any]:
    """The schema of a document, with the shared definitions that it needs."""
    own, shared = _read(name), _read(_SHARED)
    needed: set[str] = set()
    waiting = [own]
    while waiting:
        for one in _references(waiting.pop()):
            if one not in needed:
                needed.add(one)
                waiting.append(shared[one])
    return {"$schema": DIALECT} | own | ({"$defs": {one: shared[one] for one in sorted(needed)}} if needed else {})


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/$defs/")
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)


def _of_input(found: _Input) -> dict[str, Any]:
    """The schema of a file, from the model that checks it."""
    home = import_module(found.module)
    model: type[BaseModel] = getattr(home, found.model)
    whole = _of_model(model)
    defs: dict[str, Any] = whole.pop("$defs", {})
    for name, inner in found.inner.items():
        made = _of_model(getattr(home, inner))
        defs |= made.pop("$defs", {}) | {inner: made}
        where = whole["properties"][name]
        reference = {"$ref": f"#/$defs/{inner}"}
        if where.get("type") == "object":
            where["additionalProperties"] = reference
        else:
            where["anyOf"] = [{"type": "string"}, reference]
    text = json.dumps({"$schema": DIALECT} | whole | {"title": found.title} | ({"$defs": defs} if defs else {}))
    made = json.loads(text.replace("#/$defs/_", "#/$defs/"))
    if defs:
        made["$defs"] = {name.removeprefix("_"): made["$defs"][name] for name in sorted(defs)}
    return dict(made)


def _of_model(model: type[BaseModel]) -> dict[str, Any]:
    """A model's own schema, with all names of fields that have two."""
    from pydantic import AliasChoices

    made = model.model_json_schema(by_alias=True)
    kinds = {model.__name__: made} | made.get("$defs", {})
    for kind in {model, *_inner(model)}:
        table = kinds[kind.__name__]
        for info in kind.model_fields.values():
            if not isinstance(choices := info.validation_alias, AliasChoices):
                continue
            every = [str(choice) for choice in choices.choices]
            table["properties"] |= dict.fromkeys(every, table["properties"][every[0]])
            if every[0] in table.get("required", ()):
                table["required"].remove(every[0])
                table.setdefault("allOf", []).append({"anyOf": [{"required": [one]} for one in every]})
    return made


def _inner(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models in a model's fields."""
    from pydantic import BaseModel

    def within(annotation: Any) -> Iterator[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
            yield from _inner(annotation)
        for one in get_args(annotation):
            yield from within(one)

    for info in model.model_fields.values():
        yield from within(info.annotation)
