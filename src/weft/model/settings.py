"""Settings of a configuration that is read: typed on demand, and aware of which were used."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from weft.errors import BadInput

LARGEST = 10**9
"""Upper limit of whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values by name; null and "auto" count as absent.

    Attributes:
        data: flat, of tables with dotted names.
        where: the file, for messages.
        used: names that anybody asked for.
    """

    data: Mapping[str, Any]
    where: str
    used: set[str] = field(default_factory=set)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names that nobody asked for, sorted."""
        return tuple(sorted(set(self.data) - self.used))

    def bad(self, name: str, problem: str, remedy: str | None = None) -> BadInput:
        """A ``BadInput`` about a setting."""
        return BadInput(problem, where=f"{self.where}: {name}", remedy=remedy)

    def missing(self, *names: str) -> BadInput:
        """A ``BadInput`` about a setting that is needed, under one of ``names``."""
        return BadInput(f"{names[0]} is missing", where=self.where, remedy=f"add {' or '.join(names)}")

    def has(self, name: str) -> bool:
        self.used.add(name)
        return self.data.get(name) not in (None, "auto")

    def find(self, *names: str) -> str | None:
        """The first of the (equivalent) names that is set."""
        return next((name for name in names if self.has(name)), None)

    def whole(self, name: str) -> int:
        """The whole number under a name that is set."""
        value = self.data[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(name, f"{reprlib.repr(value)} is not a whole number")
        return value

    def optional_integer(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """The whole number under the first name that is set, or None."""
        name = self.find(*names)
        if name is None:
            return None
        value = self.whole(name)
        if not least <= value <= most:
            raise self.bad(name, f"{reprlib.repr(value)} is outside {least} to {most}")
        return value

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Like ``optional_integer``, with a default; without one it is required."""
        value = self.optional_integer(*names, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            raise self.missing(*names)
        return default

    def count(self, name: str) -> int:
        """A whole number, 1 by default."""
        return self.integer(name, default=1)

    def real(self, name: str) -> float:
        """The number under a name that is set."""
        value = self.data[name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.bad(name, f"{reprlib.repr(value)} is not a number")
        return value

    def number(self, name: str, default: float, *, most: float = sys.float_info.max) -> float:
        """A number from 0 to ``most``."""
        if not self.has(name):
            return default
        value = self.real(name)
        if not 0 <= value <= most:
            raise self.bad(name, f"{value:g} is not a number from 0 to {most:g}")
        return float(value)

    def typed(self, name: str, kind: Any, default: Any, problem: str) -> Any:
        """A value of a type."""
        if not self.has(name):
            return default
        value = self.data[name]
        if not isinstance(value, kind):
            raise self.bad(name, f"{reprlib.repr(value)} {problem}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.typed(name, bool, default, "is neither true nor false"))

    def word(self, name: str, default: str, *choices: str) -> str:
        """A text; one of ``choices`` in any case, where there are any."""
        value = str(self.typed(name, str, default, "is not text"))
        result = next((choice for choice in choices or (value,) if choice.lower() == value.lower()), None)
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
