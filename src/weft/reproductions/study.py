"""A published claim beside Weft's figures, with the conditions that they hold under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.results import Result
from weft.units import counted

Row = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reproduction(Result):
    """One study of a paper's claim.

    ``rows`` have the same columns, whose names end in their units (``_s``; ``_share`` of one; ``_points`` of a
    percent; ``_times``).  ``drawn`` names the columns of a picture: along, up (several), and the one that tells lines
    apart.
    """

    SCHEMA = "weft.reproduction/1"

    study: str
    title: str
    source: str
    conditions: tuple[str, ...]
    rows: tuple[Row, ...]
    findings: tuple[str, ...]
    drawn: tuple[str, tuple[str, ...], str] | None = None

    def to_dicts(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def _document(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "title": self.title,
            "source": self.source,
            "conditions": list(self.conditions),
            "rows": self.to_dicts(),
            "findings": list(self.findings),
        }

    def _facts(self) -> Sequence[str]:
        return (self.title, counted(len(self.rows), "row"))
