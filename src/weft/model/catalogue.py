"""Models by name, with the recipe that their publisher used where it is known.

The data lie in ``data/*.json``, one file per family: configurations in Hugging Face terms, published
parameter counts, recipes and sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from weft.errors import UnknownName
from weft.model.huggingface import read_config
from weft.model.job import Recipe
from weft.model.spec import Model

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model of the catalogue.

    ``recipe`` is None where none was published.  ``published_parameters`` is the publisher's exact count
    (None where only a rounded one exists).  ``source`` says where shape and recipe come from; ``stack`` and
    ``space`` are those of a ``Job``.
    """

    model: Model
    recipe: Recipe | None
    source: str
    published_parameters: int | None = None
    stack: str | None = None
    space: str | None = None


def names() -> tuple[str, ...]:
    """All canonical names, sorted."""
    return tuple(sorted(_records()))


def load(name: str) -> ModelSource:
    """The entry of a name or alias; case, spaces, dashes and an organisation's prefix do not matter.

    Raises:
        UnknownName: no such model (suggests near names).
    """
    canonical = _index().get(_key(name))
    if canonical is None:
        raise UnknownName("model", name[:80], names(), listed="weft info models")
    record = _records()[canonical]
    recipe = record["recipe"]
    return ModelSource(
        model=read_config(record["config"], name=canonical, where=f"catalogue: {canonical}"),
        recipe=Recipe(**recipe) if recipe else None,
        source=record["source"],
        published_parameters=record["parameters"],
        stack=record["stack"],
        space=record["space"],
    )


def configuration(model: Model) -> dict[str, Any] | None:
    """The configuration, in Hugging Face terms, of a model that is the catalogue's; None of any other."""
    record = _records().get(model.name)
    return dict(record["config"]) if record is not None and load(model.name).model == model else None


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.rpartition("/")[2].lower())


@cache
def _records() -> Mapping[str, Mapping[str, Any]]:
    """The models of all files; in each, shared fields are written once, beside ``models``."""
    records = {}
    for path in sorted(_DATA.glob("*.json")):
        shared = json.loads(path.read_text(encoding="utf-8"))
        for name, entry in shared["models"].items():
            records[name] = {
                "config": shared.get("config", {}) | entry.get("config", {}),
                "recipe": entry.get("recipe", shared.get("recipe")),
                "source": entry.get("source", shared["source"]),
                "parameters": entry.get("parameters"),
                "aliases": entry.get("aliases", []),
                **{field: entry.get(field, shared.get(field)) for field in ("stack", "space")},
            }
    return records


@cache
def _index() -> Mapping[str, str]:
    """Canonical names under the keys of all names and aliases."""
    records = _records()
    return {_key(alias): name for name, record in records.items() for alias in (name, *record["aliases"])}
