"""Jobs as plain dictionaries of JSON types: the whole model and its recipe, which read back equal.

A record is a table of its fields; attention and feed-forward, with alternatives, also name a ``kind``.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from weft.errors import BadInput, UnknownName
from weft.model.job import Job
from weft.model.spec import Attention, FeedForward, LatentAttention, MixtureOfExperts, Model

_KINDS: dict[type[Any], str] = {
    Attention: "heads",
    LatentAttention: "latent",
    FeedForward: "dense",
    MixtureOfExperts: "experts",
}
_LARGEST = 10**9
_MOST_LAYERS = 10_000
_LIMITS = {
    "count": (1, _MOST_LAYERS),
    "prediction_layers": (0, 100),
    "gradient_bytes": (1, 8),
    "norms": (0, 100),
    **dict.fromkeys(("extra_parameters", "positions", "rope_dim"), (0, _LARGEST)),
}
"""Least and largest value of whole numbers that are not simply positive."""
_LONGEST_TEXT = 2000


def job_to_dict(job: Job) -> dict[str, Any]:
    """Model, recipe and assumed values with JSON types; ``job_from_dict`` reads it back."""
    plain: dict[str, Any] = _plain(job)
    return plain


def job_from_dict(mapping: object, *, where: str = "job") -> Job:
    """The job of a dictionary; fields with a default may be left out.

    Raises:
        BadInput: a field is unknown, missing, of the wrong kind or out of range, or contradicts another.
    """
    job: Job = _record(Job, mapping, where)
    _check(job.model, f"{where}.model")
    return job


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    kind = _KINDS.get(type(value))
    table = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {"kind": kind} | table if kind else table


@cache
def _hints(record: Any) -> dict[str, Any]:
    return get_type_hints(record)


def _record(record: type[Any], mapping: object, where: str) -> Any:
    """A dataclass from a table of its fields."""
    table = _table(mapping, where)
    known = _hints(cast(Any, record))
    own_kind = _KINDS.get(record)
    for name in table:
        if name not in known and not (own_kind and name == "kind"):
            near = difflib.get_close_matches(str(name), known, n=2)
            remedy = f"did you mean {' or '.join(near)}?" if near else "remove it"
            raise BadInput(f"{reprlib.repr(name)} is not a known field", where=where, remedy=remedy)
    if own_kind and table.get("kind", own_kind) != own_kind:
        problem = f"{reprlib.repr(table['kind'])} is not {own_kind!r}"
        raise BadInput(problem, where=f"{where}.kind", remedy=f"write {own_kind!r}")
    values = {}
    for field in fields(record):
        if field.name in table:
            values[field.name] = _value(known[field.name], field.name, table[field.name], f"{where}.{field.name}")
        elif field.default is MISSING:
            raise BadInput("is missing", where=f"{where}.{field.name}", remedy="add it")
    return record(**values)


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{reprlib.repr(value)} is not a table of fields", where=where)
    return value


def _value(hint: Any, name: str, raw: object, where: str) -> Any:
    """A value of the type that ``hint`` names."""
    if get_origin(hint) is tuple:
        return _items(get_args(hint)[0], name, raw, where)
    if get_origin(hint) is Literal:
        return _choice(name, raw, get_args(hint), where)
    choices = [choice for choice in get_args(hint) if choice is not NoneType] or [hint]
    if raw is None and NoneType in get_args(hint):
        return None
    if len(choices) > 1:
        kind = _table(raw, where).get("kind")
        by_name = {_KINDS[choice]: choice for choice in choices}
        return _record(by_name[_choice("kind", kind, tuple(by_name), f"{where}.kind")], raw, where)
    if hasattr(choices[0], "__dataclass_fields__"):
        return _record(choices[0], raw, where)
    if choices[0] is bool:
        return _switch(raw, where)
    return _text(raw, where) if choices[0] is str else _integer(name, raw, where)


def _items(hint: Any, name: str, raw: object, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):
        raise BadInput(f"{reprlib.repr(raw)} is not a list", where=where)
    if len(raw) > _MOST_LAYERS:
        raise BadInput(f"{len(raw)} items are too many", where=where, remedy=f"at most {_MOST_LAYERS}")
    return tuple(_value(hint, name, item, f"{where}[{i}]") for i, item in enumerate(raw))


def _choice(name: str, raw: object, choices: tuple[str, ...], where: str) -> str:
    if not isinstance(raw, str):
        raise BadInput(f"{reprlib.repr(raw)} is not a name", where=where, remedy=f"use {' or '.join(choices)}")
    if raw not in choices:
        raise UnknownName(name, raw[:40], choices, where=where)
    return raw


def _switch(raw: object, where: str) -> bool:
    if not isinstance(raw, bool):
        raise BadInput(f"{reprlib.repr(raw)} is neither true nor false", where=where)
    return raw


def _text(raw: object, where: str) -> str:
    if not isinstance(raw, str):
        raise BadInput(f"{reprlib.repr(raw)} is not text", where=where)
    if not 1 <= len(raw) <= _LONGEST_TEXT or not raw.isprintable():
        problem = f"{reprlib.repr(raw)} is empty, too long or not printable"
        raise BadInput(problem, where=where, remedy=f"use 1 to {_LONGEST_TEXT} printable characters")
    return raw


def _integer(name: str, raw: object, where: str) -> int:
    least, most = _LIMITS.get(name, (1, _LARGEST))
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise BadInput(f"{reprlib.repr(raw)} is not a whole number", where=where)
    if not least <= raw <= most:
        shown = reprlib.repr(raw) if abs(raw) < 10**30 else "a huge number"
        raise BadInput(f"{shown} is outside {least} to {most}", where=where)
    return raw


def _check(model: Model, where: str) -> None:
    """What fields must agree on with each other."""
    if not 1 <= model.layers <= _MOST_LAYERS:
        problem = f"{model.layers} layers in all"
        raise BadInput(problem, where=f"{where}.runs", remedy=f"use 1 to {_MOST_LAYERS}")
    for i, run in enumerate(model.runs):
        place = f"{where}.runs[{i}].block"
        attention, moe = run.block.attention, run.block.moe
        if run.block.hidden != model.hidden:
            raise BadInput(f"{run.block.hidden} differs from the model's {model.hidden}", where=f"{place}.hidden")
        if attention.heads % attention.kv_heads:
            problem = f"{attention.heads} heads do not share {attention.kv_heads} key-value heads evenly"
            raise BadInput(problem, where=f"{place}.attention")
        if moe and moe.top_k > moe.experts:
            problem = f"{moe.top_k} is more than the {moe.experts} experts"
            raise BadInput(problem, where=f"{place}.feed_forward.top_k")
