"""Typed reading of the keys of a foreign model configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, Literal

from weft.errors import BadInput, Unsupported
from weft.model.spec import Model, Rope

LARGEST = 10**9
"""Upper limit of every shape (features, rows, experts)."""

MOST_LAYERS = 10_000

STAND_IN = "--as dense-equivalent takes every block as full attention and a feed-forward part of its widths"
"""The way round what is not modelled (``weft.model._families``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The keys of one configuration; ``null`` counts as absent.

    ``kind`` is the model type, ``where`` the file: both appear in messages.
    """

    data: Mapping[str, object]
    kind: str
    where: str

    def bad(self, name: str, problem: str, remedy: str | None = None) -> BadInput:
        """A ``BadInput`` about the key ``name``."""
        return BadInput(problem, where=f"{self.where}: {name}", remedy=remedy)

    def unsupported(self, name: str) -> Unsupported:
        """An ``Unsupported`` about the value of the key ``name``."""
        value = reprlib.repr(self.data.get(name))
        return Unsupported(
            f"{self.kind} with {name} = {value} is not modelled",
            where=f"{self.where}: {name}",
            remedy=f"it changes shape or cost; remove it only if the model runs without it, or {STAND_IN}",
        )

    def missing(self, *names: str) -> BadInput:
        """A ``BadInput`` about a key that the model type needs, under one of ``names``."""
        return BadInput(
            f"{names[0]} is missing, and model type {self.kind!r} needs it",
            where=self.where,
            remedy=f"add {' or '.join(names)} to the configuration",
        )

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def find(self, *names: str) -> str | None:
        """The first of the (equivalent) names that is set."""
        return next((name for name in names if self.has(name)), None)

    def optional_integer(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """The whole number under the first name that is set, or None."""
        name = self.find(*names)
        if name is None:
            return None
        value = self.data[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(name, f"{reprlib.repr(value)} is not a whole number")
        if not least <= value <= most:
            raise self.bad(name, f"{reprlib.repr(value)} is outside {least} to {most}")
        return value

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Like ``optional_integer``, with a default; without one the key is required."""
        value = self.optional_integer(*names, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            raise self.missing(*names)
        return default

    def _typed(self, name: str, kind: type | UnionType, default: Any, problem: str) -> Any:
        value = self.data.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.bad(name, f"{reprlib.repr(value)} {problem}")
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._typed(name, bool, default, "is neither true nor false"))

    def word(self, name: str, default: str) -> str:
        return str(self._typed(name, str, default, "is not text"))

    def words(self, name: str, count: int) -> tuple[str, ...] | None:
        """A list of ``count`` words, or None when absent."""
        value = self._typed(name, list | tuple, None, "is not a list of words")
        if value is None:
            return None
        if not all(isinstance(item, str) for item in value):
            raise self.bad(name, f"{reprlib.repr(value)} is not a list of words")
        if len(value) != count:
            raise self.bad(name, f"{len(value)} entries for {count} layers")
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers >= 0; empty when absent."""
        value = self._typed(name, list | tuple, (), "is not a list")
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
            raise self.bad(name, f"{reprlib.repr(value)} holds something else than whole numbers")
        return tuple(value)

    def inner(self, name: str) -> Fields:
        """The fields of the mapping under ``name``; empty when absent."""
        return replace(self, data=self._typed(name, Mapping, {}, "is not a table"), where=f"{self.where}: {name}")

    def layers(self, *names: str) -> int:
        return self.integer(*(names or ("num_hidden_layers",)), most=MOST_LAYERS)

    def of_kind(self, wanted: str, otherwise: Iterable[bool]) -> list[bool]:
        """For each layer whether it has this attention, not the full one: from ``layer_types``, else from the
        family's pattern."""
        kinds = self.words("layer_types", self.layers())
        if kinds is None:
            return list(otherwise)
        if not set(kinds) <= {"full_attention", wanted}:
            raise self.unsupported("layer_types")
        return [kind == wanted for kind in kinds]

    def check_groups(self, heads: int, kv_heads: int) -> None:
        if heads % kv_heads:
            problem = f"{heads} query heads cannot share {kv_heads} key/value heads evenly"
            raise self.bad("num_key_value_heads", problem, "choose a divisor of num_attention_heads")

    def even_split(self, hidden: int, heads: int) -> int:
        """Features per head of a model that states no head size."""
        if hidden % heads:
            raise self.bad("num_attention_heads", f"hidden size {hidden} is not a multiple of {heads} heads")
        return hidden // heads

    def only(self, name: str, *allowed: object) -> None:
        """Refuse the key unless it is absent or one of ``allowed``.

        Raises:
            Unsupported: the value changes shape or cost.
        """
        if self.has(name) and not any(self.data[name] == value for value in allowed):
            raise self.unsupported(name)


_BASES = {"gemma3": 1e6, "gemma3_text": 1e6, "gpt_oss": 150_000.0, "mixtral": 1e6}
"""Defaults of transformers; 10,000 elsewhere."""
_SHARES = {"gpt_neox": 0.25, "nemotron": 0.5}
_SCALINGS: Mapping[str, Literal["none", "linear", "llama3", "yarn"]] = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def rope(fields: Fields, model: Model) -> Rope | None:
    """How positions rotate; None where they do not, or in a way that has no name here (dynamic, longrope).

    Raises:
        BadInput: a value that is not a number or out of range.
    """
    if not any(attention.rotary for attention in model.attentions):
        return None
    f = fields.inner("text_config") if fields.has("text_config") else fields
    scaled = f.inner("rope_parameters" if f.has("rope_parameters") else "rope_scaling")
    named = scaled.find("rope_type", "type")
    kind = str(scaled.data[named]) if named else "default"
    if kind not in _SCALINGS:
        return None

    def number(default: float, *names: str) -> float:
        """The positive number under a name: of the scaling's own table if it has the first."""
        table = scaled if scaled.has(names[0]) else f
        if (name := table.find(*names)) is None:
            return default
        value: Any = table.data[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e12:
            raise table.bad(name, f"{reprlib.repr(value)} is not a positive number")
        return float(value)

    base = number(_BASES.get(f.kind, 10_000.0), "rope_theta", "rotary_emb_base")
    share = number(_SHARES.get(f.kind, 1.0), "partial_rotary_factor", "rotary_pct", "rope_percent")
    stretched = _SCALINGS[kind] != "none" and scaled.has("factor")
    factor = number(1.0, "factor") if stretched else 1.0
    return Rope(base=base, share=share, scaling=_SCALINGS[kind], factor=factor)
