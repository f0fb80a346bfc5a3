"""What is shown of a result: a list of blocks, which the terminal, pages and Markdown each render in their own way.

A view is a function of a result that yields blocks in reading order.  No view knows where it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from weft.views.charts import Chart

Style = Literal["", "bold", "dim"]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text that is wrapped, ``indent`` blanks in and further lines ``hang`` more."""

    text: str
    indent: int = field(default=0, kw_only=True)
    hang: int = field(default=0, kw_only=True)
    style: Style = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a section; those at the ``top`` are in the navigation of a report."""

    text: str
    top: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what it is; on a terminal the name, as it stands, takes ``width`` columns."""

    name: str
    text: str
    width: int = field(default=9, kw_only=True)
    indent: int = field(default=0, kw_only=True)
    style: Style = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank line of a terminal."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid.

    Attributes:
        heading: of the column.
        cells: texts of its rows.
        drop: the columns with the highest go first where the grid is too wide, 0 never.
        left: whether texts are left-aligned.
        shares: bars of these shares instead of texts.
        room: columns of a terminal that bars leave for the other columns.
        meaning: of the heading, in a few words, shown below the grid.
        values: what the rows are called elsewhere, so that a page can lead from a row to its own page.
        front: whether pages show it right behind the first column, in every case.
    """

    heading: str
    cells: Sequence[str] = ()
    _: KW_ONLY
    drop: int = 0
    left: bool = False
    shares: Sequence[float] = ()
    room: int = 0
    meaning: str = ""
    values: Sequence[str] = ()
    front: bool = False

    @property
    def width(self) -> int:
        """Characters of the longest text."""
        return max(len(text) for text in (self.heading, *self.cells))


class Table:
    """A table, a row on each line."""

    def __init__(self, *columns: Column) -> None:
        self.columns = columns


def cell(value: Any, form: str | Callable[[Any], str] = ".1%") -> str:
    """The text of a value in a table; "-" where there is none."""
    return "-" if value is None else f"{value:{form}}" if isinstance(form, str) else form(value)


def rows_grid(names: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()) -> Table:
    """A grid from its rows; the columns in ``left`` hold texts."""
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    return Table(*[Column(name, texts, left=name in left) for name, texts in zip(names, cells, strict=True)])


@dataclass(frozen=True, slots=True)
class Figure:
    """What draws a chart, or the text of an SVG element; pages alone show it."""

    chart: Callable[[], Chart] | str
    caption: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Text to copy, and what it is; a text of one line is shown after its label."""

    text: str
    label: str


Block = Paragraph | Heading | Fact | Blank | Table | Figure | Copied


def headline(text: str) -> Iterator[Block]:
    """The answer in a sentence, apart from what follows."""
    yield Paragraph(text, style="bold")
    yield Blank()


def notes(lines: Iterable[str], style: Style = "") -> Iterator[Block]:
    """What to know of an answer, a line each."""
    for line in lines:
        yield Paragraph(line, indent=2, hang=2, style=style)
