"""The parts of which pages are made; each has a macro of its name in ``templates/macros.html``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A name and what it is, in words."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something to notice, and what can be done about it."""

    text: str
    remedy: str = ""
    kind: Literal["note", "warning", "error"] = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: what stands at its head, what that means, and whether it holds numbers."""

    heading: str
    meaning: str = ""
    number: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is read.
        key: what is sorted by, in SI units; None where the text is.
        link: where the text leads, within the page or the server.
    """

    text: str
    key: float | None = None
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that a reader can sort and filter.

    Attributes:
        name: of the element; one on a page.
        caption: what the rows are.
        rows: a cell for each column.
        head: whether the first column names the row.
        marks: of each row, how it stands out: "tied", "shown", both or neither; empty where none does.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    head: bool = True
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a whole: ``share`` is what its bar shows, from 0 to 1."""

    label: str
    text: str
    share: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of one whole, as bars under each other."""

    caption: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart.

    Attributes:
        svg: the element, from ``weft.views.charts.charts.embedded``; it is put into the page as it is.
        caption: what to see in it.
    """

    svg: str
    caption: str
