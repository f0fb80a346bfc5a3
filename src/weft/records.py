"""Frozen records as plain tables of JSON types, and back with every field checked.

Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from weft.errors import BadInput, UnknownName

_Record = TypeVar("_Record")
_LARGEST = 10**9
_MOST_ITEMS = 10_000
_LONGEST_TEXT = 2000


@cache
def _hints(record: Any) -> dict[str, Any]:
    return get_type_hints(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Builds records of dataclasses from tables of their fields; fields with a default may be left out.

    Attributes:
        kinds: the ``kind`` that names a record where a field has alternatives.
        limits: least and largest value of whole numbers by field; others are 1 to 10^9.
        least: smallest whole number without limits of its own, and length of the shortest text.
    """

    kinds: Mapping[type[Any], str] = field(default_factory=dict)
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    least: int = 1

    def plain(self, value: Any) -> Any:
        """A record, with all that it holds, as JSON types; ``read`` makes an equal one of it."""
        if isinstance(value, tuple):
            return [self.plain(item) for item in value]
        if not is_dataclass(value):
            return value
        kind = self.kinds.get(cast(type[Any], type(value)))
        table = {one.name: self.plain(getattr(value, one.name)) for one in fields(value)}
        return {"kind": kind} | table if kind else table

    def read(self, record: type[_Record], mapping: object, where: str) -> _Record:
        """A record from a table of its fields."""
        table = table_of(mapping, where)
        known = _hints(cast(Any, record))
        own_kind = self.kinds.get(record)
        for name in table:
            if name not in known and not (own_kind and name == "kind"):
                near = difflib.get_close_matches(str(name), known, n=2)
                remedy = f"did you mean {' or '.join(near)}?" if near else "remove it"
                raise BadInput(f"{reprlib.repr(name)} is not a known field", where=where, remedy=remedy)
        if own_kind and table.get("kind", own_kind) != own_kind:
            problem = f"{reprlib.repr(table['kind'])} is not {own_kind!r}"
            raise BadInput(problem, where=f"{where}.kind", remedy=f"write {own_kind!r}")
        values = {}
        for one in fields(cast(Any, record)):
            if one.name in table:
                values[one.name] = self._value(known[one.name], one.name, table[one.name], f"{where}.{one.name}")
            elif one.default is MISSING:
                raise BadInput("is missing", where=f"{where}.{one.name}", remedy="add it")
        return record(**values)

    def _value(self, hint: Any, name: str, raw: object, where: str) -> Any:
        """A value of the type that ``hint`` names."""
        if get_origin(hint) is tuple:
            return self._items(get_args(hint)[0], name, raw, where)
        if get_origin(hint) is Literal:
            return _choice(name, raw, get_args(hint), where)
        choices = [choice for choice in get_args(hint) if choice is not NoneType] or [hint]
        if raw is None and NoneType in get_args(hint):
            return None
        if len(choices) > 1:
            kind = table_of(raw, where).get("kind")
            by_name = {self.kinds[choice]: choice for choice in choices}
            return self.read(by_name[_choice("kind", kind, tuple(by_name), f"{where}.kind")], raw, where)
        if is_dataclass(choices[0]):
            return self.read(cast(type[Any], choices[0]), raw, where)
        if choices[0] is bool:
            return _switch(raw, where)
        if choices[0] is float:
            return number(raw, where)
        return self._text(raw, where) if choices[0] is str else self._integer(name, raw, where)

    def _items(self, hint: Any, name: str, raw: object, where: str) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple):
            raise BadInput(f"{reprlib.repr(raw)} is not a list", where=where)
        if len(raw) > _MOST_ITEMS:
            raise BadInput(f"{len(raw)} items are too many", where=where, remedy=f"at most {_MOST_ITEMS}")
        return tuple(self._value(hint, name, item, f"{where}[{i}]") for i, item in enumerate(raw))

    def _integer(self, name: str, raw: object, where: str) -> int:
        least, most = self.limits.get(name, (self.least, _LARGEST))
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise BadInput(f"{reprlib.repr(raw)} is not a whole number", where=where)
        if not least <= raw <= most:
            shown = reprlib.repr(raw) if abs(raw) < 10**30 else "a huge number"
            raise BadInput(f"{shown} is outside {least} to {most}", where=where)
        return raw

    def _text(self, raw: object, where: str) -> str:
        if not isinstance(raw, str):
            raise BadInput(f"{reprlib.repr(raw)} is not text", where=where)
        if not self.least <= len(raw) <= _LONGEST_TEXT or not raw.isprintable():
            problem = f"{reprlib.repr(raw)} is empty, too long or not printable"
            raise BadInput(problem, where=where, remedy=f"use 1 to {_LONGEST_TEXT} printable characters")
        return raw


def table_of(value: object, where: str) -> Mapping[str, Any]:
    """The value, which is to be a table of fields."""
    if not isinstance(value, Mapping):
        raise BadInput(f"{reprlib.repr(value)} is not a table of fields", where=where)
    return value


def number(raw: object, where: str) -> float:
    """The value, which is to be a finite number, as a float."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise BadInput(f"{reprlib.repr(raw)} is not a finite number", where=where)
    return float(raw)


def positive(raw: object, where: str) -> float:
    """The value, which is to be a finite number above 0, as a float."""
    value = number(raw, where)
    if value <= 0:
        raise BadInput(f"{value:g} is not positive", where=where)
    return value


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
