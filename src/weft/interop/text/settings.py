"""Settings of a run configuration that is read: flat, typed on demand, and aware of which were used."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from weft.errors import BadInput

LARGEST = 10**9


class Settings(Mapping[str, Any]):
    """Values by dotted name; remembers every name that was asked for, to report the rest as ignored."""

    def __init__(self, values: Mapping[str, Any], *, where: str) -> None:
        self._values, self._asked, self.where = values, set[str](), where

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        self._asked.add(str(name))
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names that nobody asked for, sorted."""
        return tuple(sorted(set(self._values) - self._asked))

    def bad(self, name: str, problem: str, remedy: str | None = None) -> BadInput:
        """A ``BadInput`` about a setting."""
        return BadInput(problem, where=f"{self.where}: {name}", remedy=remedy)

    def integer(self, name: str, default: int = 1, *, least: int = 1) -> int:
        """A whole number; a missing one and "auto" give the default."""
        value = self.get(name, default)
        if value == "auto":
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(name, f"{reprlib.repr(value)} is not a whole number")
        if not least <= value <= LARGEST:
            raise self.bad(name, f"{reprlib.repr(value)} is not between {least} and {LARGEST}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false; "auto" gives the default."""
        value = self.get(name, default)
        if value == "auto":
            return default
        if not isinstance(value, bool):
            raise self.bad(name, f"{reprlib.repr(value)} is not true or false")
        return value

    def word(self, name: str, default: str, *choices: str) -> str:
        """A text; one of ``choices`` in any case, where there are any."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.bad(name, f"{reprlib.repr(value)} is not a text")
        if not choices:
            return value
        result = next((choice for choice in choices if choice.lower() == value.lower()), None)
        if result is None:
            raise self.bad(name, f"{reprlib.repr(value)} is not modelled", f"use {', '.join(choices)}")
        return result


def flatten(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as one, with dotted names; lists stay values."""
    result: dict[str, Any] = {}
    pending: list[tuple[str, Mapping[str, Any]]] = [("", tables)]
    while pending:
        prefix, table = pending.pop()
        for name, value in table.items():
            if isinstance(value, Mapping):
                pending.append((f"{prefix}{name}.", value))
            else:
                result[f"{prefix}{name}"] = value
    return result


def share_of(whole: int, degrees: Mapping[str, int], *, where: str, unit: str = "accelerators") -> int:
    """What the degrees leave of a whole: data-parallel ranks of a world, or micro-batches of a batch."""
    product = prod(degrees.values())
    if whole % product:
        terms = " * ".join(f"{name} {degree}" for name, degree in degrees.items())
        raise BadInput(
            f"{terms} = {product} does not divide {whole} {unit}",
            where=where,
            remedy=f"correct a degree or the number of {unit}",
        )
    return whole // product
